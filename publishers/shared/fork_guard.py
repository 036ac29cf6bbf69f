"""Holds forks back while a thread of ours runs code that takes the locks of streams and of other libraries.

A forked child inherits each lock as it is, but not the thread that would release it. Python makes the locks of
`logging` anew in a child, not those of buffered streams: a child that is forked while a thread writes to `sys.stderr`
waits for ever when it flushes that. So does one that looks up a host or begins with TLS, if a thread was about to do
the same: glibc and OpenSSL leave their locks as they were. A program without us may have no such thread.
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
    """Says where a thread is while none may fork; only a thread that forks ever waits for another's.

    Attributes:
        is_inside: whether the thread is there: what it calls may come here again, or fork itself.
        was_waited_for: whether a fork has waited for it in vain since it is there: the next one does not wait again.
    """

    def __init__(self) -> None:
        self.is_inside = self.was_waited_for = False
        self._entry = threading.Lock()  # a fork that waits holds it, or a thread that soon comes back would win
        self._inside = threading.Lock()

    def enter(self) -> bool:
        """Go in, once a fork under way is over; return whether that was in time."""
        if not self._entry.acquire(timeout=MAX_WAIT_S):
            return False
        try:
            self.is_inside = self._inside.acquire(
                timeout=MAX_WAIT_S
            )  # at once, unless Ctrl-C has come just here before
        finally:
            self._entry.release()
        return self.is_inside

    def leave(self) -> None:
        """Come out."""
        self.is_inside = self.was_waited_for = False
        self._inside.release()

    def close(self, deadline_s: float) -> bool:
        """Let the thread not in once it is outside; return whether that is so before a monotonic time [s]."""
        if self._entry.acquire(timeout=self._left_s(deadline_s)):
            if self._inside.acquire(timeout=self._left_s(deadline_s)):
                return True
            self._entry.release()
        self.was_waited_for = True
        return False

    def open(self) -> None:
        """Let the thread in again."""
        self._inside.release()
        self._entry.release()

    def _left_s(self, deadline_s: float) -> float:
        return 0.0 if self.was_waited_for else max(0.0, deadline_s - time.monotonic())


class _Here(threading.local):
    """The guard of this thread, and those that a fork of this thread has closed."""

    def __init__(self) -> None:
        self.guard = _ThreadGuard()
        self.closed: list[_ThreadGuard] = []
        _guards.add(weakref.ref(self.guard, _guards.discard))


_guards: "set[weakref.ref[_ThreadGuard]]" = set()
_here = _Here()


@contextmanager
def hold_forks() -> Iterator[None]:
    """Let no other thread fork meanwhile; begins when a fork under way is over, or after `MAX_WAIT_S`."""
    guard = _here.guard
    has_entered = not guard.is_inside and guard.enter()
    try:
        yield
    finally:
        if has_entered:
            guard.leave()


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
        if guard is not None and guard is not here.guard and guard.close(deadline_s):
            here.closed.append(guard)


def _after_fork_in_parent() -> None:
    closed = _here.closed
    while closed:
        closed.pop().open()


def _after_fork_in_child() -> None:
    """Begin afresh: the other threads are not here. This one may still leave its former guard."""
    global _here  # noqa: PLW0603 — one of a process
    _guards.clear()
    _here = _Here()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
