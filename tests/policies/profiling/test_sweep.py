"""The first sweep: which limits are measured, for how long, and what restarts it."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.profiling import (
    Measuring,
    Observation,
    Profiled,
    ProfilerSettings,
    Settling,
    advance,
    begin,
    profile_of,
    progress_ratio,
    target_power_limit_w,
)
from policies.profiling.sweep import MAX_RENEWALS, MAX_RESTARTS
from policies.vocabulary.profile import PowerProfile
from tests.policies.days import A40
from tests.policies.profiling.gpu import CONVEX, SETTINGS, Job, measuring, profiled

LEAST_ENERGY_W = CONVEX.energy_minimal.power_limit_w


def test_it_descends_by_a_fifth_until_energy_rises() -> None:
    state, wanted_w = profiled(SETTINGS, begin(SETTINGS), Job())
    assert wanted_w == [300.0, 240.0, 190.0, 150.0]
    assert isinstance(state, Profiled)
    assert [point.power_limit_w for point in state.points] == [150.0, 190.0, 240.0, 300.0]


def test_it_ends_at_the_floor_if_energy_never_rises() -> None:
    linear = PowerProfile.from_rows((w, 0.95 * w, r) for w, r in ((100.0, 0.8), (300.0, 1.0)))
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


def curve(*points: tuple[float, float, float]) -> PowerProfile:
    """Return a curve through limits, powers [W] and rates [1/s]."""
    return PowerProfile.from_rows((w, p, r) for w, p, r in points)


def test_limits_far_above_the_draw_are_skipped() -> None:
    light = curve((100.0, 95.0, 8.0), (140.0, 130.0, 10.0), (300.0, 130.0, 10.0))
    _, wanted_w = profiled(SETTINGS, begin(SETTINGS), Job(light))
    assert wanted_w == [300.0, 155.0, 125.0, 100.0]
    two = replace(SETTINGS, n_gpus=2)
    _, wanted_w = profiled(two, begin(two), Job(light, energy_scale_ratio=2.0))
    assert wanted_w == [300.0, 155.0, 125.0, 100.0]


@pytest.mark.parametrize("mean_w", [63.0, 80.0, 93.0, 100.0])
@pytest.mark.parametrize("n_gpus", [1, 4])
def test_a_floor_that_may_cut_peaks_is_measured(mean_w: float, n_gpus: int) -> None:
    bounds = ProfilerSettings(prior_power_limit_w=250.0, floor_power_limit_w=125.0, n_gpus=n_gpus)
    bursty = curve((125.0, 0.9 * mean_w, 14.9), (200.0, mean_w, 15.0), (250.0, mean_w, 15.0))
    state, wanted_w = profiled(bounds, begin(bounds), Job(bursty, energy_scale_ratio=n_gpus))
    assert wanted_w == [250.0, 125.0]
    assert state.points[0].power_w == pytest.approx(0.9 * mean_w * n_gpus)


@pytest.mark.parametrize("n_gpus", [1, 4])
def test_limits_above_all_peaks_are_skipped(n_gpus: int) -> None:
    bounds = replace(SETTINGS, n_gpus=n_gpus)
    _, wanted_w = profiled(bounds, begin(bounds), Job(curve((300.0, 48.0, 10.0)), energy_scale_ratio=n_gpus))
    assert wanted_w == [300.0]


def test_a_power_brake_is_measured_at_its_own_limit() -> None:
    state, wanted_w = profiled(SETTINGS, begin(SETTINGS), Job(), enforced=lambda limit_w: min(limit_w, 220.0))
    assert wanted_w == [300.0, 175.0, 140.0]
    assert [point.power_limit_w for point in state.points] == [140.0, 175.0, 220.0]


def test_a_flickering_reading_is_the_same_limit() -> None:
    state, _ = profiled(SETTINGS, begin(SETTINGS), Job(), enforced=lambda limit_w: limit_w - 0.7)
    assert [point.power_limit_w for point in state.points] == [150.0, 190.0, 240.0, 300.0]


def test_a_changed_limit_restarts_its_measurement() -> None:
    state = measuring(SETTINGS, begin(SETTINGS), Job())
    after = advance(SETTINGS, state, Job().observe(280.0))
    assert isinstance(after, Settling)
    assert after.power_limit_w == 300.0
    assert after.settle.active_s == pytest.approx(0.1, rel=0.1)


def test_an_unstable_limit_is_skipped() -> None:
    state = begin(SETTINGS)
    for turn in range(MAX_RESTARTS + 2):
        state = advance(SETTINGS, state, Job().observe(300.0 if turn % 2 else 250.0))
    assert target_power_limit_w(state) == 240.0


def test_a_job_faster_at_a_lower_limit_is_profiled_anew() -> None:
    state = begin(SETTINGS)
    while len(state.points) < 2:
        state = advance(SETTINGS, state, Job().observe(target_power_limit_w(state) or 0.0))
    faster = Job(PowerProfile(tuple(replace(p, iterations_per_s=2 * p.iterations_per_s) for p in CONVEX.points)))
    state, wanted_w = profiled(SETTINGS, state, faster)
    assert wanted_w == [190.0, 300.0, 240.0, 190.0, 150.0]
    assert state.points[-1].iterations_per_s == pytest.approx(20.0)


def test_a_changing_job_is_not_profiled_for_ever() -> None:
    state, n_slices = begin(SETTINGS), 0
    while (limit_w := target_power_limit_w(state)) is not None:
        seen = Job().observe(limit_w)
        wild = 4.0 if int(limit_w) % 20 else 1.0
        times_s = tuple(time_s / wild for time_s in seen.iteration_times_s)
        state = advance(SETTINGS, state, replace(seen, active_s=seen.active_s / wild, iteration_times_s=times_s))
        n_slices += 1
    assert n_slices < 100 * (MAX_RENEWALS + 2)


def test_a_change_within_a_window_restarts_it() -> None:
    at_once = replace(SETTINGS, settle_s=0.0, window_s=2.0)
    state = begin(at_once)
    for _ in range(8):
        state = advance(at_once, state, Job().observe(300.0))
    slow = Job(PowerProfile(tuple(replace(p, iterations_per_s=p.iterations_per_s / 2) for p in CONVEX.points)))
    state, _ = profiled(at_once, state, slow)
    assert state.points[-1].iterations_per_s == pytest.approx(5.0)


def test_one_stall_is_not_a_slower_limit() -> None:
    state = measuring(SETTINGS, begin(SETTINGS), Job())
    stalled = Observation(power_limit_w=300.0, active_s=0.3, n_iterations=1.0, energy_j=80.0, iteration_times_s=(0.3,))
    after, _ = profiled(SETTINGS, advance(SETTINGS, state, stalled), Job())
    assert after.points[-1].iterations_per_s == pytest.approx(10.0, rel=0.03)


@st.composite
def curves(draw: st.DrawFn) -> PowerProfile:
    """Draw a monotone curve between 60 and 400 W."""
    limits_w = [60.0, 100.0, 150.0, 200.0, 300.0, 400.0]
    rates = np.cumsum(draw(st.lists(st.floats(0.01, 5.0), min_size=6, max_size=6)))
    powers = np.cumsum(draw(st.lists(st.floats(1.0, 80.0), min_size=6, max_size=6)))
    return PowerProfile.from_rows(
        (w, min(p, w), r) for w, p, r in zip(limits_w, powers.tolist(), rates.tolist(), strict=True)
    )


@settings(max_examples=60, deadline=None)
@given(
    curves(), st.floats(80.0, 400.0), st.floats(60.0, 400.0), st.floats(0.5, 0.95), st.floats(0.0, 0.2), st.integers()
)
def test_it_ends_and_requests_only_admissible_limits(
    curve: PowerProfile, prior_w: float, floor_w: float, step_ratio: float, noise_ratio: float, seed: int
) -> None:
    bounds = ProfilerSettings(prior_power_limit_w=prior_w, floor_power_limit_w=floor_w, step_ratio=step_ratio)
    job = Job(curve, noise_ratio=noise_ratio, stall_ratio=0.02, rng=np.random.default_rng(abs(seed)))
    state, wanted_w = profiled(bounds, begin(bounds), job)
    assert all(min(prior_w, floor_w) <= limit_w <= prior_w for limit_w in wanted_w)
    assert all(math.isfinite(x) for p in state.points for x in (p.power_w, p.iterations_per_s))
    assert profile_of(state) is not None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 4), st.floats(0.55, 0.95))
def test_a_restart_gives_the_same_curve(cut: int, step_ratio: float) -> None:
    bounds = replace(SETTINGS, step_ratio=step_ratio)
    whole, wanted_w = profiled(bounds, begin(bounds), Job())
    kept = whole.points[len(whole.points) - min(cut, len(whole.points)) :]
    resumed, rest_w = profiled(bounds, begin(bounds, PowerProfile(kept) if kept else None), Job())
    assert rest_w == wanted_w[len(kept) :]
    assert [p.power_limit_w for p in resumed.points] == [p.power_limit_w for p in whole.points]
    for one, other in zip(resumed.points, whole.points, strict=True):
        assert one.iterations_per_s == pytest.approx(other.iterations_per_s)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 16), st.sampled_from([0.25, 1.0, 8.0, 64.0]), st.integers(0, 100))
def test_units_change_no_limit(n_gpus: int, time_ratio: float, seed: int) -> None:
    _, wanted_w = profiled(SETTINGS, begin(SETTINGS), Job(noise_ratio=0.05, rng=np.random.default_rng(seed)))
    scaled = replace(
        SETTINGS,
        n_gpus=n_gpus,
        settle_s=SETTINGS.settle_s * time_ratio,
        window_s=SETTINGS.window_s * time_ratio,
    )
    job = Job(
        noise_ratio=0.05,
        rng=np.random.default_rng(seed),
        time_scale_ratio=time_ratio,
        energy_scale_ratio=n_gpus * time_ratio,
    )
    assert profiled(scaled, begin(scaled), job)[1] == wanted_w


@settings(max_examples=50, deadline=None)
@given(st.floats(1.2, 4.0), st.floats(0.0, 120.0), st.floats(0.55, 0.9))
def test_it_never_goes_far_below_the_energy_minimum(bend: float, idle_w: float, step_ratio: float) -> None:
    """Power is proportional to the limit, and the rate saturates: energy per iteration is convex."""
    curve = PowerProfile.from_rows(
        (float(w), float(w), 10 * (1 - ((300 - w) / (300 - 0.9 * min(idle_w, 95.0))) ** bend) + 1e-3)
        for w in range(100, 301, 5)
    )
    bounds = replace(SETTINGS, step_ratio=step_ratio)
    state, _ = profiled(bounds, begin(bounds), Job(curve))
    least_j = curve.energy_minimal.iteration_energy_j
    useful_w = min(point.power_limit_w for point in curve.points if point.iteration_energy_j <= 1.04 * least_j)
    assert state.points[0].power_limit_w >= max(step_ratio**2 * useful_w - 10, 100.0)


@given(st.lists(st.floats(0.0, 2.0), max_size=60))
def test_progress_is_monotone_and_ends_at_one(durations_s: list[float]) -> None:
    state, before = begin(SETTINGS), 0.0
    for active_s in durations_s:
        power_w, rate_per_s = CONVEX.at(target_power_limit_w(state) or 100.0)
        seen = Observation(
            power_limit_w=target_power_limit_w(state) or 100.0,
            active_s=active_s,
            n_iterations=rate_per_s * active_s,
            energy_j=power_w * active_s,
        )
        state = advance(SETTINGS, state, seen)
        now = progress_ratio(SETTINGS, state)
        assert before - 1e-12 <= now <= 1.0
        assert isinstance(state, Profiled) or now < 1.0
        before = now


@pytest.mark.parametrize(("sees_settling", "between_s"), [(True, (0.75, 0.98)), (False, (1.0, 1.2))])
def test_where_settling_is_seen_a_limit_takes_less_than_a_second(
    between_s: tuple[float, float], *, sees_settling: bool
) -> None:
    """The first iteration at a limit was begun at the one before."""
    seeing, active_s, last_w = replace(SETTINGS, sees_settling=sees_settling), 0.0, None
    state, job = begin(seeing), Job(CONVEX.scaled(rate_ratio=3), noise_ratio=0.0003)
    while (limit_w := target_power_limit_w(state)) is not None:
        seen = replace(job.observe(last_w or limit_w), power_limit_w=limit_w)
        state, active_s, last_w = advance(seeing, state, seen), active_s + seen.active_s, limit_w
    low_s, high_s = between_s
    assert low_s <= active_s / len(state.points) <= high_s
