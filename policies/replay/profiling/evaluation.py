"""Evaluates profiling policies: the cost of the search, the chosen limit, and the accuracy of the curve.

Cost is Zeus's, η·E + (1-η)·(highest limit)·T, on the true curve: noise enters only through the policy's decisions.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
"""A selection within this of the optimum counts as good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
    """The score of one run.

    Attributes:
        iterations_to_plan, seconds_to_plan_s, energy_to_plan_j: before the first plan.
        excess_iterations: the cost beyond the optimum of a job of each of `JOB_LENGTHS`, in iterations at the optimum.
        selection_error_ratio: the relative extra cost of the limit that is kept.
        curve_time_error_ratio: the relative error of the iteration time, mean over the useful limits.
        curve_power_error_ratio: the relative error of the power, mean over the useful limits.
        curve_worst_error_ratio: the largest of both at any useful limit.
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
    """A policy on a curve: its runs, one for each seed."""

    curve: TrueCurve
    policy: PolicyName
    noise: NoiseName
    runs: tuple[RunScore, ...]


def evaluate(
    curve: TrueCurve, policy: PolicyName, noise: NoiseName, *, eta: float, n_seeds: int
) -> ProfilingEvaluation:
    """Evaluate a policy on a curve; a seed brings the same noise to every policy."""
    runs = tuple(_run(curve, policy, noise, eta=eta, seed=seed) for seed in range(n_seeds))
    return ProfilingEvaluation(curve=curve, policy=policy, noise=noise, runs=runs)


def _run(curve: TrueCurve, policy: PolicyName, noise: NoiseName, *, eta: float, seed: int) -> RunScore:
    training = SimulatedTraining(curve, LEVELS[noise], seed=seed)
    result = search_limit(policy, training, eta=eta, rng=np.random.default_rng(seed))
    time_ratio, power_ratio, worst_ratio = curve_errors(curve, result.curve)
    return RunScore(
        iterations_to_plan=result.iterations_to_plan,
        seconds_to_plan_s=result.seconds_to_plan_s,
        energy_to_plan_j=result.energy_to_plan_j,
        excess_iterations=tuple(excess_iterations(training, length, eta=eta) for length in JOB_LENGTHS),
        selection_error_ratio=curve.cost_ratio(training.power_limit_w, eta) - 1,
        curve_time_error_ratio=time_ratio,
        curve_power_error_ratio=power_ratio,
        curve_worst_error_ratio=worst_ratio,
    )


def excess_iterations(training: SimulatedTraining, n_iterations: int, *, eta: float) -> float:
    """Return the cost of the first `n_iterations` beyond the optimum, in iterations at the optimum.

    The limit in force now is kept.
    """
    limit_periods = training.limit_periods
    ends = [later.n_before for _, later in pairwise(limit_periods)] + [max(n_iterations, training.n_iterations)]
    return sum(
        max(min(end, n_iterations) - period.n_before, 0) * (training.curve.cost_ratio(period.power_limit_w, eta) - 1)
        for period, end in zip(limit_periods, ends, strict=True)
    )


def curve_errors(curve: TrueCurve, known: PowerProfile) -> tuple[float, float, float]:
    """Return the relative errors of time (mean), power (mean) and the worst of both, over the useful limits.

    Useful limits lie between the energy-minimal one and the highest: nothing below is ever chosen.
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
    """A policy on a curve, mean over its seeds; or the mean or median of such rows over curves.

    Attributes:
        curve: its name; in summaries "mean over power-bound", "median over all" and so on.
        n_curves: the number of curves.
        n_seeds: the number of runs on each.
        is_power_bound: whether all of them are.
        iteration_time_s: the time of an iteration at the highest limit [s].
        is_assumed: whether that is assumed for any of them.
        iterations_to_plan, seconds_to_plan_s, energy_to_plan_j: before the first plan.
        excess_iterations: the cost of a job beyond the optimum, in iterations at the optimum, by its length.
        selection_error_ratio: the relative extra cost of the limit that is kept.
        good_selections_ratio: the share of runs where that is at most 1 %.
        curve_time_error_ratio: the relative error of the iteration time, mean over the useful limits.
        curve_power_error_ratio: the relative error of the power, mean over the useful limits.
        curve_worst_error_ratio: the largest of both at any useful limit.
        selection_against_zeus_ratio: the selection error minus that of Zeus's sweep; in summaries the largest of all
            curves. None without Zeus.
        cost_against_zeus_ratio: the same for the cost of a whole job, relative to the optimum, by its length.
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


AVERAGED_OVER_RUNS: Final = (
    "iterations_to_plan", "seconds_to_plan_s", "energy_to_plan_j", "selection_error_ratio", "curve_time_error_ratio",
    "curve_power_error_ratio", "curve_worst_error_ratio",
)  # fmt: skip
AVERAGED: Final = (*AVERAGED_OVER_RUNS, "iteration_time_s", "good_selections_ratio")


def profiling_rows(evaluations: Sequence[ProfilingEvaluation]) -> list[ProfilingRow]:
    """Return a row for each evaluation, in order."""
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
    averaged = {name: statistics.fmean(getattr(run, name) for run in runs) for name in AVERAGED_OVER_RUNS}
    excess = {
        str(length): statistics.fmean(run.excess_iterations[index] for run in runs)
        for index, length in enumerate(JOB_LENGTHS)
    }
    row = ProfilingRow(
        curve=one.curve.name,
        policy=one.policy,
        noise=one.noise,
        n_curves=1,
        n_seeds=len(runs),
        is_power_bound=one.curve.is_power_bound,
        iteration_time_s=one.curve.iteration_time_s,
        is_assumed=one.curve.is_assumed,
        excess_iterations=excess,
        good_selections_ratio=statistics.fmean(run.selection_error_ratio <= GOOD_RATIO for run in runs),
        selection_against_zeus_ratio=None,
        cost_against_zeus_ratio=None,
        **averaged,
    )
    if peer is None:
        return row
    return replace(
        row,
        selection_against_zeus_ratio=row.selection_error_ratio - peer.selection_error_ratio,
        cost_against_zeus_ratio={
            length: (value - peer.excess_iterations[length]) / int(length) for length, value in excess.items()
        },
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
