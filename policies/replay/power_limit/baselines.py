"""Policies that ignore the signal: one limit, a mix of two limits, or the choice of Zeus's sweep.

All of them can be planned before the run starts; following the signal must save more than they do.
"""

import math
from typing import Final

import numpy as np

from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import RunResult, replay_schedule
from policies.vocabulary.cost import zeus_cost
from policies.vocabulary.power_curve import lower_hull
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import Values

SWEEP_ITERATIONS: Final = 50
"""Zeus measures 40 iterations at each limit, after 10 to warm up (GlobalPowerLimitOptimizer, Zeus 0.8)."""


def replay_at_limit(scenario: Scenario, spec: RunSpec, power_limit_w: float) -> RunResult:
    """Simulate a run at one limit."""
    index = scenario.index_of(power_limit_w)
    return replay_schedule(scenario, _to_the_end(scenario, spec, index), np.array([index]), spec)


def best_static_limit_w(profile: PowerProfile, max_slowdown: float) -> float:
    """Return the limit of least energy among those within the time budget [W]."""
    needed_per_s = profile.fastest.iterations_per_s / max_slowdown
    allowed = [point for point in profile.points if point.iterations_per_s >= needed_per_s]
    return min(allowed, key=lambda point: point.iteration_energy_j).power_limit_w


def replay_static_mix(scenario: Scenario, spec: RunSpec, max_slowdown: float) -> RunResult:
    """Simulate a run that alternates two limits of the hull in each period and just uses up its time budget.

    The last period may be shorter, because the length of the run is known. Where the energy-minimal limit is fast
    enough, it is used alone: anything slower needs more energy.
    """
    hull = lower_hull(scenario.profile).points
    needed_per_s = scenario.profile.fastest.iterations_per_s / max_slowdown
    upper = next(n for n, point in enumerate(hull) if point.iterations_per_s >= needed_per_s)
    if upper == 0:
        return replay_at_limit(scenario, spec, hull[0].power_limit_w)
    slow, fast = hull[upper - 1], hull[upper]
    share = (needed_per_s - slow.iterations_per_s) / (fast.iterations_per_s - slow.iterations_per_s)
    n_periods = math.ceil(max_slowdown * spec.base_duration_s / spec.period_s)
    starts_s = spec.start_s + np.minimum(
        spec.period_s * np.arange(n_periods + 1.0), max_slowdown * spec.base_duration_s
    )
    turns_s = starts_s[:-1] + share * np.diff(starts_s)
    edges_s = np.append(np.column_stack([starts_s[:-1], turns_s]).ravel(), starts_s[-1])
    pair = [scenario.index_of(point.power_limit_w) for point in (fast, slow)]
    return replay_schedule(scenario, edges_s, np.array(pair * n_periods), spec)


def replay_zeus(scenario: Scenario, spec: RunSpec, eta: float) -> RunResult:
    """Simulate a run that tries each limit for 50 iterations, from the highest down, and keeps the cheapest.

    The cost is that of the Zeus paper, with weight `eta` for energy; time is priced at the highest limit.
    """
    costs = zeus_cost(scenario.power_w, scenario.iterations_per_s, eta=eta, max_power_w=scenario.max_power_w)
    chosen = int(np.argmin(costs))
    sweep = np.arange(len(costs))[::-1]
    lasts_s = SWEEP_ITERATIONS / scenario.iterations_per_s[sweep]
    swept_s = spec.start_s + np.concatenate(([0.0], np.cumsum(lasts_s)))
    edges_s = np.append(swept_s, swept_s[-1] + _longest_s(scenario, spec, chosen))
    return replay_schedule(scenario, edges_s, np.append(sweep, chosen), spec)


def _to_the_end(scenario: Scenario, spec: RunSpec, index: int) -> Values:
    return np.array([spec.start_s, spec.start_s + _longest_s(scenario, spec, index)])


def _longest_s(scenario: Scenario, spec: RunSpec, index: int) -> float:
    """Return an upper bound of the duration of a run at a limit [s]."""
    ratio = float(scenario.iterations_per_s[-1] / scenario.iterations_per_s[index])
    return spec.base_duration_s * ratio + spec.period_s
