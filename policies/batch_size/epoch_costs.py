"""The cost of an epoch at each batch size: exact where it was measured, inferred where it was not.

The cost of an epoch is not random: it follows from the GPU, its power and its speed. Where a batch size has not run
yet, the time of an epoch is the best predictor (the power of a training GPU changes little beside it). Without a time,
an iteration takes a fixed time and a time for each sample, so that an epoch takes 1 + h/b: h is unknown, but lies
within a few powers of ten.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.batch_size.gaussian_process import Gaussian, kernel, regress
from policies.batch_size.study import Study
from policies.vocabulary.units import Values

OVERHEADS: Final = np.array([0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
"""h, in units of the default batch size: the fixed time of an iteration over the time of its samples there."""
SD_LOG: Final = 0.2
LENGTH_OCTAVES: Final = 3.0
NUGGET_LOG: Final = 0.03
"""The deviation of the logarithm of a cost from that law: power and kernels."""
EXACT: Final = 1e-6
"""The variance of a measured logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCosts:
    """The logarithm of the cost of an epoch at each candidate, in their order.

    Attributes:
        log: its distribution; without a measurement the common level has no meaning.
        known: where it was measured, shape (n,).
    """

    log: Gaussian
    known: NDArray[np.bool_]


def infer_epoch_costs(study: Study) -> EpochCosts:
    """Return the costs of an epoch, measured and inferred."""
    sizes = np.array(study.candidates, dtype=np.float64)
    covariance = kernel(np.log2(sizes), sd_log=SD_LOG, length_octaves=LENGTH_OCTAVES, nugget_log=NUGGET_LOG)
    relative = sizes / study.default
    laws: Values = np.log((1 + OVERHEADS[:, None] / relative) / (1 + OVERHEADS[:, None]))
    timed = [at for at, size in enumerate(study.candidates) if size in study.epoch_times]
    if timed:
        log_times = np.log([study.epoch_times[study.candidates[at]] for at in timed])
        by_time = regress(laws, covariance, np.array(timed), log_times, np.full(len(timed), EXACT))
        laws, covariance = by_time.mean[None, :], covariance + by_time.covariance
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


def _without_level(covariance: Values) -> Values:
    """Return a covariance without the common level: only ratios matter where nothing was measured."""
    common: Values = covariance - covariance.min()
    return common
