"""How good the forecasts are on a directory of series: `python -m tests.benchmarks.forecast --data DIR [--write]`.

Each CSV file of the directory is walked through as `gridchase replay forecast` does it; finer average series also as
their hourly means. Beside ours, on the same origins: persistence, yesterday, climatology with a damped anomaly, and
Chase's regressions on the last 24 h, linear and by support vectors (scikit-learn, where it is installed). Beside our
prediction intervals, on the same forecasts: the former rule, which treats all hours of the day alike.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from policies.forecasting import ForecasterState, advance, forecaster
from policies.forecasting.climatology import fit_climatologies
from policies.forecasting.evaluation import (
    BASELINES,
    MEAN,
    Baseline,
    ByHorizon,
    ForecastEvaluation,
    chase_features,
    evaluate,
    iterate_chase,
)
from policies.forecasting.models import lead_steps
from policies.forecasting.prediction_intervals import (
    MAX_STRETCH,
    MIN_ERRORS,
    MISS_RATIO,
    N_HOURS,
    PredictionIntervals,
    update_intervals,
)
from policies.forecasting.regression import fit_anomaly_damping
from policies.forecasting.series import Series
from policies.forecasting.track_record import VerifiedForecasts
from policies.providers.sources.csv_file import CARBON_UNIT, read_trace
from policies.vocabulary.signal import Signal, SignalKind
from policies.vocabulary.units import DAY_S, HOUR_S, Values
from tests.benchmarks.pages import add_write, measured_on, show
from tests.policies.forecasting.grids import START_S, grid, until, weather
from tests.policies.forecasting.state_size import size

try:
    from sklearn.svm import SVR
except ImportError:
    SVR = None

TABLE: Final = Path(__file__).with_suffix(".md")
MARGINAL: Final = "moer"
"""A file with this in its name is of a marginal signal."""
FORMER_GAIN_RATIO: Final = 0.02
N_REFITS: Final = 7
FIVE_MINUTES_S: Final = 300.0


def climatology(series: Series, n_leads: int) -> Values:
    """Return what is usual of late plus the anomaly now, damped by its correlation, shape (n_leads,)."""
    climate, leads = fit_climatologies(series), lead_steps(series.step_s)
    shares = fit_anomaly_damping(series, climate, leads, max_rows=500)
    every = np.interp(np.arange(1, n_leads + 1), np.concatenate(([0], leads)), np.concatenate(([1.0], shares)))
    return np.asarray(climate.ahead(n_leads)[0] + every * climate.anomaly[0, -1], dtype=np.float64)


def chase_svr(series: Series, n_leads: int) -> Values:
    """Return Chase's forecast by support vectors (linear kernel, scikit-learn's defaults), iterate_chase."""
    targets = np.arange(max(1, len(series.values) - series.day), len(series.values))
    features = chase_features(series, targets, series.values[targets - 1])
    fitted = SVR(kernel="linear").fit(features, series.values[targets])
    return iterate_chase(np.concatenate((fitted.intercept_, fitted.coef_[0])), series, n_leads)


def methods() -> dict[str, Baseline]:
    """Return what to compare with."""
    return {**BASELINES, "climatology": climatology} | ({"chase_svr": chase_svr} if SVR is not None else {})


def signals(directory: Path) -> Iterator[tuple[str, Signal]]:
    """Yield the series of a directory with their names, and hourly means of finer average ones."""
    for path in sorted(directory.glob("*.csv")):
        trace = read_trace(path)
        kind: SignalKind = "marginal" if MARGINAL in path.stem else "average"
        signal = Signal(
            kind=kind if trace.unit == CARBON_UNIT else "price",
            zone=path.stem,
            source=path.name,
            unit=trace.unit,
            starts_s=trace.starts_s,
            values=trace.values,
            ends_s=trace.ends_s,
            issued_at_s=trace.ends_s,
        )
        yield path.stem, signal
        if trace.step_s < HOUR_S and kind == "average":
            yield f"{path.stem}, hourly means", hourly(signal)


def hourly(signal: Signal) -> Signal:
    """Return the means of whole hours, NaN where nothing is known."""
    starts_s = np.arange(np.ceil(signal.starts_s[0] / HOUR_S) * HOUR_S, signal.ends_s - HOUR_S + 1, HOUR_S)
    means = [signal.mean(start_s, start_s + HOUR_S) for start_s in starts_s]
    values = np.array([np.nan if mean is None else mean for mean in means])
    kept_s = np.asarray(starts_s, dtype=np.float64)
    return replace(
        signal,
        starts_s=kept_s,
        values=values,
        ends_s=float(kept_s[-1]) + HOUR_S,
        estimated=np.zeros(len(values), dtype=np.bool_),
    )


def former_update(intervals: PredictionIntervals, verified: VerifiedForecasts) -> PredictionIntervals:
    """Return the intervals after verified forecasts by the former rule: one stretch of each side for all hours."""
    had_interval = ~np.isnan(verified.issued) & ~np.isnan(verified.interval[0])
    missed = np.stack([verified.actual < verified.interval[0], verified.actual > verified.interval[1]])
    stretch = intervals.stretch.copy()
    stretch[:, verified.lead[had_interval]] += FORMER_GAIN_RATIO * (missed - MISS_RATIO)[:, had_interval]
    return replace(update_intervals(intervals, verified), stretch=np.clip(stretch, -MAX_STRETCH, MAX_STRETCH))


def former_ends(intervals: PredictionIntervals) -> Values:
    """Return the ends of the intervals by the former rule: quantiles of the errors of all hours, shape (2, c, 24)."""
    ends = np.full((2, len(intervals.errors), N_HOURS), np.nan)
    for lead, errors in enumerate(intervals.errors):
        known = errors[~np.isnan(errors)]
        if len(known) >= MIN_ERRORS:
            lower, median, upper = np.quantile(known, [MISS_RATIO, 0.5, 1 - MISS_RATIO], method="weibull")
            sides = np.array([lower - median, upper - median])
            ends[:, lead] = (median + np.exp(intervals.stretch[:, lead]) * sides)[:, None]
    return ends


@contextmanager
def intervals_by(**rule: Callable[..., object]) -> Iterator[None]:
    """Let the forecaster use other functions of `prediction_intervals` while the body runs."""
    own = {name: getattr(forecaster, name) for name in rule}
    for name, function in rule.items():
        setattr(forecaster, name, function)
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(forecaster, name, function)


def judge(named: tuple[str, Signal]) -> tuple[str, ForecastEvaluation | None, ForecastEvaluation | None]:
    """Evaluate one series, by the present and by the former rule of intervals."""
    name, signal = named
    found = evaluate(signal, stopwatch_s=time.perf_counter, baselines=methods())
    with intervals_by(update_intervals=former_update, interval_ends=former_ends):
        return name, found, evaluate(signal, stopwatch_s=time.perf_counter, baselines={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Times of 28 days of 5-minute data, as medians [s], and what a state holds after a simulated year [B]."""

    first_s: float
    refit_s: float
    forecast_s: float
    same_s: float
    n_bytes: int
    n_bytes_after_a_year: int


def advanced(state: ForecasterState | None, history: Signal, now_s: float) -> tuple[ForecasterState, float]:
    """Advance once; return the state and the duration [s]."""
    began_s = time.perf_counter()
    after, _ = advance(state, history=history, provider_forecast=None, now_s=now_s)
    duration_s = time.perf_counter() - began_s
    assert after is not None
    return after, duration_s


def cost() -> Cost:
    """Measure, alone on the machine, a week of 5-minute forecasts from 28 days of history; and a year of memory."""
    whole = grid(weather(28 + N_REFITS, step_s=FIVE_MINUTES_S), step_s=FIVE_MINUTES_S)
    first: list[float] = []
    refits: list[float] = []
    forecasts: list[float] = []
    same: list[float] = []
    state: ForecasterState | None = None
    for step in range(N_REFITS * 288):
        now_s = START_S + 28 * DAY_S + step * FIVE_MINUTES_S
        history, fitted_s = until(whole, now_s, days=28), None if state is None else state.fitted_s
        state, duration_s = advanced(state, history, now_s)
        (first if fitted_s is None else forecasts if state.fitted_s == fitted_s else refits).append(duration_s)
        state, duration_s = advanced(state, history, now_s + 5)
        same.append(duration_s)
    assert state is not None
    n_bytes = size(state)
    year = grid(np.tile(weather(73, step_s=FIVE_MINUTES_S), 6), step_s=FIVE_MINUTES_S)
    for hour in range(36 * 24, 36 * 24 + 365 * 24, 7):
        now_s = START_S + hour * HOUR_S
        state, _ = advanced(state, until(year, now_s, days=28), now_s)
    return Cost(
        first_s=first[0],
        refit_s=statistics.median(refits),
        forecast_s=statistics.median(forecasts),
        same_s=statistics.median(same),
        n_bytes=n_bytes,
        n_bytes_after_a_year=size(state),
    )


def row(name: str, values: ByHorizon, factor: float, n_digits: int) -> str:
    """Return a line of a table."""
    cells = ("" if value is None else f"{factor * value:.{n_digits}f}" for value in values.values())
    return f"| {name} | {' | '.join(cells)} |"


def interval_rows(rule: str, found: ForecastEvaluation) -> Iterator[str]:
    """Yield the lines of a rule of intervals: coverage, over all and at the worst hours, and width."""
    yield row(f"{rule}: in the interval [%]", found.coverage_90_ratio, 100, 1)
    by_hour = {
        horizon: [share for share in hours if share is not None]
        for horizon, hours in found.hourly_coverage_90_ratio.items()
    }
    yield row("- least of an hour of the day [%]", {name: min(hours) for name, hours in by_hour.items()}, 100, 1)
    yield row("- most of an hour of the day [%]", {name: max(hours) for name, hours in by_hour.items()}, 100, 1)
    yield row("- mean width", found.interval_width, 1, 1)


def table(name: str, found: ForecastEvaluation, former: ForecastEvaluation) -> Iterator[str]:
    """Yield the lines of the table of one series."""
    has_ratios = found.mape_ratio["gridchase"]["1h"] is not None
    columns = list(found.mae["gridchase"])
    yield f"\n### {name}\n"
    yield f"{found.n_origins:,} forecasts, steps of {found.step_s / 60:g} min.\n"
    yield f"| {'error [%]' if has_ratios else 'error'} | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for method, errors in (found.mape_ratio if has_ratios else found.mae).items():
        yield row(method, errors, 100 if has_ratios else 1, 2 if has_ratios else 4)
    if has_ratios:
        yield row("gridchase, error [g/kWh]", found.mae["gridchase"], 1, 1)
    yield f"\n| 90 % intervals | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}"
    yield from interval_rows("all hours alike, as before", former)
    yield from interval_rows("scaled by the hour", found)


def hours_table(judged: list[tuple[str, ForecastEvaluation, ForecastEvaluation]]) -> Iterator[str]:
    """Yield the lines of the table of the hours with least and most coverage, before and now."""
    yield "\n## Coverage of the 90 % intervals by the hour of the day\n"
    yield (
        "Of the values at one hour of the day (UTC), the share within the intervals of all forecasts of it that were "
        "made 1 to 24 h before, over all days of the walk: the hours with the least and with the most. *Worst single*: "
        "the same for each horizon of 1, 3, 6, 12 and 24 h by itself. *Width*: the mean over all hours, days and "
        "horizons, of the former one. *Before*: the former rule, which treats all hours alike, on the same forecasts.\n"
    )
    yield "| series | least before | now | most before | now | worst single before | now | width |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name, found, former in judged:
        cells = [*zip(_extremes(former), _extremes(found), strict=True)]
        ratio = (found.interval_width[MEAN] or 0.0) / (former.interval_width[MEAN] or np.nan)
        yield f"| {name} | " + " | ".join(f"{old} | {new}" for old, new in cells) + f" | {ratio:.3f} |"


def _extremes(found: ForecastEvaluation) -> list[str]:
    """Return the least and the most coverage at an hour of the day over all horizons, and the span at single ones."""
    hours = {
        name: [share for share in each if share is not None] for name, each in found.hourly_coverage_90_ratio.items()
    }
    single = [share for name, shares in hours.items() if name != MEAN for share in shares]
    least, most = min(hours[MEAN]), max(hours[MEAN])
    return [f"{100 * least:.1f}", f"{100 * most:.1f}", f"{100 * min(single):.0f} to {100 * max(single):.0f}"]


def page(directory: Path) -> Iterator[str]:
    """Yield the lines of the page."""
    libraries = ["scikit-learn"] if SVR else []
    yield "# How good the forecasts are, and what they cost\n"
    yield (
        f"{measured_on(*libraries)}; "
        "`python -m tests.benchmarks.forecast --data DIR --write`. Protocol and methods: "
        "[docs/forecasts.md](../../docs/forecasts.md).\n"
    )
    spent = cost()
    yield "## Cost: 28 days of 5-minute data, 288 steps ahead\n"
    yield "| what | median |\n|---|---:|"
    yield f"| the first forecast: fit and backtest (once) | {1e3 * spent.first_s:.1f} ms |"
    yield f"| a forecast with the daily refit | {1e3 * spent.refit_s:.1f} ms |"
    yield f"| a forecast after a new value | {1e3 * spent.forecast_s:.2f} ms |"
    yield f"| a forecast from the same history | {1e3 * spent.same_s:.2f} ms |"
    yield f"| what is remembered after a week | {spent.n_bytes / 1024:.0f} KiB |"
    yield f"| what is remembered after a simulated year | {spent.n_bytes_after_a_year / 1024:.0f} KiB |"
    with ProcessPoolExecutor(2) as pool:
        judged = [*pool.map(judge, signals(directory))]
    whole = [(name, found, former) for name, found, former in judged if found is not None and former is not None]
    yield from hours_table(whole)
    yield "\n## Quality: mean absolute relative errors"
    for name, found, former in whole:
        yield from table(name, found, former)


def main() -> None:
    """Measure and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="CSV files: timestamp,<unit>")
    add_write(parser, TABLE)
    options = parser.parse_args()
    if options.data is None or not any(options.data.glob("*.csv")):
        print("skipped: there are no series; name a directory of CSV files with --data DIR")
        return
    show(page(options.data), TABLE, write=options.write)


if __name__ == "__main__":
    main()
