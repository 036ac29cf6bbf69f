"""The books of runs that outlive the controller: written now and then, taken up again where the same run still goes on.

What happened in between is known by the GPUs' own counters and by the numbers of the iterations; it is entered as a
pause, because nobody knows what of it ran. Clocks and counters begin anew with the machine: books of another boot are
of no use. A run that said that it has ended, or was not heard of for a day, has none; one that was lost or silent has:
its processes may come back.
"""

import hashlib
import logging
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
from controller.clock import Clock
from controller.control.run_follower import Sums
from controller.control.run_leader import TimeBudgetStart
from controller.state_files import Content, FileWriter

VERSION: Final = 1
MAX_AGE_S: Final = 86_400.0
_MOST: Final = 1e15
"""More joules, seconds, iterations, or joules times grams, than any run comes to."""
MAX_CHECKPOINTS: Final = 256
"""As many as there are runs at a time on one node."""

_LOGGER = logging.getLogger(__name__)


class RunCheckpoint(Struct, frozen=True, kw_only=True):
    """The books of one run on this node, up to a moment on the monotonic clock of one boot.

    Attributes:
        job, run: whose they are.
        boot_id: which boot.
        kept_at_s: when they were written [Unix s].
        balance: the account, and up to when it goes.
        bookmarks: how far the training processes were, by rank.
        sums: what a node that follows has measured, as in `following.PartCurve`.
        ledger: where the ledger of time starts, where the run has left a curve.
    """

    job: str
    run: str
    boot_id: str
    kept_at_s: float
    balance: AccountSnapshot
    bookmarks: dict[int, RankCheckpoint]
    sums: list[Sums] = field(default_factory=list)
    ledger: TimeBudgetStart | None = None
    version: int = VERSION


class _Head(Struct, frozen=True, kw_only=True):
    version: int


class RunCheckpoints:
    """The books in a state directory; reading and writing them never fails, and nobody waits for the disk.

    As a context manager it reads them at the beginning, and waits at the end, 2 s at most, for what is to be written.

    Args:
        state_dir: where the directory of the books is, or will be made.
        boot_id: this boot.
        clock: tells the time.
    """

    def __init__(self, state_dir: Path, *, boot_id: str, clock: Clock) -> None:
        self._boot_id = boot_id
        self._clock = clock
        self._writer = FileWriter(state_dir / "runs", what="books of runs")
        self._books: dict[Path, RunCheckpoint] = {}

    def __enter__(self) -> Self:
        """Read what there is; what is of no use any more is removed."""
        books = {path: _read(path) for path in self._writer.folder.glob("*.json")}
        of_use = {path: book for path, book in books.items() if book is not None and self._is_of_use(book)}
        self._books = dict(sorted(of_use.items(), key=lambda kept: kept[1].kept_at_s))
        half_written = self._writer.folder.glob("*.new")
        stale: dict[Path, Content | None] = dict.fromkeys([*books.keys() - of_use.keys(), *half_written])
        if stale:
            self._writer.put(stale)
        return self

    def __exit__(self, *_: object) -> None:
        """Finish what is to be written, within a bounded time."""
        self._writer.close()

    def load(self, place: RunIdentity) -> RunCheckpoint | None:
        """Return the books that were kept of a run on this node."""
        book = self._books.get(self._path(place))
        return book if book is not None and self._is_of_use(book) else None

    def keep(
        self,
        place: RunIdentity,
        balance: AccountSnapshot,
        bookmarks: dict[int, RankCheckpoint],
        *,
        sums: Sequence[Sums] = (),
        ledger: TimeBudgetStart | None = None,
    ) -> None:
        """Keep the books of a run; where there are too many, the ones that were kept longest ago are dropped."""
        path = self._path(place)
        book = RunCheckpoint(
            job=place.job,
            run=place.run,
            boot_id=self._boot_id,
            kept_at_s=self._clock.now_s(),
            balance=balance,
            bookmarks=bookmarks,
            sums=list(sums),
            ledger=ledger,
        )
        self._books.pop(path, None)
        self._books[path] = book
        changes: dict[Path, Content | None] = {path: lambda: msgspec.json.encode(book)}
        while len(self._books) > MAX_CHECKPOINTS:
            dropped = next(iter(self._books))
            self._books.pop(dropped)
            changes[dropped] = None
        self._writer.put(changes)

    def pass_on(self, uuid: str, place: RunIdentity) -> None:
        """Note in the books of other runs that a GPU of theirs is this one's now."""
        for path, book in list(self._books.items()):
            balance = book.balance
            if path != self._path(place) and uuid in balance.counters_j and uuid not in balance.passed_on:
                passed = replace(balance, passed_on=(*balance.passed_on, uuid))
                self._books[path] = noted = msgspec.structs.replace(book, balance=passed)
                self._writer.put({path: partial(msgspec.json.encode, noted)})

    def drop(self, place: RunIdentity) -> None:
        """Forget a run: it has ended."""
        path = self._path(place)
        if self._books.pop(path, None) is not None:
            self._writer.put({path: None})

    def _is_of_use(self, book: RunCheckpoint) -> bool:
        """Return whether the clock and the counters are still those of the books, and the run may still go on."""
        is_young = book.kept_at_s >= self._clock.now_s() - MAX_AGE_S
        return is_young and book.boot_id == self._boot_id and book.balance.cut_ns <= self._clock.monotonic_ns()

    def _path(self, place: RunIdentity) -> Path:
        # Names may differ by case alone, which some file systems do not tell apart.
        digest = hashlib.sha256(f"{place.job}/{place.run}".encode()).hexdigest()[:16]
        return self._writer.folder / f"{place.job}-{digest}.json"


def _read(path: Path) -> RunCheckpoint | None:
    """Return what a file keeps, or None, said so, where it cannot be read."""
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Head).version
        book = msgspec.json.decode(content, type=RunCheckpoint) if version == VERSION else None
        if book is not None:
            _check(book)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        _LOGGER.warning("%s: not used, the books of the run begin anew: %s", path, error)
        return None
    if book is None:
        _LOGGER.warning("%s: not used: version %d: this gridchase reads version %d", path, version, VERSION)
    return book


def _check(book: RunCheckpoint) -> None:
    """Raise ValueError where a number is none that a run comes to: records and plans would be made of it."""
    balance, tallies = book.balance, [asdict(bookmark.tally) for bookmark in book.bookmarks.values()]
    times_ns = [balance.cut_ns, *(tally.pop("end_ns") for tally in tallies)]
    parts: list[Mapping[Any, float | None]] = [
        asdict(balance.account),
        balance.counters_j,
        *tallies,
        asdict(book.ledger) if book.ledger else {},
        *(dict(enumerate(each)) for each in book.sums),
    ]
    totals = [value for part in parts for value in part.values() if value is not None]
    if not balance.counters_j:
        raise ValueError("names no GPU")
    if not all(0 <= time_ns < ENDLESS_NS for time_ns in times_ns):
        raise ValueError("a time is none of this clock")
    if not all(abs(value) <= _MOST for value in totals):
        raise ValueError(f"a total is above {_MOST:g}")
    account = balance.account
    amounts = [account.energy_j, account.duration_s, account.n_iterations, account.active_s, account.pause_s]
    amounts += [tally[name] for tally in tallies for name in ("n_iterations", "active_s", "running_s", "n_epochs")]
    amounts += [book.ledger.n_iterations, book.ledger.active_s] if book.ledger else []
    if min(amounts) < 0:
        raise ValueError("an amount is below 0")
