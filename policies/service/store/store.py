"""The database of the policy service: transactions that end in time, and failures that are all of one kind.

Any number of processes may use one database; nothing here is shared between them but the database itself.
"""

import asyncio
import importlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from policies.service.errors import StoreUnavailableError
from policies.service.store import queries
from policies.service.store.backends import Database, make_database
from policies.service.store.migration import is_current, migrate

MIGRATION_TIMEOUT_S: Final = 60.0
"""Whoever starts waits this long for the tables, whichever process makes them."""
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.01
_RETRY_SHARE: Final = 0.5
"""Whoever has waited for half of the timeout already would not see the end of another attempt."""
_WORK_SHARE: Final = 0.9
_SERIALIZATION_FAILURE, _DEADLOCK = "40001", "40P01"
_SQLITE_BUSY: Final = 5

_LOGGER = logging.getLogger(__name__)
_Kind = Literal["read", "write"]
Answer = TypeVar("Answer")
Work = Callable[[Connection], Answer]
"""What is to be done in a transaction. It may be done again from its beginning, and in a thread: it must touch nothing
but what it is given."""


def _failures() -> tuple[type[Exception], ...]:
    """Return what a database that is away, full or out of order may raise."""
    failures: tuple[type[Exception], ...] = (DBAPIError, PoolTimeoutError, OSError)
    if importlib.util.find_spec("asyncpg") is None:
        return failures
    driver = importlib.import_module("asyncpg")  # what fails while it connects comes as it is
    return (*failures, driver.PostgresError, driver.InterfaceError)


_FAILURES: Final = _failures()


class Store:
    """A database that has this version's schema.

    Args:
        database: how it is connected to.
        timeout_s: for one transaction, with the wait for a connection and all attempts [s].
    """

    def __init__(self, database: Database, *, timeout_s: float) -> None:
        self.name = database.name
        self._database = database
        self._timeout_s = timeout_s
        self._faults: dict[_Kind, str] = {}  # apart: what is full, or locked, can still be read

    @property
    def is_writable(self) -> bool:
        """Return whether the last write was committed; true before the first."""
        return "write" not in self._faults

    async def read(self, work: Work[Answer]) -> Answer:
        """Return what `work` finds, in one transaction.

        Raises:
            StoreUnavailableError: the database is away, out of order, or too slow.
        """
        return await self._run("read", lambda: self._database.read(work), self._timeout_s)

    async def write(self, work: Work[Answer]) -> Answer:
        """Return what `work` returns, once what it wrote is committed: all of it, or nothing.

        Where another transaction was in the way, or the connection was lost, it is done anew, so that it must bear to
        have been committed already.

        Raises:
            StoreUnavailableError: the database is away, full, out of order, locked for too long, or too slow.
        """
        proven = work if self.is_writable else _proven(work)
        return await self._run("write", lambda: self._database.write(proven), self._timeout_s)

    async def migrate(self) -> None:
        """Bring the database to this version's schema.

        Raises:
            StoreVersionError: it has the schema of a newer version.
            StoreUnavailableError: as `write`.
        """
        if not await self.read(is_current):
            await self._run("write", lambda: self._database.write(migrate), MIGRATION_TIMEOUT_S)
            _LOGGER.info("%s: has the tables of this version now", self.name)

    async def _run(self, kind: _Kind, transact: Callable[[], Awaitable[Answer]], timeout_s: float) -> Answer:
        try:
            # A driver that is interrupted takes its leave of the server, which may hang: then it is interrupted again.
            async with asyncio.timeout(timeout_s), asyncio.timeout(timeout_s * _WORK_SHARE):
                answer = await _attempted(transact, until_s=_now_s() + timeout_s * _RETRY_SHARE)
        except IntegrityError:
            raise  # a bug of ours: no retry would mend it
        except _FAILURES as error:
            fault = _explain(error, timeout_s)
            self._note(kind, fault)
            raise StoreUnavailableError(f"{self.name}: {fault}") from error
        self._note(kind, None)
        return answer

    def _note(self, kind: _Kind, fault: str | None) -> None:
        """Log when the database can no longer be read, or written, and when it can again."""
        before = self._faults.pop(kind, None)
        if fault is not None:
            self._faults[kind] = fault
        if fault is not None and before is None:
            _LOGGER.warning("%s: %s%s", self.name, "cannot be written: " if kind == "write" else "", fault)
        elif fault is None and before is not None:
            _LOGGER.info("%s: is back%s", self.name, ": it can be written again" if kind == "write" else "")


@asynccontextmanager
async def opened_store(url: str, *, password: str = "", timeout_s: float) -> AsyncIterator[Store]:
    """Hold a database open, brought to this version's schema.

    Args:
        url: `sqlite:///path` or `postgresql://user@host/name`.
        password: for PostgreSQL, in place of one in the URL.
        timeout_s: for one transaction [s].

    Raises:
        RequestError: the URL is none that can be used here.
        StoreVersionError: the database has the schema of a newer version.
        StoreUnavailableError: it is away, full, out of order, or too slow.
    """
    database = make_database(url, password=password, timeout_s=timeout_s)
    try:
        store = Store(database, timeout_s=timeout_s)
        await store.migrate()
        yield store
    finally:
        with suppress(*_FAILURES):
            async with asyncio.timeout(timeout_s):
                await database.close()


def _proven(work: Work[Answer]) -> Work[Answer]:
    """Return work that changes something for certain: what changes no row succeeds on a disk that is full, too."""

    def prove_and_work(connection: Connection) -> Answer:
        queries.prove_writing(connection)
        return work(connection)

    return prove_and_work


async def _attempted(transact: Callable[[], Awaitable[Answer]], *, until_s: float) -> Answer:
    """Return what a transaction returns, after a few attempts where another one was in the way, in the loop's time."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return await transact()
        except DBAPIError as error:
            if not _is_passing(error) or _now_s() > until_s:
                raise
            await asyncio.sleep(_PAUSE_S * attempt)
    return await transact()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _is_passing(error: DBAPIError) -> bool:
    """Return whether the next attempt may succeed: another transaction was in the way, or a connection was cut."""
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    if getattr(error.orig, "sqlstate", None) in {_SERIALIZATION_FAILURE, _DEADLOCK}:
        return True
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == _SQLITE_BUSY


def _explain(error: Exception, timeout_s: float) -> str:
    """Return what is wrong with the database, and what to do, in a sentence."""
    if isinstance(error, (TimeoutError, PoolTimeoutError)):
        return f"does not answer within {timeout_s:g} s; check that it runs and what holds its locks"
    origin = error.orig if isinstance(error, DBAPIError) else error
    said = str(origin).strip().splitlines() or [type(origin).__name__]
    return f"{said[0].removeprefix('<class ')}; check that it runs, its address, its access rules and its space"
