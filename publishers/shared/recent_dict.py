"""A dictionary of bounded size: the entry that was set longest ago is evicted first."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentDict(OrderedDict[Key, Value]):
    """The `size` entries that were set last, in the order of setting.

    >>> recent = RecentDict(2)
    >>> for name in "aba":
    ...     recent[name] = name.upper()
    >>> recent["c"] = "C"
    >>> dict(recent)
    {'a': 'A', 'c': 'C'}
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: Key, value: Value) -> None:
        """Set an entry, and drop the oldest of too many."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._size:
            self.popitem(last=False)
