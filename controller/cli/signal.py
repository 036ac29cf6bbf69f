"""`gridchase signal`: shows the grid signal and its forecast, with sources and errors."""

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from controller.cli.configuration import add_configuration
from controller.cli.output import Terminal, print_json, shown, terminal_plot
from controller.cli.wiring import opened_sources, opened_store
from controller.config import Config, load_config
from controller.errors import ConfigError
from controller.ports import Provenance
from controller.runtime.clock import SystemClock
from controller.signal.feed import SignalFeed
from controller.signal.source_state import BACKFILL_REACHES_S
from gridchase.cli.verb import utf8_text
from policies.forecasting import Forecast
from policies.forecasting.evaluation import ForecastEvaluation, evaluate
from policies.providers.catalogue import CATALOGUE
from policies.vocabulary.freshness import Freshness
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    import plotille

EVALUATED_S: Final = 7 * DAY_S
WARM_S: Final = 3 * DAY_S
"""History before that week; without it its forecasts would be mere persistence."""
METHODS: Final = ("gridchase", "persistence", "seasonal")
PERIOD_S: Final = 600.0
"""The polling period, longer than this verb runs."""
BACK_H: Final = 72.0
AHEAD_H: Final = 24.0
WIDTH: Final = 80
"""Columns; ticks are ten apart, which is 12 hours."""
HEIGHT: Final = 14
_MARGIN: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SignalReport:
    """The state of the signal.

    Attributes:
        freshness: whether it can be trusted.
        provenance: where it comes from.
        now_s: the present [Unix s].
        history: the known values, and the one used for the present; None if nothing is known.
        known: the values of the source itself, from disk and from now.
        forecast: the forecast with its interval, or None.
        age_s: the time since the last known value ended [s].
        scores: the errors of forecasts recomputed for the last week, or None if the history is too short.
        faults: the errors of the providers that were asked, and why one had nothing to use.
    """

    freshness: Freshness
    provenance: Provenance
    now_s: float
    history: Signal | None
    known: Signal | None
    forecast: Forecast | None
    age_s: float
    scores: ForecastEvaluation | None
    faults: Sequence[str]


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_configuration(verb)
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.epilog = "\n".join(_list_providers())
    verb.add_argument("--provider", type=utf8_text, metavar="NAME", help="poll this one instead of the configured ones")
    verb.add_argument("--zone", type=utf8_text, default="", help="the zone, by its name at that provider")
    verb.add_argument("--kind", default="carbon", choices=("carbon", "price"), help="(default: %(default)s)")
    verb.add_argument(
        "--option",
        type=utf8_text,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another key of the provider",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")

    def do(options: argparse.Namespace) -> int:
        own = overrides_of(options.provider, options.zone, options.kind, options.option) if options.provider else []
        return signal(load_config(options.config, [*options.set, *own]), as_json=options.json)

    verb.set_defaults(default_log_level="error", do=do)


def _list_providers() -> Iterator[str]:
    for kind, entries in CATALOGUE.items():
        yield f"providers of {kind}:"
        yield from (f"  {name:18}{entry.summary}" for name, entry in entries.items())
    yield "Their keys and zones: docs/providers.md"


def signal(config: Config, *, as_json: bool) -> int:
    """Print the signal of a configuration; return 1 if it cannot be trusted."""
    if config.signal.kind == "energy":
        fault = 'signal.kind = "energy": there is nothing to show; name a provider with --provider and --zone'
        raise ConfigError([fault])
    report = asyncio.run(_read_signal(config))
    if as_json:
        print_json(as_dict(report))
    else:
        _print(report, Terminal())
    return 0 if report.freshness.is_trusted else 1


async def _read_signal(config: Config) -> SignalReport:
    clock = SystemClock()
    async with opened_sources(config.signal) as sources:
        with opened_store(config, is_read_only=True) as store:
            feed = SignalFeed(sources, kind=config.signal.kind, clock=clock, period_s=PERIOD_S, store=store)
            for _ in BACKFILL_REACHES_S:  # the present first, then more and more of the past
                await feed.refresh()
    now_s, source = clock.now_s(), feed.source
    known = source.known if source is not None else None
    return SignalReport(
        freshness=feed.freshness,
        provenance=feed.provenance(),
        now_s=now_s,
        history=feed.history(),
        known=known,
        forecast=source.forecast if source is not None else None,
        age_s=known.age_s(now_s) if known is not None else float("inf"),
        scores=_scores(known, now_s),
        faults=[fault for state in feed.sources for fault in (state.fault, state.lack, state.forecast_fault) if fault],
    )


def _scores(known: Signal | None, now_s: float) -> ForecastEvaluation | None:
    """Return the errors of forecasts recomputed for the last week; None if less than ten days are known."""
    if known is None or not len(known) or known.starts_s[0] > now_s - EVALUATED_S - WARM_S:
        return None
    measured = known.between(-np.inf, now_s)
    return evaluate(measured, stopwatch_s=time.perf_counter, since_s=now_s - EVALUATED_S - DAY_S)


def as_dict(report: SignalReport) -> dict[str, Any]:
    """Return the report for scripts: units in the names, times in Unix seconds."""
    history, known, forecast = report.history, report.known, report.forecast
    value = history.value_at(report.now_s) if history is not None else None
    return {
        "now_s": report.now_s,
        "state": report.freshness.value,
        "source": report.provenance.source,
        "detail": report.provenance.detail,
        "faults": list(report.faults),
        "kind": known.kind if known is not None else None,
        "zone": known.zone if known is not None else None,
        "unit": known.unit if known is not None else None,
        "value": value,
        "age_s": report.age_s if np.isfinite(report.age_s) else None,
        "issued_at_s": known.issued_at_s if known is not None else None,
        "history": _entries(known) if known is not None else [],
        "forecast_source": forecast.signal.source if forecast is not None else None,
        "forecast": _expected(forecast) if forecast is not None else [],
        "errors_7d": asdict(report.scores) if report.scores is not None else None,
    }


def _entries(known: Signal) -> list[dict[str, Any]]:
    rows = zip(known.starts_s.tolist(), known.values.tolist(), known.estimated.tolist(), strict=True)
    return [{"starts_s": s, "value": v if np.isfinite(v) else None, "estimated": e} for s, v, e in rows]


def _expected(forecast: Forecast) -> list[dict[str, Any]]:
    rows = zip(
        forecast.signal.starts_s.tolist(),
        forecast.signal.values.tolist(),
        forecast.lower.tolist(),
        forecast.upper.tolist(),
        strict=True,
    )
    return [
        {"starts_s": s, "value": v, "lower": lo if np.isfinite(lo) else None, "upper": up if np.isfinite(up) else None}
        for s, v, lo, up in rows
    ]


def _print(report: SignalReport, console: Console) -> None:
    for fault in report.faults:
        console.print(f"[red]wrong:[/red] {shown(fault)}", soft_wrap=True, highlight=False)
    known = report.known
    if known is None or report.history is None:
        console.print("the signal has no known values")
        return
    what = "price" if known.kind == "price" else f"carbon intensity ({known.kind})"
    value = report.history.value_at(report.now_s)
    now = f"[bold]{value:.4g} {known.unit}[/bold] now" if value is not None else "no trusted value now"
    console.print(f"{what} of {shown(known.zone)}: {now}, {report.freshness}", highlight=False)
    console.print(f"source: {shown(known.source)}; {_age(report, known)}", highlight=False, soft_wrap=True)
    if report.provenance.detail:
        console.print(shown(report.provenance.detail), soft_wrap=True, highlight=False)
    print(draw_signal(known, report.forecast, now_s=report.now_s, in_colour=console.is_terminal))
    _print_forecast(report, console)


def _age(report: SignalReport, known: Signal) -> str:
    newest = (
        "a measured value is current"
        if report.age_s == 0
        else f"the last value ended {report.age_s / HOUR_S:.1f} h ago"
    )
    n_known = int(np.isfinite(known.values).sum())
    return f"{newest}; {n_known} values of {(report.now_s - known.starts_s[0]) / DAY_S:.1f} days known"


def _print_forecast(report: SignalReport, console: Console) -> None:
    forecast = report.forecast
    if forecast is None:
        console.print("no forecast: the history is too short or too old")
        return
    until_h = (forecast.signal.ends_s - report.now_s) / HOUR_S
    console.print(
        f"forecast for {until_h:.0f} h by {shown(forecast.signal.source)}, with its 90 % interval", highlight=False
    )
    if report.scores is None:
        console.print("its errors are shown once ten days are known", highlight=False)
    else:
        console.print(_table(report.scores), highlight=False)


def _table(scores: ForecastEvaluation) -> Table:
    """Return the errors of the last week, relative if all values are above zero."""
    relative = scores.mape_ratio["gridchase"]["1h"] is not None
    errors = scores.mape_ratio if relative else scores.mae
    table = Table(title=f"mean absolute error of the last week's forecasts{' [%]' if relative else ''}")
    horizons = list(errors["gridchase"])
    table.add_column("")
    for horizon in horizons:
        table.add_column("1-24h" if horizon.startswith("mean") else horizon, justify="right")
    for method in METHODS:
        cells = (errors[method][horizon] for horizon in horizons)
        table.add_row(method, *("" if cell is None else f"{cell * (100 if relative else 1):.3g}" for cell in cells))
    covered = (scores.coverage_90_ratio.get(horizon) for horizon in horizons)
    table.add_row("in the interval [%]", *("" if cell is None else f"{100 * cell:.0f}" for cell in covered))
    return table


def overrides_of(provider: str, zone: str, kind: str, options: Sequence[str]) -> list[str]:
    """Return `--provider`, `--zone`, `--kind` and `--option` as overrides of the configuration."""
    pairs = [("name", provider), *([("zone", zone)] if zone else []), *(_option(option) for option in options)]
    table = ", ".join(f"{key} = {_toml(value)}" for key, value in pairs)
    return [f"signal.kind={kind}", f"signal.provider=[{{{table}}}]"]


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (equals and key.strip().isidentifier()):
        raise ConfigError([f"--option {text}: must be key=value"])
    return key.strip(), value


def _toml(text: str) -> str:
    """Return a value in TOML: numbers and booleans as they are, anything else in quotes."""
    try:
        float(text)
    except ValueError:
        return text if text in {"true", "false"} else msgspec.json.encode(text).decode()
    return text


def draw_signal(known: Signal, forecast: Forecast | None, *, now_s: float, in_colour: bool) -> str:
    """Return the plot, 17 lines, over hours from now; gaps stay empty."""
    figure = terminal_plot(
        size=(WIDTH, HEIGHT),
        labels=("h from now", known.unit),
        x_limits=(-BACK_H, AHEAD_H),
        y_limits=_bounds(known, forecast, now_s),
        tick_texts=("{:+.0f}".format, "{:.4g}".format),
        in_colour=in_colour,
    )
    for times_h, values in _gapless_parts(known, now_s):
        figure.plot(times_h, values, lc="green")
    if forecast is not None:
        _draw_forecast(figure, forecast, now_s)
    figure.axvline(BACK_H / (BACK_H + AHEAD_H), lc="white")
    return str(figure.show(legend=False))


def _draw_forecast(figure: "plotille.Figure", forecast: Forecast, now_s: float) -> None:
    """Draw the forecast as a line and its interval as dots, one pair per hour."""
    times_h = (forecast.signal.starts_s - now_s) / HOUR_S
    inside = times_h <= AHEAD_H
    figure.plot(times_h[inside].tolist(), forecast.signal.values[inside].tolist(), lc="cyan")
    step = max(1, round(1.0 / float(np.diff(times_h).min()))) if len(times_h) > 1 else 1
    for edge in (forecast.lower, forecast.upper):
        shown = inside & np.isfinite(edge)
        figure.scatter(times_h[shown][::step].tolist(), edge[shown][::step].tolist(), lc="blue")


def _gapless_parts(known: Signal, now_s: float) -> list[tuple[list[float], list[float]]]:
    """Return (hours from now, values) of each part without a gap, so that no line crosses one."""
    seen = known.between(now_s - BACK_H * HOUR_S, now_s + AHEAD_H * HOUR_S)
    times_h = (seen.starts_s - now_s) / HOUR_S
    is_known = np.isfinite(seen.values)
    cuts = np.flatnonzero(np.diff(is_known.astype(np.int8))) + 1
    parts = zip(np.split(times_h, cuts), np.split(seen.values, cuts), np.split(is_known, cuts), strict=True)
    return [(t.tolist(), v.tolist()) for t, v, k in parts if len(k) and k[0]]


def _bounds(known: Signal, forecast: Forecast | None, now_s: float) -> tuple[float, float]:
    shown = [known.between(now_s - BACK_H * HOUR_S, now_s + AHEAD_H * HOUR_S).values]
    if forecast is not None:
        shown += [forecast.signal.values, forecast.lower, forecast.upper]
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = _MARGIN * (high - low) or abs(high) * _MARGIN or 1.0
    return low - margin, high + margin
