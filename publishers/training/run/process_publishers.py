"""The publishers of a process: one for each job, run and rank, and thread that trains. A forked child has none."""

import os
import threading
import weakref
from typing import Generic, Protocol, TypeVar

from publishers.training.coerce import warn_once
from publishers.training.iterations.recorder import Recorder
from publishers.training.run.run_search import n_ranks
from publishers.training.settings import Settings

Key = tuple[str, str | None, int | None, int]
"""The job, the run and the rank where they are given, and a number: of threads that train at once each has its own."""


class Recording(Protocol):
    """What records iterations."""

    @property
    def recorder(self) -> Recorder:
        """Return where they are recorded."""

    @property
    def closed(self) -> bool:
        """Return whether nothing is published."""


P = TypeVar("P", bound=Recording)


class ProcessPublishers(Generic[P]):
    """Those of this process, which has one such registry.

    Attributes:
        lock: held to find one, or to open it; another one after a fork, since the parent may have held it.
        by_key: those that others may find.
        opened: those that have a worker, whether or not others may find them.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[Key, P] = {}
        self.opened: weakref.WeakSet[P] = weakref.WeakSet()
        self._threads: dict[Key, threading.Thread] = {}
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._reset_in_child)

    def key_here(self, settings: Settings) -> Key:
        """Return under what this thread finds its publisher, or opens it; the lock is held.

        It is the first one that no other thread trains with now. Several ranks, or processes, that share a named run
        could not agree on a second one: there it is told that both threads are one run.
        """
        first, here = key_of(settings), threading.current_thread()
        keys = [(*first[:3], number) for number in range(len(self.by_key) + 1)]
        own = (key for key in keys if key in self.by_key and self._threads.get(key) is here)
        key = next(own, None) or next(key for key in keys if not self._is_busy(key))
        if key != first and (settings.given.run is not None or n_ranks() > 1):
            warn_once(
                f"two threads of this process train job {settings.job} at once: they are one run, and what is counted "
                "is of both; pass another job or run in one of them"
            )
            return first
        self._threads[key] = here
        return key

    def _is_busy(self, key: Key) -> bool:
        """Return whether a publisher is in use in another thread: in a pass, or wrapped there for one to come.

        The main thread may wrap a loader for others.
        """
        publisher, thread = self.by_key.get(key), self._threads.get(key)
        if publisher is None or publisher.closed or thread is None or not thread.is_alive():
            return False
        recorder = publisher.recorder
        is_to_come = thread is not threading.main_thread() and recorder.wrapped_at == recorder.n_ended
        return is_to_come or any(not one.is_new for one in list(recorder.passes))

    def _reset_in_child(self) -> None:
        self.lock = threading.Lock()
        self._threads.clear()
        self.by_key.clear()
        for publisher in list(self.opened):
            publisher.recorder.close()  # if it is used for another training here, it opens again


def key_of(settings: Settings) -> Key:
    """Return under what a publisher is found."""
    return settings.job, settings.given.run, settings.given.rank, 0
