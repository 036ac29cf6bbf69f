"""The optimum with perfect foresight: the exact minimum that any schedule of the measured limits can spend.

Within a step of the signal only the mean rate matters, and the power of a mix of limits at that rate is the lower
convex hull of the measured points (the upper hull where the signal is negative: power then earns money). So the least
Σ c·P·t for given work in given time is a linear programme. Its variables are bounded segments of rate, one for each
step and segment of the hull, at marginal cost c·dP/dr: take the cheapest first (merit order). A run may end before
its budget does: its last step has one more segment, from idle. Each step that can be the last is tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import RunResult, result_of
from policies.vocabulary.units import Values

SAME_RATIO: Final = 1e-12
SHORTEST_S: Final = 1e-6
"""Shorter steps are rounding."""

Allocation = tuple[float, Values]
"""The cost of a schedule [unit·J], and the work in each segment, shape (n_steps, n_segments) [iterations]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hull:
    """Limits along a convex hull, by ascending rate; idle has the index -1."""

    indices: NDArray[np.int_]
    rates_per_s: Values
    powers_w: Values

    @property
    def widths_per_s(self) -> Values:
        return np.diff(self.rates_per_s)

    @property
    def slopes_j(self) -> Values:
        return np.diff(self.powers_w) / self.widths_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """The segments of each step of the signal.

    Attributes:
        marginal_costs: of each segment, shape (n_steps, n_segments) [unit·J per iteration].
        capacity_iterations: of each segment, the same shape.
        base_iterations: the work at the slow end of the hull, shape (n_steps,).
        base_costs: the cost of that work, shape (n_steps,) [unit·J].
    """

    marginal_costs: Values
    capacity_iterations: Values
    base_iterations: Values
    base_costs: Values


def offline_optimum(scenario: Scenario, spec: RunSpec, max_slowdown: float) -> RunResult:
    """Return the cheapest run that takes at most `max_slowdown` times as long as at the highest limit.

    Raises:
        ValueError: no mix of limits does the work in that time.
    """
    latest_s = spec.start_s + max_slowdown * spec.base_duration_s
    inner = (scenario.edges_s > spec.start_s + SHORTEST_S) & (scenario.edges_s < latest_s - SHORTEST_S)
    edges_s = np.concatenate(([spec.start_s], scenario.edges_s[inner], [latest_s]))
    values = scenario.values[np.searchsorted(scenario.edges_s, edges_s[:-1] + SHORTEST_S, side="right") - 1]
    work_iterations = spec.base_duration_s * float(scenario.iterations_per_s[-1])
    running, ending = (_steps(scenario, np.diff(edges_s), values, can_idle=can_idle) for can_idle in (False, True))
    shortest_s = work_iterations / float(scenario.iterations_per_s.max())
    first = max(1, int(np.searchsorted(edges_s, spec.start_s + shortest_s - SHORTEST_S)))
    found = [
        (n, allocation)
        for n in range(first, len(edges_s))
        if (allocation := _allocate(running, ending, n, work_iterations)) is not None
    ]
    if not found:
        raise ValueError(f"max_slowdown = {max_slowdown:g}: no limit does the work in that time; must be at least 1")
    n_steps, (_, work) = min(found, key=lambda plan: plan[1][0])
    return _schedule_result(scenario, edges_s[: n_steps + 1], values, work)


def _steps(scenario: Scenario, durations_s: Values, values: Values, *, can_idle: bool) -> _Steps:
    """Return the segments of steps with the given durations and signal values."""
    hulls = [_hull(scenario, is_negative=is_negative, can_idle=can_idle) for is_negative in (False, True)]
    n_segments = len(scenario.power_w)
    slopes_j, widths_per_s = np.zeros((2, n_segments)), np.zeros((2, n_segments))
    for row, hull in enumerate(hulls):
        slopes_j[row, : len(hull.slopes_j)], widths_per_s[row, : len(hull.slopes_j)] = hull.slopes_j, hull.widths_per_s
    which = (values < 0).astype(np.int_)
    costs = np.where(widths_per_s[which] > 0, values[:, None] * slopes_j[which], np.inf)
    return _Steps(
        marginal_costs=costs,
        capacity_iterations=widths_per_s[which] * durations_s[:, None],
        base_iterations=np.array([hull.rates_per_s[0] for hull in hulls])[which] * durations_s,
        base_costs=np.array([hull.powers_w[0] for hull in hulls])[which] * durations_s * values,
    )


def _hull(scenario: Scenario, *, is_negative: bool, can_idle: bool) -> _Hull:
    """Return the lower convex hull of power over rate; the upper hull where the signal is negative."""
    sign = -1.0 if is_negative else 1.0
    points = [(0.0, 0.0, -1)] if can_idle else []
    points += zip(
        scenario.iterations_per_s.tolist(), scenario.power_w.tolist(), range(len(scenario.power_w)), strict=True
    )
    hull: list[tuple[float, float, int]] = []
    for point in sorted(points, key=lambda point: (point[0], sign * point[1])):
        if hull and point[0] == hull[-1][0]:
            continue  # same rate, no better power
        while len(hull) > 1 and sign * _slope_j(hull[-2], hull[-1]) >= sign * _slope_j(hull[-2], point):
            hull.pop()
        hull.append(point)
    rates_per_s, powers_w, indices = zip(*hull, strict=True)
    return _Hull(indices=np.array(indices), rates_per_s=np.array(rates_per_s), powers_w=np.array(powers_w))


def _slope_j(slower: tuple[float, float, int], faster: tuple[float, float, int]) -> float:
    return (faster[1] - slower[1]) / (faster[0] - slower[0])


def _allocate(running: _Steps, ending: _Steps, n_steps: int, work_iterations: float) -> Allocation | None:
    """Return the cheapest allocation of work that ends in the last of the first `n_steps`; None: it does not fit."""
    whole, last = slice(0, n_steps - 1), slice(n_steps - 1, n_steps)
    costs = np.concatenate((running.marginal_costs[whole], ending.marginal_costs[last])).ravel()
    capacity = np.concatenate((running.capacity_iterations[whole], ending.capacity_iterations[last])).ravel()
    rest = work_iterations - running.base_iterations[whole].sum()
    order = np.argsort(costs, kind="stable")
    cumulative = np.cumsum(capacity[order])
    if not 0 <= rest <= cumulative[-1] + SAME_RATIO * work_iterations:
        return None
    work = np.zeros(len(costs))
    work[order] = np.clip(rest - (cumulative - capacity[order]), 0.0, capacity[order])
    used = work > 0
    cost = float(running.base_costs[whole].sum() + work[used] @ costs[used])
    return cost, work.reshape(n_steps, -1)


def _schedule_result(scenario: Scenario, edges_s: Values, values: Values, work: Values) -> RunResult:
    """Return the run of an allocation; within a step the faster limit comes first."""
    times_s, indices = [float(edges_s[0])], list[int]()
    hulls = {
        kind: _hull(scenario, is_negative=kind[0], can_idle=kind[1]) for kind in product((False, True), (False, True))
    }
    for step, (begin_s, end_s) in enumerate(pairwise(edges_s.tolist())):
        hull = hulls[bool(values[step] < 0), step == len(edges_s) - 2]
        for index, until_s in _two_limits(hull, float(work[step].sum()) / (end_s - begin_s), begin_s, end_s):
            if hull.indices[index] >= 0 and until_s > times_s[-1]:
                times_s.append(until_s)
                indices.append(int(hull.indices[index]))
    return result_of(scenario, np.array(times_s), np.array(indices))


def _two_limits(hull: _Hull, more_per_s: float, begin_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """Yield the hull points that share a step, and when each ends [Unix s].

    `more_per_s` is the mean rate above that of the slow end [1/s].
    """
    last = len(hull.rates_per_s) - 1
    upper = min(int(np.searchsorted(hull.rates_per_s, hull.rates_per_s[0] + more_per_s)), last)
    if upper > 0:
        width_per_s = hull.rates_per_s[upper] - hull.rates_per_s[upper - 1]
        share = (hull.rates_per_s[0] + more_per_s - hull.rates_per_s[upper - 1]) / width_per_s
        yield upper, begin_s + min(max(share, 0.0), 1.0) * (end_s - begin_s)
    yield max(upper - 1, 0), end_s
