"""Bounded queues between the handlers of the bus, which must not wait, and the tasks that write to the database."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from policies.service.bus.events import RunEnded
from policies.service.bus.shares import KeysByUser
from policies.service.records import JobKey
from publishers.messages.topics import RunKey
from publishers.shared.log_once import FaultLog

GRACE_S: Final = 30.0
"""How long the final energy of a run is awaited after its training process has ended."""
MAX_RUNS: Final = 16_384
"""When more runs than this end at once, the final energies of the oldest are not waited for."""
Item = TypeVar("Item")
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Item]):
    job: JobKey
    is_final: bool
    item: Item


def _newer(_: Item, newer: Item) -> Item:
    return newer


class EventQueue(Generic[Item]):
    """A queue with at most `size` items, each under a key; a newer item replaces the waiting one in its place.

    Users take turns, and the items of one user come in their order: who has many waiting delays his own.

    A full queue drops an item of the user who has most of them, so that who floods it loses his own: the oldest of that
    user's job with most of them, or the newest where each job has but one. Of one user, final items go last.

    Args:
        size: how many items may wait.
        name: of its items, for the log.
        merge: what two items with one key become, the older one first.

    Attributes:
        n_dropped: items lost because it was full, for which a later one makes up.
        n_lost: final items lost.
    """

    def __init__(self, size: int, *, name: str = "items", merge: Callable[[Item, Item], Item] = _newer) -> None:
        self.n_dropped = 0
        self.n_lost = 0
        self._size = size
        self._merge = merge
        self._entries: OrderedDict[Hashable, _Entry[Item]] = OrderedDict()
        self._turns: OrderedDict[str, OrderedDict[Hashable, None]] = (
            OrderedDict()
        )  # keys by user, whose turn it is first
        self._keys = KeysByUser()
        self._filled = asyncio.Event()
        self._name = name
        self._lost_before = 0
        self._log = FaultLog(_LOGGER)

    def put(self, key: Hashable, item: Item, *, job: JobKey, is_final: bool = False) -> None:
        """Add an item of a job; never waits."""
        waiting = self._entries.get(key)
        if waiting is not None:
            self._entries[key] = _Entry(waiting.job, waiting.is_final, self._merge(waiting.item, item))
        else:
            self._entries[key] = _Entry(job, is_final, item)
            self._keys.add(key, job, is_final=is_final)
            self._turns.setdefault(job.user, OrderedDict())[key] = None
        if len(self._entries) > self._size:
            self._evict()
        self._filled.set()

    async def get(self) -> Item:
        """Wait for an item, and remove the oldest of the user whose turn it is."""
        await self.wait_for_item()
        user, keys = next(iter(self._turns.items()))
        item = self._remove(next(iter(keys)))
        if keys:
            self._turns.move_to_end(user)
        self._log_room()
        return item

    async def wait_for_item(self) -> None:
        """Wait until there is an item."""
        while not self._entries:
            self._filled.clear()
            await self._filled.wait()

    def oldest(self) -> Item | None:
        """Return the oldest item of all, and leave it there."""
        return next(iter(self._entries.values())).item if self._entries else None

    def pop_oldest(self) -> Item:
        """Remove and return the oldest item of all, whoever's turn it is.

        Raises:
            StopIteration: there is none.
        """
        item = self._remove(next(iter(self._entries)))
        self._log_room()
        return item

    def drain(self) -> list[Item]:
        """Remove and return everything, oldest first; never waits."""
        items = [self._remove(key) for key in list(self._entries)]
        self._log_room()
        return items

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._entries)

    def _evict(self) -> None:
        if not self._log.fault:
            self._lost_before = self.n_dropped + self.n_lost
        self._log.report(f"more than {self._size} {self._name} are waiting: some are lost")
        key = self._keys.least_wanted()
        is_final = self._entries[key].is_final
        self._remove(key)
        self.n_lost += is_final
        self.n_dropped += not is_final

    def _remove(self, key: Hashable) -> Item:
        entry = self._entries.pop(key)
        self._keys.remove(key, entry.job, is_final=entry.is_final)
        keys = self._turns[entry.job.user]
        del keys[key]
        if not keys:
            del self._turns[entry.job.user]
        return entry.item

    def _log_room(self) -> None:
        """Report that a queue that was full has room, once it is half empty."""
        if self._log.fault and len(self._entries) <= self._size // 2:
            self._log.clear()
            n_lost = self.n_dropped + self.n_lost - self._lost_before
            _LOGGER.info("the queue of %s has room again: %d were lost", self._name, n_lost)


class PendingRunEnds:
    """Runs whose training process has ended, while their controller may still report the final energy.

    Args:
        report: called with the end of a run whose final energy did not come.
        grace_s: how long it is waited for [s].
    """

    def __init__(self, report: Callable[[RunEnded], None], *, grace_s: float = GRACE_S) -> None:
        self._report = report
        self._grace_s = grace_s
        self._waiting: OrderedDict[RunKey, tuple[float, RunEnded]] = OrderedDict()
        self._filled = asyncio.Event()

    def schedule(self, ended: RunEnded) -> None:
        """Report the end of a run after the grace period, unless it is cancelled; the newest event counts."""
        key = ended.run_key
        due_s, _ = self._waiting.get(key, (asyncio.get_running_loop().time() + self._grace_s, ended))
        self._waiting[key] = (due_s, ended)
        if len(self._waiting) > MAX_RUNS:
            self._report_oldest()
        self._filled.set()

    def cancel(self, run: RunKey) -> None:
        """Report nothing: the run goes on, or its controller has reported its end."""
        self._waiting.pop(run, None)

    async def run(self) -> None:
        """Report each end when it is due, until cancelled.

        Ends that wait then are still retained on the bus, and received again at the next start.
        """
        while True:
            while self._waiting:
                due_s, _ = next(iter(self._waiting.values()))
                remaining_s = due_s - asyncio.get_running_loop().time()
                if remaining_s <= 0:
                    self._report_oldest()
                else:
                    await asyncio.sleep(remaining_s)
            self._filled.clear()
            await self._filled.wait()

    def _report_oldest(self) -> None:
        _, (_, ended) = self._waiting.popitem(last=False)
        self._report(ended)
