"""How long a run will be, guessed from former runs of its job that have finished.

Their lengths are taken as lognormal. A run that is planned to end when half of them would have ended is still in debt
when the other half ends; so it is taken to end early: at the 5 % quantile of its length. Where it goes on, it is taken
to end at the 5 % quantile of what is left, given that it has come so far; and so on. Whatever debt there is, is settled
at each of these ends, so that one run in twenty, at most, ends in debt on the way to the next.

From few runs the spread is not known: it is taken so wide that the 5 % quantile is that of the next run's length, which
is Student's t distribution of the logarithms.

>>> guess = guess_length([100.0, 104.0, 98.0, 101.0], 10.0)
>>> round(guess.total_iterations, 1), round(guess.spread_ratio, 3)
(94.4, 0.039)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from policies.vocabulary.quantiles import NORMAL_QUANTILE_95, student_quantile

LEAST_RUNS: Final = 3
"""From fewer runs nothing is guessed."""
MOST_RUNS: Final = 20
"""The latest count: what changes a job's length for good is forgotten with time."""
EARLY: Final = 0.05
"""The quantile of what is left at which a run is taken to end."""
CERTAIN_SPREAD_RATIO: Final = 0.05
"""Lengths that differ by no more are as good as told."""
MOST_SPREAD_RATIO: Final = 0.2
"""Where lengths differ by so much, a guess bounds no debt: the run is better planned as one of unknown length."""
LAST: Final = 1e-9
"""Of so many runs one comes so far: nothing is known beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessedLength:
    """Where a run is taken to end, and be even.

    Attributes:
        total_iterations: after how many iterations.
        spread_ratio: the standard deviation of the logarithm of the length, as far as it is known.
        n_runs: from how many former runs.
    """

    total_iterations: float
    spread_ratio: float
    n_runs: int

    @property
    def is_certain(self) -> bool:
        """Return whether it is as good as told."""
        return self.spread_ratio <= CERTAIN_SPREAD_RATIO


def guess_length(former_iterations: Sequence[float], n_iterations: float) -> GuessedLength | None:
    """Return where a run is taken to end, by how many iterations former ones had.

    None: there are too few of them, they differ too much, or it has come farther than any of them could tell.

    Args:
        former_iterations: the iterations of former runs, the latest last; all above 0.
        n_iterations: those of the run so far.
    """
    lengths = former_iterations[-MOST_RUNS:]
    if len(lengths) < LEAST_RUNS:
        return None
    logs = np.log(lengths)
    mean_log, spread_ratio = float(logs.mean()), _spread_ratio(float(logs.std(ddof=1)), len(lengths))
    if spread_ratio >= MOST_SPREAD_RATIO:
        return None
    end_log = _early_end_log(mean_log, spread_ratio, so_far_log=math.log(n_iterations) if n_iterations else -math.inf)
    if end_log is None:
        return None
    return GuessedLength(total_iterations=math.exp(end_log), spread_ratio=spread_ratio, n_runs=len(lengths))


def guess_by_time_limit(used_ratios: Sequence[float], used_ratio: float, n_iterations: float) -> GuessedLength | None:
    """Return the same, by how much of their time limits former runs have used, at the run's rate so far.

    Args:
        used_ratios: what former runs have used, the latest last; all above 0.
        used_ratio: what the run has used so far.
        n_iterations: its iterations meanwhile.
    """
    if not (n_iterations > 0 and used_ratio > 0):
        return None
    guess = guess_length(used_ratios, used_ratio)
    if guess is None:
        return None
    return GuessedLength(
        total_iterations=n_iterations * guess.total_iterations / used_ratio,
        spread_ratio=guess.spread_ratio,
        n_runs=guess.n_runs,
    )


def _spread_ratio(sd_log: float, n_runs: int) -> float:
    """Return the spread with which a normal quantile is that of the next of a few samples."""
    return sd_log * math.sqrt(1 + 1 / n_runs) * student_quantile(n_runs - 1) / NORMAL_QUANTILE_95


def _early_end_log(mean_log: float, spread_ratio: float, *, so_far_log: float) -> float | None:
    """Return the next of the early ends: the n-th is passed by (1 - EARLY)^n of the runs; None beyond the last."""
    if spread_ratio == 0:
        return mean_log if so_far_log < mean_log else None
    lengths = NormalDist(mean_log, spread_ratio)
    passed = 1 - lengths.cdf(so_far_log)
    if passed < LAST:
        return None
    n_ends = math.floor(math.log(passed) / math.log(1 - EARLY)) + 1
    return lengths.inv_cdf(1 - (1 - EARLY) ** n_ends)
