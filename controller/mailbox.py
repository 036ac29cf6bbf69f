"""Bounded mailboxes between tasks: full ones drop their oldest and count it."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class DropOldest(Generic[T]):
    """A FIFO of at most `size` items; a full one drops its oldest.

    With `size=1` it is a cell that holds the latest: for setpoints, where only the newest counts.
    """

    def __init__(self, size: int) -> None:
        self._items: deque[T] = deque(maxlen=size)
        self._filled = asyncio.Event()
        self.dropped = 0

    def put(self, item: T) -> None:
        """Add an item; never waits."""
        self.dropped += len(self._items) == self._items.maxlen
        self._items.append(item)
        self._filled.set()

    async def get(self) -> T:
        """Wait for the oldest item and take it."""
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        return self._items.popleft()

    def drain(self) -> list[T]:
        """Take everything there is, oldest first; never waits."""
        items = list(self._items)
        self._items.clear()
        return items

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._items)
