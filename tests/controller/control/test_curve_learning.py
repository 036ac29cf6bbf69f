"""The power curve of a run: how it is learnt and stored, and the curves that a plan is made on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from controller.accounting.meter_intervals import MeterInterval
from controller.config import ProfilerConfig
from controller.control.curve_learning import (
    CurveState,
    Planned,
    Profiling,
    advance_curve,
    begin_curve,
    measured_in,
    n_measurements_in,
    observation_of,
    posterior_mean,
    posterior_sample,
    with_stalls,
)
from controller.control.profile_store import ProfileKey, ProfileStore
from policies.profiling import ProfilerSettings, target_power_limit_w
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.controller.messages import ns

WINDOW_CI_RATIO = 0.0196
"""What a single measurement leaves open."""


def point(limit_w: float, rate_per_s: float, *, ci_ratio: float | None = WINDOW_CI_RATIO) -> ProfilePoint:
    """Return a point of a hundred iterations, whose power is nine tenths of the limit."""
    ci_per_s = None if ci_ratio is None else ci_ratio * rate_per_s
    return ProfilePoint(
        power_limit_w=limit_w,
        power_w=0.9 * limit_w,
        iterations_per_s=rate_per_s,
        power_ci_w=None if ci_ratio is None else ci_ratio * 0.9 * limit_w,
        iterations_per_s_ci=ci_per_s,
        n=100,
        active_s=100 / rate_per_s,
    )


CURVE = PowerProfile((point(150.0, 0.8), point(200.0, 0.93), point(250.0, 0.98), point(300.0, 1.0)))


def test_a_run_without_stalls_keeps_its_measured_rates() -> None:
    average = with_stalls(CURVE)
    assert average.iterations_per_s == pytest.approx(CURVE.iterations_per_s)
    assert average.power_w == pytest.approx(CURVE.power_w)


def test_stalls_slow_a_run_alike_at_every_limit_and_count_once() -> None:
    stalled = PowerProfile(tuple(replace(p, active_s=1.02 * p.active_s) for p in CURVE.points))
    average = with_stalls(stalled)
    assert average.iterations_per_s == pytest.approx(CURVE.iterations_per_s / 1.02)
    assert with_stalls(average).iterations_per_s == pytest.approx(average.iterations_per_s)


def test_adopted_points_say_nothing_about_stalls() -> None:
    adopted = replace(point(100.0, 0.6), n=0, active_s=0.0)
    assert with_stalls(PowerProfile((adopted,))).points == (adopted,)


def test_a_sampled_curve_differs_by_block_and_run_and_is_reproducible() -> None:
    first, again, second, other_run = (
        posterior_sample(CURVE, job="resnet50", run=run, n_block=n_block)
        for run, n_block in (("r1", 1), ("r1", 1), ("r1", 2), ("r2", 1))
    )
    assert first == again
    assert first not in (second, other_run)


def test_a_sampled_curve_keeps_the_reference_of_every_promise() -> None:
    reference_per_s = posterior_mean(CURVE).fastest.iterations_per_s
    for n_block in range(20):
        sample = posterior_sample(CURVE, job="resnet50", run="r1", n_block=n_block)
        assert sample.fastest.iterations_per_s == pytest.approx(reference_per_s)


def test_confidence_intervals_tell_how_often_a_curve_was_measured() -> None:
    assert n_measurements_in(CURVE) == 4
    refined = PowerProfile((point(200.0, 0.93, ci_ratio=WINDOW_CI_RATIO / 3), *CURVE.points[2:]))
    assert n_measurements_in(refined) == 9 + 2
    unknown = PowerProfile((point(300.0, 1.0, ci_ratio=None),))
    assert n_measurements_in(unknown) == 0


def test_an_observation_has_the_power_of_its_interval_without_gaps() -> None:
    interval = MeterInterval(
        begin_ns=0,
        end_ns=ns(2),
        active=True,
        n_iterations=10.0,
        energy_j=400.0,
        gaps_s=0.5,
        interpolated_energy_j=420.0,
        instant_power_w=210.0,
        n_instants=0.5,
    )
    seen = observation_of(interval, enforced_power_limit_w=300.0)
    assert (seen.energy_j, seen.interpolated_energy_j) == (300.0, 315.0)
    assert (seen.n_instants, seen.instants_w, seen.instants_w2) == (0.5, 105.0, 0.5 * 210.0**2)
    bare = observation_of(
        replace(interval, interpolated_energy_j=None, instant_power_w=None), enforced_power_limit_w=300.0
    )
    assert (bare.interpolated_energy_j, bare.n_instants, bare.instants_w) == (None, 0.0, 0.0)


KEY = ProfileKey(user="alice", job="j", gpu_model="Fake 300", n_gpus=1, world_size=1, batch_size=64)
TOP_W = 300.0
ITERATION_S = 0.05
STALL_S = 0.15
"""One iteration in fifty takes so much longer: 6 % of the time at the highest limit."""


def train(state: CurveState, *, duration_s: float, seed: int) -> CurveState:
    """Train for a time, at the limit that the first sweep wants or else at the highest."""
    dice, begin_s, n_iterations = np.random.default_rng(seed), 0.0, 0
    while begin_s < duration_s:
        wanted_w = target_power_limit_w(state.sweep) if isinstance(state, Profiling) else None
        power_limit_w = wanted_w or TOP_W
        times_s = []
        for _ in range(10):
            n_iterations += 1
            steady_s = ITERATION_S * (TOP_W / power_limit_w) ** 0.3 * float(np.exp(dice.normal(0, 0.01)))
            times_s.append(steady_s + (STALL_S if n_iterations % 50 == 0 else 0.0))
        interval = MeterInterval(
            begin_ns=ns(begin_s),
            end_ns=ns(begin_s + sum(times_s)),
            active=True,
            n_iterations=len(times_s),
            energy_j=0.9 * power_limit_w * sum(times_s),
            iteration_times_s=tuple(times_s),
        )
        state = advance_curve(state, interval, enforced_power_limit_w=power_limit_w).state
        begin_s += interval.duration_s
    return state


def begun(known: PowerProfile | None) -> CurveState:
    """Return the state of a run that has just begun."""
    config = ProfilerConfig()
    settings = ProfilerSettings(
        prior_power_limit_w=TOP_W,
        floor_power_limit_w=100.0,
        n_gpus=1,
        settle_s=config.settle_s,
        window_s=config.window_s,
        step_ratio=config.step_ratio,
        tolerance_ratio=config.tolerance_ratio,
        block_s=config.block_s,
        n_blocks=config.n_blocks,
    )
    return begin_curve(settings, known)


@pytest.mark.parametrize("seed", range(3))
def test_a_job_with_stalls_keeps_to_the_curve_that_its_last_run_stored(tmp_path: Path, seed: int) -> None:
    measured = measured_in(train(begun(None), duration_s=600.0, seed=seed))
    assert measured is not None
    with ProfileStore(tmp_path) as store:
        store.save(KEY, measured)
    with ProfileStore(tmp_path) as store:
        stored = store.load(KEY)
    assert stored is not None
    again = begun(stored.profile)
    assert isinstance(again, Planned)
    assert train(again, duration_s=600.0, seed=seed + 100).n_drifts == 0


def test_a_curve_is_measured_without_the_stalls() -> None:
    measured = measured_in(train(begun(None), duration_s=600.0, seed=1))
    assert measured is not None
    assert measured.fastest.iterations_per_s == pytest.approx(1 / ITERATION_S, rel=0.01)
    average_per_s = with_stalls(measured).fastest.iterations_per_s
    assert average_per_s == pytest.approx(50 / (50 * ITERATION_S + STALL_S), rel=0.015)
