"""Power profiles: order, interpolation, scaling, overhead, and usable points."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.policies.days import A40


def point(power_limit_w: float, power_w: float, iterations_per_s: float) -> ProfilePoint:
    return ProfilePoint(power_limit_w=power_limit_w, power_w=power_w, iterations_per_s=iterations_per_s)


@st.composite
def profiles(draw: st.DrawFn) -> PowerProfile:
    n = draw(st.integers(1, 8))
    number = st.floats(0.1, 500.0)
    return PowerProfile(tuple(point(100.0 + 25 * k, draw(number), draw(number)) for k in range(n)))


def test_fastest_and_energy_minimal_points() -> None:
    assert A40.fastest.power_limit_w == 300.0
    assert A40.energy_minimal.power_limit_w == 200.0


@pytest.mark.parametrize(("power_limit_w", "found_w"), [(200.0, 200.0), (200.4, 200.0), (199.5, 200.0), (210.0, None)])
def test_a_point_is_found_within_half_a_watt(power_limit_w: float, found_w: float | None) -> None:
    found = A40.point_at(power_limit_w)
    assert (None if found is None else found.power_limit_w) == found_w


def test_interpolation_is_linear_and_flat_outside() -> None:
    curve = PowerProfile((point(100, 90, 1), point(200, 190, 3)))
    assert curve.at(150) == (140, 2)
    assert curve.at(50) == (90, 1)
    assert curve.at(500) == (190, 3)


def test_host_power_is_added_before_pue() -> None:
    curve = PowerProfile((ProfilePoint(power_limit_w=100, power_w=90, iterations_per_s=1, power_ci_w=2),))
    loaded = curve.with_overhead(host_power_w=10, pue=1.5).fastest
    assert (loaded.power_w, loaded.power_ci_w, loaded.iterations_per_s) == (150, 3, 1)


def test_scaling_keeps_relative_intervals() -> None:
    known = ProfilePoint(power_limit_w=100, power_w=90, iterations_per_s=2, power_ci_w=9, iterations_per_s_ci=0.1)
    scaled = PowerProfile((known,)).scaled(power_ratio=2.0, rate_ratio=0.5).fastest
    assert (scaled.power_w, scaled.iterations_per_s) == (180, 1)
    assert (scaled.power_ci_ratio, scaled.rate_ci_ratio) == (known.power_ci_ratio, known.rate_ci_ratio) == (0.1, 0.05)
    unknown = point(100, 90, 2).scaled(power_ratio=2.0)
    assert (unknown.power_ci_w, unknown.iterations_per_s_ci, unknown.power_ci_ratio) == (None, None, 0.0)


def test_host_power_moves_the_energy_minimal_limit_up() -> None:
    assert A40.with_overhead(host_power_w=200, pue=1).energy_minimal.power_limit_w == 225.0


def test_usable_limits_start_at_the_energy_minimum() -> None:
    assert A40.usable().power_limits_w.tolist() == [200.0, 225.0, 250.0, 275.0, 300.0]


def test_a_dominated_limit_is_dropped() -> None:
    noisy = PowerProfile((point(100, 100, 1.0), point(125, 131, 1.19), point(150, 130, 1.2), point(175, 160, 1.3)))
    assert noisy.usable().power_limits_w.tolist() == [100.0, 150.0, 175.0]


@pytest.mark.parametrize(
    ("points", "fault"),
    [
        ((), "at least one point"),
        ((point(100, 90, 1), point(100, 95, 1)), "ascend"),
        ((point(200, 90, 1), point(100, 95, 1)), "ascend"),
        ((point(100, 0, 1),), "above 0"),
        ((point(100, 90, float("nan")),), "above 0"),
        ((point(float("inf"), 90, 1),), "above 0"),
    ],
)
def test_an_invalid_curve_is_rejected(points: tuple[ProfilePoint, ...], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        PowerProfile(points)


@given(profiles())
def test_usable_points_keep_the_extremes(profile: PowerProfile) -> None:
    usable = profile.usable()
    assert usable.iterations_per_s.max() == profile.iterations_per_s.max()
    assert usable.energy_minimal.iteration_energy_j == profile.energy_minimal.iteration_energy_j


@given(profiles(), st.floats(0.0, 1e3), st.floats(0.0, 1e5))
def test_no_price_selects_an_unusable_point(profile: PowerProfile, value: float, price: float) -> None:
    best, usable = (
        ((value * curve.power_w + price) / curve.iterations_per_s).min() for curve in (profile, profile.usable())
    )
    assert usable <= best * (1 + 1e-12)


@given(profiles())
def test_a_usable_point_that_is_faster_draws_more(profile: PowerProfile) -> None:
    by_rate = sorted(profile.usable().points, key=lambda p: p.iterations_per_s)
    assert all(slow.power_w <= fast.power_w for slow, fast in pairwise(by_rate))
