"""The publishers of a process: one for each job, run and rank. A forked child has none."""

import os
import threading
import weakref
from typing import Generic, Protocol, TypeVar

from publishers.training.iterations.recorder import Recorder
from publishers.training.settings import Settings

Key = tuple[str, str | None, int | None]
"""The job, and the run and the rank where they are given."""


class Recording(Protocol):
    """What records iterations."""

    @property
    def recorder(self) -> Recorder:
        """Return where they are recorded."""


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
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._reset_in_child)

    def _reset_in_child(self) -> None:
        self.lock = threading.Lock()
        self.by_key.clear()
        for publisher in list(self.opened):
            publisher.recorder.close()  # if it is used for another training here, it opens again


def key_of(settings: Settings) -> Key:
    """Return under what a publisher is found."""
    return settings.job, settings.given.run, settings.given.rank
