"""The HTTP client of the providers and answers that are none: what it makes of each, tells of it, and hides."""

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
from policies.providers.http import MAX_BODY_BYTES, HttpSource
from tests.policies.providers.fake_api import NGINX_403
from tests.policies.providers.http_bench import TOKEN, answering, asking, error_of

pytestmark = pytest.mark.live


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_without_measure_is_not_taken_in(*, packed: bool) -> None:
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
async def test_how_long_to_wait_is_read_by_the_clock_of_the_server(
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
async def test_each_status_is_told_as_what_it_means(status: int, kind: type[SignalError]) -> None:
    error = await error_of(answering(status=status, text="the source said so"))
    assert type(error) is kind
    assert error.status == status
    assert str(error).startswith(f"here: HTTP {status}: 'the source said so'")


async def test_a_token_that_was_good_is_not_called_wrong() -> None:
    replies = {1: 401, 2: 200, 3: 401}
    async with asking(lambda _, number: web.Response(status=replies[number], text='{"value": 1}')) as case:
        with pytest.raises(SignalRefusedError, match="the token is wrong, or missing"):
            await case.read()
        await case.read()
        with pytest.raises(SignalLimitedError, match="good before: asked too often, or it was revoked"):
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
async def test_the_words_of_the_source_are_told_and_not_its_markup(body: str | bytes, words: str) -> None:
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
async def test_what_was_not_asked_for_is_told_with_its_beginning(body: bytes, words: str) -> None:
    async with asking(answering(body=body)) as case:
        with pytest.raises(SignalDataError, match=words):
            await case.read()


async def test_no_content_is_an_empty_list() -> None:
    async with asking(answering(status=204)) as case:
        assert await case.source.get_json(case.api.url, list[int]) == []


@pytest.mark.parametrize("url", ["http://localhost:99999", "http://[::1", "http://\u2603..de"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(SignalRefusedError, match=r"^here: its address is none: "):
            await HttpSource(session, name="here").get(url)


@pytest.mark.parametrize("status", [200, 401, 403, 429, 500])
@pytest.mark.parametrize("n_before", [0, 150, 155, 4_090])
async def test_a_source_that_repeats_the_token_does_not_make_us_show_it(
    status: int, n_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    forms = f"{TOKEN} {URL('http://a').update_query(t=TOKEN)}"
    filler = "<br>" * (n_before // 4) if n_before > 1_000 else "." * n_before
    error = await error_of(answering(status=status, text=f"{filler}{forms}"))
    assert "t0k" not in f"{error!r}{error}{caplog.text}"
