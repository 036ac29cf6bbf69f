"""Instant readings: scaled to the counter over a long time, counted once, and none where no counter is believed."""

import math

import numpy as np
import pytest

from controller.gpu.meter.instants import LEARNT_S, InstantPower, spread
from controller.ports import Sample


def readings(
    instants: InstantPower, power_w: list[float], *, counted_w: float, period_s: float = 0.1
) -> list[float | None]:
    """Return what is made of instant readings while the counter shows a power."""
    return [
        instants.scaled_w(
            Sample(time_ns=round(number * period_s * 1e9), power_w=None, instant_power_w=each_w),
            counted_w * number * period_s,
        )
        for number, each_w in enumerate(power_w)
    ]


def test_instants_are_scaled_to_the_counter_once_that_is_known() -> None:
    noisy_w = (510 * (1 + 0.07 * np.random.default_rng(1).standard_normal(3_000))).tolist()
    scaled_w = readings(InstantPower(), noisy_w, counted_w=500.0)
    assert {*scaled_w[: round(LEARNT_S / 0.1)]} == {None}
    assert np.mean([each_w for each_w in scaled_w[1_000:] if each_w]) == pytest.approx(500.0, rel=0.01)


def test_a_reading_that_comes_twice_counts_once() -> None:
    instants = InstantPower()
    readings(instants, [500.0, 500.0, 520.0, 520.0, 500.0], counted_w=500.0)
    assert instants.n == 3


def test_without_a_counter_or_with_one_of_something_else_there_are_none() -> None:
    other = readings(InstantPower(), [500.0 + number % 2 for number in range(1_000)], counted_w=1_000.0)
    assert {*other} == {None}
    instants = InstantPower()
    for number in range(1_000):
        raw = Sample(time_ns=number * 10**8, power_w=500.0, instant_power_w=500.0 + number % 2)
        assert instants.scaled_w(raw, None) is None
    assert instants.n == 0


@pytest.mark.parametrize("bad_w", [math.nan, math.inf, -1.0, 0.0])
def test_what_is_no_power_is_no_instant(bad_w: float) -> None:
    powers_w = [500.0 + number % 2 for number in range(1_000)]
    powers_w[200] = bad_w
    scaled_w = readings(InstantPower(), powers_w, counted_w=500.0)
    assert scaled_w[200] is None
    assert scaled_w[500] == pytest.approx(500.0, rel=0.01)


def test_readings_far_apart_say_nothing_of_the_scale() -> None:
    assert {
        *readings(InstantPower(), [500.0 + number % 2 for number in range(100)], counted_w=500.0, period_s=2.0)
    } == {None}


@pytest.mark.parametrize("late_j", [None, 0.0])
def test_energy_between_two_readings_of_the_counter_is_spread_as_the_power_went(late_j: float | None) -> None:
    before = Sample(time_ns=0, power_w=100.0, energy_j=50.0, uncounted_j=7.0, n_instants=4, unmeasured_s=0.5)
    powers = [
        Sample(time_ns=at * 10**8, power_w=w, instant_power_w=w) for at, w in ((1, 100.0), (2, 100.0), (3, 300.0))
    ]
    after = Sample(time_ns=4 * 10**8, power_w=300.0, energy_j=190.0, uncounted_j=late_j, n_instants=5)
    found = spread(before, powers, after)
    assert [each.energy_j for each in found] == pytest.approx([70.0, 90.0, 130.0])
    assert [each.uncounted_j for each in found] == ([None] * 3 if late_j is None else pytest.approx([6.0, 5.0, 3.0]))
    assert {(each.instant_power_w, each.n_instants, each.unmeasured_s) for each in found} == {(None, 4, 0.5)}
    assert [each.power_w for each in found] == [100.0, 100.0, 300.0]
