"""`gridchase report`: what was used and saved, by job, user, day, run, GPU or node, of a node or of a site."""

import argparse
import shlex
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection

from controller.cli.configuration import add_configuration
from controller.cli.history.client import fetch_report
from controller.cli.history.export import TABLES, export_faults, exported
from controller.cli.output import Terminal, plain_table, print_json, shown, write_drawing
from controller.config import load_config
from controller.errors import ConfigError, ControllerError
from controller.history.energy_history.history_file import read_history
from controller.history.energy_history.query import BY_HARDWARE, Report, ReportQuery, make_reports, period_of
from controller.history.energy_history.reading import Period
from controller.history.energy_history.recorder import FILE
from controller.history.energy_history.report import Entry, csv_text
from controller.history.energy_history.sentence import (
    PART_NAMES,
    saved_text,
    slower_text,
    split_texts,
    used_text,
    worked_text,
)
from controller.web.config import WebSettings
from controller.web.report_page import UNKNOWN, page_of, render_report
from gridchase.cli.verb import VERSION, utf8_text
from policies.database.errors import DatabaseUnavailableError, DatabaseVersionError
from policies.vocabulary.units import duration_text
from publishers.shared.files.lookup import NO_FILE, NO_PERMISSION, file_fault

Result = TypeVar("Result")
LOCAL_WEB: Final = f"http://{WebSettings().host}:{WebSettings().port}"
"""Where `gridchase web` serves by default."""
_FOR_A_PAGE: Final = "--token-file: is for a page, not for a file"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_configuration(verb)
    where = verb.add_mutually_exclusive_group()
    where.add_argument("--database", type=Path, metavar="FILE", help=f"{FILE} of a node or a site")
    where.add_argument("--url", metavar="http://HOST:9323", help="ask the `gridchase web` of a site")
    verb.add_argument(
        "--token-file", type=Path, metavar="FILE", help="a token, for a page that wants a sign-in (web.sign_in_to_read)"
    )
    choices = ("job", "user", "day", "run", "gpu", "node")
    verb.add_argument("--by", choices=choices, default="job", help="default: job")
    for name in ("user", "job", "run"):
        verb.add_argument(f"--{name}", type=utf8_text, help=f"only this {name}")
    period = verb.add_mutually_exclusive_group()
    period.add_argument("--month", metavar="2026-11", help="a month, by this machine's time zone")
    period.add_argument("--since", metavar="2026-11-05", help="since a day or moment, or for so many days: 7d")
    form = verb.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--html", type=Path, metavar="FILE", help="write a page for the browser and for paper")
    form.add_argument(
        "--export", type=Path, metavar="FILE", help="write a table, row by row; FILE ends in .csv, .jsonl or .parquet"
    )
    verb.add_argument("--table", choices=TABLES, default=TABLES[0], help=f"what --export writes; default: {TABLES[0]}")
    verb.epilog = (
        "It reads what --url or --database names, else the history of this node's controller in node.state_dir. Where"
        f" there is none, and neither --config nor --set was given, it asks {LOCAL_WEB}."
    )
    verb.set_defaults(do=report, default_log_level="warning")


def report(options: argparse.Namespace) -> int:
    """Print the report.

    Raises:
        ConfigError: arguments or the configuration are wrong, or GPUs cannot be told apart by run.
        ControllerError: there is no history, it cannot be read, or nobody answers.
    """
    query = _query(options)
    if options.export is not None:
        _export(options, query)
        return 0
    queries = [query]
    if options.html is not None:
        if query.by in BY_HARDWARE:
            raise ConfigError([f"--html: shows what runs saved; leave out --by {query.by}"])
        groups = ("day",) if any(query.which) else ("day", "gpu")
        queries += [replace(query, by=by) for by in groups]
    (found, *more), source = _reports(options, queries)
    if options.html is not None:
        write_drawing("--html", options.html, _page(options, found, *more).encode(), as_json=False)
    elif options.json:
        print_json(found)
    elif options.csv:
        print(csv_text(found.rows), end="")
    else:
        _print(found, Terminal(), source)
    return 0


def _query(options: argparse.Namespace) -> ReportQuery:
    """Return what is asked for, checked as over HTTP."""
    asked = {name: getattr(options, name) for name in ReportQuery.__struct_fields__}
    faults = []
    for name, value in asked.items():
        try:
            msgspec.convert({name: value}, ReportQuery)
        except msgspec.ValidationError as error:
            faults.append(f"--{name}: {str(error).partition(' - at ')[0]}")
    if faults:
        raise ConfigError(faults)
    return ReportQuery(**asked)


def _export(options: argparse.Namespace, query: ReportQuery) -> None:
    """Write a table."""
    path, table = options.export, options.table
    faults = export_faults(path, table, query)
    if options.url is not None:
        faults.append("--export: reads a file; leave out --url")
    if options.token_file is not None:
        faults.append(_FOR_A_PAGE)
    database = _path(options, faults)
    content = _read(
        database, query, faults, lambda connection, period, _: exported(connection, path, table, query, period)
    )
    write_drawing("--export", path, content, as_json=False)


def _reports(options: argparse.Namespace, queries: list[ReportQuery]) -> tuple[list[Report], str]:
    """Return the reports, and where they were read: at an address, in a file, or on the page of this machine."""
    if options.url is not None:
        return _fetched(options.url, options, queries), options.url
    faults: list[str] = []
    path = _path(options, faults)
    if options.token_file is not None and options.database is not None:
        faults.append(_FOR_A_PAGE)
    is_named = options.database is not None or options.config is not None or options.set
    absent = "" if is_named else file_fault(path)
    if absent not in {NO_FILE, NO_PERMISSION}:
        reports = _read(
            path, queries[0], faults, lambda connection, period, now_s: make_reports(connection, queries, period, now_s)
        )
        return reports, str(path)
    period_of(queries[0], _now_s(), faults)
    if faults:
        raise ConfigError(faults)
    try:
        return _fetched(LOCAL_WEB, options, queries), LOCAL_WEB
    except ControllerError as error:
        what = "no controller of this node has written one" if absent == NO_FILE else absent
        raise ControllerError(
            f"no history was found: {path}: {what}; {error}. Name a file with --database, or where `gridchase web` of"
            " your site answers with --url"
        ) from error


def _fetched(url: str, options: argparse.Namespace, queries: list[ReportQuery]) -> list[Report]:
    return [fetch_report(url, each, token_file=options.token_file) for each in queries]


def _read(
    path: Path, query: ReportQuery, faults: list[str], work: Callable[[Connection, Period | None, float], Result]
) -> Result:
    """Return what is found in a file, all of it at one moment."""
    now_s = _now_s()
    period = period_of(query, now_s, faults)
    if faults:
        raise ConfigError(faults)
    try:
        return read_history(path, lambda connection: work(connection, period, now_s))
    except (DatabaseUnavailableError, DatabaseVersionError) as error:
        raise ControllerError(str(error)) from error


def _now_s() -> float:
    return datetime.now().astimezone().timestamp()


def _page(options: argparse.Namespace, found: Report, days: Report, gpus: Report | None = None) -> str:
    """Return the page of a report, of its days and, if all runs are in it, of all GPUs."""
    asked = [
        (name, getattr(options, name))
        for name in ("config", "database", "url", "token_file", *ReportQuery.__struct_fields__)
    ]
    asked += [("set", each) for each in options.set]
    words = [word for name, value in asked if value is not None for word in (f"--{name.replace('_', '-')}", str(value))]
    return render_report(
        page_of(found, days=days, gpus=gpus, is_month=options.month is not None),
        command=shlex.join(["gridchase", "report", *words, "--html", str(options.html)]),
        fingerprint=sha256(msgspec.json.encode((found, days))).hexdigest()[:16],
        version=VERSION,
    )


def _path(options: argparse.Namespace, faults: list[str]) -> Path:
    """Return the file that is named, or the node's; what is wrong with the configuration is added to the faults."""
    if options.database is not None:
        return Path(options.database)
    try:
        return Path(load_config(options.config, options.set).node.state_dir) / FILE
    except ConfigError as error:
        faults += error.faults
        return Path(FILE)


def _print(found: Report, console: Console, source: str) -> None:
    console.print(shown(found.headline), highlight=False, soft_wrap=not console.is_terminal)
    if found.rows:
        console.print(_table(found))
        if any(map(split_texts, found.rows)):
            console.print(_split_table(found))
    combined = [found.combined] if any(row.measured_runs for row in found.rows) else []
    for sentence in (*combined, *found.counted, f"Read from {source}."):
        console.print(shown(sentence), style="dim", highlight=False)


def _table(found: Report) -> Table:
    """Return the lines: of GPUs and nodes what they used, and of runs the work, too, where one tells it."""
    headings = [found.by, "used"]
    if found.by not in BY_HARDWARE:
        headings = [found.by, "runs", "time", "used", "saved", "slower", "work"]
    cells = [_cells(row) for row in found.rows]
    n_columns = len(headings) if any(row[-1] for row in cells) else len(headings) - 1
    table = plain_table()
    for name in headings[:n_columns]:
        is_name, is_number = name == found.by, name in {"runs", "time", "slower"}
        table.add_column(name, overflow="fold" if is_name else "ellipsis", justify="right" if is_number else "left")
    for row in cells:
        table.add_row(*map(shown, row[:n_columns]))
    return table


def _split_table(found: Report) -> Table:
    table = plain_table("what the saving is made of")
    table.add_column(found.by, overflow="fold")
    for name in PART_NAMES.values():
        table.add_column(name)
    known = [row for row in found.rows if row.measured_runs]
    for row in known if len(known) == 1 else [*known, replace(found.total, name="all")]:
        texts = split_texts(row) or [UNKNOWN] * len(PART_NAMES)
        table.add_row(*map(shown, (row.name, *texts)))
    return table


def _cells(row: Entry) -> list[str]:
    if row.runs is None:
        return [row.name, used_text(row)]
    time_text = duration_text(row.duration_s or 0.0)
    return [row.name, str(row.runs), time_text, used_text(row), saved_text(row), slower_text(row), worked_text(row)]
