"""What became of a write: judged from the limit that is read back; and the restore of prior limits, which is confirmed.

A driver may be late, a board may clamp, and some writes have no effect. So what is read right after our own write says
nothing about other writers: it is looked at again for about a second. Only then does a write count as ignored or
clamped, and a prior limit as restored.

`restore_prior_limit` is called by the limiter at the end of a hold and when the controller stops, by the controller at
start for what a killed one left behind, and by `gridchase restore`.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from controller.errors import GpuError, JournalError
from controller.gpu.journal.entry import JournalEntry, is_same_limit, unconfirmed_entry, with_written
from controller.gpu.journal.storage import Journal
from controller.ports import Gpu, LimitRange, LiveLimit
from controller.runtime.clock import NS_PER_S, Clock

LOOK_AGAIN_S: Final = 1.0
"""For how long a limit is looked at after a write."""
LOOK_PERIOD_S: Final = 0.1
MAX_REWRITES: Final = 3
"""How often one restore writes the prior limit again because a late write of ours has replaced it."""

MAX_TRIES: Final = 3
RETRY_S: Final = 1.0
RESTORE_COMMAND: Final = "gridchase restore"
"""Restores by the journal and the GPUs of the default configuration."""


class ReadBack(StrEnum):
    """What a limit that is read back says about our write."""

    OURS = "ours"
    """It is what was asked for."""
    LATE = "late"
    """It is one that we left there before: the driver is late, or ignores the write."""
    CLAMPED = "clamped"
    """It is new, but not what was asked for: the board takes no such limit."""


def judge_read_back(live: LiveLimit, asked_power_limit_w: float, entry: JournalEntry) -> ReadBack:
    """Return what a limit says that is read right after our own write; other writers are not thought of here."""
    if is_same_limit(live.requested_power_limit_w, asked_power_limit_w):
        return ReadBack.OURS
    return ReadBack.LATE if is_known_limit(live, entry) else ReadBack.CLAMPED


def is_known_limit(live: LiveLimit, entry: JournalEntry) -> bool:
    """Return whether the live limit is one that the journal knows: the prior one, or one that we wrote."""
    known_w = (*entry.written_power_limits_w, entry.prior_power_limit_w)
    return any(is_same_limit(live.requested_power_limit_w, limit_w) for limit_w in known_w)


def is_our_limit(live: LiveLimit, entry: JournalEntry, limits: LimitRange) -> bool:
    """Return whether the live limit is ours to restore; if it is not, another writer has set it.

    Ours are the limits that the journal knows, and the prior one within what the GPU accepts today. As long as the last
    write has not been confirmed, so is what the board may have made of it: anything below the prior limit but its
    default, which a reloaded driver has.
    """
    live_w = live.requested_power_limit_w
    if is_known_limit(live, entry) or is_same_limit(live_w, clamped_prior_w(entry, limits)):
        return True
    is_default = is_same_limit(live_w, limits.default_power_limit_w)
    return not entry.is_confirmed and live_w < entry.prior_power_limit_w and not is_default


def clamped_prior_w(entry: JournalEntry, limits: LimitRange) -> float:
    """Return the prior limit within what the GPU accepts today [W]."""
    return min(max(entry.prior_power_limit_w, limits.min_power_limit_w), limits.max_power_limit_w)


def is_left_behind(live: LiveLimit, entry: JournalEntry, limits: LimitRange) -> bool:
    """Return whether a restore would raise the live limit: it is no prior limit for anybody else."""
    live_w, prior_w = live.requested_power_limit_w, clamped_prior_w(entry, limits)
    return live_w < prior_w and not is_same_limit(live_w, prior_w) and is_our_limit(live, entry, limits)


async def watch_write(
    gpu: Gpu, asked_power_limit_w: float, entry: JournalEntry, clock: Clock
) -> tuple[ReadBack, LiveLimit]:
    """Return what became of a write, at once if it has taken effect, else after about a second.

    Raises:
        GpuError: the limit cannot be read.
    """
    until_ns = clock.monotonic_ns() + int(LOOK_AGAIN_S * NS_PER_S)
    while True:
        is_last = clock.monotonic_ns() >= until_ns
        live = await gpu.read_limit()
        outcome = judge_read_back(live, asked_power_limit_w, entry)
        if is_last or outcome is ReadBack.OURS:
            return outcome, live
        await clock.sleep_until(clock.now_s() + LOOK_PERIOD_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """The outcome of a restore, with the live limits after it where they could be read.

    Attributes:
        code: `restored` only if the live limit is the prior one, seen for about a second; `untouched` if another writer
            has set it; `failed` if it has to be tried again.
        detail: a sentence.
        live: the live limits.
        journal_fault: why the entry is still in the journal on disk, although nothing is left to restore; "" if it is
            not.
    """

    code: Literal["restored", "untouched", "failed"]
    detail: str
    live: LiveLimit | None = None
    journal_fault: str = ""


async def restore_prior_limit(
    gpu: Gpu, journal: Journal, clock: Clock, *, restore_command: str = RESTORE_COMMAND
) -> RestoreResult | None:
    """Restore the prior limit of a GPU if the live one still is ours; None where we hold nothing.

    Otherwise another program has set it, and it stays. Unless the limit is confirmed, the journal keeps its entry.
    A failure names the command that restores it by hand.
    """
    advice = f"unless it is restored later, run `{restore_command}`"
    entry = journal.entries.get(gpu.uuid)
    if entry is None:
        return None
    try:
        restore = _Restore(gpu=gpu, entry=entry, limits=await gpu.read_range(), clock=clock, journal=journal)
        owner, live = await restore.write_and_watch()
    except GpuError as error:
        return RestoreResult(code="failed", detail=f"could not be restored: {error}; {advice}")
    live_w = live.requested_power_limit_w
    if owner == "prior":
        result = RestoreResult(code="restored", detail=f"prior limit {live_w:g} W restored", live=live)
        return await _remove_entry(gpu, journal, result)
    if owner == "another":
        detail = f"left at {live_w:g} W: another writer has set it since"
        return await _remove_entry(gpu, journal, RestoreResult(code="untouched", detail=detail, live=live))
    if not is_known_limit(live, entry):  # what the board has made of the write is ours at the next try, too
        await journal.note(gpu.uuid, with_written(journal.entries.get(gpu.uuid, entry), live_w))
    detail = f"still is {live_w:g} W, not the prior {restore.wanted_w:g} W: the write had no effect, or another one"
    return RestoreResult(code="failed", detail=f"{detail}; {advice}", live=live)


async def restore_all(
    gpus: Sequence[Gpu], journal: Journal, clock: Clock, *, restore_command: str = RESTORE_COMMAND
) -> dict[str, RestoreResult]:
    """Restore the GPUs that the journal lists, all at once, and try again a few times what fails; by UUID."""
    results: dict[str, RestoreResult] = {}

    async def restore(gpu: Gpu) -> None:
        for n_left in reversed(range(MAX_TRIES)):
            result = await restore_prior_limit(gpu, journal, clock, restore_command=restore_command)
            if result is None:
                return
            results[gpu.uuid] = result
            if result.code == "failed" and n_left:
                await clock.sleep_until(clock.now_s() + RETRY_S)

    async with asyncio.TaskGroup() as tasks:
        for gpu in gpus:
            tasks.create_task(restore(gpu), name=f"restore[{gpu.uuid}]")
    return results


async def unexplained_limits(gpus: Sequence[Gpu]) -> list[str]:
    """Return which GPUs have a limit below their default, a sentence each: what it means where there is no journal."""
    found: list[str] = []
    for gpu in gpus:
        with suppress(GpuError):
            live_w = (await gpu.read_limit()).requested_power_limit_w
            default_w = (await gpu.read_range()).default_power_limit_w
            if default_w is not None and live_w < default_w and not is_same_limit(live_w, default_w):
                found.append(f"{gpu.uuid} has {live_w:g} W, less than its default of {default_w:g} W")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Restore:
    """The restore of one GPU that has an entry in the journal."""

    gpu: Gpu
    journal: Journal
    entry: JournalEntry
    limits: LimitRange
    clock: Clock

    @property
    def wanted_w(self) -> float:
        """Return what is to be in force [W]."""
        return clamped_prior_w(self.entry, self.limits)

    async def write_and_watch(self) -> tuple[Literal["prior", "another", "ours"], LiveLimit]:
        """Write the prior limit where the live one is ours, and look at it for about a second.

        Returns:
            whose the limit is then: the prior one, another writer's, or still ours; and the limit.

        Raises:
            GpuError: the GPU does not answer, or refuses the write.
        """
        live = await self.gpu.read_limit()
        if not is_our_limit(live, self.entry, self.limits):
            return "another", live
        if not self._is_prior(live):
            await self.journal.note(self.gpu.uuid, unconfirmed_entry(self.entry, self.wanted_w))
            await self.gpu.set_power_limit(self.wanted_w)
        elif not self.entry.is_confirmed:  # a write of ours may still be under way: this one comes after it
            with suppress(GpuError):
                await self.gpu.set_power_limit(self.wanted_w)
        for _ in range(MAX_REWRITES):
            was_seen, live = await self._watch()
            if self._is_prior(live):
                return "prior", live
            if not was_seen:
                return "ours", live
            if not is_our_limit(live, self.entry, self.limits):
                return "another", live
            await self.gpu.set_power_limit(self.wanted_w)  # a late write of ours has replaced the prior limit
        _, live = await self._watch()
        return ("prior" if self._is_prior(live) else "ours"), live

    async def _watch(self) -> tuple[bool, LiveLimit]:
        """Look for about a second, or until the prior limit was seen and is replaced; return whether it was seen."""
        until_ns = self.clock.monotonic_ns() + int(LOOK_AGAIN_S * NS_PER_S)
        was_seen = False
        while True:
            is_last = self.clock.monotonic_ns() >= until_ns
            live = await self.gpu.read_limit()
            is_prior = self._is_prior(live)
            if is_last or (was_seen and not is_prior):
                return was_seen, live
            was_seen = was_seen or is_prior
            await self.clock.sleep_until(self.clock.now_s() + LOOK_PERIOD_S)

    def _is_prior(self, live: LiveLimit) -> bool:
        return is_same_limit(live.requested_power_limit_w, self.wanted_w)


async def _remove_entry(gpu: Gpu, journal: Journal, result: RestoreResult) -> RestoreResult:
    """Strike the entry of a GPU; where the disk refuses, say so: it is struck once the disk takes it."""
    try:
        await journal.forget(gpu.uuid)
    except JournalError as error:
        fault = f"{error}; its entry stays in the journal until that can be written"
        return replace(result, detail=f"{result.detail}; {fault}", journal_fault=fault)
    return result
