"""What may be asked of a history, and the answer: a period, by a time zone, and its lines."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from sqlalchemy import Connection

from controller.history.energy_history.growth import day_of
from controller.history.energy_history.reading import (
    Period,
    RunFilter,
    gpu_entries,
    next_quarter_s,
    node_entries,
    oldest_s,
    run_parts,
)
from controller.history.energy_history.report import HOW_COMBINED, Entry, Part, entry_of, sum_of_gpus
from controller.history.energy_history.sentence import headline, how_counted
from controller.runtime.natural_order import natural_key
from policies.vocabulary.units import DAY_S
from publishers.messages.reports import RunEnergy

BY_HARDWARE: Final = {"gpu": gpu_entries, "node": node_entries}
_GROUPS: Final[dict[str, Callable[[Part], str]]] = {
    "job": lambda part: f"{part.user}/{part.job}",
    "user": lambda part: part.user,
    "run": lambda part: f"{part.user}/{part.job}/{part.run}",
}
_MONTH: Final = re.compile(r"([0-9]{4})-([0-9]{2})")
_DAYS: Final = re.compile(r"([0-9]{1,5})d")
AskedTime = Annotated[str, Meta(max_length=64)]
AskedName = Annotated[str, Meta(min_length=1, max_length=128)]


class ReportQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is asked for: lines by what, since when or of which month, of whose runs; None is any."""

    by: Literal["job", "user", "day", "run", "gpu", "node"] = "job"
    month: AskedTime | None = None
    since: AskedTime | None = None
    user: AskedName | None = None
    job: AskedName | None = None
    run: AskedName | None = None

    @property
    def which(self) -> RunFilter:
        """Return which runs it is about."""
        return RunFilter(self.user, self.job, self.run)


class Report(Struct, frozen=True, kw_only=True):
    """A report, as JSON; `since_s` and `until_s` are Unix seconds.

    `combined` and `counted` say how it was counted, in sentences. `records`, by run, are the newest of each, without
    numbers of what was saved that have no evidence or no interval.
    """

    since_s: float
    until_s: float
    by: str
    headline: str
    combined: str
    total: Entry
    rows: list[Entry]
    records: list[RunEnergy]
    counted: list[str] = []


def period_of(query: ReportQuery, now_s: float, faults: list[str], zone: tzinfo | None = None) -> Period | None:
    """Return the period that is asked for, until now at most; None: all there is. What is wrong is added to faults.

    Days and months are those of a time zone; None is this machine's.
    """
    if query.by in BY_HARDWARE and any(query.which):
        faults.append(f"--by {query.by}: counts all that a GPU used; leave out --user, --job and --run")
    if query.month is not None and query.since is not None:
        faults.append("--month, --since: choose one of them")
        return None
    if query.month is not None:
        asked, form = f"--month {query.month}", "a month, such as 2026-11"
    elif query.since is not None:
        asked, form = f"--since {query.since}", "a day or a moment, such as 2026-11-05, or a number of days, such as 7d"
    else:
        return None
    try:
        period = _month(query.month, zone) if query.month is not None else _since(query.since or "", now_s, zone)
    except (ValueError, OverflowError):
        faults.append(f"{asked}: must be {form}")
        return None
    if not 0 <= period.since_s < now_s:
        faults.append(f"{asked}: must begin after 1970 and before now")
    return Period(period.since_s, min(period.until_s, now_s))


def _month(text: str, zone: tzinfo | None) -> Period:
    match = _MONTH.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month = int(match[1]), int(match[2])
    first_days = ((year, month), (year + month // 12, month % 12 + 1))
    noons = (datetime(*first_day, 1, 12, tzinfo=zone) for first_day in first_days)
    return Period(*(day_of(noon.timestamp(), zone)[0] for noon in noons))


def _since(text: str, now_s: float, zone: tzinfo | None) -> Period:
    if match := _DAYS.fullmatch(text):
        return Period(now_s - int(match[1]) * DAY_S, now_s)
    since = datetime.fromisoformat(text)
    return Period((since if since.tzinfo else since.replace(tzinfo=zone)).timestamp(), now_s)


def make_report(
    connection: Connection, query: ReportQuery, period: Period | None, now_s: float, zone: tzinfo | None = None
) -> Report:
    """Return what was used and saved.

    Args:
        connection: in a transaction.
        query: what is asked for.
        period: of which time; None: since the history began.
        now_s: the time [Unix s].
        zone: of the days, and of the times that are told; None: this machine's.
    """
    return make_reports(connection, [query], period, now_s, zone)[0]


def make_reports(
    connection: Connection,
    queries: Sequence[ReportQuery],
    period: Period | None,
    now_s: float,
    zone: tzinfo | None = None,
) -> list[Report]:
    """Return reports about the same runs, by different lines: what is read is read once."""
    begin_s = min(oldest_s(connection) or now_s, now_s)
    period = period or Period(begin_s, now_s)
    asked = {query.by for query in queries}
    days = dict(_days(connection, Period(max(period.since_s, begin_s), period.until_s), zone)) if "day" in asked else {}
    parts, of_days, total_of_runs = list[Part](), dict[str, list[Part]](), Entry(name="total")
    counted: list[str] = []
    if asked - BY_HARDWARE.keys():
        parts, *of_each = run_parts(connection, [period, *days.values()], queries[0].which)
        of_days, total_of_runs = dict(zip(days, of_each, strict=True)), entry_of("total", parts)
        counted = how_counted(parts)

    def report(by: str) -> Report:
        is_hardware = by in BY_HARDWARE
        if is_hardware:
            rows = BY_HARDWARE[by](connection, period)
            total = sum_of_gpus("total", rows)
        else:
            groups = of_days if by == "day" else _groups(parts, by)
            rows, total = [entry_of(name, group) for name, group in groups.items() if group], total_of_runs
        return Report(
            since_s=period.since_s,
            until_s=period.until_s,
            by=by,
            headline=headline(
                total,
                period,
                which=queries[0].which,
                hardware=by if is_hardware else "",
                n_rows=len(rows),
                zone=zone,
            ),
            combined=HOW_COMBINED,
            counted=[] if is_hardware else counted,
            total=total,
            rows=rows,
            records=[part.record for part in parts] if by == "run" else [],
        )

    return [report(query.by) for query in queries]


def _groups(parts: list[Part], by: str) -> dict[str, list[Part]]:
    """Return the parts of each line: jobs and users by their names, runs in the order in which they began."""
    groups: dict[str, list[Part]] = {}
    for part in parts:
        groups.setdefault(_GROUPS[by](part), []).append(part)
    return groups if by == "run" else dict(sorted(groups.items(), key=lambda group: natural_key(group[0])))


def _days(connection: Connection, period: Period, zone: tzinfo | None) -> Iterator[tuple[str, Period]]:
    """Yield the days of a period, without those of a long time in which nothing ran, as before a clock was set."""
    at_s = period.since_s
    while at_s < period.until_s:
        begin_s, end_s = day_of(at_s, zone)
        next_s = next_quarter_s(connection, begin_s - DAY_S)  # a merged day may begin before this one, and count in it
        if next_s is None or next_s >= period.until_s:
            return
        if next_s >= end_s:
            at_s = next_s
            continue
        yield f"{datetime.fromtimestamp(at_s, zone):%Y-%m-%d}", Period(at_s, min(end_s, period.until_s))
        at_s = end_s
