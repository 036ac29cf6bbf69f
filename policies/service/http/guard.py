"""Who may ask over HTTP: bearer tokens for writes, this machine alone without any, and no page of another site."""

import asyncio
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from policies.service.http.auth import WriteTokens
from policies.service.http.problems import ProblemError

FILE_TIMEOUT_S: Final = 2.0
"""For a look at the file of tokens: its disk may hang."""
THIS_MACHINE: Final = "this machine"
"""Who writes where no token is asked for."""
_CHALLENGE: Final = 'Bearer realm="gridchase"'


class RequestGuard:
    """Lets requests pass, or raises the `Refusal` that they are answered with.

    Attributes:
        is_local: whether the server listens on loopback addresses alone; until that is known, it does not.
    """

    def __init__(self, tokens: WriteTokens | None, *, host: str) -> None:
        self.is_local = False
        self._tokens = tokens
        self._host = host

    def check_host(self, request: web.Request) -> None:
        """Refuse a request that a browser was led here with, by a name that its owner points at this machine.

        DNS rebinding needs a name: addresses pass, and so does what the server is configured as.
        """
        host = request.headers.get("Host")
        if self.is_local and host is not None and not self._is_ours(_name_in(host)):
            detail = f"Host: {host[:80]!r} is not what this server is called: use 127.0.0.1, or localhost"
            raise ProblemError(HTTPStatus.FORBIDDEN, "foreign_host", detail)

    async def writer(self, request: web.Request) -> str:
        """Return who writes: the name of the token, or `this machine`."""
        _check_origin(request)
        if self._tokens is None:
            if self.is_local:
                return THIS_MACHINE
            detail = "writes need a token: set token_file in [http], or serve on host 127.0.0.1"
            raise ProblemError(HTTPStatus.FORBIDDEN, "no_tokens", detail)
        return await self._owner(self._tokens, request.headers.getall("Authorization", []))

    async def _owner(self, tokens: WriteTokens, sent: list[str]) -> str:
        scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not token.strip():
            detail = "writes need a token: send it as Authorization: Bearer TOKEN"
            raise ProblemError(HTTPStatus.UNAUTHORIZED, "no_token", detail, headers={"WWW-Authenticate": _CHALLENGE})
        async with asyncio.timeout(FILE_TIMEOUT_S):
            owner = await asyncio.to_thread(tokens.owner_of, token.strip())
        if owner is None:
            challenge = f'{_CHALLENGE}, error="invalid_token"'
            detail = "this token is not among those that may write: see token_file in [http]"
            raise ProblemError(HTTPStatus.UNAUTHORIZED, "wrong_token", detail, headers={"WWW-Authenticate": challenge})
        return owner

    def _is_ours(self, name: str) -> bool:
        if name in {"localhost", self._host.lower()}:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _check_origin(request: web.Request) -> None:
    """Refuse a write that a page of another site has a browser send: its cookies are nothing here, its address is."""
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
    is_foreign = origin is not None and _authority(origin) != request.headers.get("Host", "").lower()
    if is_foreign or site not in {"none", "same-origin"}:
        detail = f"a page of {(origin or 'another site')[:80]} may not write here"
        raise ProblemError(HTTPStatus.FORBIDDEN, "foreign_origin", detail)


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name_in(host: str) -> str:
    """Return a Host header without its port, and without the brackets of an IPv6 address."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:
        return ""
