"""The HTTP server: where it listens, what is still answered when it ends, deadlines, limits and problems."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web

from publishers.shared.http import server
from publishers.shared.http.problems import ProblemError
from publishers.shared.http.server import (
    ConcurrencyLimit,
    HttpServer,
    Route,
    Stream,
    is_loopback,
    json_response,
)
from tests.live.conftest import eventually


class Site:
    """A server with a few routes, whose `/wait` waits for an event."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, limit: ConcurrencyLimit | None = None) -> None:
        self.n_begun = 0
        self.go_on = asyncio.Event()
        self.on_begin: Callable[[], None] = lambda: None
        self.counted: list[tuple[str, int]] = []
        routes = [
            Route(name="wait", path="/wait", handle=self._wait, timeout_s=10.0, limit=limit),
            Route(name="slow", path="/slow", handle=self._wait, timeout_s=0.05),
            Route(name="large", path="/large", handle=self._large, timeout_s=0.2),
            Route(name="endless", path="/endless", handle=self._endless, timeout_s=60.0),
            Route(name="broken", path="/broken", handle=self._break),
            Route(name="stream", path="/stream", handle=self._stream),
            Route(name="write", method="POST", path="/write", handle=self._write),
        ]
        self.server = HttpServer(
            routes,
            host=host,
            port=port,
            title="the test",
            count=lambda name, status: self.counted.append((name, status)),
        )

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Serve, and return a client."""
        async with self.server.serving() as url, aiohttp.ClientSession(url) as session:
            yield session

    async def _wait(self, _request: web.Request, _client: str) -> web.Response:
        self.n_begun += 1
        self.on_begin()
        await self.go_on.wait()
        return json_response({"done": True})

    async def _endless(self, _request: web.Request, _client: str) -> Stream:
        async def pieces() -> AsyncIterator[bytes]:
            self.n_begun += 1
            while True:
                yield bytes(1 << 20)

        return Stream(pieces())

    async def _large(self, _request: web.Request, _client: str) -> web.Response:
        self.n_begun += 1
        return web.Response(body=bytes(64 << 20))

    async def _break(self, _request: web.Request, _client: str) -> web.Response:
        raise KeyError("secret detail")

    async def _write(self, _request: web.Request, _client: str) -> web.Response:
        return json_response({})

    async def _stream(self, _request: web.Request, _client: str) -> Stream:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"["
            await self.go_on.wait()
            yield b"]"

        return Stream(pieces())


async def _status(session: aiohttp.ClientSession, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Return the status of an answer, and the reason of a problem; 0 where the connection ends without one."""
    try:
        async with session.request(method, path, headers=headers) as response:
            body = await response.read()
            is_problem = response.content_type == "application/problem+json"
            return response.status, msgspec.json.decode(body)["reason"] if is_problem else ""
    except aiohttp.ClientConnectionError:
        return 0, ""


async def test_what_is_being_answered_is_answered_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SHUTDOWN_TIMEOUT_S", 30.0)
    site = Site()
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session:
        async with site.server.serving() as url:
            task = tasks.create_task(_status(session, f"{url}/wait"))
            await eventually(lambda: site.n_begun)
            asyncio.get_running_loop().call_later(0.1, site.go_on.set)
        assert await task == (200, "")


async def test_what_hangs_does_not_hold_up_the_end_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SHUTDOWN_TIMEOUT_S", 0.05)
    site = Site()
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session, asyncio.timeout(30):
        async with site.server.serving() as url:
            task = tasks.create_task(_status(session, f"{url}/wait"))
            await eventually(lambda: site.n_begun)
        assert await task == (0, "")


@pytest.mark.live
async def test_an_address_that_is_taken_is_logged_and_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with Site(port=taken.getsockname()[1]).server.serving() as url:
            assert url == ""
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the test: not served" in caplog.text


async def test_port_minus_one_serves_nothing() -> None:
    async with Site(port=-1).server.serving() as url:
        assert url == ""


async def test_an_address_is_free_again_after_the_end() -> None:
    async with Site().server.serving() as url:
        port = int(url.rpartition(":")[2])
    for _ in range(2):
        async with Site(port=port).server.serving() as again:
            assert again == url


async def test_ipv6_is_served() -> None:
    site = Site(host="::1")
    site.go_on.set()
    async with site.server.serving() as url, aiohttp.ClientSession(url) as session:
        assert url.startswith("http://[::1]:")
        assert site.server.is_local
        assert await _status(session, "/wait") == (200, "")


@pytest.mark.parametrize(
    ("address", "answer"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("10.0.0.1", False), ("x", False)],  # noqa: S104
)
def test_loopback_is_known(address: str, answer: bool) -> None:
    assert is_loopback(address) is answer


async def test_every_answer_is_counted_under_the_name_of_its_route() -> None:
    site = Site()
    site.go_on.set()
    async with site.asked() as session:
        answers = [
            await _status(session, "/wait"),
            await _status(session, "/wait", "HEAD"),
            await _status(session, "/wait", "POST"),
            await _status(session, "/nowhere"),
            await _status(session, "/slow", Host="evil.example"),
            await _status(session, "/write", "POST", Origin="http://evil.example"),
        ]
    reasons = ["", "", "method_not_allowed", "not_found", "foreign_host", "foreign_origin"]
    assert [reason for _, reason in answers] == reasons
    assert site.counted == [
        ("wait", 200),
        ("wait", 200),
        ("none", 405),
        ("none", 404),
        ("slow", 403),
        ("write", 403),
    ]


async def test_a_handler_that_takes_too_long_is_given_up() -> None:
    async with Site().asked() as session:
        assert await _status(session, "/slow") == (503, "timeout")


async def test_an_error_of_a_handler_shows_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    async with Site().asked() as session, session.get("/broken") as response:
        assert response.status == 500
        assert "secret" not in await response.text()
    assert [record.message for record in caplog.records] == ["GET /broken failed"]
    assert "secret detail" in caplog.text


async def test_requests_beyond_the_limit_are_refused_at_once() -> None:
    site = Site(limit=ConcurrencyLimit(n_at_once=1, n_waiting=1))
    async with site.asked() as session, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(_status(session, "/wait"))
        await eventually(lambda: site.n_begun == 1)
        others = [tasks.create_task(_status(session, "/wait")) for _ in range(2)]
        await eventually(lambda: any(task.done() for task in others))
        assert site.n_begun == 1
        site.go_on.set()
        assert sorted([await first, *[await task for task in others]]) == [(200, ""), (200, ""), (503, "busy")]


async def test_a_slot_that_is_left_is_free_again() -> None:
    limit = ConcurrencyLimit(n_at_once=1, n_waiting=0)
    for _ in range(3):
        async with limit.slot():
            with pytest.raises(ProblemError, match="ask again"):
                async with limit.slot():
                    pass


async def test_a_stream_may_take_as_long_again_as_its_beginning() -> None:
    site = Site()
    site.go_on.set()
    async with site.asked() as session, session.get("/stream") as response:
        assert (response.content_type, await response.read()) == ("application/json", b"[]")


async def test_what_is_not_http_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with Site().server.serving() as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /wait HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.split()[1] == b"400"
    assert b"Traceback" not in answer
    assert caplog.records == []


async def test_however_many_ask_at_once_one_request_begins_in_each_turn_of_the_loop() -> None:
    site = Site()
    site.go_on.set()
    n_turns, begun_in = 0, list[int]()
    site.on_begin = lambda: begun_in.append(n_turns)
    async with site.asked() as session, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(_status(session, "/wait")) for _ in range(60)]
        while not all(task.done() for task in asking):
            n_turns += 1
            await asyncio.sleep(0)
    assert len(begun_in) == len(set(begun_in)) == 60


async def test_garbage_and_half_requests_leave_no_line_and_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    garbage = [
        b"\0" * 4_096,
        b"\x16\x03\x01\x1b[2J\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G" * 20_000,
        b"",
        b"GET /wait",
    ]
    async with site.server.serving() as url:
        host, port = url.removeprefix("http://").split(":")
        for number in range(120):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage[number % len(garbage)])
            writer.close()
            await writer.wait_closed()
        await eventually(lambda: len(site.server._connections) == 0)
    assert caplog.records == []


@pytest.mark.live
@pytest.mark.parametrize("path", ["/large", "/endless"])
async def test_a_client_that_takes_no_answer_is_cut_off(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALL_TIMEOUT_S", 0.2)
    site = Site()
    async with site.server.serving() as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as deaf:
            deaf.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(
                deaf, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            await eventually(lambda: site.n_begun)
            await eventually(lambda: len(site.server._connections) == 0)
