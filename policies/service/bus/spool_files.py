"""The files of the spool: lines of JSON in segments, in a directory that one process holds, whatever becomes of it.

    <spool_dir>/<owner>/lock             held as long as the process lives
    <spool_dir>/<owner>/00000001.jsonl   oldest first; the newest one is written to

The directories of dead processes are taken over by whoever looks next. All of this blocks, and runs in a thread.
"""

import errno
import fcntl
import logging
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from policies.service.bus.news import Story, newest

MAX_BYTES: Final = 64 << 20
SEGMENT_BYTES: Final = 1 << 20
_LOCK: Final = "lock"
_NEW: Final = ".new-"
_ENDING: Final = ".jsonl"
_DECODER: Final = msgspec.json.Decoder(Story)
_LOGGER = logging.getLogger(__name__)


class SpoolFiles:
    """The files of one process; every method may raise OSError.

    Args:
        directory: where each process has a directory of its own; made where it is missing.
        max_bytes: how much may wait.
        segment_bytes: how much is read, and forgotten, at once.
    """

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._own: Path | None = None
        self._lock: int | None = None
        self._newest: Path | None = None
        self._told: set[Path] = set()
        self._n_segments = 0

    def append(self, news: Iterable[Story]) -> None:
        """Write news and see them on the disk; where that fails, none of them is taken."""
        lines = b"".join(msgspec.json.encode(item) + b"\n" for item in news)
        own = self._opened()
        if self._n_bytes(own) + len(lines) > self._max_bytes:
            raise OSError(errno.EFBIG, f"{self._max_bytes >> 20} MiB wait already", str(own))
        path = self._writable(own)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, lines)
            os.fsync(descriptor)
        except OSError:
            self._newest = None  # what cannot be taken back stays behind as a torn line, and nothing comes after it
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
        finally:
            os.close(descriptor)
        if size == 0:
            _sync(own)

    def oldest(self) -> Path | None:
        """Return the segment to read next, to which nothing is written any more; None where nothing waits."""
        segments = _segments(self._own) if self._own is not None else []
        waiting = next((segment for segment in segments if segment not in self._told), None)
        if waiting is not None and waiting == self._newest:
            self._newest = None
        return waiting

    def read(self, segment: Path) -> list[Story]:
        """Return the news of a segment, of several about the same the one that makes up for all.

        What cannot be read, such as the torn end of a killed process, is left out.
        """
        found: list[Story] = []
        faults: list[str] = []
        try:
            lines = segment.read_bytes().split(b"\n")
        except OSError as error:  # what is broken must not block what comes after it
            aside = segment.rename(segment.with_suffix(".unreadable"))
            _LOGGER.error("%s: %s: kept as %s", segment, error.strerror, aside.name)
            return []
        for line in lines:
            try:
                found += [_DECODER.decode(line)] if line else []
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                faults.append(str(error))
        if faults:
            _LOGGER.warning("%s: %d lines cannot be read and are left out: %s", segment, len(faults), faults[0])
        return newest(found)

    def remove(self, segment: Path) -> None:
        """Forget a segment."""
        self._told.add(segment)  # even where the disk has become read-only meanwhile
        segment.unlink(missing_ok=True)
        self._told.discard(segment)

    def take_over(self) -> int:
        """Take what dead processes have left; return how many segments that was."""
        if not self._directory.is_dir():
            return 0
        others = [path for path in sorted(self._directory.iterdir()) if path.is_dir() and path != self._own]
        return sum(self._inherit(other) for other in others)

    def close(self) -> None:
        """Let go of the directory, and remove it where nothing waits."""
        if self._own is not None and not _segments(self._own):
            with suppress(OSError):
                (self._own / _LOCK).unlink()
                self._own.rmdir()
        if self._lock is not None:
            os.close(self._lock)
        self._own = self._lock = self._newest = None

    def _opened(self) -> Path:
        """Return the directory of this process, which is made and locked before others can see it."""
        if self._own is None:
            name = f"{os.getpid()}-{secrets.token_hex(6)}"
            made = self._directory / f"{_NEW}{name}"
            made.mkdir(parents=True, mode=0o700)
            self._lock = _locked(made)
            self._own = made.rename(self._directory / name)
            _sync(self._directory)
        return self._own

    def _writable(self, own: Path) -> Path:
        if self._newest is None or _size(self._newest) >= self._segment_bytes:
            self._newest = self._next(own)
        return self._newest

    def _next(self, own: Path) -> Path:
        self._n_segments += 1
        return own / f"{self._n_segments:08}{_ENDING}"

    def _inherit(self, other: Path) -> int:
        """Move the segments of a directory that nobody holds into our own."""
        if other.name.startswith(_NEW):
            return 0
        lock = _locked(other)
        if lock is None:
            return 0
        try:
            segments = _segments(other)
            for segment in segments:
                segment.rename(self._next(self._opened()))
                self._newest = None
            with suppress(OSError):
                (other / _LOCK).unlink(missing_ok=True)
                other.rmdir()
        finally:
            os.close(lock)
        if segments:
            _sync(self._opened())
            _LOGGER.info("%s: %d files of results that another process could not store", other, len(segments))
        return len(segments)

    def _n_bytes(self, own: Path) -> int:
        return sum(map(_size, _segments(own)))


def _segments(directory: Path) -> Sequence[Path]:
    try:
        return sorted(directory.glob(f"*{_ENDING}"))
    except FileNotFoundError:
        return []


def _locked(directory: Path) -> int | None:
    """Lock a directory; None where another process holds it, or nobody can."""
    try:
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # somebody has taken it over just now
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held; or a network file system that knows no locks, where it stays with its owner
        os.close(descriptor)
        return None
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync(directory: Path) -> None:
    """See the names in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
