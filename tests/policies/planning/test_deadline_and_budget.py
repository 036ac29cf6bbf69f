"""The objectives `deadline` and `budget`: met if feasible, else as nearly as possible."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.planning import BudgetObjective, DeadlineObjective, Progress
from policies.vocabulary.power_curve import lower_hull
from policies.vocabulary.units import DAY_S, HOUR_S, JOULES_PER_KWH
from tests.policies.days import A40, SHAPES, grid, hourly, known_by, live_through
from tests.policies.planning.decisions import FREE, NOW_S, TOP_PER_S, ahead, decided, judged, means

STARTED_S = 14 * DAY_S
TEN_HOURS = 10 * HOUR_S * TOP_PER_S
"""Iterations that take ten hours at the highest limit."""


def run_of(hours: float, **changes: Any) -> Progress:  # noqa: ANN401 — the record checks them
    plain = Progress(n_iterations=0.0, active_s=0.0, started_at_s=NOW_S, total_iterations=hours * HOUR_S * TOP_PER_S)
    return replace(plain, **changes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("hours", [10.2, 10.6])
def test_a_deadline_is_met_and_not_much_too_early(shape: str, hours: float) -> None:
    run = live_through(
        grid(shape), DeadlineObjective(deadline_s=STARTED_S + hours * HOUR_S), n_iterations=TEN_HOURS, lost_s=60.0
    )
    took_h = (run.now_s - STARTED_S) / HOUR_S
    assert hours - 0.05 <= took_h <= hours + 1e-6


def test_a_later_deadline_never_takes_more_carbon() -> None:
    spent = [
        live_through(
            grid("evening"), DeadlineObjective(deadline_s=STARTED_S + hours * HOUR_S), n_iterations=TEN_HOURS
        ).carbon
        for hours in (10.0, 10.1, 10.3, 10.6)
    ]
    assert all(early > late for early, late in pairwise(spent))


def test_a_deadline_that_cannot_be_met_gets_the_highest_limit() -> None:
    decision = decided(DeadlineObjective(deadline_s=NOW_S + 5 * HOUR_S), so_far=run_of(6.0))
    assert (decision.power_limit_w, decision.reason) == (300.0, "behind_schedule")
    late = decided(DeadlineObjective(deadline_s=NOW_S - 1.0), so_far=run_of(6.0), history=known_by(grid("wind"), NOW_S))
    assert (late.power_limit_w, late.reason) == (300.0, "behind_schedule")


def test_pauses_take_from_the_time_to_the_deadline() -> None:
    """A run that pauses a tenth of the time will go on so: of the 11 hours that are left it trains 9.9."""
    half = run_of(10.0, n_iterations=TEN_HOURS / 2, active_s=5 * HOUR_S)
    paused = replace(half, started_at_s=NOW_S - 5 * HOUR_S / 0.9)
    steady = replace(half, started_at_s=NOW_S - 5 * HOUR_S)
    objective = DeadlineObjective(deadline_s=NOW_S + 5.75 * HOUR_S)
    assert means(decided(objective, so_far=paused))[1] == pytest.approx(TOP_PER_S / (1.15 * 0.9))
    assert means(decided(objective, so_far=steady))[1] == A40.energy_minimal.iterations_per_s


@pytest.mark.parametrize("shape", SHAPES)
def test_a_budget_is_kept_and_used(shape: str) -> None:
    cheapest = live_through(grid(shape), DeadlineObjective(deadline_s=STARTED_S + 99 * DAY_S), n_iterations=TEN_HOURS)
    fastest = live_through(grid(shape), DeadlineObjective(deadline_s=STARTED_S), n_iterations=TEN_HOURS)
    budget = (0.4 * cheapest.carbon + 0.6 * fastest.carbon) / 3.6e6
    run = live_through(
        grid(shape),
        BudgetObjective(budget=budget),
        n_iterations=TEN_HOURS,
        forecast=lambda now_s: replace(grid(shape).between(now_s, now_s + DAY_S), source="perfect"),
    )
    assert run.carbon / 3.6e6 == pytest.approx(budget, rel=2e-3)
    assert fastest.now_s < run.now_s < cheapest.now_s


@settings(max_examples=25)
@given(st.floats(400.0, 3_000.0), st.floats(1.0, 1.5))
def test_a_larger_budget_is_never_slower(budget: float, factor: float) -> None:
    history = known_by(grid("wind"), NOW_S)
    rates = [
        means(decided(BudgetObjective(budget=b), so_far=run_of(10.0, spent=0.0), history=history))[1]
        for b in (budget, budget * factor)
    ]
    assert rates[0] <= rates[1] + 0.01 * TOP_PER_S


@pytest.mark.parametrize("is_stale", [False, True])
def test_a_carbon_budget_works_without_history(is_stale: bool) -> None:
    """Ten hours take 1.904 to 2.352 kWh, at 400 g/kWh 762 to 941 g."""
    history = hourly(np.full(5, 400.0))
    now_s = (6.0 if is_stale else 4.5) * HOUR_S
    decision = decided(
        BudgetObjective(budget=800.0), so_far=run_of(10.0, spent=0.0, started_at_s=now_s), history=history, now_s=now_s
    )
    power_w, rate_per_s = means(decision, now_s=now_s)
    assert 0.4 * power_w * TEN_HOURS / rate_per_s / 3.6e3 == pytest.approx(800.0, rel=5e-3)
    assert decision.reason == ("signal_stale" if is_stale else "budget_static")


def test_unknown_spending_means_the_highest_limit() -> None:
    decision = decided(BudgetObjective(budget=1.0), so_far=run_of(10.0))
    assert (decision.power_limit_w, decision.reason) == (300.0, "cost_unknown")


def test_a_spent_budget_gets_the_energy_minimal_limit() -> None:
    decision = decided(BudgetObjective(budget=1.0), so_far=run_of(10.0, spent=2.0))
    assert (decision.power_limit_w, decision.reason) == (200.0, "over_budget")


def test_without_a_signal_a_budget_is_in_kwh() -> None:
    """Ten hours at 200 W of limit take 1.904 kWh in 10.72 hours; at the highest one, 2.352 kWh."""
    decision = decided(BudgetObjective(budget=2.0), so_far=run_of(10.0, spent=0.0))
    power_w, rate_per_s = means(decision)
    kwh = power_w * TEN_HOURS / rate_per_s / 3.6e6
    assert kwh == pytest.approx(2.0, rel=5e-3)
    assert decision.reason == "budget_static"


@pytest.mark.parametrize(
    ("objective", "limit_w"),
    [(DeadlineObjective(deadline_s=NOW_S + DAY_S), 300.0), (BudgetObjective(budget=1.0), 200.0)],
)
def test_unknown_length_takes_the_safe_side(objective: DeadlineObjective | BudgetObjective, limit_w: float) -> None:
    unknown = Progress(n_iterations=10.0, active_s=10.0, started_at_s=NOW_S, spent=0.0)
    decision = decided(objective, so_far=unknown, rules=FREE)
    assert (decision.power_limit_w, decision.reason) == (limit_w, "length_unknown")
    assert "unknown" in decision.detail


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan")])
def test_a_budget_of_zero_is_rejected(budget: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        BudgetObjective(budget=budget)


@pytest.mark.parametrize(("value", "later"), [(100.0, 500.0), (500.0, 100.0)])
def test_a_budget_uses_known_values_of_the_present_hour(value: float, later: float) -> None:
    """The forecast begins with the next hour; the run ends in it."""
    slowest = lower_hull(A40).most_efficient
    known = judged(60.0, ahead([later] * 24, now_s=NOW_S + HOUR_S, source="api+regression"), value=value)
    cost = slowest.power_w * (value * (HOUR_S - 60.0) + later * HOUR_S) / JOULES_PER_KWH
    so_far = Progress(
        n_iterations=0.0,
        active_s=0.0,
        started_at_s=NOW_S,
        total_iterations=(2 * HOUR_S - 60.0) * slowest.iterations_per_s,
        spent=0.0,
    )
    for share, is_over in ((0.99, True), (1.01, False)):
        decision = decided(
            BudgetObjective(budget=share * cost),
            history=known.history,
            forecast=known.forecast,
            so_far=so_far,
            now_s=NOW_S + 60.0,
        )
        assert (decision.reason == "over_budget") == is_over
