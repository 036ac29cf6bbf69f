"""Another run's curve: checked at two or three limits, then adopted or dropped."""

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


def test_checks_are_at_the_top_the_energy_minimum_and_between() -> None:
    assert check_limits_w(SETTINGS, KNOWN) == (300.0, 245.0, 200.0)


def test_a_similar_curve_is_adopted_after_three_checks() -> None:
    other = scaled(KNOWN, power_ratio=1.1, rate_ratio=0.4)
    state, wanted_w = profiled(SETTINGS, begin(SETTINGS, prior=other), Job())
    assert wanted_w == [300.0, 245.0, 200.0]
    assert len(state.points) >= len(KNOWN.points)
    for point in state.points:
        power_w, rate_per_s = CONVEX.at(point.power_limit_w)
        assert point.power_w == pytest.approx(power_w, rel=0.001)
        assert point.iterations_per_s == pytest.approx(rate_per_s, rel=0.001)


def test_adopted_points_have_wider_intervals() -> None:
    state, _ = profiled(SETTINGS, begin(SETTINGS, prior=KNOWN), Job())
    for point in state.points:
        assert point.iterations_per_s_ci is not None
        assert (point.n == 0) == (point.power_limit_w not in {300.0, 245.0, 200.0})
        assert point.n > 0 or point.iterations_per_s_ci / point.iterations_per_s > 0.035


def test_a_different_curve_is_dropped_and_its_checks_kept() -> None:
    bent = PowerProfile(
        tuple(replace(p, iterations_per_s=p.iterations_per_s * (p.power_limit_w / 300) ** 0.7) for p in KNOWN.points)
    )
    state, wanted_w = profiled(SETTINGS, begin(SETTINGS, prior=bent), Job())
    low_w = check_limits_w(SETTINGS, bent)[1]
    assert wanted_w[:2] == [300.0, low_w]
    assert {point.power_limit_w for point in state.points} == set(wanted_w)
    assert min(wanted_w) == 150.0 or low_w in wanted_w


def test_a_curve_below_the_prior_limit_is_not_used() -> None:
    low = PowerProfile(KNOWN.points[:6])
    _, wanted_w = profiled(SETTINGS, begin(SETTINGS, prior=low), Job())
    assert wanted_w == [300.0, 240.0, 190.0, 150.0]


def test_checks_are_not_repeated_after_a_restart() -> None:
    known = PowerProfile((CONVEX.points[-1],))
    state = begin(SETTINGS, known, KNOWN)
    assert target_power_limit_w(state) == 245.0


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(100.0, 290.0), st.integers(0, 10_000))
def test_any_prior_gives_admissible_limits_and_an_end(
    power_ratio: float, rate_ratio: float, floor_w: float, seed: int
) -> None:
    bounds = replace(SETTINGS, floor_power_limit_w=floor_w)
    kept = tuple(point for n, point in enumerate(CONVEX.points) if (seed >> n % 13) % 2 or n % 7 == 0)
    other = scaled(PowerProfile(kept), power_ratio=power_ratio, rate_ratio=rate_ratio)
    state, wanted_w = profiled(bounds, begin(bounds, prior=other), Job(noise_ratio=0.05))
    assert all(floor_w <= limit_w <= 300.0 for limit_w in wanted_w)
    assert all(floor_w - 1 <= point.power_limit_w <= 301.0 for point in state.points)
