"""What an epoch costs at each batch size: exact where it was measured, inferred where it was not.

The cost of an epoch is nothing random: it follows from the GPU, its power and its speed. Where a batch size has not
run yet, the time of an epoch is the best guide (the power of a training GPU changes little beside it). Where nobody has
timed it either, an iteration takes a fixed time and a time for each sample, so that an epoch takes 1 + h/b: nobody
knows h, but it lies within a few powers of ten.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.batch_size.gaussian_process import Gaussian, kernel, regress
from policies.batch_size.study import Floats, Study

OVERHEADS: Final = np.array([0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
"""h, in units of the default batch size: the fixed time of an iteration over the time of its samples there."""
SD_LOG: Final = 0.2
LENGTH_OCTAVES: Final = 3.0
NUGGET_LOG: Final = 0.03
"""Of the logarithm of a cost around its prior: what power and kernels add to the simple law."""
EXACT: Final = 1e-6
"""The variance of a measured logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCosts:
    """The logarithm of the cost of an epoch at each candidate, in their order.

    Attributes:
        log: its distribution; without a measurement the common level means nothing.
        known: where it was measured, shape (n,).
    """

    log: Gaussian
    known: NDArray[np.bool_]


def infer_epoch_costs(study: Study) -> EpochCosts:
    """Return what is known of the costs of an epoch."""
    sizes = np.array(study.candidates, dtype=np.float64)
    covariance = kernel(np.log2(sizes), sd_log=SD_LOG, length_octaves=LENGTH_OCTAVES, nugget_log=NUGGET_LOG)
    relative = sizes / study.default
    laws: Floats = np.log((1 + OVERHEADS[:, None] / relative) / (1 + OVERHEADS[:, None]))
    timed = [at for at, size in enumerate(study.candidates) if size in study.epoch_times]
    if timed:
        log_times = np.log([study.epoch_times[study.candidates[at]] for at in timed])
        guess = regress(laws, covariance, np.array(timed), log_times, np.full(len(timed), EXACT))
        laws, covariance = guess.mean[None, :], covariance + guess.covariance
    measured = [at for at, size in enumerate(study.candidates) if size in study.epoch_costs]
    known = np.zeros(len(sizes), dtype=bool)
    if not measured:
        return EpochCosts(log=Gaussian(mean=laws.mean(axis=0), covariance=_without_level(covariance)), known=known)
    known[measured] = True
    log_costs = np.log([study.epoch_costs[study.candidates[at]] for at in measured])
    inferred = regress(laws, covariance, np.array(measured), log_costs, np.full(len(measured), EXACT))
    mean, spread = inferred.mean.copy(), inferred.covariance.copy()
    mean[measured] = log_costs
    spread[measured, :] = spread[:, measured] = 0.0
    return EpochCosts(log=Gaussian(mean=mean, covariance=spread), known=known)


def _without_level(covariance: Floats) -> Floats:
    """Return a covariance without what is common to all: only ratios matter where nothing was measured."""
    common: Floats = covariance - covariance.min()
    return common
