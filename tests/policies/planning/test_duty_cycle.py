"""Two limits that share a period: the mean rate, the dwell time, and the order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.planning import CurrentLimit, SwitchingRules
from policies.planning.duty_cycle import MIN_SHARE, duty_cycle_for
from policies.vocabulary.power_curve import lower_hull
from policies.vocabulary.profile import PowerProfile
from tests.policies.days import A40
from tests.policies.planning.decisions import FREE
from tests.policies.vocabulary.test_profile import profiles

HULL = lower_hull(A40)
LOW, HIGH = HULL.points[0], HULL.points[1]
LOW_NOW = CurrentLimit(power_limit_w=LOW.power_limit_w, since_s=0.0)
HALF_PER_S = (LOW.iterations_per_s + HIGH.iterations_per_s) / 2


@given(profiles(), st.floats(0.0, 1.2), st.floats(0.0, 400.0))
def test_parts_keep_the_dwell_time_and_the_mean_rate(profile: PowerProfile, share: float, dwell_s: float) -> None:
    hull, rules = lower_hull(profile), SwitchingRules(period_s=300.0, min_dwell_s=dwell_s, min_gain_ratio=0.0)
    low_per_s, high_per_s = hull.most_efficient.iterations_per_s, hull.fastest.iterations_per_s
    rate_per_s = low_per_s + share * (high_per_s - low_per_s)
    mix = duty_cycle_for(hull, rate_per_s, rules, None)
    if mix.second is None:
        return
    assert dwell_s - 1e-6 <= mix.first_s <= 300.0 - dwell_s + 1e-6
    mean = (mix.first_s * mix.first.iterations_per_s + (300 - mix.first_s) * mix.second.iterations_per_s) / 300
    spread = abs(mix.first.iterations_per_s - mix.second.iterations_per_s)
    assert abs(mean - rate_per_s) <= max(dwell_s / 600.0, MIN_SHARE / 2) * spread + 1e-9


def test_a_rate_between_two_limits_takes_both_the_faster_first() -> None:
    mix = duty_cycle_for(HULL, HALF_PER_S, FREE, None)
    assert (mix.first, mix.second) == (HIGH, LOW)
    assert mix.first_s == pytest.approx(150.0)


def test_the_current_limit_comes_first() -> None:
    mix = duty_cycle_for(HULL, HALF_PER_S, FREE, LOW_NOW)
    assert (mix.first, mix.second) == (LOW, HIGH)


def test_the_rate_of_a_limit_needs_no_cycle() -> None:
    for point in HULL.points:
        for rounding in (0.0, 1e-13, 5e-13):
            rate_per_s = point.iterations_per_s * (1 + rounding)
            for minimum_per_s in (0.0, rate_per_s):
                mix = duty_cycle_for(HULL, rate_per_s, FREE, None, minimum_per_s=minimum_per_s)
                assert (mix.first, mix.second) == (point, None)


def test_a_short_period_has_the_nearer_limit() -> None:
    rules = SwitchingRules(period_s=100.0, min_dwell_s=60.0, min_gain_ratio=0.0)
    near_high = LOW.iterations_per_s + 0.6 * (HIGH.iterations_per_s - LOW.iterations_per_s)
    assert duty_cycle_for(HULL, near_high, rules, None).first == HIGH
    assert duty_cycle_for(HULL, near_high, rules, None).second is None


def test_the_minimum_rate_rounds_up() -> None:
    rules = SwitchingRules(period_s=100.0, min_dwell_s=60.0, min_gain_ratio=0.0)
    near_low = LOW.iterations_per_s + 0.3 * (HIGH.iterations_per_s - LOW.iterations_per_s)
    assert duty_cycle_for(HULL, near_low, rules, LOW_NOW).first == LOW
    assert duty_cycle_for(HULL, near_low, rules, LOW_NOW, minimum_per_s=near_low).first == HIGH


@given(st.floats(0.01, 0.99), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.sampled_from([0.0, 30.0, 100.0]))
def test_the_least_work_is_done_at_every_time_of_a_period(
    share: float, minimum_share: float, pace_share: float, dwell_s: float
) -> None:
    """Whichever limit is in force, and whether the slower one comes first."""
    low_per_s, spread_per_s = LOW.iterations_per_s, HIGH.iterations_per_s - LOW.iterations_per_s
    pace_per_s = low_per_s + pace_share * spread_per_s
    minimum_per_s = low_per_s + minimum_share * (pace_per_s - low_per_s)
    rate_per_s = max(low_per_s + share * spread_per_s, minimum_per_s)
    rules = SwitchingRules(period_s=300.0, min_dwell_s=dwell_s, min_gain_ratio=0.0)
    for current in (None, LOW_NOW):
        for maximum_per_s in (math.inf, rate_per_s):
            mix = duty_cycle_for(
                HULL,
                rate_per_s,
                rules,
                current,
                minimum_per_s=minimum_per_s,
                maximum_per_s=maximum_per_s,
                pace_per_s=pace_per_s,
            )
            first_s = 300.0 if mix.second is None else mix.first_s
            done = first_s * mix.first.iterations_per_s
            assert done >= minimum_per_s * 300.0 - pace_per_s * (300.0 - first_s) - 1e-6
            if mix.second is not None:
                assert done + (300.0 - first_s) * mix.second.iterations_per_s >= minimum_per_s * 300.0 - 1e-6


def test_the_current_limit_comes_first_unless_that_is_too_late() -> None:
    """Without work in hand the slower limit must wait, or leave the period to the faster one."""
    mix = duty_cycle_for(HULL, HALF_PER_S, FREE, LOW_NOW, minimum_per_s=HALF_PER_S, pace_per_s=HALF_PER_S)
    assert (mix.first, mix.second) == (HIGH, None)
    mix = duty_cycle_for(
        HULL,
        HALF_PER_S,
        FREE,
        LOW_NOW,
        minimum_per_s=HALF_PER_S,
        maximum_per_s=HALF_PER_S,
        pace_per_s=HALF_PER_S,
    )
    assert (mix.first, mix.second) == (HIGH, LOW)


def test_two_close_limits_need_no_cycle() -> None:
    close = lower_hull(
        PowerProfile.from_rows(
            (limit_w, limit_w - 50.0, rate_per_s)
            for limit_w, rate_per_s in ((200.0, 0.9), (275.0, 0.999), (300.0, 1.0))
        )
    )
    assert [duty_cycle_for(close, rate, FREE, None).first.power_limit_w for rate in (0.9993, 0.9997)] == [275.0, 300.0]
    assert duty_cycle_for(close, 0.9993, FREE, None).second is None
