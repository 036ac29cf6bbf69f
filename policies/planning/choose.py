"""Chooses the power limit: objective and progress to a required rate, dispatch, limits, and hysteresis."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, assert_never

import numpy as np

from policies.planning.dispatch import Dispatch, MeritOrder
from policies.planning.duty_cycle import DutyCycle, duty_cycle_for
from policies.planning.eta_costs import eta_costs
from policies.planning.objectives import (
    BudgetObjective,
    CurrentLimit,
    DeadlineObjective,
    Decision,
    EtaObjective,
    Objective,
    PlannedPause,
    Progress,
    RatesAhead,
    SlackOptions,
    SlowdownObjective,
    SwitchingRules,
)
from policies.planning.required_rate import RequiredRate, rate_for_budget, rate_for_deadline, rate_for_slowdown
from policies.planning.signal_outlook import SignalOutlook, build_outlook, flat_outlook, value_now
from policies.planning.slack.deadline import SlackChoice, SlackInputs, choose_with_slack
from policies.vocabulary.power_curve import Hull, lower_hull
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S

STATIC_VALUE: Final = 1.0
"""The value of the signal without one: plain energy."""
ROUNDING_RATIO: Final = 1e-9
"""Rates closer than this, as a share, are equal."""

RateObjective = SlowdownObjective | DeadlineObjective | BudgetObjective
"""The objectives that come down to a required mean rate."""


class _HeldLimit(NamedTuple):
    """The current limit, if it may stay, and the share of its cost that the change would save."""

    point: ProfilePoint
    gain_ratio: float


class _Schedule(NamedTuple):
    """Schedules of the whole outlook, or of parts of it, of which the present period has the mean."""

    parts: tuple[tuple[MeritOrder, Dispatch], ...]

    @property
    def rate_per_s(self) -> float:
        """Return the mean rate of the present period [1/s]."""
        return sum(dispatch.rate_per_s for _, dispatch in self.parts) / len(self.parts)

    def ahead(self) -> RatesAhead:
        """Return the rates of all of it; where parts overlap, their mean."""
        (merit_order, dispatch), *others = self.parts
        rates_per_s = merit_order.rates_per_s(dispatch)
        for other, part in others:
            n = len(part.dispatched_per_s)
            rates_per_s[:n] = (rates_per_s[:n] + other.rates_per_s(part)) / 2
        outlook = merit_order.outlook
        hulls = [merit_order.hull] * len(rates_per_s)
        return RatesAhead(
            durations_s=outlook.durations_s,
            values=outlook.values,
            rates_per_s=rates_per_s,
            hulls=hulls,
            timed_s=outlook.timed_s,
        )

    def avoided_cost(self, surplus_per_s: float) -> float:
        """Return the later cost that a surplus rate in the present period avoids [the signal's unit times W]."""
        avoided = (merit_order.avoided_cost(dispatch, surplus_per_s) for merit_order, dispatch in self.parts)
        return sum(avoided) / len(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanInputs:
    """The arguments of `choose_power_limit`, with the value of the signal now."""

    profile: PowerProfile
    rules: SwitchingRules
    history: Signal | None
    forecast: Signal | None
    now_s: float
    progress: Progress
    current: CurrentLimit | None
    slack: SlackOptions | None
    value: float | None

    def outlook(self, horizon_s: float, *, fallback: float) -> SignalOutlook:
        """Return the outlook on the signal, or on a constant one if it is unknown."""
        period_s = self.rules.period_s
        outlook = build_outlook(self.history, self.forecast, now_s=self.now_s, period_s=period_s, horizon_s=horizon_s)
        return outlook or flat_outlook(fallback, horizon_s, period_s=period_s)

    @property
    def usual_value(self) -> float:
        """Return the signal now, else its mean so far; without a signal the value of plain energy."""
        if self.value is not None or self.history is None:
            return STATIC_VALUE if self.value is None else self.value
        mean = self.history.mean(-np.inf, self.now_s)
        return STATIC_VALUE if mean is None else mean


def choose_power_limit(
    *,
    profile: PowerProfile,
    objective: Objective,
    rules: SwitchingRules,
    history: Signal | None,
    forecast: Signal | None,
    now_s: float,
    progress: Progress,
    current: CurrentLimit | None,
    slack: SlackOptions | None = None,
) -> Decision:
    """Return the power limit that a job should have now, one of the profile's, with its reason.

    Args:
        profile: power and rate of the job at each limit, on a fine grid (`policies.vocabulary.power_curve.fit_curve`);
            the highest limit is the reference.
        objective: the objective.
        rules: the planning period, and the hysteresis.
        history: the signal up to now, and as far ahead as it is known, or None.
        forecast: the signal from now on, or from a later time on, or None.
        now_s: Unix time [s].
        progress: the run so far.
        current: the limit that is requested now; None in the first plan of a run.
        slack: how a run with a deadline may use time to spare; None: not below the energy-minimal limit.
    """
    inputs = _PlanInputs(
        profile=profile,
        rules=rules,
        history=history,
        forecast=forecast,
        now_s=now_s,
        progress=progress,
        current=current,
        slack=slack,
        value=value_now(history, forecast, now_s),
    )
    return _by_eta(inputs, objective) if isinstance(objective, EtaObjective) else _by_rate(inputs, objective)


def _by_eta(inputs: _PlanInputs, objective: EtaObjective) -> Decision:
    """Return the limit with the least cost by eta, or the current one if a change is not worth it yet."""
    started_at_s = inputs.progress.started_at_s
    by_eta = eta_costs(
        inputs.profile, objective, inputs.value, inputs.history, now_s=inputs.now_s, started_at_s=started_at_s
    )
    chosen = by_eta.candidates.points[int(np.argmin(by_eta.costs))]
    point = None if inputs.current is None else by_eta.candidates.point_at(inputs.current.power_limit_w)
    held = None
    if point is not None:
        cost = float(by_eta.costs[by_eta.candidates.points.index(point)])
        held = _HeldLimit(point, (cost - float(by_eta.costs.min())) / (abs(cost) or 1.0))
    return _decision(inputs, DutyCycle(first=chosen), held, by_eta.reason, by_eta.detail)


def _by_rate(inputs: _PlanInputs, objective: RateObjective) -> Decision:
    """Return the limits for the rate that the cheapest schedule has now."""
    hull = lower_hull(inputs.profile)
    name = type(objective).__name__.removesuffix("Objective").lower()
    required, merit_order = _required_rate(inputs, objective, hull)
    if required is None and inputs.progress.left_iterations is not None:
        detail = "the cost of the run so far is unknown, so its budget cannot be planned"
        return _decision(inputs, DutyCycle(first=hull.fastest), None, "cost_unknown", detail)
    if required is None or merit_order is None:
        chosen = hull.most_efficient if isinstance(objective, BudgetObjective) else hull.fastest
        detail = f"the number of remaining iterations is unknown, so the {name} cannot be planned"
        return _decision(inputs, DutyCycle(first=chosen), None, "length_unknown", detail)
    if isinstance(objective, DeadlineObjective) and (choice := _slack_choice(inputs, required)) is not None:
        return _decision(inputs, choice.cycle, None, choice.reason, choice.detail, choice.pause, choice.ahead)
    schedule = _schedule(merit_order, required.mean_per_s, inputs.progress.expected_left_iterations)
    lowest_per_s, highest_per_s = required.wanted_per_s
    if inputs.value is not None and inputs.value < 0:  # who earns by running fast now has time to spend it later
        required = replace(required, maximum_now_per_s=math.inf)
        highest_per_s = math.inf
    rate_per_s = min(max(schedule.rate_per_s, lowest_per_s), highest_per_s)
    rate_per_s = min(max(rate_per_s, hull.most_efficient.iterations_per_s), hull.fastest.iterations_per_s)
    rules = replace(inputs.rules, period_s=min(inputs.rules.period_s, required.horizon_s))
    cycle = duty_cycle_for(
        hull,
        rate_per_s,
        rules,
        inputs.current,
        minimum_per_s=required.minimum_now_per_s,
        maximum_per_s=required.maximum_now_per_s,
        pace_per_s=required.pace_per_s,
    )
    held, detail = None, _detail(hull, required, rate_per_s)
    if required.is_infeasible:
        reason = "over_budget" if isinstance(objective, BudgetObjective) else "behind_schedule"
    elif required.catch_up_per_s > schedule.rate_per_s * (1 + ROUNDING_RATIO):
        reason = "behind_schedule"
    else:
        reason = f"{name}_{'static' if merit_order.outlook.is_flat else 'signal'}"
        held = _held_limit(inputs, schedule, (rate_per_s, required.maximum_now_per_s))
    return _decision(inputs, cycle, held, reason, detail, ahead=schedule.ahead)


def _slack_choice(inputs: _PlanInputs, required: RequiredRate) -> SlackChoice | None:
    """Return what time to spare is used for now; None where it is not."""
    left = inputs.progress.left_iterations
    if inputs.slack is None or left is None:
        return None
    slack = SlackInputs(
        profile=inputs.profile,
        rules=inputs.rules,
        history=inputs.history,
        forecast=inputs.forecast,
        now_s=inputs.now_s,
        current=inputs.current,
        left_iterations=left,
        required=required,
    )
    return choose_with_slack(slack, inputs.slack)


def _required_rate(
    inputs: _PlanInputs, objective: RateObjective, hull: Hull
) -> tuple[RequiredRate | None, MeritOrder | None]:
    """Return the rate that the objective requires, and the merit order over its horizon."""
    progress, period_s = inputs.progress, inputs.rules.period_s
    required: RequiredRate | None
    match objective:
        case SlowdownObjective():
            required = rate_for_slowdown(inputs.profile, objective, progress, period_s=period_s)
        case DeadlineObjective(deadline_s=deadline_s):
            required = rate_for_deadline(hull, deadline_s, progress, now_s=inputs.now_s, period_s=period_s)
        case BudgetObjective(budget=budget):
            left, slowest_per_s = progress.left_iterations, float(hull.iterations_per_s[0])
            # Here the unit counts: without days to look back on, the rest will cost what holds now, or held.
            outlook = inputs.outlook(DAY_S if left is None else left / slowest_per_s, fallback=inputs.usual_value)
            merit_order = MeritOrder(hull, outlook)
            return rate_for_budget(merit_order, budget, progress), merit_order
        case _:
            assert_never(objective)
    if required is None:
        return None, None
    return required, MeritOrder(hull, inputs.outlook(required.horizon_s, fallback=STATIC_VALUE))


def _schedule(merit_order: MeritOrder, required_per_s: float, left_iterations: float | None) -> _Schedule:
    """Return the cheapest schedule, half of it with even days where the outlook goes on at unknown hours.

    A rate lower than even is a bet that later hours will be cleaner. What is known of the hours of the coming days is
    worth it; of the days after, only their level is expected, and levels last. So half of the plan gives each day the
    same work, and chooses within what each hour is expected to have.
    """
    dispatch = merit_order.dispatch(required_per_s, left_iterations=left_iterations)
    timed = merit_order.outlook.timed()
    if timed is None:
        return _Schedule(((merit_order, dispatch),))
    even = MeritOrder(merit_order.hull, timed)
    return _Schedule(((merit_order, dispatch), (even, even.dispatch(required_per_s, cost_at_end=dispatch.cost_at_end))))


def _detail(hull: Hull, required: RequiredRate, rate_per_s: float) -> str:
    """Return the numbers of a plan in words."""
    full_per_s = hull.fastest.iterations_per_s
    mean_per_s = min(required.mean_per_s, full_per_s)
    return (
        f"{100 * rate_per_s / full_per_s:.1f} % of full speed now, {100 * mean_per_s / full_per_s:.1f} % needed on"
        f" average; {required.detail}"
    )


def _held_limit(inputs: _PlanInputs, schedule: _Schedule, rates_per_s: tuple[float, float]) -> _HeldLimit | None:
    """Return the current limit and what a change would save: c·P now, less the later cost that its surplus avoids.

    None if it is slower than planned: the deficit would have to be made up later, where the marginal cost may be many
    times as high (the last watts before the highest limit gain next to nothing). The surplus of a faster limit makes
    later work unnecessary; a run that needs hardly more than the energy-minimal limit has little such work, so that
    staying would cost more than μ says.
    """
    rate_per_s, maximum_per_s = rates_per_s
    point = None if inputs.current is None else inputs.profile.point_at(inputs.current.power_limit_w)
    if point is None or not rate_per_s <= point.iterations_per_s <= maximum_per_s:
        return None
    merit_order, _ = schedule.parts[0]
    hull, value = merit_order.hull, float(merit_order.outlook.values[0])
    planned_w = float(np.interp(rate_per_s, hull.iterations_per_s, hull.power_w))
    avoided = schedule.avoided_cost(point.iterations_per_s - rate_per_s)
    gain = value * (point.power_w - planned_w) - avoided
    return _HeldLimit(point, gain / (abs(value) * point.power_w or 1.0))


def _decision(
    inputs: _PlanInputs,
    cycle: DutyCycle,
    held: _HeldLimit | None,
    reason: str,
    detail: str,
    pause: PlannedPause | None = None,
    ahead: Callable[[], RatesAhead] | None = None,
) -> Decision:
    """Return the decision: the duty cycle, or the current limit if it may stay and a change is not worth it yet."""
    rules, value = inputs.rules, inputs.value
    if value is None and inputs.history is not None and len(inputs.history):
        reason, detail = "signal_stale", f"the signal is stale and not used: {detail}"
    if held is not None and inputs.current is not None and held.point.power_limit_w not in cycle:
        if inputs.now_s - inputs.current.since_s < rules.min_dwell_s:
            cycle, reason = DutyCycle(first=held.point), "kept_dwell"
            detail = f"kept for at least {rules.min_dwell_s:g} s, before {cycle.first.power_limit_w:g} W: {detail}"
        elif held.gain_ratio < rules.min_gain_ratio:
            cycle, reason = DutyCycle(first=held.point), "kept_small_gain"
            gain = f"{cycle.first.power_limit_w:g} W would save less than {rules.min_gain_ratio:.2%}"
            detail = f"kept, as {gain}: {detail}"
    scheduled = cycle.scheduled(inputs.now_s)
    if scheduled is not None:
        detail = f"then {scheduled.power_limit_w:g} W after {cycle.first_s:.0f} s; {detail}"
    return Decision(
        power_limit_w=cycle.first.power_limit_w,
        reason=reason,
        detail=detail,
        power_w=cycle.first.power_w,
        iterations_per_s=cycle.first.iterations_per_s,
        signal_value=value,
        scheduled=scheduled,
        pause=pause,
        ahead=ahead,
    )
