"""Regressions of the anomaly, one for each lead: what today differs from the usual, and how long that lasts.

The anomaly in h steps is explained by the anomaly now, by its changes over one and two steps and over one and two
hours, and by yesterday's anomaly at the time that is forecast. How the anomaly and its changes go on depends on the
time of the day (a deficit of sunshine ends at sunset): both stand beside their products with sine and cosine of it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.forecast import Values
from policies.forecasting.least_squares import solve
from policies.forecasting.series import HOUR_S, Series

SHRINKAGE_RATIO: Final = 1e-3
MAX_ROWS: Final = 1_600
"""The rows of a regression: finer steps add rows that say the same again."""
FIRST_DAY: Final = 2
"""On the days before it the climatology rests on a single day, or on none."""
LEAST_LEVEL_RATIO: Final = 0.3
"""Relative errors count, but values below this share of the median no more than it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnomalyModel:
    """The leads [steps], shape (c,), and the coefficients of each on 1, the features now, and yesterday (c, p)."""

    leads: NDArray[np.int_]
    coefficients: Values


def fit(series: Series, leads: NDArray[np.int_], *, is_carbon: bool) -> AnomalyModel:
    """Return the regressions; for carbon the relative errors are minimised, else the errors."""
    origins = _origins(series)
    features = _features(series, origins)
    levels = np.ones(len(series.values))
    if is_carbon:
        levels = 1 / np.maximum(series.values, LEAST_LEVEL_RATIO * np.median(series.values[series.known]) + 1e-9)
    coefficients = []
    for lead in leads:
        n_rows = int(np.searchsorted(origins, len(series.values) - lead))
        rows, targets = origins[:n_rows], origins[:n_rows] + lead
        weights = series.known[rows] * series.known[targets] * levels[targets]
        yesterday = series.anomaly[targets - series.day]
        columns = np.column_stack([features[:n_rows], yesterday])
        coefficients.append(solve(columns, series.anomaly[targets], weights, penalty_ratio=SHRINKAGE_RATIO))
    return AnomalyModel(leads=leads, coefficients=np.array(coefficients))


def fit_damping(series: Series, leads: NDArray[np.int_]) -> Values:
    """Return which share of an anomaly is left at each lead, by least squares, from 0 to 1, shape (c,)."""
    origins = _origins(series)
    shares = []
    for lead in leads:
        rows = origins[: np.searchsorted(origins, len(series.values) - lead)]
        rows = rows[series.known[rows] & series.known[rows + lead]]
        now, then = series.anomaly[rows], series.anomaly[rows + lead]
        square = float(now @ now)
        shares.append(min(max(float(now @ then) / square, 0.0), 1.0) if square > 0 else 0.0)
    return np.array(shares)


def predict(model: AnomalyModel, series: Series, origins: NDArray[np.int_]) -> Values:
    """Return the anomaly at each of the model's leads after origins, shape (n_origins, c)."""
    features = _features(series, origins)
    yesterday = series.anomaly[origins[:, None] + model.leads - series.day]
    now = model.coefficients[:, 0] + features @ model.coefficients[:, 1:-1].T
    return np.asarray(now + yesterday * model.coefficients[:, -1], dtype=np.float64)


def _origins(series: Series) -> NDArray[np.int_]:
    """Return the indices from which is forecast; their stride, prime to a day, visits all its times."""
    n, first = len(series.values), FIRST_DAY * series.day
    stride = max(1, (n - first) // MAX_ROWS)
    while np.gcd(stride, series.day) != 1:
        stride += 1
    return np.arange(n - 2, first - 1, -stride)[::-1]


def _features(series: Series, origins: NDArray[np.int_]) -> Values:
    """Return what is known of the anomaly at origins, shape (n_origins, p)."""
    hour = round(HOUR_S / series.step_s)
    now, phase = series.anomaly[origins], series.phase(origins)
    changes = {lag: now - series.anomaly[origins - lag] for lag in sorted({1, 2, hour, 2 * hour})}
    turning = [now, *(changes[lag] for lag in sorted({1, hour}))]
    products = [column * wave(phase) for column in turning for wave in (np.sin, np.cos)]
    return np.column_stack([now, *changes.values(), *products])
