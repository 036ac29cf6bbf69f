"""A queue of items that belong to owners; where something must go, it is of the owner who has most of it."""

from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from typing import Generic, TypeVar

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
