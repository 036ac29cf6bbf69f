"""The format of the bus, byte by byte: a change that shows here meets older publishers, controllers and dashboards."""

import pytest

from publishers.messages.codec import Message, PackedMessage, decode, encode
from publishers.messages.reports import GpuEnergy, ProfileEntry, ProfileReport
from tests.publishers.messages import samples
from tests.publishers.messages.named_samples import NAMED

GOLDEN = [*samples.GOLDEN, *NAMED]

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


def test_numbers_are_rounded_to_what_is_known_of_them() -> None:
    energy = GpuEnergy(
        time_s=1.7e9 + 1 / 3,
        energy_j=1e7 / 3,
        power_w=1000 / 3,
        power_limit_w=200.0,
        carbon_g=100 / 3,
        cost=1 / 3,
        carbon_intensity_g_per_kwh=100 / 3,
        utilization_ratio=1 / 3,
        temperature_c=100 / 3,
    )
    sent = decode(encode(energy), GpuEnergy)
    assert (sent.time_s, sent.energy_j, sent.power_w, sent.power_limit_w) == (1700000000.333, 3333333.3, 333.33, 200.0)
    assert (sent.carbon_g, sent.cost, sent.carbon_intensity_g_per_kwh) == (33.333, 0.333333, 33.33)
    assert (sent.utilization_ratio, sent.temperature_c) == (0.3333, 33.3)
    profile = ProfileEntry(power_limit_w=200.0, power_w=1.0, iterations_per_s=1e-3 / 3)
    report = ProfileReport(state="planned", gpu_model="A40", n_gpus=1, points=[profile])
    assert decode(encode(report), ProfileReport).points[0].iterations_per_s == 0.000333333
