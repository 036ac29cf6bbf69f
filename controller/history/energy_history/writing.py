"""Writes messages of the bus into the history, in the transaction of a connection: energies, limits, the grid.

Messages hold cumulative values, and the database holds what was counted of them in the same transaction. So messages
that are written twice count once, and what was not written is in the next one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Table,
    Text,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import RowMapping

from controller.config import Retention
from controller.history.energy_history.growth import (
    CURRENCY_SEPARATOR,
    GPU_AMOUNTS,
    ONLY_GROWING,
    QUARTER_S,
    RUN_AMOUNTS,
    Amounts,
    RunAccount,
    added,
    begin_anew,
    day_of,
    gpu_growth,
    quarter_of,
    run_amounts,
    run_growth,
)
from controller.history.energy_history.plausibility import FUTURE_S, foreign_gpu_growth, is_possible_run
from controller.history.energy_history.schema import (
    DECISIONS,
    GPU_QUARTERS,
    GPUS,
    GRID_QUARTERS,
    MIGRATIONS,
    RUN_QUARTERS,
    RUNS,
    joint_currency,
)
from policies.vocabulary.units import DAY_S
from publishers.messages.codec import DecodeError, Message, decode
from publishers.messages.reports import GpuEnergy, GridSignal, LimitChange, RunEnergy
from publishers.messages.topics import ParsedTopic, Topics

MAX_RUNS: Final = 50_000
MAX_GPUS: Final = 20_000
MAX_CURRENCIES: Final = 4
"""Of one GPU or run: with two, costs have no sum already."""
MAX_DECISIONS: Final = 200_000
"""The newest of them are kept."""
MAX_DETAIL: Final = 256
"""Characters of a decision's sentence."""
MAX_DAYS: Final = 7
"""Days that one call merges or drops at most, so that it ends in time."""

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

Row = dict[str, Any]
M = TypeVar("M", bound=Message)


class RunName(NamedTuple):
    """A run, or one node's part of it; `node` is "" for the whole."""

    user: str
    job: str
    run: str
    node: str


class GpuName(NamedTuple):
    """A GPU of a node."""

    node: str
    gpu_uuid: str


def write_messages(
    connection: Connection,
    messages: Iterable[tuple[str, bytes]],
    *,
    topics: Topics,
    session_s: float | None,
    now_s: float = math.inf,
) -> int:
    """Write what was published on these topics, in this order; what is not of the history, or invalid, is skipped.

    Args:
        connection: in a transaction.
        messages: topics and payloads.
        topics: those below the configured root.
        session_s: when the controller started that publishes the counters of GPUs [Unix s]; None: others publish. Then
            only what is possible is believed, a controller is new where counters fall, and what a GPU had used before
            it was first heard of is not counted.
        now_s: the time [Unix s]: no quarter-hour after it has anything, whatever the clocks of others say; a GPU whose
            newest counters are of the future begins anew.

    Returns:
        how many messages were not believed.
    """
    if connection.dialect.name == "postgresql":  # writers take turns, as they do for an SQLite file
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATIONS.lock + 1})
    batch = _Batch()
    for topic, payload in messages:
        parsed = topics.parse(topic)
        if parsed is not None and payload:
            batch.add(parsed, payload)
    n_impossible = _write_runs(connection, batch.runs, is_foreign=session_s is None, now_s=now_s)
    n_impossible += _write_gpus(connection, batch.energies, batch.changes, session_s, now_s)
    _write_grid(connection, batch.signals)
    return n_impossible


class _Batch:
    """Messages by what they are about, in their order."""

    def __init__(self) -> None:
        self.runs: dict[RunName, list[tuple[RunEnergy, bytes]]] = {}
        self.energies: dict[GpuName, list[GpuEnergy]] = {}
        self.changes: dict[GpuName, list[LimitChange]] = {}
        self.signals: dict[tuple[str, int], GridSignal] = {}

    def add(self, topic: ParsedTopic, payload: bytes) -> None:
        """Take a message, unless it is not of the history, or invalid."""
        if topic.run is not None and topic.leaf == "energy":
            energy = _decoded(payload, RunEnergy)
            if energy is not None and energy.n_gpus:  # without a GPU, nothing was measured
                self.runs.setdefault(RunName(*topic.run, topic.node or ""), []).append((energy, payload))
        elif topic.node is not None and topic.gpu_uuid is not None:
            name = GpuName(topic.node, topic.gpu_uuid)
            if topic.leaf == "energy" and (counters := _decoded(payload, GpuEnergy)):
                self.energies.setdefault(name, []).append(counters)
            elif topic.leaf == "limit" and (change := _decoded(payload, LimitChange)):
                self.changes.setdefault(name, []).append(change)
        elif topic.zone is not None and (signal := _decoded(payload, GridSignal)) and signal.value is not None:
            self.signals[topic.zone, quarter_of(signal.time_s)] = signal


def _decoded(payload: bytes, kind: type[M]) -> M | None:
    try:
        return decode(payload, kind)
    except DecodeError:
        return None


def _write_runs(
    connection: Connection,
    runs: Mapping[RunName, Sequence[tuple[RunEnergy, bytes]]],
    *,
    is_foreign: bool,
    now_s: float,
) -> int:
    known = _known_runs(connection, runs)
    written: dict[RunName, tuple[RunAccount, list[tuple[int, Amounts]], list[tuple[RunEnergy, bytes]]]] = {}
    n_impossible = 0
    n_free = _n_free(connection, RUNS, 2 * MAX_RUNS) if not known.keys() >= runs.keys() else 0
    for name, records in runs.items():
        found = known.get(name)
        account = None if found is None else _account(found)
        account, of_run, kept = _grown(account, records, is_foreign=is_foreign, now_s=now_s)
        n_impossible += len(records) - len(of_run)
        if account is None or not kept:
            continue
        if found is None and not n_free:
            n_impossible += len(of_run)
            continue
        n_free -= found is None
        written[name] = account, of_run, kept
    new = [(name, kept[-1][0]) for name, (_, _, kept) in written.items() if name not in known]
    began_s = {int(row["id"]): _number(row["began_s"]) or 0.0 for row in known.values()}
    numbers = {name: int(row["id"]) for name, row in known.items()} | _insert_runs(connection, new)
    growths: dict[tuple[int, int], Amounts] = {}
    for name, (_, of_run, _) in written.items():
        for quarter, grown in of_run:
            _count(growths, numbers[name], quarter, grown)
    _upsert(connection, RUN_QUARTERS, growths)
    _update(
        connection,
        RUNS,
        [
            {"number": numbers[name], "currency": _currency(known.get(name), kept)} | _run_row(account, *kept[-1])
            for name, (account, _, kept) in written.items()
        ],
    )
    for (_, number), grown in growths.items():
        _take_back(connection, number, grown, began_s=began_s.get(number, 0.0))
    return n_impossible


def _currency(row: RowMapping | None, kept: Sequence[tuple[RunEnergy, bytes]]) -> str | None:
    """Return the currencies of a run's costs; a row of an earlier version has that of its newest record."""
    before = None if row is None else _decoded(str(row["record"]).encode(), RunEnergy)
    known = None if row is None else _joined(row["currency"], None if before is None else before.currency)
    return reduce(_joined, (record.currency for record, _ in kept), known)


def _run_row(account: RunAccount, record: RunEnergy, payload: bytes) -> Row:
    """Return what a run's row says of its newest record."""
    return {
        "heard_s": account.time_s,
        "state": record.state,
        "final": record.final,
        "record": payload.decode(),
        "earlier": account.earlier,
        **_columns(account.counted, RUN_AMOUNTS),
    }


def _grown(
    account: RunAccount | None, records: Sequence[tuple[RunEnergy, bytes]], *, is_foreign: bool, now_s: float
) -> tuple[RunAccount | None, list[tuple[int, Amounts]], list[tuple[RunEnergy, bytes]]]:
    """Return the account of a run, in which quarter-hours it has grown, and its records that are believed and new."""
    growths: list[tuple[int, Amounts]] = []
    kept: list[tuple[RunEnergy, bytes]] = []
    for record, payload in records:
        after, grown = run_growth(account, record, is_foreign=is_foreign)
        if is_foreign and not is_possible_run(account, record, grown, now_s=now_s):
            continue
        if after is not account:  # else it is older than the newest
            account = after
            kept.append((record, payload))
        growths.append((quarter_of(min(after.time_s, now_s)), grown))
    return account, growths, kept


def _n_free(connection: Connection, table: Table, most: int) -> int:
    """Return for how many more rows a table has room: until the old ones are dropped, it must not outgrow the disk."""
    return max(most - (connection.execute(select(func.count()).select_from(table)).scalar() or 0), 0)


def _known_runs(connection: Connection, names: Iterable[RunName]) -> dict[RunName, RowMapping]:
    wanted = {name.run for name in names}
    if not wanted:
        return {}
    earlier = type_coerce(RUNS.c.earlier, Text).label("earlier")  # where it is no JSON, SQLAlchemy would raise
    columns = [column for column in RUNS.c if column.name != "earlier"]
    rows = connection.execute(select(*columns, earlier).where(RUNS.c.run.in_(wanted))).mappings()
    return {RunName(row["user"], row["job"], row["run"], row["node"]): row for row in rows}


def _account(row: RowMapping) -> RunAccount:
    """Return the account of a run; what cannot be read of it, such as a record of a newer version, is not known."""
    record = _decoded(str(row["record"]).encode(), RunEnergy)
    try:
        earlier = msgspec.json.decode(row["earlier"], type=Amounts)
    except (msgspec.MsgspecError, TypeError):
        earlier = {}
    counted = {name: _number(row[name]) for name in RUN_AMOUNTS}
    return RunAccount(_number(row["heard_s"]) or 0.0, counted, {} if record is None else run_amounts(record), earlier)


def _number(value: object) -> float | None:
    """Return a value of a column of floats; SQLite keeps whatever it is given."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _insert_runs(connection: Connection, runs: Sequence[tuple[RunName, RunEnergy]]) -> dict[RunName, int]:
    """Insert runs at once, and return their numbers: a server takes its time for each statement."""
    if not runs:
        return {}
    blank = {"state": "", "final": False, "record": "", "earlier": {}}
    began_s = [(record.time_s or 0.0) - record.duration_s for _, record in runs]
    rows = [
        name._asdict() | blank | {"began_s": at_s, "heard_s": at_s}
        for (name, _), at_s in zip(runs, began_s, strict=True)
    ]
    connection.execute(insert(RUNS), rows)
    names = {name for name, _ in runs}
    columns = [RUNS.c[name] for name in ("id", *RunName._fields)]
    found = connection.execute(select(*columns).where(RUNS.c.run.in_({name.run for name in names})))
    return {name: number for number, *of_run in found if (name := RunName(*of_run)) in names}


def _inserted(connection: Connection, table: Table, row: Row) -> int:
    key = connection.execute(insert(table), row).inserted_primary_key
    assert key is not None  # noqa: S101 — of one row there is one
    return int(key[0])


def _write_gpus(
    connection: Connection,
    energies: Mapping[GpuName, Sequence[GpuEnergy]],
    changes: Mapping[GpuName, Sequence[LimitChange]],
    session_s: float | None,
    now_s: float,
) -> int:
    rows = {GpuName(row["node"], row["gpu_uuid"]): dict(row) for row in connection.execute(select(GPUS)).mappings()}
    growths: dict[tuple[int, int], Amounts] = {}
    currencies: dict[tuple[int, int], str | None] = {}
    n_impossible = 0
    for name in {**energies, **changes}:
        if name not in rows and len(rows) < MAX_GPUS:
            index = next((each.gpu_index for each in changes.get(name, ()) if each.gpu_index is not None), None)
            number = _inserted(connection, GPUS, name._asdict() | {"gpu_index": index})
            rows[name] = {"session_s": None, "gpu_index": index, "heard_s": None, "id": number}
    for name, counters in energies.items():
        for energy in counters:
            if name in rows and energy.energy_j is None:  # nothing could be measured
                continue
            grown = None if name not in rows else _gpu_growth(rows[name], energy, session_s, now_s)
            if grown is None:
                n_impossible += 1
            elif grown:
                row, starts_s = rows[name], quarter_of(min(energy.time_s, now_s))
                _count(growths, row["id"], starts_s, grown)
                quarter = starts_s, row["id"]
                currencies[quarter] = _joined(currencies.get(quarter), _currency_of_growth(energy, grown))
                is_new = _begin_anew(row, energy) if session_s is None else row["session_s"] != session_s
                counters_of = {key: getattr(energy, key) for key in GPU_AMOUNTS}
                row |= {key: value for key, value in counters_of.items() if is_new or value is not None}
                row["session_s"] = energy.started_at_s if session_s is None else session_s
                row |= {"gpu_index": energy.gpu_index, "heard_s": energy.time_s}
    _upsert(connection, GPU_QUARTERS, growths, currencies)
    updated = ("session_s", "gpu_index", "heard_s", *GPU_AMOUNTS)
    heard = [rows[name] for name in energies if name in rows]
    _update(connection, GPUS, [{"number": row["id"]} | _columns(row, updated) for row in heard])
    _write_decisions(connection, {rows[name]["id"]: of_gpu for name, of_gpu in changes.items() if name in rows})
    return n_impossible + sum(len(of_gpu) for name, of_gpu in changes.items() if name not in rows)


def _begin_anew(row: Row, energy: GpuEnergy) -> bool:
    before: Amounts = {"energy_j": _number(row.get("energy_j"))}
    return begin_anew(before, _number(row["heard_s"]) or 0.0, _number(row["session_s"]), energy)


def _currency_of_growth(energy: GpuEnergy, grown: Amounts) -> str | None:
    return None if grown.get("cost") is None else energy.currency


def _gpu_growth(row: Row, energy: GpuEnergy, session_s: float | None, now_s: float) -> Amounts | None:
    """Return by how much counters have grown; {}: nothing is new, None: that is not possible."""
    before: Amounts = {key: _number(row.get(key)) for key in GPU_AMOUNTS}
    if session_s is not None:
        after: Amounts = {key: getattr(energy, key) for key in GPU_AMOUNTS}
        grown = gpu_growth(before, after, is_same_controller=row["session_s"] == session_s)
        return {} if grown is None else grown
    heard_s = _number(row["heard_s"])
    is_known = before["energy_j"] is not None and heard_s is not None and heard_s <= now_s + FUTURE_S
    return foreign_gpu_growth(before, heard_s if is_known else None, _number(row["session_s"]), energy)


def _write_decisions(connection: Connection, changes: Mapping[int, Sequence[LimitChange]]) -> None:
    names = [column.name for column in DECISIONS.c if column.name not in {"gpu", "detail"}]
    decisions = [
        {"gpu": gpu, "detail": change.detail[:MAX_DETAIL], **{key: getattr(change, key) for key in names}}
        for gpu, of_gpu in changes.items()
        for change in of_gpu
    ]
    if decisions:
        connection.execute(_insert(connection, DECISIONS).on_conflict_do_nothing(), decisions)


def _write_grid(connection: Connection, signals: Mapping[tuple[str, int], GridSignal]) -> None:
    rows = [
        {
            "starts_s": starts_s,
            "zone": zone,
            **{key: getattr(signal, key) for key in ("kind", "value", "unit", "source")},
        }
        for (zone, starts_s), signal in signals.items()
    ]
    if rows:
        statement = _insert(connection, GRID_QUARTERS)
        newest = {key: statement.excluded[key] for key in ("value", "unit", "source")}
        keys = ["starts_s", "zone", "kind"]
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=newest), rows)


def _joined(known: str | None, now: str | None) -> str | None:
    """Return the currencies that costs are in, with one that may be new; None: costs are not priced."""
    currencies = sorted({*str(known or "").split(CURRENCY_SEPARATOR), now or ""} - {""})
    return CURRENCY_SEPARATOR.join(currencies[:MAX_CURRENCIES]) or None


def _columns(values: Mapping[str, Any], names: Iterable[str]) -> Row:
    return {name: values.get(name) for name in names}


def _count(growths: dict[tuple[int, int], Amounts], number: int, starts_s: int, grown: Amounts) -> None:
    if any(grown.values()):
        growths[starts_s, number] = added(growths.get((starts_s, number), {}), grown)


def _insert(connection: Connection, table: Table) -> "postgresql.Insert | sqlite.Insert":
    if connection.dialect.name != "postgresql":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # noqa: PLC0415 — 2 MB, which a controller does not need

    return postgresql.insert(table)


def _amount_columns(table: Table) -> list[Column[Any]]:
    return [column for column in table.c if column.name not in {"starts_s", "owner", "length_s", "currency"}]


def _upsert(
    connection: Connection,
    table: Table,
    growths: Mapping[tuple[int, int], Amounts],
    currencies: Mapping[tuple[int, int], str | None] | None = None,
) -> None:
    """Add to the quarter-hours of a table, or to the days that they were merged into; GPUs have currencies there."""
    names = [column.name for column in _amount_columns(table)]
    rows: list[Row] = [
        {"starts_s": key[0], "owner": key[1], "length_s": QUARTER_S}
        | _columns(_without_falls(grown), names)
        | ({} if currencies is None else {"currency": currencies.get(key)})
        for key, grown in growths.items()
    ]
    if not rows:
        return
    statement = _insert(connection, table)
    sums: dict[str, ColumnElement[Any]] = {
        name: func.coalesce(table.c[name] + statement.excluded[name], table.c[name], statement.excluded[name])
        for name in names
    }
    if currencies is not None:
        before, now = table.c.currency, statement.excluded.currency
        are_several = before != now  # not true where one is not known
        sums["currency"] = case((are_several, CURRENCY_SEPARATOR), else_=func.coalesce(before, now))
    connection.execute(statement.on_conflict_do_update(index_elements=["starts_s", "owner"], set_=sums), rows)


def _without_falls(grown: Amounts) -> Amounts:
    return {name: 0.0 if _has_fallen(name, value) else value for name, value in grown.items()}


def _has_fallen(name: str, value: float | None) -> bool:
    return name in ONLY_GROWING and value is not None and value < 0


def _take_back(connection: Connection, number: int, grown: Amounts, *, began_s: float) -> None:
    """Take what a final record says was too much from the newest quarter-hours: none of them has used less than 0.

    Looks back to the day before the run began, since quarter-hours may have been merged into days.
    """
    for name in (name for name, value in grown.items() if _has_fallen(name, value)):
        left, column = -(grown[name] or 0.0), RUN_QUARTERS.c[name]
        is_since = RUN_QUARTERS.c.starts_s >= began_s - 2 * DAY_S
        of_run = is_since & (RUN_QUARTERS.c.owner == number) & (column > 0)
        newest_first = select(RUN_QUARTERS.c.starts_s, column).where(of_run).order_by(RUN_QUARTERS.c.starts_s.desc())
        for quarter, value in connection.execute(newest_first).all():
            taken = min(left, _number(value) or 0.0)
            at = (RUN_QUARTERS.c.owner == number) & (RUN_QUARTERS.c.starts_s == quarter)
            connection.execute(update(RUN_QUARTERS).where(at).values({name: column - taken}))
            left -= taken
            if left <= 0:
                break


def _update(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(update(table).where(table.c.id == bindparam("number")), rows)


def tidy(connection: Connection, *, now_s: float, config: Retention, zone: tzinfo | None = None) -> None:
    """Merge old quarter-hours into days of a zone, and drop what is older than it is kept, or too much.

    Args:
        connection: in a transaction.
        now_s: the time [Unix s].
        config: how long what is kept.
        zone: of the days; None is the zone of this machine.
    """
    for table in (RUN_QUARTERS, GPU_QUARTERS):
        _merge(connection, table, until_s=now_s - config.quarter_days * DAY_S, zone=zone)
        _drop_before(connection, table.c.starts_s, now_s - config.run_days * DAY_S)
    _drop_before(connection, DECISIONS.c.time_s, now_s - config.decision_days * DAY_S)
    _drop_before(connection, GRID_QUARTERS.c.starts_s, now_s - config.quarter_days * DAY_S)
    _drop_before(connection, RUNS.c.heard_s, now_s - config.run_days * DAY_S)
    _drop_all_but(connection, DECISIONS.c.time_s, MAX_DECISIONS)
    _drop_all_but(connection, RUNS.c.heard_s, MAX_RUNS)
    connection.execute(delete(RUN_QUARTERS).where(RUN_QUARTERS.c.owner.not_in(select(RUNS.c.id))))
    is_silent = func.coalesce(GPUS.c.heard_s, 0.0) < now_s - config.quarter_days * DAY_S
    used = GPUS.c.id.in_(select(GPU_QUARTERS.c.owner)), GPUS.c.id.in_(select(DECISIONS.c.gpu))
    connection.execute(delete(GPUS).where(is_silent, *(~each for each in used)))


def _merge(connection: Connection, table: Table, *, until_s: float, zone: tzinfo | None) -> None:
    is_quarter = table.c.length_s == QUARTER_S
    for _ in range(MAX_DAYS):
        oldest_s = connection.execute(select(func.min(table.c.starts_s)).where(is_quarter)).scalar()
        if oldest_s is None:
            return
        begin_s, end_s = day_of(oldest_s, zone)
        if end_s > until_s:
            return
        in_day = (table.c.starts_s >= begin_s) & (table.c.starts_s < end_s)
        sums = [func.sum(column).label(column.name) for column in _amount_columns(table)]
        if table is GPU_QUARTERS:
            sums.append(joint_currency().label("currency"))
        days = connection.execute(select(table.c.owner, *sums).where(in_day).group_by(table.c.owner)).mappings().all()
        connection.execute(delete(table).where(in_day))
        merged = {"starts_s": begin_s, "length_s": end_s - begin_s}
        connection.execute(insert(table), [dict(day) | merged for day in days])


def _drop_before(connection: Connection, time: Column[Any], before_s: float) -> None:
    """Drop what is older, but no more than some days: a clock that is far ahead must not cost the whole history."""
    oldest_s = connection.execute(select(func.min(time))).scalar()
    if oldest_s is not None:
        connection.execute(delete(time.table).where(time < min(before_s, oldest_s + MAX_DAYS * DAY_S)))


def _drop_all_but(connection: Connection, time: Column[Any], max_rows: int) -> None:
    oldest_kept = select(time).order_by(time.desc()).offset(max_rows - 1).limit(1)
    oldest_kept_s = connection.execute(oldest_kept).scalar()
    if oldest_kept_s is not None:
        connection.execute(delete(time.table).where(time < oldest_kept_s))
