"""The first pass: which limits it visits, how long it measures each, and when it ends."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from policies.profiling import Measuring, Observation, Profiled, ProfilerSettings, advance, begin, profile_of
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.policies.days import A40
from tests.policies.profiling.gpu import CONVEX, SETTINGS, Job, measuring, profiled

LEAST_ENERGY_W = CONVEX.energy_minimal.power_limit_w


def test_it_descends_by_a_fifth_until_energy_rises() -> None:
    state, wanted_w = profiled(SETTINGS, begin(SETTINGS), Job())
    assert wanted_w == [300.0, 240.0, 190.0, 150.0]
    assert isinstance(state, Profiled)
    assert [point.power_limit_w for point in state.points] == [150.0, 190.0, 240.0, 300.0]


def test_it_ends_at_the_floor_if_energy_never_rises() -> None:
    linear = PowerProfile(
        tuple(
            ProfilePoint(power_limit_w=w, power_w=0.95 * w, iterations_per_s=r) for w, r in ((100.0, 0.8), (300.0, 1.0))
        )
    )
    _, wanted_w = profiled(SETTINGS, begin(SETTINGS), Job(linear))
    assert wanted_w == [300.0, 240.0, 190.0, 150.0, 120.0, 100.0]


def test_the_curve_is_what_was_observed() -> None:
    state, _ = profiled(SETTINGS, begin(SETTINGS), Job(A40))
    profile = profile_of(state)
    assert profile is not None
    for point in profile.points:
        assert (point.power_w, point.iterations_per_s) == pytest.approx(A40.at(point.power_limit_w))


def test_a_floor_at_the_prior_limit_measures_only_that() -> None:
    high = replace(SETTINGS, floor_power_limit_w=400.0)
    _, wanted_w = profiled(high, begin(high), Job())
    assert wanted_w == [300.0]


def test_settling_time_is_not_counted() -> None:
    slow = Observation(power_limit_w=300.0, active_s=0.5, n_iterations=1.0, energy_j=50.0)
    state = advance(SETTINGS, begin(SETTINGS), slow)
    state, _ = profiled(SETTINGS, state, Job())
    assert state.points[-1].iterations_per_s == pytest.approx(10.0)


def test_without_settling_the_first_observation_counts() -> None:
    at_once = replace(SETTINGS, settle_s=0.0)
    assert isinstance(advance(at_once, begin(at_once), Job().observe(300.0)), Measuring)


def test_the_prior_limit_is_measured_for_longer_than_the_others() -> None:
    state, _ = profiled(SETTINGS, begin(SETTINGS), Job(noise_ratio=0.05))
    *others, prior = state.points
    assert prior.n > max(point.n for point in others)


def test_noisy_iterations_are_measured_for_longer_up_to_a_bound() -> None:
    counts = []
    for noise_ratio in (0.01, 0.1):
        state, _ = profiled(SETTINGS, begin(SETTINGS), Job(noise_ratio=noise_ratio))
        counts.append(next(point.n for point in state.points if point.power_limit_w == 240.0))
    assert counts[0] < counts[1] <= 16


@pytest.mark.parametrize("iteration_s", [0.003, 30.0])
@pytest.mark.parametrize("tells_times", [True, False])
def test_iterations_may_have_any_length(iteration_s: float, *, tells_times: bool) -> None:
    points = tuple(replace(p, iterations_per_s=p.iterations_per_s / 10 / iteration_s) for p in CONVEX.points)
    job = Job(PowerProfile(points), slice_s=max(0.1, iteration_s), tells_times=tells_times)
    state, wanted_w = profiled(SETTINGS, begin(SETTINGS), job)
    assert wanted_w == [300.0, 240.0, 190.0, 150.0]
    assert state.points[-1].iterations_per_s == pytest.approx(1 / iteration_s)
    if iteration_s > 1:
        assert sum(point.n for point in state.points) <= 40


def test_short_observations_are_grouped() -> None:
    piece = Observation(power_limit_w=300.0, active_s=0.1, n_iterations=0.05, energy_j=27.0)
    state = begin(SETTINGS)
    while not state.points:
        state = advance(SETTINGS, state, piece)
    assert state.points[0].iterations_per_s == pytest.approx(0.5)
    assert state.points[0].power_w == pytest.approx(270.0)


@pytest.mark.parametrize(
    "impossible",
    [
        replace(Job().observe(300.0), active_s=0.0),
        replace(Job().observe(300.0), energy_j=-1.0),
        replace(Job().observe(300.0), n_iterations=math.nan),
        replace(Job().observe(300.0), active_s=math.inf),
        replace(Job().observe(300.0), iteration_times_s=(-1.0,)),
    ],
)
def test_an_invalid_observation_changes_nothing(impossible: Observation) -> None:
    state = measuring(SETTINGS, begin(SETTINGS), Job())
    assert advance(SETTINGS, state, impossible) is state


def test_without_energy_no_point_is_made() -> None:
    state = begin(SETTINGS)
    for _ in range(100):
        state = advance(SETTINGS, state, replace(Job().observe(300.0), energy_j=0.0))
    assert isinstance(state, Measuring)


def test_known_points_are_not_measured_again() -> None:
    known = PowerProfile(tuple(point for point in CONVEX.points if point.power_limit_w in {300.0, 240.0}))
    state, wanted_w = profiled(SETTINGS, begin(SETTINGS, known), Job())
    assert wanted_w == [190.0, 150.0]
    assert state.points[2:] == known.points


def test_a_complete_known_curve_needs_no_sweep() -> None:
    assert begin(SETTINGS, CONVEX) == Profiled(points=CONVEX.points)


def test_known_points_outside_the_range_are_dropped() -> None:
    low = replace(SETTINGS, prior_power_limit_w=250.0)
    state = begin(low, A40)
    assert [point.power_limit_w for point in state.points] == [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0]


def test_the_interval_has_its_coverage() -> None:
    job, covered = Job(noise_ratio=0.05, rng=np.random.default_rng(7)), 0
    for _ in range(200):
        state = begin(SETTINGS)
        while not state.points:
            state = advance(SETTINGS, state, job.observe(300.0))
        point = state.points[0]
        assert point.iterations_per_s_ci is not None
        assert point.iterations_per_s_ci < 0.06 * point.iterations_per_s
        covered += abs(point.iterations_per_s - 10.0) <= point.iterations_per_s_ci
    assert covered >= 0.93 * 200


@pytest.mark.parametrize(
    "refused",
    [
        lambda: replace(SETTINGS, step_ratio=1.0),
        lambda: replace(SETTINGS, step_ratio=0.0),
        lambda: replace(SETTINGS, floor_power_limit_w=math.nan),
        lambda: replace(SETTINGS, settle_s=-1.0),
        lambda: replace(SETTINGS, n_gpus=0),
    ],
)
def test_invalid_settings_are_rejected(refused: Callable[[], ProfilerSettings]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        refused()
