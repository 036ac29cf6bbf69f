"""The publishers of this process: one for each job, run and rank. A forked child has none."""

import os
import threading
import weakref
from typing import TYPE_CHECKING

from publishers.training.settings import Settings

if TYPE_CHECKING:
    from publishers.training.publisher import Publisher

Key = tuple[str, str | None, int | None]
"""The job, and the run and the rank where they are given."""
PUBLISHERS: "dict[Key, Publisher]" = {}
OPEN: "weakref.WeakSet[Publisher]" = weakref.WeakSet()
"""Those that have a worker, whether or not others may find them."""


class Registry:
    """The lock of `PUBLISHERS`; another one after a fork."""

    lock = threading.Lock()


def key_of(settings: Settings) -> Key:
    """Return under what a publisher is found."""
    return settings.job, settings.given.run, settings.given.rank


def _reset_in_child() -> None:
    """Begin afresh in a forked child: the parent may have held the lock."""
    Registry.lock = threading.Lock()
    PUBLISHERS.clear()
    for publisher in list(OPEN):
        publisher.recorder.close()  # if it is used for another training here, it opens again


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reset_in_child)
