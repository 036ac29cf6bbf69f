"""The bus and brokers that refuse, crash or are not there: what it says, and what is there again afterwards."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import aiomqtt
import pytest
from amqtt.broker import Broker

from publishers.bus import Bus, Outgoing, Will
from publishers.link import OPERATION_TIMEOUT_S
from tests.live.bus_bench import Inbox, subscribed
from tests.live.conftest import TIMEOUT_S, Mosquitto, SecureMosquitto, eventually, free_port, make_certificates

pytestmark = pytest.mark.live


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
    assert asyncio.get_running_loop().time() - began_s < OPERATION_TIMEOUT_S - 1.0
    assert "left the bus with 1 messages unsent" in caplog.text
    assert bus.last_error is not None
    assert "nothing listens at 127.0.0.1:1" in bus.last_error


async def test_leaving_ends_also_where_an_acknowledgement_comes_together_with_it(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, published = aiomqtt.Client.publish, asyncio.Event()

    async def lose_the_cancellation(client: aiomqtt.Client, *arguments: Any) -> None:  # noqa: ANN401 — aiomqtt's own
        await publish(client, *arguments)
        published.set()
        with suppress(asyncio.CancelledError):  # as `asyncio.wait_for` does in Python 3.11, where both come at once
            await asyncio.Event().wait()

    monkeypatch.setattr(aiomqtt.Client, "publish", lose_the_cancellation)
    async with asyncio.timeout(TIMEOUT_S), Bus(url=broker.url, birth=lambda: [Outgoing(topic="a", payload=b"")]):
        await published.wait()


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
