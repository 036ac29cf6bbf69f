"""Merit-order dispatch: the least Σ c·P for a mean rate over an outlook of the signal.

At a time when the signal is c, one more iteration along a segment of the hull costs c·dP/dr. The optimum takes the
segments of all times from the cheapest on, as a power system dispatches its plants in merit order, until the mean rate
is reached (a linear programme with one constraint, for which the greedy order is exact). The cost of the last one is μ,
the marginal cost of an iteration. It is the other face of a price of time λ: at the limit that minimises (c·P + λ)/r,
λ = μ·r - c·P (Chase's eq. 6 has such a λ, fixed by η; here it follows from the required rate). Nothing below the
energy-minimal limit is ever dispatched, since the hull begins there. Work is also dispatched early, beyond the required
rate, where it is cheaper than at the end of the run, which it brings forward.

μ prices a small change of work. A limit that stays too fast for a whole period may do more work than was dispatched for
later at μ; so its surplus is priced by the work that it really makes unnecessary (`avoided_cost`).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from policies.planning.signal_outlook import SignalOutlook
from policies.vocabulary.power_curve import Hull
from policies.vocabulary.units import DAY_S, Values

MAX_KNOWN_END_S: Final = 3 * DAY_S
"""For an end farther away the hour of the day is not known, and the mean of the signal is used."""
SAME_COST_RATIO: Final = 1e-9
"""Costs closer than this are equal: where the signal does not vary, no hour is cheaper."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dispatch:
    """The rate for now, and the schedule that it is part of.

    Attributes:
        rate_per_s: the mean rate of the present period [1/s].
        marginal_cost: μ, the cost of one more iteration, in the unit of the signal times joules.
        mean_power_cost: the mean of c·P over the outlook, in the unit of the signal times watts.
        mean_rate_per_s: the mean rate over the outlook [1/s].
        cost_at_end: the cost of an iteration at the end of the run, in the unit of the signal times joules.
        dispatched_per_s: what is dispatched of each segment at each value, shape (n_values, n_segments) [1/s].
    """

    rate_per_s: float
    marginal_cost: float
    mean_power_cost: float
    mean_rate_per_s: float
    cost_at_end: float
    dispatched_per_s: Values


class MeritOrder:
    """All segments of the hull at all values of an outlook, sorted by cost; built once for any required rate."""

    def __init__(self, hull: Hull, outlook: SignalOutlook) -> None:
        self.hull = hull
        self.outlook = outlook
        self._weights = outlook.durations_s / outlook.durations_s.sum()
        self._costs = _segment_costs(hull, outlook.values)
        self._amounts = np.outer(self._weights, np.diff(hull.iterations_per_s))
        self._order = np.argsort(self._costs, axis=None)
        self._sorted_costs = self._costs.ravel()[self._order]
        self._amounts_until = np.cumsum(self._amounts.ravel()[self._order])

    def dispatch(
        self, required_per_s: float, *, left_iterations: float | None = None, cost_at_end: float | None = None
    ) -> Dispatch:
        """Return the cheapest schedule with a mean rate of at least `required_per_s`, or of all that the hull has.

        Args:
            required_per_s: the mean rate [1/s].
            left_iterations: the remaining iterations of the run, if known.
            cost_at_end: the cost of an iteration at its end, where the outlook does not reach that; else None.
        """
        if cost_at_end is None:
            cost_at_end = self._cost_at_end(left_iterations)
        slowest_per_s, slowest_cost = self._slowest
        if not len(self._sorted_costs):
            return Dispatch(
                rate_per_s=slowest_per_s,
                marginal_cost=cost_at_end,
                mean_power_cost=slowest_cost,
                mean_rate_per_s=slowest_per_s,
                cost_at_end=cost_at_end,
                dispatched_per_s=self._amounts,
            )
        shares, marginal_cost = self._shares(required_per_s - slowest_per_s, at_least=cost_at_end)
        dispatched = self._amounts * shares
        return Dispatch(
            rate_per_s=slowest_per_s + float(dispatched[0].sum() / self._weights[0]),
            marginal_cost=marginal_cost,
            mean_power_cost=slowest_cost + float((dispatched * self._costs).sum()),
            mean_rate_per_s=slowest_per_s + float(dispatched.sum()),
            cost_at_end=cost_at_end,
            dispatched_per_s=dispatched,
        )

    def rates_per_s(self, dispatch: Dispatch) -> Values:
        """Return the mean rate while each value of the outlook holds, shape (n_values,) [1/s]."""
        slowest_per_s, _ = self._slowest
        return np.asarray(slowest_per_s + dispatch.dispatched_per_s.sum(axis=1) / self._weights)

    def avoided_cost(self, dispatch: Dispatch, surplus_per_s: float) -> float:
        """Return the later cost that a surplus rate in the present period avoids [the signal's unit times W].

        Of the work dispatched for later, the most expensive becomes unnecessary; beyond that, the run ends sooner.

        Args:
            dispatch: the schedule.
            surplus_per_s: by how much the present period is faster than dispatched [1/s].
        """
        surplus = surplus_per_s * float(self._weights[0])
        is_avoidable = (self._costs[1:] > dispatch.cost_at_end) & (dispatch.dispatched_per_s[1:] > 0)
        costs, amounts = self._costs[1:][is_avoidable], dispatch.dispatched_per_s[1:][is_avoidable]
        order = np.argsort(-costs)
        amounts_until = np.append(0.0, np.cumsum(amounts[order]))
        avoided_until = np.append(0.0, np.cumsum((costs * amounts)[order]))
        rest = max(surplus - float(amounts_until[-1]), 0.0)
        avoided = float(np.interp(surplus, amounts_until, avoided_until)) + rest * dispatch.cost_at_end
        return avoided / float(self._weights[0])

    def average_cost(self, required_per_s: float) -> float:
        """Return the average cost of an iteration at a mean rate, or above, for a run of unknown length.

        In the unit of the signal times joules.
        """
        slowest_per_s, slowest_cost = self._slowest
        dispatched_per_s, costs = self._totals
        n_cheap = int(np.searchsorted(self._sorted_costs, self._cost_at_end(None)))
        extra_per_s = max(required_per_s - slowest_per_s, float(dispatched_per_s[n_cheap]))
        extra_per_s = min(extra_per_s, float(dispatched_per_s[-1]))
        return (slowest_cost + float(np.interp(extra_per_s, dispatched_per_s, costs))) / (slowest_per_s + extra_per_s)

    @cached_property
    def _totals(self) -> tuple[Values, Values]:
        """Return the cumulative rate [1/s] and cost in merit order, both from 0 on."""
        costs = np.cumsum(self._amounts.ravel()[self._order] * self._sorted_costs)
        return np.append(0.0, self._amounts_until), np.append(0.0, costs)

    @property
    def _slowest(self) -> tuple[float, float]:
        """Return the rate of the slowest point [1/s], and the mean cost of its power."""
        slowest = self.hull.most_efficient
        return slowest.iterations_per_s, self.outlook.mean * slowest.power_w

    def _cost_at_end(self, left_iterations: float | None) -> float:
        """Return the cost of an iteration at the end of the run: what work done early saves there."""
        slowest = self.hull.most_efficient
        return _value_at_end(self.outlook, self.hull, left_iterations) * slowest.power_w / slowest.iterations_per_s

    def _shares(self, required_per_s: float, *, at_least: float) -> tuple[Values, float]:
        """Return the dispatched share of each segment, shape (n_values, n_segments), and the cost of the last one.

        Segments cheaper than `at_least` are dispatched in any case; those as costly as the last one share equally.
        """
        last = int(np.searchsorted(self._amounts_until, required_per_s * (1 - SAME_COST_RATIO)))
        cost = float(self._sorted_costs[min(last, len(self._sorted_costs) - 1)]) if required_per_s > 0 else -np.inf
        if cost < at_least:
            return (self._costs < at_least).astype(np.float64), at_least
        margin = SAME_COST_RATIO * abs(cost)
        cheaper, same = self._costs < cost - margin, np.abs(self._costs - cost) <= margin
        missing = required_per_s - float(self._amounts[cheaper].sum())
        share = min(max(missing / float(self._amounts[same].sum()), 0.0), 1.0)
        return cheaper + share * same, cost


def _segment_costs(hull: Hull, values: Values) -> Values:
    """Return the cost of an iteration in each segment at each value, shape (n_values, n_segments).

    At a value below 0 the steepest segment would be the cheapest, but it cannot be used without those before it; so
    there all segments have the cost of the chord from the slowest to the fastest point.
    """
    slopes_j = hull.marginal_energies_j
    if len(slopes_j) == 0:
        return np.empty((len(values), 0))
    chord_j = (hull.fastest.power_w - hull.most_efficient.power_w) / (
        hull.fastest.iterations_per_s - hull.most_efficient.iterations_per_s
    )
    return np.where(values[:, None] < 0, values[:, None] * chord_j, np.outer(values, slopes_j))


def _value_at_end(outlook: SignalOutlook, hull: Hull, left_iterations: float | None) -> float:
    """Return the signal at the end of the run: for an end some days ahead, its mean.

    For an earlier end the hour matters, and it moves with the decision. If known values or a forecast reach as far, it
    is the least value that the end may have; else only a negative value is a reason to end sooner.
    """
    horizon_s = float(outlook.durations_s.sum())
    if horizon_s > MAX_KNOWN_END_S:
        return outlook.mean
    left = np.inf if left_iterations is None else left_iterations
    latest_s = left / hull.most_efficient.iterations_per_s
    if latest_s > min(outlook.foreseen_s, horizon_s) * (1 + SAME_COST_RATIO):
        return min(0.0, float(outlook.values.min()))
    soonest_s = left / hull.fastest.iterations_per_s
    # Both ends are looked up among the same edges, without the outlook's own end: whatever the rounding, at least one
    # value lies between.
    edges_s = np.cumsum(outlook.durations_s)[:-1]
    first, last = np.searchsorted(edges_s, soonest_s), np.searchsorted(edges_s, latest_s, side="right")
    return float(outlook.values[first : last + 1].min())
