"""Keeps events in a small SQLite file while the database is unavailable.

While events wait, all later ones that are worth keeping wait behind them, so their order is preserved. Several
processes may share the file: each applies waiting events in turn, also those of a killed process. Applying an event
twice is harmless.
"""

import asyncio
import fcntl
import logging
import os
import random
import sqlite3
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from policies.service.bus.events import RunEvent, merge
from policies.service.bus.shares import Counts
from policies.service.errors import PolicyError, StoreUnavailableError, UnknownTrialError
from policies.service.trials.repository import TrialRepository
from publishers.shared.files.private_dir import make_private_file
from publishers.shared.log_once import FaultLog
from publishers.shared.worker_thread import WorkerThreads

MAX_IN_MEMORY: Final = 65_536
MAX_FILE_BYTES: Final = 64 << 20
SAVED_AT_ONCE: Final = 1_024
APPLIED_AT_ONCE: Final = 64
DISK_TIMEOUT_S: Final = 10.0
DISK_PAUSE_S: Final = 5.0
LOCK_TIMEOUT_S: Final = 5.0
STORE_TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 8.0
MAX_UNREADABLE: Final = 8
"""Files that are kept aside because they are broken; a further one replaces the last."""
POLL_PERIOD_S: Final = 60.0
"""How often the file is checked for events of other processes: one may have died."""
_PAGE_BYTES: Final = 4_096
_CREATE: Final = """CREATE TABLE IF NOT EXISTS pending (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, event BLOB NOT NULL
)"""
_BROKEN: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_DECODER: Final = msgspec.json.Decoder(RunEvent)

_LOGGER = logging.getLogger(__name__)
Result = TypeVar("Result")
Row = tuple[int, bytes]


class SpoolFile:
    """The file; every method blocks, and may raise `sqlite3.Error` or OSError.

    Args:
        path: made with the first event.
        max_bytes: how large it may grow.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_pages = max_bytes // _PAGE_BYTES
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None

    def acquire(self) -> bool:
        """Return whether this process may apply events now: one at a time may, until it calls `release` or dies."""
        if not self._path.exists():
            return True
        if self._lock is None:
            path = self._path.with_suffix(".lock")
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let another process apply events."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def add(self, events: Sequence[RunEvent]) -> bool:
        """Bring events to the disk, all or none, and return True; an event with a known key is merged with it."""
        with self._transaction() as connection:
            for event in events:
                row = connection.execute("SELECT event FROM pending WHERE key = ?", (event.key,)).fetchone()
                merged = event if row is None else merge(_DECODER.decode(row[0]), event)
                connection.execute(
                    "INSERT INTO pending (key, event) VALUES (?, ?)"
                    " ON CONFLICT (key) DO UPDATE SET event = excluded.event",
                    (event.key, msgspec.json.encode(merged)),
                )
        return True

    def oldest(self, limit: int, *, after: int = -1) -> list[Row]:
        """Return at most so many events with their ids, which are greater than `after`, oldest first."""
        if self._connection is None and not self._path.exists():
            return []
        with self._transaction("BEGIN") as connection:  # a lock for writing is refused where the disk is read-only
            return connection.execute(
                "SELECT id, event FROM pending WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
            ).fetchall()

    def remove(self, rows: Sequence[Row]) -> bool:
        """Delete events, other than those that were merged with a newer one meanwhile, and return True."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM pending WHERE id = ? AND event = ?", rows)
        return True

    def close(self) -> None:
        """Close the file."""
        self.release()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        try:
            connection = self._connection = self._connection or self._open()
            with connection:
                connection.execute(begin)
                yield connection
        except sqlite3.DatabaseError as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN:
                aside = self._path.rename(self._aside())
                _LOGGER.error("%s: %s: kept as %s", self._path, error, aside.name)
            raise

    def _aside(self) -> Path:
        """Return where a broken file is kept: beside those before it."""
        names = [".unreadable", *(f".unreadable-{number}" for number in range(2, MAX_UNREADABLE + 1))]
        paths = [self._path.with_suffix(name) for name in names]
        return next((path for path in paths if not path.exists()), paths[-1])

    def _open(self) -> sqlite3.Connection:
        """Return a connection; nothing is written if the table exists: a full or read-only disk can be read."""
        make_private_file(self._path)
        connection = sqlite3.connect(self._path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA max_page_count = {self._max_pages}")
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
                connection.execute("PRAGMA auto_vacuum = FULL")
                connection.execute(_CREATE)
        except BaseException:
            connection.close()
            raise
        return connection


class EventSpool:
    """Events that wait for the database.

    Args:
        file: where they are kept.
        trials: where they are applied.
        threads: run calls that block.

    Attributes:
        n_stored: events that were applied after they had waited.
        n_lost: events for which there was no room.
        n_refused: events that cannot be applied.
    """

    def __init__(self, file: SpoolFile, trials: TrialRepository, *, threads: WorkerThreads | None = None) -> None:
        self.n_stored = 0
        self.n_lost = 0
        self.n_refused = 0
        self._file = file
        self._trials = trials
        self._threads = threads or WorkerThreads("event spool")
        self._in_memory: dict[str, RunEvent] = {}
        self._keys: defaultdict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)  # in memory, by user
        self._counts: Counts[str] = Counts()
        self._disk_fault = ""
        self._unremoved: set[Row] = set()  # applied, though a read-only disk still holds them
        self._lock = asyncio.Lock()  # of the file, and of removals from memory
        self._arrived = asyncio.Event()
        self._waiting = asyncio.Event()
        # Apart: a full disk can still be read.
        self._saving = FaultLog(_LOGGER, recovered="waiting results are on disk again", level=logging.ERROR)
        self._reading = FaultLog(_LOGGER, recovered="waiting results can be read again", level=logging.ERROR)
        self._overflow = FaultLog(_LOGGER, level=logging.ERROR, log_changes=False)

    @property
    def is_waiting(self) -> bool:
        """Return whether events wait, behind which later ones must wait, too."""
        return self._waiting.is_set()

    @property
    def trouble(self) -> str | None:
        """Return what is wrong with the disk, in a sentence; None while all is well, or nothing waits."""
        return (self._saving.fault or self._reading.fault or None) if self.is_waiting else None

    def put(self, event: RunEvent) -> None:
        """Take an event; never waits. Without room the newest of a user who has most is lost: counted, logged once."""
        waiting = self._in_memory.get(event.key)
        self._in_memory[event.key] = event if waiting is None else merge(waiting, event)
        if waiting is None:
            self._keys[event.user][event.key] = None
            self._counts.add(event.user)
        if len(self._in_memory) > MAX_IN_MEMORY:
            self.n_lost += 1
            self._forget(next(reversed(self._keys[self._counts.largest()])))
            self._overflow.report(f"no room for more results: {self._disk_fault or 'the disk is slow'}")
        self._arrived.set()
        self._waiting.set()

    async def save(self) -> None:
        """Bring what arrives to the disk, until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._in_memory:
                if not await self._save_batch():
                    await asyncio.sleep(DISK_PAUSE_S)

    async def replay(self) -> None:
        """Apply what waits, until cancelled, ever less often while the database is unavailable."""
        pause_s = FIRST_PAUSE_S
        while True:
            if not self.is_waiting and not await self._has_leftovers():
                await self._wait_for_events()
                continue
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause_s)  # noqa: S311 — jitter is no secret
            try:
                while await self._apply_batch():
                    pass
            except StoreUnavailableError:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S
                if not self.is_waiting:
                    _LOGGER.info("stored waiting results: %d; rejected: %d", self.n_stored, self.n_refused)

    async def close(self) -> None:
        """Bring the rest to the disk, within a bounded time, and close the file."""
        while self._in_memory and await self._save_batch():
            pass
        if self._in_memory:
            _LOGGER.error("%d results are lost: %s", len(self._in_memory), self._disk_fault)
        await self._on_disk(self._file.close, self._reading)
        self._threads.shutdown()

    async def _wait_for_events(self) -> None:
        """Wait until an event waits, or for a while."""
        try:
            async with asyncio.timeout(POLL_PERIOD_S):
                await self._waiting.wait()
        except TimeoutError:
            pass

    async def _has_leftovers(self) -> bool:
        """Return whether the file holds events of another process, or of an earlier one."""
        await self._remove_applied()
        if await self._unapplied(1):
            self._waiting.set()
        return self.is_waiting

    async def _unapplied(self, limit: int) -> list[Row] | None:
        """Return the oldest events in the file that were not applied yet; None where it cannot be read."""
        # They are applied in their order. What was merged into one of them meanwhile comes once it can be removed.
        after = max((row[0] for row in self._unremoved), default=-1)
        return await self._on_disk(partial(self._file.oldest, limit, after=after), self._reading)

    async def _apply_batch(self) -> bool:
        """Apply the oldest events; return whether there may be more for this process to apply now.

        Raises:
            StoreUnavailableError: the database is away again, or the file cannot be read.
        """
        if await self._on_disk(self._file.acquire, self._reading) is False:
            return False  # another process applies them
        try:
            async with self._lock:
                rows = await self._unapplied(APPLIED_AT_ONCE)
                if rows is None:
                    raise StoreUnavailableError(self._reading.fault)
                if not rows:
                    await self._apply_in_memory()  # the disk has failed, or they have just arrived
                    self._waiting.clear()
                    return False
            await self._apply_rows(rows)
        finally:
            await self._on_disk(self._file.release, self._reading)
        return True

    async def _apply_rows(self, rows: Sequence[Row]) -> None:
        try:
            for row in rows:
                await self._apply_row(row)
                self._unremoved.add(row)
        finally:
            await self._remove_applied()

    async def _remove_applied(self) -> None:
        """Remove from the file what was applied; a full disk refuses that, and is asked again."""
        applied = list(self._unremoved)
        if not applied:
            return
        if await self._on_disk(lambda: self._file.remove(applied), self._saving):
            self._unremoved.clear()

    async def _apply_row(self, row: Row) -> None:
        try:
            event = _DECODER.decode(row[1])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self.n_refused += 1
            _LOGGER.warning("dropping an unreadable event: %s", error)
        else:
            await self._apply(event)

    async def _apply_in_memory(self) -> None:
        while self._in_memory:
            key, event = next(iter(self._in_memory.items()))
            await self._apply(event)
            self._discard(key, event)

    async def _apply(self, event: RunEvent) -> None:
        """Apply an event; drop it where it cannot be applied at all.

        Raises:
            StoreUnavailableError: the database cannot store it now.
        """
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await event.apply(self._trials)
        except TimeoutError as error:
            raise StoreUnavailableError(f"no answer in {STORE_TIMEOUT_S:g} s") from error
        except StoreUnavailableError:
            raise
        except UnknownTrialError:
            self.n_refused += 1  # it never asked for a batch size, which nobody could know during the outage
        except PolicyError as error:
            self.n_refused += 1
            _LOGGER.warning("%s is not stored: %s", event.label, error)
        except Exception:  # a bug must not block the events behind it
            self.n_refused += 1
            _LOGGER.exception("%s is not stored", event.label)
        else:
            self.n_stored += 1

    async def _save_batch(self) -> bool:
        """Bring some events from memory to the disk; return whether that succeeded."""
        async with self._lock:
            batch = dict(islice(self._in_memory.items(), SAVED_AT_ONCE))
            is_saved = await self._on_disk(lambda: self._file.add(list(batch.values())), self._saving)
            for key, event in batch.items() if is_saved else ():
                self._discard(key, event)
            if not self._in_memory:
                self._overflow.clear()
        return bool(is_saved)

    def _discard(self, key: str, event: RunEvent) -> None:
        """Remove an event from memory, unless it was merged with a newer one meanwhile."""
        if self._in_memory.get(key) is event:
            self._forget(key)

    def _forget(self, key: str) -> None:
        user = self._in_memory.pop(key).user
        del self._keys[user][key]
        if not self._keys[user]:
            del self._keys[user]
        self._counts.remove(user)

    async def _on_disk(self, call: Callable[[], Result], log: FaultLog) -> Result | None:
        """Return what a call on the file returns; None where it fails, which is logged once."""
        try:
            async with asyncio.timeout(DISK_TIMEOUT_S):
                result = await self._threads.run(call)
        except TimeoutError:
            fault = f"the disk does not answer in {DISK_TIMEOUT_S:g} s"
        except (OSError, sqlite3.Error) as error:
            fault = str(error)
        else:
            if log is self._saving:
                self._disk_fault = ""
            log.clear()
            return result
        if log is self._saving:
            self._disk_fault = fault
        log.report(f"{'results wait in memory' if log is self._saving else 'waiting results cannot be read'}: {fault}")
        return None
