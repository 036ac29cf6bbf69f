"""Signal histories on disk, so that a controller that restarts knows the last 60 days.

Histories of signals in an SQLite file: one row for each value, revised in place; what is too old is dropped.

A connection lives for one operation, so that two processes may use one file, and a file that is removed or mended while
we run is simply met again. Nothing here knows asyncio: `signal_store` calls it from a thread.

The histories of signals on disk, so that a controller that starts knows what the grid did in the last 60 days.

Nothing here raises and nothing waits for long: a disk that is full, a file that is locked or broken, is a fault that is
told once, and the controller goes on without the store.
"""

import asyncio
import logging
import math
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeVar

import numpy as np

from policies.vocabulary.signal import Signal, SignalKind

VERSION: Final = 1
BUSY_TIMEOUT_S: Final = 2.0
"""How long another process may hold the file."""
_CORRUPT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SCHEMA: Final = (
    """CREATE TABLE series (
        name TEXT PRIMARY KEY, kind TEXT NOT NULL, zone TEXT NOT NULL, unit TEXT NOT NULL, source TEXT NOT NULL,
        ends_s REAL NOT NULL, issued_at_s REAL NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE step (
        series TEXT NOT NULL REFERENCES series (name) ON DELETE CASCADE,
        starts_s REAL NOT NULL, value REAL, estimated INTEGER NOT NULL, PRIMARY KEY (series, starts_s)
    ) WITHOUT ROWID""",
)


class _Head(NamedTuple):
    kind: SignalKind
    zone: str
    unit: str
    source: str
    ends_s: float
    issued_at_s: float


_Rows = dict[float, tuple[float | None, bool]]
"""Value, None where it is missing, and whether it is an estimate, by start [Unix s]."""


class SignalDatabase:
    """The file. Every method may raise sqlite3.Error, OSError, or ValueError where a later version wrote the file."""

    def __init__(self, path: Path, *, keep_s: float) -> None:
        self.path = path
        self._keep_s = keep_s

    def load(self, series: str, *, since_s: float) -> Signal | None:
        """Return what is known of a series after `since_s`, or None where nothing is; makes no file."""
        if not self.path.exists():
            return None
        with self._connected() as connection, connection:
            connection.execute("BEGIN")  # head and steps must be of one state
            stored = _read(connection, series)
        recent = None if stored is None else _recent(stored, since_s)
        return recent if recent is not None and len(recent) else None

    def save(self, series: str, signal: Signal, *, now_s: float) -> None:
        """Revise what is known of a series, whatever order the fetches come in; drop what ceased too long ago."""
        with self._connected() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            stored = _read(connection, series)
            if stored is not None and _what(stored) != _what(signal):
                connection.execute("DELETE FROM series WHERE name = ?", (series,))
                stored = None
            merged = _recent(_merged(stored, signal), now_s - self._keep_s)
            _write(connection, series, merged, before={} if stored is None else _rows(stored))

    def set_aside(self) -> Path:
        """Move a file that is no database out of the way, in place of the one that was moved before; return where."""
        name, folder = self.path.name, self.path.parent
        copies = {int(found[1]): path for path in folder.glob(f"{name}.corrupt-*") if (found := _number(path))}
        aside = folder / f"{name}.corrupt-{max(copies, default=0) + 1}"
        self.path.replace(aside)
        for leftover in (*copies.values(), folder / f"{name}-wal", folder / f"{name}-shm"):
            leftover.unlink(missing_ok=True)
        return aside

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Open the file, which is made, for its owner alone, where there is none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = NORMAL")
            if _version(connection) == 0:
                _create(connection)
            if (version := _version(connection)) != VERSION:
                raise ValueError(f"version {version}: this gridchase reads version {VERSION}")
            yield connection


def is_corrupt(error: Exception) -> bool:
    """Return whether an error says that the file is no database, or a broken one."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _CORRUPT


def _number(path: Path) -> re.Match[str] | None:
    return re.search(r"\.corrupt-(\d+)\Z", path.name)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _create(connection: sqlite3.Connection) -> None:
    """Make the tables, unless another process has done so meanwhile."""
    connection.execute("PRAGMA journal_mode = WAL")
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        if _version(connection) == 0:
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")


def _what(signal: Signal) -> tuple[str, str, str]:
    return signal.kind, signal.zone, signal.unit


def _merged(stored: Signal | None, signal: Signal) -> Signal:
    """Return what was known and what is told, of which the one that was issued later revises the other."""
    if stored is None:
        return signal
    return stored.revised(signal) if signal.issued_at_s >= stored.issued_at_s else signal.revised(stored)


def _recent(signal: Signal, since_s: float) -> Signal:
    """Return the values that hold after a time, none of them cut in two."""
    holding = int(np.searchsorted(signal.starts_s, since_s, side="right")) - 1
    begins_s = float(signal.starts_s[holding]) if holding >= 0 and signal.ends_s > since_s else since_s
    return signal.between(begins_s, math.inf)


def _rows(signal: Signal) -> _Rows:
    values = [None if math.isnan(value) else value for value in signal.values.tolist()]
    return dict(zip(signal.starts_s.tolist(), zip(values, signal.estimated.tolist(), strict=True), strict=True))


def _read(connection: sqlite3.Connection, series: str) -> Signal | None:
    found = connection.execute(
        "SELECT kind, zone, unit, source, ends_s, issued_at_s FROM series WHERE name = ?", (series,)
    ).fetchone()
    if found is None:
        return None
    rows = connection.execute(
        "SELECT starts_s, value, estimated FROM step WHERE series = ? ORDER BY starts_s", (series,)
    ).fetchall()
    starts_s, values, estimated = zip(*rows, strict=True) if rows else ((), (), ())
    return Signal(
        starts_s=np.array(starts_s, dtype=np.float64),
        values=np.array(values, dtype=np.float64),  # NULL becomes NaN
        estimated=np.array(estimated, dtype=np.bool_),
        **_Head(*found)._asdict(),
    )


def _write(connection: sqlite3.Connection, series: str, signal: Signal, *, before: _Rows) -> None:
    """Write what differs from what was there before: a fetch revises a few rows of thousands."""
    after = _rows(signal)
    head = _Head(signal.kind, signal.zone, signal.unit, signal.source, signal.ends_s, signal.issued_at_s)
    connection.execute(
        """INSERT INTO series (name, kind, zone, unit, source, ends_s, issued_at_s) VALUES (?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (name) DO UPDATE SET source = excluded.source, ends_s = excluded.ends_s,
        issued_at_s = excluded.issued_at_s""",
        (series, *head),
    )
    connection.executemany(
        "DELETE FROM step WHERE series = ? AND starts_s = ?", [(series, s) for s in before.keys() - after.keys()]
    )
    connection.executemany(
        "INSERT OR REPLACE INTO step (series, starts_s, value, estimated) VALUES (?, ?, ?, ?)",
        [(series, s, *row) for s, row in after.items() if before.get(s) != row],
    )


TIMEOUT_S: Final = 10.0
"""For one operation, with all that wait before it; a disk may hang."""
CLOSE_TIMEOUT_S: Final = 3.0

_LOGGER = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class SignalStore:
    """The histories in one SQLite file. Its thread is a daemon: a disk that hangs does not keep the process alive.

    Args:
        path: the file; made where it is missing, with its directory.
        keep_s: what ceased to hold longer ago than this is dropped [s].
    """

    def __init__(self, path: Path, *, keep_s: float = 60 * 86_400.0) -> None:
        self._faults = {"found": "", "kept": ""}
        self._path = path
        self._database = SignalDatabase(path, keep_s=keep_s)
        self._jobs: SimpleQueue[Callable[[], None] | None] | None = None
        self._is_idle: Callable[[], bool] = lambda: True
        self._is_closed = False

    @property
    def fault(self) -> str:
        """Return why histories are not kept or not found, in a sentence; "" while all is well."""
        return self._faults["kept"] or self._faults["found"]

    async def load(self, *, series: str, since_s: float) -> Signal | None:
        """Return what was told of a series after `since_s`; None where that is nothing, or the store cannot be used.

        The first value may start before `since_s`: none is cut in two.
        """
        return await self._ask("found", lambda: self._database.load(series, since_s=since_s))

    async def save(self, *, series: str, signal: Signal, now_s: float) -> None:
        """Keep what a source told: it revises what it told before, as `Signal.revised` does, whatever comes later.

        A series of another kind, zone or unit begins anew. A signal without an end is a constant: it is not kept.
        """
        if len(signal) and math.isfinite(signal.ends_s):
            await self._ask("kept", lambda: self._database.save(series, signal, now_s=now_s))

    async def close(self) -> None:
        """Finish what is under way, within a bounded time; later calls do nothing."""
        jobs, self._jobs, self._is_closed = self._jobs, None, True
        if jobs is None:
            return
        last: Future[None] = Future()
        jobs.put(lambda: last.set_result(None))
        jobs.put(None)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.wrap_future(last)
        except TimeoutError:
            self._note("kept", f"{self._path}: the disk does not answer")

    async def _ask(self, what: str, work: Callable[[], Answer]) -> Answer | None:
        """Return what the thread answers; None where it fails, where it hangs, or where the store is closed."""
        if self._is_closed or not self._is_idle():
            return None
        answer: Future[Answer] = Future()
        self._started().put(lambda: _settle(answer, lambda: self._mended(work)))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                result = await asyncio.wrap_future(answer)
        except TimeoutError:
            if answer.running():
                self._is_idle = answer.done  # nobody waits for a disk that hangs again before it has come back
            self._note(what, f"{self._path}: the disk does not answer in {TIMEOUT_S:g} s")
        except OSError as error:
            self._note(what, f"{error.filename or self._path}: {error.strerror or error}")
        except (sqlite3.Error, ValueError) as error:
            self._note(what, f"{self._path}: {error}")
        else:
            for mended in {"found", what}:  # what can be written can be read, too
                self._note(mended, "")
            return result
        return None

    def _started(self) -> SimpleQueue[Callable[[], None] | None]:
        if self._jobs is None:
            self._jobs = SimpleQueue()
            threading.Thread(target=_work, args=(self._jobs,), name="gridchase signals", daemon=True).start()
        return self._jobs

    def _mended(self, work: Callable[[], Answer]) -> Answer:
        """Return what the database answers; one that is broken is moved aside and begun anew. Runs in the thread."""
        try:
            return work()
        except sqlite3.Error as error:
            if not is_corrupt(error):
                raise
            aside = self._database.set_aside()
            _LOGGER.warning("%s: %s: moved to %s; the histories begin anew", self._path, error, aside.name)
            return work()

    def _note(self, what: str, fault: str) -> None:
        """Log a fault when it begins, when it becomes another one, and when it is over."""
        before, self._faults[what] = self._faults[what], fault
        if fault and fault != before:
            _LOGGER.warning("histories are not %s: %s", what, fault)
        elif before and not fault:
            _LOGGER.info("%s: histories are %s again", self._path, what)


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()


def _settle(answer: Future[Answer], work: Callable[[], Answer]) -> None:
    """Give an answer, unless nobody waits for it any more."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(work())
    except Exception as error:  # noqa: BLE001 — whatever it is, it belongs to who has asked
        answer.set_exception(error)
