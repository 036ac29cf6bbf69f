"""Prediction intervals: quantiles of the recent errors at each lead, held at 90 % coverage by feedback.

The interval around an estimate reaches from the 5 % to the 95 % quantile of its recent errors (split conformal
prediction on a window). Each side is also stretched or shrunk around the median error: outwards by a fixed factor after
a miss, and inwards after a hit by as much less as hits should be more frequent. So each side misses 5 % in the long run
whatever the signal does, which is quantile tracking, here of the logarithm of the width (Angelopoulos, Candès and
Tibshirani 2023, "Conformal PID Control for Time Series Prediction"; it goes back to Gibbs and Candès 2021, "Adaptive
Conformal Inference Under Distribution Shift").
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.track_record import VerifiedForecasts
from policies.vocabulary.units import Values

MISS_RATIO: Final = 0.05
"""How often the actual value may lie beyond each side."""
N_ERRORS: Final = 28 * 24
"""Errors are taken once an hour: four weeks."""
MIN_ERRORS: Final = 20
"""With fewer the 5 % quantile would be the least of them."""
GAIN_RATIO: Final = 0.02
"""A miss stretches a side by so much, as a logarithm; twenty hits shrink it by as much."""
MAX_STRETCH: Final = 2.0
"""The width changes by a factor of e² = 7.4 at most."""
QUANTILES: Final = np.array([[MISS_RATIO], [0.5], [1 - MISS_RATIO]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictionIntervals:
    """The errors at each of c leads, and how far their quantiles are stretched.

    Attributes:
        errors: actual minus estimate, a ring for each, shape (c, `N_ERRORS`); NaN where there is none yet.
        n_errors: their number in all, shape (c,).
        stretch: the logarithm of the factor of the lower and of the upper side, shape (2, c).
    """

    errors: Values
    n_errors: NDArray[np.int_]
    stretch: Values


def no_intervals(n_leads: int) -> PredictionIntervals:
    """Return intervals without errors."""
    return PredictionIntervals(
        errors=np.full((n_leads, N_ERRORS), np.nan),
        n_errors=np.zeros(n_leads, dtype=np.int_),
        stretch=np.zeros((2, n_leads)),
    )


def update_intervals(intervals: PredictionIntervals, verified: VerifiedForecasts) -> PredictionIntervals:
    """Return the intervals after verified forecasts; what was not issued has no error."""
    issued = ~np.isnan(verified.issued)
    lead, actual, interval = verified.lead[issued], verified.actual[issued], verified.interval[:, issued]
    errors, n_errors, stretch = intervals.errors.copy(), intervals.n_errors.copy(), intervals.stretch.copy()
    errors[lead, n_errors[lead] % N_ERRORS] = actual - verified.issued[issued]
    n_errors[lead] += 1
    had_interval = ~np.isnan(interval[0])
    missed = np.stack([actual < interval[0], actual > interval[1]])[:, had_interval]
    stretch[:, lead[had_interval]] += GAIN_RATIO * (missed - MISS_RATIO)
    return PredictionIntervals(errors=errors, n_errors=n_errors, stretch=np.clip(stretch, -MAX_STRETCH, MAX_STRETCH))


def interval_offsets(intervals: PredictionIntervals) -> Values:
    """Return the ends of the interval relative to the estimate, shape (2, c); NaN where not known."""
    n = np.minimum(intervals.n_errors, N_ERRORS)
    ordered = np.sort(intervals.errors, axis=1)  # NaN come last
    last = np.maximum(n - 1, 0)
    ranks = np.clip((n + 1) * QUANTILES - 1, 0, last)  # of n errors, one more will lie below the i-th i times of n + 1
    below = ranks.astype(np.int_)
    rows = np.arange(len(n))
    low, high = ordered[rows, below], ordered[rows, np.minimum(below + 1, last)]
    lower, median, upper = low + (ranks - below) * (high - low)
    ends = median + np.exp(intervals.stretch) * np.stack([lower - median, upper - median])
    return np.asarray(np.where(n >= MIN_ERRORS, ends, np.nan), dtype=np.float64)


def with_more_errors(one: PredictionIntervals, other: PredictionIntervals) -> PredictionIntervals:
    """Return, for each lead, the errors of the one that has more of them."""
    better = other.n_errors > one.n_errors
    return PredictionIntervals(
        errors=np.where(better[:, None], other.errors, one.errors),
        n_errors=np.where(better, other.n_errors, one.n_errors),
        stretch=one.stretch,
    )
