"""Prediction bands: quantiles of the recent errors at each lead, held at 90 % by what they have covered.

The band around an estimate reaches from the 5 % to the 95 % quantile of its recent errors (split conformal prediction
on a window: what will come is like what came of late). Where it is not, each side is stretched or shrunk around the
median error: by a fixed factor outwards after a miss, and inwards after a hit by as much less as hits should be more.
So each side misses 5 % in the long run whatever the signal does, which is quantile tracking, here of the logarithm of
the width (Angelopoulos, Candès and Tibshirani 2023, "Conformal PID Control for Time Series Prediction"; it goes back
to Gibbs and Candès 2021, "Adaptive Conformal Inference Under Distribution Shift").
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
GAIN_RATIO: Final = 0.02
"""How far a miss stretches a side, as a logarithm: 2 %; and twenty hits shrink it by as much."""
MAX_STRETCH: Final = 2.0
"""A band is never stretched or shrunk by more than e² = 7.4."""
QUANTILES: Final = np.array([[MISS_RATIO], [0.5], [1 - MISS_RATIO]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bands:
    """The errors at each of c leads, and how far their quantiles are stretched.

    Attributes:
        errors: actual minus estimate, a ring for each, shape (c, `N_ERRORS`); NaN where there is none yet.
        n_errors: how many there were in all, shape (c,).
        stretch: the logarithm of the factor of the lower and of the upper side, shape (2, c).
    """

    errors: Values
    n_errors: NDArray[np.int_]
    stretch: Values


def no_bands(n_leads: int) -> Bands:
    """Return bands without errors."""
    return Bands(
        errors=np.full((n_leads, N_ERRORS), np.nan),
        n_errors=np.zeros(n_leads, dtype=np.int_),
        stretch=np.zeros((2, n_leads)),
    )


def learned(bands: Bands, outcome: Outcome) -> Bands:
    """Return the bands after the errors of at most one value a lead; what was not issued has none."""
    issued = ~np.isnan(outcome.issued)
    lead, actual, band = outcome.lead[issued], outcome.actual[issued], outcome.band[:, issued]
    errors, n_errors, stretch = bands.errors.copy(), bands.n_errors.copy(), bands.stretch.copy()
    errors[lead, n_errors[lead] % N_ERRORS] = actual - outcome.issued[issued]
    n_errors[lead] += 1
    judged = ~np.isnan(band[0])
    missed = np.stack([actual < band[0], actual > band[1]])[:, judged]
    stretch[:, lead[judged]] += GAIN_RATIO * (missed - MISS_RATIO)
    return Bands(errors=errors, n_errors=n_errors, stretch=np.clip(stretch, -MAX_STRETCH, MAX_STRETCH))


def offsets(bands: Bands) -> Values:
    """Return the lower and the upper end of the band, relative to the estimate, shape (2, c); NaN where not known."""
    n = np.minimum(bands.n_errors, N_ERRORS)
    ordered = np.sort(bands.errors, axis=1)  # NaN come last
    last = np.maximum(n - 1, 0)
    ranks = np.clip((n + 1) * QUANTILES - 1, 0, last)  # of n errors, one more will lie below the i-th i times of n + 1
    below = ranks.astype(np.int_)
    rows = np.arange(len(n))
    low, high = ordered[rows, below], ordered[rows, np.minimum(below + 1, last)]
    lower, median, upper = low + (ranks - below) * (high - low)
    ends = median + np.exp(bands.stretch) * np.stack([lower - median, upper - median])
    return np.asarray(np.where(n >= MIN_ERRORS, ends, np.nan), dtype=np.float64)


def fuller(one: Bands, other: Bands) -> Bands:
    """Return the bands with, for each lead, the errors of the one that has more."""
    better = other.n_errors > one.n_errors
    return Bands(
        errors=np.where(better[:, None], other.errors, one.errors),
        n_errors=np.where(better, other.n_errors, one.n_errors),
        stretch=one.stretch,
    )
