"""The format of the bus, byte by byte: a change that shows here meets older publishers, controllers and dashboards."""

import pytest

from publishers.messages.codec import Message, PackedMessage, decode, encode
from tests.publishers.messages.samples import GOLDEN

NAMES = [type(message).__name__ for message, _ in GOLDEN]


@pytest.mark.parametrize(("message", "payload"), GOLDEN, ids=NAMES)
def test_the_encoding_has_not_changed(message: Message, payload: bytes) -> None:
    assert encode(message) == payload


@pytest.mark.parametrize(("message", "payload"), GOLDEN, ids=NAMES)
def test_old_messages_are_still_decoded(message: Message, payload: bytes) -> None:
    assert decode(payload, type(message)) == message


def test_every_message_has_a_golden_one() -> None:
    kinds = set(Message.__subclasses__()) | set(PackedMessage.__subclasses__())
    ours = {kind for kind in kinds if kind.__module__.startswith("publishers.")}
    assert {type(message) for message, _ in GOLDEN} == ours - {PackedMessage}
