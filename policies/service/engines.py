"""The engines behind a database URL: how SQLite and PostgreSQL are connected to, and how their transactions begin."""

import importlib.util
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from policies.service.errors import RequestError, StoreUnavailableError

POOL_SIZE: Final = 8
"""Connections of a process to PostgreSQL, and its readers of SQLite; whoever comes when all are busy waits its turn."""
_PATIENCE_SHARE: Final = 0.8
"""The database gives up waiting for a lock before the operation's timeout passes, so that it can say why."""
_CACHE_KIB: Final = 16_384
_CHECKPOINT_PAGES: Final = 4_000
"""After this much of the log (16 MB) a writer carries it over into the file: rarely, since it waits for the disk."""
_POSTGRES_OPTIONS: Final = frozenset({"host", "ssl", "sslmode"})
_FORMS: Final = "sqlite:///path/to/file or postgresql://user@host/name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """A database: `name` is its URL without the password; the two engines are one in PostgreSQL."""

    name: str
    readers: AsyncEngine
    writers: AsyncEngine

    async def dispose(self) -> None:
        """Close every connection."""
        for engine in {self.readers, self.writers}:
            await engine.dispose()


def make_engines(url: str, *, password: str, timeout_s: float) -> Engines:
    """Return the engines of a database; nothing is connected yet.

    Raises:
        RequestError: the URL is none that can be used here; the message says what to do.
        StoreUnavailableError: the directory of an SQLite file cannot be made.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise RequestError([f"the database's URL cannot be read: must be {_FORMS}"]) from error
    match parsed.drivername:
        case "sqlite" | "sqlite+aiosqlite":
            return _sqlite_engines(parsed.set(drivername="sqlite+aiosqlite"), timeout_s)
        case "postgresql" | "postgresql+asyncpg":
            return _postgres_engines(parsed.set(password=password) if password else parsed, timeout_s)
        case other:
            raise RequestError([f"databases of the kind {other} are not supported: must be {_FORMS}"])


def _sqlite_engines(url: URL, timeout_s: float) -> Engines:
    """Return an engine that reads and one that writes.

    In the write-ahead log readers and the one writer do not wait for each other. The writers of this process queue for
    one connection, first come first served; those of other processes are waited for at the file. `synchronous = NORMAL`
    waits for the disk at checkpoints alone: whatever ends this process, no commit is lost; when the machine loses its
    power, those may be that the kernel had not yet written back, half a minute as a rule, and the file is sound.
    """
    if url.database in {None, "", ":memory:"} or url.query:
        raise RequestError([f"url = {url.render_as_string()}: SQLite needs a file, and no options: {_FORMS}"])
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # for its owner alone
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreUnavailableError(
            f"{path}: {error.strerror}; check the directory, its owner and its space"
        ) from error
    pragmas = (
        f"busy_timeout = {timeout_s * _PATIENCE_SHARE * 1000:.0f}",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        f"cache_size = -{_CACHE_KIB}",
        f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
    )
    return Engines(
        name=f"sqlite:///{url.database}",
        readers=_sqlite_engine(url, POOL_SIZE, timeout_s, pragmas=(*pragmas, "query_only = ON"), begin="BEGIN"),
        writers=_sqlite_engine(url, 1, timeout_s, pragmas=pragmas, begin="BEGIN IMMEDIATE"),
    )


def _sqlite_engine(url: URL, pool_size: int, timeout_s: float, *, pragmas: tuple[str, ...], begin: str) -> AsyncEngine:
    """Return an engine whose transactions begin as said; the driver begins them late, and not for every statement."""
    engine = create_async_engine(
        url,
        poolclass=AsyncAdaptedQueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=timeout_s,
        connect_args={"isolation_level": None},
    )
    event.listen(engine.sync_engine, "connect", _setting_up(pragmas))
    event.listen(engine.sync_engine, "begin", _beginning(begin))
    return engine


def _setting_up(pragmas: tuple[str, ...]) -> Callable[[Any, object], None]:
    def set_up(connection: Any, _: object) -> None:  # noqa: ANN401 — a driver's, which has no type
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return set_up


def _beginning(begin: str) -> Callable[[Connection], None]:
    def begin_so(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return begin_so


def _postgres_engines(url: URL, timeout_s: float) -> Engines:
    """Return one engine for all; a lock is not held for longer than the timeout, also by a process that hangs."""
    if importlib.util.find_spec("asyncpg") is None:
        raise RequestError(["PostgreSQL needs the package asyncpg: pip install 'gridchase[postgres]'"])
    if unknown := set(url.query) - _POSTGRES_OPTIONS:
        wanted = ", ".join(sorted(_POSTGRES_OPTIONS))
        raise RequestError([f"options {sorted(unknown)} of the database's URL: only {wanted} are supported"])
    # libpq says sslmode, its driver here says ssl; the values are the same.
    options = {"ssl" if key == "sslmode" else key: value for key, value in url.query.items()}
    url = url.set(drivername="postgresql+asyncpg", query=options)
    patience_ms = f"{timeout_s * _PATIENCE_SHARE * 1000:.0f}"
    engine = create_async_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=timeout_s,
        pool_pre_ping=True,
        connect_args={
            "timeout": timeout_s,
            "server_settings": {
                "application_name": "gridchase policy",
                "statement_timeout": patience_ms,
                "lock_timeout": patience_ms,
                "idle_in_transaction_session_timeout": f"{timeout_s * 1000:.0f}",
                "jit": "off",  # every statement here is short: compiling it takes longer than running it
            },
        },
    )
    name = url.set(drivername="postgresql").render_as_string()  # with stars for the password
    return Engines(name=name, readers=engine, writers=engine)
