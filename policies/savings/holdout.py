"""A/B: some runs of a job are held out at the top limit, and compared with those that follow their plans.

The runs of a job are numbered, and cut into blocks of 1/h, where h is the share that is held out. One run of each block
is held out; which one is random, but depends on nothing but job and block, so that it is the same wherever it is asked
for. Runs are compared within their block: what drifts from run to run cancels.

Energy and time per iteration are compared, and no grams: the carbon intensity of a day differs by 13.5 % from start to
start, so that grams would need thousands of runs. They follow from the counterfactual of each run, to which the
runs held out are a placebo: it must find that they saved nothing.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.vocabulary.quantiles import NORMAL_QUANTILE_95, student_quantile

MIN_HOLDOUTS: Final = 4
"""Held-out runs, each with others in its block, before there is anything to say."""
MAX_HOLDOUT_RATIO: Final = 0.5
PRECISION_RATIO: Final = 0.01
"""The half-width that is aimed at: one point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run that has ended.

    Attributes:
        number: which of the job's runs it was, from 0.
        is_held_out: whether it ran at the top limit.
        iteration_energy_j: its energy per iteration [J].
        iteration_time_s: its time per iteration [s].
    """

    number: int
    is_held_out: bool
    iteration_energy_j: float
    iteration_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """By how much less the runs that follow their plans need than those held out, with the 90 % interval.

    Attributes:
        less_ratio: the share of what the runs held out need.
        lower_ratio, upper_ratio: the ends of the interval.
    """

    less_ratio: float
    lower_ratio: float
    upper_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldoutComparison:
    """What the runs held out say.

    Attributes:
        n_runs, n_held_out: how many runs are compared, and how many of them were held out.
        energy, time: of an iteration. Less than 0 is more; time is more.
        n_more_runs: how many more runs are needed until the energy is known to one point, by what is known of their
            scatter now.
    """

    n_runs: int
    n_held_out: int
    energy: Difference
    time: Difference
    n_more_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewHoldouts:
    """It is too early to tell.

    Attributes:
        n_runs: how many can be compared.
        n_held_out: how many of them were held out.
        n_missing: how many more must be.
    """

    n_runs: int
    n_held_out: int
    n_missing: int


def block_length(holdout_ratio: float) -> int:
    """Return how many runs a block has: 1/h, rounded.

    Raises:
        ValueError: the share is not above 0, or more than half.
    """
    if not 0 < holdout_ratio <= MAX_HOLDOUT_RATIO:
        raise ValueError(f"holdout_ratio = {holdout_ratio}: must be above 0 and at most {MAX_HOLDOUT_RATIO}")
    return round(1 / holdout_ratio)


def is_held_out(job: str, number: int, *, holdout_ratio: float) -> bool:
    """Return whether a run is held out; with a share of 0 none is.

    Args:
        job: the user and the name of the job, or whatever tells it from others.
        number: which of the job's runs it is, from 0.
        holdout_ratio: the share of the runs that is held out.
    """
    if holdout_ratio == 0:
        return False
    length = block_length(holdout_ratio)
    block, place = divmod(number, length)
    digest = hashlib.blake2b(f"{job}\0{block}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % length == place


def compare_holdouts(runs: Iterable[ComparedRun], *, holdout_ratio: float) -> HoldoutComparison | TooFewHoldouts:
    """Return how runs that follow their plans compare with those held out, block by block.

    A block without a run of either kind says nothing, and is left out.

    Raises:
        ValueError: the share is out of bounds.
    """
    length = block_length(holdout_ratio)
    blocks: dict[int, list[ComparedRun]] = {}
    for run in runs:
        blocks.setdefault(run.number // length, []).append(run)
    pairs = [
        ([run for run in block if run.is_held_out], [run for run in block if not run.is_held_out])
        for block in blocks.values()
    ]
    pairs = [(held_out, others) for held_out, others in pairs if held_out and others]
    n_held_out = sum(len(held_out) for held_out, _ in pairs)
    n_runs = n_held_out + sum(len(others) for _, others in pairs)
    if n_held_out < MIN_HOLDOUTS or len(pairs) < MIN_HOLDOUTS:
        n_missing = MIN_HOLDOUTS - min(n_held_out, len(pairs))
        return TooFewHoldouts(n_runs=n_runs, n_held_out=n_held_out, n_missing=n_missing)
    energy, sd_ratio = _difference(pairs, lambda run: run.iteration_energy_j)
    time, _ = _difference(pairs, lambda run: run.iteration_time_s)
    return HoldoutComparison(
        n_runs=n_runs,
        n_held_out=n_held_out,
        energy=energy,
        time=time,
        n_more_runs=max(runs_needed(sd_ratio, holdout_ratio=1 / length) - n_runs, 0),
    )


def runs_needed(sd_ratio: float, *, holdout_ratio: float) -> int:
    """Return how many runs are needed until a difference is known to one point: (q·sd/bar)²·(1/h + 1/(1-h)).

    Args:
        sd_ratio: the standard deviation between runs of the same kind, as a share.
        holdout_ratio: h, the share that is held out.
    """
    variances = 1 / holdout_ratio + 1 / (1 - holdout_ratio)
    return math.ceil((NORMAL_QUANTILE_95 * sd_ratio / PRECISION_RATIO) ** 2 * variances)


def _difference(
    pairs: Sequence[tuple[list[ComparedRun], list[ComparedRun]]], quantity: Callable[[ComparedRun], float]
) -> tuple[Difference, float]:
    """Return the difference of a quantity, and its standard deviation between runs, as a share of those held out.

    Logarithms are compared, block by block, and the blocks weighted by what their numbers of runs say.
    """
    logs = np.array([_mean_log(others, quantity) - _mean_log(held_out, quantity) for held_out, others in pairs])
    weights = np.array([1 / (1 / len(held_out) + 1 / len(others)) for held_out, others in pairs])
    mean_log, n_degrees = float(np.average(logs, weights=weights)), len(pairs) - 1
    sd_log = math.sqrt(float((weights * (logs - mean_log) ** 2).sum()) / n_degrees)
    half_log = student_quantile(n_degrees) * sd_log / math.sqrt(float(weights.sum()))
    less_ratio, lower_ratio, upper_ratio = (1 - math.exp(mean_log + off) for off in (0.0, half_log, -half_log))
    return Difference(less_ratio=less_ratio, lower_ratio=lower_ratio, upper_ratio=upper_ratio), sd_log * math.exp(
        mean_log
    )


def _mean_log(runs: Sequence[ComparedRun], quantity: Callable[[ComparedRun], float]) -> float:
    return math.fsum(math.log(quantity(run)) for run in runs) / len(runs)
