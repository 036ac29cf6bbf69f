"""Chase in a replay: eq. 6 by what it expects, prices that fall below nothing, and the eta of hindsight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.replay.power_limit.chase import (
    ETAS,
    best_in_hindsight,
    expect_last_value,
    expect_true_mean,
    last_known,
    max_periods,
    replay_chase,
)
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import RunResult
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40
from tests.policies.replay.power_limit.scenarios import REAL, SIMPLE, curve, real_spec, scenario, spec


def replay(truth: Scenario, run: RunSpec, eta: float) -> RunResult:
    return replay_chase(truth, run, eta, expect_last_value(truth, run, max_periods(truth, run)))


@given(st.floats(0.0, 1.0), st.sampled_from(["solar", "wind", "evening"]))
def test_each_period_has_the_limit_of_the_least_cost_by_eq_6(eta: float, shape: str) -> None:
    truth, run = scenario(shape, A40), real_spec(24)
    done = replay(truth, run, eta)
    first = int(run.start_s / HOUR_S)
    greatest = max(truth.values[first - 24 : first])
    for n, limit_w in enumerate(done.limits_w.tolist()):
        costs = {
            p.power_limit_w: (eta * p.power_w * truth.values[first + n - 1] + (1 - eta) * 300 * greatest)
            / p.iterations_per_s
            for p in A40.points
        }
        assert costs[limit_w] <= min(costs.values()) * (1 + 1e-12)


def test_the_ends_of_eta_are_full_speed_and_least_energy() -> None:
    assert set(replay(REAL, real_spec(), 0.0).limits_w.tolist()) == {300}
    assert set(replay(REAL, real_spec(), 1.0).limits_w.tolist()) == {200}


def test_without_an_expectation_it_keeps_the_highest_limit() -> None:
    run = replay(scenario([100.0] * 20), spec(3.0), 0.99)
    assert run.limits_w[0] == 300  # no value has passed yet
    assert run.limits_w[1] < 300


def test_wasteful_limits_are_excluded_at_negative_prices() -> None:
    wasteful = curve((100.0, 50.0, 0.4), (200.0, 60.0, 0.9), (250.0, 200.0, 0.95), (300.0, 110.0, 1.0))
    truth = scenario([100.0] * 24 + [-500.0] * 30, wasteful)
    limits_w = set(replay(truth, spec(9.0, start_s=DAY_S), 0.99).limits_w.tolist())
    assert limits_w <= {200, 300}  # 100 W takes more time and energy; 250 W draws more and is slower than 300 W


def test_expectations_are_the_last_value_or_the_true_mean() -> None:
    truth = scenario([1.0, 2.0, np.nan, 4.0, 5.0, 6.0])
    run = spec(2.0, start_s=HOUR_S)
    assert expect_last_value(truth, run, 4).tolist() == [1, 2, 2, 4]
    assert expect_true_mean(truth, run, 4).tolist() == pytest.approx([2, 3, 4, 5])
    assert expect_true_mean(truth, spec(2.0, start_s=0.5 * HOUR_S), 2).tolist() == pytest.approx([1.5, 2.5])
    assert np.isnan(last_known(truth, np.array([0.0, 3_599.0]))).all()


def test_hindsight_chooses_the_best_run_within_the_budget() -> None:
    run = real_spec(240 / 5)
    runs = [replay(REAL, run, eta) for eta in ETAS]
    for max_slowdown in (1.0, 1.02, 1.05, 1.2):
        best = best_in_hindsight(runs, run, max_slowdown)
        kept = [other for other in runs if other.duration_s <= max_slowdown * run.base_duration_s]
        assert best in kept
        assert best.spent == min(other.spent for other in kept)
    assert best_in_hindsight(runs[40:], run, 1.0) in runs[40:]  # none kept it


def test_the_periods_suffice_for_the_slowest_choice() -> None:
    truth = scenario([100.0] * 60, SIMPLE)
    assert replay(truth, spec(20.0), 1.0).duration_s <= max_periods(truth, spec(20.0)) * HOUR_S


def test_the_regression_learns_what_repeats_daily() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    from policies.replay.power_limit.chase_svr import expect_by_regression  # noqa: PLC0415

    hours = np.arange(24.0 * 6)
    truth = scenario((300 + 100 * np.sin(2 * np.pi * hours / 24)).tolist())
    run = spec(24, start_s=3 * DAY_S)
    expected = expect_by_regression(truth, run, 24)
    came = truth.values[72:96]
    assert np.abs(expected - came).mean() < np.abs(truth.values[71:95] - came).mean()
    assert np.isnan(expect_by_regression(truth, spec(24), 3)).tolist() == [True, False, False]
