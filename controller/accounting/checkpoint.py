"""Checkpoints of runs on disk: a restarted controller resumes the accounts of runs that are still training.

The GPUs' own counters and the iteration numbers show what happened in between; it is accounted as a pause, because it
is unknown how much of it was work. Clocks and counters restart with the machine, so checkpoints of another boot are
ignored. The checkpoint of a run is deleted when it has finished, or after a day of silence; that of a run which was
lost or fell silent is kept, because its processes may come back.
"""

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from msgspec import Struct, field

from controller.accounting.energy_account import AccountSnapshot
from controller.accounting.iteration_log import ENDLESS_NS
from controller.accounting.ranks import RankCheckpoint, RunIdentity
from controller.accounting.run_ledger import ROUNDING_SLACK, CurveSums, LedgerSnapshot, TimeBudgetStart
from controller.runtime.clock import Clock
from policies.profiling.paired_looks import Pair
from publishers.messages.topics import RunKey, escape_level
from publishers.messages.training import RankStatus
from publishers.shared.files.file_writer import Content, FileWriter

VERSION: Final = 4
READABLE: Final = frozenset({3, 4})
"""Of version 3 the account was in other sums, which are not needed any more."""
MAX_AGE_S: Final = 86_400.0
MAX_CHECKPOINTS: Final = 256
"""As many as there are runs at a time on one node."""
_MOST: Final = 1e15
"""More joules, seconds, iterations, or joules times grams, than any run comes to."""

NO_BOOKS: Final = msgspec.Raw(b"null")

_LOGGER = logging.getLogger(__name__)


class RunCheckpoint(Struct, frozen=True, kw_only=True):
    """One run on this node, up to a moment on the monotonic clock of one boot.

    Attributes:
        user, job, run: which run.
        boot_id: which boot.
        saved_at_s: when it was written [Unix s].
        account: the energy account.
        ranks: how far the training processes were, by rank.
        node_curve: what a node that follows has measured, by limit.
        node_pairs: what it has seen of the limits in force there, in pairs.
        time_budget_start: where the time budget starts, where the run has dropped a curve.
        ledger: the time at each limit since then, and what the limits are relative to the highest one.
        books: as in `run_books.BooksSnapshot`; what is wrong with them costs them alone.
        is_pool: whether its processes were runs of their own at first.
        no_pause_until_s: before when its plan asks for no pause [Unix s]; None: for as long as it runs.
    """

    user: str
    job: str
    run: str
    boot_id: str
    saved_at_s: float
    account: AccountSnapshot
    ranks: dict[int, RankCheckpoint]
    node_curve: list[CurveSums] = field(default_factory=list)
    node_pairs: list[Pair] = field(default_factory=list)
    time_budget_start: TimeBudgetStart | None = None
    ledger: LedgerSnapshot | None = None
    books: msgspec.Raw = NO_BOOKS
    is_pool: bool = False
    no_pause_until_s: float | None = 0.0
    version: int = VERSION


class _Head(Struct, frozen=True, kw_only=True):
    version: int


class RunCheckpoints:
    """The checkpoints in a state directory; reading and writing them never fails, and never waits for the disk.

    As a context manager it reads them at the beginning, and waits at the end, 2 s at most, for pending writes.

    Args:
        state_dir: where the directory of the checkpoints is, or will be made.
        boot_id: this boot.
        clock: the time.
    """

    def __init__(self, state_dir: Path, *, boot_id: str, clock: Clock) -> None:
        self._boot_id = boot_id
        self._clock = clock
        self._writer = FileWriter(state_dir / "runs", what="run checkpoints")
        self._checkpoints: dict[Path, RunCheckpoint] = {}
        self._unreadable: set[Path] = set()

    def __enter__(self) -> Self:
        """Read the checkpoints; useless ones are removed."""
        found = {path: _read(path) for path in self._writer.folder.glob("*.json")}
        useful = {path: each for path, each in found.items() if each is not None and self._is_useful(each)}
        self._unreadable = {path for path, each in found.items() if each is None}
        self._checkpoints = dict(sorted(useful.items(), key=lambda item: item[1].saved_at_s))
        half_written = self._writer.folder.glob("*.new")
        stale: dict[Path, Content | None] = dict.fromkeys([*found.keys() - useful.keys(), *half_written])
        if stale:
            self._writer.put(stale)
        return self

    def __exit__(self, *_: object) -> None:
        """Finish pending writes, within a bounded time."""
        self._writer.close()

    def load(self, identity: RunIdentity) -> RunCheckpoint | None:
        """Return the checkpoint of a run on this node."""
        checkpoint = self._checkpoints.get(self._path(identity))
        return checkpoint if checkpoint is not None and self._is_useful(checkpoint) else None

    def place_in_pool(self, key: RunKey, status: RankStatus) -> tuple[RunKey, int] | None:
        """Return of which other run a process was joined to be a rank, and which one; None where it is of none."""
        process = status.pid, status.started_at_s
        for checkpoint in reversed(self._checkpoints.values()):
            whole = RunKey(checkpoint.user, checkpoint.job, checkpoint.run)
            if checkpoint.is_pool and whole[:2] == key[:2] and whole != key and self._is_useful(checkpoint):
                for number, rank in checkpoint.ranks.items():
                    if (rank.pid, rank.started_at_s) == process:
                        return whole, number
        return None

    def is_unreadable(self, identity: RunIdentity) -> bool:
        """Return whether a former controller has left a checkpoint of a run that could not be read."""
        return self._path(identity) in self._unreadable

    def save(
        self,
        identity: RunIdentity,
        account: AccountSnapshot,
        ranks: dict[int, RankCheckpoint],
        *,
        node_curve: Sequence[CurveSums] = (),
        node_pairs: Sequence[Pair] = (),
        time_budget_start: TimeBudgetStart | None = None,
        ledger: LedgerSnapshot | None = None,
        books: msgspec.Raw = NO_BOOKS,
        is_pool: bool = False,
        no_pause_until_s: float = 0.0,
    ) -> None:
        """Save the checkpoint of a run; where there are too many, the oldest ones are deleted."""
        path = self._path(identity)
        checkpoint = RunCheckpoint(
            user=identity.user,
            job=identity.job,
            run=identity.run,
            boot_id=self._boot_id,
            saved_at_s=self._clock.now_s(),
            account=account,
            ranks=ranks,
            node_curve=list(node_curve),
            node_pairs=list(node_pairs),
            time_budget_start=time_budget_start,
            ledger=ledger,
            books=books,
            is_pool=is_pool,
            no_pause_until_s=None if no_pause_until_s == math.inf else max(no_pause_until_s, 0.0),
        )
        self._checkpoints.pop(path, None)
        self._checkpoints[path] = checkpoint
        changes: dict[Path, Content | None] = {path: partial(msgspec.json.encode, checkpoint)}
        while len(self._checkpoints) > MAX_CHECKPOINTS:
            oldest = next(iter(self._checkpoints))
            self._checkpoints.pop(oldest)
            changes[oldest] = None
        self._writer.put(changes)

    def mark_gpu_reassigned(self, uuid: str, identity: RunIdentity) -> None:
        """Record in the checkpoints of other runs that a GPU of theirs is this one's now."""
        for path, checkpoint in list(self._checkpoints.items()):
            account = checkpoint.account
            if path != self._path(identity) and uuid in account.counters_j and uuid not in account.reassigned_gpus:
                account = replace(account, reassigned_gpus=(*account.reassigned_gpus, uuid))
                self._checkpoints[path] = marked = msgspec.structs.replace(checkpoint, account=account)
                self._writer.put({path: partial(msgspec.json.encode, marked)})

    def delete(self, identity: RunIdentity) -> None:
        """Delete the checkpoint of a run: it has ended."""
        path = self._path(identity)
        self._unreadable.discard(path)
        if self._checkpoints.pop(path, None) is not None:
            self._writer.put({path: None})

    def _is_useful(self, checkpoint: RunCheckpoint) -> bool:
        """Return whether clock and counters are still those of the checkpoint, and the run may still go on."""
        is_young = checkpoint.saved_at_s >= self._clock.now_s() - MAX_AGE_S
        is_past = checkpoint.account.until_ns <= self._clock.monotonic_ns()
        return is_young and checkpoint.boot_id == self._boot_id and is_past

    def _path(self, identity: RunIdentity) -> Path:
        # Names may differ by case alone, which some file systems do not distinguish.
        digest = hashlib.sha256("/".join(map(escape_level, identity.key)).encode()).hexdigest()[:16]
        return self._writer.folder / f"{identity.job}-{digest}.json"


def _read(path: Path) -> RunCheckpoint | None:
    """Return the checkpoint in a file, or None, logged, where it cannot be read."""
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Head).version
        checkpoint = msgspec.json.decode(content, type=RunCheckpoint) if version in READABLE else None
        if checkpoint is not None:
            _check(checkpoint)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        _LOGGER.warning("%s: ignoring unreadable checkpoint; run accounting restarts from zero: %s", path, error)
        return None
    if checkpoint is None:
        _LOGGER.warning(
            "%s: ignoring checkpoint of version %d: this gridchase reads version %d", path, version, VERSION
        )
    return checkpoint


def _check(checkpoint: RunCheckpoint) -> None:
    """Raise ValueError where a number is impossible for a run: records and plans would be made of it."""
    account, start = checkpoint.account, checkpoint.time_budget_start
    totals_of_ranks = [asdict(rank.totals) for rank in checkpoint.ranks.values()]
    times_ns = [account.until_ns, *(totals.pop("end_ns") for totals in totals_of_ranks)]
    parts: list[Mapping[Any, float | None]] = [
        asdict(account.totals),
        account.counters_j,
        *totals_of_ranks,
        asdict(start) if start else {},
        *(dict(enumerate(sums)) for sums in checkpoint.node_curve),
    ]
    numbers = [value for part in parts for value in part.values() if value is not None]
    for ledger in (checkpoint.ledger, LedgerSnapshot(pairs=checkpoint.node_pairs)):
        if ledger is not None:
            ledger.check()
    if not account.counters_j:
        raise ValueError("names no GPU")
    if not all(0 <= time_ns < ENDLESS_NS for time_ns in times_ns):
        raise ValueError("a time is outside this clock")
    if not all(abs(value) <= _MOST for value in numbers):
        raise ValueError(f"a total is above {_MOST:g}")
    totals = account.totals
    amounts = [totals.energy_j, totals.duration_s, totals.paused_s]
    amounts += [
        each[name] for each in totals_of_ranks for name in ("n_iterations", "active_s", "running_s", "n_epochs")
    ]
    amounts += start.amounts if start else ()
    amounts += [each["n_iterations"] + each["n_more"] + ROUNDING_SLACK for each in totals_of_ranks]
    if min(amounts) < 0:
        raise ValueError("an amount is below 0")
    if any(each["work_per_iteration"] is not None and not each["work_per_iteration"] > 0 for each in totals_of_ranks):
        raise ValueError("the work of an iteration is not above 0")
