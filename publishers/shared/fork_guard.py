"""Holds forks back while a thread of ours runs code that takes the locks of streams and of other libraries.

A forked child inherits each lock as it is, but not the thread that would release it. Python makes the locks of
`logging` anew in a child, not those of buffered streams: a child that is forked while a thread writes to `sys.stderr`
waits for ever when it flushes that. So does one that looks up a host, if a thread was about to do so: glibc keeps the
resolver's lock as it was. A program without us may have no such thread.
"""

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MAX_WAIT_S: Final = 0.1
"""A fork waits so long for all threads at most: what they call is an application's, and may hang."""


class _ThreadGuard:
    """What a thread holds where no process may be forked; only a thread that forks ever waits for another's.

    Attributes:
        lock: reentrant, since a handler of logging may itself log, or fork.
        was_waited_for: whether a fork has waited for it in vain since it was taken: the next one does not wait again.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.was_waited_for = False


class _Here(threading.local):
    """The guard of this thread, and those that a fork of this thread has taken."""

    def __init__(self) -> None:
        self.guard = _ThreadGuard()
        self.taken: list[_ThreadGuard] = []
        _guards.add(weakref.ref(self.guard, _guards.discard))


_guards: "set[weakref.ref[_ThreadGuard]]" = set()
_here = _Here()


@contextmanager
def hold_forks() -> Iterator[None]:
    """Let no other thread fork meanwhile; begins when a fork under way is over, or after `MAX_WAIT_S`."""
    guard = _here.guard
    is_held = guard.lock.acquire(timeout=MAX_WAIT_S)
    try:
        yield
    finally:
        if is_held:
            guard.was_waited_for = False
            guard.lock.release()


def guarded_logger(name: str) -> logging.Logger:
    """Return a logger that holds forks back while handlers, which may be an application's, have a record of it."""
    logger = logging.getLogger(name)
    if "callHandlers" not in vars(logger):
        call_handlers = logger.callHandlers

        def call_guarded(record: logging.LogRecord) -> None:
            with hold_forks():
                call_handlers(record)

        # Not a class of our own: an application may have asked for the logger before us.
        logger.callHandlers = call_guarded  # type: ignore[method-assign]
    return logger


def _before_fork() -> None:
    """Wait until no thread is where none may fork.

    Where one does not come out in time the fork goes on, since a training that waits is worse than the risk: the child
    waits for ever if it needs a lock that this thread holds, as it would with any thread of the application's own.
    """
    here, deadline_s = _here, time.monotonic() + MAX_WAIT_S
    for reference in tuple(_guards):
        guard = reference()
        if guard is None:
            continue
        left_s = 0.0 if guard.was_waited_for else max(0.0, deadline_s - time.monotonic())
        if guard.lock.acquire(timeout=left_s):
            here.taken.append(guard)
        else:
            guard.was_waited_for = True


def _after_fork_in_parent() -> None:
    taken = _here.taken
    while taken:
        taken.pop().lock.release()


def _after_fork_in_child() -> None:
    """Begin afresh: the other threads are not here. Who forks while it holds its own guard, still releases that."""
    global _here  # noqa: PLW0603 — one of a process
    _guards.clear()
    _here = _Here()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
