"""Refinement: blocks that are merged, and when exploration ends."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.profiling import (
    Refinement,
    begin,
    begin_refinement,
    is_exploring,
    profile_of,
    refine,
)
from policies.profiling.refinement import LEAST_WEIGHT, merge_point
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.policies.profiling.gpu import CONVEX, SETTINGS, Job, profiled, with_ci

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
    """Return the curve of the first sweep."""
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


def test_neighbouring_blocks_show_the_noise_of_windows() -> None:
    steady, scattered = (
        refined(begin_refinement(CONVEX), Job(noise_ratio=noise_ratio), 205.0, n_blocks=40).scatter.windows
        for noise_ratio in (0.001, 0.05)
    )
    assert steady.is_known
    assert steady.errors_ratio(2.0)[0] < 0.003
    assert scattered.errors_ratio(2.0)[0] > 0.008


def test_blocks_at_other_limits_or_of_other_lengths_are_no_neighbours() -> None:
    refinement, job = begin_refinement(CONVEX), Job(noise_ratio=0.001)
    for turn in range(6):
        refinement = refined(refinement, job, 205.0 if turn % 2 else 220.0)
    late = replace(job.observe(220.0), active_s=30.0, n_iterations=200.0, energy_j=5_000.0, iteration_times_s=())
    refinement = refine(SETTINGS, refine(SETTINGS, refinement, job.observe(220.0)), late)
    assert refinement.scatter.windows.squares_s == ()


def test_an_invalid_observation_changes_nothing() -> None:
    start = begin_refinement(first_pass(Job()))
    assert refine(SETTINGS, start, replace(Job().observe(205.0), n_iterations=math.nan)) is start


def test_exploration_ends_after_n_blocks() -> None:
    profile = first_pass(Job(noise_ratio=0.05))
    assert is_exploring(SETTINGS, begin_refinement(profile, n_blocks=SETTINGS.n_blocks - 1))
    assert not is_exploring(SETTINGS, begin_refinement(profile, n_blocks=SETTINGS.n_blocks))


def test_exploration_ends_when_the_curve_is_known() -> None:
    for ci_ratio, is_open in ((0.003, False), (0.03, True)):
        assert is_exploring(SETTINGS, begin_refinement(with_ci(CONVEX, ci_ratio))) is is_open


def test_a_single_point_is_not_explored() -> None:
    assert not is_exploring(SETTINGS, begin_refinement(PowerProfile((POINT,))))


def test_slow_changes_are_followed() -> None:
    refinement = refined(begin_refinement(first_pass(Job())), Job(), 190.0, n_blocks=400)
    slower = Job(CONVEX.scaled(rate_ratio=0.97))
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
