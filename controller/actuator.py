"""The actuator: one task per GPU that writes its power limit, watches over it, and gives it back.

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
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

from controller.clock import Clock
from controller.config import GpuConfig
from controller.errors import GpuError, GpuNotSupportedError, GpuPermissionError, JournalError
from controller.journal import Entry, Journal
from controller.limit_bounds import limit_bounds_w
from controller.limit_news import LimitNews
from controller.mailbox import DropOldest
from controller.ports import Gpu, Hold, LimitState, LiveLimit, Target
from controller.restoration import give_back, is_ours, is_same
from publishers.reports import LimitChange

RECONCILE_S = 15.0
MAX_REVERSIONS = 3
STOP_TIMEOUT_S = 10.0
RETRY_S = 0.5
OURS = frozenset({Hold.FREE, Hold.HELD})
"""In these holds a limit may be written."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release:
    reason: str
    detail: str


class Actuator:
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
        self._news = LimitNews(gpu.uuid, clock=clock, publish=publish)
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
        if entry and self._target is None and not is_ours(live, entry):
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
        is_default = is_same(live.requested_power_limit_w, limits.default_power_limit_w)  # the driver was reloaded
        if entry and not is_default and not is_ours(live, entry):
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
        if is_same(power_limit_w, state.requested_power_limit_w) or await self._write(power_limit_w):
            self._become(Hold.HELD)
            self._tell(target.reason, target.detail)

    async def _write(self, power_limit_w: float) -> bool:
        """Journal, write, read back; return whether the limit is ours then."""
        state = self._known()
        before_w = state.requested_power_limit_w
        entry = Entry(
            prior_power_limit_w=state.prior_power_limit_w,
            # A kill may come before the write or after it: both limits are ours from here on.
            written_power_limits_w=(before_w, power_limit_w),
            written_at_s=self._clock.now_s(),
        )
        await asyncio.to_thread(self._journal.record, self._gpu.uuid, entry)
        await self._gpu.set_power_limit(power_limit_w)
        live = await self._gpu.read_limit()
        self._take(live)
        is_ours_now = is_same(live.requested_power_limit_w, power_limit_w)
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
        if is_same(live.requested_power_limit_w, state.requested_power_limit_w):
            if not is_same(live.enforced_power_limit_w, state.enforced_power_limit_w):
                self._take(live)
                self._tell("enforced_changed", "another limiter of the board has changed what the job gets")
            return True
        limits = await self._gpu.read_range()
        is_default = is_same(live.requested_power_limit_w, limits.default_power_limit_w)
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
        result = await give_back(self._gpu, self._journal)
        if result and result.live:
            self._take(result.live)
        self._bar(Hold.OBSERVING)
        self._tell(reason, detail)

    async def _let_go(self, reason: str, detail: str) -> bool:
        """End the hold and give the limit back; return False where that fails: told once, tried again at every look."""
        held = self._state is not None and self._state.hold is not Hold.FREE
        result = await give_back(self._gpu, self._journal)
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
