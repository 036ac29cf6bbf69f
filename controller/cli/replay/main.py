"""`gridchase replay`: policies alone, on files: how good the forecasts are, and how well batch sizes are learned.

gridchase replay forecast --signal FILE… [--json]
gridchase replay batch-size --train FILE --power FILE… [--eta 0.5] [--seeds 20] [--json]
gridchase replay plan --power FILE --workload DATASET/NETWORK --batch-size N --signal FILE… [--json]
gridchase replay profile --power FILE… [--noise realistic] [--eta 0.5] [--seeds 5] [--json]
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from controller.cli.replay import batch_size as replay_batch_size
from controller.cli.replay import plan as replay_plan
from controller.cli.replay import profile as replay_profile
from controller.errors import ConfigError
from policies.forecasting.evaluation import ForecastEvaluation, evaluate
from policies.providers.base import SignalFileError
from policies.providers.sources.csv_file import Trace, read_trace
from policies.vocabulary.signal import Signal

MIN_STEP_S: Final = 300.0
MAX_STEP_S: Final = 3_600.0
MIN_SPAN_S: Final = 7 * 86_400.0
"""The first third is history only; a shorter rest says nothing."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what can be replayed."""
    parts = verb.add_subparsers(title="what", required=True, metavar="WHAT", parser_class=argparse.ArgumentParser)
    part = parts.add_parser(
        "forecast",
        help="walk through series, forecast each day ahead and compare",
        description="Walks through each series, forecasts the next 24 h at each step from what was known then, by the "
        "code that the controller runs, and compares with what came and with simpler methods.",
    )
    part.add_argument(
        "--signal", nargs="+", action="extend", required=True, type=Path, metavar="FILE", help="CSV: timestamp,<unit>"
    )
    part.add_argument("--json", action="store_true", help="for scripts")
    part.set_defaults(default_log_level="warning", do=lambda options: forecast(options.signal, as_json=options.json))
    replay_batch_size.add_part(parts)
    replay_plan.add_part(parts)
    replay_profile.add_part(parts)


def forecast(paths: Sequence[Path], *, as_json: bool) -> int:
    """Print how good the forecasts of the series in files are.

    Raises:
        ConfigError: with every fault of every file.
    """
    signals = _read(paths)
    results = []
    with _progress() as told:
        for path, signal in zip(paths, signals, strict=True):
            result = evaluate(signal, stopwatch_s=time.perf_counter, progress=told(path.stem))
            if result is None:
                raise ConfigError([f"{path}: has no value to compare a forecast with"])
            results.append((path.stem, result))
    if as_json:
        report = [{"series": series} | asdict(result) for series, result in results]
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print(results)
    return 0


def _read(paths: Sequence[Path]) -> list[Signal]:
    """Return the series in files; raise `ConfigError` with every fault of every one."""
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
    """Yield why a series cannot be forecast."""
    if not MIN_STEP_S <= trace.step_s <= MAX_STEP_S:
        yield f"{path}: the step is {trace.step_s:g} s: must be from {MIN_STEP_S:g} to {MAX_STEP_S:g} s"
    span_s = trace.ends_s - float(trace.starts_s[0])
    if span_s < MIN_SPAN_S:
        yield f"{path}: spans {span_s / 86_400:.1f} days: must be at least {MIN_SPAN_S / 86_400:g}"


@contextmanager
def _progress() -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Give what makes, of a series' name, what is told how far it is; shown on a terminal, and quiet in a pipe."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:

        def told(name: str) -> Callable[[int, int], None]:
            task = progress.add_task(name, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        yield told


def _print(results: Sequence[tuple[str, ForecastEvaluation]]) -> None:
    console = Console()
    for series, result in results:
        has_ratios = any(ratio is not None for ratio in result.mape_ratio["gridchase"].values())
        rows = result.mape_ratio if has_ratios else result.mae
        shown: Callable[[float | None], str] = _percent if has_ratios else _plain
        what = "mean absolute relative error [%]" if has_ratios else "mean absolute error"
        table = Table("ahead", *rows["gridchase"], title=f"{series}: {what}", title_justify="left")
        for method, values in rows.items():
            table.add_row(method, *map(shown, values.values()))
        table.add_row("in the 90 % band [%]", *map(_percent, result.coverage_90_ratio.values()), "")
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
