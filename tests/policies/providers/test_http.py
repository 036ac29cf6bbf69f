"""The HTTP client of the providers, against a real server: what it asks, how long it waits, and what it remembers."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from policies.providers.base import SignalUnavailableError
from policies.providers.http import MAX_REMEMBERED, MAX_REMEMBERED_BYTES, HttpSource
from tests.policies.providers.http_bench import TOKEN, ScriptedApi, answering, asking, error_of

pytestmark = pytest.mark.live


async def test_a_good_answer_is_decoded_and_what_is_not_known_in_it_ignored() -> None:
    async with asking(answering(text='{"value": 3, "news": [1]}')) as case:
        assert (await case.read()).value == 3


async def test_parameters_and_headers_are_sent_and_say_who_asks() -> None:
    async with asking(answering(text="")) as case:
        await case.get("/v?a=1", params={"b": "x/y +z"}, headers={"auth-token": TOKEN})
        await case.get(params=[("f", "one"), ("f", "two")])
        first, second = case.api.requests
    assert first.query == {"a": "1", "b": "x/y +z"}
    assert first.headers["auth-token"] == TOKEN
    assert first.headers["User-Agent"].startswith("gridchase (+https://")
    assert "If-None-Match" not in second.headers


async def test_a_server_that_does_not_answer_is_waited_for_no_longer_than_was_said() -> None:
    async with asking(lambda _, __: None, timeout_s=0.05) as case:
        with pytest.raises(SignalUnavailableError, match=r"^here: no answer in 0\.05 s$"):
            async with asyncio.timeout(20.0):
                await case.get()


async def test_the_time_counts_to_the_last_byte() -> None:
    class Slow(ScriptedApi):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": "9"})
            await response.prepare(request)
            await response.write(b"12")
            await asyncio.Event().wait()
            raise AssertionError

    async with Slow(answering()).running() as api, aiohttp.ClientSession() as session:
        with pytest.raises(SignalUnavailableError, match=r"no answer in 0\.05 s"):
            await HttpSource(session, name="here", timeout_s=0.05).get(api.url)


async def test_a_connection_that_breaks_off_is_unavailable() -> None:
    def hang_up(request: web.Request, _: int) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    error = await error_of(hang_up, f"/v?token={TOKEN}")
    assert isinstance(error, SignalUnavailableError)
    assert "cannot be reached at 127.0.0.1" in str(error)
    assert "t0k" not in str(error)


@pytest.mark.parametrize(
    ("given", "asked_with"),
    [
        ({"ETag": '"v1"'}, {"If-None-Match": '"v1"'}),
        (
            {"Last-Modified": "Sun, 25 Oct 2026 11:00:00 GMT"},
            {"If-Modified-Since": "Sun, 25 Oct 2026 11:00:00 GMT"},
        ),
    ],
)
async def test_what_has_not_changed_is_not_sent_again(given: dict[str, str], asked_with: dict[str, str]) -> None:
    def reply(request: web.Request, number: int) -> web.Response:
        if number < 3 and any(request.headers.get(key) == value for key, value in asked_with.items()):
            return web.Response(status=304)
        return web.Response(text=f"body {number}", headers=given)

    async with asking(reply) as case:
        assert [await case.get() for _ in range(3)] == [b"body 1", b"body 1", b"body 3"]
        assert await case.get(params={"zone": "another"}) == b"body 4"
        kept = [{key: request.headers.get(key) for key in asked_with} for request in case.api.requests]
    assert kept == [dict.fromkeys(asked_with), asked_with, asked_with, dict.fromkeys(asked_with)]


async def test_an_answer_that_is_not_there_cannot_be_unchanged() -> None:
    error = await error_of(answering(status=304))
    assert isinstance(error, SignalUnavailableError)
    assert error.status == 304


async def test_few_answers_are_remembered_and_no_long_ones() -> None:
    def reply(request: web.Request, _: int) -> web.Response:
        n_bytes = MAX_REMEMBERED_BYTES + 1 if request.path == "/long" else 1
        return web.Response(body=b"x" * n_bytes, headers={"ETag": '"v1"'})

    paths = ["/long", *[f"/{number}" for number in range(MAX_REMEMBERED + 1)]]
    async with asking(reply) as case:
        for path in (*paths, "/long", "/1", "/0"):
            await case.get(path)
        conditional = [request.path for request in case.api.requests if "If-None-Match" in request.headers]
    assert conditional == ["/1"], "/0 was pushed out, /long was never kept"
