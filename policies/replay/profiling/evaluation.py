"""How well policies find a power limit: what they waste on the way, what they end with, what they know of the curve.

How good policies are at finding a power limit: what they waste on the way, what they end with, what they know.

Cost is Zeus's, η·E + (1-η)·(highest limit)·T, of the true curve: chance enters by what it makes a policy do alone.

Evaluations of policies as rows: one for each curve and policy, then means and medians over curves.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from policies.replay.profiling.curves import TrueCurve
from policies.replay.profiling.noise import LEVELS, NoiseName
from policies.replay.profiling.policies import PolicyName, search_limit
from policies.replay.profiling.training import SimulatedTraining
from policies.vocabulary.profile import PowerProfile

JOB_LENGTHS: Final = (1_000, 5_000, 20_000)
"""Iterations."""
GOOD_RATIO: Final = 0.01
"""A selection within this of the optimum is a good one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
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
class ProfilingEvaluation:
    """A policy on a curve: all its runs, a seed each."""

    curve: TrueCurve
    policy: PolicyName
    noise: NoiseName
    runs: tuple[RunScore, ...]


def evaluate(
    curve: TrueCurve, policy: PolicyName, noise: NoiseName, *, eta: float, n_seeds: int
) -> ProfilingEvaluation:
    """Return how a policy does on a curve; the same seeds bring the same chance to every policy."""
    runs = tuple(_run(curve, policy, noise, eta=eta, seed=seed) for seed in range(n_seeds))
    return ProfilingEvaluation(curve=curve, policy=policy, noise=noise, runs=runs)


def _run(curve: TrueCurve, policy: PolicyName, noise: NoiseName, *, eta: float, seed: int) -> RunScore:
    training = SimulatedTraining(curve, LEVELS[noise], seed=seed)
    played = search_limit(policy, training, eta=eta, rng=np.random.default_rng(seed))
    time_ratio, power_ratio, worst_ratio = curve_errors(curve, played.curve)
    return RunScore(
        iterations_to_plan=played.n_to_plan,
        seconds_to_plan_s=played.to_plan_s,
        energy_to_plan_j=played.to_plan_j,
        excess_iterations=tuple(excess_iterations(training, length, eta=eta) for length in JOB_LENGTHS),
        selection_error_ratio=curve.cost_ratio(training.power_limit_w, eta) - 1,
        curve_time_error_ratio=time_ratio,
        curve_power_error_ratio=power_ratio,
        curve_worst_error_ratio=worst_ratio,
    )


def excess_iterations(training: SimulatedTraining, n_iterations: int, *, eta: float) -> float:
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


PEER: Final[PolicyName] = "zeus"
OVER_POWER_BOUND: Final = "power-bound"
OVER_ALL: Final = "all"
_Mean = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingRow:
    """A policy on a curve, the mean over its seeds; or the mean or median of such rows over curves.

    Attributes:
        curve: its name; in summaries what they are over: "mean over power-bound", "median over all", ….
        n_curves: how many there are.
        n_seeds: how many runs there are on each.
        is_power_bound: whether all of them are.
        iteration_time_s: how long an iteration takes at the highest limit [s].
        is_assumed: whether that is a guess for any of them, since nobody knows how many samples an epoch has.
        iterations_to_plan: before the first plan; likewise seconds and energy.
        excess_iterations: what a job costs beyond the optimum, in iterations of the optimum, by its length.
        selection_error_ratio: by how much the limit that is kept costs more than the best one, as a share of that.
        good_selections_ratio: in how many runs that is at most 1 %.
        curve_time_error_ratio: how far off the time of an iteration is, on the mean over the useful limits.
        curve_power_error_ratio: the same for the power.
        curve_worst_error_ratio: the worst of both at any of them.
        selection_against_zeus_ratio: the error of the selection less that of Zeus's sweep; in summaries of curves the
            worst of them. None where Zeus was not played.
        cost_against_zeus_ratio: the same for the cost of a whole job, as a share of the optimum's, by its length.
    """

    curve: str
    policy: PolicyName
    noise: NoiseName
    n_curves: int
    n_seeds: int
    is_power_bound: bool
    iteration_time_s: float
    is_assumed: bool
    iterations_to_plan: float
    seconds_to_plan_s: float
    energy_to_plan_j: float
    excess_iterations: dict[str, float]
    selection_error_ratio: float
    good_selections_ratio: float
    curve_time_error_ratio: float
    curve_power_error_ratio: float
    curve_worst_error_ratio: float
    selection_against_zeus_ratio: float | None = None
    cost_against_zeus_ratio: dict[str, float] | None = None


AVERAGED: Final = (
    "iteration_time_s", "iterations_to_plan", "seconds_to_plan_s", "energy_to_plan_j", "selection_error_ratio",
    "good_selections_ratio", "curve_time_error_ratio", "curve_power_error_ratio", "curve_worst_error_ratio",
)  # fmt: skip


def profiling_rows(evaluations: Sequence[ProfilingEvaluation]) -> list[ProfilingRow]:
    """Return a row for each evaluation, in their order."""
    peers = {one.curve.name: _row(one, None) for one in evaluations if one.policy == PEER}
    return [_row(one, peers.get(one.curve.name)) for one in evaluations]


def summary_rows(rows: Sequence[ProfilingRow]) -> list[ProfilingRow]:
    """Return mean and median of each policy over the power-bound curves, then over all."""
    found = []
    for over in (OVER_POWER_BOUND, OVER_ALL):
        for policy in dict.fromkeys(row.policy for row in rows):
            chosen = [row for row in rows if row.policy == policy and (over == OVER_ALL or row.is_power_bound)]
            if chosen:
                found += [_summary(chosen, over, "mean"), _summary(chosen, over, "median")]
    return found


def _row(one: ProfilingEvaluation, peer: ProfilingRow | None) -> ProfilingRow:
    runs = one.runs
    excess = {
        str(length): statistics.fmean(run.excess_iterations[index] for run in runs)
        for index, length in enumerate(JOB_LENGTHS)
    }
    selection_ratio = statistics.fmean(run.selection_error_ratio for run in runs)
    return ProfilingRow(
        curve=one.curve.name,
        policy=one.policy,
        noise=one.noise,
        n_curves=1,
        n_seeds=len(runs),
        is_power_bound=one.curve.is_power_bound,
        iteration_time_s=one.curve.iteration_time_s,
        is_assumed=one.curve.is_assumed,
        iterations_to_plan=statistics.fmean(run.iterations_to_plan for run in runs),
        seconds_to_plan_s=statistics.fmean(run.seconds_to_plan_s for run in runs),
        energy_to_plan_j=statistics.fmean(run.energy_to_plan_j for run in runs),
        excess_iterations=excess,
        selection_error_ratio=selection_ratio,
        good_selections_ratio=statistics.fmean(run.selection_error_ratio <= GOOD_RATIO for run in runs),
        curve_time_error_ratio=statistics.fmean(run.curve_time_error_ratio for run in runs),
        curve_power_error_ratio=statistics.fmean(run.curve_power_error_ratio for run in runs),
        curve_worst_error_ratio=statistics.fmean(run.curve_worst_error_ratio for run in runs),
        selection_against_zeus_ratio=None if peer is None else selection_ratio - peer.selection_error_ratio,
        cost_against_zeus_ratio=None
        if peer is None
        else {length: (value - peer.excess_iterations[length]) / int(length) for length, value in excess.items()},
    )


def _summary(rows: Sequence[ProfilingRow], over: str, kind: Literal["mean", "median"]) -> ProfilingRow:
    middle: _Mean = statistics.fmean if kind == "mean" else statistics.median
    averaged: dict[str, float] = {name: middle([getattr(row, name) for row in rows]) for name in AVERAGED}
    against = [row.selection_against_zeus_ratio for row in rows if row.selection_against_zeus_ratio is not None]
    costs = [row.cost_against_zeus_ratio for row in rows if row.cost_against_zeus_ratio is not None]
    return ProfilingRow(
        curve=f"{kind} over {over}",
        policy=rows[0].policy,
        noise=rows[0].noise,
        n_curves=len(rows),
        n_seeds=rows[0].n_seeds,
        is_power_bound=all(row.is_power_bound for row in rows),
        is_assumed=any(row.is_assumed for row in rows),
        excess_iterations={
            str(length): middle([row.excess_iterations[str(length)] for row in rows]) for length in JOB_LENGTHS
        },
        selection_against_zeus_ratio=max(against) if against else None,
        cost_against_zeus_ratio={str(length): max(cost[str(length)] for cost in costs) for length in JOB_LENGTHS}
        if costs
        else None,
        **averaged,
    )
