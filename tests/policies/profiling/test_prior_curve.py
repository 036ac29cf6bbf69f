"""Another run's curve: checked at two or three limits, then adopt_prior or forgotten."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.profiling import begin, target_power_limit_w
from policies.profiling.prior_curve import check_limits_w
from policies.vocabulary.profile import PowerProfile
from tests.policies.profiling.gpu import CONVEX, SETTINGS, Job, profiled

KNOWN = PowerProfile(tuple(point for point in CONVEX.points if point.power_limit_w % 25 == 0))


def scaled(curve: PowerProfile, *, power_ratio: float = 1.0, rate_ratio: float = 1.0) -> PowerProfile:
    """Return a curve of the same shape."""
    return PowerProfile(
        tuple(
            replace(p, power_w=power_ratio * p.power_w, iterations_per_s=rate_ratio * p.iterations_per_s)
            for p in curve.points
        )
    )


def test_it_is_checked_at_the_prior_limit_at_its_energy_minimal_one_and_half_way() -> None:
    assert check_limits_w(SETTINGS, KNOWN) == (300.0, 245.0, 200.0)


def test_a_curve_of_the_same_shape_is_adopted_after_three_measurements() -> None:
    other = scaled(KNOWN, power_ratio=1.1, rate_ratio=0.4)
    state, wanted_w = profiled(SETTINGS, begin(SETTINGS, prior=other), Job())
    assert wanted_w == [300.0, 245.0, 200.0]
    assert len(state.points) >= len(KNOWN.points)
    for point in state.points:
        power_w, rate_per_s = CONVEX.at(point.power_limit_w)
        assert point.power_w == pytest.approx(power_w, rel=0.001)
        assert point.iterations_per_s == pytest.approx(rate_per_s, rel=0.001)


def test_what_is_adopted_is_known_less_well_than_what_is_measured() -> None:
    state, _ = profiled(SETTINGS, begin(SETTINGS, prior=KNOWN), Job())
    for point in state.points:
        assert point.iterations_per_s_ci is not None
        assert (point.n == 0) == (point.power_limit_w not in {300.0, 245.0, 200.0})
        assert point.n > 0 or point.iterations_per_s_ci / point.iterations_per_s > 0.035


def test_a_curve_of_another_shape_is_forgotten_and_what_it_cost_is_kept() -> None:
    bent = PowerProfile(
        tuple(replace(p, iterations_per_s=p.iterations_per_s * (p.power_limit_w / 300) ** 0.7) for p in KNOWN.points)
    )
    state, wanted_w = profiled(SETTINGS, begin(SETTINGS, prior=bent), Job())
    low_w = check_limits_w(SETTINGS, bent)[1]
    assert wanted_w[:2] == [300.0, low_w]
    assert {point.power_limit_w for point in state.points} == set(wanted_w)
    assert min(wanted_w) == 150.0 or low_w in wanted_w


def test_a_curve_that_ends_below_the_prior_limit_says_nothing_of_it() -> None:
    low = PowerProfile(KNOWN.points[:6])
    _, wanted_w = profiled(SETTINGS, begin(SETTINGS, prior=low), Job())
    assert wanted_w == [300.0, 240.0, 190.0, 150.0]


def test_a_check_that_was_made_before_a_restart_is_not_made_again() -> None:
    known = PowerProfile((CONVEX.points[-1],))
    state = begin(SETTINGS, known, KNOWN)
    assert target_power_limit_w(state) == 245.0


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(100.0, 290.0), st.integers(0, 10_000))
def test_with_any_prior_the_limits_are_admissible_and_the_profile_ends(
    power_ratio: float, rate_ratio: float, floor_w: float, seed: int
) -> None:
    bounds = replace(SETTINGS, floor_power_limit_w=floor_w)
    kept = tuple(point for n, point in enumerate(CONVEX.points) if (seed >> n % 13) % 2 or n % 7 == 0)
    other = scaled(PowerProfile(kept), power_ratio=power_ratio, rate_ratio=rate_ratio)
    state, wanted_w = profiled(bounds, begin(bounds, prior=other), Job(noise_ratio=0.05))
    assert all(floor_w <= limit_w <= 300.0 for limit_w in wanted_w)
    assert all(floor_w - 1 <= point.power_limit_w <= 301.0 for point in state.points)
