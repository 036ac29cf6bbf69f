"""What a run with slack does now: the cheapest schedule, as far as restarts pay and a forecast can be relied on.

A pause now is a bet that later hours will be cheaper. Where they are forecast, and the forecast is wrong, the work is
done in hours that are dearer still, at a higher rate: a run can lose many times what an hour gains. So the plan is made
once more with every later hour as dear as it may well be, by one root mean square error of forecasts so far ahead.
Below the energy-minimal limit, or paused, a run goes only where that plan does, too. Prices known a day ahead have no
error, and so need no guard.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from policies.planning.objectives import RatesAhead
from policies.planning.signal_outlook import SignalOutlook
from policies.planning.slack.schedule import SAME_COST_RATIO, SlackCurve, SlackSchedule, outlook_until, plan_slack
from policies.vocabulary.power_curve import Hull
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import HOUR_S, Values

N_ERRORS: Final = 1.0
"""By so many root mean square errors a later hour may well be dearer."""
UNKNOWN_FACTOR: Final = 1e3
"""Without known errors a forecast hour counts as dearer than any known one by so many times."""
RESTART_S: Final = 30.0
"""After a pause a run draws its highest power for so long before it iterates: caches and clocks, at worst."""

SlackUse = Literal["paused", "slow", "uncertain", "none", "late"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlackRules:
    """What a run may do with slack, and how far the outlook can be relied on.

    Attributes:
        idle_power_w: what the run draws while it is paused, host power and PUE included as in its curve [W]; None: it
            has not said that it can be paused.
        ordered_s: for how long the values of the outlook stand in the order of time [s]; None: all of them.
        known_s: for how long they are known, as prices of the next day are, and not forecast [s].
        rms_errors: the root mean square errors of forecasts 1, 2, … hours ahead, shape (n_hours,), in the unit of the
            signal; None: not known, so that no forecast is relied on, but only known hours.
        n_errors: how many of them a later hour may be dearer.
        restart_s: how long a run draws its highest power after a pause before it iterates [s].
    """

    idle_power_w: float | None = None
    ordered_s: float | None = None
    known_s: float = 0.0
    rms_errors: Values | None = None
    n_errors: float = N_ERRORS
    restart_s: float = RESTART_S


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlackPlan:
    """What a run does now.

    Attributes:
        rate_per_s: the mean rate of the present period [1/s].
        hull: the hull of which two neighbours are mixed to that rate; it may begin with a pause.
        use: what slack is used for now: `paused`, or `slow` (below the energy-minimal limit), as later hours are
            cheaper; `uncertain`: they are forecast to be, but not surely enough; `none`; or `late`: there is none.
        schedule: the schedule that it is part of, by the expected signal.
        curve: the curve that the schedule is made on.
    """

    rate_per_s: float
    hull: Hull
    use: SlackUse
    schedule: SlackSchedule
    curve: SlackCurve

    def ahead(self, outlook: SignalOutlook) -> RatesAhead:
        """Return the rates of the schedule, up to the end of the run, on the outlook that the plan was made for."""
        ends_s = np.cumsum(outlook.durations_s)
        n = min(int(np.searchsorted(ends_s, self.schedule.ends_s * (1 - SAME_COST_RATIO))) + 1, len(ends_s))
        n = min(n, len(self.schedule.rates_per_s))
        hulls = [self.curve.hull_at(float(value)) for value in outlook.values[: n - 1]]
        return RatesAhead(
            durations_s=outlook.durations_s[:n],
            values=outlook.values[:n],
            rates_per_s=self.schedule.rates_per_s[:n],
            hulls=[*hulls, self.curve.efficient],
            timed_s=outlook.timed_s,
        )


def plan_with_slack(
    profile: PowerProfile, outlook: SignalOutlook, left_iterations: float, rules: SlackRules, *, is_paused: bool = False
) -> SlackPlan:
    """Return what a run does now.

    Args:
        profile: the curve, host power and PUE included.
        outlook: the expected signal from now on, for as long as the run may take.
        left_iterations: its work, above 0.
        rules: what it may do.
        is_paused: whether it is paused now.
    """
    curves = [SlackCurve.of(profile)]
    if rules.idle_power_w is not None:
        curves.append(SlackCurve.of(profile, idle_power_w=rules.idle_power_w))
    curve, expected = _planned(curves, outlook, left_iterations, rules, is_paused=is_paused)
    rate_per_s, hull = expected.rate_per_s, curve.hull_at(float(outlook.values[0]))
    use: SlackUse = "none" if expected.is_feasible else "late"
    if _goes_below(curve, outlook, expected):
        use = "paused" if _is_pause(hull, rate_per_s) else "slow"
        if not _is_agreed(curves, outlook, left_iterations, rules, is_paused=is_paused):
            rate_per_s, hull = max(rate_per_s, curve.energy_minimal.iterations_per_s), curve.efficient
            use = "uncertain"
    return SlackPlan(rate_per_s=rate_per_s, hull=hull, use=use, schedule=expected, curve=curve)


def known_ahead_s(history: Signal | None, now_s: float) -> float:
    """Return for how long, from now on, a signal is known without a gap, and not estimated [s].

    Args:
        history: the signal up to now, and as far ahead as it is known, or None.
        now_s: Unix time [s].
    """
    if history is None or history.value_at(now_s) is None:
        return 0.0
    ahead = history.between(now_s, np.inf)
    unknown = np.isnan(ahead.values) | ahead.estimated
    return float(ahead.starts_s[unknown][0] if unknown.any() else ahead.ends_s) - now_s


def pessimistic_outlook(
    outlook: SignalOutlook, rms_errors: Values, *, known_s: float, n_errors: float = N_ERRORS
) -> SignalOutlook:
    """Return an outlook with every later hour dearer by `n_errors` root mean square errors of its lead.

    Args:
        outlook: the expected signal from now on.
        rms_errors: of forecasts 1, 2, … hours ahead, shape (n_hours,), in the signal's unit; the last holds beyond.
        known_s: for how long, from now on, the values are known and not forecast [s].
        n_errors: how many of them.
    """
    middles_s = np.cumsum(outlook.durations_s) - outlook.durations_s / 2
    is_forecast = middles_s >= known_s
    is_forecast[0] = False  # were the present dearer, too, nothing would be later and cheaper
    errors = np.interp(middles_s / HOUR_S, np.arange(len(rms_errors)) + 0.5, rms_errors)
    values = np.where(is_forecast, outlook.values + n_errors * errors, outlook.values)
    return SignalOutlook(outlook.durations_s, values, outlook.foreseen_s)


def _is_agreed(
    curves: list[SlackCurve],
    outlook: SignalOutlook,
    left_iterations: float,
    rules: SlackRules,
    *,
    is_paused: bool,
) -> bool:
    """Return whether a pessimistic outlook has the run below the energy-minimal limit now, too."""
    if rules.known_s >= float(outlook.durations_s.sum()) * (1 - SAME_COST_RATIO):
        return True
    errors = rules.rms_errors
    if errors is None:
        errors = np.array([UNKNOWN_FACTOR * float(np.abs(outlook.values).max())])
    dearer = pessimistic_outlook(outlook, errors, known_s=rules.known_s, n_errors=rules.n_errors)
    curve, schedule = _planned(curves, dearer, left_iterations, rules, is_paused=is_paused)
    return _goes_below(curve, dearer, schedule)


def _planned(
    curves: list[SlackCurve], outlook: SignalOutlook, left_iterations: float, rules: SlackRules, *, is_paused: bool
) -> tuple[SlackCurve, SlackSchedule]:
    """Return the schedule that is cheapest with its restarts, and the curve that it is made on.

    A pause in force has its restart to come whatever is planned; all restarts take from the time that is left.
    """
    restart_j = rules.restart_s * curves[0].running.fastest.power_w
    plans = [(curve, *_with_restarts(curve, outlook, left_iterations, rules, is_paused=is_paused)) for curve in curves]
    curve, schedule, _ = min(plans, key=lambda plan: (not plan[1].is_feasible, plan[1].cost + restart_j * plan[2]))
    return curve, schedule


def _with_restarts(
    curve: SlackCurve, outlook: SignalOutlook, left_iterations: float, rules: SlackRules, *, is_paused: bool
) -> tuple[SlackSchedule, float]:
    """Return a schedule that leaves time for its restarts, and the sum of the signal's values at those that it adds."""
    whole = plan_slack(curve, outlook, left_iterations, ordered_s=rules.ordered_s, is_paused=is_paused)
    values = _values_at_restarts(curve, whole, outlook, is_paused=is_paused)
    horizon_s = float(outlook.durations_s.sum())
    left_s = horizon_s - rules.restart_s * (len(values) + is_paused)
    if left_s == horizon_s or left_s <= 0:
        return whole, float(values.sum())
    shortened = outlook_until(outlook, left_s, ordered_s=rules.ordered_s)
    schedule = plan_slack(curve, shortened, left_iterations, ordered_s=rules.ordered_s, is_paused=is_paused)
    return schedule, float(values.sum())


def _values_at_restarts(
    curve: SlackCurve, schedule: SlackSchedule, outlook: SignalOutlook, *, is_paused: bool
) -> Values:
    """Return the values of the signal at which a run goes on after pauses that are yet to begin, shape (n_pauses,)."""
    starts_s = np.cumsum(outlook.durations_s) - outlook.durations_s
    waits = [
        _is_pause(curve.hull_at(value), rate_per_s)
        for value, rate_per_s, start_s in zip(
            outlook.values.tolist(), schedule.rates_per_s.tolist(), starts_s.tolist(), strict=True
        )
        if start_s < schedule.ends_s
    ]
    begins = [n for n, (before, after) in enumerate(pairwise([is_paused, *waits])) if after and not before]
    ends = [next((n for n in range(begin, len(waits)) if not waits[n]), len(waits) - 1) for begin in begins]
    return np.asarray(outlook.values[ends], dtype=np.float64)


def _goes_below(curve: SlackCurve, outlook: SignalOutlook, schedule: SlackSchedule) -> bool:
    """Return whether a schedule has the run paused, or below the energy-minimal limit, now."""
    rate_per_s, hull = schedule.rate_per_s, curve.hull_at(float(outlook.values[0]))
    least_per_s = curve.energy_minimal.iterations_per_s * (1 - SAME_COST_RATIO)
    return rate_per_s < least_per_s or _is_pause(hull, rate_per_s)


def _is_pause(hull: Hull, rate_per_s: float) -> bool:
    """Return whether a rate is a pause for at least a part of the time."""
    if not hull.begins_with_pause:
        return False
    return bool(rate_per_s < hull.points[1].iterations_per_s * (1 - SAME_COST_RATIO))
