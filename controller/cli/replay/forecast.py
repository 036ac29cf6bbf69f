"""`gridchase replay forecast`: the accuracy of forecasts on series from files, compared with simpler methods."""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.progress import Progress, TaskID
from rich.table import Table

from controller.cli.output import Terminal, print_json
from controller.cli.replay.processes import progress_bars
from controller.demo.day.grid import FIVE_WEEKS
from controller.errors import ConfigError
from policies.forecasting.evaluation import ForecastEvaluation, evaluate
from policies.providers.base import SignalFileError
from policies.providers.sources.csv_file import Trace, read_trace
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    from gridchase.cli.verb import Verbs

MIN_STEP_S: Final = 300.0
MAX_STEP_S: Final = HOUR_S
MIN_SPAN_S: Final = 7 * DAY_S
"""The first third is only history; a shorter rest has no statistical weight."""


def add_part(parts: "Verbs") -> None:
    """Add `forecast` to what can be replayed."""
    part = parts.add_parser(
        "forecast",
        help="walk through series, forecast each day ahead and compare",
        description="Walks through each series. At each step, forecasts the next 24 h from the values known then, with "
        "the code that the controller runs, and compares with the true values and with simpler methods.",
    )
    part.add_argument(
        "--signal", nargs="+", action="extend", type=Path, metavar="FILE",
        help="CSV: timestamp,<unit> (default: five included weeks of Great Britain)",
    )  # fmt: skip
    part.add_argument("--json", action="store_true", help="print JSON")
    part.set_defaults(default_log_level="warning", do=replay_forecast)


def replay_forecast(options: argparse.Namespace) -> int:
    """Print how good the forecasts of the series in files are.

    Raises:
        ConfigError: with every fault of every file.
    """
    paths = options.signal or [FIVE_WEEKS]
    signals = _read(paths)
    results = []
    with progress_bars() as progress:
        for path, signal in zip(paths, signals, strict=True):
            bar = progress.add_task(path.stem, total=None)
            result = evaluate(signal, stopwatch_s=time.perf_counter, progress=partial(_advance, progress, bar))
            if result is None:
                raise ConfigError([f"{path}: has no value to compare a forecast with"])
            results.append((path.stem, result))
    if options.json:
        print_json([{"series": series} | asdict(result) for series, result in results])
    else:
        _print(results)
    return 0


def _read(paths: Sequence[Path]) -> list[Signal]:
    """Return the series in files; raise `ConfigError` with every fault of all of them."""
    signals, faults = [], []
    for path in paths:
        try:
            trace = read_trace(path)
        except SignalFileError as error:
            faults += error.faults
            continue
        faults += _unfit(path, trace)
        signals.append(trace.as_signal(path))
    if faults:
        raise ConfigError(faults)
    return signals


def _unfit(path: Path, trace: Trace) -> Iterator[str]:
    if not MIN_STEP_S <= trace.step_s <= MAX_STEP_S:
        yield f"{path}: the step is {trace.step_s:g} s: must be from {MIN_STEP_S:g} to {MAX_STEP_S:g} s"
    span_s = trace.ends_s - float(trace.starts_s[0])
    if span_s < MIN_SPAN_S:
        yield f"{path}: spans {span_s / DAY_S:.1f} days: must be at least {MIN_SPAN_S / DAY_S:g}"


def _advance(progress: Progress, bar: TaskID, done: int, total: int) -> None:
    progress.update(bar, completed=done, total=total)


def _print(results: Sequence[tuple[str, ForecastEvaluation]]) -> None:
    console = Terminal()
    for series, result in results:
        has_ratios = any(ratio is not None for ratio in result.mape_ratio["gridchase"].values())
        rows = result.mape_ratio if has_ratios else result.mae
        shown: Callable[[float | None], str] = _percent if has_ratios else _plain
        what = "mean absolute relative error [%]" if has_ratios else "mean absolute error"
        table = Table("ahead", *rows["gridchase"], title=f"{series}: {what}", title_justify="left")
        for method, values in rows.items():
            table.add_row(method, *map(shown, values.values()))
        table.add_row("in the 90 % interval [%]", *map(_percent, result.coverage_90_ratio.values()))
        by_hour = [[share for share in each if share is not None] for each in result.hourly_coverage_90_ratio.values()]
        table.add_row("- least by hour of the day", *(_percent(min(each, default=None)) for each in by_hour))
        table.add_row("- most by hour of the day", *(_percent(max(each, default=None)) for each in by_hour))
        table.add_row("mean width of the interval", *map(_plain, result.interval_width.values()))
        console.print(table)
        console.print(
            f"{result.n_origins:,} forecasts, steps of {result.step_s / 60:g} min; "
            f"a refit takes {_ms(result.fit_s)}, a forecast {_ms(result.forecast_s)}\n"
        )


def _percent(share_ratio: float | None) -> str:
    return "-" if share_ratio is None else f"{100 * share_ratio:.2f}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _ms(duration_s: float | None) -> str:
    return "-" if duration_s is None else f"{1e3 * duration_s:.1f} ms"
