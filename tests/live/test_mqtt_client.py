"""The MQTT client through real brokers, and with brokers that refuse, crash or are not there."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiomqtt
import pytest
from amqtt.broker import Broker

from publishers.messages.codec import Outgoing
from publishers.mqtt.aiomqtt_client import OPERATION_TIMEOUT_S
from publishers.mqtt.broker_address import SettingNames
from publishers.mqtt.client import MqttClient, probe_broker
from tests.live.bus_bench import Inbox, Kind, both, proxied, running, subscribed
from tests.live.conftest import TIMEOUT_S, Mosquitto, SecureMosquitto, eventually, free_port, make_certificates

pytestmark = pytest.mark.live


@both
async def test_messages_published_before_the_connection_arrive_in_order(kind: Kind) -> None:
    async with running(kind) as url, subscribed(url, "day/#") as inbox:
        bus = MqttClient(url=url)
        for number in range(300):
            bus.publish("day/hour", b"%d" % number, qos=1)
        async with bus:
            assert await bus.flush(10.0)
        await eventually(lambda: len(inbox.messages) >= 300)
        assert inbox.messages == [("day/hour", b"%d" % number) for number in range(300)]


@both
async def test_a_late_subscriber_gets_the_retained_message(kind: Kind) -> None:
    async with running(kind) as url:
        async with MqttClient(url=url) as bus:
            bus.publish("node/a/status", b"old", qos=1, retain=True)
            bus.publish("node/a/status", b"new", qos=1, retain=True)
            assert await bus.flush(10.0)
        async with subscribed(url, "node/+/status") as inbox:
            await eventually(lambda: inbox.messages)
            assert inbox.payloads == [b"new"]


@both
async def test_retained_and_live_messages_are_told_apart(kind: Kind) -> None:
    kept, live = Inbox(), Inbox()
    async with running(kind) as url, MqttClient(url=url) as publisher, MqttClient(url=url) as bus:
        publisher.publish("state", b"old", qos=1, retain=True)
        assert await publisher.flush(10.0)
        bus.subscribe("state", live, on_retained=kept)
        await eventually(lambda: kept.payloads == [b"old"])
        publisher.publish("state", b"new", qos=1, retain=True)
        await eventually(lambda: live.payloads == [b"new"])
        assert kept.payloads == [b"old"]


@both
async def test_a_subscription_made_while_connected_works_at_once(kind: Kind) -> None:
    inbox = Inbox()
    async with running(kind) as url, MqttClient(url=url) as bus:
        await eventually(lambda: bus.connected)
        bus.publish("state", b"here", qos=1, retain=True)
        assert await bus.flush(10.0)
        bus.subscribe("state", inbox)
        await eventually(lambda: inbox.payloads == [b"here"])


@both
async def test_the_will_is_published_when_the_connection_is_cut(kind: Kind) -> None:
    will = Outgoing(topic="node/a/status", payload=b"offline", qos=1, retain=True)
    async with (
        running(kind) as url,
        subscribed(url, "node/#") as inbox,
        proxied(url) as proxy,
        MqttClient(url=proxy.url, will=will) as bus,
    ):
        await eventually(lambda: bus.connected)
        proxy.cut()
        await eventually(lambda: b"offline" in inbox.payloads)


async def test_a_clean_disconnect_publishes_no_will() -> None:
    # With mosquitto only: amqtt sends a will after about one clean leave in forty, a race of its own.
    async with running("mosquitto") as url, subscribed(url, "node/#") as inbox:
        async with MqttClient(
            url=url, will=Outgoing(topic="node/a/status", payload=b"offline", qos=1, retain=True)
        ) as bus:
            await eventually(lambda: bus.connected)
        async with MqttClient(url=url) as bus:
            bus.publish("node/b/status", b"the next thing that happens", qos=1)
            assert await bus.flush(10.0)
        await eventually(lambda: inbox.messages)
        assert inbox.payloads == [b"the next thing that happens"]


@both
async def test_the_birth_message_comes_first_at_each_connection(kind: Kind) -> None:
    birth = Outgoing(topic="node/a/status", payload=b"online", qos=1, retain=True)
    async with running(kind) as url, subscribed(url, "node/#") as inbox, proxied(url) as proxy:
        bus = MqttClient(url=proxy.url, birth=lambda: [birth])
        bus.publish("node/a/limit", b"250", qos=1)
        async with bus:
            await eventually(lambda: inbox.payloads == [b"online", b"250"])
            assert await bus.flush(10.0)  # what was not acknowledged would come again
            proxy.cut()
            await eventually(lambda: inbox.payloads[2:] == [b"online"])


@both
async def test_unrequested_messages_reach_no_handler(kind: Kind) -> None:
    inbox = Inbox()
    async with running(kind) as url, subscribed(url, "secret/#"):
        async with MqttClient(url=url) as bus:
            bus.publish("secret/topic", b"stray", qos=1, retain=True)
            assert await bus.flush(10.0)
        async with MqttClient(url=url) as bus:
            bus.subscribe("mine/+", inbox)
            await eventually(lambda: bus.connected)
            bus.publish("mine/topic", b"wanted", qos=1)
            await eventually(lambda: inbox.messages)
            assert set(inbox.messages) == {("mine/topic", b"wanted")}


@both
async def test_a_handler_that_raises_does_not_end_the_connection(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()

    def broken(topic: str, payload: bytes) -> None:
        raise ZeroDivisionError(topic, payload)

    async with running(kind) as url, MqttClient(url=url) as bus:
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
    async with running(kind) as url, MqttClient(url=url) as bus:
        bus.subscribe("topic", inbox)
        await eventually(lambda: bus.connected)
        bus.publish("topic", bytes((1 << 20) + 1))
        bus.publish("topic", b"small", qos=1)
        await eventually(lambda: inbox.messages)
        assert set(inbox.payloads) == {b"small"}


@both
async def test_no_qos_1_message_is_lost_when_the_connection_is_cut(kind: Kind) -> None:
    async with running(kind) as url, subscribed(url, "numbers") as inbox, proxied(url) as proxy:
        async with MqttClient(url=proxy.url) as bus:
            await eventually(lambda: bus.connected)
            for number in range(1_000):
                bus.publish("numbers", b"%d" % number, qos=1)
            await eventually(lambda: len(inbox.messages) >= 50)
            proxy.cut()
            assert await bus.flush(10.0)
        await eventually(lambda: {int(payload) for payload in inbox.payloads} == set(range(1_000)))


async def test_a_refused_subscription_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    # Of the two only amqtt refuses a subscription; mosquitto accepts it and delivers nothing.
    port = free_port()
    plugins = {
        "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
        "amqtt.plugins.topic_checking.TopicTabooPlugin": {},  # it forbids `top-secret`
    }
    server = Broker({"listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}}, "plugins": plugins})
    await server.start()
    async with MqttClient(url=f"mqtt://127.0.0.1:{port}") as bus:
        bus.subscribe("mine/#", Inbox())
        bus.subscribe("top-secret", Inbox())
        await eventually(lambda: bus.connected)
        assert bus.last_error == "the broker refuses the subscription to top-secret: check its access rules"
    await server.shutdown()
    assert caplog.text.count("refuses the subscription") == 1


async def test_disconnecting_without_a_broker_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    began_s = asyncio.get_running_loop().time()
    async with MqttClient(url="mqtt://127.0.0.1:1") as bus:
        bus.publish("topic", b"never sent")
        await eventually(lambda: bus.last_error)
    assert asyncio.get_running_loop().time() - began_s < OPERATION_TIMEOUT_S - 1.0
    assert "disconnecting with 1 messages unsent" in caplog.text
    assert bus.last_error is not None
    assert "nothing listens at 127.0.0.1:1" in bus.last_error


async def test_disconnecting_survives_a_simultaneous_acknowledgement(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, published = aiomqtt.Client.publish, asyncio.Event()

    async def lose_the_cancellation(client: aiomqtt.Client, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 — aiomqtt's own
        await publish(client, *arguments, **options)
        published.set()
        with suppress(asyncio.CancelledError):  # as `asyncio.wait_for` does in Python 3.11, where both come at once
            await asyncio.Event().wait()

    monkeypatch.setattr(aiomqtt.Client, "publish", lose_the_cancellation)
    async with asyncio.timeout(TIMEOUT_S), MqttClient(url=broker.url, birth=lambda: [Outgoing(topic="a", payload=b"")]):
        await published.wait()


async def test_an_exception_of_the_body_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        async with MqttClient(url="mqtt://127.0.0.1:1"):
            raise ZeroDivisionError


async def test_a_bug_in_the_birth_messages_ends_the_body(broker: Mosquitto) -> None:
    def broken() -> list[Outgoing]:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        async with MqttClient(url=broker.url, birth=broken):
            await asyncio.Event().wait()
    assert raised.group_contains(ZeroDivisionError)


async def test_after_a_crash_of_the_broker_everything_is_restored(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    inbox, birth = Inbox(), Outgoing(topic="node/a/status", payload=b"online", qos=1, retain=True)
    async with MqttClient(url=broker.url, birth=lambda: [birth]) as bus:
        bus.subscribe("command", inbox)
        bus.publish("node/a/limit", b"300", qos=1, retain=True)
        bus.publish("node/a/energy", b"1", retain=True)
        assert await bus.flush(10.0)
        broker.kill()
        await eventually(lambda: not bus.connected)
        for limit in (b"280", b"260"):
            bus.publish("node/a/limit", limit, qos=1, retain=True)
        broker.start()
        async with subscribed(broker.url, "node/#") as state:
            await eventually(lambda: bus.connected)
            expected = {"node/a/status": b"online", "node/a/limit": b"260", "node/a/energy": b"1"}
            await eventually(lambda: dict(state.messages) == expected)
            bus.publish("command", b"stop", qos=1)
            await eventually(lambda: inbox.payloads == [b"stop"])
    lines = [record.message for record in caplog.records if record.name == "publishers.mqtt.client"]
    assert sum("connected to the broker" in line for line in lines) == 2 + 1  # twice the bus, once the subscriber
    assert sum("trying again" in line for line in lines) <= 2  # the loss, and that nothing listens now
    assert "Traceback" not in caplog.text


async def test_tls_with_a_password_works(secure_broker: SecureMosquitto) -> None:
    inbox = Inbox()
    async with MqttClient(
        url=secure_broker.url,
        username=secure_broker.username,
        password=secure_broker.password,
        ca_file=secure_broker.ca_file,
    ) as bus:
        bus.subscribe("topic", inbox)
        await eventually(lambda: bus.connected)
        bus.publish("topic", bytes(500_000), qos=1)
        await eventually(lambda: inbox.payloads == [bytes(500_000)])


async def test_a_wrong_password_is_logged_once(
    secure_broker: SecureMosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    async with MqttClient(
        url=secure_broker.url, username="node", password="wrong", ca_file=secure_broker.ca_file
    ) as bus:
        await eventually(lambda: bus.last_error)
        assert not bus.connected
    assert bus.last_error == (
        f"the broker at 127.0.0.1:{secure_broker.port} does not accept user 'node' with this password:"
        " check the user name and the password"
    )
    assert caplog.text.count("does not accept user") == 1
    assert "wrong" not in caplog.text


# paho leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
async def test_an_untrusted_certificate_is_reported(
    secure_broker: SecureMosquitto, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = tmp_path_factory.mktemp("stranger")
    make_certificates(stranger)
    async with MqttClient(
        url=secure_broker.url, ca_file=str(stranger / "ca.crt"), setting_names=SettingNames.of_table("bus")
    ) as bus:
        await eventually(lambda: bus.last_error)
    assert bus.last_error is not None
    assert "is not trusted" in bus.last_error
    assert "bus.ca_file" in bus.last_error


async def test_a_reconnection_publishes_its_birth_after_the_old_will(broker: Mosquitto) -> None:
    # The broker has not noticed yet that the first connection is dead: its will must not come after the second birth.
    will, birth = (
        Outgoing(topic="status", payload=b"offline", qos=1, retain=True),
        Outgoing(topic="status", payload=b"online", retain=True),
    )
    async with (
        subscribed(broker.url, "status") as inbox,
        MqttClient(url=broker.url, identifier="node-a", will=will, birth=lambda: [birth]) as first,
    ):
        await eventually(lambda: first.connected)
        async with MqttClient(url=broker.url, identifier="node-a", will=will, birth=lambda: [birth]) as second:
            await eventually(lambda: second.connected)
            await eventually(lambda: len(inbox.messages) >= 3)
            assert inbox.payloads[:3] == [b"online", b"offline", b"online"]


# paho leaves the socket of a failed handshake to the garbage collector.
failed_handshake = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")


@asynccontextmanager
async def silence() -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Something that takes connections and never says a word."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", writers
    server.close()
    for writer in writers:
        writer.close()


async def test_a_probe_of_a_working_broker_finds_no_fault(broker: Mosquitto, secure_broker: SecureMosquitto) -> None:
    assert await probe_broker(broker.url) is None
    password, ca_file = secure_broker.password, secure_broker.ca_file
    assert await probe_broker(secure_broker.url, username="node", password=password, ca_file=ca_file) is None


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mqtt://127.0.0.1:1", "nothing listens at 127.0.0.1:1: start a broker"),
        ("mqtt://no-such-host.invalid", "the name 'no-such-host.invalid' cannot be resolved"),
        ("http://127.0.0.1", "must be mqtt://host[:port]"),
    ],
)
async def test_a_probe_says_why_there_is_no_connection(url: str, sentence: str) -> None:
    assert sentence in str(await probe_broker(url))


@failed_handshake
async def test_a_probe_names_missing_credentials_and_certificates(secure_broker: SecureMosquitto) -> None:
    url, ca_file = secure_broker.url, secure_broker.ca_file
    assert "asks for a user name and a password" in str(await probe_broker(url, ca_file=ca_file))
    assert "is not trusted" in str(await probe_broker(url))
    assert "/no/such/file, cannot be used: No such file" in str(await probe_broker(url, ca_file="/no/such/file"))
    plain = url.replace("mqtts://", "mqtt://")
    assert "a broker with TLS needs mqtts://" in str(await probe_broker(plain, timeout_s=1.0))


@failed_handshake
async def test_a_probe_with_tls_of_a_broker_without_is_explained(broker: Mosquitto) -> None:
    assert "does it use TLS on this port" in str(await probe_broker(broker.url.replace("mqtt://", "mqtts://")))


async def test_a_probe_of_a_silent_server_ends_in_time() -> None:
    async with silence() as (url, _):
        assert "does not answer in time" in str(await probe_broker(url, timeout_s=0.5))


async def test_disconnecting_during_an_attempt_to_connect_is_quick() -> None:
    began_s = asyncio.get_running_loop().time()
    async with silence() as (url, writers), MqttClient(url=url) as bus:
        bus.publish("topic", b"never sent")
        await eventually(lambda: writers)
    assert asyncio.get_running_loop().time() - began_s < OPERATION_TIMEOUT_S - 1.0


async def test_the_exception_handler_drops_known_noise_and_passes_bugs_on(broker: Mosquitto) -> None:
    reported: list[str] = []

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reported.append(repr(context["exception"]))

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report)
    async with MqttClient(url=broker.url) as bus:
        await eventually(lambda: bus.connected)
        loop.call_soon(loop.add_writer, 9_999, print)  # no such descriptor: as aiomqtt does when the broker dies
        loop.call_soon(lambda: 1 // 0)
        await eventually(lambda: reported)
    assert reported == ["ZeroDivisionError('integer division or modulo by zero')"]
