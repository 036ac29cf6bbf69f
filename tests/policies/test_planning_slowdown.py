"""The objective `slowdown`: the static plan, the ledger, the price of time, and what is done without a signal."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.planning import Decision, Present, Progress, Rules, SlowdownObjective, choose_power_limit
from policies.profile import PowerProfile, ProfilePoint
from policies.signal import Signal, constant_signal
from tests.policies.days import A40, DAY_S, HOUR_S, grid, hourly, told
from tests.policies.test_profile import profiles

FREE = Rules(period_s=300.0, min_dwell_s=0.0, min_gain_ratio=0.0)
TOP_PER_S = A40.fastest.iterations_per_s
NOW_S = 15.5 * DAY_S


def progress(credit_s: float = 0.0, *, max_slowdown: float = 1.03, hours: float = 5.0) -> Progress:
    """Return a run that has so much time in hand, by the budget as it is."""
    active_s = hours * HOUR_S
    return Progress(
        n_iterations=(active_s + credit_s) / max_slowdown * TOP_PER_S, active_s=active_s, started_at_s=NOW_S - active_s
    )


def chosen(
    max_slowdown: float = 1.03,
    *,
    history: Signal | None = None,
    forecast: Signal | None = None,
    profile: PowerProfile = A40,
    rules: Rules = FREE,
    so_far: Progress | None = None,
    present: Present | None = None,
    now_s: float = NOW_S,
) -> Decision:
    return choose_power_limit(
        profile=profile,
        objective=SlowdownObjective(max_slowdown=max_slowdown),
        rules=rules,
        history=history,
        forecast=forecast,
        now_s=now_s,
        progress=so_far or Progress(n_iterations=0.0, active_s=0.0, started_at_s=now_s),
        present=present,
    )


def best_static_w(profile: PowerProfile, max_slowdown: float) -> float:
    """Choose by a loop: the least energy among the limits that are fast enough."""
    needed_per_s = profile.points[-1].iterations_per_s / max_slowdown
    fast = [p for p in profile.points if p.iterations_per_s >= needed_per_s]
    return min(fast, key=lambda p: p.power_w / p.iterations_per_s).power_limit_w


@given(profiles(), st.floats(1.0, 3.0))
def test_without_a_signal_the_plan_is_the_best_static_limit(profile: PowerProfile, max_slowdown: float) -> None:
    decision = chosen(max_slowdown, profile=profile)
    assert decision.power_limit_w == best_static_w(profile, max_slowdown)
    assert (decision.reason, decision.signal_value) == ("slowdown_static", None)


@given(st.floats(1.0, 1.5), st.floats(1e-3, 1e4), st.sampled_from(["constant", "history"]))
def test_a_constant_signal_gives_the_static_limit(max_slowdown: float, value: float, source: str) -> None:
    constant = constant_signal(value, kind="price", unit="EUR/kWh", now_s=NOW_S)
    history = constant if source == "constant" else hourly(np.full(16 * 24, value))
    decision = chosen(max_slowdown, history=history)
    assert (decision.power_limit_w, decision.reason) == (best_static_w(A40, max_slowdown), "slowdown_static")


@pytest.mark.parametrize(
    ("max_slowdown", "power_limit_w"),
    [(1.0, 300.0), (1.003, 275.0), (1.01, 250.0), (1.03, 225.0), (1.08, 200.0), (9.0, 200.0)],
)
def test_the_static_limits_of_the_a40(max_slowdown: float, power_limit_w: float) -> None:
    assert chosen(max_slowdown).power_limit_w == power_limit_w


@given(profiles(), st.floats(1.0, 3.0), st.floats(0.0, 1.0))
def test_a_looser_budget_never_costs_more(profile: PowerProfile, max_slowdown: float, extra: float) -> None:
    tight, loose = (chosen(s, profile=profile) for s in (max_slowdown, max_slowdown + extra))
    assert loose.power_w / loose.iterations_per_s <= tight.power_w / tight.iterations_per_s


@given(
    profiles(),
    st.floats(1.0, 2.0),
    st.floats(-1e4, 1e4),
    st.lists(st.floats(-100.0, 900.0), min_size=48, max_size=48),
    st.floats(60.0, 500.0),
)
def test_whatever_the_world_is_like_the_limit_is_one_of_the_profile(
    profile: PowerProfile, max_slowdown: float, credit_s: float, values: list[float], present_w: float
) -> None:
    so_far = Progress(
        n_iterations=1e4, active_s=max(1e4 / profile.fastest.iterations_per_s + credit_s, 0.0), started_at_s=0
    )
    decision = chosen(
        max_slowdown,
        profile=profile,
        history=hourly(np.array(values)),
        now_s=47.5 * HOUR_S,
        so_far=so_far,
        present=Present(power_limit_w=present_w, since_s=47 * HOUR_S),
    )
    point = profile.point_at(decision.power_limit_w)
    assert point is not None
    assert (point.power_w, point.iterations_per_s) == (decision.power_w, decision.iterations_per_s)
    assert point.iterations_per_s >= profile.usable().energy_minimal.iterations_per_s


@given(st.floats(0.01, 100.0), st.floats(1.0, 1.2), st.integers(0, 23))
def test_scaling_power_or_signal_changes_nothing(scale: float, max_slowdown: float, hour: int) -> None:
    """The unit of carbon, money or energy is nobody's business."""
    scaled = PowerProfile(tuple(replace(point, power_w=point.power_w * scale) for point in A40.points))
    now_s = 15 * DAY_S + hour * HOUR_S
    history = told(grid("wind"), now_s)
    so_far = progress(300.0)
    plain = chosen(max_slowdown, history=history, now_s=now_s, so_far=so_far)
    other = chosen(max_slowdown, profile=scaled, history=hourly(history.values * scale), now_s=now_s, so_far=so_far)
    assert other.power_limit_w == plain.power_limit_w


def test_lost_time_is_paid_back_by_a_faster_limit_without_a_signal() -> None:
    tight = 1.0165
    decision = chosen(tight, so_far=progress(-200.0, max_slowdown=tight))
    assert chosen(tight).power_limit_w == 225.0
    assert (decision.power_limit_w, decision.reason) == (250.0, "behind_schedule")


def test_a_debt_beyond_all_paying_asks_for_the_prior_limit() -> None:
    assert chosen(so_far=progress(-1e5)).power_limit_w == 300.0
    assert chosen(so_far=progress(-1e5), history=told(grid("solar"), NOW_S)).power_limit_w >= 275.0


def test_a_dirty_hour_gets_a_lower_limit_than_a_clean_one() -> None:
    series, so_far = grid("solar", factors=(1.0,)), progress(150.0)
    clean_s, dirty_s = 15 * DAY_S + 11.5 * HOUR_S, 15 * DAY_S + 20.5 * HOUR_S
    clean, dirty = (chosen(history=told(series, t), now_s=t, so_far=so_far) for t in (clean_s, dirty_s))
    assert (clean.power_limit_w, dirty.power_limit_w) == (225.0, 200.0)
    assert dirty.reason == "slowdown_signal"


def test_in_debt_even_a_dirty_hour_gets_a_limit_that_pays_back() -> None:
    dirty_s = 15 * DAY_S + 20.5 * HOUR_S
    decision = chosen(history=told(grid("solar"), dirty_s), now_s=dirty_s, so_far=progress(-300.0))
    assert decision.power_limit_w == 225.0


def test_a_slower_limit_is_left_at_once_when_the_ledger_cannot_pay_it() -> None:
    """Neither the dwell nor a small gain may keep a limit that the budget forbids."""
    rules = Rules(period_s=300.0, min_dwell_s=1e6, min_gain_ratio=0.9)
    present = Present(power_limit_w=200.0, since_s=NOW_S - 1)
    for history in (None, told(grid("wind"), NOW_S)):
        decision = chosen(history=history, rules=rules, present=present, so_far=progress(-60.0))
        assert decision.power_limit_w == 225.0


def test_a_forecast_is_planned_for_rather_than_history() -> None:
    """The hour is clean beside the last days, but dirty beside the coming one."""
    history = hourly(np.full(15 * 24 + 12, 500.0)).between(0.0, NOW_S)
    coming = np.array([300.0, *np.linspace(120, 200, 30)])
    forecast = replace(
        hourly(coming),
        starts_s=NOW_S + np.arange(31, dtype=np.float64) * HOUR_S,
        ends_s=NOW_S + 31 * HOUR_S,
        source="provider",
    )
    so_far = progress(600.0)
    assert chosen(history=history, forecast=forecast, so_far=so_far).power_limit_w == 200.0
    persistent = replace(forecast, source="persistence")
    assert chosen(history=history, forecast=persistent, so_far=so_far).reason == "slowdown_static"


@pytest.mark.parametrize(("hours", "reason"), [(12, "slowdown_static"), (23.4, "slowdown_signal")])
def test_a_day_of_history_is_needed_to_price_time(hours: float, reason: str) -> None:
    history = told(grid("wind"), NOW_S).between(NOW_S - hours * HOUR_S, NOW_S + HOUR_S)
    assert chosen(history=history, so_far=progress(600.0)).reason == reason


def test_a_history_full_of_holes_is_no_reference() -> None:
    history = told(grid("wind"), NOW_S)
    values = np.where(np.arange(len(history)) % 2, np.nan, history.values)
    values[-1] = 150.0
    decision = chosen(history=replace(history, values=values), so_far=progress(600.0))
    assert (decision.reason, decision.signal_value) == ("slowdown_static", 150.0)


def test_a_missing_value_now_falls_back_to_the_static_plan_and_says_so() -> None:
    history = told(grid("wind"), NOW_S).between(0.0, NOW_S - HOUR_S)
    decision = chosen(history=history, so_far=progress(600.0))
    assert (decision.power_limit_w, decision.reason, decision.signal_value) == (225.0, "signal_stale", None)
    assert "the signal is stale" in decision.detail


def test_a_negative_price_gets_the_fastest_limit_and_never_more() -> None:
    values = np.tile(np.concatenate((np.full(12, 60.0), np.full(12, -20.0))), 16)
    now_s = 15 * DAY_S + 18 * HOUR_S
    decision = chosen(history=told(hourly(values), now_s), now_s=now_s, so_far=progress(600.0))
    assert decision.power_limit_w == 300.0


def test_noise_that_makes_a_lower_limit_the_fastest_does_not_confuse_the_plan() -> None:
    points = (*A40.points[:-1], replace(A40.fastest, iterations_per_s=TOP_PER_S * 0.99))
    decision = chosen(1.0, profile=PowerProfile(points), history=told(grid("wind"), NOW_S))
    assert decision.power_limit_w == 275.0


def test_a_single_limit_is_all_there_is() -> None:
    profile = PowerProfile((ProfilePoint(power_limit_w=300.0, power_w=240.0, iterations_per_s=1.3),))
    for history in (None, told(grid("wind"), NOW_S)):
        assert chosen(profile=profile, history=history, so_far=progress(-500.0)).power_limit_w == 300.0


@pytest.mark.parametrize("max_slowdown", [0.99, float("nan")])
def test_a_slowdown_below_one_is_refused(max_slowdown: float) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        SlowdownObjective(max_slowdown=max_slowdown)
