"""The models that a forecast combines, all linear: fitted by (ridge) least squares, evaluated by a few products.

- persistence: the last value;
- autoregression: on the last three steps, the same time yesterday and the step before it, with two daily harmonics;
- climatology: the usual value at the time of the day, plus today's anomaly, damped by its own correlation;
- three regressions of the anomaly, from the climatologies of two weeks, of a month, and of yesterday.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.climatology import N_CLIMATOLOGIES, fit_climatologies
from policies.forecasting.regression import (
    Autoregression,
    extrapolate_autoregression,
    fit_anomaly_damping,
    fit_anomaly_regressions,
    fit_autoregression,
    predict_anomalies,
    predict_autoregression,
)
from policies.forecasting.series import Series
from policies.vocabulary.units import DAY_S, HOUR_S, Values

PERSISTENCE, AUTOREGRESSION, CLIMATOLOGY, FIRST_ANOMALY = range(4)
N_MEMBERS: Final = FIRST_ANOMALY + N_CLIMATOLOGIES
CLIMATOLOGY_OF: Final = (0, *range(N_CLIMATOLOGIES))
"""The index of the climatology of each member from `CLIMATOLOGY` on."""
MIN_DAYS: Final = 3
"""With less history nothing beats persistence reliably."""
FULL_DAYS: Final = 14
"""With less history, changes are shrunk to none."""
LOOK_BACK_DAYS: Final = 3
"""The oldest feature."""
MAX_ROWS: Final = 1_500
"""Finer steps than an hour add rows with little new information."""
LEADS_WITHIN_HOUR: Final = (1, 2, 3, 4, 6, 9)
MARGIN_RATIO: Final = 0.3
"""The most that a forecast leaves the range of the window: of its ends for carbon, of its width for a price."""
LEAST_G_PER_KWH: Final = 1e-3
LEAST_LEVEL_RATIO: Final = 0.3
"""Relative errors are weighted as at this share of the median, where values are below it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedModels:
    """The fitted models.

    Attributes:
        tier: by the length of the history: `persistence`, `ridge` or `regression`.
        leads: the leads of errors and anomaly regressions [steps], shape (c,).
        autoregression: the autoregression, or None.
        damping: of the climatology's anomaly at each lead, shape (c,); NaN with too little history.
        anomaly: the coefficients of the anomaly regressions, shape (u, c, p), or None.
        bounds: the least and the greatest value that may be forecast, shape (2,).
    """

    tier: str
    leads: NDArray[np.int_]
    autoregression: Autoregression | None
    damping: Values
    anomaly: Values | None
    bounds: Values


def lead_steps(step_s: float) -> NDArray[np.int_]:
    """Return the leads of the models [steps]: some within the first hour, then each hour of a day."""
    hour = round(HOUR_S / step_s)
    early = [lead for lead in LEADS_WITHIN_HOUR if lead < hour]
    return np.array([*early, *range(hour, round(DAY_S / step_s) + 1, hour)])


def model_tier(series: Series) -> str:
    """Return the tier of models that the known part of a history supports."""
    n_days = int(series.known.sum()) / series.day
    return "persistence" if n_days < MIN_DAYS else "ridge" if n_days < FULL_DAYS else "regression"


def fit_models(series: Series, *, tier: str, is_carbon: bool, max_rows: int = MAX_ROWS) -> FittedModels:
    """Return the models of a tier, fitted to a series.

    Args:
        series: the history; all of it is used, but by the autoregression the last 28 days.
        tier: `persistence`, `ridge` or `regression`.
        is_carbon: whether values are above 0 and relative errors are minimised, rather than absolute ones.
        max_rows: about how many origins the anomaly regressions use.
    """
    leads = lead_steps(series.step_s)
    weights = _weights(series, is_carbon=is_carbon)
    models = FittedModels(
        tier=tier,
        leads=leads,
        autoregression=None,
        damping=np.full(len(leads), np.nan),
        anomaly=None,
        bounds=forecast_bounds(series, is_carbon=is_carbon),
    )
    if tier == "persistence":
        return models
    climatologies = fit_climatologies(series)
    return replace(
        models,
        autoregression=fit_autoregression(series, weights, is_shrunk=tier == "ridge"),
        damping=fit_anomaly_damping(series, climatologies, leads, max_rows=max_rows),
        anomaly=fit_anomaly_regressions(series, climatologies, leads, weights, max_rows=max_rows)
        if tier == "regression"
        else None,
    )


def forecast_bounds(series: Series, *, is_carbon: bool) -> Values:
    """Return the least and the greatest value that may be forecast after a series, shape (2,)."""
    known = series.values[series.known]
    least, greatest = known.min(), known.max()
    if is_carbon:
        floor = max((1 - MARGIN_RATIO) * least, LEAST_G_PER_KWH)
        return np.array([floor, max((1 + MARGIN_RATIO) * greatest, floor)])
    margin = MARGIN_RATIO * (greatest - least)
    return np.array([least - margin, greatest + margin])


def widen_bounds(bounds: Values, series: Series, *, is_carbon: bool) -> Values:
    """Return bounds widened to those of a series, shape (2,)."""
    low, high = forecast_bounds(series, is_carbon=is_carbon)
    return np.array([min(low, bounds[0]), max(high, bounds[1])])


def forecast_members(models: FittedModels, series: Series, n_leads: int) -> Values:
    """Return the forecast of each model from the end of a series, shape (`N_MEMBERS`, n_leads), or NaN."""
    values = np.full((N_MEMBERS, n_leads), np.nan)
    values[PERSISTENCE] = series.values[-1]
    if models.autoregression is None:
        return values
    climatologies = fit_climatologies(series, n_last_days=LOOK_BACK_DAYS)
    series = series.last(LOOK_BACK_DAYS)
    values[AUTOREGRESSION] = extrapolate_autoregression(models.autoregression, series, n_leads)
    now = climatologies.anomaly[:, -1:]
    then = [models.damping * now[0]]
    if models.anomaly is not None:
        origin = np.array([len(series.values) - 1])
        then += list(predict_anomalies(models.anomaly, series, climatologies, origin, models.leads)[:, 0])
    usual = climatologies.ahead(n_leads)
    for row, index in zip(range(CLIMATOLOGY, CLIMATOLOGY + len(then)), CLIMATOLOGY_OF, strict=False):
        values[row] = usual[index] + _interpolated(now[index], then[row - CLIMATOLOGY], models.leads, n_leads)
    return values


def hindcast(models: FittedModels, series: Series, origins: NDArray[np.int_]) -> Values:
    """Return what each model would have forecast at its leads from past steps, shape (`N_MEMBERS`, n_origins, c).

    Args:
        models: fitted to what was known before the origins.
        series: the history.
        origins: indices of the last known step, shape (n_origins,).
    """
    values = np.full((N_MEMBERS, len(origins), len(models.leads)), np.nan)
    values[PERSISTENCE] = series.values[origins][:, None]
    if models.autoregression is not None:
        values[AUTOREGRESSION] = predict_autoregression(
            models.autoregression, series, series.values, origins, models.leads
        )
        targets = origins[:, None] + models.leads
        climatologies = fit_climatologies(series)
        usual = climatologies.values[:, targets]
        values[CLIMATOLOGY] = usual[0] + models.damping * climatologies.anomaly[0, origins][:, None]
        if models.anomaly is not None:
            values[FIRST_ANOMALY:] = usual + predict_anomalies(
                models.anomaly, series, climatologies, origins, models.leads
            )
    low, high = models.bounds
    return np.asarray(np.clip(values, low, high), dtype=np.float64)


def _weights(series: Series, *, is_carbon: bool) -> Values:
    """Return the weight of each step's error, shape (n,): of the relative error for carbon, else 1."""
    if not is_carbon:
        return np.ones(len(series.values))
    usual = max(float(np.median(series.values[series.known])), LEAST_G_PER_KWH)
    return np.asarray(usual / np.maximum(series.values, LEAST_LEVEL_RATIO * usual), dtype=np.float64)


def _interpolated(now: Values, then: Values, leads: NDArray[np.int_], n_leads: int) -> Values:
    """Return an anomaly interpolated from now (1,) over the leads (c,), shape (n_leads,)."""
    if len(leads) == n_leads == leads[-1]:
        return then
    return np.interp(np.arange(1, n_leads + 1), np.concatenate(([0], leads)), np.concatenate((now, then)))
