"""Where slack goes: the cheapest schedule of a run that may go below its energy-minimal limit, pause, or end early.

A run with more time than its work needs may leave work to cheaper hours. Within an hour only the mean rate r matters;
it costs c·P(r), with P(r) the whole lower hull, from the pause or the slowest limit on. So the least Σ c·P is a linear
programme with bounded segments of rate, one for each hour and segment of the hull, at c·dP/dr: the cheapest first until
the work is done, which is exact. Where c is below 0 the whole hull is one segment: of all mixes at a rate that of its
two ends draws, and earns, the most.

After its end a run draws nothing, not even what a pause draws. That is no part of one linear programme, so each hour
that may be the last is tried: in it the segments begin at no rate and no power, and no later hour has any. Whatever a
time budget allows, a larger one allows, too; so the planned cost never rises with the budget.

Values at unknown hours (days beyond the forecast) are each a part of every hour there: an end among them shortens all
of them alike.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.planning.signal_outlook import SignalOutlook
from policies.vocabulary.power_curve import Hull, lower_hull, whole_hull
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.units import HOUR_S, Values

SAME_COST_RATIO: Final = 1e-9
"""Costs closer than this are equal."""
ROUNDING_RATIO: Final = 1e-12
"""Work that differs by less is the same."""
MIN_REST_RATIO: Final = 1e-9
"""A smaller rest of the outlook is rounding."""
MAX_LATE_ENDS: Final = 48
"""So many ends at unknown hours are tried, at most; the step between them is an hour, or twice, four times as long."""
MAX_HULL_POINTS: Final = 32
"""So many points of a hull are scheduled, at most: between them the hull is nearly straight."""
BISECTIONS: Final = 40


@dataclass(frozen=True, slots=True)
class SlackCurve:
    """The hulls of a run with slack.

    Attributes:
        running: from the pause, or the slowest limit, to the fastest: for hours before the last one.
        efficient: from the energy-minimal limit on: for the last hour, after which nothing is drawn.
    """

    running: Hull
    efficient: Hull

    @classmethod
    def of(cls, profile: PowerProfile, *, idle_power_w: float | None = None) -> "SlackCurve":
        """Return the hulls of a curve.

        Args:
            profile: the curve, host power and PUE included.
            idle_power_w: what the run draws while it waits, with the same included [W]; None: it may not pause.
        """
        return cls(whole_hull(profile, idle_power_w=idle_power_w), lower_hull(profile))

    @property
    def energy_minimal(self) -> ProfilePoint:
        """Return the point with the least energy per iteration: slower ones pay only where hours differ in cost."""
        return self.efficient.slowest

    def hull_at(self, value: float) -> Hull:
        """Return the hull whose neighbours are mixed at a value of the signal: below 0 its two ends."""
        return self.running.chord if value < 0 else self.running


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlackSchedule:
    """The cheapest schedule.

    Attributes:
        rates_per_s: the mean rate while each value of the outlook holds, up to the end of the run, shape (n,) [1/s].
        ends_s: when the run ends, from now on: at the latest at the end of the hour in which it does [s].
        cost: what it costs, in the unit of the signal times joules.
        marginal_cost: what its last iteration costs, in the same.
        is_feasible: whether the work fits into the outlook at all; if not, all of it goes at the highest rate.
        uses_slack: whether it pauses, or goes below the energy-minimal limit, in any hour before the last one.
    """

    rates_per_s: Values
    ends_s: float
    cost: float
    marginal_cost: float
    is_feasible: bool
    uses_slack: bool

    @property
    def rate_per_s(self) -> float:
        """Return the mean rate of the present period [1/s]."""
        return float(self.rates_per_s[0])


class _Segments(NamedTuple):
    """The segments of a hull where the signal is not negative and where it is; row 0 and 1.

    Attributes:
        widths_per_s: shape (2, k) [1/s]; 0 where there is none.
        slopes_j: dP/dr, shape (2, k) [J].
    """

    widths_per_s: Values
    slopes_j: Values


class _Ends(NamedTuple):
    """The ends that are tried.

    Attributes:
        running_s: how long each value holds before the last hour, shape (n_ends, n_values) [s].
        ending_s: how long it holds in the last hour, the same.
    """

    running_s: Values
    ending_s: Values


class _MeritOrder(NamedTuple):
    """The segments of all values, those before the last hour and those in it, in order of cost.

    Attributes:
        costs: ascending, shape (n_all,) [unit·J].
        values: the index of the value of each, shape (n_all,).
        is_ending: whether it belongs to the last hour, shape (n_all,).
        is_pause: whether it leads from the pause on, so that a part of it is a pause for a part of the time.
        iterations: for every end that is tried, shape (n_ends, n_all).
    """

    costs: Values
    values: NDArray[np.int_]
    is_ending: NDArray[np.bool_]
    is_pause: NDArray[np.bool_]
    iterations: Values


def plan_slack(
    curve: SlackCurve,
    outlook: SignalOutlook,
    left_iterations: float,
    *,
    ordered_s: float | None = None,
    is_paused: bool = False,
) -> SlackSchedule:
    """Return the cheapest schedule that does the work within the outlook.

    Hours that cost the same share what one of them has too much of; but pauses among them are in one piece, and begin
    with what is in force.

    Args:
        curve: the hulls of the run.
        outlook: the signal from now on, for as long as the run may take.
        left_iterations: the work, above 0.
        ordered_s: for how long the values stand in the order of time [s]; later ones are at unknown hours. None: all.
        is_paused: whether the run is paused now.
    """
    slowest, ends = curve.running.slowest, _feasible(curve, _ends(outlook, ordered_s), left_iterations)
    if not len(ends.running_s):
        return _at_highest_rate(curve, outlook, left_iterations)
    order = _merit_order(curve, outlook.values, ends)
    rest = left_iterations - ends.running_s.sum(axis=1) * slowest.iterations_per_s
    until = np.cumsum(order.iterations, axis=1)
    lasts = [min(int(np.searchsorted(row, left)), len(row) - 1) for row, left in zip(until, rest, strict=True)]
    costs = ends.running_s @ outlook.values * slowest.power_w
    for n, last in enumerate(lasts):  # a product for each end is sooner done, and needs no further large array
        missing = min(max(float(rest[n] - until[n, last]), -order.iterations[n, last]), 0.0)
        costs[n] += order.iterations[n, : last + 1] @ order.costs[: last + 1] + missing * order.costs[last]
    best = int(np.argmin(costs))
    last = lasts[best]
    work = _shared(order, best, float(rest[best]), float(order.costs[last]), is_paused=is_paused)
    return _schedule(curve, outlook.values, order, ends, best, work, float(costs[best]), float(order.costs[last]))


def soonest_within(
    curve: SlackCurve, outlook: SignalOutlook, left_iterations: float, cost: float, *, ordered_s: float | None = None
) -> tuple[float, SlackSchedule]:
    """Return the shortest time in which the work can be planned for a cost, and its schedule [s].

    The planned cost never rises with the time, so bisection finds it; where even the whole outlook costs more, it is
    the whole outlook.

    Args:
        curve: the hulls of the run.
        outlook: the signal from now on, for as long as the run may take.
        left_iterations: the work, above 0.
        cost: what it may cost, in the unit of the signal times joules.
        ordered_s: as in `plan_slack`.
    """
    low_s = left_iterations / curve.running.fastest.iterations_per_s
    high_s = float(outlook.durations_s.sum())
    schedule = plan_slack(curve, outlook, left_iterations, ordered_s=ordered_s)
    if high_s <= low_s or schedule.cost > cost:
        return high_s, schedule
    for _ in range(BISECTIONS):
        middle_s = (low_s + high_s) / 2
        tried = plan_slack(
            curve, outlook_until(outlook, middle_s, ordered_s=ordered_s), left_iterations, ordered_s=ordered_s
        )
        if tried.is_feasible and tried.cost <= cost:
            high_s, schedule = middle_s, tried
        else:
            low_s = middle_s
    return high_s, schedule


def outlook_until(outlook: SignalOutlook, horizon_s: float, *, ordered_s: float | None = None) -> SignalOutlook:
    """Return an outlook that ends earlier: later hours are cut off, and values at unknown hours all last less.

    Args:
        outlook: the signal from now on.
        horizon_s: how far it is to reach [s].
        ordered_s: as in `plan_slack`.
    """
    durations_s, n = outlook.durations_s, _n_ordered(outlook, ordered_s)
    known_s = np.clip(horizon_s - (np.cumsum(durations_s[:n]) - durations_s[:n]), 0.0, durations_s[:n])
    late_s = float(durations_s[n:].sum())
    left_s = max(horizon_s - float(durations_s[:n].sum()), 0.0)
    shortened_s = np.append(known_s, durations_s[n:] * (min(left_s / late_s, 1.0) if late_s > 0 else 0.0))
    kept = shortened_s > 0
    return SignalOutlook(shortened_s[kept], outlook.values[kept], min(outlook.foreseen_s, horizon_s))


def _thinned(hull: Hull) -> tuple[Values, Values]:
    """Return (rates [1/s], powers [W]) of the points of a hull that are scheduled: its ends and turns among them."""
    points = hull.points
    kept = set(np.linspace(0, len(points) - 1, min(len(points), MAX_HULL_POINTS)).round().astype(int).tolist())
    kept |= {min(1, len(points) - 1), points.index(hull.most_efficient)}
    thinned = Hull(tuple(points[n] for n in sorted(kept)))
    return thinned.iterations_per_s, thinned.power_w


def _segments(rates_per_s: Values, powers_w: Values) -> _Segments:
    widths_per_s, slopes_j = np.zeros((2, len(rates_per_s) - 1)), np.zeros((2, len(rates_per_s) - 1))
    if len(rates_per_s) > 1:
        widths_per_s[0], slopes_j[0] = np.diff(rates_per_s), np.diff(powers_w) / np.diff(rates_per_s)
        widths_per_s[1, 0] = rates_per_s[-1] - rates_per_s[0]
        slopes_j[1, 0] = (powers_w[-1] - powers_w[0]) / widths_per_s[1, 0]
    return _Segments(widths_per_s, slopes_j)


def _n_ordered(outlook: SignalOutlook, ordered_s: float | None) -> int:
    """Return how many values stand in the order of time: the present one at least."""
    if ordered_s is None:
        return len(outlook.durations_s)
    until_s = np.cumsum(outlook.durations_s)
    return max(int(np.searchsorted(until_s, ordered_s * (1 + MIN_REST_RATIO), side="right")), 1)


def _ends(outlook: SignalOutlook, ordered_s: float | None) -> _Ends:
    """Return the ends: with each hour in order, then every so often among the values at unknown hours."""
    durations_s, n = outlook.durations_s, _n_ordered(outlook, ordered_s)
    ordered_running_s = np.tril(np.broadcast_to(durations_s, (n, len(durations_s))), -1)
    ordered_ending_s = np.eye(n, len(durations_s)) * durations_s
    late_s = float(durations_s[n:].sum())
    if late_s == 0:
        return _Ends(ordered_running_s, ordered_ending_s)
    step_s = HOUR_S
    while late_s > MAX_LATE_ENDS * step_s:
        step_s *= 2
    edges_s = np.append(np.arange(0.0, late_s * (1 - MIN_REST_RATIO), step_s), late_s)
    parts = np.where(np.arange(len(durations_s)) < n, 0.0, durations_s / late_s)
    before_s = np.where(np.arange(len(durations_s)) < n, durations_s, 0.0)
    return _Ends(
        np.vstack([ordered_running_s, before_s + np.outer(edges_s[:-1], parts)]),
        np.vstack([ordered_ending_s, np.outer(np.diff(edges_s), parts)]),
    )


def _feasible(curve: SlackCurve, ends: _Ends, left_iterations: float) -> _Ends:
    """Return the ends with which the work can be done: neither too soon nor, at the slowest, too late."""
    before_s, lasts_s = ends.running_s.sum(axis=1), ends.ending_s.sum(axis=1)
    least = before_s * curve.running.slowest.iterations_per_s
    most = (before_s + lasts_s) * curve.running.fastest.iterations_per_s
    is_feasible = (least <= left_iterations) & (left_iterations <= most + ROUNDING_RATIO * left_iterations)
    return _Ends(ends.running_s[is_feasible], ends.ending_s[is_feasible])


def _merit_order(curve: SlackCurve, values: Values, ends: _Ends) -> _MeritOrder:
    """Return all segments in order of cost; the costs are the same for every end, the iterations are not."""
    running = _segments(*_thinned(curve.running))
    ending = _segments(*(np.append(0.0, each) for each in _thinned(curve.efficient)))
    row, costs, iterations = (values < 0).astype(np.int_), [], []
    for segments, durations_s in ((running, ends.running_s), (ending, ends.ending_s)):
        costs.append((values[:, None] * segments.slopes_j[row]).ravel())
        iterations.append((durations_s[:, :, None] * segments.widths_per_s[row]).reshape(len(durations_s), -1))
    all_costs = np.concatenate(costs)
    order = np.argsort(all_costs, kind="stable")
    counts = running.widths_per_s.shape[1], ending.widths_per_s.shape[1]
    owners = np.concatenate([np.repeat(np.arange(len(values)), count) for count in counts])
    is_ending = np.repeat([False, True], [len(part) for part in costs])
    is_first = np.concatenate([np.tile(np.arange(count), len(values)) == 0 for count in counts])
    is_pause = is_first & ~is_ending & curve.running.begins_with_pause
    return _MeritOrder(
        all_costs[order], owners[order], is_ending[order], is_pause[order], np.concatenate(iterations, axis=1)[:, order]
    )


def _shared(order: _MeritOrder, best: int, rest_iterations: float, marginal_cost: float, *, is_paused: bool) -> Values:
    """Return the iterations of each segment for one end, shape (n_all,); those as costly as the last share equally.

    Of pauses as costly as the last the run takes some hours whole: the first to come if it is paused, else the last.
    """
    iterations, margin = order.iterations[best], SAME_COST_RATIO * abs(marginal_cost)
    cheaper, same = order.costs < marginal_cost - margin, np.abs(order.costs - marginal_cost) <= margin
    missing, among = rest_iterations - float(iterations[cheaper].sum()), float(iterations[same].sum())
    work = iterations * (cheaper + (min(max(missing / among, 0.0), 1.0) if among > 0 else 0.0) * same)
    pauses = np.flatnonzero(same & order.is_pause)
    pauses = pauses[np.argsort(order.values[pauses], kind="stable")]
    pauses = pauses[::-1] if is_paused else pauses
    before = np.cumsum(iterations[pauses]) - iterations[pauses]
    work[pauses] = np.clip(float(work[pauses].sum()) - before, 0.0, iterations[pauses])
    return np.asarray(work, dtype=np.float64)


def _schedule(
    curve: SlackCurve,
    values: Values,
    order: _MeritOrder,
    ends: _Ends,
    best: int,
    work: Values,
    cost: float,
    marginal_cost: float,
) -> SlackSchedule:
    """Return the schedule of one end; in its last hour a run is as fast as is cheapest, and then over."""
    running_s, ending_s = ends.running_s[best], ends.ending_s[best]
    ran, last = (
        np.bincount(order.values[part], weights=work[part], minlength=len(values))
        for part in (~order.is_ending, order.is_ending)
    )
    slowest_per_s, least_per_s = curve.running.slowest.iterations_per_s, curve.energy_minimal.iterations_per_s
    before_per_s = slowest_per_s + np.divide(ran, running_s, out=np.zeros(len(values)), where=running_s > 0)
    last_per_s = np.divide(last, ending_s, out=np.zeros(len(values)), where=ending_s > 0)
    last_per_s = np.where(values < 0, curve.running.fastest.iterations_per_s, np.maximum(last_per_s, least_per_s))
    took_s = last / last_per_s
    lasted_s = running_s + took_s
    mean_per_s = (before_per_s * running_s + last) / np.where(lasted_s > 0, lasted_s, 1.0)
    is_before = running_s > 0
    return SlackSchedule(
        rates_per_s=np.where(lasted_s > 0, mean_per_s, 0.0),
        ends_s=float(lasted_s.sum()),
        cost=cost,
        marginal_cost=marginal_cost,
        is_feasible=True,
        uses_slack=bool((before_per_s[is_before] < least_per_s * (1 - SAME_COST_RATIO)).any()),
    )


def _at_highest_rate(curve: SlackCurve, outlook: SignalOutlook, left_iterations: float) -> SlackSchedule:
    """Return the schedule of a run that cannot be done in time; beyond the outlook its last value holds."""
    fastest, durations_s = curve.running.fastest, outlook.durations_s
    late_s = max(left_iterations / fastest.iterations_per_s - float(durations_s.sum()), 0.0)
    return SlackSchedule(
        rates_per_s=np.full(len(durations_s), fastest.iterations_per_s),
        ends_s=float(durations_s.sum()) + late_s,
        cost=fastest.power_w * float(durations_s @ outlook.values + late_s * outlook.values[-1]),
        marginal_cost=np.inf,
        is_feasible=False,
        uses_slack=False,
    )
