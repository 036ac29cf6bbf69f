"""A scripted server for tests of the HTTP client, and a secret that no message may show."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec import Struct

from policies.providers.base import SignalError
from policies.providers.http import HttpClient
from publishers.shared.files.secret_file import Secret
from tests.policies.providers.fakes.api import FakeApi

TOKEN = "t0k/en+of=mine"


class Shape(Struct):
    """The JSON that the tests request."""

    value: int


class ScriptedApi(FakeApi):
    """Answers by a function of the request and its number."""

    def __init__(self, reply: Callable[[web.Request, int], web.StreamResponse | None]) -> None:
        super().__init__()
        self.reply = reply

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return the scripted answer; hang on None."""
        answer = self.reply(request, len(self.requests))
        if answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    api: ScriptedApi
    source: HttpClient

    async def get(self, path: str = "/v", **arguments: Any) -> bytes:  # noqa: ANN401 — any argument of get
        return await self.source.get(f"{self.api.url}{path}", **arguments)

    async def read(self, path: str = "/v") -> Shape:
        return await self.source.get_json(f"{self.api.url}{path}", Shape)


@asynccontextmanager
async def asking(
    reply: Callable[[web.Request, int], web.StreamResponse | None], *, timeout_s: float = 20.0
) -> AsyncIterator[Case]:
    """Serve, and yield a client with a secret that no message may show."""
    async with ScriptedApi(reply).running() as api, aiohttp.ClientSession() as session:
        yield Case(api=api, source=HttpClient(session, name="here", secrets=[Secret(TOKEN)], timeout_s=timeout_s))


async def error_of(reply: Callable[[web.Request, int], web.StreamResponse | None], path: str = "/v") -> SignalError:
    """Return the error that an answer raises."""
    async with asking(reply) as case:
        with pytest.raises(SignalError) as caught:
            await case.read(path)
    return caught.value


def answering(**arguments: Any) -> Callable[[web.Request, int], web.StreamResponse]:  # noqa: ANN401 — of a response
    return lambda _, __: web.Response(**arguments)
