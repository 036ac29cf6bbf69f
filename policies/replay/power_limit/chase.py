"""Chase as published: minimizes eq. 6 in each period, for the signal value that it expects.

Yang, Meng, Chung and Chowdhury 2023, "Chasing Low-Carbon Electricity for Practical and Sustainable DNN Training"
(arXiv:2303.02508). Its eta is a weight, not a time budget: the slowdown follows from it. So a second variant picks
eta in hindsight: among all etas whose run kept the budget, the one that saved most.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import RunResult, replay_schedule
from policies.vocabulary.units import DAY_S, Values

ETAS: Final = tuple(step / 50 for step in range(51))
"""The candidates for the choice in hindsight."""
SPARE_PERIODS: Final = 2

SignalExpectation = Callable[[Scenario, RunSpec, int], Values]
"""Returns the expected value for each of the first n periods of a run, shape (n,); NaN where nothing is known."""


def replay_chase(scenario: Scenario, spec: RunSpec, eta: float, expected: Values) -> RunResult:
    """Simulate a run under eq. 6; periods without an expected value get the highest limit.

    The maximum power is the highest limit, as in Zeus's code, on which Chase's builds. The maximum value is that of
    the 24 h before the run, or of the values so far where those are unknown.
    """
    n_periods = len(expected)
    yesterday = last_known(scenario, spec.start_s - np.arange(0.0, DAY_S, spec.period_s))
    seen = np.fmax.accumulate(expected) if np.isnan(yesterday).all() else np.full(n_periods, np.nanmax(yesterday))
    # At zero or negative prices eq. 6 rewards waste, so limits below the energy-minimal one are excluded there.
    weights = eta * np.nan_to_num(expected)[:, None] * scenario.power_w
    weights = weights + (1 - eta) * scenario.max_power_w * np.maximum(np.nan_to_num(seen), 0.0)[:, None]
    costs = weights / scenario.iterations_per_s
    usable = scenario.profile.usable().points
    is_waste = np.array([point not in usable for point in scenario.profile.points])
    costs[np.ix_(~(expected > 0), is_waste)] = np.inf
    indices = np.where(np.isnan(expected), len(scenario.power_w) - 1, costs.argmin(axis=1))
    edges_s = spec.start_s + spec.period_s * np.arange(n_periods + 1.0)
    return replay_schedule(scenario, edges_s, indices, spec)


def max_periods(scenario: Scenario, spec: RunSpec) -> int:
    """Return the most periods a run can have: eq. 6 never selects a limit below the energy-minimal one."""
    slowest_per_s = scenario.profile.energy_minimal.iterations_per_s
    slowdown = float(scenario.iterations_per_s[-1]) / slowest_per_s
    return int(slowdown * spec.base_duration_s / spec.period_s) + SPARE_PERIODS


def best_in_hindsight(runs: Sequence[RunResult], spec: RunSpec, max_slowdown: float) -> RunResult:
    """Return the cheapest of the runs that kept the time budget, or the fastest if none did."""
    kept = [run for run in runs if run.duration_s <= max_slowdown * spec.base_duration_s]
    return min(kept, key=lambda run: run.spent) if kept else min(runs, key=lambda run: run.duration_s)


def expect_last_value(scenario: Scenario, spec: RunSpec, n_periods: int) -> Values:
    """Expect for each period the last value that had ended when it began, shape (n_periods,)."""
    return last_known(scenario, spec.start_s + spec.period_s * np.arange(float(n_periods)))


def expect_true_mean(scenario: Scenario, spec: RunSpec, n_periods: int) -> Values:
    """Expect for each period its true mean, shape (n_periods,)."""
    edges_s = spec.start_s + spec.period_s * np.arange(n_periods + 1.0)
    return np.asarray(np.diff(scenario.integral_until(edges_s)) / spec.period_s, dtype=np.float64)


def last_known(scenario: Scenario, times_s: Values) -> Values:
    """Return the last known value that had ended by each time, shape (n,); NaN where there is none."""
    known = ~np.isnan(scenario.signal.values)
    stops_s, values = scenario.edges_s[1:][known], scenario.signal.values[known]
    index = np.searchsorted(stops_s, times_s, side="right") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], np.nan)
