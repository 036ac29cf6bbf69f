"""The parts of the bus that need no broker: the outbox, the dispatcher, the endpoint."""

import logging
import socket
import ssl

import aiomqtt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from publishers.mqtt.broker_address import BrokerAddress, Trouble
from publishers.mqtt.client import MAX_PAYLOAD_BYTES, OUTBOX_SIZE, Dispatcher, MqttClient, Outgoing
from publishers.mqtt.outbox import Outbox

ENDPOINT = BrokerAddress(url="mqtt://broker.example")


def event(number: int) -> Outgoing:
    return Outgoing(topic="events", payload=b"%d" % number)


def state(topic: str, value: int) -> Outgoing:
    return Outgoing(topic=topic, payload=b"%d" % value, qos=1, retain=True)


async def drain(outbox: Outbox) -> list[tuple[str, int]]:
    taken = []
    while not outbox.settled.is_set():
        number, message = await outbox.get()
        outbox.confirm(number)
        taken.append((message.topic, int(message.payload)))
    return taken


async def test_messages_leave_the_outbox_in_their_order() -> None:
    outbox = Outbox(10)
    for message in (event(1), state("limit", 2), event(3), state("power", 4)):
        outbox.put(message, latest_only=True)
    assert await drain(outbox) == [("events", 1), ("limit", 2), ("events", 3), ("power", 4)]


async def test_a_full_outbox_drops_its_oldest_event_and_counts_it() -> None:
    outbox = Outbox(3)
    for number in range(5):
        outbox.put(event(number), latest_only=True)
    assert outbox.dropped == 2
    assert await drain(outbox) == [("events", 2), ("events", 3), ("events", 4)]


async def test_a_full_outbox_keeps_its_state_as_long_as_there_are_events_to_drop() -> None:
    outbox = Outbox(3)
    outbox.put(state("limit", 250), latest_only=True)
    for number in range(5):
        outbox.put(event(number), latest_only=True)
    assert await drain(outbox) == [("limit", 250), ("events", 3), ("events", 4)]


async def test_more_state_than_the_outbox_holds_drops_the_oldest() -> None:
    outbox = Outbox(3)
    for number in range(5):
        outbox.put(state(f"node/{number}", number), latest_only=True)
    assert outbox.dropped == 2
    assert await drain(outbox) == [("node/2", 2), ("node/3", 3), ("node/4", 4)]


async def test_while_the_broker_is_away_only_the_latest_state_of_a_topic_is_kept() -> None:
    outbox = Outbox(10)
    for message in (state("limit", 1), event(2), state("limit", 3)):
        outbox.put(message, latest_only=True)
    assert await drain(outbox) == [("events", 2), ("limit", 3)]
    assert outbox.dropped == 0


async def test_while_the_broker_is_there_every_change_of_state_is_sent() -> None:
    outbox = Outbox(10)
    outbox.put(state("limit", 1), latest_only=False)
    outbox.put(state("limit", 2), latest_only=False)
    assert await drain(outbox) == [("limit", 1), ("limit", 2)]


async def test_what_was_on_its_way_when_the_connection_ended_goes_first() -> None:
    outbox = Outbox(10)
    for number in range(3):
        outbox.put(event(number), latest_only=False)
    await outbox.get()
    await outbox.get()
    outbox.recover()
    assert await drain(outbox) == [("events", 0), ("events", 1), ("events", 2)]


async def test_state_that_was_on_its_way_gives_way_to_a_later_one() -> None:
    outbox = Outbox(10)
    outbox.put(state("limit", 1), latest_only=False)
    await outbox.get()
    outbox.put(state("limit", 2), latest_only=True)
    outbox.recover()
    assert await drain(outbox) == [("limit", 2)]


async def test_after_a_loss_the_latest_delivered_state_is_sent_again_but_births_and_cleared_topics() -> None:
    outbox = Outbox(10)
    cleared = Outgoing(topic="run", payload=b"", retain=True)
    for message in (state("limit", 1), state("status", 2), state("run", 3), state("limit", 4), cleared, event(5)):
        outbox.put(message, latest_only=False)
    while not outbox.settled.is_set():
        outbox.confirm((await outbox.get())[0])
    outbox.put(state("power", 6), latest_only=True)
    outbox.repeat_state(but={"status"})
    assert await drain(outbox) == [("limit", 4), ("power", 6)]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=60), st.integers(1, 8))
def test_an_outbox_never_holds_more_than_its_size(puts: list[tuple[str, bool]], size: int) -> None:
    outbox = Outbox(size)
    for topic, retain in puts:
        outbox.put(Outgoing(topic=topic, payload=b"1", retain=retain), latest_only=True)
        assert len(outbox) <= size
    n_superseded = sum(retain for _, retain in puts) - len({topic for topic, retain in puts if retain})
    assert len(outbox) + outbox.dropped + n_superseded >= len(puts)


async def test_a_bus_without_a_broker_takes_messages_and_counts_what_it_loses() -> None:
    bus = MqttClient(url="mqtt://127.0.0.1:1")
    for number in range(OUTBOX_SIZE + 10):
        bus.publish("events", b"%d" % number)
    assert bus.dropped == 10
    assert not bus.connected


@pytest.mark.parametrize("topic", ["", "job/+/status", "job/#"])
async def test_a_topic_to_which_nobody_can_publish_is_refused_at_once(topic: str) -> None:
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
def test_a_handler_gets_what_matches_its_filter_and_nothing_else(topic_filter: str, topic: str, matches: bool) -> None:
    dispatcher, seen = Dispatcher(), list[str]()
    dispatcher.add(topic_filter, lambda topic, _: seen.append(topic), qos=0)
    dispatcher.deliver(topic, b"")
    assert seen == [topic] * matches


def test_a_message_goes_once_to_each_subscription_that_it_matches() -> None:
    dispatcher, seen = Dispatcher(), list[str]()
    dispatcher.add("job/#", lambda _, __: seen.append("job/#"), qos=0)
    dispatcher.add("job/+", lambda _, __: seen.append("job/+"), qos=0)
    dispatcher.add("node/+", lambda _, __: seen.append("node/+"), qos=0)
    dispatcher.deliver("job/a", b"")
    assert seen == ["job/#", "job/+"]


@pytest.mark.parametrize(("retained", "seen"), [(False, ["live", "any"]), (True, ["kept", "any"])])
def test_who_asks_for_it_is_told_what_the_broker_had_kept(retained: bool, seen: list[str]) -> None:
    dispatcher, told = Dispatcher(), list[str]()
    dispatcher.add("a", lambda _, __: told.append("live"), qos=0, on_retained=lambda _, __: told.append("kept"))
    dispatcher.add("a", lambda _, __: told.append("any"), qos=0)
    dispatcher.deliver("a", b"", retained)
    assert told == seen


def test_a_subscription_that_comes_later_gets_topics_that_were_seen_before() -> None:
    dispatcher, seen = Dispatcher(), list[str]()
    dispatcher.deliver("job/a", b"")
    dispatcher.add("job/a", lambda topic, _: seen.append(topic), qos=0)
    dispatcher.deliver("job/a", b"")
    assert seen == ["job/a"]


def test_one_filter_of_two_handlers_is_asked_for_once_with_the_higher_qos() -> None:
    dispatcher = Dispatcher()
    dispatcher.add("a", lambda _, __: None, qos=1)
    dispatcher.add("b", lambda _, __: None, qos=0)
    dispatcher.add("a", lambda _, __: None, qos=0)
    assert dispatcher.filters() == {"a": 1, "b": 0}
    assert dispatcher.filters(since=2) == {"a": 1}


def test_a_message_that_is_too_long_is_dropped_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher, seen = Dispatcher(), list[int]()
    dispatcher.add("a", lambda _, payload: seen.append(len(payload)), qos=0)
    for n_bytes in (MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES + 1, MAX_PAYLOAD_BYTES + 1):
        dispatcher.deliver("a", bytes(n_bytes))
    assert seen == [MAX_PAYLOAD_BYTES]
    assert dispatcher.oversized == 2
    assert caplog.text.count("too long") == 1


def test_a_handler_that_always_raises_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher, numbers = Dispatcher(), list[int]()
    dispatcher.add("a", lambda _, payload: numbers.append(int(payload)), qos=0)
    for _ in range(3):
        dispatcher.deliver("a", b"no number")
    assert dispatcher.handler_errors == 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("topic_filter", ["", "job/#/status", "job+"])
def test_a_filter_that_mqtt_forbids_is_refused_at_once(topic_filter: str) -> None:
    with pytest.raises(ValueError, match="Invalid wildcard"):
        Dispatcher().add(topic_filter, lambda _, __: None, qos=0)


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("mqtt://broker", "broker", 1883, False),
        ("mqtts://broker", "broker", 8883, True),
        ("mqtt://127.0.0.1:11883/", "127.0.0.1", 11883, False),
        ("mqtts://[::1]:18883", "::1", 18883, True),
    ],
)
def test_a_url_is_taken_apart(url: str, host: str, port: int, tls: bool) -> None:
    endpoint = BrokerAddress(url=url)
    assert (endpoint.host, endpoint.port, endpoint.tls) == (host, port, tls)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "broker:1883",
        "http://broker",
        "mqtt://",
        "mqtt://broker:99999",
        "mqtt://broker:0",
        "mqtt://bro ker",
        "mqtt://broker/path",
        "mqtt://broker?path",
        "mqtt://broker#path",
        "mqtt://[::1",
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is no broker's URL"):
        BrokerAddress(url=url)


@pytest.mark.parametrize("secret", ["secret", "sec/ret", "sec:ret", "sec#ret", "s@cret", "secret@broker:99999 "])
def test_a_url_with_a_password_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(ValueError, match="must hold no user name") as caught:
        BrokerAddress(url=f"mqtt://ada:{secret}@broker")
    assert "ret" not in str(caught.value)


def test_a_password_is_in_no_representation() -> None:
    assert "secret" not in repr(BrokerAddress(url="mqtt://broker", username="a", password="secret"))


@pytest.mark.parametrize(
    ("error", "trouble", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), Trouble.REFUSED, "start a broker"),
        (socket.gaierror(-2, "Name or service not known"), Trouble.NAME, "cannot be resolved"),
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), Trouble.TLS, "does it speak TLS at this port?"),
        (TimeoutError(), Trouble.TIMEOUT, "does not answer in time"),
        (aiomqtt.MqttError("Operation timed out"), Trouble.TIMEOUT, "does not answer in time"),
        (OSError(113, "No route to host"), Trouble.OTHER, "No route to host"),
        (aiomqtt.MqttCodeError(7), Trouble.OTHER, "The connection was lost"),
    ],
)
def test_every_failure_says_what_it_means(error: Exception, trouble: Trouble, words: str) -> None:
    fault = ENDPOINT.explain(error)
    assert fault.trouble is trouble
    assert words in fault.sentence
    assert "broker.example" in fault.sentence


def test_what_an_error_of_the_client_hides_is_explained_instead() -> None:
    hidden = aiomqtt.MqttError("[Errno 111] Connection refused")
    hidden.__context__ = ConnectionRefusedError(111, "Connection refused")
    assert ENDPOINT.explain(hidden).trouble is Trouble.REFUSED
