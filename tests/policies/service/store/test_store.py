"""What a store makes of a database's failures: attempts, deadlines, and one kind of error; over a fake database."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from typing import TypeVar, cast

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from policies.service.config import LearningConfig
from policies.service.errors import StoreUnavailableError, StoreVersionError
from policies.service.store.queries import add_claim
from policies.service.store.schema import METADATA, MIGRATIONS
from policies.service.store.store import Store
from tests.policies.service.repositories import Repositories

TIMEOUT_S = 5.0
Answer = TypeVar("Answer")


def opened(database: "FakeDatabase") -> Store:
    """Return the store of a database that has its tables."""
    store = Store(lambda: database, timeout_s=TIMEOUT_S)
    store._database = database
    return store


class FakeDatabase:
    """An empty database in memory that fails as it is told, each time in the next way, before it does its work."""

    def __init__(self, *failures: Exception, takes_s: float = 0.0) -> None:
        self.name = "fake"
        self.failures = list(failures)
        self.n_attempts = 0
        self._takes_s = takes_s

    async def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what work finds."""
        return await self.write(work)

    async def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what work returns."""
        self.n_attempts += 1
        await asyncio.sleep(self._takes_s)
        if self.failures:
            raise self.failures.pop(0)
        engine = create_engine("sqlite://")
        METADATA.create_all(engine)
        try:
            with engine.begin() as connection:
                return work(connection)
        finally:
            engine.dispose()

    async def close(self) -> None:
        """Do nothing."""


def by_server(sqlstate: str) -> DBAPIError:
    """Return an error as PostgreSQL's driver tells it."""
    origin = Exception(f"sqlstate {sqlstate}")
    origin.sqlstate = sqlstate  # type: ignore[attr-defined]  # as the driver's have
    return OperationalError("SELECT 1", {}, origin)


def by_file(code: int) -> DBAPIError:
    """Return an error as SQLite's driver tells it."""
    origin = sqlite3.OperationalError("database is locked")
    origin.sqlite_errorcode = code
    return OperationalError("SELECT 1", {}, origin)


def cut() -> DBAPIError:
    """Return the error of a connection that was cut."""
    return OperationalError("SELECT 1", {}, Exception("connection was closed"), connection_invalidated=True)


def one(_: Connection) -> int:
    return 1


@pytest.mark.parametrize(
    "passing",
    [
        by_server("40001"),
        by_server("40P01"),
        by_file(sqlite3.SQLITE_BUSY),
        by_file(261),
        cut(),
        InterfaceError("", {}, Exception()),
    ],
)
async def test_what_was_in_the_way_of_another_is_done_again(passing: Exception) -> None:
    database = FakeDatabase(passing, passing)
    assert await opened(database).write(one) == 1
    assert database.n_attempts == 3


async def test_after_a_few_attempts_the_database_is_unavailable() -> None:
    database = FakeDatabase(*[by_server("40P01") for _ in range(9)])
    with pytest.raises(StoreUnavailableError, match="fake: sqlstate 40P01; check"):
        await opened(database).write(one)
    assert database.n_attempts == 5


async def test_a_lock_that_was_waited_for_is_not_waited_for_again() -> None:
    database = FakeDatabase(by_file(sqlite3.SQLITE_BUSY), takes_s=0.8 * TIMEOUT_S)
    with pytest.raises(StoreUnavailableError, match="database is locked"):
        await opened(database).write(one)
    assert database.n_attempts == 1


@pytest.mark.parametrize(
    "failure",
    [
        by_server("53100"),
        by_file(sqlite3.SQLITE_FULL),
        ConnectionRefusedError(111, "refused"),
        PoolTimeoutError("pool"),
        TimeoutError(),
    ],
)
async def test_every_other_failure_is_unavailable_at_once(failure: Exception) -> None:
    database = FakeDatabase(failure)
    store = opened(database)
    with pytest.raises(StoreUnavailableError) as unavailable:
        await store.read(one)
    assert unavailable.value.__cause__ is failure
    assert database.n_attempts == 1


async def test_a_database_that_hangs_is_unavailable_within_the_timeout() -> None:
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    with pytest.raises(StoreUnavailableError, match="does not answer within 5 s"):
        await opened(FakeDatabase(takes_s=1e4)).read(one)
    assert loop.time() - begun_s <= TIMEOUT_S


class Clinging(FakeDatabase):
    """A database whose driver takes its leave of a server that hangs, however long that takes."""

    async def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Hang, twice."""
        try:
            await asyncio.sleep(1e4)
        finally:
            await asyncio.sleep(1e4)
        return await super().write(work)


async def test_a_driver_that_takes_its_leave_is_interrupted_within_the_timeout() -> None:
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        await opened(Clinging()).read(one)
    assert loop.time() - begun_s <= TIMEOUT_S


async def test_a_bug_is_no_outage() -> None:
    with pytest.raises(IntegrityError):
        await opened(FakeDatabase(IntegrityError("", {}, Exception()))).write(one)
    with pytest.raises(ZeroDivisionError):
        await opened(FakeDatabase()).write(lambda _: 1 // 0)


async def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = opened(FakeDatabase(OSError("gone"), OSError("gone")))
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await store.read(one)
    for _ in range(2):
        await store.read(one)
    assert [record.getMessage() for record in caplog.records] == [
        "fake: gone; check that it runs, its address, its access rules and its space",
        "the database is back",
    ]


class FullDatabase(FakeDatabase):
    """A database on a disk that is full: it is read, and a transaction that changes no row succeeds, too."""

    async def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what work returns, unless it has changed something."""
        engine = create_engine("sqlite://")
        METADATA.create_all(engine)
        try:
            with engine.begin() as connection:
                driver = connection.connection.driver_connection
                assert driver is not None
                before = driver.total_changes
                answer = work(connection)
                if driver.total_changes > before and self.failures:
                    raise self.failures[0]
                return answer
        finally:
            engine.dispose()


def claim(connection: Connection) -> bool:
    return add_claim(connection, "c1", 1.0)


async def test_what_can_be_read_or_changes_nothing_does_not_say_that_it_can_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    database = FullDatabase(by_file(sqlite3.SQLITE_FULL))
    store = opened(database)
    writable = [store.is_writable]
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await store.write(claim)
        await store.read(one)
        with pytest.raises(StoreUnavailableError):
            await store.write(one)
        writable.append(store.is_writable)
    database.failures.clear()
    for answer in (store.read(one), store.write(claim)):
        assert await answer
        writable.append(store.is_writable)
    assert writable == [True, False, False, False, True]
    assert [record.getMessage() for record in caplog.records] == [
        (
            "the database cannot be written: fake: database is locked; "
            "check that it runs, its address, its access rules and its space"
        ),
        "the database is back: it can be written again",
    ]


async def test_a_check_writes_where_the_last_write_failed() -> None:
    database = FullDatabase(by_file(sqlite3.SQLITE_FULL))
    db = Repositories(opened(database), LearningConfig())
    await db.trials.check()
    with pytest.raises(StoreUnavailableError):
        await db.store.write(claim)
    with pytest.raises(StoreUnavailableError, match="check that it runs"):
        await db.trials.check()
    database.failures.clear()
    await db.trials.check()


class LateDatabase(FakeDatabase):
    """A database with its tables, which cannot be connected to at first."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = StoreUnavailableError("nothing listens")
        self.n_open = 0

    def connect(self) -> "LateDatabase":
        """Return this database."""
        if self.error is not None:
            raise self.error
        self.n_open += 1
        return self

    async def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return that the tables are there, or what work finds."""
        return cast("Answer", True) if work == MIGRATIONS.is_current else await super().read(work)

    async def close(self) -> None:
        """Count the ends."""
        self.n_open -= 1


async def test_until_the_database_is_there_everything_fails_as_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    database = LateDatabase()
    store = Store(database.connect, timeout_s=TIMEOUT_S)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(store.keep_open())
        await store.tried.wait()
        await asyncio.sleep(300)
        with pytest.raises(StoreUnavailableError, match="nothing listens"):
            await store.write(claim)
        assert not store.is_open
        assert len(caplog.records) == 1
        database.error = None
        await asyncio.sleep(11)
        assert await store.write(claim)
        assert (store.is_open, database.n_open) == (True, 1)
        task.cancel()
    assert database.n_open == 0


async def test_a_database_of_a_newer_version_is_fatal() -> None:
    database = LateDatabase()
    database.error = StoreVersionError("made by a newer version")
    with pytest.raises(StoreVersionError):
        await Store(database.connect, timeout_s=TIMEOUT_S).keep_open()
