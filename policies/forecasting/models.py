"""The models that a forecast is made of, all linear: fitted by (ridge) least squares, evaluated by a few products.

- persistence: the last value stays;
- autoregression: on the last three steps, the same time yesterday and the step before it, with two daily harmonics
  (`recursion`);
- climatology: what was usual at the time of the day, plus today's anomaly, damped by its own correlation;
- three regressions of the anomaly (`anomaly`), from what was usual of late, in the last month, and yesterday.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting import anomaly, recursion
from policies.forecasting.climatology import N_USUALS, climate_of
from policies.forecasting.forecast import Values
from policies.forecasting.series import HOUR_S, Series

PERSISTENCE, AUTOREGRESSION, CLIMATOLOGY, FIRST_ANOMALY = range(4)
N_MEMBERS: Final = FIRST_ANOMALY + N_USUALS
USUAL_OF: Final = (0, *range(N_USUALS))
"""The climatology of each member from `CLIMATOLOGY` on."""
MIN_DAYS: Final = 3
"""With less history than this nothing beats persistence reliably."""
FULL_DAYS: Final = 14
"""With less than this, changes are shrunk to none."""
LOOK_BACK_DAYS: Final = 3
"""No feature is older."""
MAX_ROWS: Final = 1_500
"""Finer steps than an hour add rows that say the same again."""
MAX_LEAD_S: Final = 86_400.0
LEADS_WITHIN_HOUR: Final = (1, 2, 3, 4, 6, 9)
MARGIN_RATIO: Final = 0.3
"""A forecast leaves the range of the window by this much at most: of its ends for carbon, of its width for a price."""
LEAST_G_PER_KWH: Final = 1e-3
LEAST_LEVEL_RATIO: Final = 0.3
"""Relative errors count, but values below this share of the median no more than it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Models:
    """What was fitted.

    Attributes:
        name: how far the history reached: `persistence`, `ridge` or `regression`.
        leads: the leads at which errors are remembered and anomalies forecast, in steps, shape (c,).
        recursion: the autoregression, or None.
        damping: of the climatology's anomaly, shape (c,); NaN where too little is known.
        anomaly: the coefficients of the anomaly for each climatology, shape (u, c, p), or None.
        bounds: the least and the greatest that may be forecast, shape (2,).
    """

    name: str
    leads: NDArray[np.int_]
    recursion: recursion.Recursion | None
    damping: Values
    anomaly: Values | None
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


def fit(series: Series, *, rung: str, is_carbon: bool, max_rows: int = MAX_ROWS) -> Models:
    """Return the models of a rung of the ladder, fitted to a series.

    Args:
        series: the past; all of it is used, but by the autoregression the last 28 days.
        rung: `persistence`, `ridge` or `regression`.
        is_carbon: values are above 0 and their relative errors count; else differences alone have a meaning.
        max_rows: about how many origins the regressions of the anomaly look at.
    """
    leads = leads_of(series.step_s)
    weights = _weights(series, is_carbon=is_carbon)
    models = Models(
        name=rung,
        leads=leads,
        recursion=None,
        damping=np.full(len(leads), np.nan),
        anomaly=None,
        bounds=bounds_of(series, is_carbon=is_carbon),
    )
    if rung == "persistence":
        return models
    climate = climate_of(series)
    return replace(
        models,
        recursion=recursion.fit(series, weights, is_shrunk=rung == "ridge"),
        damping=anomaly.fit_damping(series, climate, leads, max_rows=max_rows),
        anomaly=anomaly.fit(series, climate, leads, weights, max_rows=max_rows) if rung == "regression" else None,
    )


def bounds_of(series: Series, *, is_carbon: bool) -> Values:
    """Return the least and the greatest value that may be forecast after a series, shape (2,)."""
    known = series.values[series.known]
    least, greatest = known.min(), known.max()
    if is_carbon:
        floor = max((1 - MARGIN_RATIO) * least, LEAST_G_PER_KWH)
        return np.array([floor, max((1 + MARGIN_RATIO) * greatest, floor)])
    margin = MARGIN_RATIO * (greatest - least)
    return np.array([least - margin, greatest + margin])


def widened(bounds: Values, series: Series, *, is_carbon: bool) -> Values:
    """Return bounds that also hold for a series, shape (2,)."""
    low, high = bounds_of(series, is_carbon=is_carbon)
    return np.array([min(low, bounds[0]), max(high, bounds[1])])


def outlook(models: Models, series: Series, n_leads: int) -> Values:
    """Return what each model forecasts from the end of a series, shape (`N_MEMBERS`, n_leads); NaN where it cannot."""
    values = np.full((N_MEMBERS, n_leads), np.nan)
    values[PERSISTENCE] = series.values[-1]
    if models.recursion is None:
        return values
    climate = climate_of(series, n_last_days=LOOK_BACK_DAYS)
    series = series.last(LOOK_BACK_DAYS)
    values[AUTOREGRESSION] = recursion.continued(models.recursion, series, n_leads)
    now = climate.anomaly[:, -1:]
    then = [models.damping * now[0]]
    if models.anomaly is not None:
        origin = np.array([len(series.values) - 1])
        then += list(anomaly.predict(models.anomaly, series, climate, origin, models.leads)[:, 0])
    usual = climate.ahead(n_leads)
    for row, index in zip(range(CLIMATOLOGY, CLIMATOLOGY + len(then)), USUAL_OF, strict=False):
        values[row] = usual[index] + _between(now[index], then[row - CLIMATOLOGY], models.leads, n_leads)
    return values


def hindcast(models: Models, series: Series, origins: NDArray[np.int_]) -> Values:
    """Return what each model would have forecast at its leads from past steps, shape (`N_MEMBERS`, n_origins, c).

    Args:
        models: fitted to what was known before the origins.
        series: the past.
        origins: indices of the last step that is looked at, shape (n_origins,).
    """
    values = np.full((N_MEMBERS, len(origins), len(models.leads)), np.nan)
    values[PERSISTENCE] = series.values[origins][:, None]
    if models.recursion is not None:
        values[AUTOREGRESSION] = recursion.predict(models.recursion, series, series.values, origins, models.leads)
        targets = origins[:, None] + models.leads
        climate = climate_of(series)
        usual = climate.values[:, targets]
        values[CLIMATOLOGY] = usual[0] + models.damping * climate.anomaly[0, origins][:, None]
        if models.anomaly is not None:
            values[FIRST_ANOMALY:] = usual + anomaly.predict(models.anomaly, series, climate, origins, models.leads)
    low, high = models.bounds
    return np.asarray(np.clip(values, low, high), dtype=np.float64)


def _weights(series: Series, *, is_carbon: bool) -> Values:
    """Return how much an error counts at each step, shape (n,): the relative one for carbon, else each the same."""
    if not is_carbon:
        return np.ones(len(series.values))
    usual = max(float(np.median(series.values[series.known])), LEAST_G_PER_KWH)
    return np.asarray(usual / np.maximum(series.values, LEAST_LEVEL_RATIO * usual), dtype=np.float64)


def _between(now: Values, then: Values, leads: NDArray[np.int_], n_leads: int) -> Values:
    """Return an anomaly that runs in lines from now (1,) over the leads (c,), shape (n_leads,)."""
    if len(leads) == n_leads == leads[-1]:
        return then
    return np.interp(np.arange(1, n_leads + 1), np.concatenate(([0], leads)), np.concatenate((now, then)))
