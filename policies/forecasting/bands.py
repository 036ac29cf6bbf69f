"""Prediction bands: quantiles of the recent errors at each lead, held at 90 % by what they have covered.

The band around an estimate reaches from the 5 % to the 95 % quantile of its recent errors (split conformal prediction
on a window: what will come is like what came of late). Where it is not, the levels are moved: outwards with each miss,
inwards with each hit, so that each side misses 5 % in the long run whatever the signal does (adaptive conformal
inference: Gibbs and Candès 2021, "Adaptive Conformal Inference Under Distribution Shift", eq. 2).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.forecast import Values
from policies.forecasting.record import Outcome

MISS_RATIO: Final = 0.05
"""How often the actual may lie beyond each side."""
N_ERRORS: Final = 28 * 24
"""Errors are taken once an hour: four weeks."""
MIN_ERRORS: Final = 20
"""The 5 % quantile of fewer is their least."""
GAIN_RATIO: Final = 0.002
"""How far one miss or hit moves a level, as a share of its distance from the wanted one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bands:
    """The errors at each of c leads, and the levels.

    Attributes:
        errors: actual minus estimate, a ring, shape (`N_ERRORS`, c); NaN where there is none yet.
        n_errors: how many there were in all, shape (c,).
        miss_ratios: the levels of the lower and the upper quantile, shape (2, c).
    """

    errors: Values
    n_errors: NDArray[np.int_]
    miss_ratios: Values


def no_bands(n_leads: int) -> Bands:
    """Return bands without errors."""
    return Bands(
        errors=np.full((N_ERRORS, n_leads), np.nan),
        n_errors=np.zeros(n_leads, dtype=np.int_),
        miss_ratios=np.full((2, n_leads), MISS_RATIO),
    )


def learned(bands: Bands, outcome: Outcome) -> Bands:
    """Return the bands after the errors of at most one value a lead."""
    issued = ~np.isnan(outcome.issued)
    lead, actual, band = outcome.lead[issued], outcome.actual[issued], outcome.band[:, issued]
    errors, n_errors, miss_ratios = bands.errors.copy(), bands.n_errors.copy(), bands.miss_ratios.copy()
    errors[n_errors[lead] % N_ERRORS, lead] = actual - outcome.issued[issued]
    n_errors[lead] += 1
    judged = ~np.isnan(band[0])
    missed = np.stack([actual < band[0], actual > band[1]])[:, judged]
    miss_ratios[:, lead[judged]] += GAIN_RATIO * (MISS_RATIO - missed)
    return Bands(errors=errors, n_errors=n_errors, miss_ratios=np.clip(miss_ratios, 0.0, 0.5))


def offsets(bands: Bands) -> Values:
    """Return the lower and the upper end of the band, relative to the estimate, shape (2, c); NaN where not known."""
    n = np.minimum(bands.n_errors, N_ERRORS)
    ordered = np.sort(bands.errors, axis=0)  # NaN come last
    ranks = (n + 1) * np.array([bands.miss_ratios[0], 1 - bands.miss_ratios[1]]) - 1
    ranks = np.clip(ranks, 0, np.maximum(n - 1, 0))
    below = np.floor(ranks).astype(np.int_)
    above = np.minimum(below + 1, np.maximum(n - 1, 0))
    columns = np.arange(len(n))
    low, high = ordered[below, columns], ordered[above, columns]
    return np.asarray(np.where(n >= MIN_ERRORS, low + (ranks - below) * (high - low), np.nan), dtype=np.float64)


def fuller(one: Bands, other: Bands) -> Bands:
    """Return the bands with, for each lead, the errors of the one that has more."""
    better = other.n_errors > one.n_errors
    return Bands(
        errors=np.where(better, other.errors, one.errors),
        n_errors=np.where(better, other.n_errors, one.n_errors),
        miss_ratios=one.miss_ratios,
    )
