"""The bus through real brokers: the same contract with mosquitto and with amqtt, then what only mosquitto can show."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

import pytest
from amqtt.broker import Broker

from publishers.broker import embedded_broker
from publishers.bus import Bus, Outgoing, Will
from publishers.mosquitto import find_mosquitto
from tests.live.conftest import Mosquitto, SecureMosquitto, eventually, free_port, make_certificates

pytestmark = pytest.mark.live
Kind = Literal["mosquitto", "amqtt"]
both = pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])


class Inbox:
    """A handler that remembers what it was given."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []

    def __call__(self, topic: str, payload: bytes) -> None:
        self.messages.append((topic, payload))

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.messages]


class Proxy:
    """Stands between a client and its broker, and can cut the wire."""

    def __init__(self, upstream: str) -> None:
        self._host, _, port = upstream.removeprefix("mqtt://").partition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        ends = {writer, up_writer}
        self._writers |= ends
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(reader, up_writer))
            tasks.create_task(_copy(up_reader, writer))
        self._writers -= ends

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        proxy.cut()
        server.close()


@asynccontextmanager
async def running(kind: Kind) -> AsyncIterator[str]:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed: apt-get install mosquitto")
    async with embedded_broker(prefer=kind) as broker:
        yield broker.url


@asynccontextmanager
async def subscribed(url: str, topic_filter: str) -> AsyncIterator[Inbox]:
    """A second client, to see what the first one published."""
    inbox = Inbox()
    async with Bus(url=url) as bus:
        bus.subscribe(topic_filter, inbox, qos=1)
        await eventually(lambda: bus.connected)
        yield inbox


@both
async def test_what_was_published_before_the_connection_arrives_in_its_order(kind: Kind) -> None:
    async with running(kind) as url, subscribed(url, "day/#") as inbox:
        bus = Bus(url=url)
        for number in range(300):
            bus.publish("day/hour", b"%d" % number, qos=1)
        async with bus:
            assert await bus.flush(10.0)
        await eventually(lambda: len(inbox.messages) >= 300)
        assert inbox.messages == [("day/hour", b"%d" % number) for number in range(300)]


@both
async def test_a_late_subscriber_sees_the_retained_state(kind: Kind) -> None:
    async with running(kind) as url:
        async with Bus(url=url) as bus:
            bus.publish("node/a/status", b"old", qos=1, retain=True)
            bus.publish("node/a/status", b"new", qos=1, retain=True)
        async with subscribed(url, "node/+/status") as inbox:
            await eventually(lambda: inbox.messages)
            assert inbox.payloads == [b"new"]


@both
async def test_what_the_broker_had_kept_is_told_from_what_is_published_now(kind: Kind) -> None:
    kept, live = Inbox(), Inbox()
    async with running(kind) as url, Bus(url=url) as publisher, Bus(url=url) as bus:
        publisher.publish("state", b"old", qos=1, retain=True)
        assert await publisher.flush(5.0)
        bus.subscribe("state", live, on_retained=kept)
        await eventually(lambda: kept.payloads == [b"old"])
        publisher.publish("state", b"new", qos=1, retain=True)
        await eventually(lambda: live.payloads == [b"new"])
        assert kept.payloads == [b"old"]


@both
async def test_a_subscription_made_while_connected_counts_at_once(kind: Kind) -> None:
    inbox = Inbox()
    async with running(kind) as url, Bus(url=url) as bus:
        await eventually(lambda: bus.connected)
        bus.publish("state", b"here", qos=1, retain=True)
        assert await bus.flush(5.0)
        bus.subscribe("state", inbox)
        await eventually(lambda: inbox.payloads == [b"here"])


@both
async def test_the_broker_publishes_the_will_when_the_wire_is_cut(kind: Kind) -> None:
    will = Will(topic="node/a/status", payload=b"offline")
    async with (
        running(kind) as url,
        subscribed(url, "node/#") as inbox,
        proxied(url) as proxy,
        Bus(url=proxy.url, will=will) as bus,
    ):
        await eventually(lambda: bus.connected)
        proxy.cut()
        await eventually(lambda: b"offline" in inbox.payloads)


async def test_a_clean_leave_publishes_no_will() -> None:
    # With mosquitto only: amqtt sends a will after about one clean leave in forty, a race of its own.
    async with running("mosquitto") as url, subscribed(url, "node/#") as inbox:
        async with Bus(url=url, will=Will(topic="node/a/status", payload=b"offline")) as bus:
            await eventually(lambda: bus.connected)
        async with Bus(url=url) as bus:
            bus.publish("node/b/status", b"the next thing that happens", qos=1)
        await eventually(lambda: inbox.messages)
        assert inbox.payloads == [b"the next thing that happens"]


@both
async def test_the_birth_message_comes_at_each_connection_and_before_everything_else(kind: Kind) -> None:
    birth = Outgoing(topic="node/a/status", payload=b"online", qos=1, retain=True)
    async with running(kind) as url, subscribed(url, "node/#") as inbox, proxied(url) as proxy:
        bus = Bus(url=proxy.url, birth=lambda: [birth])
        bus.publish("node/a/limit", b"250", qos=1)
        async with bus:
            await eventually(lambda: inbox.payloads == [b"online", b"250"])
            proxy.cut()
            await eventually(lambda: inbox.payloads[2:] == [b"online"])


@both
async def test_what_nobody_asked_for_reaches_no_handler(kind: Kind) -> None:
    inbox = Inbox()
    async with running(kind) as url, subscribed(url, "secret/#"):
        async with Bus(url=url) as bus:
            bus.publish("secret/topic", b"stray", qos=1, retain=True)
        async with Bus(url=url) as bus:
            bus.subscribe("mine/+", inbox)
            await eventually(lambda: bus.connected)
            bus.publish("mine/topic", b"wanted", qos=1)
            await eventually(lambda: inbox.messages)
            assert set(inbox.messages) == {("mine/topic", b"wanted")}


@both
async def test_a_handler_that_raises_does_not_end_the_bus(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()

    def broken(topic: str, payload: bytes) -> None:
        raise ZeroDivisionError(topic, payload)

    async with running(kind) as url, Bus(url=url) as bus:
        bus.subscribe("topic", broken)
        bus.subscribe("topic", inbox)
        await eventually(lambda: bus.connected)
        for number in range(3):
            bus.publish("topic", b"%d" % number, qos=1)
        await eventually(lambda: inbox.payloads[-1:] == [b"2"])
        assert bus.connected
        assert bus.handler_errors >= 3
    assert len([record for record in caplog.records if "the handler of topic failed" in record.message]) == 1


@both
async def test_a_payload_over_one_mebibyte_never_reaches_a_handler(kind: Kind) -> None:
    inbox = Inbox()
    async with running(kind) as url, Bus(url=url) as bus:
        bus.subscribe("topic", inbox)
        await eventually(lambda: bus.connected)
        bus.publish("topic", bytes((1 << 20) + 1))
        bus.publish("topic", b"small", qos=1)
        await eventually(lambda: inbox.messages)
        assert set(inbox.payloads) == {b"small"}


@both
async def test_no_message_at_qos_1_is_lost_when_the_wire_is_cut_under_it(kind: Kind) -> None:
    async with running(kind) as url, subscribed(url, "numbers") as inbox, proxied(url) as proxy:
        async with Bus(url=proxy.url) as bus:
            await eventually(lambda: bus.connected)
            for number in range(1_000):
                bus.publish("numbers", b"%d" % number, qos=1)
            await eventually(lambda: len(inbox.messages) >= 50)
            proxy.cut()
            assert await bus.flush(10.0)
        await eventually(lambda: {int(payload) for payload in inbox.payloads} == set(range(1_000)))


async def test_a_subscription_that_the_broker_refuses_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    # Of the two only amqtt refuses a subscription; mosquitto accepts it and delivers nothing.
    port = free_port()
    plugins = {
        "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
        "amqtt.plugins.topic_checking.TopicTabooPlugin": {},  # it forbids `top-secret`
    }
    server = Broker({"listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}}, "plugins": plugins})
    await server.start()
    async with Bus(url=f"mqtt://127.0.0.1:{port}") as bus:
        bus.subscribe("mine/#", Inbox())
        bus.subscribe("top-secret", Inbox())
        await eventually(lambda: bus.connected)
        assert bus.last_error == "the broker refuses the subscription to top-secret: check its access rules"
    await server.shutdown()
    assert caplog.text.count("refuses the subscription") == 1


async def test_leaving_takes_no_long_time_when_there_is_no_broker(caplog: pytest.LogCaptureFixture) -> None:
    began_s = asyncio.get_running_loop().time()
    async with Bus(url="mqtt://127.0.0.1:1") as bus:
        bus.publish("topic", b"never sent")
        await eventually(lambda: bus.last_error)
    assert asyncio.get_running_loop().time() - began_s < 5.0
    assert "left the bus with 1 messages unsent" in caplog.text
    assert bus.last_error is not None
    assert "nothing listens at 127.0.0.1:1" in bus.last_error


async def test_the_body_of_a_bus_raises_what_it_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Bus(url="mqtt://127.0.0.1:1"):
            raise ZeroDivisionError


async def test_a_bug_in_the_birth_messages_ends_the_body(broker: Mosquitto) -> None:
    def broken() -> list[Outgoing]:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        async with Bus(url=broker.url, birth=broken):
            await asyncio.Event().wait()
    assert raised.group_contains(ZeroDivisionError)


async def test_after_a_crash_of_the_broker_everything_is_there_again(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    inbox, birth = Inbox(), Outgoing(topic="node/a/status", payload=b"online", qos=1, retain=True)
    async with Bus(url=broker.url, birth=lambda: [birth]) as bus:
        bus.subscribe("command", inbox)
        bus.publish("node/a/limit", b"300", qos=1, retain=True)
        bus.publish("node/a/energy", b"1", retain=True)
        assert await bus.flush(5.0)
        broker.kill()
        await eventually(lambda: not bus.connected)
        for limit in (b"280", b"260"):
            bus.publish("node/a/limit", limit, qos=1, retain=True)
        broker.start()
        async with subscribed(broker.url, "node/#") as state:
            await eventually(lambda: len(dict(state.messages)) == 3)
            await eventually(lambda: bus.connected)
            expected = {"node/a/status": b"online", "node/a/limit": b"260", "node/a/energy": b"1"}
            assert dict(state.messages) == expected
            bus.publish("command", b"stop", qos=1)
            await eventually(lambda: inbox.payloads == [b"stop"])
    lines = [record.message for record in caplog.records if record.name == "publishers.bus"]
    assert sum("connected to the broker" in line for line in lines) == 2 + 1  # twice the bus, once the subscriber
    assert sum("trying again" in line for line in lines) <= 2  # the loss, and that nothing listens now
    assert "Traceback" not in caplog.text


async def test_tls_with_a_password_works(secure_broker: SecureMosquitto) -> None:
    inbox = Inbox()
    async with Bus(
        url=secure_broker.url,
        username=secure_broker.username,
        password=secure_broker.password,
        ca_file=secure_broker.ca_file,
    ) as bus:
        bus.subscribe("topic", inbox)
        await eventually(lambda: bus.connected)
        bus.publish("topic", bytes(500_000), qos=1)
        await eventually(lambda: inbox.payloads == [bytes(500_000)])


async def test_a_wrong_password_says_so_once(secure_broker: SecureMosquitto, caplog: pytest.LogCaptureFixture) -> None:
    async with Bus(url=secure_broker.url, username="node", password="wrong", ca_file=secure_broker.ca_file) as bus:
        await eventually(lambda: bus.last_error)
        assert not bus.connected
    assert bus.last_error == (
        f"the broker at 127.0.0.1:{secure_broker.port} does not accept user 'node' with this password:"
        " check bus.username and bus.password_file"
    )
    assert caplog.text.count("does not accept user") == 1
    assert "wrong" not in caplog.text


# paho leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
async def test_an_authority_that_did_not_sign_the_broker_says_so(
    secure_broker: SecureMosquitto, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = tmp_path_factory.mktemp("stranger")
    make_certificates(stranger)
    async with Bus(url=secure_broker.url, ca_file=str(stranger / "ca.crt")) as bus:
        await eventually(lambda: bus.last_error)
    assert bus.last_error is not None
    assert "is not trusted" in bus.last_error
    assert "bus.ca_file" in bus.last_error


async def test_a_client_that_comes_back_under_its_name_has_the_last_word(broker: Mosquitto) -> None:
    # The broker has not noticed yet that the first connection is dead: its will must not come after the second birth.
    will, birth = Will(topic="status", payload=b"offline"), Outgoing(topic="status", payload=b"online", retain=True)
    async with (
        subscribed(broker.url, "status") as inbox,
        Bus(url=broker.url, identifier="node-a", will=will, birth=lambda: [birth]) as first,
    ):
        await eventually(lambda: first.connected)
        async with Bus(url=broker.url, identifier="node-a", will=will, birth=lambda: [birth]) as second:
            await eventually(lambda: second.connected)
            await eventually(lambda: len(inbox.messages) >= 3)
            assert inbox.payloads[:3] == [b"online", b"offline", b"online"]
