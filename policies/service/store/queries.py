"""SQL statements, each a function in the transaction of its connection, and the mapping between rows and records.

Statements are built once, so their text is compiled once, too. Rows are not validated: their content was, when written.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import asdict
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    FromClause,
    Insert,
    Select,
    Subquery,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    union,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import RowMapping

from policies.service.records import ENDED, Job, JobKey, JobSettings, JobSummary, Result, Timing, Trial
from policies.service.store.schema import CLAIMS, JOBS, TRIALS
from publishers.messages.topics import RunKey

Row = dict[str, Any]
_RESULT: Final = tuple(Result.__struct_fields__)
_TRIAL: Final = tuple(name for name in Trial.__struct_fields__ if name != "result")
_UNTIMED: Final = msgspec.json.Decoder(tuple[int, ...])
_TIMING: Final = msgspec.json.Decoder(Timing)
_KEY: Final = frozenset({"user", "job", "run", "number"})
# A study needs no sentences, and nothing for the record: half of a row, and the smaller half.
_STUDIED_NAMES: Final = (
    *("user", "job", "run", "number", "recurrence", "batch_size", "state", "requested_at_s", "heard_at_s"),
    *("lease_s", "ended_at_s", "stop_ordered_at_s", "bound_gpu_model", "bound_n_gpus", "last_epoch", "has_lost_count"),
    *("outcome", "epochs", "reached_epochs", "energy_j", "duration_s", "max_power_w", "gpu_model", "n_gpus", "timing"),
)
_WHOLE: Final = [TRIALS.c[name] for name in (*_TRIAL, *_RESULT)]
_STUDIED: Final = [TRIALS.c[name] for name in _STUDIED_NAMES]

MAX_STUDIED: Final = 1_000
"""Trials of a job that a study reads: older ones add little, and the job is locked while they are read."""
_MAX_TIMED: Final = 100
_ANY_NUMBER: Final = (1 << 31) - 1
_PROOF: Final = "can this be written?"
_JOB: Final = select(JOBS).where((JOBS.c.user == bindparam("user")) & (JOBS.c.name == bindparam("job")))
# No other request for this job runs until we are done; its trials may be updated meanwhile.
_LOCKED_JOB: Final = _JOB.with_for_update(key_share=True)
_JOBS: Final = select(JOBS).order_by(JOBS.c.user, JOBS.c.name)
_N_JOBS: Final = select(func.count()).select_from(JOBS).where(JOBS.c.user == bindparam("user"))
_USERS: Final = select(JOBS.c.user).where(JOBS.c.name == bindparam("job")).order_by(JOBS.c.user)
_OF_JOB: Final = (TRIALS.c.user == bindparam("user")) & (TRIALS.c.job == bindparam("job"))
_OF_RUN: Final = _OF_JOB & (TRIALS.c.run == bindparam("run"))
_SELECT_STUDIED: Final = select(*_STUDIED).where(_OF_JOB).order_by(TRIALS.c.number)


def _newest(condition: ColumnElement[bool], limit: int, by: Column[Any] = TRIALS.c.number) -> Select[tuple[int]]:
    """Return the numbers of a job's newest trials of a kind; `by` names an index of this kind alone.

    In the order of their numbers, SQLite would look for the few of them among all the trials of the job.
    """
    newest = select(TRIALS.c.number).where(_OF_JOB & condition).order_by(by.desc()).limit(limit).subquery()
    return select(newest.c.number)


_NEEDED: Final = union(
    _newest(TRIALS.c.state.in_([literal_column(f"'{state}'") for state in sorted(ENDED)]), MAX_STUDIED),
    _newest(TRIALS.c.number >= 0, MAX_STUDIED),
    _newest(TRIALS.c.ended_at_s.is_(None), MAX_STUDIED, by=TRIALS.c.heard_at_s),
    _newest(TRIALS.c.timing.is_not(None), _MAX_TIMED, by=TRIALS.c.requested_at_s),
    select(func.max(TRIALS.c.number))
    .where(_OF_JOB & (TRIALS.c.state == literal_column("'failed'")))
    .group_by(TRIALS.c.batch_size),
)
_RECENT: Final = _SELECT_STUDIED.where(TRIALS.c.number.in_(_NEEDED))
_ALL: Final = select(*_WHOLE).where(_OF_JOB).order_by(TRIALS.c.number)
_PAGE: Final = (
    select(*_WHOLE)
    .where(_OF_JOB & (TRIALS.c.number < bindparam("before")))
    .order_by(TRIALS.c.number.desc())
    .limit(bindparam("limit"))
)
_SELECT_TRIAL: Final = select(*_WHOLE).where(_OF_RUN)
_LOCKED_TRIAL: Final = _SELECT_TRIAL.with_for_update()
_SILENT: Final = (
    select(*_WHOLE)
    .where(
        TRIALS.c.ended_at_s.is_(None)
        & (
            (TRIALS.c.heard_at_s + TRIALS.c.lease_s < bindparam("now_s"))
            | (TRIALS.c.heard_at_s - TRIALS.c.lease_s > bindparam("now_s"))
        )
    )
    .order_by(TRIALS.c.heard_at_s)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
_CHANGE: Final = update(TRIALS).where(
    (TRIALS.c.user == bindparam("of_user"))
    & (TRIALS.c.job == bindparam("of_job"))
    & (TRIALS.c.number == bindparam("of_number"))
)
# Trials are numbered from 0 without gaps: the newest one tells how many there are, and a million need not be counted.
_ITS_TRIALS: Final = TRIALS.alias("its_trials")
_NEWEST: Final = (
    select(func.max(_ITS_TRIALS.c.number))
    .where((_ITS_TRIALS.c.user == JOBS.c.user) & (_ITS_TRIALS.c.job == JOBS.c.name))
    .scalar_subquery()
)


def _counted(condition: ColumnElement[bool]) -> Subquery:
    job = (TRIALS.c.user, TRIALS.c.job)
    return select(*job, func.count().label("n")).where(condition).group_by(*job).subquery()


def _of_the_job(table: FromClause) -> ColumnElement[bool]:
    """Return the condition that trials, or counts of them, are of the job in the same row."""
    return (table.c.user == JOBS.c.user) & (table.c.job == JOBS.c.name)


_IN_FLIGHT: Final = _counted(TRIALS.c.ended_at_s.is_(None))
_LOST: Final = _counted(TRIALS.c.state == literal_column("'lost'"))  # literally, so that its index is found
_SUMMARIES: Final = (
    select(
        *(JOBS.c.user, JOBS.c.name, JOBS.c.batch_sizes, JOBS.c.default_batch_size),
        *(TRIALS.c.number, TRIALS.c.requested_at_s),
        func.coalesce(_IN_FLIGHT.c.n, 0).label("n_in_flight"),
        func.coalesce(_LOST.c.n, 0).label("n_lost"),
    )
    .select_from(JOBS)
    .outerjoin(TRIALS, _of_the_job(TRIALS) & (TRIALS.c.number == _NEWEST))
    .outerjoin(_IN_FLIGHT, _of_the_job(_IN_FLIGHT))
    .outerjoin(_LOST, _of_the_job(_LOST))
    .order_by(JOBS.c.user, JOBS.c.name)
)


def find_job(connection: Connection, key: JobKey, *, locked: bool = False) -> Job | None:
    """Return a job, or None; `locked`: locked for other transactions until this one ends."""
    row = connection.execute(_LOCKED_JOB if locked else _JOB, key._asdict()).mappings().one_or_none()
    return None if row is None else _job_of(row)


def find_jobs(connection: Connection) -> list[Job]:
    """Return all jobs, by user and name."""
    return [_job_of(row) for row in connection.execute(_JOBS).mappings()]


def find_users(connection: Connection, name: str) -> list[str]:
    """Return the users who have a job of this name."""
    return list(connection.execute(_USERS, {"job": name}).scalars())


def count_jobs(connection: Connection, user: str) -> int:
    """Return how many jobs a user has."""
    return connection.execute(_N_JOBS, {"user": user}).scalar_one()


def add_job(connection: Connection, job: Job) -> bool:
    """Add a job; return whether it was new."""
    return _added(connection, JOBS, _job_row_of(job))


def change_job(connection: Connection, job: Job) -> None:
    """Write a job's settings."""
    settings = {name: getattr(job.settings, name) for name in job.settings.__struct_fields__}
    connection.execute(update(JOBS).where(_is(job.key)).values(settings))


def remove_job(connection: Connection, key: JobKey) -> bool:
    """Remove a job with all its trials; return whether there was one."""
    return _n_rows(connection.execute(delete(JOBS).where(_is(key)))) > 0


def find_studied(connection: Connection, job: JobKey) -> list[Trial]:
    """Return all trials of a job in the order of their numbers, as far as a study needs them."""
    rows = connection.execute(_SELECT_STUDIED, job._asdict()).all()
    return [_studied_trial_of(row) for row in rows]


def find_recent(connection: Connection, job: JobKey) -> list[Trial]:
    """Return what `find_studied` does, without what a study can do without: it may hold any number of trials.

    These are the newest `MAX_STUDIED`, of those that ended otherwise than lost, of those in flight, and of all; those
    that have timed batch sizes; and of each batch size that has failed the newest failure, however old that is.
    """
    return [_studied_trial_of(row) for row in connection.execute(_RECENT, job._asdict()).all()]


def find_trials(connection: Connection, job: JobKey) -> list[Trial]:
    """Return all trials of a job in the order of their numbers."""
    return [_trial_of(row) for row in connection.execute(_ALL, job._asdict())]


def find_page(connection: Connection, job: JobKey, *, limit: int, before: int | None) -> list[Trial]:
    """Return at most `limit` trials of a job whose numbers are below `before`, the newest first."""
    bounds = {"limit": limit, "before": _ANY_NUMBER if before is None else min(before, _ANY_NUMBER)}
    return [_trial_of(row) for row in connection.execute(_PAGE, job._asdict() | bounds)]


def find_trial(connection: Connection, run: RunKey, *, locked: bool = False) -> Trial | None:
    """Return a run's trial, or None; `locked`: locked for other transactions until this one ends."""
    row = connection.execute(_LOCKED_TRIAL if locked else _SELECT_TRIAL, run._asdict()).one_or_none()
    return None if row is None else _trial_of(row)


def find_silent(connection: Connection, *, now_s: float, limit: int) -> list[Trial]:
    """Return at most `limit` trials in flight whose last message came more than a lease before now, or after; locked.

    Those that others have locked are left to them.
    """
    return [_trial_of(row) for row in connection.execute(_SILENT, {"now_s": now_s, "limit": limit})]


def add_trials(connection: Connection, trials: Sequence[Trial]) -> None:
    """Add trials."""
    if trials:
        connection.execute(insert(TRIALS), [_row_of(trial) for trial in trials])


def change_trials(connection: Connection, trials: Sequence[Trial]) -> None:
    """Write what may have changed of trials."""
    rows = [
        {"of_user": trial.user, "of_job": trial.job, "of_number": trial.number, **_changes_of(trial)}
        for trial in trials
    ]
    if rows:
        connection.execute(_CHANGE, rows)


def lift_bounds(connection: Connection, job: JobKey) -> None:
    """Forget the cost bounds of a job's trials in flight."""
    in_flight = (TRIALS.c.user == job.user) & (TRIALS.c.job == job.job) & TRIALS.c.ended_at_s.is_(None)
    connection.execute(update(TRIALS).where(in_flight).values(cost_bound=None))


def find_summaries(connection: Connection) -> list[JobSummary]:
    """Return a line for each job, by user and name; without beliefs."""
    return [_summary_of(row) for row in connection.execute(_SUMMARIES).mappings()]


def add_claim(connection: Connection, correlation: str, now_s: float) -> bool:
    """Claim a correlation; return whether it was free."""
    return _added(connection, CLAIMS, {"correlation": correlation, "claimed_at_s": now_s})


def remove_claims(connection: Connection, *, until_s: float) -> None:
    """Remove the claims made until a time."""
    connection.execute(delete(CLAIMS).where(CLAIMS.c.claimed_at_s <= until_s))


def prove_writing(connection: Connection) -> None:
    """Write something and take it back, which fails where nothing can be written."""
    _added(connection, CLAIMS, {"correlation": _PROOF, "claimed_at_s": 0.0})
    connection.execute(delete(CLAIMS).where(CLAIMS.c.correlation == _PROOF))


def _added(connection: Connection, table: Table, row: dict[str, Any]) -> bool:
    """Insert a row unless one with its key is there; return whether it was inserted."""
    statement: Insert
    if connection.dialect.name == "postgresql":
        statement = postgresql.insert(table).on_conflict_do_nothing()
    else:
        statement = sqlite.insert(table).on_conflict_do_nothing()
    return _n_rows(connection.execute(statement, row)) > 0


def _is(key: JobKey) -> ColumnElement[bool]:
    return (JOBS.c.user == key.user) & (JOBS.c.name == key.job)


def _n_rows(result: CursorResult[Any]) -> int:
    return result.rowcount


def _summary_of(row: RowMapping) -> JobSummary:
    n_trials = 0 if row["number"] is None else row["number"] + 1
    return JobSummary(
        user=row[JOBS.c.user],
        name=row["name"],
        batch_sizes=tuple(row["batch_sizes"]),
        default_batch_size=row["default_batch_size"],
        n_trials=n_trials,
        n_in_flight=row["n_in_flight"],
        n_ended=n_trials - row["n_in_flight"] - row["n_lost"],
        last_asked_at_s=row["requested_at_s"],
    )


def _trial_of(row: Sequence[Any]) -> Trial:
    values = iter(row)
    own = dict(zip(_TRIAL, values, strict=False))
    own["untimed"] = () if own["untimed"] is None else _UNTIMED.decode(own["untimed"])
    own["timing"] = None if own["timing"] is None else _TIMING.decode(own["timing"])
    return Trial(**own, result=Result(**dict(zip(_RESULT, values, strict=True))))


def _studied_trial_of(row: Sequence[Any]) -> Trial:
    """Return the trial of a row of `_STUDIED`, without its sentences; only a study may use it.

    By position, because it runs for every trial of a job at each request: four times as fast as by name.
    """
    result = Result(
        outcome=row[16],
        epochs=row[17],
        reached_epochs=row[18],
        energy_j=row[19],
        duration_s=row[20],
        max_power_w=row[21],
        gpu_model=row[22],
        n_gpus=row[23],
    )
    return Trial(
        user=row[0],
        job=row[1],
        run=row[2],
        number=row[3],
        recurrence=row[4],
        batch_size=row[5],
        state=row[6],
        requested_at_s=row[7],
        heard_at_s=row[8],
        lease_s=row[9],
        ended_at_s=row[10],
        stop_ordered_at_s=row[11],
        bound_gpu_model=row[12],
        bound_n_gpus=row[13],
        last_epoch=row[14],
        has_lost_count=row[15],
        reason="",
        detail="",
        result=result,
        timing=None if row[24] is None else _TIMING.decode(row[24]),
    )


def _row_of(trial: Trial) -> Row:
    row = asdict(trial)
    for name in ("untimed", "timing"):
        row[name] = msgspec.json.encode(row[name]).decode() if row[name] else None
    return row | asdict(row.pop("result"))


def _changes_of(trial: Trial) -> Row:
    """Return what may change of a trial: all but its key."""
    return {name: value for name, value in _row_of(trial).items() if name not in _KEY}


def _job_of(row: RowMapping) -> Job:
    return Job(
        user=row[JOBS.c.user],
        name=row["name"],
        batch_sizes=tuple(row["batch_sizes"]),
        default_batch_size=row["default_batch_size"],
        created_at_s=row["created_at_s"],
        settings=JobSettings(**{name: row[name] for name in JobSettings.__struct_fields__}),
    )


def _job_row_of(job: Job) -> Row:
    row = asdict(job) | asdict(job.settings) | {"batch_sizes": list(job.batch_sizes)}
    del row["settings"]
    return row
