"""The clients at a mosquitto with limits: a message that it does not take costs itself alone."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from publishers.messages.codec import Outgoing
from publishers.mqtt.client import MqttClient
from tests.live.broker.test_training_refusals import use
from tests.live.bus_bench import Inbox, subscribed
from tests.live.conftest import Mosquitto, eventually

pytestmark = pytest.mark.live
_CONF = "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_dest stderr\n"
WILL = Outgoing(topic="status", payload=b"offline", qos=1, retain=True)
BIG, SMALL = Outgoing(topic="big", payload=bytes(5_000), qos=1), Outgoing(topic="small", payload=b"1", qos=1)
STATE = Outgoing(topic="state", payload=b"1", qos=1, retain=True)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("publishers.mqtt.client._FIRST_RETRY_DELAY_S", 0.01)
    monkeypatch.setattr("publishers.training.paho_client.FIRST_RETRY_DELAY_S", 0.01)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Callable[[str], Mosquitto]]:
    started: list[Mosquitto] = []

    def start(limits: str) -> Mosquitto:
        mosquitto = Mosquitto(tmp_path, _CONF + limits)
        started.append(mosquitto)
        mosquitto.start()
        return mosquitto

    yield start
    for mosquitto in started:
        mosquitto.stop()


async def arrived(url: str, *messages: Outgoing) -> list[str]:
    """Publish through the asyncio client; return the topics that arrive, up to that of the last message."""
    async with subscribed(url, "#") as inbox, MqttClient(url=url, will=WILL) as bus:
        for message in messages:
            bus.publish(message.topic, message.payload, qos=message.qos, retain=message.retain)
        assert await bus.flush(10.0)
        await eventually(lambda: messages[-1].topic in [topic for topic, _ in inbox.messages])
        return sorted({topic for topic, _ in inbox.messages} - {WILL.topic})


@pytest.mark.parametrize(
    ("limits", "messages", "topics", "line"),
    [
        ("max_packet_size 1000", [BIG, SMALL], ["small"], "big: message dropped: a packet of 5010 bytes"),
        ("retain_available false", [STATE, SMALL], ["small", "state"], "the broker refuses retained messages"),
        ("max_qos 0", [SMALL], ["small"], "the broker takes QoS 0 alone"),
        ("acl_file {directory}/rules", [BIG, SMALL], ["small"], "connected to the broker"),
    ],
)
async def test_what_it_refuses_costs_that_message_alone(
    limited: Callable[[str], Mosquitto],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    limits: str,
    messages: list[Outgoing],
    topics: list[str],
    line: str,
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "rules").write_text("topic readwrite small\ntopic readwrite status\ntopic read #\n")
    (tmp_path / "rules").chmod(0o600)
    broker = limited(limits)
    assert await arrived(broker.url, *messages) == topics
    assert line in caplog.text
    assert sum("dropped" in each or "alone" in each for each in caplog.messages) <= 1


@pytest.mark.parametrize("limits", ["max_packet_size 1000", "retain_available false", "max_qos 0"])
async def test_a_training_loses_no_other_message(limited: Callable[[str], Mosquitto], limits: str) -> None:
    broker = limited(limits)
    async with subscribed(broker.url, "small") as inbox:
        connection = await asyncio.to_thread(use, broker.url, [BIG, STATE, SMALL])
        await eventually(lambda: inbox.payloads)
        connection.close()


async def test_subscriptions_that_fit_no_packet_together_are_all_made(limited: Callable[[str], Mosquitto]) -> None:
    inboxes = {f"node/{number:02}/status": Inbox() for number in range(40)}
    broker = limited("max_packet_size 500")
    async with MqttClient(url=broker.url) as bus:
        for topic, inbox in inboxes.items():
            bus.subscribe(topic, inbox)
        for topic in inboxes:
            bus.publish(topic, b"online", qos=1)
        await eventually(lambda: all(inbox.messages for inbox in inboxes.values()))
        assert bus.last_error is None
