"""The training side's connection at a broker that refuses messages: each costs itself alone."""

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial

import pytest

from gridchase import Publisher
from publishers.messages.codec import Outgoing, decode
from publishers.messages.training import RankStatus
from publishers.mqtt.broker_address import BrokerAddress
from publishers.training.paho_client import KEEPALIVE_S, PahoConnection, PahoReceipt
from tests.live.broker.closing_broker import ClosingBroker, serving
from tests.live.conftest import TIMEOUT_S

pytestmark = pytest.mark.live
MAX_BYTES = 1_000
STATES_MAX_BYTES, STATES_NO_RETAIN = b"\x27\x00\x00\x03\xe8", b"\x25\x00"
WILL = Outgoing(topic="status", payload=b"lost", qos=1, retain=True)


def is_long(message: Outgoing) -> bool:
    return len(message.payload) > MAX_BYTES


def is_retained(message: Outgoing) -> bool:
    return message.retain


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_RETRY_DELAY_S", "MAX_RETRY_DELAY_S"):
        monkeypatch.setattr(f"publishers.training.paho_client.{name}", 0.001)


def work(connection: PahoConnection, until: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not until():
        assert time.monotonic() < deadline_s, "the condition did not hold in time"
        connection.work(0.01)


def use(url: str, messages: list[Outgoing]) -> PahoConnection:
    """Connect, and publish messages."""
    connection = PahoConnection(BrokerAddress(url=url), WILL)
    work(connection, connection.is_connected)
    send(connection, *messages)
    return connection


def send(connection: PahoConnection, *messages: Outgoing) -> None:
    """Publish messages, and wait until each has left or is refused; none may be lost."""
    receipts = [connection.publish(each.topic, each.payload, qos=each.qos, retain=each.retain) for each in messages]
    work(connection, partial(all_done, receipts))


def all_done(receipts: list[PahoReceipt]) -> bool:
    return all(receipt.done for receipt in receipts)


@pytest.mark.parametrize("stated", [None, b"", STATES_MAX_BYTES])
async def test_a_message_that_is_too_long_costs_itself_alone(
    stated: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [
        Outgoing(topic=f"metric/{number}", payload=bytes(2 * MAX_BYTES if number == 9 else 1), qos=1)
        for number in range(30)
    ]
    async with serving(ClosingBroker(refuses=is_long, stated=stated)) as broker:
        connection = await asyncio.to_thread(use, broker.url, messages)
        assert [message for message in messages if message not in broker.taken] == [messages[9]]
        assert broker.n_connections <= 4
        connection.close()
    assert sum("metric/9: " in line for line in caplog.messages) == 1


async def test_a_broker_that_crashes_again_and_again_refuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    metrics = [Outgoing(topic=f"metric/{number}", payload=b"1", qos=1) for number in range(3)]
    async with serving(ClosingBroker(n_crashes=6)) as broker:
        connection = await asyncio.to_thread(use, broker.url, metrics)
        assert broker.taken == metrics
        assert broker.n_crashes == 0
        connection.close()
    assert "dropped" not in caplog.text


async def test_a_loss_that_shows_in_publishing_is_a_loss_and_the_message_waits() -> None:
    async with serving(ClosingBroker()) as broker:
        connection = await asyncio.to_thread(use, broker.url, [])
        connection._client.socket().shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]  # it is connected
        receipt = connection.publish("metric", b"1", qos=1)
        assert not receipt.done
        connection.work()
        assert connection.failures == 1
        await asyncio.to_thread(work, connection, lambda: receipt.done)
        assert [message.topic for message in broker.taken] == ["metric"]
        connection.close()


async def test_iterations_that_are_too_long_are_not_sent_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    iterations = Outgoing(topic="iterations", payload=bytes(2 * MAX_BYTES))
    async with serving(ClosingBroker(refuses=is_long)) as broker:
        connection = await asyncio.to_thread(use, broker.url, [])
        for number in range(10):
            metric = Outgoing(topic="metric", payload=b"%d" % number, qos=1)
            await asyncio.to_thread(send, connection, iterations, metric)
        assert {int(message.payload) for message in broker.taken} == set(range(10))
        assert broker.n_connections <= 5
        connection.close()
    assert sum("iterations: " in line for line in caplog.messages) == 1


COMMAND = f"{'x' * MAX_BYTES}/command"
TOPICS = ["notice", "energy", COMMAND]


def listen(url: str, received: dict[str, bytes]) -> PahoConnection:
    """Subscribe, publish a message, and wait until the broker has taken everything that it takes."""
    connection = PahoConnection(BrokerAddress(url=url), WILL)
    for topic in TOPICS:
        connection.subscribe(topic, partial(received.__setitem__, topic))
    receipt = connection.publish("status", b"running", qos=1)
    work(connection, lambda: receipt.done and connection.is_subscribed())
    return connection


@pytest.mark.parametrize("stated", [None, STATES_MAX_BYTES])
async def test_a_subscription_that_is_refused_costs_itself_alone(
    stated: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = ClosingBroker(
        refuses_filters=lambda topics: COMMAND in topics, denied=frozenset({"energy"}), stated=stated
    )
    async with serving(refusing) as broker:
        connection = await asyncio.to_thread(listen, broker.url, {})
        assert {topic for packet in broker.subscribed for topic in packet} == {"notice", "energy"}
        assert broker.n_connections <= 5
        assert broker.taken == [Outgoing(topic="status", payload=b"running", qos=1)]
        connection.close()
    (left_out,) = [line for line in caplog.messages if COMMAND in line]
    assert stated is None or "a packet of 1016 bytes; the broker takes at most 1000" in left_out
    denied = "the broker refuses the subscription to energy: check its access rules"
    assert sorted(caplog.messages) == sorted([denied, left_out])


async def test_a_subscription_without_an_answer_holds_no_message_and_no_other_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = [Outgoing(topic="metric", payload=b"%d" % number, qos=1) for number in range(3)]
    async with serving(ClosingBroker(leaves_unanswered=lambda topics: "notice" in topics)) as broker:
        connection = PahoConnection(BrokerAddress(url=broker.url), WILL)
        connection.subscribe("notice", lambda _: None)
        await asyncio.to_thread(work, connection, connection.is_connected)
        connection.subscribe("energy", lambda _: None)
        await asyncio.to_thread(send, connection, *metrics)
        assert broker.taken == metrics
        assert broker.subscribed == [["notice"]]
        assert not connection.is_subscribed()
        monkeypatch.setattr(connection, "_answer_due_s", 0.0)
        await asyncio.to_thread(work, connection, connection.is_subscribed)
        assert broker.subscribed == [["notice"], ["energy"]]
        connection.close()
    assert caplog.messages == [
        "the broker does not answer the subscription to notice: check its log and its access rules"
    ]


@pytest.mark.parametrize("ends", ["deadline", "last message"])
async def test_a_suspect_subscription_without_an_answer_holds_messages_back_for_a_while(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = Outgoing(topic="status", payload=b"finished", qos=1)
    async with serving(ClosingBroker(leaves_unanswered=lambda topics: "notice" in topics)) as broker:
        connection = PahoConnection(BrokerAddress(url=broker.url), WILL)
        connection.subscribe("notice", lambda _: None)
        await asyncio.to_thread(work, connection, lambda: broker.subscribed)
        await broker.end()
        await asyncio.to_thread(work, connection, lambda: len(broker.subscribed) == 2)
        assert connection._refusals.is_suspect_filter("notice")
        receipts = [connection.publish("status", b"finished", qos=1)]
        connection.work()
        assert connection._in_flight == {}
        if ends == "deadline":
            monkeypatch.setattr(connection, "_answer_due_s", 0.0)
        else:
            connection.allow("status")
            receipts.append(connection.publish("status", b"finished", qos=1))
        await asyncio.to_thread(work, connection, partial(all_done, receipts))
        assert broker.taken == [status] * len(receipts)
        connection.close()


async def test_the_last_message_goes_before_a_subscription_that_ends_connections() -> None:
    status = Outgoing(topic="status", payload=b"finished", qos=1)
    async with serving(ClosingBroker(refuses_filters=lambda _: True)) as broker:
        connection = PahoConnection(BrokerAddress(url=broker.url), WILL)
        connection.subscribe("notice", lambda _: None)
        connection.allow("status")
        await asyncio.to_thread(work, connection, lambda: broker.n_connections)
        await asyncio.to_thread(send, connection, status)
        assert broker.taken == [status]
        assert broker.n_connections <= 2
        connection.close()


async def test_a_run_ends_whatever_its_iterations_and_subscriptions_meet() -> None:
    broker = ClosingBroker(
        refuses=lambda message: message.topic.endswith("/iterations"),
        leaves_unanswered=lambda _: True,
    )
    async with serving(broker):
        publisher = Publisher(job="toy", run="r1", rank=0, world_size=1, broker=broker.url)
        await asyncio.to_thread(list, publisher.iterations(range(3)))
        await asyncio.to_thread(publisher.close)
    statuses = [decode(each.payload, RankStatus).state for each in broker.taken if each.topic.endswith("/status")]
    assert statuses[-1] == "finished"
    assert statuses.count("finished") == 1


async def test_a_broker_that_does_not_answer_the_probe_gets_messages_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("publishers.training.paho_client._ANSWER_TIMEOUT_S", 0.01)
    async with serving(ClosingBroker(n_crashes=1, answers_unsubscribe=False)) as broker:
        metric = Outgoing(topic="metric", payload=b"1", qos=1)
        connection = await asyncio.to_thread(use, broker.url, [metric])
        assert broker.taken == [metric]
        assert broker.n_connections == 2
        connection.close()


async def test_a_restarted_broker_is_asked_at_once_for_what_was_left_out() -> None:
    broker = ClosingBroker(refuses_filters=lambda topics: COMMAND in topics)
    async with serving(broker):
        connection = await asyncio.to_thread(listen, broker.url, {})
    broker.refuses_filters = lambda _: False
    n_failures = connection.failures
    await asyncio.to_thread(work, connection, lambda: connection.failures >= n_failures + 2)
    async with serving(broker, port=connection._broker.port):
        await asyncio.to_thread(work, connection, lambda: [COMMAND] in broker.subscribed)
        connection.close()


async def test_what_is_published_at_once_after_an_absence_all_arrives() -> None:
    metrics = [Outgoing(topic="metric", payload=b"%d" % number, qos=1) for number in range(320)]
    async with serving(ClosingBroker()) as broker:
        connection = await asyncio.to_thread(use, broker.url, metrics)
        assert broker.taken == metrics
        connection.close()


async def test_the_last_message_is_tried_whatever_was_refused_before() -> None:
    statuses = [Outgoing(topic="status", payload=state, qos=1, retain=True) for state in (b"running", b"finished")]
    async with serving(ClosingBroker(refuses=is_retained)) as broker:
        connection = await asyncio.to_thread(use, broker.url, statuses[:1])
        broker.refuses = lambda _: False
        await asyncio.to_thread(send, connection, statuses[0])
        assert broker.taken == [], "it is held back for a minute"
        connection.allow("status")
        await asyncio.to_thread(send, connection, statuses[1])
        assert broker.taken == statuses[1:]
        connection.close()


async def test_a_broker_that_goes_with_the_last_status_gets_it_once_it_is_back() -> None:
    n_left = 1

    def goes(message: Outgoing) -> bool:
        nonlocal n_left
        is_last = message.topic.endswith("/status") and decode(message.payload, RankStatus).state == "finished"
        n_left -= is_last
        return is_last and n_left == 0

    async with serving(ClosingBroker(refuses=goes)) as broker:
        publisher = Publisher(job="toy", run="r1", rank=0, world_size=1, broker=broker.url)
        await asyncio.to_thread(list, publisher.iterations(range(3)))
        await asyncio.to_thread(publisher.close)
        statuses = [decode(each.payload, RankStatus) for each in broker.taken if each.topic.endswith("/status")]
        assert statuses[-1].state == "finished"
        assert [status.state for status in statuses].count("finished") == 1


async def test_a_network_that_falls_silent_blames_no_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ahead_s = 0.0
    monkeypatch.setattr("paho.mqtt.client.time_func", lambda: time.monotonic() + ahead_s)
    status = Outgoing(topic="status", payload=b"running", qos=1, retain=True)
    async with serving(ClosingBroker(is_silent=True)) as broker:
        connection = PahoConnection(BrokerAddress(url=broker.url), WILL)
        connection.subscribe("notice", lambda _: None)
        await asyncio.to_thread(work, connection, connection.is_connected)
        receipt = connection.publish(status.topic, status.payload, qos=1, retain=True)
        for n_silences in range(1, 5):
            while connection.failures < n_silences:  # the first period ends with a ping, the second one without answer
                ahead_s += KEEPALIVE_S
                await asyncio.to_thread(connection.work, 0.01)
            assert not connection._refusals.is_suspect("status")
            assert not connection._refusals.is_suspect_filter("notice")
            broker.is_silent = n_silences < 4
            await asyncio.to_thread(work, connection, connection.is_connected)
        await asyncio.to_thread(work, connection, lambda: receipt.done)
        assert broker.taken == [status]
        assert not receipt.refused
        connection.close()
    assert "dropped" not in caplog.text


async def test_without_retained_messages_all_is_published_and_the_will_too(caplog: pytest.LogCaptureFixture) -> None:
    refusing = ClosingBroker(
        refuses=lambda message: message.retain, stated=STATES_NO_RETAIN, refuses_retained_will=True
    )
    async with serving(refusing) as broker:
        running = Outgoing(topic="status", payload=b"running", qos=1, retain=True)
        connection = await asyncio.to_thread(use, broker.url, [running])
        assert broker.taken == [Outgoing(topic="status", payload=b"running", qos=1)]
        connection.close()
    assert caplog.text.count("the broker refuses retained messages") == 1
