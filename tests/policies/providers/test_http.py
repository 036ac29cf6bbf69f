"""The HTTP client of the providers, against a real server: requests, time-outs, caching, errors, clocks, redirects."""

import asyncio
import gzip
import logging

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from policies.providers.base import (
    SignalDataError,
    SignalError,
    SignalLimitedError,
    SignalRefusedError,
    SignalUnavailableError,
)
from policies.providers.http import MAX_BODY_BYTES, MAX_CACHED, MAX_CACHED_BYTES, HttpClient, _leaves_server
from tests.policies.providers.fakes.api import NGINX_403
from tests.policies.providers.http_bench import TOKEN, ScriptedApi, answering, asking, error_of


async def test_an_answer_is_decoded_and_unknown_fields_are_ignored() -> None:
    async with asking(answering(text='{"value": 3, "news": [1]}')) as case:
        assert (await case.read()).value == 3


async def test_parameters_headers_and_user_agent_are_sent() -> None:
    async with asking(answering(text="")) as case:
        await case.get("/v?a=1", params={"b": "x/y +z"}, headers={"auth-token": TOKEN})
        await case.get(params=[("f", "one"), ("f", "two")])
        first, second = case.api.requests
    assert first.query == {"a": "1", "b": "x/y +z"}
    assert first.headers["auth-token"] == TOKEN
    assert first.headers["User-Agent"].startswith("gridchase (+https://")
    assert "If-None-Match" not in second.headers


async def test_a_silent_server_times_out() -> None:
    async with asking(lambda _, __: None, timeout_s=0.05) as case:
        with pytest.raises(SignalUnavailableError, match=r"^here: no answer in 0\.05 s$"):
            async with asyncio.timeout(20.0):
                await case.get()


async def test_the_time_out_includes_the_last_byte() -> None:
    class Slow(ScriptedApi):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": "9"})
            await response.prepare(request)
            await response.write(b"12")
            await asyncio.Event().wait()
            raise AssertionError

    async with Slow(answering()).running() as api, aiohttp.ClientSession() as session:
        with pytest.raises(SignalUnavailableError, match=r"no answer in 0\.05 s"):
            await HttpClient(session, name="here", timeout_s=0.05).get(api.url)


async def test_a_broken_connection_is_unavailable() -> None:
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
async def test_an_unchanged_answer_is_not_sent_again(given: dict[str, str], asked_with: dict[str, str]) -> None:
    def reply(request: web.Request, number: int) -> web.Response:
        if number < 3 and any(request.headers.get(key) == value for key, value in asked_with.items()):
            return web.Response(status=304)
        return web.Response(text=f"body {number}", headers=given)

    async with asking(reply) as case:
        assert [await case.get() for _ in range(3)] == [b"body 1", b"body 1", b"body 3"]
        assert await case.get(params={"zone": "another"}) == b"body 4"
        kept = [{key: request.headers.get(key) for key in asked_with} for request in case.api.requests]
    assert kept == [dict.fromkeys(asked_with), asked_with, asked_with, dict.fromkeys(asked_with)]


async def test_a_304_without_a_cached_answer_is_an_error() -> None:
    error = await error_of(answering(status=304))
    assert isinstance(error, SignalUnavailableError)
    assert error.status == 304


async def test_the_cache_is_bounded() -> None:
    def reply(request: web.Request, _: int) -> web.Response:
        n_bytes = MAX_CACHED_BYTES + 1 if request.path == "/long" else 1
        return web.Response(body=b"x" * n_bytes, headers={"ETag": '"v1"'})

    paths = ["/long", *[f"/{number}" for number in range(MAX_CACHED + 1)]]
    async with asking(reply) as case:
        for path in (*paths, "/long", "/1", "/0"):
            await case.get(path)
        conditional = [request.path for request in case.api.requests if "If-None-Match" in request.headers]
    assert conditional == ["/1"], "/0 was pushed out, /long was never kept"


@pytest.mark.parametrize("packed", [False, True])
async def test_an_oversized_answer_is_refused(*, packed: bool) -> None:
    body, headers = b" " * (MAX_BODY_BYTES + 1), {}
    if packed:
        body, headers = gzip.compress(body), {"Content-Encoding": "gzip"}
    error = await error_of(answering(body=body, headers=headers))
    assert isinstance(error, SignalDataError)
    assert "the answer is longer than 8 MiB" in str(error)


@pytest.mark.parametrize(
    ("retry_after", "wanted_s"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Sun, 25 Oct 2026 12:00:30 GMT", 30.0),
        ("Sun, 25 Oct 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_relative_to_the_server_s_clock(
    status: int, retry_after: str, wanted_s: float | None
) -> None:
    headers = {"Retry-After": retry_after, "Date": "Sun, 25 Oct 2026 12:00:00 GMT"}
    error = await error_of(answering(status=status, headers=headers))
    assert error.retry_after_s == wanted_s


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, SignalRefusedError),
        (401, SignalRefusedError),
        (403, SignalRefusedError),
        (404, SignalRefusedError),
        (408, SignalUnavailableError),
        (422, SignalRefusedError),
        (429, SignalLimitedError),
        (500, SignalUnavailableError),
        (502, SignalUnavailableError),
        (503, SignalUnavailableError),
    ],
)
async def test_each_status_raises_its_own_error(status: int, kind: type[SignalError]) -> None:
    error = await error_of(answering(status=status, text="the source said so"))
    assert type(error) is kind
    assert error.status == status
    assert str(error).startswith(f"here: HTTP {status}: 'the source said so'")


async def test_a_401_to_an_accepted_token_is_a_rate_limit() -> None:
    replies = {1: 401, 2: 200, 3: 401}
    async with asking(lambda _, number: web.Response(status=replies[number], text='{"value": 1}')) as case:
        with pytest.raises(SignalRefusedError, match="the token is wrong, or missing"):
            await case.read()
        await case.read()
        with pytest.raises(SignalLimitedError, match="accepted before: too many requests, or it was revoked"):
            await case.read()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (NGINX_403, "'403 Forbidden nginx'"),
        ('{"title": "Not valid", "detail": "No such zone"}', "'Not valid: No such zone'"),
        (
            '{"type": "about:blank", "title": "Not valid", "errors": {"zone": ["is missing"]}}',
            "'Not valid: is missing'",
        ),
        ('{"error": "no such zone"}', '\'{"error": "no such zone"}\''),
        ('{"title": ["odd"]}', '\'{"title": ["odd"]}\''),
        ("long " * 99, "long …'"),
        (b"\xff\xfe", "'��'"),
        (b'{"errors": {"a": ' + b"[" * 100_000, "[[…'"),
        ("", "''"),
    ],
)
async def test_errors_quote_the_source_without_markup(body: str | bytes, words: str) -> None:
    content = body if isinstance(body, bytes) else body.encode()
    error = await error_of(answering(status=400, body=content))
    assert words in str(error)
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>down</html>", "malformed.*the answer begins 'down'"),
        (b'{"value": 1, "more": ' + b"[" * 100_000, "recursion depth"),
        (b'{"value": "x"}', r"Expected `int`, got `str` - at `\$.value`"),
        (b'{"value": 1', "truncated"),
        (b"\xff", "here: "),
        (b"", "Expected `object`, got `array`; the answer begins ''"),
    ],
)
async def test_an_unexpected_answer_is_quoted(body: bytes, words: str) -> None:
    async with asking(answering(body=body)) as case:
        with pytest.raises(SignalDataError, match=words):
            await case.read()


async def test_no_content_is_an_empty_list() -> None:
    async with asking(answering(status=204)) as case:
        assert await case.source.get_json(case.api.url, list[int]) == []


@pytest.mark.parametrize("url", ["http://localhost:99999", "http://[::1", "http://\u2603..de"])
async def test_an_invalid_url_is_refused(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(SignalRefusedError, match=r"^here: invalid URL: "):
            await HttpClient(session, name="here").get(url)


@pytest.mark.parametrize("status", [200, 401, 403, 429, 500])
@pytest.mark.parametrize("n_before", [0, 150, 155, 4_090])
async def test_a_token_that_the_source_repeats_is_masked(
    status: int, n_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    forms = f"{TOKEN} {URL('http://a').update_query(t=TOKEN)}"
    filler = "<br>" * (n_before // 4) if n_before > 1_000 else "." * n_before
    error = await error_of(answering(status=status, text=f"{filler}{forms}"))
    assert "t0k" not in f"{error!r}{error}{caplog.text}"


DATED_S = 1_792_929_600.0
"""2026-10-25T12:00Z."""


@pytest.mark.parametrize(
    ("headers", "later_s", "refused"),
    [
        ({}, 3_601.0, True),
        ({}, -3_601.0, True),
        ({}, 3_600.0, False),
        ({}, -3_600.0, False),
        ({"Age": "7200"}, 7_200.0, False),
        ({"Age": "7200"}, 0.0, True),
        ({"Age": "old"}, 0.0, False),
        ({"Date": "yesterday"}, 1e6, False),
    ],
)
@pytest.mark.parametrize("status", [200, 304])
async def test_a_wrong_server_clock_is_refused(
    status: int, headers: dict[str, str], later_s: float, *, refused: bool
) -> None:
    dated = {"Date": "Sun, 25 Oct 2026 12:00:00 GMT", "ETag": '"v1"'} | headers

    def reply(_: web.Request, number: int) -> web.Response:
        return web.Response(status=status if number > 1 else 200, headers=dated)

    async with asking(reply) as case:
        await case.get()
        if not refused:
            await case.get(now_s=DATED_S + later_s)
            return
        with pytest.raises(
            SignalDataError, match=r"here: its clock says 2026-10-25T1.:00Z, and here it is .* wrong by"
        ):
            await case.get(now_s=DATED_S + later_s)


async def test_a_refusal_counts_before_a_wrong_clock() -> None:
    async with asking(answering(status=429, headers={"Date": "Sun, 25 Oct 2026 12:00:00 GMT"})) as case:
        with pytest.raises(SignalLimitedError):
            await case.get(now_s=0.0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_within_the_server_is_followed_with_the_token(status: int) -> None:
    def reply(request: web.Request, _: int) -> web.Response:
        if request.path == "/v":
            return web.Response(status=status, headers={"Location": "/w?page=2"})
        return web.Response(text='{"value": 5}')

    async with asking(reply) as case:
        await case.get(headers={"auth-token": TOKEN})
        followed = case.api.requests[1]
    assert (followed.path, followed.query, followed.headers["auth-token"]) == ("/w", {"page": "2"}, TOKEN)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_redirect_to_another_server_gets_no_token_and_is_refused(host: str) -> None:
    async with ScriptedApi(answering(text="caught")).running() as other:
        port = URL(other.url).port

        def reply(_: web.Request, __: int) -> web.Response:
            return web.Response(status=302, headers={"Location": f"http://{host}:{port}/{TOKEN}?token={TOKEN}"})

        error = await error_of(reply)
    assert isinstance(error, SignalDataError)
    assert f"has moved to http://{host}:{port}/…; set `url` if that is right" in str(error)
    assert other.requests == []


@pytest.mark.parametrize(
    ("there", "elsewhere"),
    [
        ("https://a.org/w", False),
        ("http://a.org/w", True),
        ("https://a.org:444/w", True),
        ("https://b.org/v", True),
        ("https://a.org.evil.net/v", True),
        ("ftp://a.org/v", True),
    ],
)
def test_https_redirects_stay_on_https_host_and_port(there: str, *, elsewhere: bool) -> None:
    assert _leaves_server(URL("https://a.org/v"), URL(there)) is elsewhere


def test_http_may_redirect_to_https() -> None:
    assert not _leaves_server(URL("http://a.org/v"), URL("https://a.org/v"))
    assert not _leaves_server(URL("http://a.org:8080/v"), URL("https://a.org/v"))


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Location": "/v"}, "more than 3 redirects"),
        ({}, "more than 3 redirects"),
        ({"Location": "http://[half"}, r"has moved to http://\[half"),
        ({"Location": "mailto:a@b"}, "has moved to mailto:a@b"),
    ],
)
async def test_an_invalid_redirect_is_an_error(headers: dict[str, str], words: str) -> None:
    async with asking(answering(status=302, headers=headers)) as case:
        with pytest.raises(SignalDataError, match=words):
            await case.get()
        assert len(case.api.requests) <= 4
