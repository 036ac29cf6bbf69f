"""Shows a library's warnings on stderr where the application has configured no logging, once each.

Python's own last resort would repeat them and would not say whose they are. An application that configures logging (any
handler of the root logger, or of the library's own) gets every record there, and nothing is printed.
"""

import contextlib
import logging
import os
import select
import sys
from collections.abc import Mapping
from typing import Final

from publishers.shared.fork_guard import hold_forks
from publishers.shared.printable import printable_line

MAX_LINES: Final = 16
"""Different ones of a process: further ones are not shown."""
MAX_CHARACTERS: Final = 2_048
TIMEOUT_S: Final = 1.0
"""A terminal that was stopped, or a pipe that nobody reads, loses a line after that."""


class StderrHandler(logging.Handler):
    """Writes each warning once, by one process of each node where a launcher has started several.

    Args:
        name: whose warnings they are.
        environ: names the rank of this process.
    """

    def __init__(self, name: str, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(logging.WARNING)
        self._name = name
        self._environ = environ
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless the application has a handler for it, or it was written before."""
        if _is_configured(logging.getLogger(record.name)) or not speaks_for_node(self._environ):
            return
        text = printable_line(record.getMessage(), max_characters=MAX_CHARACTERS)
        if text in self._shown or len(self._shown) >= MAX_LINES:
            return
        self._shown.add(text)
        write_line(f"{self._name}: {text}")


def write_line(line: str) -> None:
    """Write a line to what is `sys.stderr` now; never raises.

    The interpreter's own stream is passed by: its lock is not taken, which the children of a fork need, and what was
    written there without a line's end comes later. A stream that has taken its place gets the line itself.
    """
    stream, own = sys.stderr, sys.__stderr__
    with contextlib.suppress(Exception):  # it is closed, or None; an application's own may raise anything
        if own is not None and stream is own and hasattr(os, "register_at_fork"):
            _write_in_time(own.fileno(), f"{line}\n".encode(own.encoding, own.errors or "strict"))
            return
        with hold_forks():
            stream.write(f"{line}\n")
            stream.flush()


def _write_in_time(fd: int, data: bytes) -> None:
    """Write to a file descriptor as long as it takes more within `TIMEOUT_S`."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while data and poll.poll(TIMEOUT_S * 1e3):
        data = data[os.write(fd, data[: select.PIPE_BUF]) :]  # a pipe that takes anything takes so much at once


def _is_configured(logger: logging.Logger | None) -> bool:
    """Return whether a logger or one above it has a handler of the application's."""
    while logger is not None:
        if any(not isinstance(handler, StderrHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def speaks_for_node(environ: Mapping[str, str]) -> bool:
    """Return whether this process is the first of its node, or alone."""
    for variable in ("LOCAL_RANK", "SLURM_LOCALID", "RANK", "SLURM_PROCID"):
        if rank := environ.get(variable):
            return rank == "0"
    return True
