"""The record of the runs that this node has led: one file for each job of a user, with its latest runs.

All files are read once and kept in memory; a thread writes changes, and nobody waits for it. A file counts only if what
was read from it encodes to the very same bytes, checksum included. One that does not is logged, and costs the memory of
its job: the next run of the job begins a new record.

The runs of a job are numbered as they begin. A run keeps its number when the controller restarts, and when it was lost
or fell silent and comes back.
"""

import hashlib
import logging
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta, Struct, field

from policies.savings.holdout import is_held_out
from publishers.messages.topics import escape_level
from publishers.shared.files.file_writer import Content, FileWriter

VERSION: Final = 1
MAX_RUNS: Final = 256
"""Of more ended runs of a job the oldest are forgotten, and of more that never ended, too. An A/B comparison needs some
hundred."""
MAX_JOBS: Final = 128
"""Of more than these the one is dropped whose last run is the oldest, of the user who has most. All are 10 MB."""
_MOST: Final = 1e15
"""More joules, seconds or iterations than any run comes to."""

Amount = Annotated[float, Meta(ge=0, le=_MOST)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]

_LOGGER = logging.getLogger(__name__)


class JobKey(NamedTuple):
    """A job is one user's: two users' `resnet50` are two jobs."""

    user: str
    job: str


class Outcome(Struct, frozen=True, kw_only=True):
    """How a run has ended, and what it took, on all its nodes.

    Attributes:
        run: its id.
        started_at_s: when its process of rank 0 started [Unix s].
        ended_at_s: when it was known to have ended [Unix s].
        end: how: `finished`, `lost`, or `silent`.
        reached: whether it has reached its target; None: it did not say.
        is_complete: whether it was observed and measured from its first iteration to its last.
        n_iterations: iterations of the slowest rank.
        active_s: the time in which they ran [s].
        energy_j: its energy, with that of its pauses [J].
        time_limit_s: when the scheduler would have ended it [Unix s]; None: it did not say.
        batch_size: samples in one iteration of a process; None: it did not say.
        world_size: how many processes trained together.
        gpu_model: the model of its GPUs.
        n_gpus: how many they were.
    """

    run: str
    started_at_s: Amount
    ended_at_s: Amount
    end: Literal["finished", "lost", "silent"]
    is_complete: bool
    n_iterations: Amount
    active_s: Amount
    energy_j: Amount
    world_size: Count
    gpu_model: str
    n_gpus: Count
    reached: bool | None = None
    time_limit_s: Amount | None = None
    batch_size: Count | None = None


class BegunRun(Struct, frozen=True, kw_only=True):
    """A run's number among those of its job, from 0, and whether it is held out at the prior limit."""

    number: Count
    is_held_out: bool = False


class EndedRun(Outcome, frozen=True, kw_only=True):
    """A run that has ended; `number` and `is_held_out` as in `BegunRun`."""

    number: Count
    is_held_out: bool = False


class JobRecord(Struct, frozen=True, kw_only=True):
    """The runs of a job.

    Attributes:
        user, job: whose, and which.
        n_begun: how many have begun; the next one has this number.
        begun: those that have not ended, by their ids, the oldest first.
        ended: those that have, in the order of their ends.
    """

    user: str
    job: str
    n_begun: Count = 0
    begun: dict[str, BegunRun] = field(default_factory=dict)
    ended: tuple[EndedRun, ...] = ()


class _File(Struct, frozen=True, kw_only=True):
    version: int
    record: JobRecord
    checksum: str = ""


class _Head(Struct, frozen=True, kw_only=True):
    version: int


class RunHistory:
    """The records in a state directory.

    As a context manager it reads them at the beginning, and waits at the end, 2 s at most, for pending writes.

    Args:
        state_dir: where the directory of the records is, or will be made.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "history"
        self._records: dict[JobKey, JobRecord] = {}
        """The job whose record has changed longest ago first."""
        self._writer = FileWriter(self._folder, what="records of runs")

    def __enter__(self) -> Self:
        """Read the records."""
        self._records = _read_all(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        """Finish pending writes, within a bounded time."""
        self._writer.close()

    def begin(self, key: JobKey, run: str, *, holdout_ratio: float = 0.0) -> BegunRun:
        """Return the number of a run that begins, or goes on, and whether it is held out: for all of its life.

        Args:
            key: the job.
            run: the id of the run.
            holdout_ratio: the share of the job's runs that is held out.
        """
        record = self._record(key)
        if run in record.begun:
            return record.begun[run]
        former = next((each for each in reversed(record.ended) if each.run == run), None)
        if former is not None and former.end != "finished":
            begun = BegunRun(number=former.number, is_held_out=former.is_held_out)
        else:
            number = record.n_begun
            begun = BegunRun(number=number, is_held_out=is_held_out("/".join(key), number, holdout_ratio=holdout_ratio))
        self._save(
            msgspec.structs.replace(
                record,
                n_begun=max(record.n_begun, begun.number + 1),
                begun=dict([*record.begun.items(), (run, begun)][-MAX_RUNS:]),
                ended=tuple(each for each in record.ended if each.number != begun.number),
            )
        )
        return begun

    def has_begun(self, key: JobKey, run: str) -> bool:
        """Return whether a run has begun here, and is not known to have ended."""
        return run in self._record(key).begun

    def end(self, key: JobKey, outcome: Outcome) -> EndedRun | None:
        """Record how a run has ended, and return that; one that has not begun here is another node's."""
        record = self._record(key)
        begun = dict(record.begun)
        place = begun.pop(outcome.run, None)
        if place is None:
            return None
        ended = EndedRun(**msgspec.structs.asdict(place), **msgspec.structs.asdict(outcome))
        try:  # as it is read: what cannot be would keep the whole record from being saved
            ended = msgspec.convert(msgspec.to_builtins(ended), EndedRun)
        except msgspec.ValidationError as error:
            _LOGGER.warning("%s, run %s: how it has ended is not remembered: %s", "/".join(key), outcome.run, error)
            self._save(msgspec.structs.replace(record, begun=begun))
            return None
        self._save(msgspec.structs.replace(record, begun=begun, ended=(*record.ended, ended)[-MAX_RUNS:]))
        return ended

    def ended(self, key: JobKey) -> tuple[EndedRun, ...]:
        """Return the runs of a job that have ended, the latest last."""
        return self._record(key).ended

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written, for `timeout_s` at most; return whether it is."""
        return self._writer.flush(timeout_s)

    def _record(self, key: JobKey) -> JobRecord:
        return self._records.get(key) or JobRecord(user=key.user, job=key.job)

    def _save(self, record: JobRecord) -> None:
        key = JobKey(record.user, record.job)
        self._records.pop(key, None)
        self._records[key] = record
        changes: dict[Path, Content | None] = {_path_of(self._folder, key): partial(content_of, record)}
        while len(self._records) > MAX_JOBS:
            n_jobs = Counter(each.user for each in self._records)
            dropped = next(each for each in self._records if n_jobs[each.user] == max(n_jobs.values()))
            del self._records[dropped]
            changes[_path_of(self._folder, dropped)] = None
        self._writer.put(changes)


def content_of(record: JobRecord) -> bytes:
    """Return the content of the file of a record."""
    # As it is read: 180 is written as 180.0.
    file = _File(version=VERSION, record=msgspec.convert(msgspec.to_builtins(record), JobRecord))
    checksum = hashlib.blake2b(msgspec.json.encode(file), digest_size=8).hexdigest()
    return msgspec.json.encode(msgspec.structs.replace(file, checksum=checksum)) + b"\n"


def _path_of(folder: Path, key: JobKey) -> Path:
    # Names may differ by case alone, which some file systems do not distinguish.
    digest = hashlib.sha256("/".join(map(escape_level, key)).encode()).hexdigest()[:16]
    return folder / f"{key.job}-{digest}.json"


def _read_all(folder: Path) -> dict[JobKey, JobRecord]:
    """Return the records of a directory; what cannot be read is logged and left alone, what is half written removed."""
    read = []
    for path in folder.glob("*.json"):
        try:
            read.append((path.stat().st_mtime_ns, _read(path)))
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            _LOGGER.warning("%s: ignoring unreadable record; the former runs of the job are forgotten: %s", path, error)
    for half in folder.glob("*.new"):
        with suppress(OSError):
            half.unlink()
    read.sort(key=lambda file: file[0])
    return {JobKey(record.user, record.job): record for _, record in read}


def _read(path: Path) -> JobRecord:
    """Return the record in a file.

    Raises:
        OSError: it cannot be read.
        ValueError, msgspec.MsgspecError: it is damaged, or of another version or job.
    """
    content = path.read_bytes()
    version = msgspec.json.decode(content, type=_Head).version
    if version != VERSION:
        raise ValueError(f"version {version}: this gridchase reads version {VERSION}")
    record = msgspec.json.decode(content, type=_File).record
    if content != content_of(record):
        raise ValueError("it is damaged: its checksum is that of another content")
    if path.name != _path_of(path.parent, JobKey(record.user, record.job)).name:
        raise ValueError(f"it is not the file of {record.user}/{record.job}")
    return record
