"""What a plan expects of the hours ahead: it is the plan that is followed, to its end, and no other one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.planning import BudgetObjective, DeadlineObjective, Decision, EtaObjective, Objective, Progress
from policies.planning.hours_ahead import (
    LOOKS_ERROR_RATIO,
    MIN_FORECASTS,
    SHORTEST_S,
    Evidence,
    ExpectedSaving,
    HoursAhead,
    expected_saving,
    hours_ahead,
)
from policies.planning.objectives import RatesAhead
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.power_curve import Hull
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40, hourly
from tests.policies.planning import decisions
from tests.policies.planning.decisions import FREE, NOW_S, TOP_PER_S, ahead
from tests.policies.planning.slack import test_deadline as slack_bench

FLAT = ahead([300.0] * 24 * 15, now_s=NOW_S - 15 * DAY_S, source="api")
WAVES = [300.0 + 200.0 * np.sin(hour / 3) for hour in range(48)]


def expected(
    hours: float | None,
    *,
    objective: Objective | float = 1.03,
    forecast: Signal | None = None,
    so_far_h: float = 0.0,
    base_s: float | None = None,
) -> HoursAhead:
    """Return what is expected of a run that takes so many hours at its highest limit, some of which are done."""
    done = so_far_h * HOUR_S * TOP_PER_S
    so_far = Progress(
        n_iterations=done,
        active_s=so_far_h * HOUR_S,
        started_at_s=NOW_S - so_far_h * HOUR_S,
        total_iterations=None if hours is None else hours * HOUR_S * TOP_PER_S,
        base_s=so_far_h * HOUR_S if base_s is None else base_s,
        spent=0.0,
    )
    decision = decisions.decided(objective, history=FLAT, forecast=forecast, so_far=so_far)
    return hours_ahead(decision, so_far, now_s=NOW_S, period_s=FREE.period_s, curve=A40)


def test_on_an_even_grid_the_run_has_one_mix_and_ends_as_late_as_it_may() -> None:
    found = expected(10.0)
    assert len(found.mixes) == 1
    assert found.mixes[0].rate_per_s == pytest.approx(TOP_PER_S / 1.03, rel=0.002)
    assert found.slowdown_ratio == pytest.approx(1.03, abs=0.001)
    assert found.ends_s == found.until_s == pytest.approx(NOW_S + 10.3 * HOUR_S, rel=1e-5)


def test_what_was_lost_before_is_a_part_of_the_slowdown_and_not_of_the_end() -> None:
    found = expected(10.0, so_far_h=2.0, base_s=1.9 * HOUR_S)
    assert found.ends_s is not None
    left_s = found.ends_s - NOW_S
    assert found.slowdown_ratio == pytest.approx((2 * HOUR_S + left_s) / (1.9 * HOUR_S * 5), rel=1e-6)


def test_each_hour_has_its_own_limits_and_clean_ones_the_higher() -> None:
    found = expected(200.0, forecast=ahead([100.0, 500.0] * 24))
    assert found.until_s == NOW_S + DAY_S
    starts_h = [(each.starts_s - NOW_S) / HOUR_S for each in found.mixes]
    assert starts_h == [*range(24)]
    clean, dirty = ([each.rate_per_s for each in found.mixes[first::2]] for first in (0, 1))
    assert min(clean) > max(dirty)


def test_a_run_of_unknown_length_has_no_end_but_a_slowdown() -> None:
    found = expected(None, forecast=ahead(WAVES))
    assert found.ends_s is None
    assert found.slowdown_ratio == pytest.approx(1.03, abs=0.002)


def test_hours_whose_signal_has_no_time_are_not_told() -> None:
    assert expected(200.0, forecast=ahead(WAVES[:7])).until_s == pytest.approx(NOW_S + 7 * HOUR_S)


def test_two_limits_that_share_a_period_are_one_entry_with_its_mean() -> None:
    so_far = Progress(n_iterations=0.0, active_s=0.0, started_at_s=NOW_S, total_iterations=10 * HOUR_S * TOP_PER_S)
    decision = decisions.decided(1.03, history=FLAT, so_far=so_far)
    assert decision.scheduled is not None
    found = hours_ahead(decision, so_far, now_s=NOW_S, period_s=FREE.period_s, curve=A40)
    (entry,) = found.mixes
    assert (entry.power_w, entry.rate_per_s) == pytest.approx(decisions.means(decision))
    assert {entry.mix.low.power_limit_w, entry.mix.high.power_limit_w} == {
        decision.power_limit_w,
        decision.scheduled.power_limit_w,
    }


@pytest.mark.parametrize(
    "objective", [1.05, DeadlineObjective(deadline_s=NOW_S + 21 * HOUR_S), BudgetObjective(budget=1e4)]
)
@given(seed=st.integers(0, 999), hours=st.floats(1.0, 20.0))
@settings(max_examples=15)
def test_all_of_the_work_is_done_when_the_run_is_said_to_end(
    objective: Objective | float, seed: int, hours: float
) -> None:
    values = np.random.default_rng(seed).uniform(50.0, 600.0, 48).tolist()
    found = expected(hours, objective=objective, forecast=ahead(values))
    assert found.ends_s is not None
    ends_s = [*(each.starts_s for each in found.mixes[1:]), found.until_s]
    lasted_s = [until_s - each.starts_s for each, until_s in zip(found.mixes, ends_s, strict=True)]
    done = sum(each.rate_per_s * s for each, s in zip(found.mixes, lasted_s, strict=True))
    assert done == pytest.approx(hours * HOUR_S * TOP_PER_S, rel=0.001)


def test_the_plans_to_come_are_those_expected_where_the_signal_is_as_forecast() -> None:
    values, so_far = (
        [*WAVES, *WAVES],
        Progress(n_iterations=0.0, active_s=0.0, started_at_s=NOW_S, total_iterations=1e6),
    )
    so_far = replace(so_far, total_iterations=40 * HOUR_S * TOP_PER_S, base_s=0.0)
    decision = decisions.decided(1.05, history=FLAT, forecast=ahead(values), so_far=so_far)
    found = hours_ahead(decision, so_far, now_s=NOW_S, period_s=FREE.period_s, curve=A40)
    at_s, done = NOW_S, 0.0
    for hour in range(6):
        planned = [each for each in found.mixes if each.starts_s <= NOW_S + hour * HOUR_S][-1]
        so_far = replace(so_far, n_iterations=done, active_s=at_s - NOW_S, base_s=done / TOP_PER_S)
        now = decisions.decided(1.05, history=FLAT, forecast=ahead(values), so_far=so_far, now_s=at_s)
        assert decisions.means(now, now_s=at_s)[1] == pytest.approx(planned.rate_per_s, rel=0.001)
        at_s, done = at_s + HOUR_S, done + planned.rate_per_s * HOUR_S


def test_a_run_that_will_wait_has_pauses_and_ends_before_its_deadline() -> None:
    signal, now_s = hourly(slack_bench.SQUARE), slack_bench.AT_NOON_S
    decision = slack_bench.decided(signal, now_s, hours=40, work_h=10, slack=slack_bench.MAY_PAUSE)
    assert decision.pause is not None
    so_far = Progress(n_iterations=0.0, active_s=0.0, started_at_s=now_s, total_iterations=10 * HOUR_S * TOP_PER_S)
    found = hours_ahead(decision, so_far, now_s=now_s, period_s=600.0, curve=A40)
    assert found.mixes[0].rate_per_s == 0
    assert found.mixes[0].power_w == slack_bench.MAY_PAUSE.idle_power_w
    midnight_s = slack_bench.STARTED_S + DAY_S
    assert next(each.starts_s for each in found.mixes if each.rate_per_s > 0) == pytest.approx(midnight_s, abs=HOUR_S)
    assert found.ends_s is not None
    assert midnight_s + 10 * HOUR_S - 1 <= found.ends_s <= slack_bench.STARTED_S + 40 * HOUR_S


def test_an_objective_that_decides_on_the_present_alone_tells_the_present_period() -> None:
    found = expected(10.0, objective=EtaObjective(eta=0.5), forecast=ahead(WAVES))
    assert (len(found.mixes), found.until_s, found.ends_s, found.slowdown_ratio) == (1, NOW_S + 300.0, None, None)


def test_iterations_in_no_time_have_no_time_at_the_highest_limit() -> None:
    found = expected(10.0, so_far_h=0.1, base_s=0.0)
    assert found.slowdown_ratio is None
    assert found.ends_s == pytest.approx(NOW_S + 9.9 * HOUR_S), "all at the highest limit: it is as far behind"
    assert len(found.mixes) == 1


@pytest.mark.parametrize("left_s", [1e-6, 0.4])
def test_a_run_that_is_at_its_end_still_has_its_present_limit(left_s: float) -> None:
    found = expected(left_s / HOUR_S + 1.0, so_far_h=1.0, forecast=ahead(WAVES))
    assert len(found.mixes) == 1
    assert found.until_s >= found.mixes[0].starts_s + SHORTEST_S


def test_no_entry_has_a_shorter_time_than_a_second() -> None:
    found = expected(20.0, forecast=ahead(WAVES, now_s=NOW_S - HOUR_S + 1e-4))
    starts_s = [each.starts_s for each in found.mixes]
    assert starts_s[0] == NOW_S
    assert min(np.diff([*starts_s, found.until_s])) >= SHORTEST_S


@pytest.mark.parametrize("high_ratio", [0.0, 0.003, 0.997, 1.0])
def test_a_limit_that_has_all_of_the_time_is_told_alone(high_ratio: float) -> None:
    low, high = A40.points[1:3]
    rate_per_s = low.iterations_per_s + high_ratio * (high.iterations_per_s - low.iterations_per_s)
    plan = RatesAhead(
        values=np.ones(2),
        durations_s=np.full(2, HOUR_S),
        rates_per_s=np.array([TOP_PER_S, rate_per_s]),
        hulls=[Hull(A40.points[1:])] * 2,
        timed_s=2 * HOUR_S,
    )
    first = replace(decisions.decided(1.03), scheduled=None, ahead=lambda: plan)
    so_far = Progress(n_iterations=0.0, active_s=0.0, started_at_s=NOW_S)
    found = hours_ahead(first, so_far, now_s=NOW_S, period_s=FREE.period_s, curve=A40)
    alone = high if high_ratio > 0.5 else low
    assert found.mixes[-1].mix == (alone, alone, 0.0)


def test_hours_at_one_limit_share_the_error_of_its_rate() -> None:
    known = PowerProfile(
        tuple(replace(each, iterations_per_s_ci=0.0196 * each.iterations_per_s) for each in A40.points)
    )
    decision = decisions.decided(1.03, history=FLAT, profile=known)
    limits_w = {decision.power_limit_w} | ({decision.scheduled.power_limit_w} if decision.scheduled else set())
    assert max(limits_w) < A40.fastest.power_limit_w
    so_far = Progress(
        n_iterations=HOUR_S * TOP_PER_S,
        active_s=HOUR_S,
        started_at_s=NOW_S,
        total_iterations=100 * HOUR_S * TOP_PER_S,
        base_s=HOUR_S,
        base_error_ratio=0.001,
    )
    found = hours_ahead(decision, so_far, now_s=NOW_S, period_s=FREE.period_s, curve=known)
    both_limits = 0.01 * 2**0.5
    assert found.slowdown_error_ratio == pytest.approx(0.99 * both_limits + 0.01 * 0.001, rel=0.02)
    assert expected(10.0).slowdown_error_ratio is None, "no rate has an interval"


EVEN = (0.9, 1.2)
"""Of each limit below the highest: its speed, and how much more energy an iteration needs at the highest."""


def evidence(
    *,
    energy_error_ratio: float = 0.0,
    shared_error_ratio: float = 0.0,
    errors: np.ndarray | float | None = 0.0,
    correlation: float = 0.0,
    **more: float,
) -> Evidence:
    """Return what is known of limits that are all alike, and of forecasts: each hour of a number is off by itself."""

    def ratios(limits_w: Sequence[float]) -> tuple[list[LimitRatios], np.ndarray]:
        at_top = [limit_w >= A40.fastest.power_limit_w for limit_w in limits_w]
        known = [
            LimitRatios(
                power_limit_w=limit_w,
                rate_ratio=1.0 if is_top else EVEN[0],
                rate_error_ratio=0.0,
                energy_ratio=1.0 if is_top else EVEN[1],
                energy_error_ratio=0.0 if is_top else energy_error_ratio,
                shared_error_ratio=0.0 if is_top else shared_error_ratio,
            )
            for limit_w, is_top in zip(limits_w, at_top, strict=True)
        ]
        return known, correlation + (1 - correlation) * np.eye(len(known))

    if isinstance(errors, float):
        errors = np.random.default_rng(1).normal(0.0, errors, (MIN_FORECASTS, 24))
    return Evidence(ratios=ratios, forecast_errors=errors, **more)


def planned(values: Sequence[float], rates: Sequence[float], *, hull: Hull | None = None) -> Decision:
    """Return a decision for hours with such a signal, at the slowest (0) or the fastest (1) limit of the curve."""
    hull = hull or Hull((A40.points[2], A40.fastest))
    slow_per_s, fast_per_s = hull.points[0].iterations_per_s, hull.points[-1].iterations_per_s
    plan = RatesAhead(
        durations_s=np.full(len(values), HOUR_S),
        values=np.array(values),
        rates_per_s=np.array([slow_per_s + rate * (fast_per_s - slow_per_s) for rate in rates]),
        hulls=[hull] * len(values),
        timed_s=HOUR_S * len(values),
    )
    first = hull.points[-1 if rates[0] else 0]
    return replace(
        decisions.decided(1.03),
        power_limit_w=first.power_limit_w,
        power_w=first.power_w,
        iterations_per_s=first.iterations_per_s,
        scheduled=None,
        ahead=lambda: plan,
    )


def saving(decision: Decision, of: Evidence) -> ExpectedSaving:
    so_far = Progress(n_iterations=0.0, active_s=0.0, started_at_s=NOW_S)
    hours = hours_ahead(decision, so_far, now_s=NOW_S, period_s=FREE.period_s, curve=A40)
    found = expected_saving(decision, hours, of, now_s=NOW_S, curve=A40)
    assert found is not None
    return found


def test_the_same_work_at_the_highest_limit_is_done_sooner_in_other_hours() -> None:
    found = saving(planned([100.0, 200.0, 400.0], [0, 1, 0]), evidence())
    work_s, used_s = (np.array([ratio, 1.0, ratio]) * HOUR_S for ratio in (0.9, 0.9 / 1.2))
    assert found.energy_ratio == pytest.approx(1 - used_s.sum() / work_s.sum())
    twin = HOUR_S * (100 + 200 + 0.8 * 400)
    assert found.signal_ratio == pytest.approx(1 - used_s @ [100, 200, 400] / twin)
    assert found.energy_error_ratio == found.signal_error_ratio == 0


def test_a_plan_at_the_highest_limit_saves_nothing_whatever_is_not_known() -> None:
    found = saving(planned([100.0, 300.0], [1, 1]), evidence(energy_error_ratio=0.01, errors=50.0))
    assert (found.energy_ratio, found.signal_ratio) == pytest.approx((0.0, 0.0))
    assert (found.energy_error_ratio, found.signal_error_ratio) == pytest.approx((0.0, 0.0))


def test_errors_of_limits_add_up_and_one_that_they_share_is_one() -> None:
    own = saving(planned([100.0] * 4, [0] * 4), evidence(energy_error_ratio=0.012))
    assert own.energy_error_ratio == pytest.approx(0.012 / 1.2 / 1.2)
    assert own.signal_error_ratio == pytest.approx(own.energy_error_ratio)
    hull = Hull((A40.points[1], A40.points[2]))
    for correlation in (0.0, 0.5, 1.0):
        of = evidence(energy_error_ratio=0.012, correlation=correlation)
        two = saving(planned([100.0] * 4, [0, 0, 1, 1], hull=hull), of)
        both = ((1 + correlation) / 2) ** 0.5 * own.energy_error_ratio
        assert (two.energy_error_ratio, two.signal_error_ratio) == pytest.approx((both, both))
    shared = saving(planned([100.0] * 4, [0, 0, 1, 1]), evidence(shared_error_ratio=-0.012))
    assert shared.energy_error_ratio == pytest.approx(1.8 / 3.8 * 0.012 / 1.2 / 1.2)


def test_what_is_not_known_of_a_forecast_counts_where_the_signal_changes() -> None:
    of = evidence(errors=30.0)
    found = saving(planned([300.0, 200.0, 400.0, 300.0], [0, 1, 0, 1]), of)
    assert found.signal_error_ratio is not None
    assert 0 < found.signal_error_ratio < 30 / 300
    known = saving(planned([300.0, 200.0, 400.0, 300.0], [0, 1, 0, 1]), evidence(errors=30.0, known_s=4 * HOUR_S))
    assert known.signal_error_ratio == 0
    assert saving(planned([300.0, 300.0], [0, 1]), evidence(errors=None)).signal_error_ratio == 0
    too_few = np.full((MIN_FORECASTS, 24), 30.0)
    too_few[5, 7] = np.nan
    for errors in (None, too_few):
        assert saving(planned([300.0, 200.0], [0, 1]), evidence(errors=errors)).signal_error_ratio is None


@pytest.mark.parametrize("alike_h", [0.01, 2.0, 6.0, 1e6])
def test_the_error_is_that_under_past_forecasts_each_of_them_whole(alike_h: float) -> None:
    rng, n_draws, rms = np.random.default_rng(7), 400, 40.0
    values = 300 + 100 * np.sin(np.arange(24) / 24 * 2 * np.pi)
    rates = (values < 300).astype(float)
    hours = np.arange(24)
    covariance = rms**2 * np.exp(-np.abs(hours[:, None] - hours) / alike_h)
    past = rng.multivariate_normal(np.zeros(24), covariance, 4_000)
    draws = rng.multivariate_normal(np.zeros(24), covariance, n_draws)
    found = saving(planned(values.tolist(), rates.tolist()), evidence(errors=past))
    assert found.signal_error_ratio is not None
    draws[:, 0] = 0
    ratios = [saving(planned((values + draw).tolist(), rates.tolist()), evidence()).signal_ratio for draw in draws]
    spread = float(np.std([ratio for ratio in ratios if ratio is not None]))
    assert spread == pytest.approx(found.signal_error_ratio, rel=0.15)


def test_looks_do_their_share_of_the_work_at_the_highest_limit() -> None:
    without, found = (saving(planned([100.0] * 4, [0] * 4), evidence(look_ratio=ratio)) for ratio in (0.0, 0.1))
    assert found.energy_ratio == pytest.approx(0.9 * without.energy_ratio)
    assert found.energy_error_ratio == pytest.approx(0.1 * LOOKS_ERROR_RATIO * without.energy_ratio)


def test_a_pause_adds_the_idle_power_of_the_gpus_alone() -> None:
    idle = ProfilePoint(power_limit_w=A40.fastest.power_limit_w, power_w=150.0, iterations_per_s=0.0)
    whole = replace(A40, points=tuple(replace(each, power_w=1.5 * (each.power_w + 80)) for each in A40.points))
    hull = Hull((idle, whole.fastest))
    decision = planned([100.0, 100.0], [1, 0], hull=hull)
    so_far = Progress(n_iterations=0.0, active_s=0.0, started_at_s=NOW_S)
    hours = hours_ahead(decision, so_far, now_s=NOW_S, period_s=FREE.period_s, curve=whole)
    of = evidence(host_power_w=80.0, pue=1.5)
    found = expected_saving(decision, hours, of, now_s=NOW_S, curve=whole)
    assert found is not None
    assert found.energy_ratio == pytest.approx(-20.0 / A40.fastest.power_w)


def test_what_would_cost_nothing_or_is_not_planned_ahead_has_no_expected_saving() -> None:
    found = saving(planned([100.0, -300.0], [0, 1]), evidence())
    assert (found.signal_ratio, found.signal_error_ratio) == (None, None)
    decision = replace(planned([100.0], [0]), ahead=None)
    so_far = Progress(n_iterations=0.0, active_s=0.0, started_at_s=NOW_S)
    hours = hours_ahead(decision, so_far, now_s=NOW_S, period_s=FREE.period_s, curve=A40)
    assert expected_saving(decision, hours, evidence(), now_s=NOW_S, curve=A40) is None
