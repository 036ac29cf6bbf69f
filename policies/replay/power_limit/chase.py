"""Chase as published, in a replay: eq. 6 each period, with the value that it expects of the signal.

Yang, Meng, Chung and Chowdhury 2023, "Chasing Low-Carbon Electricity for Practical and Sustainable DNN Training"
(arXiv:2303.02508). Its eta is no budget of time: how much slower a run is, is what comes of it. So beside the choice
at a given eta stands that of hindsight: of all etas whose run kept the budget, the one that saved most.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from policies.replay.power_limit.scenario import RunSpec, Scenario, Values
from policies.replay.power_limit.simulation import RunResult, replay_schedule

DAY_S: Final = 86_400.0
ETAS: Final = tuple(step / 50 for step in range(51))
"""What hindsight chooses from."""
SPARE_PERIODS: Final = 2

Expectation = Callable[[Scenario, RunSpec, int], Values]
"""Gives, for so many periods of a run, the value that is expected of each, shape (n,); NaN where nothing is known."""


def chase(world: Scenario, job: RunSpec, eta: float, expected: Values) -> RunResult:
    """Return what a run takes under eq. 6; where nothing is expected of the signal it keeps the highest limit.

    The greatest power is the highest limit, as in Zeus's code, from which Chase's comes; the greatest value is that of
    the 24 h before the run, or what is known so far where those are not.
    """
    n_periods = len(expected)
    yesterday = last_known(world, job.start_s - np.arange(0.0, DAY_S, job.period_s))
    seen = np.fmax.accumulate(expected) if np.isnan(yesterday).all() else np.full(n_periods, np.nanmax(yesterday))
    # A price can fall to nothing or below, where eq. 6 would reward waste; then waste is no candidate.
    weights = eta * np.nan_to_num(expected)[:, None] * world.power_w
    weights = weights + (1 - eta) * world.max_power_w * np.maximum(np.nan_to_num(seen), 0.0)[:, None]
    costs = weights / world.iterations_per_s
    usable = world.profile.usable().points
    is_waste = np.array([point not in usable for point in world.profile.points])
    costs[np.ix_(~(expected > 0), is_waste)] = np.inf
    indices = np.where(np.isnan(expected), len(world.power_w) - 1, costs.argmin(axis=1))
    edges_s = job.start_s + job.period_s * np.arange(n_periods + 1.0)
    return replay_schedule(world, edges_s, indices, job)


def n_periods_of(world: Scenario, job: RunSpec) -> int:
    """Return how many periods a run has at most: eq. 6 never selects a limit below the energy-minimal one."""
    slowest_per_s = world.profile.energy_minimal.iterations_per_s
    slowdown = float(world.iterations_per_s[-1]) / slowest_per_s
    return int(slowdown * job.top_s / job.period_s) + SPARE_PERIODS


def best_in_hindsight(runs: Sequence[RunResult], job: RunSpec, max_slowdown: float) -> RunResult:
    """Return, of runs of one job, the cheapest of those that kept the budget; the fastest where none did."""
    kept = [run for run in runs if run.duration_s <= max_slowdown * job.top_s]
    return min(kept, key=lambda run: run.spent) if kept else min(runs, key=lambda run: run.duration_s)


def by_persistence(world: Scenario, job: RunSpec, n_periods: int) -> Values:
    """Expect of each period the last value that had ceased to hold when it began, shape (n_periods,)."""
    return last_known(world, job.start_s + job.period_s * np.arange(float(n_periods)))


def by_foresight(world: Scenario, job: RunSpec, n_periods: int) -> Values:
    """Expect of each period what it has, on average, shape (n_periods,)."""
    edges_s = job.start_s + job.period_s * np.arange(n_periods + 1.0)
    return np.asarray(np.diff(world.integral_until(edges_s)) / job.period_s, dtype=np.float64)


def last_known(world: Scenario, times_s: Values) -> Values:
    """Return the last known value that had ceased to hold at each time, shape (n,); NaN where there is none."""
    known = ~np.isnan(world.signal.values)
    stops_s, values = world.edges_s[1:][known], world.signal.values[known]
    index = np.searchsorted(stops_s, times_s, side="right") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], np.nan)
