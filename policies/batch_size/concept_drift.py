"""Non-stationary jobs: change detection by CUSUM, and forgetting factors for old runs.

Whether a job has changed at once: a batch size that needed so many epochs needs far more, run after run.

A cumulative sum of how far each run lay above what is usual at its batch size (E. S. Page, Biometrika 41 (1954)), in
standard deviations from run to run. What was learned before such a change counts little after it, of every batch size:
which is the best must be found anew.

How much an old observation still weighs: jobs drift, as their data do, and some change at once.

Where no rate is given, the data choose it: each run is predicted, at each of a few rates, from the earlier runs at its
batch size (prequentially: A. P. Dawid, J. R. Stat. Soc. A 147 (1984)), and the rate that has predicted best is taken.
Forgetting is not free, so it must have shown its worth. What is older than a change (`change.py`) says little at all.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.batch_size.study import Floats

NOISE_LOG: Final = 0.15
NOISE_WEIGHT: Final = 4.0
"""The prior of the noise from run to run, a standard deviation of the logarithm, and how many runs it is worth."""
CHANGE_LOG: Final = math.log(2.0)
"""The change that is looked for: twice as many epochs. What is less than half of it adds nothing to the sum."""
CHANGE_SD: Final = 2.0
"""The same, where the noise is large, in standard deviations."""
ALARM_SD: Final = 5.0
"""The sum that is a change; once in 100,000 runs of normal noise that is known well (D. Siegmund, 1985)."""
MOST_SD: Final = 3.0
"""What a single run adds at most: one alone, however long, is no change."""
LEAST_RUNS: Final = 5
"""Of a batch size, before anything is usual there."""


@dataclass(slots=True)
class _Noise:
    """The variance from run to run, pooled over the batch sizes: the mean of an inverse-gamma posterior."""

    sum_log2: float = NOISE_WEIGHT * NOISE_LOG**2
    n_degrees: float = NOISE_WEIGHT


@dataclass(slots=True)
class _Usual:
    """What is usual at a batch size since the last change, and the runs that may be the beginning of the next."""

    n: int = 0
    mean: float = 0.0
    excess_ratio: float = 0.0
    """The sum, in standard deviations."""
    pending: list[int] = field(default_factory=list)

    def add(self, value: float, noise: _Noise) -> None:
        """Take a run for a usual one."""
        apart = value - self.mean
        self.n += 1
        self.mean += apart / self.n
        if self.n > 1:
            noise.sum_log2 += apart**2 * (self.n - 1) / self.n
            noise.n_degrees += 1

    def added_ratio(self, value: float, noise: _Noise) -> float:
        """Return what a run adds to the sum: how far it lies above the usual; little may be known of the noise."""
        if self.n < LEAST_RUNS:
            return 0.0
        sd = math.sqrt(noise.sum_log2 / noise.n_degrees * (1 + 1 / self.n))
        t = (value - self.mean) / sd
        z = math.copysign(math.sqrt(noise.n_degrees * math.log1p(t * t / noise.n_degrees)), t)
        allowance = max(CHANGE_SD, CHANGE_LOG / sd) / 2
        return min(z - allowance, MOST_SD)


def changed_at(index: NDArray[np.intp], log_epochs: Floats, reached: NDArray[np.bool_]) -> int:
    """Return the number of the first run after the last change; 0: there was none.

    Args:
        index: which candidate each run is of, shape (n_runs,), in the order in which they were made.
        log_epochs: the logarithm of the epochs that each trained, shape (n_runs,).
        reached: whether that was to the target, shape (n_runs,). One that was stopped needed more, nobody knows how
            many: it may be dearer than usual, and is never a usual one.
    """
    values = log_epochs.tolist()
    began, noise, usual = 0, _Noise(), dict[int, _Usual]()
    for number, (candidate, got_there) in enumerate(zip(index.tolist(), reached.tolist(), strict=True)):
        own = usual.setdefault(candidate, _Usual())
        excess = own.added_ratio(values[number], noise)
        if not got_there and excess <= 0:
            continue
        own.excess_ratio = max(0.0, own.excess_ratio + excess)
        own.pending.append(number)
        if own.excess_ratio > ALARM_SD:
            began, usual = own.pending[0], {}
        elif own.excess_ratio == 0.0:
            for each in own.pending:
                if reached[each]:
                    own.add(values[each], noise)
            own.pending.clear()
    return began


RATES: Final = (1.0, 0.95)
PROOF_NATS: Final = 2.0
"""How much better, in the logarithm of the likelihood, the past must have been predicted by forgetting."""
JUMP_LOG: Final = 0.7
"""How far the epochs of a batch size may have jumped where the job changed: a standard deviation, of a logarithm."""
MOST: Final = 200
"""Runs that are looked at, the newest."""


def observation_weights(
    index: NDArray[np.intp], log_epochs: Floats, forgetting_ratio: float | None, *, n_before: int = 0
) -> Floats:
    """Return the weight of each observation, shape (n_observations,), in the order in which they were made.

    Args:
        index: which candidate each is of, shape (n_observations,).
        log_epochs: the logarithm of its epochs, shape (n_observations,).
        forgetting_ratio: what an observation weighs after each further one; None: as predicts best.
        n_before: how many were made before the job changed.
    """
    looked_at = slice(max(n_before, len(index) - MOST), None)
    ratio = _best_rate(index[looked_at], log_epochs[looked_at]) if forgetting_ratio is None else forgetting_ratio
    weights: Floats = ratio ** np.arange(len(index) - 1, -1, -1, dtype=np.float64)
    weights[:n_before] *= _left_of_a_jump(index[:n_before], weights[:n_before])
    return weights


def _left_of_a_jump(index: NDArray[np.intp], weights: Floats) -> Floats:
    """Return the factors by which the runs at a batch size, however many, tell no more than a jump leaves of them.

    Their mean, with the variance s²/w of the noise, has that of the jump in addition: s²/w' = s²/w + jump².
    """
    total = np.bincount(index, weights)
    left: Floats = 1 / (1 + total[index] * (JUMP_LOG / NOISE_LOG) ** 2)
    return left


def _best_rate(index: NDArray[np.intp], log_epochs: Floats) -> float:
    """Return the rate that has predicted best."""
    n = len(index)
    same = np.tril(index[:, None] == index[None, :], -1)
    before = same.sum(axis=1)
    if not before.any():
        return 1.0
    ages = np.arange(n)[:, None] - np.arange(n)[None, :] - 1
    noise_variance = _noise_variance(same, log_epochs)
    evidence = {rate: _log_likelihood(same * rate ** np.maximum(ages, 0), log_epochs, noise_variance) for rate in RATES}
    best = max(RATES, key=lambda rate: evidence[rate])
    return best if evidence[best] > evidence[1.0] + PROOF_NATS else 1.0


def _log_likelihood(weights: Floats, log_epochs: Floats, noise_variance: float) -> float:
    """Return the logarithm of the likelihood of each run given the weighed ones before it, summed."""
    total = weights.sum(axis=1)
    told = total > 0
    mean = weights[told] @ log_epochs / total[told]
    variance = noise_variance * (1 + 1 / total[told])
    return float(-0.5 * np.sum((log_epochs[told] - mean) ** 2 / variance + np.log(variance)))


def _noise_variance(same: NDArray[np.bool_], log_epochs: Floats) -> float:
    """Return the variance from run to run by the differences of successors, in which a drift shows but once."""
    last = np.where(same.any(axis=1), same.shape[1] - 1 - np.argmax(same[:, ::-1], axis=1), -1)
    told = last >= 0
    squares = (log_epochs[told] - log_epochs[last[told]]) ** 2 / 2
    return (NOISE_WEIGHT * NOISE_LOG**2 + float(np.sum(squares))) / (NOISE_WEIGHT + len(squares))
