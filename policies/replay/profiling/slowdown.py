"""Scores runs under the slowdown objective on a known curve: how slow they were, and what that has cost.

No policy knows the curve at the start. What a run uses more than the least with which its work could have been done in
the time that it took, by a mix of two limits, is what finding out has cost: the first pass, the limits that were tried,
and the looks at the highest one. What it uses more than that mix would have used at the whole budget is, in addition,
the price of time that was left unspent; less than nothing where a run was slower than its budget.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.replay.profiling.curves import TrueCurve
from policies.replay.profiling.evaluation import JOB_LENGTHS, OVER_ALL, OVER_POWER_BOUND
from policies.vocabulary.power_curve import lower_hull

LIVE: Final = "gridchase-live"
"""The name of the policy: the controller itself, as it runs by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """What a run has used.

    Attributes:
        n_iterations: its work.
        energy_j: by the true curve [J].
        duration_s: how long it took [s].
        highest_s: for how long the highest limit was in force [s].
    """

    n_iterations: int
    energy_j: float
    duration_s: float
    highest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownRow:
    """Runs of each of `JOB_LENGTHS` on a curve, mean over their seeds; or the mean of such rows over curves.

    Attributes:
        curve: its name, or "mean over power-bound" and so on.
        policy: who chose the limits.
        n_curves: the number of curves.
        n_seeds: the number of runs of each length on each.
        is_power_bound: whether all of them are.
        max_slowdown: the budget.
        slowdown_ratio: how much slower than at the highest limit, by length in iterations.
        excess_iterations: the energy beyond the least in that time, in iterations of that mix.
        excess_ratio: the energy beyond that of the mix which takes the whole budget, as a share of it.
        highest_ratio: the share of time at the highest limit.
    """

    curve: str
    policy: str
    n_curves: int
    n_seeds: int
    is_power_bound: bool
    max_slowdown: float
    slowdown_ratio: dict[str, float]
    excess_iterations: dict[str, float]
    excess_ratio: dict[str, float]
    highest_ratio: dict[str, float]


def least_energy_j(curve: TrueCurve, n_iterations: int, duration_s: float) -> float:
    """Return the least energy with which work can be done in a time: by a mix of two limits [J].

    In more time than it takes at the limit of the least energy, that is the limit; it is done before.
    """
    hull = lower_hull(curve.profile)
    rate_per_s = max(n_iterations / duration_s, float(hull.iterations_per_s[0]))
    return n_iterations / rate_per_s * float(np.interp(rate_per_s, hull.iterations_per_s, hull.power_w))


def slowdown_row(curve: TrueCurve, runs: Sequence[SimulatedRun], *, max_slowdown: float) -> SlowdownRow:
    """Return the row of a curve.

    Args:
        curve: the true one.
        runs: as many of each of `JOB_LENGTHS`.
        max_slowdown: their budget.
    """
    by_length = {str(length): [run for run in runs if run.n_iterations == length] for length in JOB_LENGTHS}
    rate_per_s = curve.profile.fastest.iterations_per_s

    def excess_iterations(run: SimulatedRun) -> float:
        return run.n_iterations * (run.energy_j / least_energy_j(curve, run.n_iterations, run.duration_s) - 1)

    def excess_ratio(run: SimulatedRun) -> float:
        budget_s = max_slowdown * run.n_iterations / rate_per_s
        return run.energy_j / least_energy_j(curve, run.n_iterations, budget_s) - 1

    return SlowdownRow(
        curve=curve.name,
        policy=LIVE,
        n_curves=1,
        n_seeds=min(len(some) for some in by_length.values()),
        is_power_bound=curve.is_power_bound,
        max_slowdown=max_slowdown,
        slowdown_ratio={
            length: statistics.fmean(run.duration_s * rate_per_s / run.n_iterations - 1 for run in some)
            for length, some in by_length.items()
        },
        excess_iterations={
            length: statistics.fmean(map(excess_iterations, some)) for length, some in by_length.items()
        },
        excess_ratio={length: statistics.fmean(map(excess_ratio, some)) for length, some in by_length.items()},
        highest_ratio={
            length: statistics.fmean(run.highest_s / run.duration_s for run in some)
            for length, some in by_length.items()
        },
    )


def slowdown_summaries(rows: Sequence[SlowdownRow]) -> list[SlowdownRow]:
    """Return the means over the power-bound curves, and over all."""
    found = []
    for over in (OVER_POWER_BOUND, OVER_ALL):
        chosen = [row for row in rows if over == OVER_ALL or row.is_power_bound]
        if chosen:
            found.append(_mean(chosen, f"mean over {over}"))
    return found


def _mean(rows: Sequence[SlowdownRow], name: str) -> SlowdownRow:
    def by_length(values: Sequence[dict[str, float]]) -> dict[str, float]:
        return {length: statistics.fmean(value[length] for value in values) for length in values[0]}

    return SlowdownRow(
        curve=name,
        policy=rows[0].policy,
        n_curves=len(rows),
        n_seeds=rows[0].n_seeds,
        is_power_bound=all(row.is_power_bound for row in rows),
        max_slowdown=rows[0].max_slowdown,
        slowdown_ratio=by_length([row.slowdown_ratio for row in rows]),
        excess_iterations=by_length([row.excess_iterations for row in rows]),
        excess_ratio=by_length([row.excess_ratio for row in rows]),
        highest_ratio=by_length([row.highest_ratio for row in rows]),
    )
