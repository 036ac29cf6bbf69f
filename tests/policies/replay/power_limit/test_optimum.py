"""The optimum in hindsight: exact, as a solver of linear programmes finds it, and never beaten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from policies.replay.power_limit.baselines import replay_at_limit, replay_static_mix
from policies.replay.power_limit.chase import expect_true_mean, max_periods, replay_chase
from policies.replay.power_limit.optimum import offline_optimum
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import RunResult, result_of
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import HOUR_S
from tests.policies.replay.power_limit.scenarios import REAL, SIMPLE, curve, real_spec, scenario, spec

linprog = pytest.importorskip("scipy.optimize", reason="needs SciPy").linprog


def linear_programme_minimum(truth: Scenario, run: RunSpec, max_slowdown: float) -> float:
    """Return the least that a solver finds, over every step in which the run may end; infinite where there is none."""
    latest_s = run.start_s + max_slowdown * run.base_duration_s
    edges_s = np.array([run.start_s, *(e for e in truth.edges_s if run.start_s < e < latest_s), latest_s])
    values = np.array([truth.values[int(start_s // HOUR_S)] for start_s in edges_s[:-1]])
    return min(
        _solved(truth, np.diff(edges_s[: n + 1]), values[:n], run.base_duration_s * truth.iterations_per_s[-1])
        for n in range(1, len(edges_s))
    )


def _solved(truth: Scenario, lasts_s: NDArray[np.float64], values: NDArray[np.float64], work: float) -> float:
    """Variables: the hours at each limit in each step; all of a step's are spent but in the last one."""
    n_limits, n_steps = len(truth.power_w), len(lasts_s)
    cost = np.outer(values, truth.power_w / 1e3).ravel()
    fills = np.kron(np.eye(n_steps), np.ones(n_limits))
    rates = np.tile(truth.iterations_per_s, n_steps)[None, :]
    found = linprog(
        cost,
        A_ub=fills[-1:],
        b_ub=lasts_s[-1:] / HOUR_S,
        A_eq=np.vstack([fills[:-1], rates]),
        b_eq=np.append(lasts_s[:-1] / HOUR_S, work / HOUR_S),
    )
    return float(found.fun) if found.status == 0 else np.inf


def work_of(truth: Scenario, run: RunResult) -> float:
    indices = [truth.index_of(limit_w) for limit_w in run.limits_w.tolist()]
    return float(truth.iterations_per_s[indices] @ np.diff(run.edges_s))


@st.composite
def monotone_curves(draw: st.DrawFn) -> PowerProfile:
    n = draw(st.integers(2, 5))
    rates = sorted(draw(st.lists(st.integers(20, 100), min_size=n, max_size=n, unique=True)))
    powers = sorted(draw(st.lists(st.floats(30.0, 300.0), min_size=n, max_size=n)))
    return curve(*((100.0 + 25 * k, powers[k], rates[k] / 100) for k in range(n)))


@settings(max_examples=40, deadline=None)
@given(
    monotone_curves(),
    st.lists(st.floats(-100.0, 500.0), min_size=40, max_size=40),
    st.floats(1.0, 5.0),
    st.floats(1.0, 2.5),
    st.sampled_from([0.0, 1_800.0]),
)
def test_a_solver_of_linear_programmes_finds_nothing_better(
    profile: PowerProfile, values: list[float], hours: float, max_slowdown: float, start_s: float
) -> None:
    truth, run = scenario([round(value, 3) for value in values], profile), spec(hours, start_s=start_s)
    found = offline_optimum(truth, run, max_slowdown)
    least = linear_programme_minimum(truth, run, max_slowdown)
    scale = float(np.abs(truth.values).max()) * hours + 1e-6
    assert found.spent == pytest.approx(least, abs=1e-6 * scale, rel=1e-6)
    assert work_of(truth, found) == pytest.approx(run.base_duration_s * profile.fastest.iterations_per_s)
    assert found.duration_s <= max_slowdown * run.base_duration_s * (1 + 1e-9)


@settings(deadline=None)
@given(st.floats(1.0, 1.3), st.floats(0.0, 0.2), st.sampled_from(["solar", "wind", "evening"]))
def test_a_looser_budget_never_costs_more(max_slowdown: float, extra: float, shape: str) -> None:
    truth = scenario(shape, REAL.profile)
    tight, loose = (offline_optimum(truth, real_spec(), s).spent for s in (max_slowdown, max_slowdown + extra))
    assert loose <= tight * (1 + 1e-9)


@pytest.mark.parametrize("max_slowdown", [1.0, 1.01, 1.025, 1.05])
def test_where_the_signal_is_constant_the_fixed_mix_is_the_optimum(max_slowdown: float) -> None:
    truth = scenario([300.0] * 100, REAL.profile)
    best, mixed = offline_optimum(truth, spec(), max_slowdown), replay_static_mix(truth, spec(), max_slowdown)
    assert best.spent == pytest.approx(mixed.spent, rel=1e-9)
    assert best.duration_s == pytest.approx(mixed.duration_s, rel=1e-6)


@pytest.mark.parametrize("shape", ["solar", "wind", "flat", "evening"])
@pytest.mark.parametrize("hours", [5.0, 48.0])
def test_nothing_that_keeps_the_budget_saves_more(shape: str, hours: float) -> None:
    truth, run = scenario(shape, REAL.profile), real_spec(hours)
    expected = expect_true_mean(truth, run, max_periods(truth, run))
    others = [replay_chase(truth, run, eta, expected) for eta in (0.0, 0.3, 0.6, 0.7, 0.9, 1.0)]
    others += [replay_at_limit(truth, run, limit_w) for limit_w in (200.0, 225.0, 300.0)]
    for other in others:
        best = offline_optimum(truth, run, max(other.duration_s / run.base_duration_s, 1.0))
        assert best.spent <= other.spent * (1 + 1e-9)


def test_the_optimum_is_fast_in_green_hours() -> None:
    truth = scenario([900.0, 100.0, 900.0, 100.0, 900.0, 900.0])
    run = offline_optimum(truth, spec(4.0), 1.25)
    assert run.limits_w.tolist() == [200, 300, 200, 300, 200]
    assert run.duration_s == pytest.approx((4 + 0.2 / 0.9) * HOUR_S)  # slower would need as much, and last longer


def test_the_optimum_wastes_power_at_negative_prices() -> None:
    wasteful = curve((100.0, 50.0, 0.9), (200.0, 90.0, 0.95), (300.0, 300.0, 1.0))
    run = offline_optimum(scenario([-100.0] * 9, wasteful), spec(3.0), 1.1)
    assert run.limits_w.tolist() == [300] * len(run.limits_w)
    assert run.spent == pytest.approx(-0.1 * 300 * 3)


def test_limits_of_equal_rate_are_one_choice() -> None:
    same = curve((100.0, 50.0, 0.9), (200.0, 60.0, 0.9))
    run = offline_optimum(scenario([100.0] * 9, same), spec(3.0), 1.5)
    assert set(run.limits_w.tolist()) == {100}
    assert run.duration_s == pytest.approx(3 * HOUR_S)
    assert run.spent == pytest.approx(0.1 * 50 * 3)


def test_the_schedule_of_the_optimum_has_its_cost() -> None:
    run = offline_optimum(REAL, real_spec(), 1.05)
    indices = np.array([REAL.index_of(limit_w) for limit_w in run.limits_w.tolist()])
    assert result_of(REAL, run.edges_s, indices).spent == run.spent


def test_faster_than_the_highest_limit_is_not_possible() -> None:
    with pytest.raises(ValueError, match=r"max_slowdown = 0.9: no limit does the work in that time"):
        offline_optimum(scenario([100.0] * 9, SIMPLE), spec(3.0), 0.9)
