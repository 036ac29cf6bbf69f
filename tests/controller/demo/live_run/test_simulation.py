"""Runs under the real controller on simulated time: budgets hold, ends need no warning, restarts lose little."""

import logging
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from controller.demo.live_run.noise import H100, USUAL
from controller.demo.live_run.simulation import LiveRun, LiveRunSimulator, run_result, simulate_run
from policies.replay.power_limit.baselines import replay_at_limit, replay_static_mix
from policies.replay.power_limit.optimum import offline_optimum
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import RunResult
from policies.vocabulary.units import HOUR_S, Values
from tests.policies.days import A40
from tests.policies.replay.power_limit.scenarios import REAL, real_spec, scenario

SPEC, SHORT = real_spec(6), real_spec(0.5)
BUDGET = 1.05
OVER_RATIO = 0.003
"""How far a run may be above its budget: the first pass tells the rates of the limits to less than that."""
POINT = 0.01


@cache
def simulated(live: LiveRun) -> RunResult:
    """Return a run on the real signal; several tests look at the same one."""
    return simulate_run(REAL, SPEC, live)


def spent_ratio(truth: Scenario, run: RunResult, spec: RunSpec = SPEC) -> float:
    """Return what a run costs, over what it costs at the highest limit."""
    return run.spent / replay_at_limit(truth, spec, truth.profile.fastest.power_limit_w).spent


def slowdowns(truth: Scenario, run: RunResult) -> tuple[Values, Values]:
    """Return the time of each change of limit since the start [s], and the slowdown of the run until then."""
    rates = np.interp(run.limits_w, truth.profile.power_limits_w, truth.iterations_per_s) / truth.iterations_per_s[-1]
    passed_s = run.edges_s[1:] - run.edges_s[0]
    return passed_s, passed_s / np.cumsum(rates * np.diff(run.edges_s))


def test_a_run_is_simulated_to_the_end_of_its_work() -> None:
    run = simulated(LiveRun(max_slowdown=BUDGET))
    passed_s, slower = slowdowns(REAL, run)
    assert run.edges_s[0] == SPEC.start_s
    assert passed_s[-1] == pytest.approx(slower[-1] * SPEC.base_duration_s, rel=1e-6)
    assert run.duration_s == passed_s[-1]
    assert run.limits_w[0] == A40.fastest.power_limit_w
    assert (np.diff(run.edges_s) > 0).all()


def test_a_run_is_ever_the_same_but_with_other_noise() -> None:
    live = LiveRun(max_slowdown=BUDGET)
    run, again, other = (simulate_run(REAL, SHORT, each) for each in (live, live, replace(live, seed=2)))
    np.testing.assert_array_equal(run.edges_s, again.edges_s)
    np.testing.assert_array_equal(run.limits_w, again.limits_w)
    assert other.spent != run.spent
    assert other.spent == pytest.approx(run.spent, rel=0.02)


def test_looks_are_short_and_the_budget_is_kept_where_a_gpu_sets_the_pace() -> None:
    live = LiveRun(max_slowdown=BUDGET)
    steady, usual = (simulate_run(REAL, SHORT, replace(live, noise=noise)) for noise in (H100, USUAL))
    assert abs(steady.duration_s / SHORT.base_duration_s - BUDGET) < 0.05 * POINT
    looks_s, usual_looks_s = (
        np.diff(run.edges_s)[(run.limits_w == A40.fastest.power_limit_w) & (run.edges_s[:-1] > SHORT.start_s + 600)]
        for run in (steady, usual)
    )
    assert len(looks_s) > 2
    assert np.median(looks_s) < 4
    assert np.median(usual_looks_s) >= 10


def test_what_does_not_follow_the_grid_is_the_same_run_on_any_signal() -> None:
    simulator, later = LiveRunSimulator(seed=3), replace(SHORT, start_s=SHORT.start_s + 7 * HOUR_S)
    other = scenario([300.0, 100.0] * 12 * 18, A40)
    run, again = (simulator("static-mix-live", *each, BUDGET) for each in ((REAL, SHORT), (other, later)))
    same = run_result(other, run.edges_s - SHORT.start_s + later.start_s, run.limits_w)
    np.testing.assert_array_equal(same.limits_w, again.limits_w)
    assert same.spent == pytest.approx(again.spent, rel=1e-9)
    assert same.spent != pytest.approx(run.spent, rel=0.01)


@pytest.mark.parametrize("max_slowdown", [1.02, BUDGET])
def test_a_told_run_keeps_its_budget_and_saves_less_than_the_optimum(max_slowdown: float) -> None:
    run = simulated(LiveRun(max_slowdown=max_slowdown))
    assert run.duration_s <= (max_slowdown + OVER_RATIO) * SPEC.base_duration_s
    best = offline_optimum(REAL, SPEC, max(max_slowdown, run.duration_s / SPEC.base_duration_s))
    assert best.spent < run.spent
    assert spent_ratio(REAL, run) < 1


def test_where_nothing_changes_following_the_grid_is_the_blind_mix() -> None:
    truth = scenario([300.0] * 24 * 18, A40)
    spec = real_spec(2)
    runs = [simulate_run(truth, spec, LiveRun(max_slowdown=BUDGET, follows_grid=follows)) for follows in (True, False)]
    following, blind = (spent_ratio(truth, run, spec) for run in runs)
    assert following == pytest.approx(blind, abs=0.2 * POINT)
    ideal = spent_ratio(truth, replay_static_mix(truth, spec, BUDGET), spec)
    assert ideal < blind + 0.1 * POINT
    assert blind == pytest.approx(ideal, abs=2 * POINT)


def test_a_run_that_ends_without_warning_has_kept_its_budget_at_every_moment() -> None:
    passed_s, slower = slowdowns(REAL, simulated(LiveRun(max_slowdown=BUDGET, knows_length=False)))
    assert slower[passed_s > HOUR_S].max() <= BUDGET + OVER_RATIO
    assert slower[-1] > 1 + 0.7 * (BUDGET - 1)


def test_a_controller_that_restarts_goes_on_and_measures_nothing_twice() -> None:
    plain, restarted = (simulated(LiveRun(max_slowdown=BUDGET, n_restarts=n)) for n in (0, 2))
    assert spent_ratio(REAL, restarted) == pytest.approx(spent_ratio(REAL, plain), abs=0.6 * POINT)
    assert restarted.duration_s <= (BUDGET + OVER_RATIO) * SPEC.base_duration_s
    passed_s = restarted.edges_s[:-1] - restarted.edges_s[0]
    third_s = BUDGET * SPEC.base_duration_s / 3
    top_w = A40.fastest.power_limit_w
    at_top_s = [
        float(length_s)
        for begin_s, length_s, limit_w in zip(passed_s, np.diff(restarted.edges_s), restarted.limits_w, strict=True)
        if limit_w == top_w and abs(begin_s / third_s - round(begin_s / third_s)) * third_s < 1 and begin_s > HOUR_S
    ]
    assert len(at_top_s) == 2
    assert all(30 <= length_s < 60 for length_s in at_top_s)
    lowest_w = restarted.limits_w[passed_s > HOUR_S].min()
    assert lowest_w > restarted.limits_w.min()


def test_power_beside_the_gpu_is_planned_for() -> None:
    beside = Scenario(profile=A40.with_overhead(200.0, 1.5), signal=REAL.signal)
    run = simulate_run(beside, SHORT, LiveRun(max_slowdown=1.5, host_power_w=200.0, pue=1.5))
    alone = simulate_run(REAL, SHORT, LiveRun(max_slowdown=1.5))
    assert run.duration_s < alone.duration_s
    assert np.median(run.limits_w) > np.median(alone.limits_w)


def test_what_a_node_would_log_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    values = np.full(24 * 18, 300.0)
    values[24 * 14 - 5] = 30_000.0  # no grid has that
    truth = scenario(values, A40)
    simulate_run(truth, real_spec(0.3), LiveRun(max_slowdown=BUDGET))
    assert not caplog.records
    logging.getLogger("after").warning("heard")
    assert [record.message for record in caplog.records] == ["heard"]
