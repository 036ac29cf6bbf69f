"""How a request has come: from this machine, over TLS, or through a proxy whose word counts; else nobody signs in.

A token or a cookie on the network in the clear is everybody's.
"""

from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

from aiohttp import web

from publishers.shared.http.server import is_loopback, is_this_machine, name_in
from publishers.shared.printable import printable

_FORWARDED: Final = ("X-Forwarded-Proto", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via")
"""What only proxies send."""
NOT_SAID: Final = "the proxy does not say that it was reached over TLS: it must set X-Forwarded-Proto to https"
UNKNOWN_PROXY: Final = "the request came through a proxy that web.trusted_proxies does not name"
NOT_ENCRYPTED: Final = (
    "the request came from another machine without TLS: set web.tls_cert_file and web.tls_key_file, or put a proxy with"
    " TLS before this page and name it in web.trusted_proxies"
)


class Approach(NamedTuple):
    """How a request has come.

    Attributes:
        address: whose it is: an IPv4 address, or a network of IPv6.
        is_encrypted: whether the browser has encrypted it.
        fault: why nobody may sign in this way, a sentence; "": they may.
    """

    address: str
    is_encrypted: bool
    fault: str


class Exposure:
    """Says how requests have come.

    Args:
        trusted_proxies: addresses and networks.
    """

    def __init__(self, trusted_proxies: Sequence[str]) -> None:
        self._trusted = [ip_network(proxy) for proxy in trusted_proxies]

    def approach_of(self, request: web.Request) -> Approach:
        """Return how a request has come."""
        peer = request.remote or ""
        # A browser of this machine asks by a name of the loopback; a proxy may pass on another one, and no more.
        is_forwarded = any(name in request.headers for name in _FORWARDED) or (
            is_loopback(peer) and not _is_own_name(request.headers.get("Host", ""))
        )
        if is_forwarded and self._is_trusted(peer):
            is_encrypted = request.headers.getall("X-Forwarded-Proto", []) == ["https"]
            return Approach(self._forwarded_for(request, peer), is_encrypted, "" if is_encrypted else NOT_SAID)
        if request.secure:
            return Approach(_network_of(peer), is_encrypted=True, fault="")
        if is_forwarded:
            return Approach(_network_of(peer), is_encrypted=False, fault=UNKNOWN_PROXY)
        return Approach(_network_of(peer), is_encrypted=False, fault="" if is_loopback(peer) else NOT_ENCRYPTED)

    def _forwarded_for(self, request: web.Request, peer: str) -> str:
        """Return the last address that no trusted proxy has: what stands before it, anybody may have written."""
        said = ",".join(request.headers.getall("X-Forwarded-For", [])).split(",")
        hops = [hop.strip() for hop in reversed(said) if hop.strip()]
        return next((_network_of(hop) for hop in hops if not self._is_trusted(hop)), peer)

    def _is_trusted(self, address: str) -> bool:
        found = _address_in(address)
        return found is not None and any(found in network for network in self._trusted)


def _is_own_name(host: str) -> bool:
    """Return whether a Host header names this machine as only this machine does; without one no browser has asked."""
    name = name_in(host)
    return not host or is_this_machine(name)


def _address_in(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in a text, beside which some proxies write a port; None: there is none."""
    for each in (text, name_in(text)):
        with suppress(ValueError):
            return ip_address(each.partition("%")[0])
    return None


def _network_of(address: str) -> str:
    """Return an address, or of IPv6 the network that one customer has; what is none, as text that is cut.

    All of loopback is one: a user of this machine has as many of its addresses as he likes.
    """
    found = _address_in(address)
    if found is None:
        return printable(address)[:64]
    if found.is_loopback:
        return "this machine"
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return f"{IPv6Address(found.packed[:8] + bytes(8))}/64"
    return f"{found}"
