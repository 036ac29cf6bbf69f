"""How good the forecasts are: a walk forward through a series, with the very code that the controller runs.

At each origin the forecaster is told the last 60 days up to then and nothing else, as it would have been: it refits
daily, learns from what has come true, and is compared with what comes. The first 60 days of a series, or a third of it
where it is shorter, are history only. Errors are those of hourly means, so that series of any step compare: a horizon
of 1 h is the mean of the hour after the last known value, of an hourly series the next value. The bands are of single
values: those that end with the hour. Each step is an origin; of steps under 30 min about every half hour has one, at
all its minutes in turn.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.baselines import BASELINES, Baseline
from policies.forecasting.forecast import Forecast, Values
from policies.forecasting.forecaster import ForecasterState, advance, begin
from policies.forecasting.series import DAY_S, HOUR_S, past_of, sample, series_of
from policies.vocabulary.signal import Signal

HISTORY_S: Final = 60 * DAY_S
HISTORY_SHARE: Final = 3
LOOK_BACK_DAYS: Final = 30
"""What a baseline is told."""
N_HOURS: Final = 24
HORIZONS_H: Final = (1, 3, 6, 12, 24)
MEAN: Final = "mean_1_24h"
OURS: Final = "gridchase"
MAX_STEPS_WALKED: Final = 48
"""Of finer steps, about as many a day are origins."""

ByHorizon = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How good forecasts were on one series.

    Attributes:
        step_s: the step of the series [s].
        n_origins: how many forecasts were compared.
        mape_ratio: the mean absolute relative error of hourly means, by method and horizon; None where a
            value is not above 0.
        mae: the mean absolute error of them in the unit of the series, by method and horizon.
        coverage_90_ratio: how often the 90 % band had the value in it, by horizon.
        fit_s: the median time of a forecast with a refit [s], or None where there was none.
        forecast_s: the median time of one without, over a whole day, learning included [s].
    """

    step_s: float
    n_origins: int
    mape_ratio: dict[str, ByHorizon]
    mae: dict[str, ByHorizon]
    coverage_90_ratio: ByHorizon
    fit_s: float | None
    forecast_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """What was said at each origin, by method, of 24 hourly means, and what came; and whether bands held, (n, 24)."""

    said: dict[str, list[Values]]
    came: list[Values]
    covered: list[Values]
    fits_s: list[float]
    forecasts_s: list[float]


def evaluate(
    series: Signal,
    *,
    stopwatch_s: Callable[[], float],
    since_s: float | None = None,
    baselines: Mapping[str, Baseline] = BASELINES,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Evaluation | None:
    """Return how good the forecasts of a series are, beside baselines, or None where it is too short for any.

    Args:
        series: the whole series, NaN where missing, of steps from 5 to 60 minutes.
        stopwatch_s: tells a time to measure durations with [s].
        since_s: when the first forecast is made [Unix s]; what is before is history only. By default as said above.
        baselines: other methods, by name.
        progress: told how many of how many steps are done.
    """
    past = past_of(series, math.inf)
    if past is None:
        return None
    walk = _Walk(said={name: [] for name in (OURS, *baselines)}, came=[], covered=[], fits_s=[], forecasts_s=[])
    stops_s = np.append(series.starts_s[1:], series.ends_s)
    compared_from_s = _compared_from_s(float(series.starts_s[0]), past.end_s) if since_s is None else since_s
    first = int(np.searchsorted(stops_s, compared_from_s))
    last = int(np.searchsorted(stops_s, past.end_s - DAY_S, side="right"))
    state = begin()
    for index in range(first, last, _stride(round(DAY_S / past.step_s))):
        state = _visit(walk, state, series, index, float(stops_s[index]), stopwatch_s, baselines)
        progress(index - first + 1, last - first)
    return _judged(walk, past.step_s, is_ratio=bool(np.nanmin(series.values) > 0)) if walk.came else None


def _compared_from_s(start_s: float, end_s: float) -> float:
    """Return from when on a series is forecast [Unix s]: after 60 days, or a third of it."""
    return start_s + min(HISTORY_S, (end_s - start_s) / HISTORY_SHARE)


def _stride(day: int) -> int:
    """Return every how many steps a forecast is made: prime to a day, so that all its times are visited."""
    stride = max(1, day // MAX_STEPS_WALKED)
    while math.gcd(stride, day) != 1:
        stride += 1
    return stride


def _visit(
    walk: _Walk,
    state: ForecasterState,
    series: Signal,
    index: int,
    now_s: float,
    stopwatch_s: Callable[[], float],
    baselines: Mapping[str, Baseline],
) -> ForecasterState:
    """Forecast at one step as if nothing were known beyond it, and note what was said and what came."""
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
    after, forecast = advance(state, history=history, given=None, now_s=now_s)
    lasted_s = stopwatch_s() - began_s
    (walk.forecasts_s if after.fitted_s == state.fitted_s else walk.fits_s).append(lasted_s)
    past = past_of(history, now_s)
    if forecast is None or past is None or np.isnan(series.values[index]):
        return after
    n_leads = N_HOURS * round(HOUR_S / past.step_s)
    times_s = past.end_s + (np.arange(n_leads, dtype=np.float64) + 0.5) * past.step_s
    came = sample(series, times_s)
    walk.came.append(_hourly(came))
    walk.said[OURS].append(_hourly(sample(forecast.signal, times_s)))
    walk.covered.append(_covered(forecast, came, times_s))
    told = series_of(history, past, max_days=LOOK_BACK_DAYS)
    for name, baseline in baselines.items():
        walk.said[name].append(_hourly(baseline(told, n_leads)))
    return after


def _hourly(values: Values) -> Values:
    """Return the means of 24 hours, shape (24,); NaN where a value of the hour is missing."""
    return np.asarray(values.reshape(N_HOURS, -1).mean(axis=1), dtype=np.float64)


def _covered(forecast: Forecast, came: Values, times_s: NDArray[np.float64]) -> Values:
    """Return whether the last value of each hour lay in its band, 1 or 0, shape (24,); NaN where that is not known."""
    lower, upper = (sample(replace(forecast.signal, values=end), times_s) for end in (forecast.lower, forecast.upper))
    is_known = ~np.isnan(came) & ~np.isnan(lower)
    covered = np.where(is_known, (lower <= came) & (came <= upper), np.nan)
    return np.asarray(covered.reshape(N_HOURS, -1)[:, -1], dtype=np.float64)


def _judged(walk: _Walk, step_s: float, *, is_ratio: bool) -> Evaluation:
    came, covered = np.array(walk.came), np.array(walk.covered)
    misses = {name: np.abs(np.array(said) - came) for name, said in walk.said.items()}
    none: ByHorizon = dict.fromkeys([*(f"{hours}h" for hours in HORIZONS_H), MEAN])
    return Evaluation(
        step_s=step_s,
        n_origins=len(came),
        mape_ratio={name: _by_horizon(miss / came) if is_ratio else none for name, miss in misses.items()},
        mae={name: _by_horizon(miss) for name, miss in misses.items()},
        coverage_90_ratio={name: mean for name, mean in _by_horizon(covered).items() if name != MEAN},
        fit_s=_median_s(walk.fits_s),
        forecast_s=_median_s(walk.forecasts_s),
    )


def _by_horizon(values: Values) -> ByHorizon:
    """Return the means of values (n, 24) at some horizons, and of the means at all; what is missing counts nowhere."""
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    means = np.where(known, values, 0.0).sum(axis=0) / np.where(counts > 0, counts, np.nan)
    chosen = {f"{hours}h": float(means[hours - 1]) for hours in HORIZONS_H} | {MEAN: float(means.mean())}
    return {name: None if math.isnan(mean) else mean for name, mean in chosen.items()}


def _median_s(durations_s: list[float]) -> float | None:
    return float(np.median(durations_s)) if durations_s else None
