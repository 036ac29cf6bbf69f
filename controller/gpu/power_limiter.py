"""Power limiter: one task per GPU writes its power limit, reconciles it, and restores the prior one.

Between which limits we may write: the GPU's range, the operator's own, and never above the prior limit.

The news of one GPU's power limit: logged and published when something changed, and only then.

Bounded mailboxes between tasks: full ones drop their oldest and count it.

The actuator: one task per GPU that writes its power limit, watches over it, and gives it back.

It does not know why a limit is wanted. It journals before it writes, clamps, reads back, and looks every
`RECONCILE_S` whether somebody else has written meanwhile:

    FREE ──request──► HELD ──release──► FREE     (the prior limit, if the live one still is ours)
                       ├─ the limit is the default again: the driver was reloaded; written again, `MAX_REVERSIONS` times
                       ├─ the limit is anything else: another writer ──► YIELDED until the release
                       ├─ no permission, MIG ──► OBSERVING until the release
                       └─ no answer ──► SUSPECT, until a later look finds it well
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from controller.clock import Clock
from controller.config import GpuConfig
from controller.errors import GpuError, GpuNotSupportedError, GpuPermissionError, JournalError
from controller.gpu.journal import Journal, JournalEntry, is_our_limit, is_same_limit, restore_prior_limit
from controller.ports import Gpu, Hold, LimitRange, LimitState, LiveLimit, Target
from publishers.messages.reports import LimitChange


def limit_bounds_w(config: GpuConfig, limits: LimitRange, prior_power_limit_w: float) -> tuple[float, float]:
    """Return the floor and the ceiling of what may be written [W]: never above the prior limit unless allowed.

    The ceiling wins where the operator's floor lies above it.
    """
    ceiling_w = min(limits.max_power_limit_w, config.max_power_limit_w or limits.max_power_limit_w)
    if not config.allow_above_prior:
        ceiling_w = min(ceiling_w, prior_power_limit_w)
    return min(max(limits.min_power_limit_w, config.min_power_limit_w), ceiling_w), ceiling_w


MAX_DETAIL = 1_024
QUIET_S = 600.0
"""Limits that follow each other for one reason (a curve that is refined, two that share a period) are an operator's
news once in so long; every one of them is published."""

_LOGGER = logging.getLogger(__name__)


class LimitReporter:
    """Tells how the limit of a GPU stands, and why; the same twice is told once."""

    def __init__(self, gpu_uuid: str, *, clock: Clock, publish: Callable[[str, LimitChange], None]) -> None:
        self._gpu_uuid = gpu_uuid
        self._clock = clock
        self._publish = publish
        self._told: tuple[object, ...] = ()
        self._told_w: float | None = None
        self._logged: tuple[str, float] = ("", 0.0)

    def tell(self, reason: str, detail: str, *, state: LimitState | None, target: Target | None) -> None:
        """Publish and log a change; `state` is None before the GPU has answered once."""
        limit_w = state.requested_power_limit_w if state else None
        enforced_w = state.enforced_power_limit_w if state else None
        news = (reason, limit_w, enforced_w, state.hold if state else None)
        if news == self._told:
            return
        previous_w, self._told_w, self._told = self._told_w, limit_w, news
        level = logging.INFO if self._is_due(reason) else logging.DEBUG
        _LOGGER.log(level, "%s: %s W (was %s): %s: %s", self._gpu_uuid, limit_w, previous_w, reason, detail)
        self._publish(
            self._gpu_uuid,
            LimitChange(
                time_s=self._clock.now_s(),
                reason=reason,
                detail=detail[:MAX_DETAIL],
                power_limit_w=limit_w,
                requested_power_limit_w=limit_w,
                enforced_power_limit_w=enforced_w,
                previous_power_limit_w=previous_w,
                job=target.job if target else None,
                signal=target.signal if target else None,
            ),
        )

    def _is_due(self, reason: str) -> bool:
        """Return whether a change is worth a line in an operator's diary."""
        now_s, (last, logged_s) = self._clock.now_s(), self._logged
        if reason == last and logged_s <= now_s < logged_s + QUIET_S:
            return False
        self._logged = reason, now_s
        return True


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


RECONCILE_S = 15.0
MAX_REVERSIONS = 3
STOP_TIMEOUT_S = 10.0
RETRY_S = 0.5
OURS = frozenset({Hold.FREE, Hold.HELD})
"""In these holds a limit may be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release:
    reason: str
    detail: str


class GpuPowerLimiter:
    """The power limit of one GPU; obeys `PowerLimiter`."""

    def __init__(
        self,
        gpu: Gpu,
        *,
        journal: Journal,
        config: GpuConfig,
        clock: Clock,
        publish: Callable[[str, LimitChange], None],
    ) -> None:
        self._gpu = gpu
        self._state: LimitState | None = None
        self._journal = journal
        self._config = config
        self._clock = clock
        self._news = LimitReporter(gpu.uuid, clock=clock, publish=publish)
        self._orders: DropOldest[Target | _Release] = DropOldest(1)  # a setpoint, not a history: the newest wins
        self._target: Target | None = None
        self._reversions = 0
        self._barred: Hold | None = None
        """Where the limit is not ours to write until the release: `YIELDED` or `OBSERVING`, whatever comes between."""
        self._in_debt = False
        """A limit could not be given back, and that was told."""

    @property
    def gpu(self) -> Gpu:
        """Return the GPU behind it."""
        return self._gpu

    @property
    def state(self) -> LimitState | None:
        """Return how the limit stands; None before the GPU has answered once."""
        return self._state

    def request(self, target: Target) -> None:
        """Ask for a limit; only the latest order counts."""
        self._orders.put(target)

    def release(self, *, reason: str, detail: str) -> None:
        """End the hold."""
        self._orders.put(_Release(reason=reason, detail=detail))

    async def run(self) -> None:
        """Carry out orders, and look after the limit between them."""
        await self._guarded(self._look())
        while True:
            try:
                async with asyncio.timeout(RECONCILE_S):
                    order = await self._orders.get()
            except TimeoutError:
                await self._guarded(self._reconcile())
                continue
            match order:
                case Target():
                    self._target = order
                    await self._guarded(self._pursue(order))
                case _Release(reason=reason, detail=detail):
                    await self._let_go(reason, detail)

    async def stop(self) -> None:
        """Give the limit back because the controller stops; never raises, so that one GPU cannot strand another."""
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while not await self._let_go("controller_stopped", "the controller stops"):  # noqa: ASYNC110 — a GPU
                    await asyncio.sleep(RETRY_S)  # tells no event; a write in mid-air must not land after us
        except TimeoutError:
            _LOGGER.error("%s: no answer in %g s; run `gridchase restore`", self._gpu.uuid, STOP_TIMEOUT_S)
        except Exception:  # a bug that ended a worker may well come again here
            _LOGGER.exception("%s: could not be given back; run `gridchase restore`", self._gpu.uuid)

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        """Do some work on the GPU; what can go wrong with a GPU or a disk becomes a state, with its reason."""
        try:
            await work
        except GpuPermissionError as error:
            await self._observe("no_permission", str(error))
        except GpuNotSupportedError as error:
            await self._observe("not_supported", str(error))
        except JournalError as error:
            await self._observe("journal_failed", f"{error}: nothing is written without its prior limit on record")
        except GpuError as error:
            self._become(Hold.SUSPECT)
            self._tell("gpu_suspect", str(error))

    async def _look(self) -> None:
        """Read the GPU afresh; what the journal knows of it is still held, unless somebody else has set it since."""
        limits = await self._gpu.read_range()
        live = await self._gpu.read_limit()
        entry = self._journal.entries.get(self._gpu.uuid)
        if entry and self._target is None and not is_our_limit(live, entry):
            # What a former controller left is gone: somebody else owns the limit, and it is the prior one now.
            await asyncio.to_thread(self._journal.forget, self._gpu.uuid)
            entry = None
        prior_w = entry.prior_power_limit_w if entry else live.requested_power_limit_w
        floor_w, ceiling_w = limit_bounds_w(self._config, limits, prior_w)
        self._state = LimitState(
            hold=self._barred or (Hold.HELD if entry else Hold.FREE),
            prior_power_limit_w=prior_w,
            floor_power_limit_w=floor_w,
            ceiling_power_limit_w=ceiling_w,
            requested_power_limit_w=live.requested_power_limit_w,
            enforced_power_limit_w=live.enforced_power_limit_w,
            since_ns=self._clock.monotonic_ns(),
        )
        is_default = is_same_limit(
            live.requested_power_limit_w, limits.default_power_limit_w
        )  # the driver was reloaded
        if entry and not is_default and not is_our_limit(live, entry):
            await self._yield(live)

    async def _pursue(self, target: Target) -> None:
        """Write what a job wants, if we may."""
        if self._state is None or self._state.hold in {Hold.FREE, Hold.SUSPECT}:
            await self._look()
            if self._known().hold in OURS and await self._gpu.read_mig():
                await self._observe("mig", "it is partitioned (MIG): a limit would hit every tenant")
        elif self._state.hold is Hold.HELD and not await self._still_ours():
            return
        state = self._known()
        if state.hold not in OURS:
            return
        power_limit_w = min(max(target.power_limit_w, state.floor_power_limit_w), state.ceiling_power_limit_w)
        if is_same_limit(power_limit_w, state.requested_power_limit_w) or await self._write(power_limit_w):
            self._become(Hold.HELD)
            self._tell(target.reason, target.detail)

    async def _write(self, power_limit_w: float) -> bool:
        """Journal, write, read back; return whether the limit is ours then."""
        state = self._known()
        before_w = state.requested_power_limit_w
        entry = JournalEntry(
            prior_power_limit_w=state.prior_power_limit_w,
            # A kill may come before the write or after it: both limits are ours from here on.
            written_power_limits_w=(before_w, power_limit_w),
            written_at_s=self._clock.now_s(),
        )
        await asyncio.to_thread(self._journal.record, self._gpu.uuid, entry)
        await self._gpu.set_power_limit(power_limit_w)
        live = await self._gpu.read_limit()
        self._take(live)
        is_ours_now = is_same_limit(live.requested_power_limit_w, power_limit_w)
        if not is_ours_now:
            await self._yield(live)
        return is_ours_now

    async def _reconcile(self) -> None:
        """Look whether the limit still is what it should be."""
        state = self._state
        if state is None or state.hold is Hold.SUSPECT:
            await self._recover()
        elif state.hold is Hold.HELD and self._target is None:
            await self._let_go("restored_late", "it was left behind by a controller that was killed")
        elif state.hold is Hold.HELD:
            await self._still_ours()
        elif self._target is None:
            await self._look()
        else:
            self._take(await self._gpu.read_limit())

    async def _recover(self) -> None:
        """Take up a GPU that has not answered where it was left: with the latest order, or with a debt."""
        await self._look()
        if self._target and not self._barred:
            await self._pursue(self._target)
        elif self._known().hold is Hold.HELD:
            await self._let_go("restored_late", "it answers again")
        else:
            self._tell("answers_again", "it answers again")

    async def _still_ours(self) -> bool:
        """Return whether the live limit is the one we wrote; deal with it where it is not."""
        live = await self._gpu.read_limit()
        state = self._known()
        if is_same_limit(live.requested_power_limit_w, state.requested_power_limit_w):
            if not is_same_limit(live.enforced_power_limit_w, state.enforced_power_limit_w):
                self._take(live)
                self._tell("enforced_changed", "another limiter of the board has changed what the job gets")
            return True
        limits = await self._gpu.read_range()
        is_default = is_same_limit(live.requested_power_limit_w, limits.default_power_limit_w)
        if not is_default or self._reversions >= MAX_REVERSIONS:
            await self._yield(live)
            return False
        self._reversions += 1
        wanted_w = state.requested_power_limit_w
        floor_w, ceiling_w = limit_bounds_w(self._config, limits, state.prior_power_limit_w)
        self._state = replace(state, floor_power_limit_w=floor_w, ceiling_power_limit_w=ceiling_w)
        self._take(live)
        if not await self._write(min(max(wanted_w, floor_w), ceiling_w)):
            return False
        self._tell("driver_reloaded", f"was back at the default, {live.requested_power_limit_w:g} W: set again")
        return True

    async def _yield(self, live: LiveLimit) -> None:
        """Leave the limit to whoever else writes it."""
        self._take(live)
        await asyncio.to_thread(self._journal.forget, self._gpu.uuid)
        self._bar(Hold.YIELDED)
        detail = f"set to {live.requested_power_limit_w:g} W by another writer: left alone until the job ends"
        self._tell("another_writer", detail)

    async def _observe(self, reason: str, detail: str) -> None:
        """Write no more in this hold: measure and publish only. What was written before is given back."""
        result = await restore_prior_limit(self._gpu, self._journal)
        if result and result.live:
            self._take(result.live)
        self._bar(Hold.OBSERVING)
        self._tell(reason, detail)

    async def _let_go(self, reason: str, detail: str) -> bool:
        """End the hold and give the limit back; return False where that fails: told once, tried again at every look."""
        held = self._state is not None and self._state.hold is not Hold.FREE
        result = await restore_prior_limit(self._gpu, self._journal)
        if result and result.live:
            self._take(result.live)
        failed = result is not None and result.code == "failed"
        self._become(Hold.SUSPECT if failed else Hold.FREE)
        if (result or held) and not (failed and self._in_debt):
            code = "" if result is None or result.code == "restored" else f"_{result.code}"
            self._tell(f"{reason}{code}", f"{detail}; {result.detail}" if result else detail)
            if failed and result:
                _LOGGER.error("%s: the power limit %s", self._gpu.uuid, result.detail)
        self._in_debt = failed
        self._target = None
        self._barred = None
        self._reversions = 0
        return not failed

    def _known(self) -> LimitState:
        assert self._state is not None, "the GPU has been read"  # noqa: S101 — an invariant, not a check of input
        return self._state

    def _bar(self, hold: Hold) -> None:
        """Write no more until the release; where nobody holds it, until the next look."""
        self._barred = hold if self._target else None
        self._become(hold)

    def _become(self, hold: Hold) -> None:
        if self._state is not None:
            self._state = replace(self._state, hold=hold)

    def _take(self, live: LiveLimit) -> None:
        """Note what was read back."""
        if self._state is not None:
            self._state = replace(
                self._state,
                requested_power_limit_w=live.requested_power_limit_w,
                enforced_power_limit_w=live.enforced_power_limit_w,
                since_ns=self._clock.monotonic_ns(),
            )

    def _tell(self, reason: str, detail: str) -> None:
        self._news.tell(reason, detail, state=self._state, target=self._target)
