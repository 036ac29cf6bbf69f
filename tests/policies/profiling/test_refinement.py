"""The curve while the job trains: what is merge_point, what is believed, what is tried."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.profiling import (
    Refinement,
    begin,
    begin_refinement,
    is_exploring,
    posterior_curve,
    profile_of,
    refine,
    sampled_curve,
)
from policies.profiling.curve_model import max_gain_ratio
from policies.profiling.refinement import LEAST_WEIGHT, merge_point
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.policies.days import A40
from tests.policies.profiling.gpu import CONVEX, SETTINGS, Job, profiled

POINT = ProfilePoint(
    power_limit_w=200.0,
    power_w=180.0,
    iterations_per_s=8.0,
    power_ci_w=3.6,
    iterations_per_s_ci=0.16,
    n=15,
    active_s=2.0,
)


def first_pass(job: Job) -> PowerProfile:
    """Return what the first pass measures."""
    profile = profile_of(profiled(SETTINGS, begin(SETTINGS), job)[0])
    assert profile is not None
    return profile


def refined(refinement: Refinement, job: Job, limit_w: float, *, n_blocks: int = 1) -> Refinement:
    """Return the refinement after so many more blocks at a limit."""
    goal = refinement.n_blocks + n_blocks
    while refinement.n_blocks < goal:
        refinement = refine(SETTINGS, refinement, job.observe(limit_w))
    return refinement


def test_a_block_adds_or_improves_a_point() -> None:
    before = begin_refinement(first_pass(Job(noise_ratio=0.05)))
    at_205 = refined(before, Job(noise_ratio=0.05), 205.0)
    assert [p.power_limit_w for p in at_205.profile.points] == [150.0, 190.0, 205.0, 240.0, 300.0]
    at_190 = refined(at_205, Job(noise_ratio=0.05), 190.0)
    old, new = before.profile.point_at(190.0), at_190.profile.point_at(190.0)
    assert old is not None
    assert new is not None
    assert (new.iterations_per_s_ci or 1.0) < (old.iterations_per_s_ci or 0.0)
    assert new.n > old.n


def test_settling_time_is_not_counted() -> None:
    start = begin_refinement(first_pass(Job()))
    slow = replace(Job().observe(205.0), active_s=0.5, n_iterations=1.0, iteration_times_s=(0.5,))
    after = refined(refine(SETTINGS, start, slow), Job(), 205.0)
    point = after.profile.point_at(205.0)
    assert point is not None
    assert point.iterations_per_s == pytest.approx(CONVEX.at(205.0)[1])


def test_a_block_has_at_least_ten_iterations() -> None:
    seconds = []
    for iteration_s in (0.003, 0.1, 3.0):
        points = tuple(replace(p, iterations_per_s=p.iterations_per_s / 10 / iteration_s) for p in CONVEX.points)
        job = Job(PowerProfile(points), slice_s=max(0.05, iteration_s), noise_ratio=0.05)
        refinement, active_s = begin_refinement(CONVEX), 0.0
        while refinement.n_blocks == 0:
            seen = job.observe(300.0)
            refinement, active_s = refine(SETTINGS, refinement, seen), active_s + seen.active_s
        seconds.append(active_s - SETTINGS.settle_s)
    assert 0.5 <= seconds[0] < 0.7 < seconds[1] < 2.2
    assert seconds[2] == pytest.approx(29.0, rel=0.15)


def test_a_change_of_limit_discards_the_block() -> None:
    refinement = begin_refinement(first_pass(Job()))
    for turn in range(200):
        refinement = refine(SETTINGS, refinement, Job().observe(205.0 if turn // 10 % 2 else 220.0))
    assert refinement.n_blocks == 0


def test_an_invalid_observation_changes_nothing() -> None:
    start = begin_refinement(first_pass(Job()))
    assert refine(SETTINGS, start, replace(Job().observe(205.0), n_iterations=math.nan)) is start


def test_exploration_ends_after_n_blocks() -> None:
    profile = first_pass(Job(noise_ratio=0.05))
    assert is_exploring(SETTINGS, begin_refinement(profile, n_blocks=SETTINGS.n_blocks - 1))
    assert not is_exploring(SETTINGS, begin_refinement(profile, n_blocks=SETTINGS.n_blocks))


def test_exploration_ends_when_the_curve_is_known() -> None:
    for error_ratio, curious in ((0.003, False), (0.03, True)):
        known = PowerProfile(
            tuple(
                replace(p, power_ci_w=error_ratio * p.power_w, iterations_per_s_ci=error_ratio * p.iterations_per_s)
                for p in CONVEX.points
            )
        )
        assert is_exploring(SETTINGS, begin_refinement(known)) is curious


def test_a_single_point_is_not_explored() -> None:
    assert not is_exploring(SETTINGS, begin_refinement(PowerProfile((POINT,))))


@given(st.floats(0.001, 0.1), st.floats(1.5, 10.0), st.floats(1e-3, 1e3))
def test_the_possible_gain_grows_with_uncertainty(ci: float, more_ratio: float, ratio: float) -> None:
    less, more, scaled = (
        PowerProfile(
            tuple(
                replace(
                    p,
                    power_w=unit * p.power_w,
                    power_ci_w=unit * error * p.power_w,
                    iterations_per_s_ci=error * p.iterations_per_s,
                )
                for p in CONVEX.points[::8]
            )
        )
        for error, unit in ((ci, 1.0), (ci * more_ratio, 1.0), (ci, ratio))
    )
    assert max_gain_ratio(less) <= max_gain_ratio(more) + 1e-9
    assert max_gain_ratio(scaled) == pytest.approx(max_gain_ratio(less), abs=1e-6)


def test_slow_changes_are_followed() -> None:
    refinement = refined(begin_refinement(first_pass(Job())), Job(), 190.0, n_blocks=200)
    slower = Job(PowerProfile(tuple(replace(p, iterations_per_s=0.97 * p.iterations_per_s) for p in CONVEX.points)))
    after = refined(refinement, slower, 190.0, n_blocks=math.ceil(3 / LEAST_WEIGHT)).profile.point_at(190.0)
    assert after is not None
    assert after.iterations_per_s == pytest.approx(0.97 * CONVEX.at(190.0)[1], rel=0.002)


def test_measurements_are_weighted_by_precision() -> None:
    vague = replace(POINT, iterations_per_s=9.0, iterations_per_s_ci=0.72)
    merged_point = merge_point(PowerProfile((POINT,)), vague).points[0]
    weight = 0.02**2 / (0.02**2 + 0.08**2)
    assert math.log(merged_point.iterations_per_s / 8.0) == pytest.approx(max(weight, LEAST_WEIGHT) * math.log(9 / 8))
    unknown = replace(POINT, iterations_per_s=9.0, iterations_per_s_ci=None)
    assert merge_point(PowerProfile((unknown,)), POINT).points[0].iterations_per_s == 8.0


@given(st.lists(st.tuples(st.floats(1.0, 20.0), st.floats(0.001, 5.0)), min_size=1, max_size=50))
def test_a_merged_value_lies_between_its_parts(
    rows: list[tuple[float, float]],
) -> None:
    profile = PowerProfile((POINT,))
    for rate_per_s, ci in rows:
        profile = merge_point(profile, replace(POINT, iterations_per_s=rate_per_s, iterations_per_s_ci=ci))
    point, rates = profile.points[0], [8.0, *(rate_per_s for rate_per_s, _ in rows)]
    assert min(rates) * (1 - 1e-9) <= point.iterations_per_s <= max(rates) * (1 + 1e-9)
    assert point.n == 15 * (len(rows) + 1)
    assert (point.iterations_per_s_ci or 0.0) > 0


def test_neighbours_inform_each_other() -> None:
    """One of many points is too fast by chance; the belief does not fall for it."""
    points = [
        replace(p, power_ci_w=0.02 * p.power_w, iterations_per_s_ci=0.02 * p.iterations_per_s) for p in CONVEX.points
    ]
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
    points = tuple(
        replace(p, power_ci_w=0.01 * p.power_w, iterations_per_s_ci=0.01 * p.iterations_per_s)
        for p in CONVEX.points
        if p.power_limit_w in {150.0, 200.0, 300.0}
    )
    curve = posterior_curve(PowerProfile(points))
    between, measured = curve.point_at(250.0), curve.point_at(300.0)
    assert between is not None
    assert measured is not None
    assert between.n == 0
    assert (between.power_ci_w or 0.0) / between.power_w > (measured.power_ci_w or 0.0) / measured.power_w


def test_samples_scatter_with_the_uncertainty() -> None:
    rng = np.random.default_rng(5)
    points = tuple(
        replace(p, power_ci_w=0.02 * p.power_w, iterations_per_s_ci=0.04 * p.iterations_per_s)
        for p in CONVEX.points
        if p.power_limit_w in {150.0, 200.0, 300.0}
    )
    profile = PowerProfile(points)
    draws = np.log([sampled_curve(profile, rng).iterations_per_s for _ in range(200)])
    curve = posterior_curve(profile)
    expected = [0.7 * (p.iterations_per_s_ci or 0.0) / 1.96 / p.iterations_per_s for p in curve.points]
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
    scaled = PowerProfile(
        tuple(
            replace(p, power_w=ratio * p.power_w, power_ci_w=None if p.power_ci_w is None else ratio * p.power_ci_w)
            for p in points
        )
    )
    assert posterior_curve(scaled).power_w == pytest.approx(ratio * posterior_curve(profile).power_w, rel=1e-5)
