"""The bus through real brokers: the same contract with mosquitto and with amqtt."""

import pytest

from publishers.bus import Bus, Outgoing, Will
from tests.live.bus_bench import Inbox, Kind, both, proxied, running, subscribed
from tests.live.conftest import eventually

pytestmark = pytest.mark.live


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
            assert await bus.flush(10.0)
        async with subscribed(url, "node/+/status") as inbox:
            await eventually(lambda: inbox.messages)
            assert inbox.payloads == [b"new"]


@both
async def test_what_the_broker_had_kept_is_told_from_what_is_published_now(kind: Kind) -> None:
    kept, live = Inbox(), Inbox()
    async with running(kind) as url, Bus(url=url) as publisher, Bus(url=url) as bus:
        publisher.publish("state", b"old", qos=1, retain=True)
        assert await publisher.flush(10.0)
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
        assert await bus.flush(10.0)
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
            assert await bus.flush(10.0)
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
            assert await bus.flush(10.0)  # what was not acknowledged would come again
            proxy.cut()
            await eventually(lambda: inbox.payloads[2:] == [b"online"])


@both
async def test_what_nobody_asked_for_reaches_no_handler(kind: Kind) -> None:
    inbox = Inbox()
    async with running(kind) as url, subscribed(url, "secret/#"):
        async with Bus(url=url) as bus:
            bus.publish("secret/topic", b"stray", qos=1, retain=True)
            assert await bus.flush(10.0)
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
