"""Reads the rows of a history, in the transaction of a connection."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Label,
    RowMapping,
    Select,
    Table,
    and_,
    case,
    exists,
    func,
    not_,
    or_,
    select,
)

from controller.history.energy_history.growth import (
    CURRENCY_SEPARATOR,
    GPU_AMOUNTS,
    QUARTER_S,
    RUN_AMOUNTS,
    Amounts,
    quarter_of,
)
from controller.history.energy_history.report import Entry, Part, sum_of_gpus, with_evidence
from controller.history.energy_history.schema import (
    DECISIONS,
    GPU_QUARTERS,
    GPUS,
    GRID_QUARTERS,
    RUN_QUARTERS,
    RUNS,
    joint_currency,
)
from controller.runtime.natural_order import natural_key
from policies.vocabulary.units import DAY_S
from publishers.messages.reports import LimitChange, RunEnergy
from publishers.messages.topics import RunKey

_RECORDS: Final = msgspec.json.Decoder(RunEnergy)
"""They were checked when they were written; a month may have tens of thousands."""
_WHOLE_S: Final = 0.8 * QUARTER_S
"""A run that was heard of for so long of a quarter-hour was there all the time: it is heard of now and then."""
_ROWS: Final = 5_000
"""Read at once of an exported table."""
MAX_TOGETHER: Final = 4_096
"""Changes of limits of one moment, as when a site starts."""


class Period(NamedTuple):
    """From when, inclusive, until when, exclusive [Unix s]."""

    since_s: float
    until_s: float


class RunFilter(NamedTuple):
    """Which runs; None is any."""

    user: str | None = None
    job: str | None = None
    run: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return what a row of the runs must be."""
        return [RUNS.c[name] == value for name, value in self._asdict().items() if value is not None]


class RunQuarter(NamedTuple):
    """What a run used and was compared with in a quarter-hour, or in a day that several were merged into.

    It begins at `starts_s` [Unix s]; the rest are as in `growth.RUN_AMOUNTS`.
    """

    starts_s: int
    length_s: int
    energy_j: float | None
    duration_s: float | None
    compared_duration_s: float | None
    baseline_duration_s: float | None


class MeanPower(NamedTuple):
    """The mean power of a quarter-hour that begins then [Unix s], [W], and for how much of it somebody drew that."""

    starts_s: float
    power_w: float
    present_ratio: float = 1.0


_QUARTER: Final = tuple(RUN_QUARTERS.c[name] for name in RunQuarter._fields)


class PastRun(NamedTuple):
    """A run as the history has it: its newest record, when it began and when it was heard last [Unix s]."""

    key: RunKey
    began_s: float
    heard_s: float
    record: RunEnergy


def oldest_s(connection: Connection) -> float | None:
    """Return when the oldest quarter-hour or day begins [Unix s]; None: there is none."""
    starts_s = [
        connection.execute(select(func.min(table.c.starts_s))).scalar() for table in (RUN_QUARTERS, GPU_QUARTERS)
    ]
    return min((float(value) for value in starts_s if value is not None), default=None)


def next_quarter_s(connection: Connection, since_s: float) -> float | None:
    """Return when the first quarter-hour or day of a run begins from a time on [Unix s]; None: there is none."""
    first = select(func.min(RUN_QUARTERS.c.starts_s)).where(RUN_QUARTERS.c.starts_s >= since_s)
    value = connection.execute(first).scalar()
    return None if value is None else float(value)


def run_parts(connection: Connection, periods: Iterable[Period], which: RunFilter) -> list[list[Part]]:
    """Return what each run used and saved in each period; those that did neither are left out.

    They come in the order in which they were first heard of. Each run counts once, in all periods by the same rows: as
    a whole or, where nobody here has led it, by its parts.
    """
    sums = [_sums(connection, RUN_QUARTERS, RUN_AMOUNTS, period) for period in periods]
    columns = [RUNS.c[name] for name in ("id", *RunFilter._fields, "record", "currency")]
    rows = connection.execute(select(*columns).where(_counts_once(), *which.conditions()))
    used = set().union(*sums)
    runs = {
        number: (user, job, run, _record_of(record, run, currency))
        for number, user, job, run, record, currency in rows
        if number in used
    }
    return [
        [Part(*runs[number], amounts) for number, amounts in of_period.items() if number in runs] for of_period in sums
    ]


def _counts_once() -> ColumnElement[bool]:
    """Return whether a row of the runs is a whole one, or a part of one that nobody here has led."""
    whole = RUNS.alias()
    is_same_run = and_(*(whole.c[name] == RUNS.c[name] for name in RunFilter._fields))
    return or_(RUNS.c.node == "", not_(exists().where(whole.c.node == "", is_same_run)))


def mean_powers(connection: Connection, period: Period) -> list[MeanPower]:
    """Return what all runs together drew in the quarter-hours that lie in a period, in their order."""
    is_in = (RUN_QUARTERS.c.starts_s >= period.since_s) & (RUN_QUARTERS.c.starts_s + QUARTER_S <= period.until_s)
    of_runs = select(RUN_QUARTERS.c.owner, *_QUARTER).where(
        is_in, RUN_QUARTERS.c.owner.in_(select(RUNS.c.id).where(_counts_once()))
    )
    totals_w: dict[float, float] = {}
    rows = connection.execute(of_runs.order_by(RUN_QUARTERS.c.owner, RUN_QUARTERS.c.starts_s))
    for _, of_run in groupby(rows, key=lambda row: row.owner):
        for starts_s, power_w, present_ratio in quarter_powers(RunQuarter(*quarter) for _, *quarter in of_run):
            if starts_s >= period.since_s:
                totals_w[starts_s] = totals_w.get(starts_s, 0.0) + power_w * present_ratio
    return sorted(MeanPower(starts_s, power_w) for starts_s, power_w in totals_w.items())


def quarter_powers(quarters: Iterable[RunQuarter]) -> Iterator[MeanPower]:
    """Yield what a run drew in each of its quarter-hours, which come in their order.

    What one used is of those before it, too, which have no row: the run was not heard of in them. Merged ones are left
    out.
    """
    end_s = -math.inf
    for quarter in quarters:
        used_s = quarter.duration_s or 0.0
        if quarter.length_s != QUARTER_S or quarter.energy_j is None or used_s <= 0:
            continue
        begin_s = max(quarter_of(quarter.starts_s + QUARTER_S - max(used_s, 1.0)), end_s)
        present_ratio = 1.0 if used_s >= _WHOLE_S else used_s / QUARTER_S
        for starts_s in range(int(min(begin_s, quarter.starts_s)), quarter.starts_s + 1, QUARTER_S):
            yield MeanPower(starts_s, quarter.energy_j / used_s, present_ratio)
        end_s = quarter.starts_s + QUARTER_S


def run_quarters(connection: Connection, key: RunKey) -> list[RunQuarter]:
    """Return what a run, as a whole, used in each quarter-hour, in their order; none: it is not known."""
    is_it = (RUNS.c[name] == value for name, value in key._asdict().items())
    found = connection.execute(select(RUNS.c.id, RUNS.c.began_s).where(RUNS.c.node == "", *is_it)).first()
    if found is None:
        return []
    is_since = RUN_QUARTERS.c.starts_s >= found.began_s - 2 * DAY_S  # by the index; days begin before their runs
    of_run = select(*_QUARTER).where(is_since, RUN_QUARTERS.c.owner == found.id)
    return [RunQuarter(*row) for row in connection.execute(of_run.order_by(RUN_QUARTERS.c.starts_s))]


def _record_of(text: str, run: str, currency: str | None) -> RunEnergy:
    """Return what may be told of a run's record: what has evidence, and a cost in one currency.

    A cost that was counted has its currency also where the newest record does not know prices any more. A record that
    cannot be read, as of a newer version, knows nothing: its amounts are counted.
    """
    try:
        record = with_evidence(_RECORDS.decode(str(text)))
    except (msgspec.MsgspecError, RecursionError):
        record = RunEnergy(
            run=run, state="silent", gpu_model="", n_gpus=0, iterations=0, epochs=0, duration_s=0.0, energy_j=0.0
        )
    known = str(currency or "")
    if CURRENCY_SEPARATOR in known:
        record = msgspec.structs.replace(record, cost=None, baseline_cost=None)
    return record if known in {"", record.currency} else msgspec.structs.replace(record, currency=known)


def gpu_entries(connection: Connection, period: Period) -> list[Entry]:
    """Return what each GPU used in a period, with runs and without; costs in several currencies have no sum."""
    sums = _sums(connection, GPU_QUARTERS, GPU_AMOUNTS, period)
    currencies = {
        row["owner"]: row["currency"]
        for row in _by_owner(connection, GPU_QUARTERS, [joint_currency().label("currency")], period)
    }
    found = connection.execute(select(GPUS).order_by(GPUS.c.gpu_index)).mappings()
    rows = sorted(found, key=lambda row: natural_key(row["node"]))
    return [_gpu_entry(row, sums[row["id"]], currencies[row["id"]]) for row in rows if row["id"] in sums]


def node_entries(connection: Connection, period: Period) -> list[Entry]:
    """Return what all GPUs of each node used in a period, with runs and without."""
    by_node: dict[str, list[Entry]] = {}
    for gpu in gpu_entries(connection, period):
        by_node.setdefault(gpu.name.partition("/")[0], []).append(gpu)
    return [sum_of_gpus(node, gpus) for node, gpus in by_node.items()]


def _gpu_entry(row: RowMapping, amounts: Amounts, currency: str | None) -> Entry:
    entry = msgspec.structs.replace(Entry(name=f"{row['node']}/{row['gpu_uuid']}", currency=currency), **amounts)
    are_several = CURRENCY_SEPARATOR in (currency or "")
    return msgspec.structs.replace(entry, cost=None, currency=None) if are_several else entry


def _sums(connection: Connection, table: Table, names: tuple[str, ...], period: Period) -> dict[int, Amounts]:
    found = _by_owner(connection, table, [func.sum(table.c[name]).label(name) for name in names], period)
    return {row["owner"]: {name: row[name] for name in names} for row in found}


def _by_owner(
    connection: Connection, table: Table, columns: Sequence[Label[Any]], period: Period
) -> Iterable[RowMapping]:
    """Return aggregates of the quarter-hours and days of each run or GPU in a period, with their owner."""
    starts_s, length_s = table.c.starts_s, table.c.length_s
    # A day that was merged is one of this machine's zone: by its noon, it keeps its date in most others.
    at_s = case((length_s > QUARTER_S, starts_s + 0.5 * length_s), else_=starts_s)
    is_near = (starts_s >= period.since_s - DAY_S) & (starts_s < period.until_s)  # by the index
    is_in = is_near & (at_s >= period.since_s) & (at_s < period.until_s)
    of_owners = select(table.c.owner, *columns).where(is_in).group_by(table.c.owner).order_by(table.c.owner)
    return connection.execute(of_owners).mappings()


EXPORTED: Final[dict[str, tuple[Table, Table | None, str, tuple[str, ...]]]] = {
    "run_quarters": (RUN_QUARTERS, RUNS, "owner", (*RunFilter._fields, "node")),
    "runs": (RUNS, None, "id", ()),
    "gpu_quarters": (GPU_QUARTERS, GPUS, "owner", ("node", "gpu_uuid", "gpu_index")),
    "decisions": (DECISIONS, GPUS, "gpu", ("node", "gpu_uuid", "gpu_index")),
    "grid_quarters": (GRID_QUARTERS, None, "", ()),
}
"""What may be exported: the table, the one that has the names of its rows' owners, by which column, and the names."""
_NOT_EXPORTED: Final = frozenset({"id", "owner", "gpu", "earlier"})


def exported_columns(name: str) -> list[Column[Any]]:
    """Return the columns of an exported table: the names of what a row is about, then the table's own."""
    table, owners, _, names = EXPORTED[name]
    of_owners = [owners.c[each] for each in names] if owners is not None else []
    return [*of_owners, *(column for column in table.c if column.key not in _NOT_EXPORTED)]


def exported_rows(
    connection: Connection, name: str, period: Period | None, which: RunFilter
) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yield the rows of an exported table, some thousands at a time, by the columns of `exported_columns`.

    Each run counts once, as in `run_parts`. Of its record there is what may be told.

    Args:
        connection: in a transaction.
        name: a key of `EXPORTED`.
        period: the rows that begin in it, and the runs that went on in it; None: all.
        which: of whose runs; only of tables of runs.
    """
    table, owners, owner, _ = EXPORTED[name]
    columns = exported_columns(name)
    query = select(*columns)
    if owners is not None:
        query = query.where(table.c[owner] == owners.c.id)
    if RUNS in (table, owners):
        query = query.where(_counts_once(), *which.conditions())
    if period is not None:
        begins_s = table.c.began_s if table is RUNS else table.c.time_s if table is DECISIONS else table.c.starts_s
        ends_s = table.c.heard_s if table is RUNS else begins_s
        query = query.where(ends_s >= period.since_s, begins_s < period.until_s)
    records = [number for number, column in enumerate(columns) if column is RUNS.c.record]
    found = connection.execution_options(yield_per=_ROWS).execute(query.order_by(*table.primary_key))
    for rows in found.partitions():
        yield [_exported(tuple(row), records) for row in rows]


def _exported(row: tuple[Any, ...], records: Sequence[int]) -> tuple[Any, ...]:
    for number in records:
        told = msgspec.json.encode(_record_of(row[number], "", None)).decode()
        row = (*row[:number], told, *row[number + 1 :])
    return row


def decisions(
    connection: Connection, *, before_s: float, node: str | None = None, job: str | None = None, n_most: int
) -> list[LimitChange]:
    """Return the newest changes of limits before a time [Unix s], newest first; None is any node, any job.

    They are about `n_most`: those of one moment come together, so that the time of the last one is where the next
    question begins, and nothing is lost between two.
    """
    asked = {GPUS.c.node: node, DECISIONS.c.job: job}
    conditions = [
        DECISIONS.c.gpu == GPUS.c.id,
        DECISIONS.c.time_s < before_s,
        *(column == value for column, value in asked.items() if value is not None),
    ]
    newest_first = DECISIONS.c.time_s.desc()
    last_s = select(DECISIONS.c.time_s).where(*conditions).order_by(newest_first).limit(1).offset(n_most - 1)
    since_s = connection.execute(last_s).scalar()
    if since_s is not None:
        conditions.append(DECISIONS.c.time_s >= since_s)
    columns = [column for column in DECISIONS.c if column.name != "gpu"]
    names = (GPUS.c.node, GPUS.c.gpu_uuid, GPUS.c.gpu_index)
    found = (
        select(*columns, *names)
        .where(*conditions)
        .order_by(newest_first, GPUS.c.node, GPUS.c.gpu_index)
        .limit(n_most + MAX_TOGETHER)
    )
    return [LimitChange(**row) for row in connection.execute(found).mappings()]


def ended_runs(connection: Connection, *, since_s: float, n_most: int) -> list[PastRun]:
    """Return the runs that have ended since a time [Unix s], the one that was heard last first."""
    is_ended = or_(RUNS.c.final, RUNS.c.state != "running")
    conditions = (RUNS.c.node == "", RUNS.c.heard_s >= since_s, is_ended)
    return _past_runs(connection, select(*_PAST).where(*conditions).order_by(RUNS.c.heard_s.desc()).limit(n_most))


def past_run(connection: Connection, key: RunKey) -> PastRun | None:
    """Return a run by its names; None: the history does not know it."""
    is_it = (RUNS.c[name] == value for name, value in key._asdict().items())
    found = _past_runs(connection, select(*_PAST).where(RUNS.c.node == "", *is_it).limit(1))
    return next(iter(found), None)


_PAST: Final = tuple(RUNS.c[name] for name in ("user", "job", "run", "began_s", "heard_s", "record", "currency"))


def _past_runs(connection: Connection, query: Select[Any]) -> list[PastRun]:
    return [
        PastRun(RunKey(user, job, run), began_s, heard_s, _record_of(record, run, currency))
        for user, job, run, began_s, heard_s, record, currency in connection.execute(query)
    ]
