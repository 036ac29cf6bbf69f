"""`gridchase report`: what the runs of a node used and saved, by job, user, day, run or GPU, from its history."""

import argparse
import csv
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from rich.console import Console
from sqlalchemy import Connection

from controller.cli.configuration import add_configuration
from controller.cli.output import Terminal, plain_table, print_json, shown, write_drawing
from controller.config import load_config
from controller.errors import ConfigError, ControllerError
from controller.history.energy_history.growth import day_of
from controller.history.energy_history.history_file import read_history
from controller.history.energy_history.reading import Period, RunFilter, gpu_entries, oldest_s, run_parts
from controller.history.energy_history.recorder import FILE
from controller.history.energy_history.report import HOW_COMBINED, TOO_EARLY, Entry, Part, entry_of, sum_of_gpus
from controller.web.report_page import ReportPage, render_report
from gridchase.cli.verb import VERSION
from policies.database.errors import DatabaseUnavailableError, DatabaseVersionError
from policies.vocabulary.units import DAY_S, duration_text
from publishers.messages.reports import RunEnergy
from publishers.training.reporting.amounts import carbon_text, energy_text, money_text

_GROUPS: Final[dict[str, Callable[[Part], str]]] = {
    "job": lambda part: f"{part.user}/{part.job}",
    "user": lambda part: part.user,
    "run": lambda part: f"{part.user}/{part.job}/{part.run}",
}
_MONTH: Final = re.compile(r"(\d{4})-(\d{2})")
_DAYS: Final = re.compile(r"(\d{1,5})d")


class Report(Struct, frozen=True, kw_only=True):
    """A report, as JSON; `since_s` and `until_s` are Unix seconds, `records` the newest record of each run, by run."""

    since_s: float
    until_s: float
    by: str
    headline: str
    combined: str
    total: Entry
    rows: list[Entry]
    records: list[RunEnergy]


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_configuration(verb)
    verb.add_argument("--database", type=Path, metavar="FILE", help=f"default: {FILE} in the node's state directory")
    verb.add_argument("--by", choices=("job", "user", "day", "run", "gpu"), default="job", help="default: job")
    for name in RunFilter._fields:
        verb.add_argument(f"--{name}", help=f"only this {name}")
    period = verb.add_mutually_exclusive_group()
    period.add_argument("--month", metavar="2026-11", help="a month, by this machine's time zone")
    period.add_argument("--since", metavar="2026-11-05", help="since a day or moment, or for so many days: 7d")
    form = verb.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--html", type=Path, metavar="FILE", help="write a page for the browser and for paper")
    verb.set_defaults(do=report, default_log_level="warning")


def report(options: argparse.Namespace) -> int:
    """Print the report.

    Raises:
        ConfigError: arguments or the configuration are wrong, or GPUs cannot be told apart by run.
        ControllerError: the history cannot be read.
    """
    which = RunFilter(options.user, options.job, options.run)
    faults: list[str] = []
    if options.by == "gpu" and any(which):
        faults.append("--by gpu: counts all that a GPU used; leave out --user, --job and --run")
    if options.by == "gpu" and options.html is not None:
        faults.append("--html: shows what runs saved; leave out --by gpu")
    now_s = datetime.now().astimezone().timestamp()
    period = _period(options, now_s, faults)
    path = options.database or _path(options, faults)
    if faults:
        raise ConfigError(faults)
    groups = (options.by, "day", *(() if any(which) else ("gpu",))) if options.html else (options.by,)
    try:
        found, *more = read_history(
            path, lambda connection: [_report(connection, by, which, period, now_s) for by in groups]
        )
    except (DatabaseUnavailableError, DatabaseVersionError) as error:
        raise ControllerError(str(error)) from error
    if options.html is not None:
        page = render_report(_page(options, found, *more))
        write_drawing("--html", options.html, page.encode(), as_json=False)
    elif options.json:
        print_json(found)
    elif options.csv:
        _print_csv(found.rows)
    else:
        _print(found, Terminal())
    return 0


def _page(options: argparse.Namespace, found: Report, days: Report, gpus: Report | None = None) -> ReportPage:
    """Return what the page shows of a report, of its days and, if all runs are in it, of all GPUs."""
    used_j = None if gpus is None else gpus.total.energy_j
    rest_j = 0.0 if used_j is None else used_j - (found.total.energy_j or 0.0)
    asked = {name: getattr(options, name) for name in ("database", "by", "month", "since", *RunFilter._fields)}
    words = [word for name, value in asked.items() if value is not None for word in (f"--{name}", str(value))]
    begin, end = (f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d}" for at_s in (found.since_s, found.until_s))
    return ReportPage(
        period=f"{begin} to {end}"
        if options.month is None
        else f"{datetime.fromtimestamp(found.since_s).astimezone():%B %Y}",
        headline=found.headline,
        by=options.by,
        total=found.total,
        rows=found.rows,
        days=days.rows,
        without_run_j=rest_j if rest_j > 0 else None,
        command=shlex.join(["gridchase", "report", *words, "--html", options.html.name]),
        fingerprint=sha256(msgspec.json.encode((found, days))).hexdigest()[:16],
        version=VERSION,
    )


def _path(options: argparse.Namespace, faults: list[str]) -> Path:
    """Return where the node's history is; what is wrong with the configuration is added to the faults."""
    try:
        return Path(load_config(options.config, options.set).node.state_dir) / FILE
    except ConfigError as error:
        faults += error.faults
        return Path(FILE)


def _period(options: argparse.Namespace, now_s: float, faults: list[str]) -> Period | None:
    """Return the period that is asked for, until now at most; what is wrong with it is added to the faults."""
    if options.month is not None:
        asked, form = f"--month {options.month}", "a month, such as 2026-11"
    elif options.since is not None:
        asked, form = (
            f"--since {options.since}",
            "a day or a moment, such as 2026-11-05, or a number of days, such as 7d",
        )
    else:
        return None
    try:
        period = _since(options.since, now_s) if options.month is None else _month(options.month)
    except (ValueError, OverflowError):
        faults.append(f"{asked}: must be {form}")
        return None
    if not 0 <= period.since_s < now_s:
        faults.append(f"{asked}: must begin after 1970 and before now")
    return Period(period.since_s, min(period.until_s, now_s))


def _month(text: str) -> Period:
    match = _MONTH.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month = int(match[1]), int(match[2])
    first_days = ((year, month), (year + month // 12, month % 12 + 1))
    noons = (datetime(*first_day, 1, 12).astimezone() for first_day in first_days)
    return Period(*(day_of(noon.timestamp(), None)[0] for noon in noons))


def _since(text: str, now_s: float) -> Period:
    if match := _DAYS.fullmatch(text):
        return Period(now_s - int(match[1]) * DAY_S, now_s)
    return Period(datetime.fromisoformat(text).timestamp(), now_s)


def _report(connection: Connection, by: str, which: RunFilter, period: Period | None, now_s: float) -> Report:
    begin_s = min(oldest_s(connection) or now_s, now_s)
    period = period or Period(begin_s, now_s)
    days = dict(_days(Period(max(period.since_s, begin_s), period.until_s))) if by == "day" else {}
    parts, *of_days = run_parts(connection, [period, *days.values()], which)
    total = entry_of("total", parts)
    if by == "gpu":
        rows = gpu_entries(connection, period)
        total = sum_of_gpus("total", rows)
    elif by == "day":
        rows = [entry_of(name, of_day) for name, of_day in zip(days, of_days, strict=True) if of_day]
    else:
        groups: dict[str, list[Part]] = {}
        for part in parts:
            groups.setdefault(_GROUPS[by](part), []).append(part)
        rows = [entry_of(name, group) for name, group in groups.items()]
    return Report(
        since_s=period.since_s,
        until_s=period.until_s,
        by=by,
        headline=headline(total, period, n_gpus=len(rows) if by == "gpu" else None),
        combined=HOW_COMBINED,
        total=total,
        rows=rows,
        records=[part.record for part in parts] if by == "run" else [],
    )


def _days(period: Period) -> Iterator[tuple[str, Period]]:
    at_s = period.since_s
    while at_s < period.until_s:
        _, end_s = day_of(at_s, None)
        yield f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d}", Period(at_s, min(end_s, period.until_s))
        at_s = end_s


def headline(total: Entry, period: Period, *, n_gpus: int | None = None) -> str:
    """Return what runs, or so many GPUs, used and saved, as a sentence."""
    begin, end = (f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M}" for at_s in period)
    if n_gpus is not None:
        return f"From {begin} to {end}, {_number(n_gpus, 'GPU')} used {_used(total)}, with runs and without."
    if not total.runs:
        return f"From {begin} to {end} there was no run."
    used = f"From {begin} to {end}, {_number(total.runs, 'run')} used {_used(total)}"
    if not total.measured_runs:
        return f"{used}; it is {TOO_EARLY} what was saved."
    known = "" if total.measured_runs == total.runs else f" (known of {total.measured_runs} of them)"
    slower = f", for {_slower(total)} more time" if _slower(total) else ""
    return f"{used}, and saved {_saved(total)} against the same work at the prior limits{slower}{known}."


def _number(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _used(entry: Entry) -> str:
    texts = [energy_text(entry.energy_j or 0.0)]
    if entry.carbon_g is not None:
        texts.append(carbon_text(entry.carbon_g))
    if entry.cost is not None:
        texts.append(money_text(entry.cost, entry.currency))
    return ", ".join(texts)


def _saved(entry: Entry) -> str:
    """Return what was saved first of all: carbon, else money, else energy; with its interval."""
    if entry.saved_carbon_g is not None:
        text_of: Callable[[float], str] = carbon_text
        amount, half, ratio = entry.saved_carbon_g, entry.saved_carbon_ci90_g, entry.saved_carbon_ratio
    elif entry.saved_cost is not None:
        text_of = partial(money_text, currency=entry.currency)
        amount, half, ratio = entry.saved_cost, entry.saved_cost_ci90, entry.saved_cost_ratio
    elif entry.saved_energy_j is not None:
        text_of = energy_text
        amount, half, ratio = entry.saved_energy_j, entry.saved_energy_ci90_j, entry.saved_energy_ratio
    else:
        return TOO_EARLY
    share = "" if ratio is None else f", {100 * ratio:.1f} %"
    ends = (text_of(amount + sign * (half or 0.0)) for sign in (-1, 1))
    return f"{text_of(amount)}{share} (90 %: {' to '.join(ends)})"


def _slower(entry: Entry) -> str:
    if entry.slowdown_ratio is None or entry.slowdown_ci90_ratio is None:
        return ""
    ratio, half = entry.slowdown_ratio - 1, entry.slowdown_ci90_ratio
    return f"{100 * ratio:.1f} % (90 %: {100 * (ratio - half):.1f} to {100 * (ratio + half):.1f} %)"


def _print(found: Report, console: Console) -> None:
    console.print(shown(found.headline), highlight=False, soft_wrap=not console.is_terminal)
    if not found.rows:
        return
    table = plain_table()
    table.add_column(found.by, overflow="fold")
    if found.by != "gpu":
        for name in ("runs", "time"):
            table.add_column(name, justify="right")
    table.add_column("used")
    if found.by != "gpu":
        table.add_column("saved")
        table.add_column("slower", justify="right")
    for row in found.rows:
        table.add_row(*map(shown, _cells(row)))
    console.print(table)
    if any(row.measured_runs for row in found.rows):
        console.print(shown(found.combined), style="dim", highlight=False)


def _cells(row: Entry) -> list[str]:
    if row.runs is None:
        return [row.name, _used(row)]
    return [row.name, str(row.runs), duration_text(row.duration_s or 0.0), _used(row), _saved(row), _slower(row)]


def _print_csv(rows: Sequence[Entry]) -> None:
    writer = csv.DictWriter(sys.stdout, fieldnames=list(Entry.__struct_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(msgspec.to_builtins(row) for row in rows)
