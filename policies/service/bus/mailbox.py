"""A bounded mailbox between the handlers of the bus, which may not wait, and the tasks that ask the database."""

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from policies.service.bus.fair_queue import FairQueue

T = TypeVar("T")
_BEYOND: Final = 1 << 62
_LOGGER = logging.getLogger(__name__)


def _newer(_: T, news: T) -> T:
    return news


class Mailbox(Generic[T]):
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
