"""The server of the HTTP API: where it is served, and what is still answered when it ends."""

import asyncio
import logging
import socket

import aiohttp
import pytest

from policies.service.config import HttpConfig
from policies.service.http.app import served
from publishers.shared import http_server
from tests.live.conftest import eventually
from tests.policies.service.http.api_client import ASK, NOW_S, TRIALS, asking
from tests.policies.service.memory_store import MemoryTrials

pytestmark = pytest.mark.live


async def test_what_is_being_answered_is_answered_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SHUTDOWN_TIMEOUT_S", 30.0)
    memory = MemoryTrials()
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session:
        async with served(memory.trials, memory.jobs, http=HttpConfig(port=0), clock_s=lambda: NOW_S) as url:
            memory.database.opened.clear()
            task = tasks.create_task(_status(session, f"{url}{TRIALS}"))
            await eventually(lambda: memory.database.n_begun)
            asyncio.get_running_loop().call_later(0.1, memory.database.opened.set)
        assert await task == 200


async def test_what_hangs_does_not_hold_up_the_end_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SHUTDOWN_TIMEOUT_S", 0.05)
    memory = MemoryTrials()
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session, asyncio.timeout(30):
        async with served(memory.trials, memory.jobs, http=HttpConfig(port=0), clock_s=lambda: NOW_S) as url:
            memory.database.opened.clear()
            task = tasks.create_task(_status(session, f"{url}{TRIALS}"))
            await eventually(lambda: memory.database.n_begun)
        assert await task == 0


async def test_an_address_that_is_taken_is_logged_and_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = HttpConfig(port=taken.getsockname()[1])
        async with served(MemoryTrials().trials, MemoryTrials().jobs, http=config, clock_s=lambda: NOW_S) as url:
            assert url == ""
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the HTTP API: not served" in caplog.text


async def test_port_minus_one_serves_nothing() -> None:
    async with served(
        MemoryTrials().trials, MemoryTrials().jobs, http=HttpConfig(port=-1), clock_s=lambda: NOW_S
    ) as url:
        assert url == ""


async def test_ipv6_is_served() -> None:
    async with asking(MemoryTrials(), host="::1") as ask:
        assert ask.authority.startswith("[::1]:")
        assert (await ask("POST", TRIALS, ASK)).status == 200


async def _status(session: aiohttp.ClientSession, url: str) -> int:
    """Return the status of an answer; 0 where the connection ends without one."""
    try:
        async with session.post(url, json=ASK) as response:
            return response.status
    except aiohttp.ServerDisconnectedError:
        return 0
