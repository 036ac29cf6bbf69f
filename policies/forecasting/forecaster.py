"""The forecaster: refits when due, verifies its earlier forecasts, and forecasts.

Everything is in the state and the arguments. A call with the same history as before costs next to nothing: what the
models forecast is kept until the history changes.
"""

import math
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.backtest import backtest
from policies.forecasting.ensemble import Skill, member_weights, provider_weights, update_skill, weighted_mean
from policies.forecasting.models import (
    MIN_DAYS,
    N_MEMBERS,
    FittedModels,
    fit_models,
    forecast_members,
    model_tier,
    widen_bounds,
)
from policies.forecasting.past_errors import PastErrors
from policies.forecasting.prediction_intervals import (
    PredictionIntervals,
    interval_ends,
    update_intervals,
    with_more_errors,
)
from policies.forecasting.series import HistoryExtent, Series, build_series, history_extent, hour_of_day, sample
from policies.forecasting.track_record import (
    IssuedForecast,
    TrackRecord,
    empty_track_record,
    is_issue_due,
    verify,
    with_issued,
)
from policies.vocabulary.freshness import PERSISTENCE
from policies.vocabulary.signal import ESTIMATED, Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values

MAX_LAG_S: Final = DAY_S
"""No forecast is made from a last value that ended longer ago than this."""
MAX_PERSISTENCE_LAG_S: Final = 2 * HOUR_S
"""Nor a persistence: two hours of staleness cost a plan little."""
FITTED_DAYS: Final = 60
RECENT_DAYS: Final = 30
"""The history of a forecast between two fits: the days of the climatology, and two whose anomaly is known."""
REFIT_S: Final = DAY_S
SHORT_REFIT_S: Final = HOUR_S
"""While the history is short, much of it is new after an hour."""
REWIND_S: Final = 2 * DAY_S
"""A history that ends so much earlier than before is another one."""
ROUNDING_RATIO: Final = 1e-6
"""A smaller part of a step is rounding."""

SeriesKey = tuple[str, str, str, float]
HistoryVersion = tuple[int, float, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """A forecast.

    Attributes:
        signal: the best estimate, from the end of the last known value on.
        lower: the lower end of the 90 % prediction interval, shape (n,), in the signal's unit; NaN if not known yet.
        upper: the upper end, the same.
    """

    signal: Signal
    lower: Values
    upper: Values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecasterState:
    """What is kept of one series between two forecasts: one fit, a day of forecasts, four weeks of errors.

    Attributes:
        key: kind, zone, unit and step: nothing that is learned from one series applies to another.
        version: identifies a history: number of values, end, and checksum of the values.
        models: the fitted models.
        fitted_s: where the history ended at the fit [Unix s].
        bounds: the least and the greatest value that is forecast, shape (2,).
        members: the forecast of each model from the end of the history on, shape (m, n_leads).
        track_record: the issued forecasts that are not verified yet.
        skill: the errors of the models and of the provider's forecast.
        intervals: the errors of the issued forecasts by lead and hour, and what follows from them.
        past: the errors of the same forecasts, each whole.
        lead_weights: the weights of the models, and that of the provider's forecast, at each lead, shape (m + 1, c).
        interval_ends: the ends of the interval relative to the estimate, at each lead and hour, shape (2, c, 24).
    """

    key: SeriesKey
    version: HistoryVersion
    models: FittedModels
    fitted_s: float
    bounds: Values
    members: Values
    track_record: TrackRecord
    skill: Skill
    intervals: PredictionIntervals
    past: PastErrors
    lead_weights: Values
    interval_ends: Values

    @property
    def is_carbon(self) -> bool:
        """Return whether values are above 0, so that their ratios have a meaning."""
        return _is_carbon(self.key)

    @property
    def step_s(self) -> float:
        """Return the step [s]."""
        return self.key[-1]

    @property
    def leads_s(self) -> Values:
        """Return how far ahead the end of the step is that each lead forecasts, shape (c,) [s]."""
        return np.asarray(self.models.leads * self.step_s, dtype=np.float64)

    @property
    def past_errors(self) -> Values | None:
        """Return the errors of past forecasts 1, 2, … 24 hours ahead, shape (n, 24); None: none of an hour yet."""
        return self.past.by_hour(self.leads_s)


def advance(
    state: ForecasterState | None,
    *,
    history: Signal,
    provider_forecast: Signal | None,
    now_s: float,
    horizon_s: float = DAY_S,
) -> tuple[ForecasterState | None, Forecast | None]:
    """Return the next state and the forecast, or None if none can be made.

    Refits when due (daily, or when the series, its step or its length require other models), verifies earlier
    forecasts, and forecasts from the end of the last known value on. It may be called at any interval, with a history
    whose old values were revised.

    Args:
        state: the state of the last call, or None at first.
        history: the known values; those that start after `now_s`, or are older than 60 days, are ignored.
        provider_forecast: the provider's own forecast, or None.
        now_s: Unix time [s].
        horizon_s: how far from now the forecast reaches [s].
    """
    extent = history_extent(history, now_s)
    if extent is None or now_s - extent.end_s > MAX_LAG_S:
        return state, None
    reach_steps = (now_s + horizon_s - extent.end_s) / extent.step_s
    if reach_steps < ROUNDING_RATIO:  # the last value holds over the whole horizon
        return state, None
    n_leads = math.ceil(reach_steps - ROUNDING_RATIO)
    state = _updated(state, history, extent, n_leads)
    stops_s = extent.end_s + np.arange(1, n_leads + 1, dtype=np.float64) * extent.step_s
    provided = _provided(history, provider_forecast, stops_s - extent.step_s / 2)
    values, interval, is_provider_used = _combined(state, provided, hour_of_day(stops_s - extent.step_s / 2))
    if is_issue_due(state.track_record, extent.end_s):
        state = _with_issued(state, extent, provided, values, interval)
    source = state.models.tier
    if provider_forecast is not None and is_provider_used:
        source = f"{source}+{provider_forecast.source}"
    signal = replace(
        history,
        source=source,
        starts_s=stops_s - extent.step_s,
        values=values,
        ends_s=now_s + horizon_s,
        issued_at_s=now_s,
        estimated=ESTIMATED,
    )
    return state, Forecast(signal=signal, lower=interval[0], upper=interval[1])


def persistence(
    history: Signal, *, now_s: float, horizon_s: float, step_s: float, max_age_s: float = MAX_PERSISTENCE_LAG_S
) -> Signal | None:
    """Return the last known value, held for `horizon_s` from now on, or None if it is too old.

    Args:
        history: the known values; those that start after `now_s` are ignored.
        now_s: Unix time [s].
        horizon_s: how far the forecast reaches [s].
        step_s: the length of its steps [s].
        max_age_s: how long ago the last known value may have ended [s].
    """
    known = ~np.isnan(history.values) & (history.starts_s <= now_s)
    if not known.any() or history.age_s(now_s) > max_age_s:
        return None
    starts_s = np.arange(now_s, now_s + horizon_s, step_s, dtype=np.float64)
    return replace(
        history,
        source=PERSISTENCE,
        starts_s=starts_s,
        values=np.full(len(starts_s), history.values[known][-1]),
        ends_s=now_s + horizon_s,
        issued_at_s=now_s,
        estimated=ESTIMATED,
    )


def _is_carbon(key: SeriesKey) -> bool:
    return key[0] in {"average", "marginal"}


def _updated(state: ForecasterState | None, history: Signal, extent: HistoryExtent, n_leads: int) -> ForecasterState:
    """Return the state updated by a history: refitted if due, verified, with `n_leads` steps forecast."""
    key = (history.kind, history.zone, history.unit, extent.step_s)
    version = extent.n_known, extent.end_s, crc32(history.values[: extent.n_known].data)
    if state is not None and (state.key != key or extent.end_s < state.version[1] - REWIND_S):
        state = None
    if state is not None and state.version == version and state.members.shape[1] >= n_leads:
        return state
    state, series = _fitted(state, history, extent, key, version)
    # A call within the same step needs one lead more; who repeats the same history even later will go on doing so.
    n_spare = round(HOUR_S / extent.step_s) if state.version == version and state.members.shape[1] else 1
    bounds = widen_bounds(state.models.bounds, series, is_carbon=state.is_carbon)
    members = np.clip(forecast_members(state.models, series, n_leads + n_spare), *bounds)
    state = replace(state, version=version, bounds=bounds, members=np.asarray(members, dtype=np.float64))
    return _verified(state, history, extent)


def _fitted(
    state: ForecasterState | None, history: Signal, extent: HistoryExtent, key: SeriesKey, version: HistoryVersion
) -> tuple[ForecasterState, Series]:
    """Return the state with models that are not due for a refit, and the series to forecast from."""
    if state is not None:
        period_s = REFIT_S if state.models.tier == "regression" else SHORT_REFIT_S
        series = build_series(history, extent, max_days=RECENT_DAYS)
        has_shrunk = len(series.values) < MIN_DAYS * series.day and state.models.autoregression is not None
        if 0 <= extent.end_s - state.fitted_s < period_s - 1 and not has_shrunk:
            return state, series
    series = build_series(history, extent, max_days=FITTED_DAYS)
    models = fit_models(series, tier=model_tier(series), is_carbon=_is_carbon(key))
    if state is not None and state.models.tier == models.tier:
        return replace(state, models=models, fitted_s=extent.end_s), series
    skill, intervals, past = backtest(series, models, is_carbon=_is_carbon(key))
    if state is not None:  # the models are others, the skill of the provider's forecast is the same
        skill = replace(skill, paired_errors=state.skill.paired_errors, n_paired=state.skill.n_paired)
        intervals = with_more_errors(state.intervals, intervals)
        past = max(state.past, past, key=lambda each: np.isfinite(each.errors).sum())
    issued = state.track_record if state is not None else empty_track_record(models.leads, series.step_s, N_MEMBERS)
    fresh = ForecasterState(
        key=key,
        version=version,
        models=models,
        fitted_s=extent.end_s,
        bounds=models.bounds,
        members=np.empty((N_MEMBERS, 0)),
        track_record=issued,
        skill=skill,
        intervals=intervals,
        past=past,
        lead_weights=_lead_weights(models, series.step_s, skill),
        interval_ends=interval_ends(intervals),
    )
    return fresh, series


def _verified(state: ForecasterState, history: Signal, extent: HistoryExtent) -> ForecasterState:
    """Return the state with the errors of the forecasts that can be verified by now."""
    track_record, verified = verify(state.track_record, history, extent.end_s)
    if not verified:
        return state
    skill, intervals = state.skill, state.intervals
    for forecasts in verified:
        skill, intervals = update_skill(skill, forecasts), update_intervals(intervals, forecasts)
    return replace(
        state,
        track_record=track_record,
        skill=skill,
        intervals=intervals,
        past=state.past.with_verified(verified, state.leads_s),
        lead_weights=_lead_weights(state.models, state.step_s, skill),
        interval_ends=interval_ends(intervals),
    )


def _lead_weights(models: FittedModels, step_s: float, skill: Skill) -> Values:
    """Return the weights of the models, and that of the provider's forecast, at each lead, shape (m + 1, c)."""
    return np.vstack([member_weights(skill), provider_weights(skill, models.leads.astype(np.float64) * step_s)])


def _provided(history: Signal, provider_forecast: Signal | None, times_s: NDArray[np.float64]) -> Values:
    """Return the provider's forecast at times, shape (n,); NaN where it has none, or is of another kind or unit."""
    if provider_forecast is None or (provider_forecast.kind, provider_forecast.unit) != (history.kind, history.unit):
        return np.full(len(times_s), np.nan)
    return sample(provider_forecast, times_s)


def _combined(state: ForecasterState, provided: Values, hours: NDArray[np.int_]) -> tuple[Values, Values, bool]:
    """Return the estimate (n,), its interval (2, n), and whether the provider's forecast takes part in it.

    Args:
        state: the state.
        provided: the provider's forecast, shape (n,), or NaN.
        hours: the hours of the day that are forecast, shape (n,).
    """
    n = len(provided)
    weights = _at_each_lead(state.lead_weights, state.models.leads, n)
    own = weighted_mean(weights[:-1], state.members[:, :n])
    is_provided = ~np.isnan(provided)
    share = np.where(is_provided, weights[-1], 0.0)
    values = (1 - share) * own + share * np.where(is_provided, provided, 0.0)
    values = np.clip(values, state.bounds[0], state.bounds[1])
    low, high = values + _at_each_lead(state.interval_ends, state.models.leads, n, hours)
    if state.is_carbon:
        low = np.maximum(low, 0.0)
    return values, np.stack([np.minimum(low, values), np.maximum(high, values)]), bool((share > 0).any())


def _with_issued(
    state: ForecasterState, extent: HistoryExtent, provided: Values, values: Values, interval: Values
) -> ForecasterState:
    """Return the state with this forecast on the track record; leads beyond it have no value."""
    leads = state.models.leads
    index = np.minimum(leads, len(values)) - 1
    rows = np.vstack([state.members[:, index], provided[index], values[index], interval[:, index]])
    rows = np.where(leads <= len(values), rows, np.nan)
    forecast = IssuedForecast(members=rows[:-4], provider=rows[-4], issued=rows[-3], interval=rows[-2:])
    return replace(state, track_record=with_issued(state.track_record, extent.end_s, forecast))


def _at_each_lead(values: Values, leads: NDArray[np.int_], n: int, hours: NDArray[np.int_] | None = None) -> Values:
    """Return values (m, c) at `leads`, linearly interpolated at the leads 1 to n, shape (m, n).

    With hours of the day (n,), values (m, c, 24) are taken at these.
    """
    if len(leads) == n == leads[-1]:
        return values if hours is None else np.asarray(values[:, np.arange(n), hours], dtype=np.float64)
    position = np.interp(np.arange(1, n + 1), leads, np.arange(len(leads)))
    below = position.astype(np.int_)
    above = np.minimum(below + 1, len(leads) - 1)
    part = position - below
    if hours is None:
        return np.asarray(values[:, below] * (1 - part) + values[:, above] * part, dtype=np.float64)
    return np.asarray(values[:, below, hours] * (1 - part) + values[:, above, hours] * part, dtype=np.float64)
