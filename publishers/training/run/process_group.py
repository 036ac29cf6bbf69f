"""The process group of torch.distributed that this process trains in: who it is there, and the group's own store.

The store is a small key-value service that torch keeps for its ranks to find each other. Nothing here imports torch,
and no collective is called: ranks may ask at different times, and any of them may not ask at all.
"""

import sys
from typing import Any, Final, NamedTuple, Protocol

from publishers.training.coerce import to_int

_DISTRIBUTED: Final = "torch.distributed.distributed_c10d"


class Store(Protocol):
    """What is used of the store of a process group, `torch.distributed.Store`; calls fail once its host has gone."""

    def set(self, key: str, value: str, /) -> None:
        """Set a value."""
        ...

    def get(self, key: str, /) -> bytes:
        """Return a value; waits while there is none."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, which is 0 before, and return it."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Return whether all of these have a value; does not wait."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a value where it is still `expected`, or where there is none and that is empty; return what it is now."""
        ...


class ProcessGroup(NamedTuple):
    """The default process group, as far as a publisher needs to know it.

    Attributes:
        rank: this process in it.
        world_size: how many processes are in it.
        store: its store.
        timeout_s: after how long a collective that waits for a rank fails [s]; None: that cannot be seen.
    """

    rank: int
    world_size: int
    store: Store
    timeout_s: float | None


def default_process_group() -> ProcessGroup | None:
    """Return the default group; None where torch is not imported, there is none, or it cannot be read.

    Nobody may keep it for long: torch closes the store's port when the last reference has gone.
    """
    distributed: Any = sys.modules.get(_DISTRIBUTED)
    if distributed is None:
        return None
    try:
        if not distributed.is_initialized():
            return None
        rank, world_size = to_int(distributed.get_rank()), to_int(distributed.get_world_size())
        if rank is None or world_size is None:
            return None
        store = distributed._get_default_store()  # noqa: SLF001 — torch has no public way to it
        return ProcessGroup(rank, world_size, store, _timeout_s(distributed))
    except Exception:  # noqa: BLE001 — the group may be destroyed at any moment; private names may change
        return None


def _timeout_s(distributed: Any) -> float | None:  # noqa: ANN401 — a module of torch
    """Return the shortest timeout of the group's backends [s]."""
    try:
        group = distributed._get_default_group()  # noqa: SLF001 — as above
        backends = [group._get_backend(device) for device in group._device_types]  # noqa: SLF001
        return min(float(backend.options._timeout.total_seconds()) for backend in backends)  # noqa: SLF001
    except Exception:  # noqa: BLE001 — as above
        return None
