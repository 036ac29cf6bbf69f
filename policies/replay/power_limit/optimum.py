"""The optimum with perfect foresight: the least that any plan of the measured limits could have spent. Exact.

Within a step of the signal all that matters is the mean rate, and what a mix of limits draws at that rate is the lower
convex hull of the measured points (the upper one where the signal is negative: power then earns). So the least
Σ c·P·t for given work in given time is a linear programme whose variables are bounded pieces of rate, one for each
step and segment of the hull, each at the cost c·dP/dr: fill the cheapest first. That the run may be shorter than
its budget is one more segment of its last step alone, from standing still; each step that may be the last is tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.replay.power_limit.scenario import RunSpec, Scenario, Values
from policies.replay.power_limit.simulation import RunResult, result_of

SAME_RATIO: Final = 1e-12
SHORTEST_S: Final = 1e-6
"""Shorter steps are rounding."""


Fill = tuple[float, Values]
"""What a plan costs [unit·J], and how much of each segment it takes, shape (n_steps, n_segments) [iterations]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hull:
    """Limits along a hull, in the order of their rates; a standstill has the index -1."""

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
    """Steps of the signal as bounded pieces of rate: costs [unit·J per iteration] and room [iterations], (n, m).

    Attributes:
        base_iterations: what is done at the slow end of the hull, shape (n,).
        base_costs: what that costs, shape (n,) [unit·J].
    """

    costs: Values
    room_iterations: Values
    base_iterations: Values
    base_costs: Values


def offline_optimum(world: Scenario, job: RunSpec, max_slowdown: float) -> RunResult:
    """Return the run of the least spending that takes at most `max_slowdown` times as long as at the highest limit.

    Raises:
        ValueError: no mix of limits does the work in that time.
    """
    latest_s = job.start_s + max_slowdown * job.top_s
    inner = (world.edges_s > job.start_s + SHORTEST_S) & (world.edges_s < latest_s - SHORTEST_S)
    edges_s = np.concatenate(([job.start_s], world.edges_s[inner], [latest_s]))
    values = world.values[np.searchsorted(world.edges_s, edges_s[:-1] + SHORTEST_S, side="right") - 1]
    work_iterations = job.top_s * float(world.iterations_per_s[-1])
    moving, stopping = (
        _steps(world, np.diff(edges_s), values, may_stand_still=may_stand_still) for may_stand_still in (False, True)
    )
    shortest_s = work_iterations / float(world.iterations_per_s.max())
    first = max(1, int(np.searchsorted(edges_s, job.start_s + shortest_s - SHORTEST_S)))
    found = [
        (n, fill)
        for n in range(first, len(edges_s))
        if (fill := _filled(moving, stopping, n, work_iterations)) is not None
    ]
    if not found:
        raise ValueError(f"max_slowdown = {max_slowdown:g}: no limits do the work in that time; must be at least 1")
    n_steps, (_, taken) = min(found, key=lambda plan: plan[1][0])
    return _outcome(world, edges_s[: n_steps + 1], values, taken)


def _steps(world: Scenario, lasts_s: Values, values: Values, *, may_stand_still: bool) -> _Steps:
    """Return steps of some lengths and values as pieces of rate."""
    hulls = [_hull(world, earns=earns, may_stand_still=may_stand_still) for earns in (False, True)]
    n_segments = len(world.power_w)
    slopes_j, widths_per_s = np.zeros((2, n_segments)), np.zeros((2, n_segments))
    for row, hull in enumerate(hulls):
        slopes_j[row, : len(hull.slopes_j)], widths_per_s[row, : len(hull.slopes_j)] = hull.slopes_j, hull.widths_per_s
    which = (values < 0).astype(np.int_)
    costs = np.where(widths_per_s[which] > 0, values[:, None] * slopes_j[which], np.inf)
    return _Steps(
        costs=costs,
        room_iterations=widths_per_s[which] * lasts_s[:, None],
        base_iterations=np.array([hull.rates_per_s[0] for hull in hulls])[which] * lasts_s,
        base_costs=np.array([hull.powers_w[0] for hull in hulls])[which] * lasts_s * values,
    )


def _hull(world: Scenario, *, earns: bool, may_stand_still: bool) -> _Hull:
    """Return the points of least power over rate, or of the most where power earns."""
    sign = -1.0 if earns else 1.0
    points = [(0.0, 0.0, -1)] if may_stand_still else []
    points += zip(world.iterations_per_s.tolist(), world.power_w.tolist(), range(len(world.power_w)), strict=True)
    hull: list[tuple[float, float, int]] = []
    for point in sorted(points, key=lambda point: (point[0], sign * point[1])):
        if hull and point[0] == hull[-1][0]:
            continue  # as fast, and no better
        while len(hull) > 1 and sign * _slope_j(hull[-2], hull[-1]) >= sign * _slope_j(hull[-2], point):
            hull.pop()
        hull.append(point)
    rates_per_s, powers_w, indices = zip(*hull, strict=True)
    return _Hull(indices=np.array(indices), rates_per_s=np.array(rates_per_s), powers_w=np.array(powers_w))


def _slope_j(slower: tuple[float, float, int], faster: tuple[float, float, int]) -> float:
    return (faster[1] - slower[1]) / (faster[0] - slower[0])


def _filled(moving: _Steps, stopping: _Steps, n_steps: int, work_iterations: float) -> Fill | None:
    """Return the cheapest plan for work that ends in the last of so many steps; None where it does not fit."""
    whole, last = slice(0, n_steps - 1), slice(n_steps - 1, n_steps)
    costs = np.concatenate((moving.costs[whole], stopping.costs[last])).ravel()
    room = np.concatenate((moving.room_iterations[whole], stopping.room_iterations[last])).ravel()
    rest = work_iterations - moving.base_iterations[whole].sum()
    order = np.argsort(costs, kind="stable")
    filled = np.cumsum(room[order])
    if not 0 <= rest <= filled[-1] + SAME_RATIO * work_iterations:
        return None
    taken = np.zeros(len(costs))
    taken[order] = np.clip(rest - (filled - room[order]), 0.0, room[order])
    paid = taken > 0
    cost = float(moving.base_costs[whole].sum() + taken[paid] @ costs[paid])
    return cost, taken.reshape(n_steps, -1)


def _outcome(world: Scenario, edges_s: Values, values: Values, taken: Values) -> RunResult:
    """Return the run of a plan; within a step the faster limit comes first."""
    times_s, indices = [float(edges_s[0])], list[int]()
    hulls = {
        kind: _hull(world, earns=kind[0], may_stand_still=kind[1]) for kind in product((False, True), (False, True))
    }
    for step, (begin_s, end_s) in enumerate(pairwise(edges_s.tolist())):
        hull = hulls[bool(values[step] < 0), step == len(edges_s) - 2]
        for index, until_s in _shares(hull, float(taken[step].sum()) / (end_s - begin_s), begin_s, end_s):
            if hull.indices[index] >= 0 and until_s > times_s[-1]:
                times_s.append(until_s)
                indices.append(int(hull.indices[index]))
    return result_of(world, np.array(times_s), np.array(indices))


def _shares(hull: _Hull, more_per_s: float, begin_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """Yield the points that share a step, and until when [Unix s], for a mean rate above that of the slow end [1/s]."""
    last = len(hull.rates_per_s) - 1
    upper = min(int(np.searchsorted(hull.rates_per_s, hull.rates_per_s[0] + more_per_s)), last)
    if upper > 0:
        width_per_s = hull.rates_per_s[upper] - hull.rates_per_s[upper - 1]
        share = (hull.rates_per_s[0] + more_per_s - hull.rates_per_s[upper - 1]) / width_per_s
        yield upper, begin_s + min(max(share, 0.0), 1.0) * (end_s - begin_s)
    yield max(upper - 1, 0), end_s
