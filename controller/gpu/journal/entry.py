"""An entry of the journal: a GPU that we hold, its prior power limit, and the limits that we may have left on it.

The limits are the one in force and the one about to be written, because a kill can come between the two. Whose a live
limit is, is judged by these (`read_back`).
"""

import math
import re
from typing import Final

import msgspec
from msgspec import Struct

MAX_WRITTEN: Final = 8
MAX_POWER_LIMIT_W: Final = 10_000.0
READBACK_TOLERANCE_W: Final = 0.5
"""A limit that reads back within this of what was written is the same: drivers round to milliwatts, boards to 0.5 W."""
_UUID: Final = re.compile(r"[A-Za-z0-9-]{1,96}")


class JournalEntry(Struct, frozen=True, kw_only=True):
    """A GPU that we hold: its prior limit, and the limits that we may have left on it [W].

    Attributes:
        prior_power_limit_w: what is to be restored.
        written_power_limits_w: what is ours on the GPU, the newest last.
        written_at_s: when it was written last [Unix s].
        is_confirmed: whether the last write has been seen back; until then the board may have made anything of it.
    """

    prior_power_limit_w: float
    written_power_limits_w: tuple[float, ...]
    written_at_s: float
    is_confirmed: bool = True

    @property
    def newest_power_limit_w(self) -> float:
        """Return what was asked for last [W]."""
        return self.written_power_limits_w[-1] if self.written_power_limits_w else self.prior_power_limit_w

    def fault(self) -> str:
        """Return what is wrong with the values; "" if they can be true."""
        limits_w = (self.prior_power_limit_w, *self.written_power_limits_w)
        if not all(0.0 < limit_w < MAX_POWER_LIMIT_W for limit_w in limits_w):
            return f"a limit is not between 0 W and {MAX_POWER_LIMIT_W:g} W"
        if len(self.written_power_limits_w) > MAX_WRITTEN:
            return f"it has more than {MAX_WRITTEN} written limits"
        return "" if math.isfinite(self.written_at_s) else "its time is not a number"


def uuid_fault(gpu_uuid: str) -> str:
    """Return what is wrong with the UUID of an entry; "" if it can be one."""
    return "" if _UUID.fullmatch(gpu_uuid) else "that is not the UUID of a GPU"


def entry_before_write(
    former: JournalEntry | None,
    *,
    prior_power_limit_w: float,
    live_power_limit_w: float,
    asked_power_limit_w: float,
    now_s: float,
) -> JournalEntry:
    """Return the entry to be on disk before a write: a kill may come before the write or after it.

    Until a write is seen back, the ones before it may still be on their way: they are kept, too.
    """
    entry = JournalEntry(
        prior_power_limit_w=prior_power_limit_w,
        written_power_limits_w=former.written_power_limits_w if former and not former.is_confirmed else (),
        written_at_s=now_s,
        is_confirmed=False,
    )
    return with_written(with_written(entry, live_power_limit_w), asked_power_limit_w)


def with_written(entry: JournalEntry, power_limit_w: float) -> JournalEntry:
    """Return the entry with one more limit that we may have left; the newest is the last [W]."""
    others_w = (limit_w for limit_w in entry.written_power_limits_w if not is_same_limit(limit_w, power_limit_w))
    written_w = (*dict.fromkeys(others_w), power_limit_w)
    return msgspec.structs.replace(entry, written_power_limits_w=written_w[-MAX_WRITTEN:])


def unconfirmed_entry(entry: JournalEntry, asked_power_limit_w: float) -> JournalEntry:
    """Return the entry while a write is under way, such as that of the prior limit."""
    return msgspec.structs.replace(with_written(entry, asked_power_limit_w), is_confirmed=False)


def confirmed_entry(entry: JournalEntry, live_power_limit_w: float) -> JournalEntry:
    """Return the entry once a write is seen back: the live limit is all that we have left."""
    return msgspec.structs.replace(entry, written_power_limits_w=(live_power_limit_w,), is_confirmed=True)


def is_same_limit(one_w: float, other_w: float | None) -> bool:
    """Return whether two power limits [W] differ only by the rounding of drivers and boards; None: is not known."""
    return other_w is not None and abs(one_w - other_w) <= READBACK_TOLERANCE_W
