"""The databases: SQLite in write-ahead mode, and PostgreSQL.

SQLite: a file in the write-ahead log mode, of which one thread writes and a few read.

A transaction goes to its thread as a whole and comes back as a whole. (An asynchronous driver sends every step of every
statement to a thread and back: some sixteen journeys for a question.)

PostgreSQL: a bounded pool of connections, in which no process holds a lock for longer than its callers wait.

What a store needs of a database, and which databases there are.
"""

import asyncio
import importlib.util
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import create_async_engine

from policies.service.errors import RequestError, StoreUnavailableError
from policies.service.store.crew import Crew

N_READERS: Final = 4
"""A long list does not keep short questions waiting."""
_PATIENCE_SHARE: Final = 0.8
"""A lock is waited for this part of the timeout, so that it can be said what was waited for."""
_CACHE_KIB: Final = 16_384
_CHECKPOINT_PAGES: Final = 4_000
"""After so much of the log (16 MB) a writer carries it over into the file: rarely, since it waits for the disk."""
Answer = TypeVar("Answer")


class SqliteDatabase:
    """An SQLite file, made where it is missing.

    In the write-ahead log readers and the one writer do not wait for each other. The writes of this process queue for
    one thread, first come first served; those of other processes are waited for at the file. `synchronous = NORMAL`
    waits for the disk at checkpoints alone: whatever ends this process, no commit is lost; when the machine loses its
    power, those may be that the kernel had not written back yet, half a minute's as a rule, and the file stays sound.

    Args:
        url: `sqlite:///path`.
        timeout_s: how long its callers wait for a transaction [s].

    Raises:
        RequestError: the URL names no file, or has options.
        StoreUnavailableError: the file cannot be made.
    """

    def __init__(self, url: URL, *, timeout_s: float) -> None:
        if url.database in {None, "", ":memory:"} or url.query:
            raise RequestError(
                [f"url = {url.render_as_string()}: SQLite needs a file, and no options: sqlite:///path/to/file"]
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
        # With the right to write from its beginning, a transaction waits for others there, and fails nowhere later.
        self._writer = _make_engine(url, 1, pragmas=pragmas, begin="BEGIN IMMEDIATE")
        self._reader = _make_engine(url, N_READERS, pragmas=(*pragmas, "query_only = ON"), begin="BEGIN")
        self._writers = Crew("policy store: write", 1)
        self._readers = Crew("policy store: read", N_READERS)

    async def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` finds in one transaction."""
        return await self._readers.do(lambda: _transacted(self._reader, work))

    async def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` returns, once it is committed."""
        return await self._writers.do(lambda: _transacted(self._writer, work))

    async def close(self) -> None:
        """Close every connection but those of calls that hang."""
        for crew, engine in ((self._writers, self._writer), (self._readers, self._reader)):
            with suppress(TimeoutError):
                await crew.do(engine.dispose)
            crew.dismiss()


def _transacted(engine: Engine, work: Callable[[Connection], Answer]) -> Answer:
    with engine.begin() as connection:
        return work(connection)


def _make_file(path: Path) -> None:
    """Make an empty file, for its owner alone, where there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        mend = "check the directory, its owner and its space"
        raise StoreUnavailableError(f"{path}: {error.strerror}; {mend}") from error


def _make_engine(url: URL, size: int, *, pragmas: tuple[str, ...], begin: str) -> Engine:
    """Return an engine whose transactions begin as said; the driver begins them late, and not for every statement."""
    engine = create_engine(
        url,
        pool_size=size,
        max_overflow=0,
        connect_args={"isolation_level": None, "check_same_thread": False},
    )
    event.listen(engine, "connect", _setting_up(pragmas))
    event.listen(engine, "begin", _beginning(begin))
    return engine


def _setting_up(pragmas: tuple[str, ...]) -> Callable[[Any, object], None]:
    def set_up(connection: Any, _: object) -> None:  # noqa: ANN401 — a driver's, which has no type
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").close()

    return set_up


def _beginning(begin: str) -> Callable[[Connection], None]:
    def begin_so(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return begin_so


POOL_SIZE: Final = 8
"""Connections of one process; whoever comes when all are busy waits its turn. A server allows 100 as a rule."""
"""A lock is waited for this part of the timeout, so that it can be said what was waited for."""
_OPTIONS: Final = frozenset({"host", "ssl", "sslmode"})


class PostgresDatabase:
    """A database of a PostgreSQL server.

    Args:
        url: `postgresql://user@host/name`, with `?sslmode=…` or `?host=/directory/of/the/socket` where needed.
        timeout_s: how long its callers wait for a transaction [s].

    Raises:
        RequestError: the driver is not installed, or an option is none that it has.
    """

    def __init__(self, url: URL, *, timeout_s: float) -> None:
        if importlib.util.find_spec("asyncpg") is None:
            raise RequestError(["PostgreSQL needs the package asyncpg: pip install 'gridchase[postgres]'"])
        if unknown := set(url.query) - _OPTIONS:
            raise RequestError(
                [f"option {key} of the database's URL: only {', '.join(sorted(_OPTIONS))} are known" for key in unknown]
            )
        self.name = url.set(drivername="postgresql").render_as_string()  # with stars for the password
        # libpq says sslmode, and the driver ssl; the values are the same.
        options = {"ssl" if key == "sslmode" else key: value for key, value in url.query.items()}
        patience_ms = f"{timeout_s * _PATIENCE_SHARE * 1000:.0f}"
        self._is_quiet = False
        self._engine = create_async_engine(
            url.set(drivername="postgresql+asyncpg", query=options),
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=timeout_s,
            pool_pre_ping=True,  # a server that was started again is met at once
            connect_args={
                "timeout": timeout_s,
                "server_settings": {
                    "application_name": "gridchase policy",
                    "statement_timeout": patience_ms,
                    "lock_timeout": patience_ms,
                    "idle_in_transaction_session_timeout": f"{timeout_s * 1000:.0f}",  # of a process that hangs
                    "jit": "off",  # every statement here is short: compiling it takes longer than running it
                },
            },
        )

    async def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` finds in one transaction."""
        return await self.write(work)

    async def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` returns, once it is committed."""
        if not self._is_quiet:
            self._is_quiet = True
            _quieten(asyncio.get_running_loop())
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


def _quieten(loop: asyncio.AbstractEventLoop) -> None:
    """Keep from the loop's exception handler what the driver leaves behind where a server goes while it connects.

    Its attempt has failed, and was answered for; the future that nobody waits for any more fails, too.
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


_FORMS: Final = "sqlite:///path/to/file or postgresql://user@host/name"


class Database(Protocol):
    """A database; `name` is its URL without the password."""

    @property
    def name(self) -> str:
        """Return what to call it."""
        ...

    async def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` finds in one transaction."""
        ...

    async def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` returns, once it is committed."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def make_database(url: str, *, password: str, timeout_s: float) -> Database:
    """Return the database of a URL; nothing is connected yet.

    Raises:
        RequestError: the URL is none that can be used here; the message says what to do.
        StoreUnavailableError: the file of an SQLite database cannot be made.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise RequestError([f"the database's URL cannot be read: must be {_FORMS}"]) from error
    match parsed.drivername:
        case "sqlite":
            return SqliteDatabase(parsed, timeout_s=timeout_s)
        case "postgresql" | "postgresql+asyncpg":
            return PostgresDatabase(parsed.set(password=password) if password else parsed, timeout_s=timeout_s)
        case other:
            raise RequestError([f"databases of the kind {other} are not supported: must be {_FORMS}"])
