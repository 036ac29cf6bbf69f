"""The first pass and what does not stand still: limits that others hold or change, jobs that become others, stalls."""

from dataclasses import replace

import pytest

from policies.profiling import Observation, Settling, advance, begin, target_power_limit_w
from policies.profiling.sweep import MAX_RENEWALS, MAX_RESTARTS
from policies.vocabulary.profile import PowerProfile
from tests.policies.profiling.gpu import CONVEX, SETTINGS, Job, measuring, profiled


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
    assert after.settled_s == pytest.approx(0.1, rel=0.1)


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
