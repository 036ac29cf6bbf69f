"""Non-stationary jobs: detection of sudden changes, and forgetting of old runs.

A job has changed if a batch size suddenly needs far more epochs, run after run: detected by a cumulative sum of how far
each run lies above the mean at its batch size (E. S. Page, Biometrika 41 (1954)), in standard deviations from run to
run. Runs before a change count little after it, at every batch size: the best must be found again.

Jobs also drift slowly. Unless a forgetting factor is given, the data choose it: each run is predicted, with each of a
few factors, from the earlier runs at its batch size (prequentially: A. P. Dawid, J. R. Stat. Soc. A 147 (1984)), and
the best predictor is taken, if it is clearly better than no forgetting.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary.units import Values

NOISE_LOG: Final = 0.15
NOISE_WEIGHT: Final = 4.0
"""The prior of the noise from run to run: a standard deviation of the logarithm, and the number of runs it is worth."""
CHANGE_LOG: Final = math.log(2.0)
"""The change to detect: twice as many epochs. Less than half of it adds nothing to the sum."""
CHANGE_SD: Final = 2.0
"""The same in standard deviations, if the noise is large."""
ALARM_SD: Final = 5.0
"""The sum that is a change; once in 100,000 runs of known normal noise (D. Siegmund, 1985)."""
MAX_RUN_SD: Final = 3.0
"""A single run adds at most so much: one alone, however long, is no change."""
LEAST_RUNS: Final = 5
"""The runs of a batch size before its mean counts as known."""
FACTORS: Final = (1.0, 0.95)
MIN_GAIN_NATS: Final = 2.0
"""The least gain in log-likelihood that justifies forgetting."""
JUMP_LOG: Final = 0.7
"""How far the epochs of a batch size may jump at a change: a standard deviation of a logarithm."""
MAX_RUNS: Final = 200
"""The newest runs that are used."""


@dataclass(slots=True)
class _Noise:
    """The variance from run to run, pooled over the batch sizes: the mean of an inverse-gamma posterior."""

    sum_log2: float = NOISE_WEIGHT * NOISE_LOG**2
    n_degrees: float = NOISE_WEIGHT


@dataclass(slots=True)
class _Baseline:
    """The runs of a batch size since the last change, and those that may be the beginning of the next."""

    n: int = 0
    mean: float = 0.0
    sum_ratio: float = 0.0
    """The cumulative sum, in standard deviations."""
    pending: list[int] = field(default_factory=list)

    def add(self, value: float, noise: _Noise) -> None:
        """Add a run to the baseline."""
        deviation = value - self.mean
        self.n += 1
        self.mean += deviation / self.n
        if self.n > 1:
            noise.sum_log2 += deviation**2 * (self.n - 1) / self.n
            noise.n_degrees += 1

    def increment_ratio(self, value: float, noise: _Noise) -> float:
        """Return what a run adds to the sum: its excess over the baseline, with the uncertainty of the noise."""
        if self.n < LEAST_RUNS:
            return 0.0
        sd = math.sqrt(noise.sum_log2 / noise.n_degrees * (1 + 1 / self.n))
        t = (value - self.mean) / sd
        z = math.copysign(math.sqrt(noise.n_degrees * math.log1p(t * t / noise.n_degrees)), t)
        allowance = max(CHANGE_SD, CHANGE_LOG / sd) / 2
        return min(z - allowance, MAX_RUN_SD)


def first_run_after_change(index: NDArray[np.intp], log_epochs: Values, reached: NDArray[np.bool_]) -> int:
    """Return the index of the first run after the last change, or 0 without one.

    Args:
        index: the candidate of each run, shape (n_runs,), in the order of the runs.
        log_epochs: the logarithm of the epochs that each trained, shape (n_runs,).
        reached: whether it reached the target, shape (n_runs,). A stopped run needs more epochs, unknown
            how many: it may exceed the baseline, and is never part of it.
    """
    values = log_epochs.tolist()
    began, noise, baselines = 0, _Noise(), dict[int, _Baseline]()
    for number, (candidate, got_there) in enumerate(zip(index.tolist(), reached.tolist(), strict=True)):
        own = baselines.setdefault(candidate, _Baseline())
        excess = own.increment_ratio(values[number], noise)
        if not got_there and excess <= 0:
            continue
        own.sum_ratio = max(0.0, own.sum_ratio + excess)
        own.pending.append(number)
        if own.sum_ratio > ALARM_SD:
            began, baselines = own.pending[0], {}
        elif own.sum_ratio == 0.0:
            for each in own.pending:
                if reached[each]:
                    own.add(values[each], noise)
            own.pending.clear()
    return began


def observation_weights(
    index: NDArray[np.intp], log_epochs: Values, forgetting_ratio: float | None, *, n_before: int = 0
) -> Values:
    """Return the weight of each observation, shape (n_observations,), in their order.

    Args:
        index: the candidate of each, shape (n_observations,).
        log_epochs: the logarithm of its epochs, shape (n_observations,).
        forgetting_ratio: the weight of an observation after each further one; None: the best predictor.
        n_before: the number of observations before the job changed.
    """
    recent = slice(max(n_before, len(index) - MAX_RUNS), None)
    ratio = _best_factor(index[recent], log_epochs[recent]) if forgetting_ratio is None else forgetting_ratio
    weights: Values = ratio ** np.arange(len(index) - 1, -1, -1, dtype=np.float64)
    weights[:n_before] *= _jump_discount(index[:n_before], weights[:n_before])
    return weights


def _jump_discount(index: NDArray[np.intp], weights: Values) -> Values:
    """Return the factors by which a jump discounts the runs at a batch size, however many.

    Their mean, with the noise variance s²/w, has the variance of the jump in addition: s²/w' = s²/w + jump².
    """
    total = np.bincount(index, weights)
    left: Values = 1 / (1 + total[index] * (JUMP_LOG / NOISE_LOG) ** 2)
    return left


def _best_factor(index: NDArray[np.intp], log_epochs: Values) -> float:
    runs = list(zip(index.tolist(), log_epochs.tolist(), strict=True))
    noise_variance = _noise_variance(runs)
    evidence = {factor: _log_likelihood(runs, factor, noise_variance) for factor in FACTORS}
    best = max(FACTORS, key=lambda factor: evidence[factor])
    return best if evidence[best] > evidence[1.0] + MIN_GAIN_NATS else 1.0


def _log_likelihood(runs: list[tuple[int, float]], forgetting_ratio: float, noise_variance: float) -> float:
    """Return the log-likelihood of all runs, each given those before it at its candidate, less weighted with their age.

    Args:
        runs: the candidate, and the logarithm of the epochs.
        forgetting_ratio: the weight of a run after each further one.
        noise_variance: from run to run.
    """
    nats = 0.0
    past: dict[int, tuple[int, float, float]] = {}  # the last run, and weight and weighted sum of all up to it
    for number, (candidate, value) in enumerate(runs):
        if candidate not in past:
            past[candidate] = number, 1.0, value
            continue
        last, weight, total = past[candidate]
        aged = forgetting_ratio ** (number - last - 1)
        weight, total = aged * weight, aged * total
        variance = noise_variance * (1 + 1 / weight)
        nats -= 0.5 * ((value - total / weight) ** 2 / variance + math.log(variance))
        past[candidate] = number, forgetting_ratio * weight + 1, forgetting_ratio * total + value
    return nats


def _noise_variance(runs: list[tuple[int, float]]) -> float:
    """Return the variance from run to run, by the differences of successive runs, which a drift affects least."""
    last: dict[int, float] = {}
    sum_log2, n_degrees = NOISE_WEIGHT * NOISE_LOG**2, NOISE_WEIGHT
    for candidate, value in runs:
        if candidate in last:
            sum_log2 += (value - last[candidate]) ** 2 / 2
            n_degrees += 1
        last[candidate] = value
    return sum_log2 / n_degrees
