"""What a run with a deadline does where its slack is worth more than the best limits above the energy-minimal one.

The plan at or above that limit is made elsewhere (`dispatch`), and stands wherever this has nothing better: without a
signal that is measured and current, without time to spare beside a reserve, or where only the expected signal, and no
pessimistic outlook, would have the run slower. A pause in force outlasts the minutes at the turn of an hour until its
value has come.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from policies.planning.duty_cycle import DutyCycle, duty_cycle_for
from policies.planning.objectives import CurrentLimit, PlannedPause, RatesAhead, SlackOptions, SwitchingRules
from policies.planning.required_rate import RequiredRate
from policies.planning.signal_outlook import SignalOutlook, build_outlook, coarsened
from policies.planning.slack.pause_cycle import PauseCycle, PauseRules, pause_cycle_for
from policies.planning.slack.plan import SlackPlan, SlackRules, known_ahead_s, plan_with_slack
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import duration_text

RESERVE_RATIO: Final = 0.02
"""So much longer may the rest of the work take than was measured: a run that waits leaves that time, and a period."""
MIN_MAX_PAUSE_S: Final = 1_800.0
"""A training that lets a pause last less is not paused: each may cost `RESTART_S` at the highest power."""
SAME_RATE_RATIO: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackChoice:
    """What a run does in the period that begins.

    Attributes:
        cycle: the limits; of a run that is paused for a part of the period, that of the rest.
        pause: when it is paused, if it is.
        reason: a stable code.
        detail: what later hours are expected to be, in words.
        ahead: returns the rates until the run ends.
    """

    cycle: DutyCycle
    pause: PlannedPause | None
    reason: str
    detail: str
    ahead: Callable[[], RatesAhead]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackInputs:
    """What the choice rests on, as `choose_power_limit` has it; `required` is what the deadline requires."""

    profile: PowerProfile
    rules: SwitchingRules
    history: Signal | None
    forecast: Signal | None
    now_s: float
    current: CurrentLimit | None
    left_iterations: float
    required: RequiredRate

    @property
    def work_s(self) -> float:
        """Return how long the rest takes at the highest limit [s]."""
        return self.left_iterations / self.profile.fastest.iterations_per_s


def choose_with_slack(inputs: SlackInputs, options: SlackOptions) -> SlackChoice | None:
    """Return what a run with a deadline does now; None where the plan without slack is as good, or surer."""
    time_s = inputs.required.horizon_s - RESERVE_RATIO * inputs.work_s - inputs.rules.period_s
    outlook = _outlook(inputs, options, time_s)
    if outlook is None:
        return None
    may_pause = options.idle_power_w is not None and options.max_pause_s >= MIN_MAX_PAUSE_S
    rules = SlackRules(
        idle_power_w=options.idle_power_w if may_pause else None,
        ordered_s=outlook.timed_s if np.isfinite(outlook.timed_s) else None,
        known_s=known_ahead_s(_joined(inputs.history, inputs.forecast), inputs.now_s),
        rms_errors=options.rms_errors,
    )
    is_paused = options.paused_for_s is not None
    plan = plan_with_slack(inputs.profile, outlook, inputs.left_iterations, rules, is_paused=is_paused)
    if plan.use in {"late", "uncertain"} or not plan.schedule.uses_slack:
        return None
    period_s = inputs.rules.period_s
    least = inputs.left_iterations - inputs.profile.fastest.iterations_per_s * max(time_s - period_s, 0.0)
    least_per_s = max(least, 0.0) / period_s
    pauses = pause_cycle_for(
        plan.hull,
        plan.rate_per_s,
        PauseRules(max_pause_s=options.max_pause_s),
        period_s=period_s,
        paused_for_s=options.paused_for_s,
        minimum_per_s=least_per_s,
    )
    if pauses is not None:
        return _paused(pauses, plan, outlook, inputs, options)
    cycle = duty_cycle_for(plan.hull, plan.rate_per_s, inputs.rules, inputs.current, minimum_per_s=least_per_s)
    reason, detail = "deadline_signal", _detail(outlook, inputs)
    if plan.use == "slow":
        reason, detail = "slow_in_bad_hours", f"slower than the energy-minimal limit until better hours; {detail}"
    return SlackChoice(cycle=cycle, pause=None, reason=reason, detail=detail, ahead=partial(plan.ahead, outlook))


def _outlook(inputs: SlackInputs, options: SlackOptions, time_s: float) -> SignalOutlook | None:
    """Return the expected signal for the time that the rest may take [s].

    None where there is no time to spare, or no signal to rely on.
    """
    is_late = inputs.required.is_infeasible or time_s <= max(inputs.work_s, inputs.rules.period_s)
    if is_late or (options.paused_for_s is None and _is_estimated(inputs.history, inputs.now_s)):
        return None
    period_s = inputs.rules.period_s
    outlook = build_outlook(inputs.history, inputs.forecast, now_s=inputs.now_s, period_s=period_s, horizon_s=time_s)
    return None if outlook is None or outlook.is_flat else coarsened(outlook, now_s=inputs.now_s)


def _paused(
    pauses: PauseCycle, plan: SlackPlan, outlook: SignalOutlook, inputs: SlackInputs, options: SlackOptions
) -> SlackChoice:
    """Return the choice for a period in which the run waits, if only because it has waited for so short a time."""
    cycle, now_s, detail = DutyCycle(first=pauses.running), inputs.now_s, _detail(outlook, inputs)
    ahead = partial(plan.ahead, outlook)
    if pauses.pause_s <= 0:
        return SlackChoice(cycle=cycle, pause=None, reason="deadline_signal", detail=detail, ahead=ahead)
    from_s = now_s if pauses.begins_paused else now_s + pauses.period_s - pauses.pause_s
    until_s = from_s + pauses.pause_s
    ends_s = until_s
    if from_s == now_s and until_s >= now_s + pauses.period_s:
        left_s = options.max_pause_s - (options.paused_for_s or 0.0)
        ends_s = min(max(now_s + _pause_s(plan, outlook), until_s), from_s + left_s)
    pause = PlannedPause(from_s=from_s, until_s=until_s, ends_s=ends_s)
    return SlackChoice(cycle=cycle, pause=pause, reason="paused_in_bad_hours", detail=detail, ahead=ahead)


def _pause_s(plan: SlackPlan, outlook: SignalOutlook) -> float:
    """Return after how long the schedule has the run iterate at last [s]: a pause for a part of an hour comes first."""
    wait_s, rates_per_s = 0.0, plan.schedule.rates_per_s
    running_per_s = plan.hull.points[1].iterations_per_s
    for rate_per_s, duration_s in zip(rates_per_s.tolist(), outlook.durations_s.tolist(), strict=False):
        if rate_per_s >= running_per_s * (1 - SAME_RATE_RATIO):
            break
        wait_s += duration_s * (1 - rate_per_s / running_per_s)
        if rate_per_s > 0:
            break
    return wait_s


def _detail(outlook: SignalOutlook, inputs: SlackInputs) -> str:
    """Return the numbers of the plan in words."""
    later_s, later = outlook.durations_s[1:], outlook.values[1:]
    mean = float(later @ later_s / later_s.sum())
    unit = inputs.history.unit if inputs.history is not None else ""
    return (
        f"{outlook.values[0]:.4g} {unit} now, {later.min():.4g} to {later.max():.4g} later, {mean:.4g} on average;"
        f" {duration_text(inputs.work_s)} of work at full speed are left,"
        f" and {duration_text(inputs.required.horizon_s)} until the deadline"
    )


def _is_estimated(history: Signal | None, now_s: float) -> bool:
    """Return whether the present value is missing, or an estimate: held, forecast, or to be revised."""
    if history is None or history.value_at(now_s) is None:
        return True
    return bool(history.estimated[int(np.searchsorted(history.starts_s, now_s, side="right")) - 1])


def _joined(history: Signal | None, forecast: Signal | None) -> Signal | None:
    """Return what is known and what is expected as one signal."""
    if history is None or forecast is None or (history.kind, history.unit) != (forecast.kind, forecast.unit):
        return history
    return history.joined(replace(forecast, zone=history.zone))
