"""The outbox: what is sent first, what a full one drops, and what is sent again after a loss."""

from hypothesis import given
from hypothesis import strategies as st

from publishers.messages.codec import Outgoing
from publishers.mqtt.sending.outbox import Outbox


def event(number: int) -> Outgoing:
    return Outgoing(topic="events", payload=b"%d" % number)


def state(topic: str, value: int) -> Outgoing:
    return Outgoing(topic=topic, payload=b"%d" % value, qos=1, retain=True)


async def drain(outbox: Outbox) -> list[tuple[str, int]]:
    taken = []
    while not outbox.settled.is_set():
        number, message = await outbox.get()
        outbox.acknowledge(number)
        taken.append((message.topic, int(message.payload)))
    return taken


async def test_messages_leave_the_outbox_in_order() -> None:
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


async def test_a_full_outbox_drops_events_before_retained_messages() -> None:
    outbox = Outbox(3)
    outbox.put(state("limit", 250), latest_only=True)
    for number in range(5):
        outbox.put(event(number), latest_only=True)
    assert await drain(outbox) == [("limit", 250), ("events", 3), ("events", 4)]


async def test_a_full_outbox_of_retained_messages_drops_the_oldest() -> None:
    outbox = Outbox(3)
    for number in range(5):
        outbox.put(state(f"node/{number}", number), latest_only=True)
    assert outbox.dropped == 2
    assert await drain(outbox) == [("node/2", 2), ("node/3", 3), ("node/4", 4)]


async def test_while_the_broker_is_away_only_the_latest_retained_message_is_kept() -> None:
    outbox = Outbox(10)
    for message in (state("limit", 1), event(2), state("limit", 3)):
        outbox.put(message, latest_only=True)
    assert await drain(outbox) == [("events", 2), ("limit", 3)]
    assert outbox.dropped == 0


async def test_while_the_broker_is_there_every_retained_message_is_sent() -> None:
    outbox = Outbox(10)
    outbox.put(state("limit", 1), latest_only=False)
    outbox.put(state("limit", 2), latest_only=False)
    assert await drain(outbox) == [("limit", 1), ("limit", 2)]


async def test_messages_in_flight_at_a_loss_go_first() -> None:
    outbox = Outbox(10)
    for number in range(3):
        outbox.put(event(number), latest_only=False)
    await outbox.get()
    await outbox.get()
    outbox.requeue_unacknowledged()
    assert await drain(outbox) == [("events", 0), ("events", 1), ("events", 2)]


async def test_a_retained_message_in_flight_is_replaced_by_a_later_one() -> None:
    outbox = Outbox(10)
    outbox.put(state("limit", 1), latest_only=False)
    await outbox.get()
    outbox.put(state("limit", 2), latest_only=True)
    outbox.requeue_unacknowledged()
    assert await drain(outbox) == [("limit", 2)]


async def test_after_a_loss_retained_messages_are_sent_again_except_births() -> None:
    outbox = Outbox(10)
    cleared = Outgoing(topic="run", payload=b"", retain=True)
    for message in (state("limit", 1), state("status", 2), state("run", 3), state("limit", 4), cleared, event(5)):
        outbox.put(message, latest_only=False)
    while not outbox.settled.is_set():
        outbox.acknowledge((await outbox.get())[0])
    outbox.put(state("power", 6), latest_only=True)
    outbox.requeue_retained(except_topics={"status"})
    assert await drain(outbox) == [("limit", 4), ("power", 6)]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=60), st.integers(1, 8))
def test_an_outbox_never_holds_more_than_its_size(puts: list[tuple[str, bool]], size: int) -> None:
    outbox = Outbox(size)
    for topic, retain in puts:
        outbox.put(Outgoing(topic=topic, payload=b"1", retain=retain), latest_only=True)
        assert len(outbox) <= size
    n_superseded = sum(retain for _, retain in puts) - len({topic for topic, retain in puts if retain})
    assert len(outbox) + outbox.dropped + n_superseded >= len(puts)
