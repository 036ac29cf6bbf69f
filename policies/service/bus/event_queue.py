"""Bounded queues between the handlers of the bus, which must not wait, and the tasks that write to the database."""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from policies.service.bus.events import RunEnded
from publishers.shared.log_once import FaultLog

GRACE_S: Final = 30.0
"""How long the final energy of a run is awaited after its training process has ended."""
MAX_RUNS: Final = 16_384
"""When more runs than this end at once, the final energies of the oldest are not waited for."""
Item = TypeVar("Item")
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Item]):
    is_final: bool
    item: Item


def _newer(_: Item, newer: Item) -> Item:
    return newer


class _KeysByJob:
    """The keys of each job, oldest first; every call takes the same time, however many jobs there are."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[Hashable, str] = OrderedDict()
        self._keys: defaultdict[str, OrderedDict[Hashable, None]] = defaultdict(OrderedDict)
        # Jobs by how many keys they have, and the most that any has: it changes by one at a time.
        self._jobs_with: defaultdict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._most = 0

    def add(self, key: Hashable, job: str) -> None:
        self._jobs[key] = job
        keys = self._keys[job]
        keys[key] = None
        self._move(job, len(keys) - 1, len(keys))

    def remove(self, key: Hashable) -> None:
        job = self._jobs.pop(key)
        keys = self._keys[job]
        del keys[key]
        self._move(job, len(keys) + 1, len(keys))
        if not keys:
            del self._keys[job]

    def __len__(self) -> int:
        return len(self._jobs)

    def least_wanted(self) -> Hashable:
        """Return the oldest key of a job that has most of them; where each job has one, the newest of all."""
        if self._most == 1:
            return next(reversed(self._jobs))
        job = next(iter(self._jobs_with[self._most]))
        return next(iter(self._keys[job]))

    def _move(self, job: str, n_before: int, n_now: int) -> None:
        self._jobs_with[n_before].pop(job, None)
        if not self._jobs_with[n_before]:
            del self._jobs_with[n_before]
        if n_now:
            self._jobs_with[n_now][job] = None
        if n_now > self._most or self._most not in self._jobs_with:
            self._most = n_now


class EventQueue(Generic[Item]):
    """A FIFO with at most `size` items, each under a key; a newer item replaces the waiting one in its place.

    A full queue drops the oldest item of the job that has most of them, so that a job that floods it loses its own.
    Final items are dropped only where there are no others; where each job has but one, the newest goes.

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
        self._keys = {False: _KeysByJob(), True: _KeysByJob()}  # of final items, and of others
        self._filled = asyncio.Event()
        self._overflow = f"more than {size} {name} are waiting: some are lost"
        self._log = FaultLog(_LOGGER, recovered=f"the queue of {name} has room again")

    def put(self, key: Hashable, item: Item, *, job: str, is_final: bool = False) -> None:
        """Add an item of a job; never waits."""
        waiting = self._entries.get(key)
        if waiting is not None:
            self._entries[key] = _Entry(waiting.is_final, self._merge(waiting.item, item))
        else:
            self._entries[key] = _Entry(is_final, item)
            self._keys[is_final].add(key, job)
        if len(self._entries) > self._size:
            self._evict()
        self._filled.set()

    async def get(self) -> Item:
        """Wait for the oldest item and remove it."""
        await self.wait_for_item()
        item = self._remove(next(iter(self._entries)))
        self._log_room()
        return item

    async def wait_for_item(self) -> None:
        """Wait until there is an item."""
        while not self._entries:
            self._filled.clear()
            await self._filled.wait()

    def oldest(self) -> Item | None:
        """Return the item that is next, and leave it there."""
        return next(iter(self._entries.values())).item if self._entries else None

    def drain(self) -> list[Item]:
        """Remove and return everything, oldest first; never waits."""
        items = [self._remove(key) for key in list(self._entries)]
        self._log_room()
        return items

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._entries)

    def _evict(self) -> None:
        """Drop an item, other than a final one where there is any."""
        self._log.report(self._overflow)
        is_final = not self._keys[False]
        self._remove(self._keys[is_final].least_wanted())
        self.n_lost += is_final
        self.n_dropped += not is_final

    def _remove(self, key: Hashable) -> Item:
        entry = self._entries.pop(key)
        self._keys[entry.is_final].remove(key)
        return entry.item

    def _log_room(self) -> None:
        """Report that a queue that was full has room, once it is half empty."""
        if self._log.fault and len(self._entries) <= self._size // 2:
            self._log.clear()


class PendingRunEnds:
    """Runs whose training process has ended, while their controller may still report the final energy.

    Args:
        report: called with the end of a run whose final energy did not come.
        grace_s: how long it is waited for [s].
    """

    def __init__(self, report: Callable[[RunEnded], None], *, grace_s: float = GRACE_S) -> None:
        self._report = report
        self._grace_s = grace_s
        self._waiting: OrderedDict[tuple[str, str], tuple[float, RunEnded]] = OrderedDict()
        self._filled = asyncio.Event()

    def schedule(self, ended: RunEnded) -> None:
        """Report the end of a run after the grace period, unless it is cancelled; the newest event counts."""
        key = (ended.job, ended.run)
        due_s, _ = self._waiting.get(key, (asyncio.get_running_loop().time() + self._grace_s, ended))
        self._waiting[key] = (due_s, ended)
        if len(self._waiting) > MAX_RUNS:
            self._report_oldest()
        self._filled.set()

    def cancel(self, job: str, run: str) -> None:
        """Report nothing: the run goes on, or its controller has reported its end."""
        self._waiting.pop((job, run), None)

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
