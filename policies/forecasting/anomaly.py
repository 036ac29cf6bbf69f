"""Regressions of the anomaly, one for each lead: what today differs from the usual, and how long that lasts.

The anomaly in h steps is explained by the anomaly now, by its mean over the last day, by its changes over one and two
steps and over one and two hours, and by yesterday's anomaly at the time that is forecast. How the anomaly and its
changes go on depends on the time of the day (a lack of sunshine ends at sunset): both stand beside their products with
sine and cosine of it.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.climatology import Climate
from policies.forecasting.forecast import Values
from policies.forecasting.least_squares import solve_each
from policies.forecasting.series import HOUR_S, Series

SHRINKAGE_RATIO: Final = 1e-3


def fit(series: Series, climate: Climate, leads: NDArray[np.int_], weights: Values, *, max_rows: int) -> Values:
    """Return the coefficients for each climatology and lead, of 1, the features now, and yesterday, shape (u, c, p).

    Args:
        series: the past.
        climate: its climatologies.
        leads: how far to look ahead [steps], at most a day, shape (c,).
        weights: how much an error of each step counts, shape (n,).
        max_rows: about how many origins are looked at.
    """
    coefficients = []
    for first, anomaly in zip(climate.firsts, climate.anomaly, strict=True):
        origins, targets, counted = _rows(series, int(first), leads, max_rows)
        solved = solve_each(
            _features(series, anomaly[None], origins)[0],
            anomaly[targets - series.day],
            anomaly[targets],
            counted * weights[targets],
            penalty_ratio=SHRINKAGE_RATIO,
        )
        coefficients.append(solved)
    return np.array(coefficients)


def fit_damping(series: Series, climate: Climate, leads: NDArray[np.int_], *, max_rows: int) -> Values:
    """Return which share of the first anomaly is left at each lead, by least squares, from 0 to 1, shape (c,)."""
    origins, targets, counted = _rows(series, int(climate.firsts[0]), leads, max_rows)
    anomaly = climate.anomaly[0]
    now = anomaly[origins][:, None]
    squares = (counted * now**2).sum(axis=0)
    shares = (counted * now * anomaly[targets]).sum(axis=0) / np.where(squares > 0, squares, 1.0)
    return np.asarray(np.clip(shares, 0.0, 1.0), dtype=np.float64)


def predict(
    coefficients: Values, series: Series, climate: Climate, origins: NDArray[np.int_], leads: NDArray[np.int_]
) -> Values:
    """Return the anomaly of each climatology at each lead after origins, shape (u, n_origins, c)."""
    yesterday = climate.anomaly[:, origins[:, None] + leads - series.day]
    features = _features(series, climate.anomaly, origins)
    now = coefficients[:, None, :, 0] + features @ coefficients[:, :, 1:-1].transpose(0, 2, 1)
    return np.asarray(now + yesterday * coefficients[:, None, :, -1], dtype=np.float64)


def _rows(
    series: Series, first: int, leads: NDArray[np.int_], max_rows: int
) -> tuple[NDArray[np.int_], NDArray[np.int_], NDArray[np.bool_]]:
    """Return origins (r,), their targets (r, c), and which of them count; a target beyond the end does not.

    The stride of the origins is prime to a day, and so visits all its times.
    """
    n = len(series.values)
    stride = max(1, (n - first) // max_rows)
    while math.gcd(stride, series.day) != 1:
        stride += 1
    origins = np.arange(n - 2, first - 1, -stride)
    targets = origins[:, None] + leads
    within = np.minimum(targets, n - 1)
    return origins, within, (targets < n) & series.known[within] & series.known[origins][:, None]


def _features(series: Series, anomaly: Values, origins: NDArray[np.int_]) -> Values:
    """Return what is known of anomalies (u, n) at origins, shape (u, r, p)."""
    hour, phase = round(HOUR_S / series.step_s), series.phase(origins)
    sums = np.cumsum(anomaly, axis=1)
    day_mean = (sums[:, origins] - sums[:, origins - series.day]) / series.day
    now = anomaly[:, origins]
    changes = {lag: now - anomaly[:, origins - lag] for lag in sorted({1, 2, hour, 2 * hour})}
    waves = [np.sin(phase), np.cos(phase)]
    turning = [changes[lag] * wave for lag in sorted({1, hour}) for wave in waves]
    standing = [now * wave for wave in (*waves, np.sin(2 * phase), np.cos(2 * phase))]
    return np.stack([now, day_mean, *changes.values(), *turning, *standing], axis=2)
