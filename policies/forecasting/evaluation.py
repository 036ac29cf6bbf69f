"""Evaluates forecasts by a walk forward through a series, with the same code as the controller.

At each origin the forecaster gets the last 60 days up to then and nothing else: it refits daily, verifies its earlier
forecasts, and is compared with what comes. The first 60 days of a series, or a third of it if it is shorter, are
history only. Errors are those of hourly means, so that series of any step compare: a horizon of 1 h is the mean of the
hour after the last known value, of an hourly series the next value. Each step is an origin; of steps under 30 min about
every half hour has one, at all its minutes in turn.

The intervals are of single values: those that end with the hour. Their coverage at a horizon is a mean over all
origins. By the hour of the day of the values it is a mean over the days, at a horizon, or at all 24 of them together.

The baselines are persistence, yesterday's values, and the regression of Chase. A baseline gets the series on its grid
and the number of steps to look ahead, and returns that many values; gaps are filled as for the forecaster itself.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.forecaster import Forecast, ForecasterState, advance
from policies.forecasting.models import forecast_bounds
from policies.forecasting.regression import ridge_regression
from policies.forecasting.series import Series, build_series, history_extent, hour_of_day, sample
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values

Baseline = Callable[[Series, int], Values]
HISTORY_S: Final = 60 * DAY_S
HISTORY_SHARE: Final = 3
LOOK_BACK_DAYS: Final = 30
"""The history that a baseline gets."""
N_HOURS: Final = 24
HORIZONS_H: Final = (1, 3, 6, 12, 24)
MEAN: Final = "mean_1_24h"
OURS: Final = "gridchase"
MAX_STEPS_WALKED: Final = 48
"""Of finer steps, about as many a day are origins."""
ByHorizon = dict[str, float | None]
ByHourOfDay = dict[str, list[float | None]]


def last_value(series: Series, n_leads: int) -> Values:
    """Return the last value at each lead, shape (n_leads,)."""
    return np.full(n_leads, series.values[-1])


def same_time_yesterday(series: Series, n_leads: int) -> Values:
    """Return the value of the same time on the last day, shape (n_leads,)."""
    return np.resize(series.values[-series.day :], n_leads)


def chase_linear(series: Series, n_leads: int) -> Values:
    """Return Chase's linear forecast, iterated, shape (n_leads,).

    The next value is regressed on sine and cosine of the time of the day and on the value now, over the last 24 h
    (Yang, Meng, Chung and Chowdhury 2023, "Chasing Low-Carbon Electricity for Practical and Sustainable DNN Training").
    Chase fits once and looks one step ahead; here it is refitted at each origin, which is in its favour, and its
    forecasts are kept within the bounds of the forecaster.
    """
    targets = np.arange(max(1, len(series.values) - series.day), len(series.values))
    features = chase_features(series, targets, series.values[targets - 1])
    weights = (series.known[targets] & series.known[targets - 1]).astype(np.float64)
    coefficients = ridge_regression(features, series.values[targets], weights, penalty_ratio=0.0)
    return iterate_chase(coefficients, series, n_leads)


def chase_features(series: Series, targets: NDArray[np.int_], before: Values) -> Values:
    """Return sine and cosine of the time of the day of steps, and the values before them, shape (n, 3)."""
    phase = series.phase(targets)
    return np.column_stack([np.sin(phase), np.cos(phase), before])


def iterate_chase(coefficients: Values, series: Series, n_leads: int) -> Values:
    """Return the values that follow from coefficients on 1, sine, cosine and the value before, shape (n_leads,)."""
    phase = series.phase(len(series.values) + np.arange(n_leads))
    driven = coefficients[0] + coefficients[1] * np.sin(phase) + coefficients[2] * np.cos(phase)
    low, high = forecast_bounds(series, is_carbon=bool(series.values.min() > 0))
    value, share, values = float(series.values[-1]), float(coefficients[3]), []
    for part in driven.tolist():
        value = min(max(part + share * value, low), high)
        values.append(value)
    return np.array(values)


BASELINES: Final[Mapping[str, Baseline]] = {
    "persistence": last_value,
    "seasonal": same_time_yesterday,
    "chase_linear": chase_linear,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastEvaluation:
    """The quality of forecasts on one series.

    Attributes:
        step_s: the step of the series [s].
        n_origins: the number of forecasts.
        mape_ratio: the mean absolute relative error of hourly means, by method and horizon; None if a value is not
            above 0.
        mae: their mean absolute error in the unit of the series, by method and horizon.
        coverage_90_ratio: the share of values within the 90 % interval, by horizon.
        hourly_coverage_90_ratio: the same for each hour of the day (UTC) of the values, 24 for each horizon.
        interval_width: the mean width of the interval in the unit of the series, by horizon.
        fit_s: the median time of a forecast with a refit [s], or None if there was none.
        forecast_s: the median time of one without, over a whole day, verification included [s].
    """

    step_s: float
    n_origins: int
    mape_ratio: dict[str, ByHorizon]
    mae: dict[str, ByHorizon]
    coverage_90_ratio: ByHorizon
    hourly_coverage_90_ratio: ByHourOfDay
    interval_width: ByHorizon
    fit_s: float | None
    forecast_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _WalkForward:
    """What was forecast and what came, at each origin.

    Attributes:
        forecasts: 24 hourly means, by method.
        actuals: the same, actual.
        covered: whether the last values of these hours lay in their intervals, 1 or 0; NaN if unknown.
        widths: how wide these intervals are.
        hours: the hours of the day of these values.
        fits_s, forecasts_s: how long the calls took, with and without a refit [s].
    """

    forecasts: dict[str, list[Values]]
    actuals: list[Values]
    covered: list[Values]
    widths: list[Values]
    hours: list[NDArray[np.int_]]
    fits_s: list[float]
    forecasts_s: list[float]


def evaluate(
    series: Signal,
    *,
    stopwatch_s: Callable[[], float],
    since_s: float | None = None,
    baselines: Mapping[str, Baseline] = BASELINES,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> ForecastEvaluation | None:
    """Return the quality of the forecasts of a series, beside baselines, or None if it is too short.

    Args:
        series: the whole series, NaN where missing, of steps from 5 to 60 minutes.
        stopwatch_s: a clock to measure durations [s].
        since_s: the first origin [Unix s]; what is before is history only. By default as described above.
        baselines: other methods, by name.
        progress: called with the number of completed and of all steps.
    """
    extent = history_extent(series, math.inf)
    if extent is None:
        return None
    forecasts: dict[str, list[Values]] = {name: [] for name in (OURS, *baselines)}
    walk = _WalkForward(forecasts=forecasts, actuals=[], covered=[], widths=[], hours=[], fits_s=[], forecasts_s=[])
    stops_s = np.append(series.starts_s[1:], series.ends_s)
    compared_from_s = _compared_from_s(float(series.starts_s[0]), extent.end_s) if since_s is None else since_s
    first = int(np.searchsorted(stops_s, compared_from_s))
    last = int(np.searchsorted(stops_s, extent.end_s - DAY_S, side="right"))
    state: ForecasterState | None = None
    for index in range(first, last, _stride(round(DAY_S / extent.step_s))):
        state = _visit(walk, state, series, index, float(stops_s[index]), stopwatch_s, baselines)
        progress(index - first + 1, last - first)
    return _summary(walk, extent.step_s, is_ratio=bool(np.nanmin(series.values) > 0)) if walk.actuals else None


def _compared_from_s(start_s: float, end_s: float) -> float:
    return start_s + min(HISTORY_S, (end_s - start_s) / HISTORY_SHARE)


def _stride(day: int) -> int:
    """Return the number of steps between origins: prime to a day, so that all its times occur."""
    stride = max(1, day // MAX_STEPS_WALKED)
    while math.gcd(stride, day) != 1:
        stride += 1
    return stride


def _visit(
    walk: _WalkForward,
    state: ForecasterState | None,
    series: Signal,
    index: int,
    now_s: float,
    stopwatch_s: Callable[[], float],
    baselines: Mapping[str, Baseline],
) -> ForecasterState | None:
    """Forecast from one origin as if nothing were known beyond it, and record forecasts and actual values."""
    begins = int(np.searchsorted(series.starts_s, now_s - HISTORY_S))
    history = replace(
        series,
        starts_s=series.starts_s[begins : index + 1],
        values=series.values[begins : index + 1],
        estimated=series.estimated[begins : index + 1],
        ends_s=now_s,
        issued_at_s=now_s,
    )
    began_s = stopwatch_s()
    after, forecast = advance(state, history=history, provider_forecast=None, now_s=now_s)
    lasted_s = stopwatch_s() - began_s
    is_refit = after is not None and (state is None or after.fitted_s != state.fitted_s)
    (walk.fits_s if is_refit else walk.forecasts_s).append(lasted_s)
    extent = history_extent(history, now_s)
    if forecast is None or extent is None or np.isnan(series.values[index]):
        return after
    n_leads = N_HOURS * round(HOUR_S / extent.step_s)
    times_s = extent.end_s + (np.arange(n_leads, dtype=np.float64) + 0.5) * extent.step_s
    actual = sample(series, times_s)
    walk.actuals.append(_hourly(actual))
    walk.forecasts[OURS].append(_hourly(sample(forecast.signal, times_s)))
    covered, width = _covered(forecast, actual, times_s)
    walk.covered.append(_last_of_hours(covered))
    walk.widths.append(_last_of_hours(width))
    walk.hours.append(hour_of_day(_last_of_hours(times_s)))
    series_so_far = build_series(history, extent, max_days=LOOK_BACK_DAYS)
    for name, baseline in baselines.items():
        walk.forecasts[name].append(_hourly(baseline(series_so_far, n_leads)))
    return after


def _hourly(values: Values) -> Values:
    """Return the means of 24 hours, shape (24,); NaN if a value of the hour is missing."""
    return np.asarray(values.reshape(N_HOURS, -1).mean(axis=1), dtype=np.float64)


def _last_of_hours(values: Values) -> Values:
    """Return the last values of 24 hours, shape (24,)."""
    return np.asarray(values.reshape(N_HOURS, -1)[:, -1], dtype=np.float64)


def _covered(forecast: Forecast, actual: Values, times_s: NDArray[np.float64]) -> tuple[Values, Values]:
    """Return whether values lay in their interval, 1 or 0, and its width, both of shape (n,); NaN if unknown."""
    lower, upper = (sample(replace(forecast.signal, values=end), times_s) for end in (forecast.lower, forecast.upper))
    is_known = ~np.isnan(actual) & ~np.isnan(lower)
    return np.where(is_known, (lower <= actual) & (actual <= upper), np.nan), np.where(is_known, upper - lower, np.nan)


def _summary(walk: _WalkForward, step_s: float, *, is_ratio: bool) -> ForecastEvaluation:
    actual, covered = np.array(walk.actuals), np.array(walk.covered)
    misses = {name: np.abs(np.array(forecast_values) - actual) for name, forecast_values in walk.forecasts.items()}
    none: ByHorizon = dict.fromkeys([*(f"{hours}h" for hours in HORIZONS_H), MEAN])
    return ForecastEvaluation(
        step_s=step_s,
        n_origins=len(actual),
        mape_ratio={name: _by_horizon(miss / actual) if is_ratio else none for name, miss in misses.items()},
        mae={name: _by_horizon(miss) for name, miss in misses.items()},
        coverage_90_ratio=_by_horizon(covered),
        hourly_coverage_90_ratio=_by_hour_of_day(covered, np.array(walk.hours)),
        interval_width=_by_horizon(np.array(walk.widths)),
        fit_s=_median_s(walk.fits_s),
        forecast_s=_median_s(walk.forecasts_s),
    )


def _by_horizon(values: Values) -> ByHorizon:
    """Return the means of values (n, 24) at some horizons, and the mean over all; missing values do not count."""
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    means = np.where(known, values, 0.0).sum(axis=0) / np.where(counts > 0, counts, np.nan)
    chosen = {f"{hours}h": float(means[hours - 1]) for hours in HORIZONS_H} | {MEAN: float(means.mean())}
    return {name: None if math.isnan(mean) else mean for name, mean in chosen.items()}


def _by_hour_of_day(values: Values, hours: NDArray[np.int_]) -> ByHourOfDay:
    """Return the means of values (n, 24) at each hour of the day, at some horizons and over all; None without any."""
    columns = {f"{number}h": [number - 1] for number in HORIZONS_H} | {MEAN: list(range(N_HOURS))}
    known = ~np.isnan(values)
    means: ByHourOfDay = {}
    for name, at in columns.items():
        kept = known[:, at]
        hour, value = hours[:, at][kept], values[:, at][kept]
        counts = np.bincount(hour, minlength=N_HOURS)
        totals = np.bincount(hour, value, minlength=N_HOURS)
        means[name] = [float(total / n) if n else None for total, n in zip(totals, counts, strict=True)]
    return means


def _median_s(durations_s: list[float]) -> float | None:
    return float(np.median(durations_s)) if durations_s else None
