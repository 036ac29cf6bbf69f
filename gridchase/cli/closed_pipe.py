"""A reader of standard output that ends early, such as `head`, ends a verb without a word, as a signal would.

A full disk ends it with a line.
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from typing import Final

EXIT_CODE: Final = 128 + signal.SIGPIPE
"""As of a program that SIGPIPE has ended. The signal itself stays ignored: sockets would raise it, too."""


@contextlib.contextmanager
def ended_by_closed_pipe() -> Iterator[None]:
    """Let the body print, and the process end quietly where nobody reads that any more.

    Raises:
        SystemExit: the reader has ended (141), or the disk is full (1).
    """
    try:
        try:
            yield
        except SystemExit as ended:
            if not ended.code:
                _flush()
            raise
        _flush()  # not after an error: its traceback says more than that nobody reads it
    except OSError as error:
        is_closed = isinstance(error, BrokenPipeError)
        if not is_closed and not _is_full():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes again at its end
        code = EXIT_CODE if is_closed else f"gridchase: standard output: {os.strerror(errno.ENOSPC)}"
        raise SystemExit(code) from None


def _flush() -> None:
    if sys.stdout is not None:  # closed before Python started
        sys.stdout.flush()


def _is_full() -> bool:
    """Return whether what is printed finds no space; another file may have been meant."""
    try:
        print(flush=True)
    except OSError as error:
        return error.errno == errno.ENOSPC
    return False
