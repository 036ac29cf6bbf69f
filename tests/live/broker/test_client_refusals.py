"""The asyncio client at a broker that refuses messages: each costs itself alone."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress
from publishers.mqtt.broker_limits import BrokerLimits, fetch_limits, subscribe_bytes
from publishers.mqtt.client import MqttClient
from publishers.mqtt.sending.refusals import MIN_REFUSAL_S, Refusals
from tests.live.broker.closing_broker import ClosingBroker, serving
from tests.live.conftest import eventually

pytestmark = pytest.mark.live

MAX_BYTES = 1_000
STATES_MAX_BYTES = b"\x27\x00\x00\x03\xe8"
STATES_NO_RETAIN, STATES_QOS_0 = b"\x25\x00", b"\x24\x00"


def is_long(message: Outgoing) -> bool:
    return len(message.payload) > MAX_BYTES


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_RETRY_DELAY_S", "MAX_RETRY_DELAY_S"):
        monkeypatch.setattr(f"publishers.mqtt.client.{name}", 0.001)


@dataclass
class RefusalClock:
    """How refusals tell time; it stands still, however slow the machine is, until the shortest one is let end."""

    now_s: float = 0.0

    def end_refusal(self) -> None:
        self.now_s += MIN_REFUSAL_S


@pytest.fixture
def refusal_clock(monkeypatch: pytest.MonkeyPatch) -> RefusalClock:
    clock = RefusalClock()
    monkeypatch.setattr("publishers.mqtt.client.Refusals", lambda _: Refusals(lambda: clock.now_s))
    monkeypatch.setattr("publishers.mqtt.client._WATCH_PERIOD_S", 0.01)
    return clock


def ignore(topic: str, payload: bytes) -> None:
    del topic, payload


def topics(broker: ClosingBroker) -> set[str]:
    return {message.topic for message in broker.taken}


@pytest.mark.parametrize("stated", [None, b"", STATES_MAX_BYTES])
async def test_a_message_that_is_too_long_costs_itself_alone(
    stated: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ClosingBroker(refuses=is_long, stated=stated)) as broker, MqttClient(url=broker.url) as bus:
        for number in range(50):
            n_bytes = 2 * MAX_BYTES if number == 20 else 1
            bus.publish(f"run/{number}", bytes(n_bytes), qos=1, retain=number % 2 == 0)
        assert await bus.flush(10.0)
        assert topics(broker) == {f"run/{number}" for number in range(50) if number != 20}
        n_connections = broker.n_connections
        assert n_connections <= 4
        for _ in range(20):
            bus.publish("run/20", bytes(2 * MAX_BYTES), qos=1)
            bus.publish("run/21", b"", qos=1)
        assert await bus.flush(10.0)
        assert broker.n_connections == n_connections
    (line,) = [message for message in caplog.messages if "run/20" in message]
    assert "2000 bytes" in line or "a packet of 2013 bytes; the broker takes at most 1000" in line


async def test_a_message_without_acknowledgement_that_is_too_long_is_found(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ClosingBroker(refuses=is_long)) as broker, MqttClient(url=broker.url) as bus:
        for number in range(20):
            bus.publish("energy", bytes(2 * MAX_BYTES), retain=True)
            bus.publish("small", b"%d" % number, qos=1)
            assert await bus.flush(10.0)
        assert broker.n_connections <= 5
        assert {int(message.payload) for message in broker.taken} == set(range(20))
    assert sum("energy" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("stated", [None, STATES_MAX_BYTES])
async def test_a_birth_that_is_too_long_keeps_nothing_else_back(stated: bytes | None) -> None:
    births = [Outgoing(topic="birth", payload=bytes(2 * MAX_BYTES), qos=1), Outgoing(topic="next", payload=b"", qos=1)]
    async with (
        serving(ClosingBroker(refuses=is_long, stated=stated)) as broker,
        MqttClient(url=broker.url, birth=lambda: births) as bus,
    ):
        await eventually(lambda: bus.connected)
        bus.publish("small", b"", qos=1)
        assert await bus.flush(10.0)
        assert topics(broker) == {"next", "small"}


async def test_a_broker_that_crashes_again_and_again_refuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    birth = Outgoing(topic="status", payload=b"online", qos=1, retain=True)
    async with serving(ClosingBroker(n_crashes=6)) as broker, MqttClient(url=broker.url, birth=lambda: [birth]) as bus:
        bus.publish("metric", b"1", qos=1)
        assert await bus.flush(10.0)
        assert topics(broker) == {"status", "metric"}
        assert broker.n_crashes == 0
    assert "dropped" not in caplog.text


async def test_the_state_is_published_once_a_full_broker_has_room_again(refusal_clock: RefusalClock) -> None:
    birth = Outgoing(topic="status", payload=b"online", qos=1, retain=True)
    full = ClosingBroker(refuses=lambda _: True)
    async with serving(full) as broker, MqttClient(url=broker.url, birth=lambda: [birth]) as bus:
        bus.publish("limit", b"250", qos=1, retain=True)
        assert await bus.flush(10.0)
        assert broker.taken == []
        broker.refuses = lambda _: False
        refusal_clock.end_refusal()
        await eventually(lambda: topics(broker) == {"status", "limit"})


async def test_several_messages_that_are_refused_are_all_found() -> None:
    async with serving(ClosingBroker(refuses=is_long)) as broker, MqttClient(url=broker.url) as bus:
        for number in range(60):
            bus.publish(f"run/{number}", bytes(2 * MAX_BYTES if number % 20 == 0 else 1), qos=1)
        assert await bus.flush(10.0)
        assert topics(broker) == {f"run/{number}" for number in range(60) if number % 20}


async def test_without_retained_messages_all_is_published_and_the_will_too(caplog: pytest.LogCaptureFixture) -> None:
    refusing = ClosingBroker(
        refuses=lambda message: message.retain, stated=STATES_NO_RETAIN, refuses_retained_will=True
    )
    will = Outgoing(topic="status", payload=b"offline", qos=1, retain=True)
    async with serving(refusing) as broker, MqttClient(url=broker.url, will=will) as bus:
        bus.publish("limit", b"250", qos=1, retain=True)
        assert await bus.flush(10.0)
        assert broker.taken == [Outgoing(topic="limit", payload=b"250", qos=1)]
        assert broker.n_connections == 1
    assert "closes the connection without an answer" in caplog.text
    assert caplog.text.count("the broker refuses retained messages") == 1


async def test_at_a_broker_of_qos_0_messages_go_without_acknowledgement() -> None:
    async with (
        serving(ClosingBroker(refuses=lambda message: message.qos > 0, stated=STATES_QOS_0)) as broker,
        MqttClient(url=broker.url) as bus,
    ):
        bus.publish("limit", b"250", qos=1)
        assert await bus.flush(10.0)
        await eventually(lambda: broker.taken)
        assert broker.taken == [Outgoing(topic="limit", payload=b"250")]


FILTERS = [f"node/{number:02}/#" for number in range(40)]
LONG_FILTER = f"{'x' * MAX_BYTES}/#"


def are_long(topic_filters: list[str]) -> bool:
    return subscribe_bytes(topic_filters) > MAX_BYTES


def are_several(topic_filters: list[str]) -> bool:
    return len(topic_filters) > 8


def has_long_one(topic_filters: list[str]) -> bool:
    return LONG_FILTER in topic_filters


@pytest.mark.parametrize("stated", [None, STATES_MAX_BYTES])
@pytest.mark.parametrize("refuses", [are_long, are_several, has_long_one])
async def test_a_subscription_that_is_refused_costs_itself_alone(
    stated: bytes | None, refuses: Callable[[list[str]], bool], caplog: pytest.LogCaptureFixture
) -> None:
    birth = Outgoing(topic="status", payload=b"online", qos=1)
    filters = [*FILTERS, *FILTERS, *[LONG_FILTER] * (refuses is not are_several)]
    broker = ClosingBroker(refuses_filters=refuses, stated=stated)
    async with serving(broker), MqttClient(url=broker.url, birth=lambda: [birth]) as bus:
        for topic_filter in [*filters[:20], *filters[-1:]]:
            bus.subscribe(topic_filter, ignore)
        await eventually(lambda: bus.connected)
        for topic_filter in filters[20:40]:
            bus.subscribe(topic_filter, ignore)
        bus.publish("limit", b"250", qos=1)
        assert await bus.flush(10.0)
        await eventually(
            lambda: bus.connected and {*FILTERS} <= {each for packet in broker.subscribed for each in packet}
        )
        assert broker.n_connections <= 5
        assert LONG_FILTER not in {each for packet in broker.subscribed for each in packet}
        assert (LONG_FILTER in str(bus.last_error)) == (LONG_FILTER in filters)
    told = [line for line in caplog.messages if LONG_FILTER in line]
    assert len(told) == (LONG_FILTER in filters)
    assert "dropped" not in caplog.text
    if told and stated:
        assert "a packet of 1010 bytes; the broker takes at most 1000" in told[0]


async def test_a_refused_subscription_is_told_until_the_broker_takes_it(
    refusal_clock: RefusalClock, caplog: pytest.LogCaptureFixture
) -> None:
    def is_taken_in_the_end() -> bool:
        refusal_clock.end_refusal()
        return bus.last_error is None

    broker = ClosingBroker(denied=frozenset({"a/#", "b/#"}))
    async with serving(broker), MqttClient(url=broker.url) as bus:
        for topic_filter in ("a/#", "b/#", "c/#"):
            bus.subscribe(topic_filter, ignore)
        await eventually(lambda: bus.connected)
        refusal = "the broker refuses the subscription to {}: check its access rules"
        assert bus.last_error == f"{refusal.format('a/#')} (and 1 more)"
        bus.unsubscribe("a/#", ignore)
        await eventually(lambda: bus.last_error == refusal.format("b/#"))
        refusal_clock.end_refusal()
        await eventually(lambda: broker.subscribed == [["a/#", "b/#", "c/#"], ["b/#"]])
        broker.denied = frozenset()
        await eventually(is_taken_in_the_end)
        assert broker.n_connections == 1
    assert [line for line in caplog.messages if "refuses" in line] == [refusal.format("a/#"), refusal.format("b/#")]


async def test_a_subscription_without_an_answer_is_told_and_costs_itself_alone(
    monkeypatch: pytest.MonkeyPatch, refusal_clock: RefusalClock
) -> None:
    monkeypatch.setattr("publishers.mqtt.client.OPERATION_TIMEOUT_S", 4.0)
    broker = ClosingBroker(leaves_unanswered=lambda filters: "a/#" in filters)
    async with serving(broker), MqttClient(url=broker.url) as bus:
        for topic_filter in ("a/#", "b/#"):
            bus.subscribe(topic_filter, ignore)
        bus.publish("limit", b"250", qos=1)
        assert await bus.flush(10.0)
        await eventually(lambda: ["b/#"] in broker.subscribed and bus.last_error)
        assert bus.last_error == (
            "the broker does not answer the subscription to a/#: check its log and its access rules"
        )
        assert bus.connected
        broker.leaves_unanswered = lambda _: False
        refusal_clock.end_refusal()
        await eventually(lambda: bus.last_error is None)
        assert broker.n_connections == 1


async def test_a_restarted_broker_is_asked_at_once_for_what_was_left_out() -> None:
    broker = ClosingBroker(refuses_filters=lambda filters: "a/#" in filters)
    async with AsyncExitStack() as stack:
        async with serving(broker):
            bus = await stack.enter_async_context(MqttClient(url=broker.url))
            bus.subscribe("a/#", ignore)
            await eventually(lambda: bus.connected and bus.last_error)
            broker.refuses_filters = lambda _: False
        await eventually(lambda: "nothing listens" in str(bus.last_error))
        await stack.enter_async_context(serving(broker, port=int(broker.url.rpartition(":")[2])))
        await eventually(lambda: bus.connected)
        assert bus.last_error is None
        assert broker.subscribed == [["a/#"]]


async def test_a_refused_subscription_that_is_undone_is_told_no_more() -> None:
    def reconnecting() -> list[Outgoing]:
        if broker.n_connections > 1:
            bus.unsubscribe("a/#", ignore)
        return []

    broker = ClosingBroker(denied=frozenset({"a/#"}))
    async with serving(broker), MqttClient(url=broker.url, birth=reconnecting) as bus:
        bus.subscribe("a/#", ignore)
        await eventually(lambda: bus.last_error)
        await broker.end()
        await eventually(lambda: broker.n_connections > 1 and bus.connected)
        assert bus.last_error is None


@pytest.mark.parametrize(
    ("stated", "limits"),
    [
        (
            STATES_MAX_BYTES + STATES_NO_RETAIN + STATES_QOS_0,
            BrokerLimits(max_packet_bytes=1_000, retain_available=False, max_qos=0),
        ),
        (b"", BrokerLimits()),
        (None, None),
    ],
)
async def test_a_broker_is_asked_for_its_limits(stated: bytes | None, limits: BrokerLimits | None) -> None:
    async with serving(ClosingBroker(stated=stated)) as broker:
        address = BrokerAddress(url=broker.url)
        assert await asyncio.to_thread(fetch_limits, address, identifier="a", timeout_s=5.0) == limits
        assert broker.n_questions == 1


async def test_where_there_is_no_broker_nothing_is_known_of_its_limits() -> None:
    address = BrokerAddress(url="mqtt://127.0.0.1:1")
    assert await asyncio.to_thread(fetch_limits, address, identifier="a", timeout_s=1.0) is None
