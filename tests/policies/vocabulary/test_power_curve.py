"""The curve between measured points, against scipy and scikit-learn; its lower hull."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.vocabulary.power_curve import fit_curve, isotonic, lower_hull, pchip, smoothed, whole_hull
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.policies.days import A40

VALUES = st.floats(-10.0, 10.0).map(lambda value: round(value, 3))
WEIGHTS = st.floats(0.01, 100.0)


@st.composite
def profiles(draw: st.DrawFn) -> PowerProfile:
    """Draw measured points at distinct limits, in no order of power or rate."""
    limits_w = sorted(draw(st.sets(st.integers(50, 400), min_size=1, max_size=10)))
    return PowerProfile(
        tuple(
            ProfilePoint(
                power_limit_w=float(limit_w),
                power_w=draw(st.floats(20.0, 500.0)),
                iterations_per_s=draw(st.floats(0.01, 100.0)),
                power_ci_w=draw(st.floats(0.1, 10.0)),
                iterations_per_s_ci=draw(st.floats(0.001, 1.0)),
                active_s=draw(st.floats(0.1, 10.0)),
            )
            for limit_w in limits_w
        )
    )


@given(st.lists(st.tuples(VALUES, WEIGHTS), min_size=1, max_size=30))
def test_isotonic_agrees_with_scikit_learn(rows: list[tuple[float, float]]) -> None:
    regression = pytest.importorskip("sklearn.isotonic").IsotonicRegression()
    values, weights = np.array(rows).T
    expected = regression.fit_transform(np.arange(len(values)), values, sample_weight=weights)
    assert isotonic(values, weights) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 50), VALUES), min_size=2, max_size=12), st.integers(0, 1000))
def test_pchip_agrees_with_scipy(rows: list[tuple[int, float]], seed: int) -> None:
    interpolate = pytest.importorskip("scipy.interpolate")
    knots = np.cumsum([step for step, _ in rows]).astype(float)
    values = np.array([value for _, value in rows])
    at = np.concatenate((knots, np.random.default_rng(seed).uniform(knots[0], knots[-1], 20)))
    expected = interpolate.PchipInterpolator(knots, values)(at)
    assert pchip(knots, values, at) == pytest.approx(expected, abs=1e-7)


@given(profiles(), st.floats(1.0, 50.0))
def test_the_fit_is_monotone_through_the_smoothed_points(profile: PowerProfile, step_w: float) -> None:
    curve = fit_curve(profile, step_w=step_w)
    assert (np.diff(np.log(curve.power_w)) >= -1e-9).all()
    assert (np.diff(np.log(curve.iterations_per_s)) >= -1e-9).all()
    for point in smoothed(profile).points:
        assert point in curve.points or len(profile.points) == 1
    assert curve.power_limits_w[[0, -1]].tolist() == profile.power_limits_w[[0, -1]].tolist()


@given(profiles())
def test_fitting_is_idempotent(profile: PowerProfile) -> None:
    once = smoothed(profile)
    twice = smoothed(once)
    assert twice.power_w == pytest.approx(once.power_w)
    assert twice.iterations_per_s == pytest.approx(once.iterations_per_s)


def test_contradictory_points_are_pooled_by_precision() -> None:
    low = ProfilePoint(
        power_limit_w=200.0, power_w=150.0, iterations_per_s=2.0, power_ci_w=1.0, iterations_per_s_ci=0.02
    )
    high = ProfilePoint(
        power_limit_w=250.0, power_w=160.0, iterations_per_s=1.9, power_ci_w=1.0, iterations_per_s_ci=0.19
    )
    pooled = smoothed(PowerProfile((low, high)))
    assert pooled.iterations_per_s == pytest.approx([2.0, 2.0], rel=0.001)
    unknown = PowerProfile(
        (replace(low, iterations_per_s_ci=None, active_s=1.0), replace(high, iterations_per_s_ci=None, active_s=3.0))
    )
    assert smoothed(unknown).iterations_per_s == pytest.approx([np.exp((np.log(2.0) + 3 * np.log(1.9)) / 4)] * 2)


def test_interpolated_points_have_no_intervals() -> None:
    curve = fit_curve(A40, step_w=5.0)
    assert [p.power_limit_w for p in curve.points] == [float(limit_w) for limit_w in range(100, 301, 5)]
    assert all(point.n == 0 and point.power_ci_w is None for point in curve.points if point not in A40.points)


def test_a_single_point_is_its_own_curve() -> None:
    one = PowerProfile(A40.points[:1])
    assert fit_curve(one, step_w=5.0) == one


@given(profiles())
def test_no_point_lies_below_the_lower_hull(profile: PowerProfile) -> None:
    hull = lower_hull(profile)
    assert set(hull.points) <= set(profile.points)
    rates, powers = hull.iterations_per_s, hull.power_w
    for point in profile.points:
        if rates[0] <= point.iterations_per_s <= rates[-1]:
            assert point.power_w >= np.interp(point.iterations_per_s, rates, powers) * (1 - 1e-9)


@given(profiles())
def test_marginal_energies_rise_along_the_hull(
    profile: PowerProfile,
) -> None:
    hull = lower_hull(profile)
    slopes_j = hull.marginal_energies_j
    assert slopes_j.shape == (len(hull.points) - 1,)
    assert (np.diff(slopes_j) > 0).all()
    assert hull.fastest.iterations_per_s == profile.iterations_per_s.max()
    least_j = profile.energy_minimal.iteration_energy_j
    assert hull.most_efficient.iteration_energy_j == pytest.approx(least_j)
    assert all(a.iterations_per_s < b.iterations_per_s for a, b in pairwise(hull.points))


@given(profiles(), st.none() | st.floats(1.0, 300.0))
def test_the_whole_hull_goes_on_to_the_slowest_point_or_the_pause(
    profile: PowerProfile, idle_power_w: float | None
) -> None:
    hull, least = whole_hull(profile, idle_power_w=idle_power_w), lower_hull(profile)
    rates, powers = hull.iterations_per_s, hull.power_w
    assert (np.diff(hull.marginal_energies_j) > 0).all()
    assert rates[0] == (profile.iterations_per_s.min() if idle_power_w is None else 0.0)
    assert hull.begins_with_pause == (idle_power_w is not None)
    assert (profile.power_w >= np.interp(profile.iterations_per_s, rates, powers) * (1 - 1e-9)).all()
    assert hull.fastest == least.fastest
    if idle_power_w is None:
        assert hull.points[-len(least.points) :] == least.points


def test_the_first_edge_from_the_pause_is_the_tangent() -> None:
    """At 25 W no limit of the A40 below the energy-minimal one is of use; at 60 W one is."""
    for idle_power_w, first_w in ((25.0, 200.0), (60.0, 175.0)):
        pause, first, *_ = whole_hull(A40, idle_power_w=idle_power_w).points
        assert (pause.power_w, pause.iterations_per_s) == (idle_power_w, 0.0)
        assert pause.power_limit_w == first.power_limit_w == first_w
        over_idle_j = [(point.power_w - idle_power_w) / point.iterations_per_s for point in A40.points]
        assert A40.points[int(np.argmin(over_idle_j))] == first


def test_the_chord_joins_the_two_ends() -> None:
    hull = whole_hull(A40, idle_power_w=25.0)
    assert hull.chord.points == (hull.slowest, hull.fastest)
    assert lower_hull(PowerProfile(A40.points[:1])).chord.points == A40.points[:1]
    assert whole_hull(A40).slowest == A40.points[0]
    assert hull.most_efficient == whole_hull(A40).most_efficient == A40.energy_minimal
