"""The connections of an HTTP server: how many there may be, and how long each may keep it waiting.

asyncio accepts whatever comes, and aiohttp waits for a request without a deadline. So any user of the machine could
take every file descriptor of the process, and a controller without descriptors cannot write its journal. Here:

- One address, and all of them together, have a bounded number of connections. Where there are more, the address with
  the most gives up the connection that has waited longest for a request; where none waits, the newcomer is refused.
- A connection is cut that does not send a request's header in time, or no further request.
- A connection costs little before its first byte: only then aiohttp gets it.
- Where TLS is wanted, a connection counts from its beginning: asyncio by itself would tell of it after the handshake.
"""

import asyncio
import logging
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address
from ssl import SSLContext
from typing import Final, cast

from publishers.shared.log_once import LogLimiter

HEADER_TIMEOUT_S: Final = 5.0
"""From the connection, or from the first byte of a further request, to the end of the header [s]."""
KEEP_ALIVE_S: Final = 75.0
"""From an answer to the first byte of the next request [s]: longer than proxies keep an idle connection."""
BACKLOG: Final = 64
"""Connections that the kernel keeps ready, and so the most that asyncio accepts before one of them can be refused."""
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)
_LOGGER = logging.getLogger(__name__)


def affordable(n_connections: int) -> int:
    """Return how many connections there may be, so that three quarters of all descriptors are left for the rest."""
    n_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(2, min(n_connections, n_files // 4 if n_files >= 0 else n_connections))


class _Peer:
    """The connections of one address; `waiting` holds those without a request, the longest waiting first."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.n_connections = 0
        self.waiting: dict[_Connection, None] = {}


class Connections:
    """Bounds the connections of one server.

    Args:
        n_most: how many there may be at once; one address may have half of them.
        title: what is served, for the log.
        clock_s: any clock [s].
        tls: how they are encrypted; None: they are not.
    """

    def __init__(
        self,
        *,
        n_most: int,
        title: str,
        clock_s: Callable[[], float] = time.monotonic,
        tls: SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self._n_most = n_most
        self._title = title
        self._peers: dict[str, _Peer] = {}
        self._by_handler: dict[asyncio.BaseProtocol, _Connection] = {}
        self._open: set[_Connection] = set()
        self._log = LogLimiter(clock_s)

    def __len__(self) -> int:
        """Return how many connections there are."""
        return len(self._open)

    def accept(self, make_handler: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """Return the protocol of a new connection, which `make_handler` serves from its first byte on."""
        return _Connection(self, make_handler)

    @contextmanager
    def busy(self, handler: asyncio.BaseProtocol) -> Iterator[None]:
        """Keep the connection of a handler while the body runs: it has a request, and that has deadlines of its own."""
        connection = self._by_handler.get(handler)
        if connection is not None:
            connection.take_request()
        try:
            yield
        finally:
            if connection is not None and connection in self._open:
                connection.wait_for_request(KEEP_ALIVE_S)

    def begin_handshake(self, connection: "_Connection", tls: SSLContext) -> None:
        """Encrypt a connection that counts already."""
        handshake = connection.encrypt(tls)
        task = asyncio.get_running_loop().create_task(handshake, name="TLS handshake")  # it ends with its connection
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def close(self) -> None:
        """Close all connections; what has been answered is still sent."""
        for task in self._handshakes:
            task.cancel()
        for connection in list(self._open):
            connection.close()

    def admit(self, connection: "_Connection", address: str) -> _Peer | None:
        """Return the peer of a new connection, and make room for it; None where there is no room."""
        peer = self._peers.get(address) or _Peer(address)
        if peer.n_connections >= self._n_most // 2:
            giving = peer if peer.waiting else None
        elif len(self._open) >= self._n_most:
            crowded = [one for one in self._peers.values() if one.waiting]
            giving = max(crowded, key=lambda one: one.n_connections, default=None)
        else:
            return self._added(connection, peer)
        self._report_full(giving, peer)
        if giving is None:
            return None
        next(iter(giving.waiting)).abort()
        return self._added(connection, peer)

    def add_handler(self, handler: asyncio.Protocol, connection: "_Connection") -> None:
        """Know the connection of a handler."""
        self._by_handler[handler] = connection

    def remove(self, connection: "_Connection", peer: _Peer, handler: asyncio.Protocol | None) -> None:
        """Forget a connection that is cut, or lost."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        peer.waiting.pop(connection, None)
        peer.n_connections -= 1
        if not peer.n_connections:
            del self._peers[peer.address]
        if handler is not None:
            self._by_handler.pop(handler, None)

    def _added(self, connection: "_Connection", peer: _Peer) -> _Peer:
        self._peers[peer.address] = peer
        self._open.add(connection)
        peer.n_connections += 1
        return peer

    def _report_full(self, giving: _Peer | None, peer: _Peer) -> None:
        if not self._log.allows(giving is None):
            return
        what = "the one that has waited longest is closed" if giving else "new ones are refused"
        _LOGGER.warning(
            "%s: %d connections are open, %d of them from %s, and there are more: %s",
            *(self._title, len(self), peer.n_connections, peer.address, what),
        )


class _Connection(asyncio.Protocol):
    """One connection: it waits for a request, or has one; aiohttp's handler gets all that happens."""

    def __init__(self, connections: Connections, make_handler: Callable[[], asyncio.Protocol]) -> None:
        self._connections = connections
        self._make_handler = make_handler
        self._handler: asyncio.Protocol | None = None
        self._peer: _Peer | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_between_requests = False
        self._early: bytearray | None = None if connections.tls is None else bytearray()
        """What has come before the encrypted transport is known; None: nothing comes so early."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit a new connection, or refuse it."""
        self._transport = cast("asyncio.Transport", transport)
        self._peer, tls = self._connections.admit(self, _address_of(transport)), self._connections.tls
        if self._peer is None:
            if tls is None:
                self._transport.write(_REFUSAL)
            self._transport.close()
            return
        self.wait_for_request(HEADER_TIMEOUT_S)
        if tls is not None:
            self._transport.pause_reading()
            self._connections.begin_handshake(self, tls)

    async def encrypt(self, tls: SSLContext) -> None:
        """Let the client shake hands; the time of its first request's header begins then."""
        loop, encrypted = asyncio.get_running_loop(), None
        if self._transport is not None and not self._transport.is_closing():
            with suppress(OSError):  # no TLS, or another one, or the client has gone
                encrypted = await loop.start_tls(
                    self._transport, self, tls, server_side=True, ssl_handshake_timeout=HEADER_TIMEOUT_S
                )
        if encrypted is None or encrypted.is_closing():
            self.abort()
            return
        self._transport = encrypted
        self._restart_deadline(HEADER_TIMEOUT_S)
        early, self._early = self._early, None
        if early:
            self.data_received(bytes(early))

    def data_received(self, data: bytes) -> None:
        """Hand on what has come; the first bytes of a request begin its header's time."""
        if self._transport is None or self._peer is None:
            return
        if self._early is not None:
            self._early += data
            return
        if self._handler is None:
            self._handler = self._make_handler()
            self._connections.add_handler(self._handler, self)
            self._handler.connection_made(self._transport)
        elif self._is_between_requests:
            self._is_between_requests = False
            self._restart_deadline(HEADER_TIMEOUT_S)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand on that no more will come."""
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        """Hand on that the client does not read as fast as we write."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that the client reads again."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on that the connection has ended."""
        self._forget()
        if self._handler is not None:
            self._handler.connection_lost(exc)

    def take_request(self) -> None:
        """Begin a request: no deadline of the connection holds."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._peer is not None:
            self._peer.waiting.pop(self, None)

    def wait_for_request(self, timeout_s: float) -> None:
        """Wait for a request: the connection is cut at a deadline, or sooner if its place is needed."""
        self._is_between_requests = self._handler is not None
        if self._peer is not None:
            self._peer.waiting[self] = None
        self._restart_deadline(timeout_s)

    def close(self) -> None:
        """Close the connection when all is sent."""
        self._forget()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection; what has not been sent yet is lost."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _restart_deadline(self, timeout_s: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(timeout_s, self.abort)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._peer is not None:
            self._connections.remove(self, self._peer, self._handler)


def _address_of(transport: asyncio.BaseTransport) -> str:
    """Return whose connection it is: an IPv4 address, or a network of IPv6; all of loopback is one."""
    peername = transport.get_extra_info("peername")
    address = ip_address(str(peername[0]).partition("%")[0]) if peername else None
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address is None or address.is_loopback:
        return "this machine"
    return f"{IPv6Address(address.packed[:8] + bytes(8))}/64" if isinstance(address, IPv6Address) else f"{address}"
