"""How records become rows and rows become records; without checks: what is in the database has been checked."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import asdict
from sqlalchemy import Column
from sqlalchemy.engine import RowMapping

from policies.service.records import Job, JobSettings, Result, Timing, Trial
from policies.service.store.schema import TRIALS

Row = dict[str, Any]
_RESULT: Final = tuple(Result.__struct_fields__)
_TRIAL: Final = tuple(name for name in Trial.__struct_fields__ if name != "result")
_UNTIMED: Final = msgspec.json.Decoder(tuple[int, ...])
_TIMING: Final = msgspec.json.Decoder(Timing)
_KEY: Final = frozenset({"job", "run", "number"})
# A study needs no sentences, and nothing for the record: half of a row, and the smaller half.
_STUDIED: Final = (
    *("job", "run", "number", "recurrence", "batch_size", "state"),
    *("requested_at_s", "heard_at_s", "lease_s", "ended_at_s", "last_epoch"),
    *("outcome", "epochs", "reached_epochs", "energy_j", "duration_s", "max_power_w", "gpu_model", "n_gpus", "timing"),
    *("stop_ordered_at_s", "bound_gpu_model", "bound_n_gpus", "has_lost_count"),
)


def _columns(names: Sequence[str]) -> list[Column[Any]]:
    return [TRIALS.c[name] for name in names]


WHOLE: Final = _columns((*_TRIAL, *_RESULT))
"""What `trial_of` takes."""
STUDIED: Final = _columns(_STUDIED)
"""What `studied_trial_of` takes."""


def trial_of(row: Sequence[Any]) -> Trial:
    """Return the trial of a row of `WHOLE`."""
    values = iter(row)
    own = dict(zip(_TRIAL, values, strict=False))
    own["untimed"] = () if own["untimed"] is None else _UNTIMED.decode(own["untimed"])
    own["timing"] = None if own["timing"] is None else _TIMING.decode(own["timing"])
    return Trial(**own, result=Result(**dict(zip(_RESULT, values, strict=True))))


def studied_trial_of(row: Sequence[Any]) -> Trial:
    """Return the trial of a row of `STUDIED`, good for a study and no more: it does not say why it is as it is.

    It is made for every trial of a job whenever one asks: hence in the one way that is fast.
    """
    result = Result(
        outcome=row[11],
        epochs=row[12],
        reached_epochs=row[13],
        energy_j=row[14],
        duration_s=row[15],
        max_power_w=row[16],
        gpu_model=row[17],
        n_gpus=row[18],
    )
    return Trial(
        job=row[0],
        run=row[1],
        number=row[2],
        recurrence=row[3],
        batch_size=row[4],
        state=row[5],
        reason="",
        detail="",
        requested_at_s=row[6],
        heard_at_s=row[7],
        lease_s=row[8],
        ended_at_s=row[9],
        last_epoch=row[10],
        result=result,
        timing=None if row[19] is None else _TIMING.decode(row[19]),
        stop_ordered_at_s=row[20],
        bound_gpu_model=row[21],
        bound_n_gpus=row[22],
        has_lost_count=bool(row[23]),
    )


def row_of(trial: Trial) -> Row:
    """Return a trial as a whole row."""
    row = asdict(trial)
    for name in ("untimed", "timing"):
        row[name] = msgspec.json.encode(row[name]).decode() if row[name] else None
    return row | asdict(row.pop("result"))


def changes_of(trial: Trial) -> Row:
    """Return what may change of a trial: all but its key."""
    return {name: value for name, value in row_of(trial).items() if name not in _KEY}


def job_of(row: RowMapping) -> Job:
    """Return the job of a row."""
    return Job(
        name=row["name"],
        batch_sizes=tuple(row["batch_sizes"]),
        default_batch_size=row["default_batch_size"],
        created_at_s=row["created_at_s"],
        settings=JobSettings(**{name: row[name] for name in JobSettings.__struct_fields__}),
    )


def job_row_of(job: Job) -> Row:
    """Return a job as a row."""
    row = asdict(job) | asdict(job.settings) | {"batch_sizes": list(job.batch_sizes)}
    del row["settings"]
    return row
