"""Power limiter: one task per GPU writes its power limit, reconciles it, and restores the prior one.

It does not know the reason for a limit. It journals before it writes, clamps, reads back, and reads the limit every
`RECONCILE_S` to detect other writers:

    FREE ──request──► HELD ──release──► FREE     (the prior limit, if the live one still is ours)
                       ├─ the limit is the default again: the driver was reloaded; written again, `MAX_REVERSIONS` times
                       ├─ the limit is anything else: another writer ──► YIELDED until the release
                       ├─ no permission, MIG ──► OBSERVING until the release
                       └─ no answer ──► SUSPECT, until a later read succeeds
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

from controller.clock import Clock
from controller.config import GpuConfig
from controller.errors import GpuError, GpuNotSupportedError, GpuPermissionError, JournalError
from controller.gpu.journal import Journal, JournalEntry, is_our_limit, is_same_limit, restore_prior_limit
from controller.ports import Gpu, Hold, LimitRange, LimitState, LiveLimit, Target
from publishers.messages.reports import LimitChange

RECONCILE_S = 15.0
MAX_REVERSIONS = 3
STOP_TIMEOUT_S = 10.0
RETRY_S = 0.5
MAX_DETAIL = 1_024
LOG_PERIOD_S = 600.0
"""Changes for one reason (a curve being refined, two limits that share a period) are all published, but logged once a
period."""
WRITABLE = frozenset({Hold.FREE, Hold.HELD})
"""The holds in which a limit may be written."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release:
    reason: str
    detail: str


class GpuPowerLimiter:
    """The power limit of one GPU; obeys `PowerLimiter`.

    Args:
        gpu: the GPU.
        journal: where prior limits are recorded before the first write.
        config: the operator's floor and ceiling.
        clock: the node's clock.
        publish: is called with every change of the limit or of its reason.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        journal: Journal,
        config: GpuConfig,
        clock: Clock,
        publish: Callable[[LimitChange], None],
    ) -> None:
        self.gpu = gpu
        self.state: LimitState | None = None
        self._journal = journal
        self._config = config
        self._clock = clock
        self._reporter = LimitReporter(gpu.uuid, clock=clock, publish=publish)
        self._orders: asyncio.Queue[Target | _Release] = asyncio.Queue(1)
        self._target: Target | None = None
        self._reversions = 0
        self._barred: Hold | None = None
        """`YIELDED` or `OBSERVING` where the limit must not be written until the release, whatever comes between."""
        self._has_failed_restore = False

    def request(self, target: Target) -> None:
        """Ask for a limit; only the latest order counts."""
        self._replace_order(target)

    def release(self, *, reason: str, detail: str) -> None:
        """End the hold."""
        self._replace_order(_Release(reason=reason, detail=detail))

    async def run(self) -> None:
        """Carry out orders, and reconcile the limit between them."""
        await self._guarded(self._refresh())
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
                    await self._guarded(self._apply(order))
                case _Release(reason=reason, detail=detail):
                    await self._restore(reason, detail)

    async def stop(self) -> None:
        """Restore the prior limit because the controller stops; never raises, so that no GPU strands another."""
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while not await self._restore("controller_stopped", "the controller stops"):  # noqa: ASYNC110 — a GPU
                    await asyncio.sleep(RETRY_S)  # signals no event; a write under way must not land after us
        except TimeoutError:
            _LOGGER.error("%s: no answer in %g s; run `gridchase restore`", self.gpu.uuid, STOP_TIMEOUT_S)
        except Exception:  # a bug that ended a worker may well strike again here
            _LOGGER.exception("%s: the prior limit could not be restored; run `gridchase restore`", self.gpu.uuid)

    def _replace_order(self, order: Target | _Release) -> None:
        """Put an order in place of one that still waits: a set-point, not a history."""
        if self._orders.full():
            self._orders.get_nowait()
        self._orders.put_nowait(order)

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        """Await work on the GPU; a failure of a GPU or a disk becomes a state, with its reason."""
        try:
            await work
        except GpuPermissionError as error:
            await self._observe_only("no_permission", str(error))
        except GpuNotSupportedError as error:
            await self._observe_only("not_supported", str(error))
        except JournalError as error:
            await self._observe_only("journal_failed", f"{error}: nothing is written without a journal entry")
        except GpuError as error:
            self._set_hold(Hold.SUSPECT)
            self._report("gpu_suspect", str(error))

    async def _refresh(self) -> None:
        """Read the GPU afresh; what the journal lists is still held, unless another program has set it since."""
        limits = await self.gpu.read_range()
        live = await self.gpu.read_limit()
        entry = self._journal.entries.get(self.gpu.uuid)
        if entry and self._target is None and not is_our_limit(live, entry):
            # Another program has replaced the former controller's limit: the new one is the prior limit now.
            await asyncio.to_thread(self._journal.forget, self.gpu.uuid)
            entry = None
        prior_w = entry.prior_power_limit_w if entry else live.requested_power_limit_w
        floor_w, ceiling_w = limit_bounds_w(self._config, limits, prior_w)
        self.state = LimitState(
            hold=self._barred or (Hold.HELD if entry else Hold.FREE),
            prior_power_limit_w=prior_w,
            floor_power_limit_w=floor_w,
            ceiling_power_limit_w=ceiling_w,
            requested_power_limit_w=live.requested_power_limit_w,
            enforced_power_limit_w=live.enforced_power_limit_w,
            since_ns=self._clock.monotonic_ns(),
        )
        is_default = is_same_limit(live.requested_power_limit_w, limits.default_power_limit_w)  # driver reloaded
        if entry and not is_default and not is_our_limit(live, entry):
            await self._yield(live)

    async def _apply(self, target: Target) -> None:
        if self.state is None or self.state.hold in {Hold.FREE, Hold.SUSPECT}:
            await self._refresh()
            if self._known_state().hold in WRITABLE and await self.gpu.read_mig():
                await self._observe_only("mig", "it is partitioned (MIG): a limit would affect every tenant")
        elif self.state.hold is Hold.HELD and not await self._reconcile_held():
            return
        state = self._known_state()
        if state.hold not in WRITABLE:
            return
        power_limit_w = min(max(target.power_limit_w, state.floor_power_limit_w), state.ceiling_power_limit_w)
        if is_same_limit(power_limit_w, state.requested_power_limit_w) or await self._write(power_limit_w):
            self._set_hold(Hold.HELD)
            self._report(target.reason, target.detail)

    async def _write(self, power_limit_w: float) -> bool:
        """Journal, write, read back; return whether the live limit is ours afterwards."""
        state = self._known_state()
        entry = JournalEntry(
            prior_power_limit_w=state.prior_power_limit_w,
            # A kill may come before the write or after it: both limits are ours from here on.
            written_power_limits_w=(state.requested_power_limit_w, power_limit_w),
            written_at_s=self._clock.now_s(),
        )
        await asyncio.to_thread(self._journal.record, self.gpu.uuid, entry)
        await self.gpu.set_power_limit(power_limit_w)
        live = await self.gpu.read_limit()
        if not is_same_limit(live.requested_power_limit_w, power_limit_w):
            await self._yield(live)
            return False
        self._update(live)
        return True

    async def _reconcile(self) -> None:
        state = self.state
        if state is None or state.hold is Hold.SUSPECT:
            await self._recover()
        elif state.hold is Hold.HELD and self._target is None:
            await self._restore("restored_late", "it was left by a controller that was killed")
        elif state.hold is Hold.HELD:
            await self._reconcile_held()
        elif self._target is None:
            await self._refresh()
        else:
            self._update(await self.gpu.read_limit())

    async def _recover(self) -> None:
        """Resume a GPU that has not answered: with the latest order, or with the restore that is still due."""
        await self._refresh()
        if self._target and not self._barred:
            await self._apply(self._target)
        elif self._known_state().hold is Hold.HELD:
            await self._restore("restored_late", "it answers again")
        else:
            self._report("answers_again", "it answers again")

    async def _reconcile_held(self) -> bool:
        """Return whether the live limit is the one we wrote, perhaps written again; yield it where it is not."""
        live = await self.gpu.read_limit()
        state = self._known_state()
        if is_same_limit(live.requested_power_limit_w, state.requested_power_limit_w):
            if not is_same_limit(live.enforced_power_limit_w, state.enforced_power_limit_w):
                self._update(live)
                self._report("enforced_changed", "another limiter of the board has changed what the job gets")
            return True
        limits = await self.gpu.read_range()
        is_default = is_same_limit(live.requested_power_limit_w, limits.default_power_limit_w)
        if not is_default or self._reversions >= MAX_REVERSIONS:
            await self._yield(live)
            return False
        self._reversions += 1
        wanted_w = state.requested_power_limit_w
        floor_w, ceiling_w = limit_bounds_w(self._config, limits, state.prior_power_limit_w)
        self.state = replace(state, floor_power_limit_w=floor_w, ceiling_power_limit_w=ceiling_w)
        self._update(live)
        if not await self._write(min(max(wanted_w, floor_w), ceiling_w)):
            return False
        self._report("driver_reloaded", f"was back at the default, {live.requested_power_limit_w:g} W: set again")
        return True

    async def _yield(self, live: LiveLimit) -> None:
        """Yield to another writer of the limit."""
        self._update(live)
        await asyncio.to_thread(self._journal.forget, self.gpu.uuid)
        self._bar(Hold.YIELDED)
        detail = f"set to {live.requested_power_limit_w:g} W by another writer: left alone until the job ends"
        self._report("another_writer", detail)

    async def _observe_only(self, reason: str, detail: str) -> None:
        """Write no more in this hold: measure and publish only. What was written before is restored."""
        result = await restore_prior_limit(self.gpu, self._journal)
        if result and result.live:
            self._update(result.live)
        self._bar(Hold.OBSERVING)
        self._report(reason, detail)

    async def _restore(self, reason: str, detail: str) -> bool:
        """End the hold and restore the prior limit; return False where that fails: reported once, then retried."""
        was_held = self.state is not None and self.state.hold is not Hold.FREE
        result = await restore_prior_limit(self.gpu, self._journal)
        if result and result.live:
            self._update(result.live)
        failed = result is not None and result.code == "failed"
        self._set_hold(Hold.SUSPECT if failed else Hold.FREE)
        if (result or was_held) and not (failed and self._has_failed_restore):
            code = "" if result is None or result.code == "restored" else f"_{result.code}"
            self._report(f"{reason}{code}", f"{detail}; {result.detail}" if result else detail)
            if failed and result:
                _LOGGER.error("%s: the power limit %s", self.gpu.uuid, result.detail)
        self._has_failed_restore = failed
        self._target = None
        self._barred = None
        self._reversions = 0
        return not failed

    def _known_state(self) -> LimitState:
        assert self.state is not None, "the GPU has been read"  # noqa: S101 — an invariant, not a check of input
        return self.state

    def _bar(self, hold: Hold) -> None:
        """Bar writing until the release; without a target, until the next refresh."""
        self._barred = hold if self._target else None
        self._set_hold(hold)

    def _set_hold(self, hold: Hold) -> None:
        if self.state is not None:
            self.state = replace(self.state, hold=hold)

    def _update(self, live: LiveLimit) -> None:
        if self.state is not None:
            self.state = replace(
                self.state,
                requested_power_limit_w=live.requested_power_limit_w,
                enforced_power_limit_w=live.enforced_power_limit_w,
                since_ns=self._clock.monotonic_ns(),
            )

    def _report(self, reason: str, detail: str) -> None:
        self._reporter.report(reason, detail, state=self.state, target=self._target)


class LimitReporter:
    """Publishes and logs changes of a GPU's power limit; the same twice is reported once."""

    def __init__(self, gpu_uuid: str, *, clock: Clock, publish: Callable[[LimitChange], None]) -> None:
        self._gpu_uuid = gpu_uuid
        self._clock = clock
        self._publish = publish
        self._last_report: tuple[object, ...] = ()
        self._last_limit_w: float | None = None
        self._last_logged: tuple[str, float] = ("", 0.0)

    def report(self, reason: str, detail: str, *, state: LimitState | None, target: Target | None) -> None:
        """Publish and log a change; `state` is None before the GPU has answered once."""
        limit_w = state.requested_power_limit_w if state else None
        enforced_w = state.enforced_power_limit_w if state else None
        report = (reason, limit_w, enforced_w, state.hold if state else None)
        if report == self._last_report:
            return
        previous_w, self._last_limit_w, self._last_report = self._last_limit_w, limit_w, report
        level = logging.INFO if self._is_log_due(reason) else logging.DEBUG
        _LOGGER.log(level, "%s: %s W (was %s): %s: %s", self._gpu_uuid, limit_w, previous_w, reason, detail)
        self._publish(
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
            )
        )

    def _is_log_due(self, reason: str) -> bool:
        now_s, (last_reason, logged_s) = self._clock.now_s(), self._last_logged
        if reason == last_reason and logged_s <= now_s < logged_s + LOG_PERIOD_S:
            return False
        self._last_logged = reason, now_s
        return True


def limit_bounds_w(config: GpuConfig, limits: LimitRange, prior_power_limit_w: float) -> tuple[float, float]:
    """Return the floor and the ceiling of what may be written [W]: never above the prior limit unless allowed.

    The ceiling wins where the operator's floor lies above it.
    """
    ceiling_w = min(limits.max_power_limit_w, config.max_power_limit_w or limits.max_power_limit_w)
    if not config.allow_above_prior:
        ceiling_w = min(ceiling_w, prior_power_limit_w)
    return min(max(limits.min_power_limit_w, config.min_power_limit_w), ceiling_w), ceiling_w
