"""The Gaussian process of the power curve: posterior, samples, and the gain that is still possible."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.profiling import (
    posterior_curve,
    sampled_curve,
)
from policies.profiling.curve_model import max_gain_ratio
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.policies.days import A40
from tests.policies.profiling.gpu import CONVEX, with_ci

POINT = ProfilePoint(
    power_limit_w=200.0,
    power_w=180.0,
    iterations_per_s=8.0,
    power_ci_w=3.6,
    iterations_per_s_ci=0.16,
    n=15,
    active_s=2.0,
)


@given(st.floats(0.001, 0.1), st.floats(1.5, 10.0), st.floats(1e-3, 1e3))
def test_the_possible_gain_grows_with_uncertainty(ci: float, more_ratio: float, ratio: float) -> None:
    few = PowerProfile(CONVEX.points[::8])
    less, more = with_ci(few, ci), with_ci(few, ci * more_ratio)
    assert max_gain_ratio(less) <= max_gain_ratio(more) + 1e-9
    assert max_gain_ratio(less.scaled(power_ratio=ratio)) == pytest.approx(max_gain_ratio(less), abs=1e-6)


def test_neighbours_inform_each_other() -> None:
    """One of many points is too fast by chance; the posterior does not follow it."""
    points = list(with_ci(CONVEX, 0.02).points)
    points[20] = replace(points[20], iterations_per_s=1.02 * points[20].iterations_per_s)
    curve = posterior_curve(PowerProfile(tuple(points)))
    ratios = curve.iterations_per_s / CONVEX.iterations_per_s
    assert abs(ratios[20] - 1) < 0.01
    assert (curve.points[20].iterations_per_s_ci or 1.0) < 0.6 * (points[20].iterations_per_s_ci or 0.0)


def test_a_precise_curve_is_its_own_posterior() -> None:
    points = tuple(replace(p, power_ci_w=1e-3, iterations_per_s_ci=1e-6) for p in A40.points)
    curve = posterior_curve(PowerProfile(points))
    assert curve.power_limits_w.tolist() == [float(limit_w) for limit_w in range(100, 301, 5)]
    for point in A40.points:
        near = curve.point_at(point.power_limit_w)
        assert near is not None
        assert near.power_w == pytest.approx(point.power_w, rel=1e-3)
        assert near.iterations_per_s == pytest.approx(point.iterations_per_s, rel=1e-3)


def test_points_between_have_wider_intervals() -> None:
    curve = posterior_curve(with_ci(CONVEX, 0.01, {150.0, 200.0, 300.0}))
    between, measured = curve.point_at(250.0), curve.point_at(300.0)
    assert between is not None
    assert measured is not None
    assert between.n == 0
    assert between.power_ci_ratio > measured.power_ci_ratio


def test_samples_scatter_with_the_uncertainty() -> None:
    rng = np.random.default_rng(5)
    profile = with_ci(CONVEX, 0.04, {150.0, 200.0, 300.0})
    draws = np.log([sampled_curve(profile, rng).iterations_per_s for _ in range(200)])
    curve = posterior_curve(profile)
    expected = [0.7 * p.rate_ci_ratio / 1.96 for p in curve.points]
    assert draws.std(axis=0) == pytest.approx(expected, rel=0.2)
    assert draws.mean(axis=0) == pytest.approx(np.log(curve.iterations_per_s), abs=0.01)


def test_a_single_point_has_a_posterior() -> None:
    one = PowerProfile((POINT,))
    assert posterior_curve(one) == one
    moved = sampled_curve(one, np.random.default_rng(1))
    assert len(moved.points) == 1
    assert moved.points[0].iterations_per_s == pytest.approx(8.0, rel=0.06)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(20, 80), st.floats(20.0, 400.0), st.floats(0.001, 300.0), st.floats(1e-5, 0.3)),
        min_size=1,
        max_size=12,
        unique_by=lambda row: row[0],
    ),
    st.floats(1e-3, 1e3),
    st.integers(0, 1000),
)
def test_posteriors_are_valid_in_any_unit(rows: list[tuple[int, float, float, float]], ratio: float, seed: int) -> None:
    points = tuple(
        ProfilePoint(
            power_limit_w=5.0 * n, power_w=w, iterations_per_s=r, power_ci_w=ci * w, iterations_per_s_ci=ci * r
        )
        for n, w, r, ci in sorted(rows)
    )
    profile = PowerProfile(points)
    moved = fit_curve(sampled_curve(profile, np.random.default_rng(seed)), step_w=5.0)
    assert np.isfinite(moved.power_w).all()
    assert (np.diff(np.log(moved.iterations_per_s)) >= -1e-9).all()
    scaled = posterior_curve(profile.scaled(power_ratio=ratio))
    assert scaled.power_w == pytest.approx(ratio * posterior_curve(profile).power_w, rel=1e-5)
