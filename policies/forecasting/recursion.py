"""The autoregression y_t = Σ φ_l y_{t-l} + harmonics with l = 1, 2, 3, S, S+1 (S steps are a day), iterated.

Where little is known its ridge variant explains the changes of the value by the last changes and by yesterday's, and
shrinks them to none, that is to persistence. Both are one recursion; its iteration is linear in what is known, so the
value at each lead is a product with the recursion's answer to an impulse, and no lead waits for the one before it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.forecast import Values
from policies.forecasting.least_squares import solve
from policies.forecasting.series import Series

FITTED_DAYS: Final = 28
SHRINKAGE_ROWS: Final = 30.0
"""The ridge variant weighs "no change" like so many observations."""
N_RECENT: Final = 3
MAX_IMPULSE: Final = 1e6
"""A recursion that explodes is cut off here; the bounds of a forecast do the rest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recursion:
    """The coefficients on the last three steps (3,), on two of yesterday (2,), on 1 and two harmonics (5,).

    `impulse` is what a value of 1 leaves behind in the steps after it, shape (S,).
    """

    recent: Values
    yesterday: Values
    season: Values
    impulse: Values


def fit(series: Series, weights: Values, *, is_shrunk: bool) -> Recursion:
    """Return the recursion that fits the last 28 days, shrunk to persistence where asked.

    Args:
        series: the past, a day and some steps or more.
        weights: how much an error of each step counts, shape (n,).
        is_shrunk: whether it is the ridge variant.
    """
    n, day = len(series.values), series.day
    steps = np.arange(max(day + 1, n - FITTED_DAYS * day, N_RECENT), n)
    y, counted = series.values, series.known[steps] * weights[steps]
    harmonics = _harmonics(series.phase(steps))
    if is_shrunk:
        change = np.diff(y, prepend=y[:1])
        features = np.column_stack([change[steps - 1], change[steps - 2], change[steps - day], harmonics])
        penalty_ratio = SHRINKAGE_ROWS / max(float(series.known[steps].sum()), 1.0)
        intercept, a, b, c, *season = solve(features, change[steps], counted, penalty_ratio=penalty_ratio)
        recent, yesterday = [1 + a, b - a, -b], [c, -c]
    else:
        features = np.column_stack([*(y[steps - lag] for lag in (1, 2, 3, day, day + 1)), harmonics])
        intercept, *rest = solve(features, y[steps], counted, penalty_ratio=0.0)
        recent, yesterday, season = rest[:3], rest[3:5], rest[5:]
    return Recursion(
        recent=np.array(recent),
        yesterday=np.array(yesterday),
        season=np.array([intercept, *season]),
        impulse=_impulse(np.array(recent), day),
    )


def predict(
    model: Recursion, series: Series, values: Values, origins: NDArray[np.int_], leads: NDArray[np.int_]
) -> Values:
    """Return the values at leads of up to a day after origins, shape (n_origins, n_leads).

    Args:
        model: the recursion.
        series: the past, whose times are used.
        values: its values, perhaps continued, shape (m,).
        origins: indices of the last value that is looked at, shape (n_origins,).
        leads: steps after it, increasing, at most S, shape (n_leads,).
    """
    driven = _driven(model, series, values, origins, int(leads[-1]))
    ages = leads[:, None] - np.arange(1, leads[-1] + 1)
    answers = np.where(ages >= 0, model.impulse[np.maximum(ages, 0)], 0.0)
    return np.asarray(driven @ answers.T, dtype=np.float64)


def continued(model: Recursion, series: Series, n_leads: int) -> Values:
    """Return the values after the end of a series, shape (n_leads,); beyond a day they rest on forecasts themselves."""
    values, n = series.values, len(series.values)
    while len(values) < n + n_leads:
        n_more = min(series.day, n + n_leads - len(values))
        driven = _driven(model, series, values, np.array([len(values) - 1]), n_more)[0]
        values = np.concatenate((values, np.convolve(driven, model.impulse)[:n_more]))
    return values[n:]


def _driven(model: Recursion, series: Series, values: Values, origins: NDArray[np.int_], n_leads: int) -> Values:
    """Return what drives the recursion at each lead, all that is known beforehand, shape (n_origins, n_leads)."""
    steps = origins[:, None] + np.arange(1, n_leads + 1)
    yesterday = values[steps - series.day] * model.yesterday[0] + values[steps - series.day - 1] * model.yesterday[1]
    driven = yesterday + model.season[0] + _harmonics(series.phase(steps)) @ model.season[1:]
    for lag in range(1, N_RECENT + 1):
        for lead in range(1, min(lag, n_leads) + 1):
            driven[:, lead - 1] += model.recent[lag - 1] * values[origins + lead - lag]
    return np.asarray(driven, dtype=np.float64)


def _harmonics(phase: Values) -> Values:
    """Return sine and cosine of the day and of half of it, shape (..., 4)."""
    sine, cosine = np.sin(phase), np.cos(phase)
    return np.stack([sine, cosine, 2 * sine * cosine, 1 - 2 * sine**2], axis=-1)


def _impulse(coefficients: Values, n: int) -> Values:
    first, second, third = (float(coefficient) for coefficient in coefficients)
    answers = [0.0, 0.0, 1.0]
    for _ in range(n - 1):
        answer = first * answers[-1] + second * answers[-2] + third * answers[-3]
        answers.append(min(max(answer, -MAX_IMPULSE), MAX_IMPULSE))
    return np.array(answers[2:])
