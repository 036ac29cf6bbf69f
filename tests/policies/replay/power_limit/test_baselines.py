"""Limits that do not look at the signal: the best single one, a mix of two, and what Zeus's sweep finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.replay.power_limit.baselines import (
    SWEEP_ITERATIONS,
    best_static_limit_w,
    replay_at_limit,
    replay_static_mix,
    replay_zeus,
)
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import HOUR_S
from tests.policies.days import A40
from tests.policies.replay.power_limit.scenarios import REAL, SIMPLE, real_spec, scenario, spec
from tests.policies.vocabulary.test_profile import profiles


@given(profiles(), st.floats(1.0, 3.0))
def test_the_best_limit_is_the_cheapest_that_is_fast_enough(profile: PowerProfile, max_slowdown: float) -> None:
    chosen = profile.point_at(best_static_limit_w(profile, max_slowdown))
    assert chosen is not None
    needed_per_s = profile.points[-1].iterations_per_s / max_slowdown
    assert chosen.iterations_per_s >= needed_per_s
    for point in profile.points:
        assert point.iterations_per_s < needed_per_s or chosen.iteration_energy_j <= point.iteration_energy_j


@pytest.mark.parametrize(
    ("max_slowdown", "limit_w"), [(1.0, 300.0), (1.01, 250.0), (1.05, 225.0), (1.08, 200.0), (3.0, 200.0)]
)
def test_the_limits_of_a_measured_gpu(max_slowdown: float, limit_w: float) -> None:
    assert best_static_limit_w(A40, max_slowdown) == limit_w


@given(st.floats(1.0, 1.07), st.floats(1.0, 60.0), st.sampled_from([600.0, 3_600.0]))
def test_a_mix_takes_just_its_budget(max_slowdown: float, hours: float, period_s: float) -> None:
    truth = scenario([200.0] * 80, A40)
    run = replay_static_mix(truth, spec(hours, period_s=period_s), max_slowdown)
    assert run.duration_s == pytest.approx(max_slowdown * hours * HOUR_S)
    assert len(set(run.limits_w.tolist())) <= 2
    single = replay_at_limit(truth, spec(hours), best_static_limit_w(A40, max_slowdown))
    assert run.energy_j <= single.energy_j * (1 + 1e-9)


@pytest.mark.parametrize("max_slowdown", [1.08, 1.5, 9.0])
def test_a_mix_never_goes_below_the_energy_minimal_limit(max_slowdown: float) -> None:
    run = replay_static_mix(REAL, real_spec(), max_slowdown)
    assert set(run.limits_w.tolist()) == {200}


def test_a_mix_has_neighbours_on_the_hull() -> None:
    run = replay_static_mix(REAL, real_spec(), 1.01)
    assert set(run.limits_w.tolist()) == {225, 250}
    lasts_s = np.diff(run.edges_s)[:20].reshape(-1, 2)
    assert lasts_s.sum(axis=1) == pytest.approx(np.full(10, HOUR_S))
    assert lasts_s[:, 0] == pytest.approx(np.full(10, lasts_s[0, 0]))


def test_zeus_tries_each_limit_from_the_highest_down_and_keeps_the_cheapest() -> None:
    run = replay_zeus(scenario([100.0] * 9), spec(2.0), 0.5)
    assert run.limits_w.tolist() == [300, 200, 100, 300]  # (90 + 300) / 0.9 is more than (110 + 300) / 1
    lasts_s = SWEEP_ITERATIONS / np.array([1.0, 0.9, 0.5])
    assert np.diff(run.edges_s)[:3] == pytest.approx(lasts_s)
    assert run.duration_s == pytest.approx(2 * HOUR_S + (lasts_s - SWEEP_ITERATIONS).sum())
    assert replay_zeus(scenario([100.0] * 9), spec(2.0), 1.0).limits_w[-1] in {100, 200}
    assert SIMPLE.energy_minimal.power_limit_w in {100, 200}


def test_a_run_may_end_during_the_sweep_of_zeus() -> None:
    run = replay_zeus(scenario([100.0] * 9), spec(0.02), 0.5)
    assert run.limits_w.tolist() == [300, 200]
