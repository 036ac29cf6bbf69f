"""Giving limits back: the one way in which a power limit of ours ends, by whatever road we come to it.

The actuator takes it at the end of a hold and when the controller stops, the daemon at start for what a killed
controller left behind, and `gridchase restore` by hand.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

from controller.errors import GpuError, JournalError
from controller.journal import Entry, Journal
from controller.ports import Gpu, LiveLimit

TOLERANCE_W = 0.5
"""Limits closer than this are the same: drivers round to the next milliwatt, boards to the next half watt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What became of a limit that was to be given back, with the limits after it where they could be read."""

    code: Literal["restored", "untouched", "failed"]
    detail: str
    live: LiveLimit | None = None


def is_same(one_w: float, other_w: float) -> bool:
    """Return whether two power limits [W] are the same one."""
    return abs(one_w - other_w) <= TOLERANCE_W


async def give_back(gpu: Gpu, journal: Journal) -> Restoration | None:
    """Give a GPU its prior limit back, if the live limit still is one that we wrote; None where we hold nothing.

    Where it is not, somebody else owns the limit now, and it stays. Where the GPU fails, the journal keeps its entry.
    """
    entry = journal.entries.get(gpu.uuid)
    if entry is None:
        return None
    try:
        live = await gpu.read_limit()
        if not is_ours(live, entry):
            await asyncio.to_thread(journal.forget, gpu.uuid)
            detail = f"left at {live.requested_power_limit_w:g} W: another writer has set it since"
            return Restoration(code="untouched", detail=detail, live=live)
        live = await _write_prior(gpu, entry, live)
        await asyncio.to_thread(journal.forget, gpu.uuid)
    except (GpuError, JournalError) as error:
        return Restoration(code="failed", detail=f"could not be given back: {error}; then run `gridchase restore`")
    return Restoration(code="restored", detail=f"given back: {live.requested_power_limit_w:g} W", live=live)


def is_ours(live: LiveLimit, entry: Entry) -> bool:
    """Return whether the live limit is the prior one or one that we wrote."""
    ours_w = (*entry.written_power_limits_w, entry.prior_power_limit_w)
    return any(is_same(live.requested_power_limit_w, limit_w) for limit_w in ours_w)


async def _write_prior(gpu: Gpu, entry: Entry, live: LiveLimit) -> LiveLimit:
    """Write the prior limit, unless it is there already; clamped to what the GPU accepts today: drivers change that."""
    limits = await gpu.read_range()
    prior_power_limit_w = min(max(entry.prior_power_limit_w, limits.min_power_limit_w), limits.max_power_limit_w)
    if is_same(live.requested_power_limit_w, prior_power_limit_w):
        return live
    await gpu.set_power_limit(prior_power_limit_w)
    return await gpu.read_limit()
