"""The HTTP client of the providers: time-outs, conditional requests, bounded answers, an error class for each failure.

One request is one attempt: `policies.providers.poll_schedule` decides when the next one is due.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, TypeVar

import aiohttp
import msgspec
from multidict import CIMultiDictProxy
from yarl import URL

from policies.providers.base import (
    SignalDataError,
    SignalError,
    SignalLimitedError,
    SignalRefusedError,
    SignalUnavailableError,
)
from policies.providers.series import format_iso
from publishers.shared.files.secret_file import Secret

TIMEOUT_S: Final = 20.0
DATE_TOLERANCE_S: Final = 3_600.0
"""A larger difference between the server's clock and ours shows that one of them is wrong."""
MAX_BODY_BYTES: Final = 8 << 20
MAX_REDIRECTS: Final = 3
MAX_CACHED: Final = 8
"""How many answers are cached for conditional requests, per source, and how long each may be."""
MAX_CACHED_BYTES: Final = 1 << 20
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_QUOTE_CHARACTERS: Final = 160
_USER_AGENT: Final = "gridchase (+https://pypi.org/project/gridchase)"

Shape = TypeVar("Shape")
Params = Mapping[str, str] | Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedAnswer:
    tag: str
    since: str
    body: bytes


class _Problem(msgspec.Struct):
    title: str = ""
    detail: str | None = None
    errors: dict[str, list[str]] = msgspec.field(default_factory=dict)


class HttpClient:
    """HTTP client of one provider.

    Args:
        session: shared by all providers; the caller opens and closes it.
        name: the source, for messages.
        secrets: masked in every message.
        timeout_s: how long an answer may take, to its last byte [s].
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        name: str,
        secrets: Sequence[Secret] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.name = name
        self._session = session
        self._secrets = secrets
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._accepted = False
        self._cache: OrderedDict[str, _CachedAnswer] = OrderedDict()

    async def get_json(
        self,
        url: str,
        shape: type[Shape],
        *,
        now_s: float | None = None,
        params: Params = (),
        headers: Mapping[str, str] | None = None,
    ) -> Shape:
        """Return the JSON answer to a GET request as a msgspec type; an empty answer counts as [].

        Raises:
            SignalUnavailableError, SignalLimitedError, SignalRefusedError: see `get`.
            SignalDataError: the answer is not JSON, or not of this shape; or see `get`.
        """
        body = await self.get(url, now_s=now_s, params=params, headers=headers)
        try:
            return msgspec.json.decode(body or b"[]", type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            why = self._mask(str(error))
            raise SignalDataError(f"{self.name}: {why}; the answer begins {self._quote(body)}") from error

    async def get(
        self,
        url: str,
        *,
        now_s: float | None = None,
        params: Params = (),
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the body of the answer to a GET request; the cached one if nothing has changed since.

        Args:
            url: the address.
            now_s: the time, to check the server's clock by [Unix s]; None skips the check.
            params: added to its query.
            headers: sent in addition.

        Raises:
            SignalUnavailableError: no connection, no answer in time, or a fault of the server (5xx).
            SignalLimitedError: too many requests (429, or 401 with a token that was accepted before).
            SignalRefusedError: any other refusal (4xx), or an invalid address.
            SignalDataError: the answer is too long, redirects elsewhere, or has another time than `now_s`.
        """
        target = self._target(url, params)
        cached = self._cache.get(str(target))
        conditions = {"User-Agent": _USER_AGENT, **(headers or {})}
        if cached is not None:
            conditions |= {"If-None-Match": cached.tag} if cached.tag else {}
            conditions |= {"If-Modified-Since": cached.since} if cached.since else {}
        answer = await self._follow(target, conditions)
        is_unchanged = answer.status == HTTPStatus.NOT_MODIFIED and cached is not None
        if not is_unchanged and answer.status not in {HTTPStatus.OK, HTTPStatus.NO_CONTENT}:
            raise self._refusal(answer)
        self._check_clock(answer, now_s)
        if cached is not None and is_unchanged:
            return cached.body
        self._accepted = True
        self._store(str(target), answer)
        return answer.body

    def _target(self, url: str, params: Params) -> URL:
        try:
            return URL(url).update_query(list(params.items()) if isinstance(params, Mapping) else list(params))
        except ValueError as error:
            raise SignalRefusedError(f"{self.name}: invalid URL: {self._mask(str(error))}") from error

    async def _follow(self, target: URL, headers: Mapping[str, str]) -> _Answer:
        """Return the answer, after redirects within the same host: no token is ever sent to another one."""
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._request(target, headers)
            if answer.status not in _REDIRECTS:
                return answer
            location = answer.headers.get("Location", "")
            there = _redirect_target(target, location)
            if there is None or _leaves_server(target, there):
                moved = location if there is None else there.with_query(None)
                raise SignalDataError(self._mask(f"{self.name}: has moved to {moved}; set `url` if that is right"))
            target = there
        raise SignalDataError(f"{self.name}: more than {MAX_REDIRECTS} redirects")

    async def _request(self, target: URL, headers: Mapping[str, str]) -> _Answer:
        try:
            async with self._session.get(
                target, headers=headers, timeout=self._timeout, allow_redirects=False
            ) as response:
                return _Answer(status=response.status, headers=response.headers, body=await self._read(response))
        except TimeoutError as error:
            raise SignalUnavailableError(f"{self.name}: no answer in {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = self._mask(str(error) or type(error).__name__)
            raise SignalUnavailableError(f"{self.name}: cannot be reached at {target.host}: {why}") from error

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        chunks: list[bytes] = []
        n_bytes = 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            n_bytes += len(chunk)
            if n_bytes > MAX_BODY_BYTES:
                raise SignalDataError(f"{self.name}: the answer is longer than {MAX_BODY_BYTES >> 20} MiB")
        return b"".join(chunks)

    def _check_clock(self, answer: _Answer, now_s: float | None) -> None:
        """Refuse an answer if the server's clock differs from ours: every age would be wrong.

        Caches say in `Age` how long they have kept an answer (RFC 9111, section 4.2.3).
        """
        server_s = _date_s(answer.headers)
        if now_s is None or server_s is None or abs(server_s - now_s) <= DATE_TOLERANCE_S:
            return
        raise SignalDataError(
            f"{self.name}: its clock says {format_iso(server_s)}, and here it is {format_iso(now_s)}: "
            f"one clock is wrong by {abs(server_s - now_s) / 3600:.1f} h"
        )

    def _refusal(self, answer: _Answer) -> SignalError:
        status, retry_after_s = answer.status, _retry_after_s(answer.headers)
        problem = f"{self.name}: HTTP {status}: {self._quote(answer.body)}"
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return SignalLimitedError(f"{problem} (too many requests)", retry_after_s=retry_after_s, status=status)
        if status == HTTPStatus.UNAUTHORIZED and self._accepted:
            why = "the token was accepted before: too many requests, or it was revoked"
            return SignalLimitedError(f"{problem} ({why})", retry_after_s=retry_after_s, status=status)
        if status == HTTPStatus.UNAUTHORIZED:
            return SignalRefusedError(f"{problem} (the token is wrong, or missing)", status=status)
        if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.REQUEST_TIMEOUT:
            return SignalRefusedError(problem, retry_after_s=retry_after_s, status=status)
        return SignalUnavailableError(problem, retry_after_s=retry_after_s, status=status)

    def _store(self, target: str, answer: _Answer) -> None:
        """Cache an answer with a validator (ETag or Last-Modified)."""
        tag, since = answer.headers.get("ETag", ""), answer.headers.get("Last-Modified", "")
        self._cache.pop(target, None)
        if (tag or since) and len(answer.body) <= MAX_CACHED_BYTES:
            self._cache[target] = _CachedAnswer(tag=tag, since=since, body=answer.body)
        while len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)

    def _quote(self, body: bytes) -> str:
        """Return the beginning of an answer, without markup, in quotes."""
        text = self._mask(body.decode("utf-8", "replace"))  # masked before it is cut: half a token is a secret, too
        words = " ".join(re.sub(r"<[^>]*>", " ", _problem_text(text)[:4_096]).split())
        return repr(words if len(words) <= _QUOTE_CHARACTERS else f"{words[:_QUOTE_CHARACTERS]}…")

    def _mask(self, text: str) -> str:
        for secret in self._secrets:
            text = secret.masked(text)
        return text


def _redirect_target(target: URL, location: str) -> URL | None:
    """Return the target of a redirect, or None if it is no address."""
    try:
        return target.join(URL(location))
    except ValueError:
        return None


def _leaves_server(target: URL, there: URL) -> bool:
    """Return whether a redirect leaves the server; its own change to HTTPS does not."""
    return there.host != target.host or (there.scheme, there.port) not in {(target.scheme, target.port), ("https", 443)}


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return Retry-After [s]: a number of seconds, or a date by the server's own clock."""
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    if text.isdecimal():
        return float(text)
    try:
        then, now = parsedate_to_datetime(text), parsedate_to_datetime(headers.get("Date", ""))
        return max(0.0, (then - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _date_s(headers: Mapping[str, str]) -> float | None:
    """Return the server's clock by the headers of its answer [Unix s], or None."""
    age = headers.get("Age", "").strip()
    try:
        return parsedate_to_datetime(headers.get("Date", "")).timestamp() + (float(age) if age.isdecimal() else 0.0)
    except (ValueError, TypeError, OverflowError):
        return None


def _problem_text(text: str) -> str:
    """Return the text of a problem report (RFC 7807, with ASP.NET's lists of errors); any other text as it is."""
    try:
        problem = msgspec.json.decode(text, type=_Problem)
    except (msgspec.DecodeError, RecursionError):
        return text
    errors = [error for of_one_key in problem.errors.values() for error in of_one_key]
    return ": ".join(filter(None, [problem.title, problem.detail, *errors])) or text
