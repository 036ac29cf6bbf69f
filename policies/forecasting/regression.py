"""Regressions: weighted ridge least squares, an autoregression, and regressions of the anomaly.

The autoregression is y_t = Σ φ_l y_{t-l} + harmonics with l = 1, 2, 3, S, S+1 (S steps are a day), iterated. With
little history its ridge variant explains the changes of the value by the last changes and by yesterday's, and shrinks
them to none, that is to persistence. Both are one recursion. Its iteration is linear in what is known, so the value at
each lead is a product with the impulse response, and no lead waits for the one before it.

The anomaly h steps ahead is regressed, for each lead, on the anomaly now, its mean over the last day, its changes over
one and two steps and over one and two hours, and yesterday's anomaly at the target time. How the anomaly and its
changes persist depends on the time of the day (a lack of sunshine ends at sunset), so both enter also multiplied by
sine and cosine of it.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.climatology import Climatologies
from policies.forecasting.series import Series
from policies.vocabulary.units import HOUR_S, Values

TINY_RATIO: Final = 1e-7
"""Added to the diagonal of the correlations, since columns may be collinear."""
AUTOREGRESSION_DAYS: Final = 28
RIDGE_ROWS: Final = 30.0
"""The ridge variant weighs "no change" like so many observations."""
N_RECENT_LAGS: Final = 3
MAX_RESPONSE: Final = 1e6
"""The response of an unstable recursion is cut off here; the bounds of a forecast do the rest."""
RIDGE_RATIO: Final = 1e-3


def ridge_regression(features: Values, targets: Values, weights: Values, *, penalty_ratio: float) -> Values:
    """Return the intercept and the coefficients of a weighted ridge regression, shape (1 + p,).

    It minimises Σ w (y - b₀ - x·b)² / Σ w + penalty Σ b_k² var(x_k): each coefficient is shrunk in the unit of its
    own feature, the intercept is free.

    Args:
        features: shape (n, p).
        targets: shape (n,).
        weights: shape (n,), at least 0; where all are 0, so is the result.
        penalty_ratio: the penalty, in shares of a feature's own variance.
    """
    columns = np.column_stack([np.ones(len(features)), features])
    weighted = columns * (weights / (weights.sum() or 1.0))[:, None]
    solved = _solve_moments((weighted.T @ columns)[None], (weighted.T @ targets)[None, :, None], penalty_ratio)
    return np.asarray(solved[0], dtype=np.float64)


def ridge_regressions(
    features: Values, own: Values, targets: Values, weights: Values, *, penalty_ratio: float
) -> Values:
    """Return the coefficients of c such regressions, which share their features but one, shape (c, 1 + p + 1).

    All sums are products of few matrices, so that a refit is cheap.

    Args:
        features: shape (n, p).
        own: the last feature of each, shape (n, c).
        targets: shape (n, c).
        weights: shape (n, c), at least 0; where all of one are 0, so is its result.
        penalty_ratio: as in `ridge_regression`.
    """
    columns = np.column_stack([np.ones(len(features)), features])
    n_shared, n_each = columns.shape[1], targets.shape[1]
    totals = weights.sum(axis=0)
    shares = weights / np.where(totals > 0, totals, 1.0)
    upper = np.triu_indices(n_shared)
    products = (columns[:, upper[0]] * columns[:, upper[1]]).T @ shares
    moments = np.empty((n_each, n_shared + 1, n_shared + 1))
    moments[:, upper[0], upper[1]] = moments[:, upper[1], upper[0]] = products.T
    moments[:, -1, :-1] = moments[:, :-1, -1] = (columns.T @ (shares * own)).T
    moments[:, -1, -1] = (shares * own**2).sum(axis=0)
    shared = (columns.T @ (shares * targets)).T
    cross = np.concatenate((shared, (shares * own * targets).sum(axis=0)[:, None]), axis=1)
    return _solve_moments(moments, cross[..., None], penalty_ratio)


def _solve_moments(moments: Values, cross: Values, penalty_ratio: float) -> Values:
    """Return the coefficients from weighted means of products (c, k, k), and with targets (c, k, 1)."""
    means, target_means = moments[:, 0, 1:], cross[:, 0, 0]
    squares = np.diagonal(moments, axis1=1, axis2=2)[:, 1:]
    products = moments[:, 1:, 1:] - means[:, :, None] * means[:, None, :]
    scales = np.sqrt(np.maximum(np.diagonal(products, axis1=1, axis2=2), 0.0))
    scales = np.where(scales > 1e-7 * np.sqrt(squares) + 1e-150, scales, np.inf)  # below it, rounding
    matrix = products / scales[:, :, None] / scales[:, None, :]
    diagonal = np.arange(matrix.shape[1])
    matrix[:, diagonal, diagonal] = 1.0 + penalty_ratio + TINY_RATIO
    right = (cross[:, 1:, 0] - means * target_means[:, None]) / scales
    coefficients = np.linalg.solve(matrix, right[..., None])[..., 0] / scales
    intercepts = target_means - (means * coefficients).sum(axis=1)
    return np.concatenate((intercepts[:, None], coefficients), axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Autoregression:
    """The coefficients of the autoregression.

    Attributes:
        recent: of the last three steps, shape (3,).
        yesterday: of two steps of yesterday, shape (2,).
        season: of 1 and two harmonics, shape (5,).
        impulse_response: what a value of 1 leaves in the steps after it, shape (S,).
    """

    recent: Values
    yesterday: Values
    season: Values
    impulse_response: Values


def fit_autoregression(series: Series, weights: Values, *, is_shrunk: bool) -> Autoregression:
    """Return the autoregression fitted to the last 28 days.

    Args:
        series: the history, a day and some steps or more.
        weights: the weight of each step's error, shape (n,).
        is_shrunk: whether it is the ridge variant.
    """
    n, day = len(series.values), series.day
    steps = np.arange(max(day + 1, n - AUTOREGRESSION_DAYS * day, N_RECENT_LAGS), n)
    y, counted = series.values, series.known[steps] * weights[steps]
    harmonics = _harmonics(series.phase(steps))
    if is_shrunk:
        change = np.diff(y, prepend=y[:1])
        features = np.column_stack([change[steps - 1], change[steps - 2], change[steps - day], harmonics])
        penalty_ratio = RIDGE_ROWS / max(float(series.known[steps].sum()), 1.0)
        intercept, a, b, c, *season = ridge_regression(features, change[steps], counted, penalty_ratio=penalty_ratio)
        recent, yesterday = [1 + a, b - a, -b], [c, -c]
    else:
        features = np.column_stack([*(y[steps - lag] for lag in (1, 2, 3, day, day + 1)), harmonics])
        intercept, *rest = ridge_regression(features, y[steps], counted, penalty_ratio=0.0)
        recent, yesterday, season = rest[:3], rest[3:5], rest[5:]
    return Autoregression(
        recent=np.array(recent),
        yesterday=np.array(yesterday),
        season=np.array([intercept, *season]),
        impulse_response=_impulse_response(np.array(recent), day),
    )


def predict_autoregression(
    model: Autoregression, series: Series, values: Values, origins: NDArray[np.int_], leads: NDArray[np.int_]
) -> Values:
    """Return the values at leads of up to a day after origins, shape (n_origins, n_leads).

    Args:
        model: the autoregression.
        series: the history, whose times are used.
        values: its values, perhaps extrapolated, shape (m,).
        origins: indices of the last known value, shape (n_origins,).
        leads: steps after it, increasing, at most S, shape (n_leads,).
    """
    driven = _driving_terms(model, series, values, origins, int(leads[-1]))
    ages = leads[:, None] - np.arange(1, leads[-1] + 1)
    answers = np.where(ages >= 0, model.impulse_response[np.maximum(ages, 0)], 0.0)
    return np.asarray(driven @ answers.T, dtype=np.float64)


def extrapolate_autoregression(model: Autoregression, series: Series, n_leads: int) -> Values:
    """Return the values after the end of a series, shape (n_leads,); beyond a day they rest on forecasts."""
    values, n = series.values, len(series.values)
    while len(values) < n + n_leads:
        n_more = min(series.day, n + n_leads - len(values))
        driven = _driving_terms(model, series, values, np.array([len(values) - 1]), n_more)[0]
        values = np.concatenate((values, np.convolve(driven, model.impulse_response)[:n_more]))
    return values[n:]


def _driving_terms(
    model: Autoregression, series: Series, values: Values, origins: NDArray[np.int_], n_leads: int
) -> Values:
    """Return the terms of the recursion at each lead that are known at the origin, shape (n_origins, n_leads)."""
    steps = origins[:, None] + np.arange(1, n_leads + 1)
    yesterday = values[steps - series.day] * model.yesterday[0] + values[steps - series.day - 1] * model.yesterday[1]
    driven = yesterday + model.season[0] + _harmonics(series.phase(steps)) @ model.season[1:]
    for lag in range(1, N_RECENT_LAGS + 1):
        for lead in range(1, min(lag, n_leads) + 1):
            driven[:, lead - 1] += model.recent[lag - 1] * values[origins + lead - lag]
    return np.asarray(driven, dtype=np.float64)


def _harmonics(phase: Values) -> Values:
    """Return sine and cosine of the day and of half of it, shape (..., 4)."""
    sine, cosine = np.sin(phase), np.cos(phase)
    return np.stack([sine, cosine, 2 * sine * cosine, 1 - 2 * sine**2], axis=-1)


def _impulse_response(coefficients: Values, n: int) -> Values:
    first, second, third = (float(coefficient) for coefficient in coefficients)
    answers = [0.0, 0.0, 1.0]
    for _ in range(n - 1):
        answer = first * answers[-1] + second * answers[-2] + third * answers[-3]
        answers.append(min(max(answer, -MAX_RESPONSE), MAX_RESPONSE))
    return np.array(answers[2:])


def fit_anomaly_regressions(
    series: Series, climatologies: Climatologies, leads: NDArray[np.int_], weights: Values, *, max_rows: int
) -> Values:
    """Return the coefficients for each climatology and lead, of 1, the features now, and yesterday, shape (u, c, p).

    Args:
        series: the history.
        climatologies: its climatologies.
        leads: the leads [steps], at most a day, shape (c,).
        weights: the weight of each step's error, shape (n,).
        max_rows: about how many origins are used.
    """
    coefficients = []
    for first, anomaly in zip(climatologies.first_steps, climatologies.anomaly, strict=True):
        origins, targets, counted = _training_rows(series, int(first), leads, max_rows)
        solved = ridge_regressions(
            _anomaly_features(series, anomaly[None], origins)[0],
            anomaly[targets - series.day],
            anomaly[targets],
            counted * weights[targets],
            penalty_ratio=RIDGE_RATIO,
        )
        coefficients.append(solved)
    return np.array(coefficients)


def fit_anomaly_damping(
    series: Series, climatologies: Climatologies, leads: NDArray[np.int_], *, max_rows: int
) -> Values:
    """Return the share of the first anomaly that is left at each lead, by least squares, 0 to 1, shape (c,)."""
    origins, targets, counted = _training_rows(series, int(climatologies.first_steps[0]), leads, max_rows)
    anomaly = climatologies.anomaly[0]
    now = anomaly[origins][:, None]
    squares = (counted * now**2).sum(axis=0)
    shares = (counted * now * anomaly[targets]).sum(axis=0) / np.where(squares > 0, squares, 1.0)
    return np.asarray(np.clip(shares, 0.0, 1.0), dtype=np.float64)


def predict_anomalies(
    coefficients: Values,
    series: Series,
    climatologies: Climatologies,
    origins: NDArray[np.int_],
    leads: NDArray[np.int_],
) -> Values:
    """Return the anomaly of each climatology at each lead after origins, shape (u, n_origins, c)."""
    yesterday = climatologies.anomaly[:, origins[:, None] + leads - series.day]
    features = _anomaly_features(series, climatologies.anomaly, origins)
    now = coefficients[:, None, :, 0] + features @ coefficients[:, :, 1:-1].transpose(0, 2, 1)
    return np.asarray(now + yesterday * coefficients[:, None, :, -1], dtype=np.float64)


def _training_rows(
    series: Series, first: int, leads: NDArray[np.int_], max_rows: int
) -> tuple[NDArray[np.int_], NDArray[np.int_], NDArray[np.bool_]]:
    """Return origins (r,), their targets (r, c), and which of them count; a target beyond the end does not.

    The stride of the origins is prime to a day, so that all times of the day occur.
    """
    n = len(series.values)
    stride = max(1, (n - first) // max_rows)
    while math.gcd(stride, series.day) != 1:
        stride += 1
    origins = np.arange(n - 2, first - 1, -stride)
    targets = origins[:, None] + leads
    within = np.minimum(targets, n - 1)
    return origins, within, (targets < n) & series.known[within] & series.known[origins][:, None]


def _anomaly_features(series: Series, anomaly: Values, origins: NDArray[np.int_]) -> Values:
    """Return the features of anomalies (u, n) at origins, shape (u, r, p)."""
    hour, phase = round(HOUR_S / series.step_s), series.phase(origins)
    sums = np.cumsum(anomaly, axis=1)
    day_mean = (sums[:, origins] - sums[:, origins - series.day]) / series.day
    now = anomaly[:, origins]
    changes = {lag: now - anomaly[:, origins - lag] for lag in sorted({1, 2, hour, 2 * hour})}
    waves = [np.sin(phase), np.cos(phase)]
    turning = [changes[lag] * wave for lag in sorted({1, hour}) for wave in waves]
    standing = [now * wave for wave in (*waves, np.sin(2 * phase), np.cos(2 * phase))]
    return np.stack([now, day_mean, *changes.values(), *turning, *standing], axis=2)
