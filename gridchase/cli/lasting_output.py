"""Standard output and error that last: nothing that becomes of a terminal or a log may stop what holds power limits."""

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PATIENCE_S: Final = 0.2
"""The event loop waits no longer for a terminal or pipe that takes nothing, such as one that Ctrl-S has stopped."""
_CHUNK_BYTES: Final = 512
"""What is ready to be written to takes at least this much at once."""
_GONE: Final = frozenset({errno.EIO, errno.EPIPE, errno.ENXIO, errno.ECONNRESET})


class _LastingFile(io.FileIO):
    """A standard stream whose reader may go away or stall, or whose disk may be full: what it does not take is lost."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._patience_ms = round(PATIENCE_S * 1_000)

    def write(self, data: "ReadableBuffer") -> int:
        """Write some of the data; return how much of it needs no more care."""
        chunk = memoryview(data).cast("B")[:_CHUNK_BYTES]
        try:
            if self._takes_data():
                return super().write(chunk) or 0
        except OSError as error:
            if error.errno in _GONE:
                _discard(self.fileno())
        return len(chunk)

    def _takes_data(self) -> bool:
        """Return whether the stream takes data; once it has not, it is not waited for until it does again."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        is_ready = bool(poll.poll(self._patience_ms))
        self._patience_ms = round(PATIENCE_S * 1_000) if is_ready else 0
        return is_ready


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Let the body print and log to standard output and error whatever becomes of them."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_lasting(stream) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # Python has no stream for a descriptor that was closed when it started
                stream.flush()
        sys.stdout, sys.stderr = before


def _lasting(stream: TextIO) -> TextIO:
    """Return a stream to the same descriptor that lasts; a stream without one as it is."""
    try:
        stream.flush()
        raw = _LastingFile(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return stream
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)


def _discard(fd: int) -> None:
    """Let a descriptor lead to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)
