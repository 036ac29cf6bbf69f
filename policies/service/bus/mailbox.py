"""A bounded mailbox between the handlers of the bus, which may not wait, and the tasks that ask the database."""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_BEYOND: Final = 1 << 62


class Mailbox(Generic[T]):
    """A FIFO of at most `size` items, each under a key: a newer one takes the place of the one that waits.

    A full one drops its oldest fleeting item, and its oldest lasting one only where there is no other.

    Attributes:
        dropped: fleeting items that were lost because it was full.
        lost: lasting ones.
    """

    def __init__(self, size: int) -> None:
        self.dropped = 0
        self.lost = 0
        self._size = size
        self._n_put = 0
        self._fleeting: OrderedDict[Hashable, tuple[int, T]] = OrderedDict()
        self._lasting: OrderedDict[Hashable, tuple[int, T]] = OrderedDict()
        self._filled = asyncio.Event()

    def put(self, key: Hashable, item: T, *, lasting: bool = False) -> None:
        """Add an item; never waits."""
        queue = self._lasting if lasting else self._fleeting
        self._n_put += 1
        number, _ = queue.get(key, (self._n_put, item))
        queue[key] = (number, item)
        if len(self) > self._size:
            self._drop()
        self._filled.set()

    async def get(self) -> T:
        """Wait for the oldest item and take it."""
        await self.filled()
        _, (_, item) = self._oldest().popitem(last=False)
        return item

    async def filled(self) -> None:
        """Wait until there is an item."""
        while not len(self):
            self._filled.clear()
            await self._filled.wait()

    def oldest(self) -> T | None:
        """Return the item that is next, and leave it there."""
        return next(iter(self._oldest().values()))[1] if len(self) else None

    def drain(self) -> list[T]:
        """Take everything there is, oldest first; never waits."""
        waiting = sorted([*self._lasting.values(), *self._fleeting.values()], key=lambda pair: pair[0])
        self._lasting.clear()
        self._fleeting.clear()
        return [item for _, item in waiting]

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._lasting) + len(self._fleeting)

    def _oldest(self) -> OrderedDict[Hashable, tuple[int, T]]:
        return self._lasting if _head(self._lasting) < _head(self._fleeting) else self._fleeting

    def _drop(self) -> None:
        if self._fleeting:
            self._fleeting.popitem(last=False)
            self.dropped += 1
        else:
            self._lasting.popitem(last=False)
            self.lost += 1


def _head(queue: OrderedDict[Hashable, tuple[int, T]]) -> int:
    """Return the number of the oldest item in a queue; an empty one comes after all others."""
    return next(iter(queue.values()))[0] if queue else _BEYOND
