"""Base of the fake APIs: a real HTTP server with some grid data, and faults as real servers have them."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from enum import StrEnum
from typing import Final, Self

from aiohttp import web

CASE_NOW_S: Final = 1_792_929_000.0
"""2026-10-25T11:50Z: the day on which Europe's summer time ends, so that its local day has 25 hours."""
NGINX_403 = "<html>\r\n<head><title>403 Forbidden</title></head>\r\n<body><center>nginx</center></body>\r\n</html>\r\n"
HARMLESS_HEADERS = frozenset({"Host", "User-Agent", "Accept", "Accept-Encoding"})


class Fault(StrEnum):
    """How a request fails, before the API looks at it."""

    UNAUTHORIZED = "401, with what was sent in the answer"
    FORBIDDEN = "403 with a page of HTML"
    TOO_MANY = "429 with Retry-After: 120"
    BROKEN = "500"
    TRUNCATED = "a good answer that ends in the middle"
    NOT_DATA = "200 with a page of HTML"
    SLOW = "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the server saw it."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(kw_only=True)
class Grid:
    """What the source knows, in the unit of the signal: values by start [Unix s]; None for an explicit null.

    `zone` is the zone in its answers; None for the requested one.
    """

    measured: dict[float, float | None] = field(default_factory=dict)
    expected: dict[float, float | None] = field(default_factory=dict)
    updated_at_s: float = 0.0
    zone: str | None = None


class FakeApi:
    """The server. A fake of one API inherits it and implements `answer`.

    Attributes:
        grid: what it knows; tests change it.
        fault: how every request fails, or None; tests change it.
        requests: all requests so far.
        url: its address, without a slash at the end, while it runs.
        now_s: its clock, in the Date of every answer [Unix s]; None for the real time.
    """

    def __init__(self) -> None:
        self.grid = Grid()
        self.fault: Fault | None = None
        self.requests: list[Request] = []
        self.url = ""
        self.now_s: float | None = CASE_NOW_S

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return the answer of the API to a request that does not fail."""
        raise NotImplementedError

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Serve on a free port of 127.0.0.1."""
        runner = web.ServerRunner(web.Server(self._serve, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port, *_ = runner.addresses[0]
            self.url = f"http://{host}:{port}"
            yield self
        finally:
            await runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._respond(request)
        if self.now_s is not None:
            response.headers.setdefault("Date", formatdate(self.now_s, usegmt=True))
        return response

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = Request(path=request.path, query=dict(request.query), headers=dict(request.headers))
        self.requests.append(seen)
        # web.Server hands out a BaseRequest; what `answer` needs of it (path, query, headers) is the same.
        good = self.answer(request)  # type: ignore[arg-type]
        if self.fault is None:
            return await good
        if self.fault is Fault.TRUNCATED:
            return await _cut(await good)
        good.close()
        return await _failed(self.fault, seen)


async def _failed(fault: Fault, seen: Request) -> web.StreamResponse:
    if fault is Fault.UNAUTHORIZED:
        # Secrets first, since only the beginning of a message is quoted.
        sent = [value for key, value in seen.headers.items() if key not in HARMLESS_HEADERS]
        said = json.dumps({"sent": [*sent, *seen.query.values(), seen.path], "error": "Invalid auth-token"})
        return web.Response(status=401, text=said, content_type="application/json")
    if fault is Fault.TOO_MANY:
        return web.json_response({"error": "too many requests"}, status=429, headers={"Retry-After": "120"})
    if fault is Fault.BROKEN:
        return web.Response(status=500, text="internal error")
    if fault is Fault.SLOW:
        await asyncio.Event().wait()
    status = 403 if fault is Fault.FORBIDDEN else 200
    return web.Response(status=status, text=NGINX_403, content_type="text/html")


async def _cut(good: web.StreamResponse) -> web.Response:
    """Return the first half of an answer as if it were the whole."""
    assert isinstance(good, web.Response)
    assert isinstance(good.body, bytes)
    return web.Response(body=good.body[: len(good.body) // 2], content_type=good.content_type)


def iso(time_s: float, form: str = "%Y-%m-%dT%H:%M:%S.000Z") -> str:
    """Return a Unix time in UTC as an API writes it."""
    return datetime.fromtimestamp(time_s, UTC).strftime(form)


def unix_s(text: str) -> float:
    """Return the Unix time of an ISO 8601 time; UTC if it has no offset."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
