"""Bounded queues between the handlers of the bus, which must not wait, and the tasks that write to the database.

A queue of items that belong to owners; where something must go, it is of the owner who has most of it.

A bounded mailbox between the handlers of the bus, which may not wait, and the tasks that ask the database.

Runs whose training process is gone: their controller is given a while to tell what they have used.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from policies.service.bus.events import RunEnded, RunEvent

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items under keys, oldest first; every call takes a time that does not grow with the queue."""

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, tuple[Hashable, T]] = OrderedDict()
        self._keys: defaultdict[Hashable, OrderedDict[Hashable, None]] = defaultdict(OrderedDict)
        # Owners by how many items they have, and the most that anybody has: it changes by one at a time.
        self._owners: defaultdict[int, OrderedDict[Hashable, None]] = defaultdict(OrderedDict)
        self._most = 0

    def put(self, key: Hashable, item: T, *, owner: Hashable) -> None:
        """Add an item, or put it in the place of the one of its key, whose owner it keeps."""
        if key in self._items:
            self._items[key] = (self._items[key][0], item)
            return
        self._items[key] = (owner, item)
        self._keys[owner][key] = None
        self._count(owner, len(self._keys[owner]) - 1)

    def get(self, key: Hashable) -> T | None:
        """Return the item of a key, and leave it there."""
        found = self._items.get(key)
        return None if found is None else found[1]

    def head(self) -> T | None:
        """Return the oldest item, and leave it there."""
        return next(iter(self._items.values()))[1] if self._items else None

    def take(self) -> T:
        """Take the oldest item."""
        return self._remove(next(iter(self._items)))

    def drop(self) -> T:
        """Take the oldest item of the owner who has most; where each has but one, the newest of all."""
        if self._most == 1:
            return self._remove(next(reversed(self._items)))
        owner = next(iter(self._owners[self._most]))
        return self._remove(next(iter(self._keys[owner])))

    def clear(self) -> list[T]:
        """Take everything, oldest first."""
        items = [item for _, item in self._items.values()]
        for held in (self._items, self._keys, self._owners):
            held.clear()
        self._most = 0
        return items

    def __len__(self) -> int:
        """Return how many items there are."""
        return len(self._items)

    def _remove(self, key: Hashable) -> T:
        owner, item = self._items.pop(key)
        keys = self._keys[owner]
        del keys[key]
        self._count(owner, len(keys) + 1)
        if not keys:
            del self._keys[owner]
        return item

    def _count(self, owner: Hashable, before: int) -> None:
        """Note that an owner, who had so many items, has another number of them."""
        n_items = len(self._keys[owner])
        self._owners[before].pop(owner, None)
        if not self._owners[before]:
            del self._owners[before]
        if n_items:
            self._owners[n_items][owner] = None
        if n_items > self._most or (before == self._most and before not in self._owners):
            self._most = n_items


_BEYOND: Final = 1 << 62
_LOGGER = logging.getLogger(__name__)


def _newer(_: T, news: T) -> T:
    return news


class EventQueue(Generic[T]):
    """A FIFO of at most `size` items, each under a key: a newer one takes the place of the one that waits.

    A full one drops a fleeting item, and a lasting one only where there is no other: the oldest of the owner that has
    most, so that who floods it loses its own.

    Args:
        size: how many items may wait.
        name: of its items, for the log.
        merge: what two items of one key become, the older one first.

    Attributes:
        dropped: fleeting items that were lost because it was full.
        lost: lasting ones.
    """

    def __init__(self, size: int, *, name: str = "items", merge: Callable[[T, T], T] = _newer) -> None:
        self.dropped = 0
        self.lost = 0
        self._size = size
        self._name = name
        self._merge = merge
        self._n_put = 0
        self._fleeting: FairQueue[tuple[int, T]] = FairQueue()
        self._lasting: FairQueue[tuple[int, T]] = FairQueue()
        self._filled = asyncio.Event()
        self._is_losing = False

    def put(self, key: Hashable, item: T, *, lasting: bool = False, owner: Hashable = None) -> None:
        """Add an item of an owner; never waits."""
        queue = self._lasting if lasting else self._fleeting
        self._n_put += 1
        waiting = queue.get(key)
        number, item = (self._n_put, item) if waiting is None else (waiting[0], self._merge(waiting[1], item))
        queue.put(key, (number, item), owner=owner)
        if len(self) > self._size:
            self._drop()
        self._filled.set()

    async def get(self) -> T:
        """Wait for the oldest item and take it."""
        await self.filled()
        _, item = self._oldest().take()
        self._note_room()
        return item

    async def filled(self) -> None:
        """Wait until there is an item."""
        while not len(self):
            self._filled.clear()
            await self._filled.wait()

    def oldest(self) -> T | None:
        """Return the item that is next, and leave it there."""
        head = self._oldest().head()
        return None if head is None else head[1]

    def drain(self) -> list[T]:
        """Take everything there is, oldest first; never waits."""
        waiting = sorted([*self._lasting.clear(), *self._fleeting.clear()], key=lambda pair: pair[0])
        self._note_room()
        return [item for _, item in waiting]

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._lasting) + len(self._fleeting)

    def _oldest(self) -> FairQueue[tuple[int, T]]:
        return self._lasting if _number(self._lasting) < _number(self._fleeting) else self._fleeting

    def _drop(self) -> None:
        if len(self._fleeting):
            self._fleeting.drop()
            self.dropped += 1
        else:
            self._lasting.drop()
            self.lost += 1
        if not self._is_losing:
            self._is_losing = True
            _LOGGER.warning("more %s wait than the %d there is room for: some are lost", self._name, self._size)

    def _note_room(self) -> None:
        """Say that nothing is lost any more, once there is room for more than the next one."""
        if self._is_losing and len(self) <= self._size // 2:
            self._is_losing = False
            _LOGGER.warning(
                "there is room for %s again; lost so far: %d that will not come again, %d others",
                *(self._name, self.lost, self.dropped),
            )


def _number(queue: FairQueue[tuple[int, T]]) -> int:
    """Return the number of the oldest item in a queue; an empty one comes after all others."""
    head = queue.head()
    return _BEYOND if head is None else head[0]


PATIENCE_S: Final = 30.0
MAX_RUNS: Final = 16_384
"""When more runs than this end at once, the controllers of the oldest are not waited for."""


class PendingRunEnds:
    """The runs that are about to be over, in their order.

    Args:
        report: takes the news that a run is over.
        patience_s: how long a controller's last word is waited for.
    """

    def __init__(self, report: Callable[[RunEvent], None], *, patience_s: float = PATIENCE_S) -> None:
        self._report = report
        self._patience_s = patience_s
        self._waiting: OrderedDict[tuple[str, str], tuple[float, RunEnded]] = OrderedDict()
        self._filled = asyncio.Event()

    def expect(self, ended: RunEnded) -> None:
        """Report the end of a run after a while, unless it is forgotten."""
        key = (ended.job, ended.run)
        due_s = asyncio.get_running_loop().time() + self._patience_s
        if key in self._waiting:  # said again: the newest word counts, the time runs on
            due_s, _ = self._waiting[key]
        self._waiting[key] = (due_s, ended)
        if len(self._waiting) > MAX_RUNS:
            self._report_oldest()
        self._filled.set()

    def forget(self, job: str, run: str) -> None:
        """Report nothing: the run goes on, or its controller has told its end."""
        self._waiting.pop((job, run), None)

    async def run(self) -> None:
        """Report each run when its time has come, until cancelled.

        Those that are left then are still retained on the bus, and met again at the next start.
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
