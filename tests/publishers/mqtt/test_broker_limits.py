"""The limits that a broker states: the length of a packet, and what they mean."""

import pytest

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_limits import BrokerLimits, packet_bytes, subscribe_bytes


@pytest.mark.parametrize(
    ("n_bytes", "qos", "whole_bytes"),
    [(0, 0, 8), (121, 0, 129), (122, 0, 131), (119, 1, 129), (120, 1, 131), (16_377, 0, 16_386), (16_378, 0, 16_388)],
)
def test_a_packet_holds_header_topic_and_payload(n_bytes: int, qos: int, whole_bytes: int) -> None:
    assert packet_bytes(Outgoing(topic="a/ü", payload=bytes(n_bytes), qos=qos)) == whole_bytes


@pytest.mark.parametrize(
    ("filters", "n_bytes"), [(["a/#"], 10), (["a/#", "ü"], 15), (["x" * 120], 127), (["x" * 123], 131)]
)
def test_a_subscription_holds_header_identifier_and_topic_filters(filters: list[str], n_bytes: int) -> None:
    assert subscribe_bytes(filters) == n_bytes


def test_a_broker_without_limits_has_no_faults() -> None:
    assert BrokerLimits().faults == []
    assert BrokerLimits(max_packet_bytes=1_000, max_qos=1).faults == []
