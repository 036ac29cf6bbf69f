"""Costs: the formulas of the papers, by hand, and the price of time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost import TimeLedger, chase_cost, time_ledger, time_price, time_priced_cost, zeus_cost
from policies.profile import PowerProfile, ProfilePoint
from tests.policies.days import A40

USABLE = A40.usable()


def mean_rate_per_s(price: float, durations_s: list[float], values: list[float]) -> float:
    """Compute by plain loops the mean rate of a plan that prices a second at `price`."""
    total = 0.0
    for duration_s, value in zip(durations_s, values, strict=True):
        best = min(USABLE.points, key=lambda p: (value * p.power_w + price) / p.iterations_per_s)
        total += duration_s * best.iterations_per_s
    return total / sum(durations_s)


def test_zeus_weighs_power_against_the_power_at_the_prior_limit() -> None:
    assert zeus_cost(100.0, 2.0, eta=0.25, max_power_w=200.0) == (25 + 150) / 2


def test_chase_weighs_carbon_now_against_the_highest_carbon() -> None:
    cost = chase_cost(100.0, 2.0, eta=0.25, max_power_w=200.0, value=3.0, max_value=5.0)
    assert cost == (0.25 * 100 * 3 + 0.75 * 200 * 5) / 2


def test_time_has_a_price() -> None:
    assert time_priced_cost(100.0, 2.0, value=3.0, time_price=50.0) == 175.0


def test_a_constant_signal_makes_chase_zeus() -> None:
    chase = chase_cost(A40.power_w, A40.iterations_per_s, eta=0.6, max_power_w=235.0, value=7.0, max_value=7.0)
    zeus = zeus_cost(A40.power_w, A40.iterations_per_s, eta=0.6, max_power_w=235.0)
    np.testing.assert_allclose(chase, 7.0 * zeus)


@given(
    st.lists(st.tuples(st.floats(60, 7200), st.floats(1.0, 900.0)), min_size=1, max_size=12),
    st.floats(0.0, 1.0),
)
def test_the_price_of_time_is_the_least_that_buys_the_rate(steps: list[tuple[float, float]], share: float) -> None:
    durations_s, values = [s for s, _ in steps], [v for _, v in steps]
    low, high = USABLE.energy_minimal.iterations_per_s, float(USABLE.iterations_per_s.max())
    needed_per_s = low + share * (high - low)
    price = time_price(USABLE, np.array(durations_s), np.array(values), needed_per_s=needed_per_s)
    assert mean_rate_per_s(price, durations_s, values) >= needed_per_s * (1 - 1e-9)
    if price > 0:
        assert mean_rate_per_s(price * (1 - 1e-5), durations_s, values) < needed_per_s * (1 + 1e-9)


def test_time_costs_nothing_where_the_slowest_usable_limit_is_fast_enough() -> None:
    assert time_price(USABLE, np.array([1.0]), np.array([300.0]), needed_per_s=0.1) == 0.0


def test_the_ledger_counts_the_time_allowed_less_the_time_taken() -> None:
    assert time_ledger(1.1, 2.0, 1_000.0, 500.0).credit_s == pytest.approx(50.0)


@pytest.mark.parametrize(("credit_s", "paid"), [(59.0, False), (61.0, True), (-1.0, False)])
def test_a_slower_limit_must_be_paid_for_a_whole_period(credit_s: float, *, paid: bool) -> None:
    ledger = TimeLedger(even_per_s=1.0, reference_per_s=1.1, credit_s=credit_s)
    slow = ProfilePoint(power_limit_w=100.0, power_w=90.0, iterations_per_s=0.8)
    assert ledger.pays(slow, period_s=300.0) is paid


def test_a_limit_at_the_even_rate_is_paid_even_in_debt() -> None:
    ledger = TimeLedger(even_per_s=1.0, reference_per_s=1.1, credit_s=-1e6)
    assert ledger.pays(ProfilePoint(power_limit_w=100.0, power_w=90.0, iterations_per_s=1.0), period_s=300.0)


def test_debts_ask_for_more_speed_and_savings_for_less() -> None:
    rates = [
        TimeLedger(even_per_s=1.0, reference_per_s=1.1, credit_s=credit_s).needed_per_s
        for credit_s in (-1e9, -600.0, 0.0, 600.0)
    ]
    assert rates[0] == 1.1
    assert 1.1 > rates[1] > rates[2] == 1.0 > rates[3]


def test_a_single_limit_has_a_price_too() -> None:
    single = PowerProfile((ProfilePoint(power_limit_w=300.0, power_w=240.0, iterations_per_s=1.0),))
    assert time_price(single, np.array([1.0]), np.array([0.0]), needed_per_s=1.0) == 0.0
