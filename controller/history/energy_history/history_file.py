"""The SQLite file of a history: made, brought to this version's schema, and moved aside where it is damaged.

All calls are made in one thread, and wait for the disk.
"""

import logging
import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from controller.config import Retention
from controller.history.energy_history.schema import MIGRATIONS
from controller.history.energy_history.writing import tidy, write_messages
from policies.database.backends import make_sqlite_engine
from policies.database.errors import DatabaseUnavailableError, DatabaseVersionError
from publishers.messages.topics import Topics
from publishers.shared.files.lookup import NO_FILE, file_fault
from publishers.shared.files.private_dir import make_private_file
from publishers.shared.log_once import FaultLog

TIDY_PERIOD_S: Final = 3_600.0
STEP_S: Final = 1_800.0
"""A clock that goes on by more from one write to the next has stepped, or nothing was written for that long."""
MAX_DAMAGED: Final = 2
"""The newest copies of damaged files are kept."""
_PRAGMAS: Final = ("busy_timeout = 1500", "journal_mode = WAL", "synchronous = NORMAL", "cache_size = -4096")
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_STEPS: Final = 10_000
"""Of SQLite's machine between two looks at the clock: less than a millisecond."""
_CHECK: Final = "check the directory, its owner and its space"
_FILE_OF_HISTORY: Final = "the history.sqlite of a node or a site"
_REST: Final = ("", "-wal", "-shm")
"""What an SQLite database in write-ahead mode consists of."""

_LOGGER = logging.getLogger(__name__)
Result = TypeVar("Result")


class Steadiness:
    """Tells when the clock has gone on for an hour without a step: what is old is not known before."""

    def __init__(self) -> None:
        self._written_s = -math.inf
        self._steady_since_s = -math.inf

    def is_tidying_due(self, now_s: float) -> bool:
        """Return whether to merge and drop what is old after a write at this time [Unix s]: once an hour."""
        if not 0 <= now_s - self._written_s < STEP_S:
            self._steady_since_s = now_s
        self._written_s = now_s
        is_due = now_s - self._steady_since_s >= TIDY_PERIOD_S
        if is_due:
            self._steady_since_s = now_s
        return is_due


class HistoryFile:
    """The history of a node, or of a site.

    Args:
        path: the file; it and its directory are made where they are missing, for their owner alone.
        topics: those below the configured root.
        config: how long what is kept.
        session_s: when the controller started that publishes [Unix s]; None: others publish.
    """

    def __init__(self, path: Path, *, topics: Topics, config: Retention, session_s: float | None) -> None:
        self._path = path
        self._topics = topics
        self._config = config
        self._session_s = session_s
        self._engine: Engine | None = None
        self._identity: tuple[int, int] | None = None
        self._steadiness = Steadiness()
        self._tidy_fault_log = FaultLog(_LOGGER, log_changes=False)

    def write(self, messages: Sequence[tuple[str, bytes]], *, now_s: float) -> int:
        """Write messages, all or none; once an hour of a steady clock, merge and drop what is old.

        Returns:
            how many messages were not believed.

        Raises:
            OSError: the file cannot be written; the message says why, and what to do.
        """
        try:
            return self._write(messages, now_s=now_s)
        except DatabaseVersionError as error:
            self.close()
            raise DatabaseUnavailableError(f"{self._path}: {error}") from error
        except (SQLAlchemyError, UnicodeDecodeError) as error:
            self.close()
            if not _is_damage(error):
                raise DatabaseUnavailableError(f"{self._path}: {_said(error)}; {_mend(error, _CHECK)}") from error
            self._move_aside()
            return self._write(messages, now_s=now_s)

    def close(self) -> None:
        """Close the file."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def _write(self, messages: Sequence[tuple[str, bytes]], *, now_s: float) -> int:
        engine = self._opened()
        with engine.begin() as connection:
            n_impossible = write_messages(
                connection, messages, topics=self._topics, session_s=self._session_s, now_s=now_s
            )
        if self._steadiness.is_tidying_due(now_s):
            self._tidy(engine, now_s=now_s)
        return n_impossible

    def _tidy(self, engine: Engine, *, now_s: float) -> None:
        """Merge and drop what is old; what fails is told in the log alone, since the messages are written."""
        try:
            with engine.begin() as connection:
                tidy(connection, now_s=now_s, config=self._config)
        except SQLAlchemyError as error:
            if _is_damage(error):
                raise
            self._tidy_fault_log.report(f"{self._path}: what is old is not merged: {_said(error)}")
        else:
            self._tidy_fault_log.clear()

    def _opened(self) -> Engine:
        """Return the open file: a new one where it was removed, since nobody would ever read what goes into the old."""
        if self._engine is not None and _identity(self._path) != self._identity:
            _LOGGER.warning("%s was removed or replaced: what comes goes into the one that is there now", self._path)
            self.close()
        if self._engine is None:
            self._engine = self._open()
            self._identity = _identity(self._path)
        return self._engine

    def _open(self) -> Engine:
        try:
            make_private_file(self._path)
        except OSError as error:
            raise DatabaseUnavailableError(f"{self._path}: {error.strerror or error}; {_CHECK}") from error
        engine = make_sqlite_engine(
            URL.create("sqlite", database=str(self._path)), 1, pragmas=_PRAGMAS, begin="BEGIN IMMEDIATE"
        )
        event.listen(engine, "connect", _read_damaged_text)
        try:
            with engine.begin() as connection:
                MIGRATIONS.migrate(connection)
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _move_aside(self) -> None:
        aside = self._path.with_name(f"{self._path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
        for end in _REST:
            file = Path(f"{self._path}{end}")
            if file.exists():
                file.rename(f"{aside}{end}")
        copies = sorted(self._path.parent.glob(f"{self._path.name}.damaged-*Z"))
        for copy in copies[:-MAX_DAMAGED]:
            for end in _REST:
                Path(f"{copy}{end}").unlink(missing_ok=True)
        _LOGGER.warning("%s is damaged: it is kept as %s, and a new history begins", self._path, aside)


def read_history(path: Path, work: Callable[[Connection], Result], *, timeout_s: float = math.inf) -> Result:
    """Return what `work` finds in a history that is only read, also while it is written.

    Raises:
        DatabaseUnavailableError: there is no such file, it cannot be read, or statements took longer than `timeout_s`.
        DatabaseVersionError: it is of another version.
    """
    if fault := file_fault(path):
        absent = "there is no history yet: a controller writes that of its node, `gridchase web` that of a site"
        raise DatabaseUnavailableError(f"{path}: {absent if fault == NO_FILE else f'{fault}; check who may read it'}")
    # Where no write-ahead log is beside it, nobody has it open: SQLite must not make one, nor try to.
    immutable = "" if Path(f"{path}-wal").exists() else "&immutable=1"
    uri = f"file:{quote(str(path.absolute()))}?mode=ro{immutable}"
    deadline_s = time.monotonic() + timeout_s

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=min(3.0, timeout_s))
        connection.set_progress_handler(lambda: time.monotonic() > deadline_s, _STEPS)
        return connection

    engine = create_engine("sqlite://", creator=connect)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(MIGRATIONS.version_table):
                raise DatabaseUnavailableError(f"{path} holds no history: name {_FILE_OF_HISTORY}")
            if not MIGRATIONS.is_current(connection):
                raise DatabaseVersionError(
                    f"{path} is of another version of gridchase: start the controller, or `gridchase web`, of this"
                    " version once: that migrates an older file"
                )
            return work(connection)
    except (SQLAlchemyError, UnicodeDecodeError) as error:
        raise DatabaseUnavailableError(f"{path}: {_said(error)}; {_mend(error, 'check who may read it')}") from error
    finally:
        engine.dispose()


def _read_damaged_text(connection: sqlite3.Connection, _: object) -> None:
    """Let a text that is no UTF-8 be read: one row may not keep all others from being written."""
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and number of a file; None: there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _is_damage(error: SQLAlchemyError | UnicodeDecodeError) -> bool:
    """Return whether a file is damaged; what SQLite says of a damaged schema may hold bytes of it."""
    return isinstance(error, UnicodeDecodeError) or _code(error) in _DAMAGED


def _mend(error: SQLAlchemyError | UnicodeDecodeError, otherwise: str) -> str:
    """Return what to do."""
    if _code(error) in _LOCKED:
        return "another program holds it: end it, or wait"
    if _code(error) == sqlite3.SQLITE_INTERRUPT:
        return "this takes too long: ask for a shorter time"
    return f"the file is damaged, or no history: name {_FILE_OF_HISTORY}" if _is_damage(error) else otherwise


def _code(error: Exception) -> int:
    origin = error.orig if isinstance(error, DatabaseError) else None
    return int(getattr(origin, "sqlite_errorcode", 0)) & 0xFF


def _said(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
