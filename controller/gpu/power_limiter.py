"""Power limiter: one task per GPU writes its power limit, reconciles it, and restores the prior one.

It does not know the reason for a limit. It journals before it writes, clamps, reads back, and reads the limit every
`RECONCILE_S` to detect other writers:

    FREE ──request──► HELD ──release──► FREE     (the prior limit, if the live one still is ours)
                       ├─ the limit is the default or one of ours again: written again, `MAX_REVERSIONS` times an hour
                       ├─ the limit is anything else: another writer ──► YIELDED until the release
                       ├─ no permission, MIG ──► OBSERVING until the release
                       ├─ writes have no effect, no journal ──► OBSERVING, until a later try succeeds
                       └─ no answer, prior limit not confirmed ──► SUSPECT, until a later try succeeds
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace

from controller.config import GpuConfig
from controller.errors import GpuError, GpuNotSupportedError, GpuPermissionError, JournalError
from controller.gpu.journal.entry import JournalEntry, confirmed_entry, entry_before_write, is_same_limit
from controller.gpu.journal.storage import Journal
from controller.gpu.read_back import (
    RESTORE_COMMAND,
    ReadBack,
    RestoreResult,
    is_known_limit,
    is_our_limit,
    restore_prior_limit,
    watch_write,
)
from controller.ports import Gpu, Hold, LimitRange, LimitState, LiveLimit, Target
from controller.runtime.clock import Clock
from publishers.messages.reports import LimitChange

RECONCILE_S = 15.0
MAX_REVERSIONS = 3
REVERSIONS_S = 3_600.0
"""So many resets within so long are another writer, at the next one; a run may last for weeks."""
MAX_IGNORED = 3
"""After so many writes without effect the GPU is only observed; it is still tried again."""
STOP_TIMEOUT_S = 10.0
STOP_RETRY_S = 0.5
RETRY_S = 0.5
"""How long to wait after a first failure; twice as long after each further one, up to `RECONCILE_S`."""
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
        observes: whether nothing is ever written, but what a killed controller left is given back.
        restore_command: restores by hand what this controller has left.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        journal: Journal,
        config: GpuConfig,
        clock: Clock,
        publish: Callable[[LimitChange], None],
        observes: bool = False,
        restore_command: str = RESTORE_COMMAND,
    ) -> None:
        self.gpu = gpu
        self._restore_command = restore_command
        self._observes = observes
        self.state: LimitState | None = None
        self._journal = journal
        self._config = config
        self._clock = clock
        self._reporter = LimitReporter(gpu.uuid, clock=clock, publish=publish)
        self._orders: asyncio.Queue[Target | _Release] = asyncio.Queue(1)
        self._target: Target | None = None
        self._reverted_s: deque[float] = deque(maxlen=MAX_REVERSIONS)
        """When the limit was written again after it had been reset, in this hold [Unix s]."""
        self._n_failures = 0
        """How many tries have failed since the last one that did not: of writes, of restores, of the journal."""
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
                async with asyncio.timeout(backoff_s(self._n_failures)):
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

    async def stop(self) -> str:
        """Restore the prior limit because the controller stops; never raises, so that no GPU strands another.

        Returns:
            which limit the GPU still has, and what to do; "" if the prior one has been confirmed, or it is not ours.
        """
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while not await self._restore("controller_stopped", "the controller stops"):  # noqa: ASYNC110 — a GPU
                    await asyncio.sleep(STOP_RETRY_S)  # signals no event; a write under way must not land after us
        except TimeoutError:
            _LOGGER.error("%s: not restored in %g s; run `%s`", self.gpu.uuid, STOP_TIMEOUT_S, self._restore_command)
        except Exception:  # a bug that ended a worker may well strike again here
            what = "the prior limit could not be restored"
            _LOGGER.exception("%s: %s; run `%s`", self.gpu.uuid, what, self._restore_command)
        with suppress(JournalError):  # an entry that a full disk has kept would be taken for ours at the next start
            await self._journal.flush()
        return self._limit_left()

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
            self._n_failures += 1
            await self._observe_only("journal_failed", f"{error}: nothing is written without it", until_release=False)
        except GpuError as error:
            self._set_hold(Hold.SUSPECT)
            self._report("gpu_suspect", str(error))

    async def _refresh(self) -> None:
        """Read the GPU afresh; what the journal lists is still held, unless another program has set it since."""
        limits = await self.gpu.read_range()
        live = await self.gpu.read_limit()
        entry = self._entry()
        if entry and self._target is None and not is_our_limit(live, entry, limits):
            # Another program has replaced the former controller's limit: the new one is the prior limit now.
            with suppress(JournalError):  # the entry is struck with the next one that is stored
                await self._journal.forget(self.gpu.uuid)
            entry = None
        prior_w = entry.prior_power_limit_w if entry else live.requested_power_limit_w
        floor_w, ceiling_w = limit_bounds_w(self._config, limits, prior_w)
        former = self.state
        self.state = LimitState(
            hold=self._barred or (Hold.HELD if entry else Hold.FREE),
            prior_power_limit_w=prior_w,
            floor_power_limit_w=floor_w,
            ceiling_power_limit_w=ceiling_w,
            requested_power_limit_w=live.requested_power_limit_w,
            enforced_power_limit_w=live.enforced_power_limit_w,
            since_ns=self._clock.monotonic_ns(),
        )
        if former is not None:
            self.state = replace(self.state, reason=former.reason, detail=former.detail)
        is_default = is_same_limit(live.requested_power_limit_w, limits.default_power_limit_w)  # driver reloaded
        if entry and not is_default and not is_our_limit(live, entry, limits):
            await self._yield(live)

    async def _apply(self, target: Target) -> None:
        if self._observes:
            if self.state is None or self.state.hold is not Hold.OBSERVING:
                await self._refresh()
                await self._observe_only("observe_mode", "plan.observe: limits are planned, but never written")
            return
        if self.state is None or self.state.hold in {Hold.FREE, Hold.SUSPECT} or self._is_tried_again():
            await self._refresh()
            if self._known_state().hold in WRITABLE and await self.gpu.read_mig():
                await self._observe_only("mig", "it is partitioned (MIG): a limit would affect every tenant")
        elif self.state.hold is Hold.HELD and not await self._reconcile_held():
            return
        if self._known_state().hold in WRITABLE:
            await self._set_limit(target)

    async def _set_limit(self, target: Target) -> None:
        """Write the limit of an order, unless it is in force already."""
        state, entry = self._known_state(), self._entry()
        asked_w = min(max(target.power_limit_w, state.floor_power_limit_w), state.ceiling_power_limit_w)
        if entry is None or entry.is_confirmed:
            is_set = is_same_limit(asked_w, state.asked_for_w)
        else:  # the last write has come late
            is_set = all(is_same_limit(asked_w, w) for w in (state.requested_power_limit_w, entry.newest_power_limit_w))
            if is_set:
                await self._confirm(entry)
        if is_set or await self._write(asked_w):
            self._n_failures = 0
            self._set_hold(Hold.HELD)
            self._report(target.reason, target.detail)

    async def _write(self, asked_w: float) -> bool:
        """Journal, write, read back; return whether the live limit is what the board makes of the one asked for."""
        state = self._known_state()
        entry = entry_before_write(
            self._entry(),
            prior_power_limit_w=state.prior_power_limit_w,
            live_power_limit_w=state.requested_power_limit_w,
            asked_power_limit_w=asked_w,
            now_s=self._clock.now_s(),
        )
        await self._journal.record(self.gpu.uuid, entry)
        await self.gpu.set_power_limit(asked_w)
        outcome, live = await watch_write(self.gpu, asked_w, entry, self._clock)
        if outcome is ReadBack.LATE:
            self._update(live)
            self._note_ignored(asked_w, live)
            return False
        self._update(live, asked_power_limit_w=asked_w)
        await self._confirm(entry)
        if outcome is ReadBack.CLAMPED:
            return await self._is_clamp_accepted(asked_w, live)
        return True

    async def _confirm(self, entry: JournalEntry) -> None:
        """Journal that the last write was confirmed: nothing else can be left on the GPU."""
        confirmed = confirmed_entry(entry, self._known_state().requested_power_limit_w)
        await self._journal.confirm(self.gpu.uuid, confirmed)

    def _note_ignored(self, asked_w: float, live: LiveLimit) -> None:
        """Report a write without effect; it is tried again, and what is in the journal stays there."""
        self._n_failures += 1
        self._set_hold(Hold.HELD if self._n_failures < MAX_IGNORED else Hold.OBSERVING)
        detail = f"the driver has accepted {asked_w:g} W, but the limit still is {live.requested_power_limit_w:g} W"
        self._report("write_ignored", f"{detail}; tried again")

    async def _is_clamp_accepted(self, asked_w: float, live: LiveLimit) -> bool:
        """Return whether what the board has made of a write may stay; never above the ceiling."""
        state = self._known_state()
        detail = f"requested {asked_w:g} W; the board set {live.requested_power_limit_w:g} W"
        if live.requested_power_limit_w > state.ceiling_power_limit_w and not is_same_limit(
            live.requested_power_limit_w, state.ceiling_power_limit_w
        ):
            await self._observe_only("clamped", f"{detail}, more than the {state.ceiling_power_limit_w:g} W allowed")
            return False
        self._report("clamped", detail)
        return True

    async def _reconcile(self) -> None:
        state = self.state
        if state is None or state.hold is Hold.SUSPECT:
            await self._recover()
        elif state.hold is Hold.HELD and self._target is None:
            await self._restore("restored_late", "it was left by a controller that was killed")
        elif state.hold is Hold.HELD:
            await self._journal.probe()
            if await self._reconcile_held() and self._target and self._is_unconfirmed():
                await self._set_limit(self._target)
        elif self._target is None:
            await self._refresh()
            with suppress(JournalError):
                await self._journal.flush()
        else:
            await self._reconcile_barred(self._target)

    async def _reconcile_barred(self, target: Target) -> None:
        """Try again what failed before the limit was left alone; otherwise only read it."""
        if self._is_tried_again():
            await self._apply(target)
        elif self._entry():  # what was written before the hold was barred could not be restored
            result = await self._give_back()
            if result and result.code != "failed":
                self._report("restored_late", result.detail)
        else:
            self._update(await self.gpu.read_limit())

    async def _recover(self) -> None:
        """Resume a GPU that has not answered: with the latest order, or with the restore that is still due."""
        await self._refresh()
        if self._target and not self._barred:
            await self._apply(self._target)
        elif self._known_state().hold is Hold.HELD:
            await self._restore("restored_late", "a later try has succeeded")
        else:
            self._report("answers_again", "the GPU is responding again")

    async def _reconcile_held(self) -> bool:
        """Return whether the live limit is ours, perhaps written again; yield it where it is not."""
        live = await self.gpu.read_limit()
        state, entry = self._known_state(), self._entry()
        if is_same_limit(live.requested_power_limit_w, state.requested_power_limit_w):
            if not is_same_limit(live.enforced_power_limit_w, state.enforced_power_limit_w):
                self._update(live, asked_power_limit_w=state.asked_power_limit_w)
                self._report("enforced_changed", "another limiter of the board has changed what the job gets")
            return True
        limits = await self.gpu.read_range()
        is_default = is_same_limit(live.requested_power_limit_w, limits.default_power_limit_w)
        if entry and not entry.is_confirmed and is_our_limit(live, entry, limits):  # late, or clamped
            self._update(live)
            return True
        is_ours = is_default or (entry is not None and is_known_limit(live, entry))
        if not is_ours or self._is_reset_again_and_again():
            await self._yield(live)
            return False
        self._reverted_s.append(self._clock.now_s())
        wanted_w = state.asked_for_w
        floor_w, ceiling_w = limit_bounds_w(self._config, limits, state.prior_power_limit_w)
        self.state = replace(state, floor_power_limit_w=floor_w, ceiling_power_limit_w=ceiling_w)
        self._update(live)
        if not await self._write(min(max(wanted_w, floor_w), ceiling_w)):
            return False
        which = "the default" if is_default else "which it had before"
        self._report("limit_reset", f"was back at {live.requested_power_limit_w:g} W, {which}: set again")
        return True

    def _is_reset_again_and_again(self) -> bool:
        """Return whether the limit was reset so often of late that another writer must be at it."""
        times_s = self._reverted_s
        return len(times_s) == MAX_REVERSIONS and self._clock.now_s() - times_s[0] < REVERSIONS_S

    async def _yield(self, live: LiveLimit) -> None:
        """Yield to another writer of the limit; if what it has set is known to be ours, give back the prior one."""
        self._update(live)
        detail = f"set to {live.requested_power_limit_w:g} W by another writer: left alone until the job ends"
        await self._give_back()
        self._bar(Hold.YIELDED)
        self._report("another_writer", detail)

    async def _observe_only(self, reason: str, detail: str, *, until_release: bool = True) -> None:
        """Write no more for now: measure and publish only. What was written before is restored."""
        result = await self._give_back()
        if until_release:
            self._bar(Hold.OBSERVING)
        else:
            self._set_hold(Hold.OBSERVING)
        self._report(reason, f"{detail}; {result.detail}" if result else detail)

    async def _give_back(self) -> RestoreResult | None:
        """Restore the prior limit while the hold goes on; a failure is logged once, and tried again."""
        result = await restore_prior_limit(self.gpu, self._journal, self._clock, restore_command=self._restore_command)
        if result is None:
            return None
        if result.live:
            self._update(result.live)
        failed = result.code == "failed"
        if failed:
            self._n_failures += 1
            if not self._has_failed_restore:
                _LOGGER.error("%s: the power limit %s; tried again", self.gpu.uuid, result.detail)
        self._has_failed_restore = failed
        return result

    async def _restore(self, reason: str, detail: str) -> bool:
        """End the hold and restore the prior limit; return False where that fails: reported once, then retried."""
        was_held = self.state is not None and self.state.hold is not Hold.FREE
        had_failed = self._has_failed_restore
        result = await self._give_back()
        failed = result is not None and result.code == "failed"
        self._set_hold(Hold.SUSPECT if failed else Hold.FREE)
        if (result or was_held) and not (failed and had_failed):
            code = "" if result is None or result.code == "restored" else f"_{result.code}"
            self._report(f"{reason}{code}", f"{detail}; {result.detail}" if result else detail)
        if not failed:
            self._n_failures = 0
            self._has_failed_restore = False
        self._target = None
        self._barred = None
        self._reverted_s.clear()
        return not failed

    def _limit_left(self) -> str:
        """Return which limit the GPU still has although it is not the prior one, and what to do; "" if none."""
        entry = self._entry()
        if entry is None:
            return ""
        live = f"still has {self.state.requested_power_limit_w:g} W" if self.state else "may still have another limit"
        prior = f"prior limit {entry.prior_power_limit_w:g} W"
        remedy = f"run `{self._restore_command}`"
        return f"{self.gpu.uuid} {live} instead of its {prior}: it could not be restored; {remedy}"

    def _entry(self) -> JournalEntry | None:
        return self._journal.entries.get(self.gpu.uuid)

    def _is_unconfirmed(self) -> bool:
        """Return whether the last write has not been confirmed."""
        entry = self._entry()
        return entry is not None and not entry.is_confirmed

    def _is_tried_again(self) -> bool:
        """Return whether the GPU is only observed until a later try succeeds, not until the release."""
        return self.state is not None and self.state.hold is Hold.OBSERVING and self._barred is None

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

    def _update(self, live: LiveLimit, *, asked_power_limit_w: float | None = None) -> None:
        if self.state is not None:
            self.state = replace(
                self.state,
                requested_power_limit_w=live.requested_power_limit_w,
                asked_power_limit_w=asked_power_limit_w,
                enforced_power_limit_w=live.enforced_power_limit_w,
                since_ns=self._clock.monotonic_ns(),
            )

    def _report(self, reason: str, detail: str) -> None:
        if self.state is not None:
            self.state = replace(self.state, reason=reason, detail=detail[:MAX_DETAIL])
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
        _LOGGER.log(level, "%s: %s: %s: %s", self._gpu_uuid, _change_text(previous_w, limit_w), reason, detail)
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
                speed_ratio=target.speed_ratio if target and state and state.enforces(target) else None,
            )
        )

    def _is_log_due(self, reason: str) -> bool:
        now_s, (last_reason, logged_s) = self._clock.now_s(), self._last_logged
        if reason == last_reason and logged_s <= now_s < logged_s + LOG_PERIOD_S:
            return False
        self._last_logged = reason, now_s
        return True


def backoff_s(n_failures: int) -> float:
    """Return how long to wait after so many failures in a row: `RECONCILE_S` after none or many [s]."""
    return min(RETRY_S * 2.0 ** min(n_failures - 1, 10), RECONCILE_S) if n_failures else RECONCILE_S


def limit_bounds_w(config: GpuConfig, limits: LimitRange, prior_power_limit_w: float) -> tuple[float, float]:
    """Return the floor and the ceiling of what may be written [W]: never above the prior limit unless allowed.

    The ceiling wins where the operator's floor lies above it.
    """
    ceiling_w = min(limits.max_power_limit_w, config.max_power_limit_w or limits.max_power_limit_w)
    if not config.allow_above_prior:
        ceiling_w = min(ceiling_w, prior_power_limit_w)
    return min(max(limits.min_power_limit_w, config.min_power_limit_w), ceiling_w), ceiling_w


def _change_text(previous_w: float | None, limit_w: float | None) -> str:
    if limit_w is None:
        return "limit unknown"
    return f"{limit_w:g} W" if previous_w in {None, limit_w} else f"{previous_w:g} → {limit_w:g} W"
