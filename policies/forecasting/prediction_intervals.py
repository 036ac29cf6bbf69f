"""Prediction intervals: quantiles of the recent errors at each lead, scaled by the hour of the day, held at 90 %.

A forecast errs more at sunrise than at night. So each error is divided by the usual size of errors at its lead and its
hour of the day (UTC); the interval around an estimate reaches from the 5 % to the 95 % quantile of these ratios, times
the usual size at its own lead and hour (split conformal prediction on a window, with scores normalised by the expected
error: Papadopoulos, Gammerman and Vovk 2008, "Normalized nonconformity measures for regression Conformal Prediction").
Four weeks have few errors of one hour. So its usual size is the mean of these few and of what neighbouring hours and
the whole day expect; with little history every hour has the size of the whole day.

Each side is also stretched or shrunk around the median error: outwards by a fixed factor after a miss, and inwards
after a hit by as much less as hits should be more frequent; in part at all hours, in part at the hour alone. So each
side misses 5 % in the long run, at each hour, whatever the signal does, which is quantile tracking, here of the
logarithm of the width (Angelopoulos, Candès and Tibshirani 2023, "Conformal PID Control for Time Series Prediction"; it
goes back to Gibbs and Candès 2021, "Adaptive Conformal Inference Under Distribution Shift").
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.series import hour_of_day
from policies.forecasting.track_record import VerifiedForecasts
from policies.vocabulary.units import Values

MISS_RATIO: Final = 0.05
"""How often the actual value may lie beyond each side."""
N_HOURS: Final = 24
N_ERRORS: Final = 28
"""Of each hour of the day: errors are taken once an hour, so these are four weeks."""
MIN_ERRORS: Final = 20
"""With fewer the 5 % quantile would be the least of them."""
GAIN_RATIO: Final = 0.01
"""A miss stretches a side by so much, as a logarithm; twenty hits shrink it by as much."""
HOURLY_GAIN_RATIO: Final = 0.02
"""The same, at the hour of the miss alone."""
MAX_STRETCH: Final = 2.0
"""The width changes by a factor of e² = 7.4 at most; by the hour alone, by e."""
MAX_HOURLY_STRETCH: Final = 1.0
OWN_SAMPLES: Final = 4.0
"""What neighbouring hours expect weighs as much as so many errors of the hour itself."""
DAY_SAMPLES: Final = 10.0
"""What the whole day expects weighs as much as so many errors of neighbouring hours."""
TINY: Final = 1e-12
"""Added to the usual size of errors: there may be none, as on a constant."""
QUANTILES: Final = np.array([[MISS_RATIO], [0.5], [1 - MISS_RATIO]])
_APART_H: Final = np.abs(np.arange(N_HOURS)[:, None] - np.arange(N_HOURS))
NEIGHBOURS: Final = np.maximum(0.0, 1 - np.minimum(_APART_H, N_HOURS - _APART_H) / 3)
"""The weight of errors at another hour, shape (24, 24): 2/3 one hour apart, 1/3 two."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictionIntervals:
    """The errors at each of c leads and hour of the day, and how far their quantiles are stretched.

    Attributes:
        errors: actual minus estimate, by the hour of the actual value, the newest first, shape (c, 24, `N_ERRORS`); NaN
            where there is none.
        stretch: the logarithm of the factor of the lower and of the upper side, shape (2, c).
        hourly_stretch: what is added to it at an hour, shape (2, c, 24).
    """

    errors: Values
    stretch: Values
    hourly_stretch: Values

    @property
    def n_errors(self) -> NDArray[np.int_]:
        """Return the number of errors at each lead, shape (c,)."""
        return np.asarray((~np.isnan(self.errors)).sum(axis=(1, 2)), dtype=np.int_)


def no_intervals(n_leads: int) -> PredictionIntervals:
    """Return intervals without errors."""
    return PredictionIntervals(
        errors=np.full((n_leads, N_HOURS, N_ERRORS), np.nan),
        stretch=np.zeros((2, n_leads)),
        hourly_stretch=np.zeros((2, n_leads, N_HOURS)),
    )


def intervals_of_errors(errors: Values, hours: NDArray[np.int_]) -> PredictionIntervals:
    """Return the intervals of known errors.

    Args:
        errors: at each lead, one an hour, at most `N_ERRORS` days, the oldest first, shape (n, c); NaN where unknown.
        hours: the hours of the day of the actual values, shape (n, c).
    """
    intervals = no_intervals(errors.shape[1])
    days_ago = np.arange(len(errors) - 1, -1, -1) // N_HOURS
    intervals.errors[np.arange(errors.shape[1]), hours, days_ago[:, None]] = errors
    return intervals


def update_intervals(intervals: PredictionIntervals, verified: VerifiedForecasts) -> PredictionIntervals:
    """Return the intervals after verified forecasts; what was not issued has no error."""
    issued = ~np.isnan(verified.issued)
    lead, actual, interval = verified.lead[issued], verified.actual[issued], verified.interval[:, issued]
    hour = hour_of_day(verified.times_s[issued])
    errors = intervals.errors.copy()
    errors[lead, hour, 1:] = intervals.errors[lead, hour, :-1]
    errors[lead, hour, 0] = actual - verified.issued[issued]
    had_interval = ~np.isnan(interval[0])
    excess = (np.stack([actual < interval[0], actual > interval[1]]) - MISS_RATIO)[:, had_interval]
    lead, hour = lead[had_interval], hour[had_interval]
    stretch, hourly_stretch = intervals.stretch.copy(), intervals.hourly_stretch.copy()
    stretch[:, lead] += GAIN_RATIO * excess
    hourly_stretch[:, lead, hour] += HOURLY_GAIN_RATIO * excess
    return PredictionIntervals(
        errors=errors,
        stretch=np.clip(stretch, -MAX_STRETCH, MAX_STRETCH),
        hourly_stretch=np.clip(hourly_stretch, -MAX_HOURLY_STRETCH, MAX_HOURLY_STRETCH),
    )


def interval_ends(intervals: PredictionIntervals) -> Values:
    """Return the ends of the interval relative to the estimate at each lead and hour, shape (2, c, 24).

    NaN where not known.
    """
    n = intervals.n_errors
    usual = usual_errors(intervals.errors)
    ratios = (intervals.errors / usual[:, :, None]).reshape(len(n), -1)
    lower, median, upper = (each[:, None] for each in _quantiles(np.sort(ratios, axis=1), n))  # NaN come last
    factor = np.exp(intervals.stretch[:, :, None] + intervals.hourly_stretch)
    ends = usual * (median + factor * np.stack([lower - median, upper - median]))
    return np.asarray(np.where((n >= MIN_ERRORS)[:, None], ends, np.nan), dtype=np.float64)


def usual_errors(errors: Values) -> Values:
    """Return the usual size of errors at each lead and hour of the day, shape (c, 24).

    The mean absolute error of the hour, shrunk towards that of neighbouring hours, and this towards that of the day.
    """
    known = ~np.isnan(errors)
    n = known.sum(axis=2)
    total = np.where(known, np.abs(errors), 0.0).sum(axis=2)
    all_day = (total.sum(axis=1) / np.maximum(n.sum(axis=1), 1))[:, None]
    near = (total @ NEIGHBOURS + DAY_SAMPLES * all_day) / (n @ NEIGHBOURS + DAY_SAMPLES)
    return np.asarray((total + OWN_SAMPLES * near) / (n + OWN_SAMPLES) + TINY, dtype=np.float64)


def with_more_errors(one: PredictionIntervals, other: PredictionIntervals) -> PredictionIntervals:
    """Return, for each lead, the errors of the one that has more of them."""
    better = other.n_errors > one.n_errors
    return replace(one, errors=np.where(better[:, None, None], other.errors, one.errors))


def _quantiles(ordered: Values, n: NDArray[np.int_]) -> Values:
    """Return `QUANTILES` of the first n values of each row, shape (3, c)."""
    last = np.maximum(n - 1, 0)
    ranks = np.clip((n + 1) * QUANTILES - 1, 0, last)  # of n errors, one more will lie below the i-th i times of n + 1
    below = ranks.astype(np.int_)
    rows = np.arange(len(n))
    low, high = ordered[rows, below], ordered[rows, np.minimum(below + 1, last)]
    return np.asarray(low + (ranks - below) * (high - low), dtype=np.float64)
