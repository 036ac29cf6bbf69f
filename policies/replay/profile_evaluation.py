"""How good policies are at finding a power limit: what they waste on the way, what they end with, what they know.

Cost is Zeus's, η·E + (1-η)·(highest limit)·T, of the true curve: chance enters by what it makes a policy do alone.
"""

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from policies.profile import PowerProfile
from policies.replay.noise import LEVELS, NoiseName
from policies.replay.profile_curves import TrueCurve
from policies.replay.profile_players import PolicyName, play
from policies.replay.training import Training

JOB_LENGTHS: Final = (1_000, 5_000, 20_000)
"""Iterations."""
GOOD_RATIO: Final = 0.01
"""A selection within this of the optimum is a good one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a policy.

    Attributes:
        iterations_to_plan: how many there were before the first plan; likewise seconds and energy.
        excess_iterations: what a job of each of `JOB_LENGTHS` costs beyond the optimum, in iterations of the optimum.
        selection_error_ratio: by how much the limit that is kept costs more than the best one, as a share of that.
        curve_time_error_ratio: how far off the time of an iteration is, on the mean over the useful limits.
        curve_power_error_ratio: the same for the power.
        curve_worst_error_ratio: the worst of both at any of them.
    """

    iterations_to_plan: float
    seconds_to_plan_s: float
    energy_to_plan_j: float
    excess_iterations: tuple[float, ...]
    selection_error_ratio: float
    curve_time_error_ratio: float
    curve_power_error_ratio: float
    curve_worst_error_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A policy on a curve: all its runs, a seed each."""

    curve: TrueCurve
    policy: PolicyName
    noise: NoiseName
    runs: tuple[Run, ...]


def evaluate(curve: TrueCurve, policy: PolicyName, noise: NoiseName, *, eta: float, n_seeds: int) -> Evaluation:
    """Return how a policy does on a curve; the same seeds bring the same chance to every policy."""
    runs = tuple(_run(curve, policy, noise, eta=eta, seed=seed) for seed in range(n_seeds))
    return Evaluation(curve=curve, policy=policy, noise=noise, runs=runs)


def _run(curve: TrueCurve, policy: PolicyName, noise: NoiseName, *, eta: float, seed: int) -> Run:
    training = Training(curve, LEVELS[noise], seed=seed)
    played = play(policy, training, eta=eta, rng=np.random.default_rng(seed))
    time_ratio, power_ratio, worst_ratio = curve_errors(curve, played.curve)
    return Run(
        iterations_to_plan=played.n_to_plan,
        seconds_to_plan_s=played.to_plan_s,
        energy_to_plan_j=played.to_plan_j,
        excess_iterations=tuple(excess_iterations(training, length, eta=eta) for length in JOB_LENGTHS),
        selection_error_ratio=curve.cost_ratio(training.power_limit_w, eta) - 1,
        curve_time_error_ratio=time_ratio,
        curve_power_error_ratio=power_ratio,
        curve_worst_error_ratio=worst_ratio,
    )


def excess_iterations(training: Training, n_iterations: int, *, eta: float) -> float:
    """Return what the first so many iterations cost beyond the optimum, in iterations of the optimum.

    The limit in force now stands for ever.
    """
    stays = training.stays
    ends = [later.n_before for _, later in pairwise(stays)] + [max(n_iterations, training.n_iterations)]
    return sum(
        max(min(end, n_iterations) - stay.n_before, 0) * (training.curve.cost_ratio(stay.power_limit_w, eta) - 1)
        for stay, end in zip(stays, ends, strict=True)
    )


def curve_errors(curve: TrueCurve, known: PowerProfile) -> tuple[float, float, float]:
    """Return the relative errors of time (mean), power (mean) and the worst, over the true curve's useful limits.

    Useful is what lies between the limit of the least energy and the highest: nothing below is ever chosen.
    """
    least_w = curve.profile.energy_minimal.power_limit_w
    useful = [point for point in curve.profile.points if point.power_limit_w >= least_w]
    found = [known.at(point.power_limit_w) for point in useful]
    times = [abs(point.iterations_per_s / rate_per_s - 1) for point, (_, rate_per_s) in zip(useful, found, strict=True)]
    powers = [abs(power_w / point.power_w - 1) for point, (power_w, _) in zip(useful, found, strict=True)]
    return statistics.fmean(times), statistics.fmean(powers), max(*times, *powers)
