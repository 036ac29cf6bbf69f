"""Two limits that share a period: the mean rate, the dwell time, and the order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.curve import lower_hull
from policies.planning import Present, Rules
from policies.planning.mixing import MIN_SHARE, mix_for
from policies.profile import PowerProfile
from tests.policies.days import A40
from tests.policies.planning.decisions import FREE
from tests.policies.test_profile import profiles

HULL = lower_hull(A40)
LOW, HIGH = HULL.points[0], HULL.points[1]
HALF_PER_S = (LOW.iterations_per_s + HIGH.iterations_per_s) / 2


@given(profiles(), st.floats(0.0, 1.2), st.floats(0.0, 400.0))
def test_parts_stand_long_enough_and_have_the_mean_rate_as_far_as_that_allows(
    profile: PowerProfile, share: float, dwell_s: float
) -> None:
    hull, rules = lower_hull(profile), Rules(period_s=300.0, min_dwell_s=dwell_s, min_gain_ratio=0.0)
    low_per_s, high_per_s = hull.thriftiest.iterations_per_s, hull.fastest.iterations_per_s
    rate_per_s = low_per_s + share * (high_per_s - low_per_s)
    mix = mix_for(hull, rate_per_s, rules, None)
    if mix.second is None:
        return
    assert dwell_s - 1e-6 <= mix.first_s <= 300.0 - dwell_s + 1e-6
    mean = (mix.first_s * mix.first.iterations_per_s + (300 - mix.first_s) * mix.second.iterations_per_s) / 300
    spread = abs(mix.first.iterations_per_s - mix.second.iterations_per_s)
    assert abs(mean - rate_per_s) <= max(dwell_s / 600.0, MIN_SHARE / 2) * spread + 1e-9


def test_a_rate_between_two_limits_takes_both_the_faster_first() -> None:
    mix = mix_for(HULL, HALF_PER_S, FREE, None)
    assert (mix.first, mix.second) == (HIGH, LOW)
    assert mix.first_s == pytest.approx(150.0)


def test_the_limit_in_force_stays_until_the_other_ones_turn() -> None:
    mix = mix_for(HULL, HALF_PER_S, FREE, Present(power_limit_w=LOW.power_limit_w, since_s=0.0))
    assert (mix.first, mix.second) == (LOW, HIGH)


def test_a_rate_that_a_limit_has_needs_no_other() -> None:
    for point in HULL.points:
        for rounding in (0.0, 1e-13, 5e-13):
            for is_last in (False, True):
                mix = mix_for(HULL, point.iterations_per_s * (1 + rounding), FREE, None, is_last=is_last)
                assert (mix.first, mix.second) == (point, None)


def test_where_a_period_is_too_short_for_two_it_has_the_nearer_one() -> None:
    rules = Rules(period_s=100.0, min_dwell_s=60.0, min_gain_ratio=0.0)
    near_high = LOW.iterations_per_s + 0.6 * (HIGH.iterations_per_s - LOW.iterations_per_s)
    assert mix_for(HULL, near_high, rules, None).first == HIGH
    assert mix_for(HULL, near_high, rules, None).second is None
