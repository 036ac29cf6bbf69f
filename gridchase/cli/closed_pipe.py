"""A reader of standard output that ends early, such as `head`, ends a verb without a word, as a signal would."""

import contextlib
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
        SystemExit: the reader has ended (141).
    """
    try:
        try:
            yield
        except SystemExit as ended:
            if not ended.code:
                _flush()
            raise
        _flush()  # not after an error: its traceback says more than that nobody reads it
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes again at its end
        raise SystemExit(EXIT_CODE) from None


def _flush() -> None:
    if sys.stdout is not None:  # closed before Python started
        sys.stdout.flush()
