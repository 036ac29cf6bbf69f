"""Policies that do not look at the signal: one limit, a mix of two, or what Zeus's sweep finds.

All of them could be planned on paper before the run starts; what is left to chase is what they leave.
"""

import math
from typing import Final

import numpy as np

from policies.replay.power_limit.scenario import RunSpec, Scenario, Values
from policies.replay.power_limit.simulation import RunResult, replay_schedule
from policies.vocabulary.cost import zeus_cost
from policies.vocabulary.power_curve import lower_hull
from policies.vocabulary.profile import PowerProfile

SWEEP_ITERATIONS: Final = 50
"""Zeus measures 40 iterations at each limit, after 10 to warm up (GlobalPowerLimitOptimizer, Zeus 0.8)."""


def at_one_limit(world: Scenario, job: RunSpec, power_limit_w: float) -> RunResult:
    """Return what a run takes at a limit."""
    index = world.index_of(power_limit_w)
    return replay_schedule(world, _to_the_end(world, job, index), np.array([index]), job)


def best_static_w(profile: PowerProfile, max_slowdown: float) -> float:
    """Return the limit of the least energy among those that keep the budget [W]."""
    needed_per_s = profile.fastest.iterations_per_s / max_slowdown
    allowed = [point for point in profile.points if point.iterations_per_s >= needed_per_s]
    return min(allowed, key=lambda point: point.iteration_energy_j).power_limit_w


def static_mix(world: Scenario, job: RunSpec, max_slowdown: float) -> RunResult:
    """Return what a run takes that mixes two limits of the hull in each period, such that it takes just its budget.

    The last period may be a short one: this plan knows how long the run is. Where the energy-minimal limit is fast
    enough it is that one alone: slower would need more.
    """
    hull = lower_hull(world.profile).points
    needed_per_s = world.profile.fastest.iterations_per_s / max_slowdown
    upper = next(n for n, point in enumerate(hull) if point.iterations_per_s >= needed_per_s)
    if upper == 0:
        return at_one_limit(world, job, hull[0].power_limit_w)
    slow, fast = hull[upper - 1], hull[upper]
    share = (needed_per_s - slow.iterations_per_s) / (fast.iterations_per_s - slow.iterations_per_s)
    n_periods = math.ceil(max_slowdown * job.top_s / job.period_s)
    starts_s = job.start_s + np.minimum(job.period_s * np.arange(n_periods + 1.0), max_slowdown * job.top_s)
    turns_s = starts_s[:-1] + share * np.diff(starts_s)
    edges_s = np.append(np.column_stack([starts_s[:-1], turns_s]).ravel(), starts_s[-1])
    pair = [world.index_of(point.power_limit_w) for point in (fast, slow)]
    return replay_schedule(world, edges_s, np.array(pair * n_periods), job)


def zeus(world: Scenario, job: RunSpec, eta: float) -> RunResult:
    """Return what a run takes that tries each limit for 50 iterations, from the highest down, and keeps the cheapest.

    The cost is that of the Zeus paper, with the weight `eta` of energy; a second costs as much as at the highest limit.
    """
    costs = zeus_cost(world.power_w, world.iterations_per_s, eta=eta, max_power_w=world.max_power_w)
    chosen = int(np.argmin(costs))
    sweep = np.arange(len(costs))[::-1]
    lasts_s = SWEEP_ITERATIONS / world.iterations_per_s[sweep]
    swept_s = job.start_s + np.concatenate(([0.0], np.cumsum(lasts_s)))
    edges_s = np.append(swept_s, swept_s[-1] + _longest_s(world, job, chosen))
    return replay_schedule(world, edges_s, np.append(sweep, chosen), job)


def _to_the_end(world: Scenario, job: RunSpec, index: int) -> Values:
    return np.array([job.start_s, job.start_s + _longest_s(world, job, index)])


def _longest_s(world: Scenario, job: RunSpec, index: int) -> float:
    """Return how long a run takes at a limit, and a little more [s]."""
    ratio = float(world.iterations_per_s[-1] / world.iterations_per_s[index])
    return job.top_s * ratio + job.period_s
