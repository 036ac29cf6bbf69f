"""What a broker refuses: the culprit of a closed connection is found, named once, and costs nobody else anything."""

import pytest

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_limits import BrokerLimits
from publishers.mqtt.sending.refusals import MAX_REFUSAL_S, MIN_REFUSAL_S, Refusals

CULPRIT = Outgoing(topic="big", payload=bytes(5_000), qos=1)


def message(topic: str, qos: int = 1) -> Outgoing:
    return Outgoing(topic=topic, payload=b"1", qos=qos)


def close(refusals: Refusals, *sent: Outgoing) -> None:
    """Send messages to a broker that has answered before, and lose the connection."""
    refusals.on_answered()
    for each in sent:
        admitted = refusals.admit(each)
        assert admitted is not None
        refusals.on_sent(admitted)
    refusals.on_connection_lost(by_broker=True)


@pytest.fixture
def clock_s() -> list[float]:
    return [1_000.0]


@pytest.fixture
def refusals(clock_s: list[float]) -> Refusals:
    return Refusals(lambda: clock_s[0])


def test_a_message_that_ends_two_connections_in_a_row_is_refused(
    refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    close(refusals, CULPRIT)
    assert refusals.admit(CULPRIT) == CULPRIT
    close(refusals, CULPRIT)
    assert refusals.admit(CULPRIT) is None
    (line,) = caplog.messages
    assert line == (
        "big: message of 5000 bytes dropped: the broker closes the connection when it is published: check its log, its "
        "limits and its access rules"
    )


def test_of_several_messages_each_is_suspect_and_none_is_blamed_at_once(refusals: Refusals) -> None:
    close(refusals, message("a"), CULPRIT, message("b"))
    assert [refusals.is_suspect(topic) for topic in ("a", "big", "b", "c")] == [True, True, True, False]
    for topic in ("a", "b"):
        refusals.on_acknowledged(refusals.on_sent(message(topic)))
        assert not refusals.is_suspect(topic)
    close(refusals, CULPRIT)
    close(refusals, CULPRIT)
    assert refusals.admit(CULPRIT) is None
    assert refusals.admit(message("a")) is not None


def test_an_acknowledged_message_is_cleared_however_often_connections_end(refusals: Refusals) -> None:
    for _ in range(5):
        close(refusals, CULPRIT)
        refusals.on_acknowledged(refusals.on_sent(CULPRIT))
    assert refusals.admit(CULPRIT) == CULPRIT


def test_a_broker_that_has_answered_nothing_blames_nobody(refusals: Refusals) -> None:
    for _ in range(5):
        refusals.on_sent(CULPRIT)
        refusals.on_connection_lost(by_broker=True)
        assert refusals.awaits_answer
    refusals.on_answered()
    assert not refusals.awaits_answer
    assert refusals.admit(CULPRIT) == CULPRIT


def test_a_silent_network_blames_nobody(refusals: Refusals) -> None:
    for _ in range(5):
        refusals.on_sent(CULPRIT)
        refusals.on_connection_lost(by_broker=False)
    assert not refusals.is_suspect("big")


def test_a_suspect_without_acknowledgement_is_sent_with_one(refusals: Refusals) -> None:
    close(refusals, message("energy", qos=0), message("energy", qos=0))
    admitted = refusals.admit(message("energy", qos=0))
    assert admitted is not None
    assert admitted.qos == 1


def test_messages_at_qos_0_alone_are_never_blamed(refusals: Refusals) -> None:
    refusals.set_limits(BrokerLimits(max_qos=0))
    for _ in range(5):
        close(refusals, message("energy"))
    assert refusals.admit(message("energy")) is not None


def test_an_acknowledgement_proves_what_was_sent_before_it_at_qos_0(refusals: Refusals) -> None:
    refusals.on_sent(message("before", qos=0))
    number = refusals.on_sent(message("acknowledged"))
    refusals.on_sent(message("after", qos=0))
    refusals.on_acknowledged(number)
    refusals.on_connection_lost(by_broker=True)
    assert not refusals.is_suspect("before")
    assert refusals.is_suspect("after")


def test_shorter_messages_of_the_topic_still_pass(refusals: Refusals) -> None:
    close(refusals, CULPRIT)
    close(refusals, CULPRIT)
    assert refusals.admit(message("big")) == message("big")


def test_after_a_minute_and_then_ever_later_one_more_try_is_made(refusals: Refusals, clock_s: list[float]) -> None:
    close(refusals, CULPRIT)
    refusals_s = []
    for _ in range(8):
        close(refusals, CULPRIT)
        began_s = clock_s[0]
        while refusals.admit(CULPRIT) is None:
            assert not refusals.pop_ended()
            clock_s[0] += 10.0
        assert refusals.pop_ended()
        assert not refusals.pop_ended()
        assert refusals.is_suspect("big")
        refusals_s.append(clock_s[0] - began_s)
    assert refusals_s == [MIN_REFUSAL_S, 120.0, 240.0, 480.0, 960.0, 1_920.0, MAX_REFUSAL_S, MAX_REFUSAL_S]


def test_a_message_over_the_stated_limit_is_dropped_and_named_once(
    refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    refusals.set_limits(BrokerLimits(max_packet_bytes=1_000))
    assert [refusals.admit(CULPRIT) for _ in range(3)] == [None] * 3
    assert refusals.admit(message("big")) is not None
    (line,) = caplog.messages
    assert line == (
        "big: message dropped: a packet of 5010 bytes; the broker takes at most 1000: raise its maximum packet size "
        "(mosquitto: max_packet_size)"
    )


def test_what_a_broker_does_not_do_is_left_out_and_told_once(
    refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    state = Outgoing(topic="limit", payload=b"1", qos=1, retain=True)
    for _ in range(3):
        refusals.set_limits(BrokerLimits(retain_available=False, max_qos=0))
    assert refusals.admit(state) == Outgoing(topic="limit", payload=b"1")
    assert [line.partition(":")[0].partition(" (")[0] for line in caplog.messages] == [
        "the broker refuses retained messages",
        "the broker takes QoS 0 alone",
    ]


def subscribe(refusals: Refusals, *topic_filters: str, code: int | None = 0) -> list[list[str]]:
    """Subscribe one packet after another; without a code the broker closes the connection on one with `bad`."""
    packets = []
    for packet in refusals.admit_filters(topic_filters):
        packets.append(packet)
        sent = refusals.on_subscribing(packet)
        if code is None and "bad" in packet:
            refusals.on_connection_lost(by_broker=True)
            break
        refusals.on_subscribed(sent, [code or 0] * len(packet))
    return packets


def test_a_topic_filter_that_ends_two_connections_alone_is_left_out(
    refusals: Refusals, clock_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    tries = []
    for _ in range(5):
        refusals.on_answered()
        tries.append(subscribe(refusals, "a", "bad", "b", code=None))
    assert tries == [[["a", "bad", "b"]], *[[["a"], ["bad"]]] * 2, *[[["a"], ["b"]]] * 2]
    (line,) = caplog.messages
    assert line == refusals.filter_faults["bad"]
    assert line == (
        "the broker closes the connection when bad is subscribed to, so it is skipped: check its log, its limits and "
        "its access rules"
    )
    assert refusals.admit(message("bad")) is not None, "a topic of that name is none of this"
    assert refusals.pop_ended_filters() == []
    clock_s[0] += MIN_REFUSAL_S
    assert not refusals.pop_ended()
    assert refusals.pop_ended_filters() == ["bad"]
    assert subscribe(refusals, "bad") == [["bad"]]
    assert refusals.filter_faults == {}


def test_a_broker_that_crashes_at_a_subscription_leaves_nothing_out(refusals: Refusals) -> None:
    for _ in range(5):
        assert ["bad"] in subscribe(refusals, "bad", code=None)
        assert refusals.awaits_answer
    assert refusals.filter_faults == {}


def test_topic_filters_go_in_packets_that_fit_and_one_that_does_not_is_told_once(
    refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    long = "x" * 40
    assert refusals.admit_filters(["a", "b", long]) == [["a", "b", long]]
    refusals.set_limits(BrokerLimits(max_packet_bytes=44))
    for _ in range(3):
        assert refusals.admit_filters(["a", "b", long]) == [["a", "b"]]
    assert refusals.admit_filters(["a" * 20, "b" * 20]) == [["a" * 20], ["b" * 20]]
    assert refusals.admit_filters([]) == []
    (line,) = caplog.messages
    assert line == (
        f"the subscription to {long} is skipped: a packet of 47 bytes; the broker takes at most 44: raise its maximum "
        "packet size (mosquitto: max_packet_size)"
    )
    refusals.forget_filters([long])
    assert refusals.filter_faults == {}


def test_a_subscription_that_the_broker_refuses_is_asked_for_again_each_minute(
    refusals: Refusals, clock_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert subscribe(refusals, "a", code=128) == [["a"]]
        assert refusals.admit_filters(["a"]) == []
        clock_s[0] += MIN_REFUSAL_S
        assert refusals.pop_ended_filters() == ["a"]
        assert "a" in refusals.filter_faults
    assert caplog.messages == ["the broker refuses the subscription to a: check its access rules"]


def die(refusals: Refusals, *topic_filters: str) -> list[list[str]]:
    """Subscribe at a broker that answers before, dies at `bad`, and is away then; return the packets."""
    refusals.on_answered()
    packets = subscribe(refusals, *topic_filters, code=None)
    refusals.on_away()
    return packets


def test_a_broker_that_dies_by_itself_at_three_subscriptions_leaves_nothing_out(
    refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    assert [die(refusals, "bad", "b") for _ in range(3)] == [[["bad", "b"]], [["bad"]], [["bad"]]]
    assert subscribe(refusals, "bad", "b") == [["bad"], ["b"]]
    assert refusals.filter_faults == {}
    assert caplog.messages == []


@pytest.mark.parametrize("away_s", [0.5, 70.0, 300.0])
def test_a_topic_filter_that_a_broker_dies_of_is_left_out_in_the_end(
    away_s: float, refusals: Refusals, clock_s: list[float]
) -> None:
    n_tries = 0
    while clock_s[0] < 6 * 3_600.0:
        n_tries += ["bad"] in die(refusals, "bad", "b")
        clock_s[0] += away_s
    assert n_tries < 20, "each as long after the one before as the pause has grown, to an hour"
    assert list(refusals.filter_faults) == ["bad"]


@pytest.mark.parametrize("code", [None, 128])
def test_a_restarted_broker_is_asked_for_what_was_left_out(
    code: int | None, refusals: Refusals, clock_s: list[float]
) -> None:
    for _ in range(3):
        refusals.on_answered()
        subscribe(refusals, "bad", code=code)
    assert refusals.admit_filters(["bad"]) == []
    refusals.on_connection_lost(by_broker=True)
    refusals.on_away()
    refusals.on_answered()
    subscribe(refusals, "bad", code=code)
    for _ in range(5):
        clock_s[0] += 10.0
        refusals.on_away()
        assert refusals.admit_filters(["bad"]) == ([] if code is None else [["bad"]]), "once, until it is answered"
    clock_s[0] += 2 * MIN_REFUSAL_S
    refusals.on_away()
    assert subscribe(refusals, "bad", "b") in ([["bad"], ["b"]], [["bad", "b"]])
    assert refusals.filter_faults == {}


def test_a_restarted_broker_gets_the_messages_that_were_dropped_alone(refusals: Refusals) -> None:
    close(refusals, CULPRIT)
    close(refusals, CULPRIT)
    assert refusals.admit(CULPRIT) is None
    refusals.on_away()
    assert refusals.admit(CULPRIT) == CULPRIT
    assert refusals.is_suspect("big")
    close(refusals, CULPRIT)
    refusals.on_away()
    assert refusals.admit(CULPRIT) is None, "once"


def test_of_topic_filters_without_an_answer_each_is_asked_alone_and_left_out(
    refusals: Refusals, clock_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    (packet,) = refusals.admit_filters(["a", "b"])
    refusals.on_unanswered(refusals.on_subscribing(packet))
    assert refusals.pop_ended_filters() == ["a", "b"]
    assert refusals.filter_faults == {}
    assert refusals.admit_filters(["a", "b"]) == [["a"], ["b"]]
    refusals.on_unanswered(refusals.on_subscribing(["a"]))
    assert refusals.admit_filters(["a", "b"]) == [["b"]]
    (line,) = caplog.messages
    assert line == "the broker does not answer the subscription to a: check its log and its access rules"
    assert refusals.filter_faults == {"a": line}
    clock_s[0] += MIN_REFUSAL_S
    assert refusals.pop_ended_filters() == ["a"]
    assert subscribe(refusals, "a") == [["a"]]
    assert refusals.filter_faults == {}
    refusals.on_connection_lost(by_broker=True)
    assert not refusals.is_suspect_filter("b")


def test_no_topic_filter_is_suspect_where_one_has_no_answer(refusals: Refusals) -> None:
    refusals.on_subscribing(["a", "b"])
    refusals.on_connection_lost(by_broker=True)
    assert refusals.is_suspect_filter("b")
    refusals.on_unanswered(refusals.on_subscribing(["a"]))
    assert not refusals.is_suspect_filter("b")


def test_the_last_message_of_a_topic_may_be_tried_whatever_was_refused(refusals: Refusals) -> None:
    close(refusals, CULPRIT)
    close(refusals, CULPRIT)
    assert refusals.admit(CULPRIT) is None
    refusals.allow("big")
    assert refusals.admit(CULPRIT) == CULPRIT
    close(refusals, CULPRIT)
    assert refusals.admit(CULPRIT) is None, "once"


def test_what_is_remembered_is_bounded(refusals: Refusals) -> None:
    for number in range(5_000):
        refusals.on_sent(message(f"run/{number}", qos=0))
        if number % 100 == 0:
            refusals.on_connection_lost(by_broker=True)
    assert len(refusals._unproven) <= 128
    assert len(refusals._closes) <= 1_024
