"""How many connections an HTTP server keeps, and for how long, on virtual time and fake transports."""

import asyncio
import logging
import resource
from contextlib import ExitStack
from typing import Any

import pytest

from publishers.shared.http.connections import HEADER_TIMEOUT_S, KEEP_ALIVE_S, Connections, affordable

N_MOST = 8


class Transport(asyncio.Transport):
    """The connection of a client."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 50_000)})
        self.state = "open"
        self.sent = b""

    def write(self, data: Any) -> None:  # noqa: ANN401 — any buffer
        self.sent += data

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "cut"


class Handler(asyncio.Protocol):
    """What serves a connection; it remembers what it got."""

    def __init__(self) -> None:
        self.received = b""
        self.is_connected = False

    def connection_made(self, _: asyncio.BaseTransport) -> None:
        self.is_connected = True

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, _: Exception | None) -> None:
        self.is_connected = False


class Client:
    """A client that has connected."""

    def __init__(self, connections: Connections, address: str = "127.0.0.1") -> None:
        self.handlers: list[Handler] = []
        self.transport = Transport(address)
        self.protocol = connections.accept(self._handler)
        self.protocol.connection_made(self.transport)

    @property
    def state(self) -> str:
        return self.transport.state

    def send(self, data: bytes = b"GET / HTTP/1.1\r\n") -> Handler:
        """Send something, and return the handler that gets it."""
        self.protocol.data_received(data)
        (handler,) = self.handlers
        return handler

    def _handler(self) -> Handler:
        self.handlers.append(Handler())
        return self.handlers[-1]


def _connections(n_most: int = N_MOST) -> Connections:
    return Connections(n_most=n_most, title="the test", clock_s=lambda: 0.0)


async def test_a_connection_without_a_header_is_cut_at_its_deadline() -> None:
    connections = _connections()
    silent, slow = Client(connections), Client(connections)
    for _ in range(4):
        slow.send(b"G")
        await asyncio.sleep(HEADER_TIMEOUT_S / 5)
    assert (silent.state, slow.state, len(connections)) == ("open", "open", 2)
    await asyncio.sleep(HEADER_TIMEOUT_S / 5)
    assert (silent.state, slow.state, len(connections)) == ("cut", "cut", 0)


async def test_a_request_is_not_cut_and_the_next_one_may_be_awaited_for_longer() -> None:
    connections = _connections()
    client = Client(connections)
    with connections.busy(client.send()):
        await asyncio.sleep(1_000.0)
    await asyncio.sleep(KEEP_ALIVE_S - 1.0)
    assert client.state == "open"
    client.send(b"G")
    await asyncio.sleep(HEADER_TIMEOUT_S - 1.0)
    client.send(b"E")
    assert client.state == "open"
    await asyncio.sleep(1.0)
    assert client.state == "cut"


async def test_a_silent_connection_costs_no_handler() -> None:
    client = Client(_connections())
    assert client.handlers == []
    assert client.send(b"GET").is_connected
    assert client.send(b" /").received == b"GET /"


async def test_the_connection_that_has_waited_longest_makes_room_for_a_new_one() -> None:
    connections = _connections()
    first, second, *others = [Client(connections) for _ in range(N_MOST // 2)]
    with connections.busy(first.send()):
        pass  # it has been answered, and waits for its next request from now on
    newcomer = Client(connections)
    assert [client.state for client in (first, second, *others, newcomer)] == ["open", "cut", "open", "open", "open"]
    assert len(connections) == N_MOST // 2


async def test_a_newcomer_is_refused_where_all_have_requests() -> None:
    connections = _connections()
    clients = [Client(connections) for _ in range(N_MOST // 2)]
    with ExitStack() as requests:
        for client in clients:
            requests.enter_context(connections.busy(client.send()))
        newcomer, elsewhere = Client(connections), Client(connections, "10.0.0.1")
        assert newcomer.state == "closed"
        assert newcomer.transport.sent.startswith(b"HTTP/1.1 503 ")
        newcomer.protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")
        assert newcomer.handlers == []
        assert {client.state for client in (*clients, elsewhere)} == {"open"}
        newcomer.protocol.connection_lost(None)
        assert len(connections) == N_MOST // 2 + 1


async def test_the_address_with_the_most_connections_makes_room() -> None:
    connections = _connections()
    many = [Client(connections, "10.0.0.1") for _ in range(4)]
    few = [Client(connections, f"10.0.1.{n}") for n in range(4)]
    newcomer = Client(connections, "10.0.2.1")
    assert [client.state for client in (*few, *many, newcomer)] == ["open"] * 4 + ["cut"] + ["open"] * 4


@pytest.mark.parametrize(
    ("addresses", "is_one"),
    [
        (("127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"), True),
        (("2001:db8::1", "2001:db8::ffff:2"), True),
        (("fe80::1%eth0", "fe80::2%eth1"), True),
        (("10.0.0.1", "10.0.0.2"), False),
        (("2001:db8:0:1::1", "2001:db8:0:2::1"), False),
        (("::ffff:10.0.0.1", "::ffff:10.0.0.2"), False),
    ],
)
async def test_loopback_is_one_address_and_so_is_a_network_of_ipv6(addresses: tuple[str, ...], is_one: bool) -> None:
    connections = _connections(n_most=2)
    clients = [Client(connections, address) for address in addresses]
    assert (clients[0].state == "cut") is is_one
    assert clients[-1].state == "open"


async def test_a_connection_that_is_lost_leaves_nothing_behind() -> None:
    connections = _connections()
    silent, answered = Client(connections), Client(connections)
    with connections.busy(answered.send()):
        answered.protocol.connection_lost(None)
    silent.protocol.connection_lost(None)
    assert not answered.handlers[0].is_connected
    assert (len(connections), connections._peers, connections._by_handler) == (0, {}, {})


async def test_too_many_connections_are_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    connections = _connections()
    for _ in range(100):
        Client(connections)
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("the test: 4 connections are open, 4 of them from this machine, and there are more: the one")


def test_three_quarters_of_the_descriptors_are_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for n_files, n_connections in ((1_024, 256), (400, 100), (16_384, 1_024), (resource.RLIM_INFINITY, 1_024)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, n=n_files: (n, n))
        assert affordable(1_024) == n_connections
