"""The parts of the MQTT client that need no broker: publishing, dispatching, and what an error means."""

import logging
import socket
import ssl

import aiomqtt
import pytest
from aiomqtt.exceptions import MqttConnectError

from publishers.messages.codec import MAX_MESSAGE_BYTES
from publishers.mqtt.aiomqtt_client import explain
from publishers.mqtt.broker_address import BrokerAddress, FaultKind, SettingNames
from publishers.mqtt.client import OUTBOX_SIZE, MqttClient
from publishers.mqtt.receiving.dispatcher import Dispatcher

ADDRESS = BrokerAddress(url="mqtt://broker.example")
NAMES = SettingNames.of_table("bus")


async def test_without_a_broker_messages_are_kept_and_losses_counted() -> None:
    bus = MqttClient(url="mqtt://127.0.0.1:1")
    for number in range(OUTBOX_SIZE + 10):
        bus.publish("events", b"%d" % number)
    assert bus.dropped == 10
    assert not bus.connected


@pytest.mark.parametrize("topic", ["", "job/+/status", "job/#"])
async def test_a_topic_with_wildcards_is_refused_by_publish(topic: str) -> None:
    with pytest.raises(ValueError, match="Invalid topic"):
        MqttClient(url="mqtt://127.0.0.1:1").publish(topic, b"")


async def test_qos_2_is_refused() -> None:
    with pytest.raises(ValueError, match="qos = 2: must be 0 or 1"):
        MqttClient(url="mqtt://127.0.0.1:1").publish("topic", b"", qos=2)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matches"),
    [
        ("job/+/status", "job/a/status", True),
        ("job/+/status", "job/a/b/status", False),
        ("job/#", "job", True),
        ("job/#", "job/a/b", True),
        ("#", "$SYS/broker/uptime", False),
        ("node/a", "node/A", False),
    ],
)
def test_a_handler_gets_only_what_matches_its_filter(topic_filter: str, topic: str, matches: bool) -> None:
    dispatcher, seen = Dispatcher(), list[str]()
    dispatcher.add(topic_filter, lambda topic, _: seen.append(topic), qos=0)
    dispatcher.dispatch(topic, b"")
    assert seen == [topic] * matches


def test_a_flood_of_endless_topics_is_heard_and_not_kept() -> None:
    dispatcher, seen = Dispatcher(), list[int]()
    dispatcher.add("job/+/status", lambda topic, _: seen.append(len(topic)), qos=0)
    for number in range(10_000):
        dispatcher.dispatch(f"job/{number}{'x' * (60_000 if number % 10 == 0 else 0)}/status", b"")
    assert len(seen) == 10_000
    assert sum(map(len, dispatcher._matches)) < 1_000_000


def test_a_message_goes_once_to_each_matching_subscription() -> None:
    dispatcher, seen = Dispatcher(), list[str]()
    dispatcher.add("job/#", lambda _, __: seen.append("job/#"), qos=0)
    dispatcher.add("job/+", lambda _, __: seen.append("job/+"), qos=0)
    dispatcher.add("node/+", lambda _, __: seen.append("node/+"), qos=0)
    dispatcher.dispatch("job/a", b"")
    assert seen == ["job/#", "job/+"]


@pytest.mark.parametrize(("retained", "seen"), [(False, ["live", "any"]), (True, ["kept", "any"])])
def test_retained_messages_go_to_their_own_handler_if_there_is_one(retained: bool, seen: list[str]) -> None:
    dispatcher, told = Dispatcher(), list[str]()
    dispatcher.add("a", lambda _, __: told.append("live"), qos=0, on_retained=lambda _, __: told.append("kept"))
    dispatcher.add("a", lambda _, __: told.append("any"), qos=0)
    dispatcher.dispatch("a", b"", retained)
    assert told == seen


def test_a_later_subscription_gets_topics_seen_before() -> None:
    dispatcher, seen = Dispatcher(), list[str]()
    dispatcher.dispatch("job/a", b"")
    dispatcher.add("job/a", lambda topic, _: seen.append(topic), qos=0)
    dispatcher.dispatch("job/a", b"")
    assert seen == ["job/a"]


def test_one_filter_of_two_handlers_is_requested_once_at_the_higher_qos() -> None:
    dispatcher = Dispatcher()
    dispatcher.add("a", lambda _, __: None, qos=1)
    dispatcher.add("b", lambda _, __: None, qos=0)
    dispatcher.add("a", lambda _, __: None, qos=0)
    assert dispatcher.filters() == {"a": 1, "b": 0}
    assert dispatcher.take_changes() == ["a", "b"]
    assert dispatcher.take_changes() == []


def test_a_removed_handler_gets_nothing_and_its_filter_goes_with_its_last_one() -> None:
    dispatcher, seen, others = Dispatcher(), list[str](), list[str]()

    def handler(topic: str, _: bytes) -> None:
        seen.append(topic)

    dispatcher.add("a/+", handler, qos=1)
    dispatcher.add("a/+", lambda topic, _: others.append(topic), qos=0)
    dispatcher.dispatch("a/b", b"")
    dispatcher.take_changes()
    dispatcher.remove("a/+", handler)
    dispatcher.remove("a/+", handler)
    dispatcher.dispatch("a/b", b"")
    assert (len(seen), len(others)) == (1, 2)
    assert dispatcher.filters() == {"a/+": 0}
    assert dispatcher.take_changes() == ["a/+"]


def test_an_oversized_message_is_dropped_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher, seen = Dispatcher(), list[int]()
    dispatcher.add("a", lambda _, payload: seen.append(len(payload)), qos=0)
    for n_bytes in (MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1, MAX_MESSAGE_BYTES + 1):
        dispatcher.dispatch("a", bytes(n_bytes))
    assert seen == [MAX_MESSAGE_BYTES]
    assert dispatcher.oversized == 2
    assert caplog.text.count("too long") == 1


def test_a_failing_handler_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher, numbers = Dispatcher(), list[int]()
    dispatcher.add("a", lambda _, payload: numbers.append(int(payload)), qos=0)
    for _ in range(3):
        dispatcher.dispatch("a", b"no number")
    assert dispatcher.handler_errors == 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("topic_filter", ["", "job/#/status", "job+"])
def test_an_invalid_topic_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(ValueError, match="Invalid wildcard"):
        Dispatcher().add(topic_filter, lambda _, __: None, qos=0)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), FaultKind.REFUSED, "start a broker"),
        (socket.gaierror(-2, "Name or service not known"), FaultKind.NAME, "cannot be resolved"),
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), FaultKind.TLS, "does it use TLS on this port?"),
        (TimeoutError(), FaultKind.TIMEOUT, "does not answer in time"),
        (ConnectionAbortedError(), FaultKind.OTHER, "closes the connection without an answer"),
        (aiomqtt.MqttError("Operation timed out"), FaultKind.TIMEOUT, "does not answer in time"),
        (OSError(113, "No route to host"), FaultKind.OTHER, "No route to host"),
        (aiomqtt.MqttCodeError(7), FaultKind.OTHER, "The connection was lost"),
        (MqttConnectError(135), FaultKind.CREDENTIALS, "set bus.username and bus.password_file"),
    ],
)
def test_every_error_is_explained(error: Exception, kind: FaultKind, words: str) -> None:
    fault = explain(ADDRESS, error)
    assert fault.kind is kind
    assert words in fault.sentence(NAMES)
    assert "broker.example" in fault.sentence(NAMES)


def test_the_cause_of_a_client_error_is_explained() -> None:
    hidden = aiomqtt.MqttError("[Errno 111] Connection refused")
    hidden.__context__ = ConnectionRefusedError(111, "Connection refused")
    assert explain(ADDRESS, hidden).kind is FaultKind.REFUSED
