"""Our planner in a replay: what it is told of the future, and what is compared with what."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.planning import SlowdownObjective
from policies.replay.power_limit.baselines import replay_static_mix
from policies.replay.power_limit.evaluation import (
    LIVE,
    POLICIES,
    Comparison,
    PolicyName,
    PolicyVariant,
    RunTotals,
    SavingsRow,
    mean_savings_rows,
    replay_totals,
    run_specs,
    saved_ratio,
    savings_rows,
)
from policies.replay.power_limit.example import example_run
from policies.replay.power_limit.optimum import offline_optimum
from policies.replay.power_limit.planner import (
    CachedForecaster,
    ForecastSource,
    perfect_forecast,
    persistence_forecast,
    planner_policy,
)
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import PolicyInput, RunResult, Setpoint, replay_run
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40
from tests.policies.replay.power_limit.scenarios import REAL, START_S, real_spec, scenario, spec
from tests.policies.vocabulary.test_profile import profiles

TWELVE_H = 12 * HOUR_S


def planner_run(
    truth: Scenario, outlook: ForecastSource, *, knows_length: bool = True, max_slowdown: float = 1.05
) -> RunResult:
    objective = SlowdownObjective(max_slowdown=max_slowdown)
    return replay_run(truth, planner_policy(objective, outlook, knows_length=knows_length), real_spec(24))


def changed_after(truth: Scenario, from_s: float) -> Scenario:
    """Return a scenario whose signal differs from some time on."""
    values = np.where(truth.signal.starts_s >= from_s, 500 - 0.5 * truth.signal.values, truth.signal.values)
    return Scenario(profile=truth.profile, signal=replace(truth.signal, values=values))


def first_half_day(run: RunResult) -> list[tuple[float, float]]:
    """Return what a run did in its first twelve hours."""
    pieces = zip(run.edges_s.tolist(), run.limits_w.tolist(), strict=False)
    return [(begin_s, limit_w) for begin_s, limit_w in pieces if begin_s < START_S + TWELVE_H]


@pytest.mark.parametrize("knows_length", [True, False])
def test_the_planner_does_not_know_the_future(knows_length: bool) -> None:
    changed = changed_after(REAL, START_S + TWELVE_H - HOUR_S)  # that hour is over when the twelfth period begins
    for one, other in (
        (persistence_forecast, persistence_forecast),
        (CachedForecaster(), CachedForecaster()),
    ):
        mine, theirs = (
            planner_run(REAL, one, knows_length=knows_length),
            planner_run(changed, other, knows_length=knows_length),
        )
        assert first_half_day(mine) == first_half_day(theirs)


def test_a_perfect_forecast_has_the_true_values_of_a_day() -> None:
    seen = []

    def recording_policy(inputs: PolicyInput) -> list[Setpoint]:
        seen.append(perfect_forecast(inputs))
        return [Setpoint(power_limit_w=300.0)]

    replay_run(REAL, recording_policy, real_spec(2))
    assert [len(forecast) for forecast in seen if forecast is not None] == [24, 24]
    assert seen[1] is not None
    assert seen[1].value_at(START_S + 5 * HOUR_S) == REAL.signal.value_at(START_S + 5 * HOUR_S)


def test_a_forecast_is_computed_once_for_all_policies() -> None:
    forecaster, seen = CachedForecaster(), []

    def recording_policy(inputs: PolicyInput) -> list[Setpoint]:
        seen.append(forecaster(inputs))
        return [Setpoint(power_limit_w=200.0)]

    replay_run(REAL, recording_policy, real_spec(3))
    replay_run(REAL, recording_policy, real_spec(3))
    assert seen[0] is seen[len(seen) // 2]
    assert seen[0] is not None
    assert seen[0].source not in {"perfect", "persistence"}
    assert seen[0].starts_s[0] == START_S


def test_without_history_there_is_no_forecast() -> None:
    seen = []
    forecaster = CachedForecaster()

    def recording_policy(inputs: PolicyInput) -> list[Setpoint]:
        seen.append(forecaster(inputs))
        return [Setpoint(power_limit_w=300.0)]

    replay_run(REAL, recording_policy, spec(2))
    assert seen[0] is None
    assert seen[1] is not None  # the first hour, held


def test_the_planner_keeps_its_budget_and_saves() -> None:
    most = replay_totals(REAL, real_spec(24), Comparison(policies=("max",)))[PolicyVariant(policy="max")]
    run = planner_run(REAL, persistence_forecast)
    assert run.duration_s <= 1.0505 * most.duration_s
    assert run.spent < 0.9 * most.spent


@settings(max_examples=25, deadline=None)
@given(
    profiles(),
    st.lists(st.floats(-100.0, 500.0), min_size=24, max_size=24),
    st.floats(1.0, 1.3),
    st.floats(0.5, 30.0),
    st.sampled_from([persistence_forecast, perfect_forecast]),
)
def test_the_planner_keeps_any_budget_and_the_optimum_is_no_worse(
    profile: PowerProfile, day: list[float], max_slowdown: float, hours: float, outlook: ForecastSource
) -> None:
    truth, run = scenario(day * 60, profile), spec(hours, start_s=START_S)
    mine = replay_run(truth, planner_policy(SlowdownObjective(max_slowdown=max_slowdown), outlook), run)
    assert mine.duration_s <= max_slowdown * run.base_duration_s * (1 + 1e-6)
    if len(profile.points) > 1:
        best = offline_optimum(truth, run, max_slowdown)
        assert best.spent <= mine.spent + 1e-6 * abs(mine.spent) + 1e-9


@pytest.mark.parametrize("hours", [6, 18])
def test_a_budget_just_short_of_the_energy_minimal_limit_is_used_up(hours: int) -> None:
    """There no surplus of an hour can be given back: the run would end early, and have paid for it."""
    start_s = START_S + hours * HOUR_S
    run = replay_run(
        scenario("wind", A40),
        planner_policy(SlowdownObjective(max_slowdown=1.065), persistence_forecast),
        spec(start_s=start_s),
    )
    assert run.duration_s == pytest.approx(1.065 * DAY_S, rel=1e-4)


def test_each_policy_has_a_row_at_each_budget() -> None:
    def simulated(_: PolicyName, truth: Scenario, each: RunSpec, max_slowdown: float) -> RunResult:
        return replay_static_mix(truth, each, 1 + 0.9 * (max_slowdown - 1))

    comparison = Comparison(max_slowdowns=(1.1, 1.025), etas=(0.5, 0.9), live=simulated)
    truth = scenario("wind", A40)
    jobs = [real_spec(24), spec(24, start_s=START_S + DAY_S)]
    rows = savings_rows("wind", jobs, [replay_totals(truth, each, comparison) for each in jobs], comparison)
    for max_slowdown in (1.1, 1.025):
        names = [(row.policy, row.eta) for row in rows if row.max_slowdown == max_slowdown]
        expected = [
            (name, eta)
            for name in POLICIES
            if name != "chase-svr"
            for eta in ([0.5, 0.9] if name in {"chase", "chase-perfect"} else [0.5] if name == "zeus" else [None])
        ]
        assert names == expected
    assert all(row.n_starts == 2 and row.signal == "wind" for row in rows)
    by_name = {row.policy: row for row in rows if row.max_slowdown == 1.025}
    assert by_name["max"].carbon_saved_ratio == by_name["max"].energy_saved_ratio == 0
    assert by_name["offline"].carbon_saved_ratio == max(
        row.carbon_saved_ratio for row in by_name.values() if row.slowdown_worst_ratio <= 1.025 + 1e-9
    )
    assert [by_name[name].slowdown_ratio for name in LIVE] == pytest.approx([1.0225] * len(LIVE))
    without = replace(comparison, live=None)
    rows = savings_rows("wind", jobs, [replay_totals(truth, each, without) for each in jobs], without)
    assert {row.policy for row in rows} == set(POLICIES) - {"chase-svr", *LIVE}
    assert by_name["best-static"].slowdown_ratio == pytest.approx(3909.47 / 3847.48)
    assert by_name["best-static"].energy_saved_ratio == pytest.approx(1 - 196.41 / 235.21 * 3909.47 / 3847.48)


def test_rounding_hides_floating_point_noise() -> None:
    comparison = Comparison(policies=("max", "static-mix", "gridchase"))
    most, mix, mine = (
        PolicyVariant(policy=name, max_slowdown=1.05 if name != "max" else None) for name in comparison.policies
    )
    run = RunTotals(spent=90.0, energy_j=9e6, duration_s=1.05 * DAY_S)
    noisy = RunTotals(spent=90.0 + 1e-12, energy_j=9e6 + 1e-6, duration_s=1.05 * DAY_S + 2.4e-7)
    top = RunTotals(spent=100.0, energy_j=1e7, duration_s=DAY_S)
    totals = [{most: top, mix: run, mine: noisy}] * 3
    rows = savings_rows("wind", [real_spec(24)] * 3, totals, comparison)
    for found in (rows, mean_savings_rows([*rows, *(replace(row, signal="solar") for row in rows)])):
        same = [replace(row, policy="") for row in found if row.policy != "max"]
        assert same[0] == same[1]
        assert same[0].slowdown_worst_ratio == 1.05


def test_zero_savings_have_no_sign() -> None:
    top = RunTotals(spent=0.3, energy_j=1e7, duration_s=DAY_S)
    a_hair_more = RunTotals(spent=0.3 * (1 + 1e-15), energy_j=1e7 * (1 + 1e-15), duration_s=DAY_S)
    entries = PolicyVariant(policy="max"), PolicyVariant(policy="offline", max_slowdown=1.05)
    comparison = Comparison(policies=("max", "offline"))
    rows = savings_rows("wind", [real_spec(24)], [dict(zip(entries, (top, a_hair_more), strict=True))], comparison)
    for row in rows + mean_savings_rows(rows):
        assert (str(row.carbon_saved_ratio), str(row.energy_saved_ratio)) == ("0.0", "0.0")


def test_the_signal_covers_the_slowest_run() -> None:
    comparison = Comparison(max_slowdowns=(1.05, 1.5))
    jobs = run_specs(REAL, comparison, base_duration_s=24 * HOUR_S, n_starts=5, period_s=HOUR_S)
    assert len(jobs) == 5
    assert jobs[0].start_s == START_S
    assert jobs[-1].start_s + 1.5 * 24 * HOUR_S <= REAL.signal.ends_s


def test_runs_are_the_same_whichever_policies_are_compared() -> None:
    starts = [
        [one.start_s for one in run_specs(REAL, comparison, base_duration_s=24 * HOUR_S, n_starts=5, period_s=HOUR_S)]
        for comparison in (
            Comparison(max_slowdowns=(1.01,)),
            Comparison(policies=("gridchase",), max_slowdowns=(1.01,)),
        )
    ]
    slowest_ratio = A40.fastest.iterations_per_s / A40.energy_minimal.iterations_per_s
    assert starts[0] == starts[1]
    assert starts[0][-1] + 24 * HOUR_S * slowest_ratio <= REAL.signal.ends_s


def test_savings_are_a_mean_over_runs_unless_a_run_costs_nothing() -> None:
    assert saved_ratio(np.array([50.0, 90.0]), np.array([100.0, 100.0])) == pytest.approx(0.3)
    assert saved_ratio(np.array([1.0, 90.0]), np.array([2.0, 100.0])) == pytest.approx(0.3)
    assert saved_ratio(np.array([-20.0, 90.0]), np.array([-10.0, 100.0])) == pytest.approx(20 / 110)
    assert saved_ratio(np.array([0.0]), np.array([0.0])) == 0


def test_means_are_over_signals_and_the_worst_is_the_largest() -> None:
    row = SavingsRow(
        policy="gridchase",
        max_slowdown=1.05,
        signal="a",
        eta=None,
        carbon_saved_ratio=0.1,
        energy_saved_ratio=0.2,
        slowdown_ratio=1.01,
        slowdown_worst_ratio=1.02,
        n_starts=3,
    )
    other = replace(row, signal="b", carbon_saved_ratio=0.3, slowdown_worst_ratio=1.06, n_starts=5)
    chased = replace(row, policy="chase", eta=0.5)
    means = mean_savings_rows([row, chased, other])
    assert [(mean.policy, mean.eta, mean.signal) for mean in means] == [
        ("gridchase", None, "mean"),
        ("chase", 0.5, "mean"),
    ]
    assert means[0].carbon_saved_ratio == pytest.approx(0.2)
    assert (means[0].slowdown_worst_ratio, means[0].n_starts) == (1.06, 8)


def test_another_regression_can_be_compared() -> None:
    def doubled(truth: Scenario, run: object, n_periods: int) -> np.ndarray:
        del run
        return np.full(n_periods, 2 * float(truth.values.max()))

    found = replay_totals(REAL, real_spec(6), Comparison(policies=("chase", "chase-svr"), svr=doubled))
    assert isinstance(found[PolicyVariant(policy="chase-svr", eta=0.5)], RunTotals)
    assert found[PolicyVariant(policy="chase-svr", eta=0.5)] != found[PolicyVariant(policy="chase", eta=0.5)]


def test_an_example_shows_a_run_by_period() -> None:
    example = example_run("solar", REAL, real_spec(10), 1.05)
    assert set(example.timelines) == {"static-mix", "gridchase", "offline"}
    mixed = example.timelines["static-mix"]
    assert len(mixed.limits_w) == len(mixed.rate_ratios) == len(mixed.edges_s) - 1 == 11
    assert mixed.rate_ratios == pytest.approx(np.full(11, 1 / 1.05))
    assert 200 < mixed.limits_w[0] < 225
    assert example.values[0] == REAL.signal.value_at(START_S)
    assert len(example.values) == len(example.edges_s) - 1
