"""A desk whose database comes late: unavailable until then, and one word in the log."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from policies.service.app import LateDesk
from policies.service.errors import StoreUnavailableError, StoreVersionError
from tests.policies.service.memory_desk import NOW_S, MemoryDesk


class Database:
    """A database that can be away, or too new."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.is_open = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MemoryDesk]:
        if self.error is not None:
            raise self.error
        self.is_open = True
        try:
            yield MemoryDesk()
        finally:
            self.is_open = False


async def test_until_the_database_is_there_everything_fails_as_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    database = Database(StoreUnavailableError("nothing listens"))
    desk = LateDesk(database.opened)  # type: ignore[arg-type]  # has what is called here
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(desk.hold())
        await desk.tried.wait()
        await asyncio.sleep(300)
        with pytest.raises(StoreUnavailableError, match="nothing listens"):
            await desk.claim("c1", now_s=NOW_S)
        assert len(caplog.records) == 1
        database.error = None
        await asyncio.sleep(11)
        assert await desk.claim("c1", now_s=NOW_S)
        assert desk.is_there
        task.cancel()
    assert not database.is_open


async def test_a_database_of_a_newer_version_is_fatal() -> None:
    desk = LateDesk(Database(StoreVersionError("made by a newer version")).opened)  # type: ignore[arg-type]
    with pytest.raises(StoreVersionError):
        await desk.hold()
