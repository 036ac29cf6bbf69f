"""The decision: objective and progress to a need, need and outlook to a rate, rate to limits, with hysteresis."""

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
    Progress,
    SlowdownObjective,
    SwitchingRules,
)
from policies.planning.required_rate import RequiredRate, rate_for_budget, rate_for_deadline, rate_for_slowdown
from policies.planning.signal_outlook import DAY_S, SignalOutlook, build_outlook, flat_outlook, value_now
from policies.vocabulary.power_curve import Hull, lower_hull
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.signal import Signal

STATIC_VALUE: Final = 1.0
"""The signal where there is none: plain energy."""
SAME_RATE: Final = 1e-9
"""Rates closer than this, as a share, are one."""


class _Kept(NamedTuple):
    """The limit in force, where it may stay, and what share of the cost a change would save."""

    point: ProfilePoint
    gain_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The arguments of a decision."""

    profile: PowerProfile
    rules: SwitchingRules
    history: Signal | None
    forecast: Signal | None
    now_s: float
    progress: Progress
    present: CurrentLimit | None
    value: float | None

    def outlook(self, horizon_s: float) -> SignalOutlook | None:
        return build_outlook(
            self.history, self.forecast, now_s=self.now_s, period_s=self.rules.period_s, horizon_s=horizon_s
        )


def choose_power_limit(
    *,
    profile: PowerProfile,
    objective: Objective,
    rules: SwitchingRules,
    history: Signal | None,
    forecast: Signal | None,
    now_s: float,
    progress: Progress,
    present: CurrentLimit | None,
) -> Decision:
    """Return the power limit that a job should have now, one of the profile's, with its reason.

    Args:
        profile: what the job draws and how fast it is at each limit, on a fine grid
            (`policies.vocabulary.power_curve.fit_curve`); the
            highest is the reference.
        objective: what is asked for.
        rules: the period of planning, and the hysteresis.
        history: the signal up to now, and as far ahead as it is known, or None.
        forecast: the signal from now on, or from there on, or None.
        now_s: Unix time [s].
        progress: the run so far.
        present: the limit that is asked for now; None in the first plan of a run.
    """
    value = value_now(history, forecast, now_s)
    question = _Question(
        profile=profile,
        rules=rules,
        history=history,
        forecast=forecast,
        now_s=now_s,
        progress=progress,
        present=present,
        value=value,
    )
    if isinstance(objective, EtaObjective):
        return _by_weight(question, objective)
    return _by_need(question, objective)


def _by_weight(question: _Question, objective: EtaObjective) -> Decision:
    """Return the limit with the least cost by eta, or the present one where a change is not worth it yet."""
    weighed = eta_costs(
        question.profile,
        objective,
        question.value,
        question.history,
        now_s=question.now_s,
        started_at_s=question.progress.started_at_s,
    )
    chosen = weighed.allowed.points[int(np.argmin(weighed.costs))]
    point = None if question.present is None else weighed.allowed.point_at(question.present.power_limit_w)
    kept = None
    if point is not None:
        cost = float(weighed.costs[weighed.allowed.points.index(point)])
        kept = _Kept(point, (cost - float(weighed.costs.min())) / (abs(cost) or 1.0))
    return _decided(question, DutyCycle(first=chosen), kept, weighed.reason, weighed.detail)


def _by_need(question: _Question, objective: SlowdownObjective | DeadlineObjective | BudgetObjective) -> Decision:
    """Return the limits for the rate that the cheapest way to what is needed has now."""
    hull = lower_hull(question.profile)
    name = type(objective).__name__.removesuffix("Objective").lower()
    need, market = _need(question, objective, hull)
    if need is None and question.progress.left_iterations is not None:
        detail = "what the run has cost so far is not known, so there is no plan for the budget"
        return _decided(question, DutyCycle(first=hull.fastest), None, "cost_unknown", detail)
    if need is None or market is None:
        chosen = hull.thriftiest if isinstance(objective, BudgetObjective) else hull.fastest
        detail = f"how many iterations are left is not known, so there is no plan for the {name}"
        return _decided(question, DutyCycle(first=chosen), None, "length_unknown", detail)
    purchase = market.buy(need.mean_per_s, left_iterations=question.progress.left_iterations)
    rate_per_s = min(max(purchase.rate_per_s, need.at_least_per_s), hull.fastest.iterations_per_s)
    is_short = rate_per_s > purchase.rate_per_s * (1 + SAME_RATE)
    rules = replace(question.rules, period_s=min(question.rules.period_s, need.horizon_s))
    mix = duty_cycle_for(hull, rate_per_s, rules, question.present, at_least_per_s=need.at_least_per_s)
    value = float(market.outlook.values[0])
    kept, detail = None, _detail(hull, need, purchase, rate_per_s, value)
    if need.is_beyond:
        reason = "over_budget" if isinstance(objective, BudgetObjective) else "behind_schedule"
    elif is_short:
        reason = "behind_schedule"
    else:
        reason = f"{name}_{'static' if market.outlook.is_flat else 'signal'}"
        kept = _keepable(question, market, purchase, rate_per_s)
    return _decided(question, mix, kept, reason, detail)


def _need(
    question: _Question, objective: SlowdownObjective | DeadlineObjective | BudgetObjective, hull: Hull
) -> tuple[RequiredRate | None, MeritOrder | None]:
    """Return what the objective asks for, and the work that there is to buy for as long as that reaches."""
    progress, period_s = question.progress, question.rules.period_s
    need: RequiredRate | None
    match objective:
        case SlowdownObjective():
            need = rate_for_slowdown(question.profile, objective, progress, period_s=period_s)
        case DeadlineObjective(deadline_s=deadline_s):
            need = rate_for_deadline(hull, deadline_s, progress, now_s=question.now_s, period_s=period_s)
        case BudgetObjective(budget=budget):
            left, slowest_per_s = progress.left_iterations, float(hull.iterations_per_s[0])
            horizon_s = DAY_S if left is None else left / slowest_per_s
            # Here the unit counts: without days to look back on, what holds now, or held, is what the rest will cost.
            outlook = question.outlook(horizon_s)
            market = MeritOrder(hull, outlook or flat_outlook(_usual_value(question), horizon_s, period_s=period_s))
            return rate_for_budget(market, budget, progress), market
        case _:
            assert_never(objective)
    if need is None:
        return None, None
    outlook = question.outlook(need.horizon_s)
    return need, MeritOrder(hull, outlook or flat_outlook(STATIC_VALUE, need.horizon_s, period_s=period_s))


def _usual_value(question: _Question) -> float:
    """Return the signal now, else its mean so far; that of plain energy where there is none."""
    if question.value is not None or question.history is None:
        return STATIC_VALUE if question.value is None else question.value
    mean = question.history.mean(-np.inf, question.now_s)
    return STATIC_VALUE if mean is None else mean


def _detail(hull: Hull, need: RequiredRate, purchase: Dispatch, rate_per_s: float, value: float) -> str:
    """Return the numbers that were used, for people: the price of time says how much a second is worth in watts."""
    power_w = float(np.interp(rate_per_s, hull.iterations_per_s, hull.power_w))
    weight = "power costs nothing now"
    if value > 0:
        weight = f"time weighs like {purchase.work_price * rate_per_s / value - power_w:.0f} W"
    return (
        f"{rate_per_s:.4g} iterations/s now, for {min(need.mean_per_s, hull.fastest.iterations_per_s):.4g} on average; "
        f"{weight}; {need.detail}"
    )


def _keepable(question: _Question, market: MeritOrder, purchase: Dispatch, rate_per_s: float) -> _Kept | None:
    """Return the limit in force, and what a change to the planned rate would save: c·P now, less what is saved later.

    None where it is slower than planned: what is missing then has to be made up for later, where the price of work may
    be many times as high (the last watts before the highest limit buy next to nothing). What a faster one does too much
    need not be done later; a run that needs hardly more than the energy-minimal limit has little to leave out, so that
    staying would cost more than μ says.
    """
    point = None if question.present is None else question.profile.point_at(question.present.power_limit_w)
    if point is None or point.iterations_per_s < rate_per_s:
        return None
    value = float(market.outlook.values[0])
    planned_w = float(np.interp(rate_per_s, market.hull.iterations_per_s, market.hull.power_w))
    gain = value * (point.power_w - planned_w) - market.resale(purchase, point.iterations_per_s - rate_per_s)
    return _Kept(point, gain / (abs(value) * point.power_w or 1.0))


def _decided(question: _Question, mix: DutyCycle, kept: _Kept | None, reason: str, detail: str) -> Decision:
    """Return the decision: the mix, or the present limit where that may stay and a change is not worth it yet."""
    rules, value = question.rules, question.value
    if value is None and question.history is not None and len(question.history):
        reason, detail = "signal_stale", f"the signal is stale, so the plan is the one without: {detail}"
    if kept is not None and question.present is not None and kept.point.power_limit_w not in mix:
        wanted = f"wanted is {mix.first.power_limit_w:g} W, which saves {kept.gain_ratio:.2%}: {detail}"
        if question.now_s - question.present.since_s < rules.min_dwell_s:
            mix, reason = DutyCycle(first=kept.point), "kept_dwell"
            detail = f"stands for less than {rules.min_dwell_s:g} s; {wanted}"
        elif kept.gain_ratio < rules.min_gain_ratio:
            mix, reason = DutyCycle(first=kept.point), "kept_small_gain"
            detail = f"less than {rules.min_gain_ratio:.2%} to gain; {wanted}"
    later = mix.later(question.now_s)
    if later is not None:
        detail = f"then {later.power_limit_w:g} W, after {mix.first_s:.0f} s; {detail}"
    return Decision(
        power_limit_w=mix.first.power_limit_w,
        reason=reason,
        detail=detail,
        power_w=mix.first.power_w,
        iterations_per_s=mix.first.iterations_per_s,
        signal_value=value,
        later=later,
    )
