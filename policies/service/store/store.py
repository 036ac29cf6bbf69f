"""The database of the policy service: transactions with a deadline, and one kind of error for all failures.

Any number of processes may use one database; they share nothing but the database itself.
"""

import asyncio
import importlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, Literal, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from policies.database.backends import Database, make_database
from policies.database.errors import DatabaseUnavailableError, DatabaseUrlError, DatabaseVersionError
from policies.service.errors import RequestError, StoreUnavailableError, StoreVersionError
from policies.service.store import queries
from policies.service.store.schema import MIGRATIONS
from publishers.shared.log_once import FaultLog

MIGRATION_TIMEOUT_S: Final = 60.0
"""How long a starting process waits for the tables, whichever process creates them."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.01
_RETRY_SHARE: Final = 0.5
"""After half of the timeout there is no time left for another attempt."""
_WORK_SHARE: Final = 0.9
_SERIALIZATION_FAILURE, _DEADLOCK = "40001", "40P01"
_SQLITE_BUSY: Final = 5

_LOGGER = logging.getLogger(__name__)
_Kind = Literal["read", "write"]
Result = TypeVar("Result")
Work = Callable[[Connection], Result]
"""The body of a transaction. It may run again from its beginning, and in a thread: it must touch nothing but its
arguments."""


def _failures() -> tuple[type[Exception], ...]:
    """Return what a database that is away, full or out of order may raise."""
    failures: tuple[type[Exception], ...] = (DBAPIError, PoolTimeoutError, OSError)
    if importlib.util.find_spec("asyncpg") is None:
        return failures
    driver = importlib.import_module("asyncpg")  # SQLAlchemy does not wrap what fails while it connects
    return (*failures, driver.PostgresError, driver.InterfaceError)


_FAILURES: Final = _failures()


class Store:
    """A database with this version's schema. Until `open` has succeeded, every call fails as unavailable.

    Args:
        connect: returns the database; nothing is connected before its first use.
        timeout_s: for one transaction, with the wait for a connection and all attempts [s].

    Attributes:
        tried: set once the first attempt to open the database has ended.
    """

    def __init__(self, connect: Callable[[], Database], *, timeout_s: float) -> None:
        self.tried = asyncio.Event()
        self._connect = connect
        self._timeout_s = timeout_s
        self._database: Database | None = None
        self._fault = "it has not answered yet"
        # Apart: a full or locked database can still be read.
        self._faults: dict[_Kind, FaultLog] = {
            "read": FaultLog(_LOGGER, recovered="the database is back", log_changes=False),
            "write": FaultLog(_LOGGER, recovered="the database is back: it can be written again", log_changes=False),
        }

    @property
    def is_open(self) -> bool:
        """Return whether the database was opened."""
        return self._database is not None

    @property
    def is_writable(self) -> bool:
        """Return whether the last write was committed; true before the first."""
        return not self._faults["write"].fault

    async def open(self) -> None:
        """Connect to the database and bring it to this version's schema.

        Raises:
            RequestError: its URL cannot be used.
            StoreVersionError: it has the schema of another version.
            StoreUnavailableError: it is away, full, out of order, or too slow.
        """
        try:
            database = self._connect()
        except DatabaseUrlError as error:
            raise RequestError([str(error)]) from error
        except DatabaseUnavailableError as error:
            raise StoreUnavailableError(str(error)) from error
        try:
            if not await self._run("read", database, MIGRATIONS.is_current, self._timeout_s):
                await self._run("write", database, MIGRATIONS.migrate, MIGRATION_TIMEOUT_S)
                _LOGGER.info("%s: created the tables of this version", database.name)
        except DatabaseVersionError as error:
            await self._close(database)
            raise StoreVersionError(str(error)) from error
        except BaseException:
            await self._close(database)
            raise
        self._database = database

    async def close(self) -> None:
        """Close every connection."""
        database, self._database = self._database, None
        if database is not None:
            await self._close(database)

    async def keep_open(self) -> None:
        """Open the database, trying again until it answers, and hold it open until cancelled.

        Raises:
            RequestError, StoreVersionError: as `open`.
        """
        pause_s = FIRST_PAUSE_S
        log = FaultLog(_LOGGER, recovered="the database is open", log_changes=False)
        try:
            while not self.is_open:
                try:
                    await self.open()
                except StoreUnavailableError as error:
                    self._fault = str(error)
                    log.report(f"the database is not open, so runs get their default batch sizes: {error}")
                    self.tried.set()
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            log.clear()
            self.tried.set()
            await asyncio.Event().wait()
        finally:
            await self.close()

    async def read(self, work: Work[Result]) -> Result:
        """Return what `work` finds, in one transaction.

        Raises:
            StoreUnavailableError: the database is away, out of order, or too slow.
        """
        return await self._run("read", self._opened(), work, self._timeout_s)

    async def write(self, work: Work[Result]) -> Result:
        """Return what `work` returns, once it is committed: all of it, or nothing.

        After a conflict with another transaction, or a lost connection, `work` runs again; it may have been committed
        before.

        Raises:
            StoreUnavailableError: the database is away, full, out of order, locked for too long, or too slow.
        """
        database = self._opened()
        return await self._run("write", database, work if self.is_writable else _proving(work), self._timeout_s)

    def _opened(self) -> Database:
        if self._database is None:
            raise StoreUnavailableError(f"the database is not open: {self._fault}")
        return self._database

    async def _run(self, kind: _Kind, database: Database, work: Work[Result], timeout_s: float) -> Result:
        transact = partial(database.read if kind == "read" else database.write, work)
        try:
            # A cancelled driver says goodbye to the server, which may hang: the outer timeout cancels that, too.
            async with asyncio.timeout(timeout_s), asyncio.timeout(timeout_s * _WORK_SHARE):
                result = await _with_retries(transact, until_s=_now_s() + timeout_s * _RETRY_SHARE)
        except IntegrityError:
            raise  # a bug of ours: no retry helps
        except _FAILURES as error:
            fault = f"{database.name}: {_explain(error, timeout_s)}"
            self._faults[kind].report(fault if kind == "read" else f"the database cannot be written: {fault}")
            raise StoreUnavailableError(fault) from error
        if self._faults[kind].fault:
            self._faults[kind].clear()
        return result

    async def _close(self, database: Database) -> None:
        with suppress(*_FAILURES):
            async with asyncio.timeout(self._timeout_s):
                await database.close()


def store_at(url: str, *, password: str = "", timeout_s: float) -> Store:
    """Return the store of a database that is not opened yet.

    Args:
        url: `sqlite:///path` or `postgresql://user@host/name`.
        password: for PostgreSQL, in place of one in the URL.
        timeout_s: for one transaction [s].
    """
    connect = partial(make_database, url, client="gridchase policy", password=password, timeout_s=timeout_s)
    return Store(connect, timeout_s=timeout_s)


@asynccontextmanager
async def open_store(url: str, *, password: str = "", timeout_s: float) -> AsyncIterator[Store]:
    """Hold a database open while the body runs; arguments as for `store_at`.

    Raises:
        RequestError: the URL cannot be used.
        StoreVersionError: the database has the schema of another version.
        StoreUnavailableError: it is away, full, out of order, or too slow.
    """
    store = store_at(url, password=password, timeout_s=timeout_s)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _proving(work: Work[Result]) -> Work[Result]:
    """Return work that certainly writes: what changes no row would succeed on a full disk, too."""

    def prove_and_work(connection: Connection) -> Result:
        queries.prove_writing(connection)
        return work(connection)

    return prove_and_work


async def _with_retries(transact: Callable[[], Awaitable[Result]], *, until_s: float) -> Result:
    """Return what a transaction returns, retried a few times after conflicts, until a moment on the loop's clock."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return await transact()
        except DBAPIError as error:
            if not _is_transient(error) or _now_s() > until_s:
                raise
            await asyncio.sleep(_PAUSE_S * attempt)
    return await transact()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _is_transient(error: DBAPIError) -> bool:
    """Return whether a retry may succeed: after a conflict with another transaction, or a lost connection."""
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    if getattr(error.orig, "sqlstate", None) in {_SERIALIZATION_FAILURE, _DEADLOCK}:
        return True
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == _SQLITE_BUSY


def _explain(error: Exception, timeout_s: float) -> str:
    if isinstance(error, (TimeoutError, PoolTimeoutError)):
        return f"does not answer within {timeout_s:g} s; check that it runs and what holds its locks"
    origin = error.orig if isinstance(error, DBAPIError) else error
    said = str(origin).strip().splitlines() or [type(origin).__name__]
    return f"{said[0].removeprefix('<class ')}; check that it runs, its address, its access rules and its space"
