"""The MQTT client behind a backlog: answers come late, and the connection stays, for as long as anything comes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from publishers.mqtt import aiomqtt_client, client
from publishers.mqtt.client import MqttClient
from tests.live.bus_bench import Inbox
from tests.live.conftest import Mosquitto, eventually

pytestmark = pytest.mark.live
CONNECT, PUBLISH, SUBSCRIBE, PINGREQ = 1, 3, 8, 12
CONNACK, SUBACK, MESSAGE = b"\x20\x02\x00\x00", b"\x90\x03%b\x00", b"\x30\x04\x00\x01a1"
N_RETAINED = 600
HANDLER_S = 0.002
PERIOD_S = 0.1


class Script:
    """A broker that accepts connections, counts them, and answers as a test says; it never answers a ping.

    Args:
        backlog: how many messages it sends before its answer to a subscription; None: it never answers one.

    Attributes:
        n_connections: connections so far.
        n_pings: pings so far.
        packets: the kinds of packets that came, but for connections and pings.
    """

    def __init__(self, backlog: int | None = 0) -> None:
        self.n_connections = self.n_pings = 0
        self.packets: list[int] = []
        self._backlog = backlog

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readexactly(2)  # the packets of these tests have less than 128 bytes
                body = await reader.readexactly(head[1])
                self._on_packet(head[0] >> 4, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _on_packet(self, kind: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if kind == CONNECT:
            self.n_connections += 1
            writer.write(CONNACK)
        elif kind == PINGREQ:
            self.n_pings += 1
            self._send_for_ever(writer)
        else:
            self.packets.append(kind)
            if kind == SUBSCRIBE and self._backlog is not None:
                writer.write(MESSAGE * self._backlog + SUBACK % body[:2])

    def _send_for_ever(self, writer: asyncio.StreamWriter) -> None:
        if not writer.is_closing():
            writer.write(MESSAGE)
            asyncio.get_running_loop().call_later(PERIOD_S, self._send_for_ever, writer)


@asynccontextmanager
async def played(script: Script) -> AsyncIterator[str]:
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    async with server:
        yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_backlog_before_the_answer_does_not_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "OPERATION_TIMEOUT_S", N_RETAINED * HANDLER_S / 2)
    seen: list[str] = []

    def slow(topic: str, _: bytes) -> None:
        seen.append(topic)
        until_s = time.perf_counter() + HANDLER_S
        while time.perf_counter() < until_s:
            pass

    script = Script(backlog=N_RETAINED)
    async with played(script) as url, MqttClient(url=url) as bus:
        bus.subscribe("a", slow, qos=1)
        await eventually(lambda: bus.connected)
        assert len(seen) == N_RETAINED
        assert script.n_connections == 1
        assert bus.last_error is None


async def test_all_first_subscriptions_go_in_one_packet() -> None:
    script = Script()
    async with played(script) as url, MqttClient(url=url) as bus:
        for topic_filter in ("a", "b/+", "c/#"):
            bus.subscribe(topic_filter, Inbox())
        await eventually(lambda: bus.connected)
        assert script.packets == [SUBSCRIBE]


async def test_any_message_is_a_sign_of_life_where_the_answer_to_a_ping_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aiomqtt_client, "KEEPALIVE_S", 1)
    inbox, script = Inbox(), Script()
    async with played(script) as url, MqttClient(url=url) as bus:
        bus.subscribe("a", inbox)
        await eventually(lambda: script.n_pings)

        def has_lived_on() -> bool:
            bus.publish("b", b"")  # paho pings, and so begins to count anew, only where it has sent nothing
            return len(inbox.messages) * PERIOD_S > 4.0

        await eventually(has_lived_on)
        assert script.n_connections == 1
        assert bus.last_error is None


async def test_a_broker_that_owes_an_answer_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "OPERATION_TIMEOUT_S", 0.5)
    script = Script(backlog=None)
    async with played(script) as url, MqttClient(url=url) as bus:
        bus.subscribe("a", Inbox())
        await eventually(lambda: bus.last_error)
        assert "does not answer in time" in str(bus.last_error)
        await eventually(lambda: script.n_connections >= 2)
        assert not bus.connected


async def test_an_unsubscribed_topic_brings_nothing_any_more(broker: Mosquitto) -> None:
    gone, kept = Inbox(), Inbox()
    async with MqttClient(url=broker.url) as bus, MqttClient(url=broker.url) as publisher:
        bus.subscribe("a", gone, qos=1)
        bus.subscribe("b", kept, qos=1)
        await eventually(lambda: bus.connected and publisher.connected)
        bus.unsubscribe("a", gone)
        bus.subscribe("c", kept, qos=1)
        publisher.publish("c", b"is subscribed", qos=1, retain=True)
        await eventually(lambda: kept.messages)
        publisher.publish("a", b"is not heard", qos=1)
        publisher.publish("b", b"is heard", qos=1)
        await eventually(lambda: len(kept.messages) >= 2)
        assert gone.messages == []
