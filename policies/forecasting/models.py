"""The models that a forecast is made of, all linear: fitted by (ridge) least squares, evaluated by a few products.

- persistence: the last value stays;
- autoregression: on the last three steps, the same time yesterday and the step before it, with two daily harmonics
  (`recursion`);
- climatology: what was usual at the time of the day, plus today's anomaly, damped by its own correlation;
- anomaly: a regression of the anomaly for each lead (`anomaly`).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting import anomaly, recursion
from policies.forecasting.forecast import Values
from policies.forecasting.series import HOUR_S, Series

PERSISTENCE, AUTOREGRESSION, CLIMATOLOGY, ANOMALY = range(4)
N_MEMBERS: Final = 4
MIN_DAYS: Final = 3
"""With less history than this nothing beats persistence reliably."""
FULL_DAYS: Final = 14
"""With less than this, changes are shrunk to none."""
MAX_LEAD_S: Final = 86_400.0
LEADS_WITHIN_HOUR: Final = (1, 2, 3, 4, 6, 9)
MARGIN_RATIO: Final = 0.3
"""A forecast leaves the range of the window by this much at most: of its ends for carbon, of its width for a price."""
LEAST_G_PER_KWH: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Models:
    """What was fitted.

    Attributes:
        name: how far the history reached: `persistence`, `ridge` or `regression`.
        leads: the leads at which errors are remembered and anomalies forecast, in steps, shape (c,).
        recursion: the autoregression, or None.
        damping: of the climatology's anomaly, shape (c,); NaN where too little is known.
        anomaly: the regressions of the anomaly, or None.
        bounds: the least and the greatest that may be forecast, shape (2,).
    """

    name: str
    leads: NDArray[np.int_]
    recursion: recursion.Recursion | None
    damping: Values
    anomaly: anomaly.AnomalyModel | None
    bounds: Values


def leads_of(step_s: float) -> NDArray[np.int_]:
    """Return the leads of the models [steps]: some within the first hour, then each hour of a day."""
    hour = round(HOUR_S / step_s)
    early = [lead for lead in LEADS_WITHIN_HOUR if lead < hour]
    return np.array([*early, *range(hour, round(MAX_LEAD_S / step_s) + 1, hour)])


def rung_of(series: Series) -> str:
    """Return which models the known part of a history can bear."""
    n_days = int(series.known.sum()) / series.day
    return "persistence" if n_days < MIN_DAYS else "ridge" if n_days < FULL_DAYS else "regression"


def fit(series: Series, *, rung: str, is_carbon: bool) -> Models:
    """Return the models of a rung of the ladder, fitted to a series.

    Args:
        series: the past; all of it is used, but by the autoregression the last 28 days.
        rung: `persistence`, `ridge` or `regression`.
        is_carbon: values are above 0 and their relative errors count; else differences alone have a meaning.
    """
    leads = leads_of(series.step_s)
    is_full = rung == "regression"
    return Models(
        name=rung,
        leads=leads,
        recursion=None if rung == "persistence" else recursion.fit(series, is_shrunk=not is_full),
        damping=np.full(len(leads), np.nan) if rung == "persistence" else anomaly.fit_damping(series, leads),
        anomaly=anomaly.fit(series, leads, is_carbon=is_carbon) if is_full else None,
        bounds=bounds_of(series.values[series.known], is_carbon=is_carbon),
    )


def bounds_of(values: Values, *, is_carbon: bool) -> Values:
    """Return the least and the greatest value that may be forecast after these, shape (2,)."""
    least, greatest = values.min(), values.max()
    if is_carbon:
        floor = max((1 - MARGIN_RATIO) * least, LEAST_G_PER_KWH)
        return np.array([floor, max((1 + MARGIN_RATIO) * greatest, floor)])
    margin = MARGIN_RATIO * (greatest - least)
    return np.array([least - margin, greatest + margin])


def widened(bounds: Values, series: Series, *, is_carbon: bool) -> Values:
    """Return bounds that also hold for a series, shape (2,)."""
    low, high = bounds_of(series.values[series.known], is_carbon=is_carbon)
    return np.array([min(low, bounds[0]), max(high, bounds[1])])


def outlook(models: Models, series: Series, n_leads: int) -> Values:
    """Return what each model forecasts from the end of a series, shape (`N_MEMBERS`, n_leads); NaN where it cannot."""
    values = np.full((N_MEMBERS, n_leads), np.nan)
    values[PERSISTENCE] = series.values[-1]
    if models.recursion is not None:
        values[AUTOREGRESSION] = recursion.continued(models.recursion, series, n_leads)
        climate = np.resize(series.climate[-series.day :], n_leads)
        last = len(series.values) - 1
        every = np.arange(1, n_leads + 1)
        known = np.concatenate(([0], models.leads))
        now = series.anomaly[last:]
        damped = np.concatenate((now, models.damping * now))
        values[CLIMATOLOGY] = climate + np.interp(every, known, damped)
        if models.anomaly is not None:
            then = anomaly.predict(models.anomaly, series, np.array([last]))[0]
            values[ANOMALY] = climate + np.interp(every, known, np.concatenate((now, then)))
    return values


def hindcast(models: Models, series: Series, origins: NDArray[np.int_]) -> Values:
    """Return what each model would have forecast at its leads from past steps, shape (`N_MEMBERS`, n_origins, c).

    Args:
        models: fitted to what was known before the origins.
        series: the past.
        origins: indices of the last step that is looked at, a day or more before the end, shape (n_origins,).
    """
    values = np.full((N_MEMBERS, len(origins), len(models.leads)), np.nan)
    values[PERSISTENCE] = series.values[origins][:, None]
    if models.recursion is not None:
        climate = series.climate[origins[:, None] + models.leads]
        values[AUTOREGRESSION] = recursion.predict(models.recursion, series, series.values, origins, models.leads)
        values[CLIMATOLOGY] = climate + models.damping * series.anomaly[origins][:, None]
        if models.anomaly is not None:
            values[ANOMALY] = climate + anomaly.predict(models.anomaly, series, origins)
    low, high = models.bounds
    return np.asarray(np.clip(values, low, high), dtype=np.float64)
