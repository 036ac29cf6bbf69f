"""Least-cost dispatch, against a solver of linear programmes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from policies.planning.dispatch import MeritOrder
from policies.planning.signal_outlook import SignalOutlook, flat_outlook
from policies.vocabulary.power_curve import Hull, lower_hull
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.policies.days import A40
from tests.policies.vocabulary.test_profile import profiles

A40_HULL = lower_hull(A40)
steps = st.lists(st.tuples(st.floats(60.0, 7_200.0), st.floats(1.0, 900.0)), min_size=1, max_size=12)


def outlook(pairs: list[tuple[float, float]]) -> SignalOutlook:
    return SignalOutlook(np.array([s for s, _ in pairs]), np.array([value for _, value in pairs]))


def solved(hull: Hull, ahead: SignalOutlook, needed_per_s: float) -> float:
    """Return the least mean of c·P at a mean rate, by a solver: shares of each step at each point of the hull."""
    weights, n = ahead.durations_s / ahead.durations_s.sum(), len(hull.points)
    found = linprog(
        np.outer(weights * ahead.values, hull.power_w).ravel(),
        A_ub=-np.outer(weights, hull.iterations_per_s).reshape(1, -1),
        b_ub=[-needed_per_s],
        A_eq=np.kron(np.eye(len(weights)), np.ones(n)),
        b_eq=np.ones(len(weights)),
    )
    assert found.success
    return float(found.fun)


@given(profiles(), steps, st.floats(0.0, 1.0))
def test_the_cost_agrees_with_a_linear_programme(
    profile: PowerProfile, pairs: list[tuple[float, float]], share: float
) -> None:
    hull, ahead = lower_hull(profile), outlook(pairs)
    low, high = hull.most_efficient.iterations_per_s, hull.fastest.iterations_per_s
    dispatch = MeritOrder(hull, ahead).dispatch(low + share * (high - low))
    assert dispatch.mean_rate_per_s >= (low + share * (high - low)) * (1 - 1e-9)
    assert dispatch.mean_power_cost == pytest.approx(solved(hull, ahead, dispatch.mean_rate_per_s), rel=1e-6)


@given(profiles(), steps, st.floats(0.0, 3.0))
def test_the_rate_is_within_the_hull(profile: PowerProfile, pairs: list[tuple[float, float]], needed: float) -> None:
    hull = lower_hull(profile)
    rate_per_s = MeritOrder(hull, outlook(pairs)).dispatch(needed * hull.fastest.iterations_per_s).rate_per_s
    assert hull.most_efficient.iterations_per_s <= rate_per_s <= hull.fastest.iterations_per_s * (1 + 1e-12)


@given(st.floats(0.94, 1.0), st.floats(0.1, 1e3))
def test_a_flat_signal_gets_the_mean_rate(share: float, value: float) -> None:
    needed_per_s = share * A40_HULL.fastest.iterations_per_s
    assert MeritOrder(A40_HULL, flat_outlook(value, 3_600.0, period_s=300.0)).dispatch(
        needed_per_s
    ).rate_per_s == pytest.approx(needed_per_s)


@given(profiles(), steps, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_avoided_cost_agrees_with_a_linear_programme(
    profile: PowerProfile, pairs: list[tuple[float, float]], share: float, surplus_share: float
) -> None:
    hull, ahead = lower_hull(profile), outlook([*pairs, (600.0, 100.0)])
    low, high = hull.most_efficient.iterations_per_s, hull.fastest.iterations_per_s
    merit_order = MeritOrder(hull, ahead)
    dispatch = merit_order.dispatch(low + share * (high - low))
    surplus_per_s = surplus_share * (high - low)
    later = SignalOutlook(ahead.durations_s[1:], ahead.values[1:])
    whole_s, present_s, later_s = (float(s) for s in (ahead.durations_s.sum(), pairs[0][0], later.durations_s.sum()))
    planned_per_s = (dispatch.mean_rate_per_s * whole_s - dispatch.rate_per_s * present_s) / later_s
    least_per_s = planned_per_s - surplus_per_s * present_s / later_s
    saved = solved(hull, later, planned_per_s * (1 - 1e-12)) - solved(hull, later, least_per_s)
    assert merit_order.avoided_cost(dispatch, surplus_per_s) == pytest.approx(
        saved * later_s / present_s, rel=1e-6, abs=1e-6 * dispatch.mean_power_cost * whole_s / present_s
    )


def test_a_surplus_without_later_work_ends_the_run_sooner() -> None:
    most_efficient, wanted_per_s = A40_HULL.most_efficient, A40_HULL.fastest.iterations_per_s
    for horizon_s, cost_at_end in ((36_000.0, 0.0), (360_000.0, 200.0 * most_efficient.iteration_energy_j)):
        merit_order = MeritOrder(A40_HULL, outlook([(3_600.0, 200.0), (horizon_s, 200.0)]))
        surplus_per_s = wanted_per_s - most_efficient.iterations_per_s
        assert merit_order.avoided_cost(merit_order.dispatch(0.0), surplus_per_s) == pytest.approx(
            cost_at_end * surplus_per_s
        )


def test_work_is_dispatched_when_it_is_cheap() -> None:
    needed_per_s = 0.96 * A40_HULL.fastest.iterations_per_s
    rates = [
        MeritOrder(A40_HULL, outlook([(3_600.0, now), (3_600.0, 300.0)])).dispatch(needed_per_s).rate_per_s
        for now in (100.0, 299.0, 301.0, 9_000.0)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > needed_per_s > rates[-1] == A40_HULL.most_efficient.iterations_per_s


def test_work_cheaper_than_at_the_end_is_brought_forward() -> None:
    """An hour at a tenth of the usual price brings the end of an unhurried run forward."""
    dispatch = MeritOrder(A40_HULL, outlook([(3_600.0, 30.0), (360_000.0, 300.0)])).dispatch(0.0)
    assert dispatch.rate_per_s > A40_HULL.most_efficient.iterations_per_s
    usual = MeritOrder(A40_HULL, outlook([(3_600.0, 300.0), (360_000.0, 300.0)])).dispatch(0.0)
    assert usual.rate_per_s == A40_HULL.most_efficient.iterations_per_s


def test_marginal_cost_and_price_of_time_agree() -> None:
    """Argmin (c·P + λ)/r with λ = μ·r - c·P, the form of Chase's eq. 6, is the point that μ dispatches up to."""
    value, needed_per_s = 250.0, 0.97 * A40_HULL.fastest.iterations_per_s
    dispatch = MeritOrder(A40_HULL, outlook([(600.0, value), (9_000.0, 400.0)])).dispatch(needed_per_s)
    power_w = float(np.interp(dispatch.rate_per_s, A40_HULL.iterations_per_s, A40_HULL.power_w))
    time_price = dispatch.marginal_cost * dispatch.rate_per_s - value * power_w
    costs = (value * A40_HULL.power_w + time_price) / A40_HULL.iterations_per_s
    assert time_price > 0
    assert costs.min() == pytest.approx((value * power_w + time_price) / dispatch.rate_per_s)


def test_negative_prices_dispatch_everything() -> None:
    dispatch = MeritOrder(A40_HULL, outlook([(600.0, -20.0), (6_000.0, 60.0)])).dispatch(0.0)
    assert dispatch.rate_per_s == pytest.approx(A40_HULL.fastest.iterations_per_s)


def test_near_the_end_nothing_is_brought_forward() -> None:
    """The end of the run depends on the dispatch, and so does the saving there."""
    dispatch = MeritOrder(A40_HULL, outlook([(3_600.0, 30.0), (90_000.0, 300.0)])).dispatch(0.0)
    assert dispatch.rate_per_s == A40_HULL.most_efficient.iterations_per_s


def test_a_forecast_to_the_end_allows_bringing_work_forward() -> None:
    """Ten hours of work; the latest possible hours are ten times as dirty as the first ones."""
    left = 36_000.0 * A40_HULL.most_efficient.iterations_per_s
    hours = np.where(np.arange(12) < 6, 30.0, 300.0)
    foreseen = SignalOutlook(np.full(12, 3_600.0), hours, foreseen_s=12 * 3_600.0)
    assert (
        MeritOrder(A40_HULL, foreseen).dispatch(0.0, left_iterations=left).rate_per_s
        > A40_HULL.most_efficient.iterations_per_s
    )
    for unsure, left_iterations in (
        (replace(foreseen, foreseen_s=9 * 3_600.0), left),
        (replace(foreseen, values=hours[::-1]), left),
        (foreseen, None),
    ):
        dispatch = MeritOrder(A40_HULL, unsure).dispatch(0.0, left_iterations=left_iterations)
        assert dispatch.rate_per_s == A40_HULL.most_efficient.iterations_per_s


@given(
    st.floats(0.1, 500.0),
    st.lists(st.tuples(st.floats(1.0, 9.0), st.floats(1.0, 900.0)), min_size=1, max_size=99),
    st.floats(60.0, 86_400.0),
)
def test_a_fixed_rate_run_ends_in_the_last_hour_of_its_outlook(
    rate_per_s: float, pairs: list[tuple[float, float]], left_s: float
) -> None:
    """However durations are rounded, the soonest end equals the latest one, and the end of the outlook."""
    hull = Hull((ProfilePoint(power_limit_w=300.0, power_w=200.0, iterations_per_s=rate_per_s),))
    left = left_s * rate_per_s
    shares, values = np.array(pairs).T
    foreseen = SignalOutlook(shares / shares.sum() * (left / rate_per_s), values, foreseen_s=left / rate_per_s)
    dispatch = MeritOrder(hull, foreseen).dispatch(rate_per_s, left_iterations=left)
    assert dispatch.marginal_cost == pytest.approx(values[-1] * 200.0 / rate_per_s)


@given(
    profiles(),
    st.lists(st.tuples(st.floats(1e-3, 7_200.0), st.floats(-90.0, 900.0)), min_size=1, max_size=40),
    st.just(1.0) | st.floats(0.0, 2.0),
    st.just(1.0) | st.floats(0.0, 1.0),
)
def test_the_cost_at_the_end_is_that_of_a_possible_hour(
    profile: PowerProfile, pairs: list[tuple[float, float]], left_share: float, foreseen_share: float
) -> None:
    hull, plain = lower_hull(profile), outlook(pairs)
    ends_s, values = np.cumsum(plain.durations_s), plain.values
    slowest, whole_s = hull.most_efficient, float(plain.durations_s.sum())
    left = left_share * whole_s * slowest.iterations_per_s
    latest_s, soonest_s = left / slowest.iterations_per_s, left / hull.fastest.iterations_per_s
    foreseen_s = foreseen_share * whole_s
    dispatch = MeritOrder(hull, replace(plain, foreseen_s=foreseen_s)).dispatch(0.0, left_iterations=left)
    value = dispatch.marginal_cost * slowest.iterations_per_s / slowest.power_w
    starts_s, margin_s = ends_s - plain.durations_s, 1e-6 * whole_s
    surely = values[(ends_s >= soonest_s + margin_s) & (starts_s <= latest_s - margin_s)]
    maybe = values[(ends_s >= soonest_s - margin_s) & (starts_s <= latest_s + margin_s)]
    if latest_s > foreseen_s + margin_s:
        assert value == pytest.approx(min(0.0, values.min()))
    elif latest_s < foreseen_s - margin_s or latest_s == foreseen_s == whole_s:
        assert maybe.min() - 1e-6 <= value <= min(surely, default=values.max()) + 1e-6


@given(profiles(), steps, st.floats(0.0, 1.0))
def test_the_average_cost_agrees_with_the_dispatch(
    profile: PowerProfile, pairs: list[tuple[float, float]], share: float
) -> None:
    merit_order = MeritOrder(lower_hull(profile), outlook(pairs))
    low, high = merit_order.hull.most_efficient.iterations_per_s, merit_order.hull.fastest.iterations_per_s
    dispatch = merit_order.dispatch(low + share * (high - low))
    expected = dispatch.mean_power_cost / dispatch.mean_rate_per_s
    assert merit_order.average_cost(low + share * (high - low)) == pytest.approx(expected)


@given(profiles(), steps, st.floats(0.0, 1.0))
def test_negative_prices_never_cost_more_than_one_rate(
    profile: PowerProfile, pairs: list[tuple[float, float]], share: float
) -> None:
    hull, ahead = lower_hull(profile), outlook([(s, value - 450.0) for s, value in pairs])
    low, high = hull.most_efficient.iterations_per_s, hull.fastest.iterations_per_s
    needed_per_s = low + share * (high - low)
    dispatch = MeritOrder(hull, ahead).dispatch(needed_per_s)
    even_w = float(np.interp(needed_per_s, hull.iterations_per_s, hull.power_w))
    chord_w = hull.most_efficient.power_w + share * (hull.fastest.power_w - hull.most_efficient.power_w)
    weights = ahead.durations_s / ahead.durations_s.sum()
    even = float(weights @ np.where(ahead.values < 0, ahead.values * chord_w, ahead.values * even_w))
    if dispatch.mean_rate_per_s <= needed_per_s * (1 + 1e-9):
        assert dispatch.mean_power_cost <= even + 1e-6 * (abs(even) + hull.fastest.power_w)
