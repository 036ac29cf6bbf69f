"""The HTTP client of the providers and redirects: it follows those within a server, and takes no secret elsewhere."""

import pytest
from aiohttp import web
from yarl import URL

from policies.providers.base import SignalDataError
from policies.providers.http import _leads_elsewhere
from tests.policies.providers.http_bench import TOKEN, ScriptedApi, answering, asking, error_of

pytestmark = pytest.mark.live


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
async def test_a_redirect_to_another_server_gets_no_token_and_is_told_without_it(host: str) -> None:
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
def test_https_is_not_left_for_http_another_host_or_another_port(there: str, *, elsewhere: bool) -> None:
    assert _leads_elsewhere(URL("https://a.org/v"), URL(there)) is elsewhere


def test_http_may_become_https() -> None:
    assert not _leads_elsewhere(URL("http://a.org/v"), URL("https://a.org/v"))
    assert not _leads_elsewhere(URL("http://a.org:8080/v"), URL("https://a.org/v"))


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Location": "/v"}, "without end"),
        ({}, "without end"),
        ({"Location": "http://[half"}, r"has moved to http://\[half"),
        ({"Location": "mailto:a@b"}, "has moved to mailto:a@b"),
    ],
)
async def test_a_redirect_that_leads_nowhere_is_told(headers: dict[str, str], words: str) -> None:
    async with asking(answering(status=302, headers=headers)) as case:
        with pytest.raises(SignalDataError, match=words):
            await case.get()
        assert len(case.api.requests) <= 4
