"""Forecasts to compare with: the last value, yesterday's, and the regression of Chase.

A baseline is told the past on its grid, and how many steps to look ahead; it answers with that many values. What a gap
hides from it is bridged as for the forecaster itself.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.forecast import Values
from policies.forecasting.least_squares import solve
from policies.forecasting.models import bounds_of
from policies.forecasting.series import Series

Baseline = Callable[[Series, int], Values]


def held(series: Series, n_leads: int) -> Values:
    """Return the last value at each lead, shape (n_leads,)."""
    return np.full(n_leads, series.values[-1])


def same_time_yesterday(series: Series, n_leads: int) -> Values:
    """Return the value of the same time on the last day, shape (n_leads,)."""
    return np.resize(series.values[-series.day :], n_leads)


def chase_linear(series: Series, n_leads: int) -> Values:
    """Return Chase's linear forecast, iterated, shape (n_leads,).

    The next value is regressed on sine and cosine of the time of the day and on the value now, over the last 24 h
    (Yang, Meng, Chung and Chowdhury 2023, "Chasing Low-Carbon Electricity for Practical and Sustainable DNN Training").
    Chase fits once and looks one step ahead; here it is fitted anew at each origin, which is in its favour, and what it
    says is kept within the bounds that hold for the forecaster.
    """
    targets = np.arange(max(1, len(series.values) - series.day), len(series.values))
    features = chase_features(series, targets, series.values[targets - 1])
    weights = (series.known[targets] & series.known[targets - 1]).astype(np.float64)
    coefficients = solve(features, series.values[targets], weights, penalty_ratio=0.0)
    return iterated(coefficients, series, n_leads)


def chase_features(series: Series, targets: NDArray[np.int_], before: Values) -> Values:
    """Return sine and cosine of the time of the day of steps, and the values before them, shape (n, 3)."""
    phase = series.phase(targets)
    return np.column_stack([np.sin(phase), np.cos(phase), before])


def iterated(coefficients: Values, series: Series, n_leads: int) -> Values:
    """Return the values that follow from coefficients on 1, sine, cosine and the value before, shape (n_leads,)."""
    phase = series.phase(len(series.values) + np.arange(n_leads))
    driven = coefficients[0] + coefficients[1] * np.sin(phase) + coefficients[2] * np.cos(phase)
    low, high = bounds_of(series, is_carbon=bool(series.values.min() > 0))
    value, share, values = float(series.values[-1]), float(coefficients[3]), []
    for part in driven.tolist():
        value = min(max(part + share * value, low), high)
        values.append(value)
    return np.array(values)


BASELINES: Final[Mapping[str, Baseline]] = {
    "persistence": held,
    "seasonal": same_time_yesterday,
    "chase_linear": chase_linear,
}
