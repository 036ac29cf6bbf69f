"""Where the history of a site is: an SQLite file, or a PostgreSQL database. Both are read beside the writes."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from controller.config import Retention
from controller.history.energy_history.file_store import WRITE_TIMEOUT_S, FileStore, Store
from controller.history.energy_history.history_file import Steadiness, read_history
from controller.history.energy_history.recorder import FILE
from controller.history.energy_history.schema import MIGRATIONS
from controller.history.energy_history.writing import tidy, write_messages
from policies.database.backends import Database, make_database
from policies.database.errors import DatabaseUnavailableError
from publishers.messages.topics import Topics
from publishers.shared.files.disk_thread import DiskThread
from publishers.shared.worker_thread import WorkerThreads

CLIENT: Final = "gridchase web"
MAX_MESSAGES: Final = 1_000
"""Of a transaction of a server, which takes a second or two: what waits after an outage is written in many."""
Result = TypeVar("Result")


class SiteStore(Store, Protocol):
    """A history that is read, too.

    Attributes:
        n_impossible: how many messages were not believed.
    """

    n_impossible: int

    async def read(self, work: Callable[[Connection], Result], *, timeout_s: float) -> Result:
        """Return what `work` finds.

        Raises:
            DatabaseUnavailableError: it cannot be read now.
            DatabaseVersionError: it is of another version.
            OSError: that has taken too long (TimeoutError), or the disk hangs.
        """
        ...


class SqliteStore(FileStore):
    """A file in a directory; readers have a thread and connections of their own.

    Args:
        state_dir: the directory.
        topics: those below the configured root.
        config: how long what is kept.
    """

    def __init__(self, state_dir: Path, *, topics: Topics, config: Retention) -> None:
        super().__init__(state_dir / FILE, topics=topics, config=config, session_s=None)
        self._reader = DiskThread(f"{CLIENT}: read", timeout_s=WRITE_TIMEOUT_S)

    async def read(self, work: Callable[[Connection], Result], *, timeout_s: float) -> Result:
        """Return what `work` finds; SQLite itself ends statements that take too long."""
        async with asyncio.timeout(timeout_s):
            return await self._reader.run(lambda: read_history(Path(self.name), work, timeout_s=timeout_s))


class PostgresStore:
    """A database of a PostgreSQL server, which several processes may share.

    What is written is computed for seconds: a thread with an event loop of its own does that.

    Args:
        url: `postgresql://user@host/name`.
        password: of the user; "": none.
        topics: those below the configured root.
        config: how long what is kept.

    Raises:
        DatabaseUrlError: the URL cannot be used.
    """

    def __init__(self, url: str, *, password: str, topics: Topics, config: Retention) -> None:
        self.n_impossible = 0
        self._connect = partial(make_database, url, client=CLIENT, password=password, timeout_s=WRITE_TIMEOUT_S)
        self._database: Database = self._connect()
        self._reader = DiskThread(f"{CLIENT}: read", timeout_s=WRITE_TIMEOUT_S)
        self._writer = WorkerThreads(f"{CLIENT}: write")
        self._runner = asyncio.Runner()
        self._topics = topics
        self._config = config
        self._is_migrated = False
        self._steadiness = Steadiness()

    @property
    def name(self) -> str:
        """Return the URL, without the password."""
        return self._database.name

    async def write(
        self, messages: Sequence[tuple[str, bytes]], *, now_s: float, on_written: Callable[[int], None]
    ) -> None:
        """Write messages, and tell `on_written` in the thread that does."""
        await self._writer.run(lambda: self._runner.run(self._write_all(messages, now_s, on_written)))

    async def _write_all(
        self, messages: Sequence[tuple[str, bytes]], now_s: float, on_written: Callable[[int], None]
    ) -> None:
        """Write messages, so many at once; once an hour of a steady clock, merge and drop what is old."""
        if not self._is_migrated:
            await self._write(MIGRATIONS.migrate)
            self._is_migrated = True
        for begin in range(0, max(len(messages), 1), MAX_MESSAGES):
            some = messages[begin : begin + MAX_MESSAGES]
            writing = partial(write_messages, messages=some, topics=self._topics, session_s=None, now_s=now_s)
            self.n_impossible += await self._write(writing)
            on_written(begin + len(some))
        if self._steadiness.is_tidying_due(now_s):
            await self._write(partial(tidy, now_s=now_s, config=self._config))

    async def _write(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` returns, once it is committed, within the deadline of one transaction."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                return await self._database.write(work)
        except TimeoutError as error:
            raise DatabaseUnavailableError(f"{self.name}: does not answer in {WRITE_TIMEOUT_S:g} s") from error
        except SQLAlchemyError as error:
            raise DatabaseUnavailableError(f"{self.name}: {_said(error)}") from error

    async def read(self, work: Callable[[Connection], Result], *, timeout_s: float) -> Result:
        """Return what `work` finds, by a thread and a connection of its own: it computes for a second, too."""

        async def find() -> Result:
            database = self._connect()
            try:
                async with asyncio.timeout(timeout_s + 1.0):  # nobody waits any longer
                    return await database.read(work)
            finally:
                await database.close()

        try:
            async with asyncio.timeout(timeout_s):
                return await self._reader.run(lambda: asyncio.run(find()))
        except SQLAlchemyError as error:
            raise DatabaseUnavailableError(f"{self.name}: {_said(error)}") from error

    async def close(self) -> None:
        """Close every connection, in the thread that uses them."""

        def close() -> None:
            with self._runner as runner:
                runner.run(self._database.close())

        await self._writer.run(close)
        self._writer.shutdown()


def _said(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
