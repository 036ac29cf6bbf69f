"""How much an old observation still weighs: jobs drift, as their data do, and some change at once.

Where no rate is given, the data choose it: each run is predicted, at each of a few rates, from the earlier runs at its
batch size (prequentially: A. P. Dawid, J. R. Stat. Soc. A 147 (1984)), and the rate that has predicted best is taken.
Forgetting is not free, so it must have shown its worth. What is older than a change (`change.py`) says little at all.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.batch_size.change import NOISE_LOG, NOISE_WEIGHT
from policies.batch_size.study import Floats

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
