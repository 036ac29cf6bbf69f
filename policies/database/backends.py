"""The databases: SQLite in write-ahead mode, with one writing thread and a few reading ones, and PostgreSQL.

A transaction goes to its thread, or to its pooled connection, as a whole and comes back as a whole. (An asynchronous
SQLite driver sends every step of every statement to a thread and back: some sixteen journeys for one request.)
"""

import asyncio
import importlib.util
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from policies.database.errors import DatabaseUnavailableError, DatabaseUrlError
from publishers.shared.files.private_dir import make_private_file
from publishers.shared.worker_thread import WorkerThreads

N_READERS: Final = 4
"""So that a long list does not delay short queries."""
_PATIENCE_SHARE: Final = 0.8
"""Share of the timeout to wait for a lock, so that the error can still name the lock."""
_CACHE_KIB: Final = 16_384
_CHECKPOINT_WRITES: Final = 500
"""Checkpoint after so many transactions: some 16 MB of log."""
_CHECKPOINT_PAGES: Final = 16_000
"""The writer itself checkpoints, and waits for the disk, where those beside it do not keep up: after 64 MB of log."""
POOL_SIZE: Final = 8
"""PostgreSQL connections of one process; more transactions than this queue. A server allows 100 by default."""
_POSTGRES_OPTIONS: Final = frozenset({"host", "ssl", "sslmode"})
_FORMS: Final = "sqlite:///path/to/file or postgresql://user@host/name"
Result = TypeVar("Result")


class Database(Protocol):
    """A database; `name` is its URL without the password."""

    @property
    def name(self) -> str:
        """Return what to call it."""
        ...

    async def read(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` finds in one transaction."""
        ...

    async def write(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` returns, once it is committed."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class SqliteDatabase:
    """An SQLite file, made where it is missing.

    With the write-ahead log, readers and the writer do not block each other. Writes of this process queue for one
    thread in FIFO order; other processes are waited for at the file lock. `synchronous = NORMAL` syncs the disk only
    at checkpoints, which a thread of their own makes beside the writer: no commit is lost when this process dies. A
    power failure may lose commits that the kernel had not written back yet, typically those of the last 30 s, but never
    corrupts the file.

    Args:
        url: `sqlite:///path`.
        client: who uses it, for the names of threads.
        timeout_s: how long callers wait for a transaction [s].

    Raises:
        DatabaseUrlError: the URL names no file, or has options.
        DatabaseUnavailableError: the file cannot be made.
    """

    def __init__(self, url: URL, *, client: str, timeout_s: float) -> None:
        if url.database in {None, "", ":memory:"} or url.query:
            raise DatabaseUrlError(
                f"url = {url.render_as_string()}: SQLite needs a file, and no options: sqlite:///path/to/file"
            )
        self.name = f"sqlite:///{url.database}"
        _make_file(Path(str(url.database)))
        pragmas = (
            f"busy_timeout = {timeout_s * _PATIENCE_SHARE * 1000:.0f}",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "foreign_keys = ON",
            f"cache_size = -{_CACHE_KIB}",
            f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
        )
        # BEGIN IMMEDIATE takes the write lock at once, so a transaction waits there and cannot fail later.
        self._writer = make_sqlite_engine(url, 1, pragmas=pragmas, begin="BEGIN IMMEDIATE")
        self._reader = make_sqlite_engine(url, N_READERS, pragmas=(*pragmas, "query_only = ON"), begin="BEGIN")
        self._checkpointer = make_sqlite_engine(url, 1, pragmas=pragmas, begin="")
        self._writers = WorkerThreads(f"{client}: write")
        self._checkpointers = WorkerThreads(f"{client}: checkpoint")
        self._is_checkpointing = threading.Event()
        self._n_writes = 0
        self._readers = WorkerThreads(f"{client}: read", N_READERS)

    async def read(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` finds in one transaction."""
        return await self._readers.run(lambda: _transact(self._reader, work))

    async def write(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` returns, once it is committed."""
        result = await self._writers.run(lambda: _transact(self._writer, work))
        self._n_writes += 1
        if self._n_writes >= _CHECKPOINT_WRITES and not self._is_checkpointing.is_set():
            self._n_writes = 0
            self._is_checkpointing.set()
            try:
                self._checkpointers.submit(self._checkpoint)
            except OSError:  # no thread is left: what is committed stays so, and the log waits
                self._is_checkpointing.clear()
        return result

    def _checkpoint(self) -> None:
        """Copy what is committed from the log to the file, and sync it, while others read and write.

        Where it fails the log grows until the writer tries, whose error is reported.
        """
        try:
            with self._checkpointer.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            self._is_checkpointing.clear()

    async def close(self) -> None:
        """Close every connection but those of calls that hang."""
        for threads, engine in (
            (self._checkpointers, self._checkpointer),
            (self._writers, self._writer),
            (self._readers, self._reader),
        ):
            with suppress(TimeoutError):
                await threads.run(engine.dispose)
            threads.shutdown()


def _transact(engine: Engine, work: Callable[[Connection], Result]) -> Result:
    with engine.begin() as connection:
        return work(connection)


def _make_file(path: Path) -> None:
    """Make an empty file where there is none; it is for its owner alone."""
    try:
        make_private_file(path)
    except OSError as error:
        mend = "check the directory, its owner and its space"
        raise DatabaseUnavailableError(f"{path}: {error.strerror}; {mend}") from error


def make_sqlite_engine(url: URL, size: int, *, pragmas: tuple[str, ...], begin: str) -> Engine:
    """Return an engine that begins transactions explicitly; the driver does so late, and not for every statement.

    With an empty `begin` each statement is a transaction.
    """
    engine = create_engine(
        url, pool_size=size, max_overflow=0, connect_args={"isolation_level": None, "check_same_thread": False}
    )

    def set_pragmas(connection: Any, _: object) -> None:  # noqa: ANN401 — the driver's connection has no type
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").close()

    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "connect", set_pragmas)
    if begin:
        event.listen(engine, "begin", begin_transaction)
    return engine


class PostgresDatabase:
    """A database of a PostgreSQL server.

    Args:
        url: `postgresql://user@host/name`, with `?sslmode=…` or `?host=/directory/of/the/socket` where needed.
        client: who uses it, for the lists of the server.
        timeout_s: how long callers wait for a transaction [s].

    Raises:
        DatabaseUrlError: the driver is not installed, or the URL has an unknown option.
    """

    def __init__(self, url: URL, *, client: str, timeout_s: float) -> None:
        if importlib.util.find_spec("asyncpg") is None:
            raise DatabaseUrlError("PostgreSQL needs the package asyncpg: pip install 'gridchase[postgres]'")
        if unknown := set(url.query) - _POSTGRES_OPTIONS:
            known = ", ".join(sorted(_POSTGRES_OPTIONS))
            raise DatabaseUrlError(
                "; ".join(f"option {key} of the database's URL: only {known} are known" for key in sorted(unknown))
            )
        self.name = url.set(drivername="postgresql").render_as_string()  # with stars for the password
        # libpq says sslmode, and the driver ssl; the values are the same.
        options = {"ssl" if key == "sslmode" else key: value for key, value in url.query.items()}
        patience_ms = f"{timeout_s * _PATIENCE_SHARE * 1000:.0f}"
        self._ignores_orphans = False
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 — 7 MB, which SQLite does not need

        self._engine = create_async_engine(
            url.set(drivername="postgresql+asyncpg", query=options),
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=timeout_s,
            pool_pre_ping=True,  # reconnects at once after a restart of the server
            connect_args={
                "timeout": timeout_s,
                "server_settings": {
                    "application_name": client,
                    "statement_timeout": patience_ms,
                    "lock_timeout": patience_ms,
                    "idle_in_transaction_session_timeout": f"{timeout_s * 1000:.0f}",  # if this process hangs
                    "jit": "off",  # compiling these short statements takes longer than running them
                },
            },
        )

    async def read(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` finds in one transaction."""
        return await self.write(work)

    async def write(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` returns, once it is committed."""
        if not self._ignores_orphans:
            self._ignores_orphans = True
            _ignore_orphaned_futures(asyncio.get_running_loop())
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


def _ignore_orphaned_futures(loop: asyncio.AbstractEventLoop) -> None:
    """Ignore the orphaned future that asyncpg leaves behind when a server goes away while it connects.

    The failed attempt itself was reported to its caller.
    """
    inner = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, message = context.get("exception"), str(context.get("message"))
        if isinstance(error, ConnectionError) and "never retrieved" in message and "connection_lost" in str(error):
            return
        if inner is None:
            loop.default_exception_handler(context)
        else:
            inner(loop, context)

    loop.set_exception_handler(handle)


def make_database(url: str, *, client: str, password: str, timeout_s: float) -> Database:
    """Return the database of a URL for a client of this name; nothing is connected yet.

    Raises:
        DatabaseUrlError: the URL is none that can be used here; the message says what to do.
        DatabaseUnavailableError: the file of an SQLite database cannot be made.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise DatabaseUrlError(f"the database's URL cannot be read: must be {_FORMS}") from error
    match parsed.drivername:
        case "sqlite":
            return SqliteDatabase(parsed, client=client, timeout_s=timeout_s)
        case "postgresql" | "postgresql+asyncpg":
            parsed = parsed.set(password=password) if password else parsed
            return PostgresDatabase(parsed, client=client, timeout_s=timeout_s)
        case other:
            raise DatabaseUrlError(f"databases of the kind {other} are not supported: must be {_FORMS}")
