"""Evaluations of policies as rows: one for each curve and policy, then means and medians over curves."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from policies.replay.noise import NoiseName
from policies.replay.profile_evaluation import GOOD_RATIO, JOB_LENGTHS, Evaluation
from policies.replay.profile_players import PolicyName

PEER: Final[PolicyName] = "zeus"
OVER_POWER_BOUND: Final = "power-bound"
OVER_ALL: Final = "all"
_Mean = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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


def rows_of(evaluations: Sequence[Evaluation]) -> list[Row]:
    """Return a row for each evaluation, in their order."""
    peers = {one.curve.name: _row(one, None) for one in evaluations if one.policy == PEER}
    return [_row(one, peers.get(one.curve.name)) for one in evaluations]


def summaries_of(rows: Sequence[Row]) -> list[Row]:
    """Return mean and median of each policy over the power-bound curves, then over all."""
    found = []
    for over in (OVER_POWER_BOUND, OVER_ALL):
        for policy in dict.fromkeys(row.policy for row in rows):
            chosen = [row for row in rows if row.policy == policy and (over == OVER_ALL or row.is_power_bound)]
            if chosen:
                found += [_summary(chosen, over, "mean"), _summary(chosen, over, "median")]
    return found


def _row(one: Evaluation, peer: Row | None) -> Row:
    runs = one.runs
    excess = {
        str(length): statistics.fmean(run.excess_iterations[index] for run in runs)
        for index, length in enumerate(JOB_LENGTHS)
    }
    selection_ratio = statistics.fmean(run.selection_error_ratio for run in runs)
    return Row(
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


def _summary(rows: Sequence[Row], over: str, kind: Literal["mean", "median"]) -> Row:
    middle: _Mean = statistics.fmean if kind == "mean" else statistics.median
    averaged: dict[str, float] = {name: middle([getattr(row, name) for row in rows]) for name in AVERAGED}
    against = [row.selection_against_zeus_ratio for row in rows if row.selection_against_zeus_ratio is not None]
    costs = [row.cost_against_zeus_ratio for row in rows if row.cost_against_zeus_ratio is not None]
    return Row(
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
