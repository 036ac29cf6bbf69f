"""The level of days beyond a forecast: how far the past has told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.planning.signal_outlook import (
    MAX_DAYS,
    MIN_ORIGINS,
    SignalOutlook,
    build_outlook,
    weight_of_last_days_ratio,
)
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import hourly
from tests.policies.planning.decisions import ahead

NOW_S = 60 * DAY_S


def looped_weight_ratio(days: list[float], n_days: int) -> float:
    """Compute the weight day by day, as the definition says."""
    last, coming = [], []
    for day in range(MAX_DAYS, len(days) - n_days):
        after = sum(days[day + 1 : day + 1 + n_days]) / n_days
        last.append((sum(days[day - MAX_DAYS : day]) / MAX_DAYS - after) ** 2)
        coming.append((days[day] - after) ** 2)
    return sum(coming) / (sum(coming) + sum(last))


@given(st.integers(0, 999), st.integers(MAX_DAYS + MIN_ORIGINS + 1, 60), st.integers(1, 9))
def test_the_weight_is_that_of_the_definition(seed: int, n_known: int, n_days: int) -> None:
    days = np.random.default_rng(seed).normal(300.0, 50.0, n_known)
    n_after = min(n_days, n_known - MAX_DAYS - MIN_ORIGINS)
    assert weight_of_last_days_ratio(days, n_days) == pytest.approx(looped_weight_ratio(days.tolist(), n_after))


@pytest.mark.parametrize("n_known", [0, 1, 14, MAX_DAYS + MIN_ORIGINS])
def test_too_few_days_leave_the_mean_of_the_last(n_known: int) -> None:
    assert weight_of_last_days_ratio(np.linspace(100.0, 500.0, n_known), 3) == 1.0


def test_days_that_never_differ_leave_the_mean_of_the_last() -> None:
    assert weight_of_last_days_ratio(np.full(60, 300.0), 3) == 1.0


def test_levels_that_last_favour_the_coming_day_and_noise_the_last_ones() -> None:
    rng = np.random.default_rng(1)
    lasting = 300.0 + np.cumsum(rng.normal(0.0, 20.0, 60))
    noise = rng.normal(300.0, 50.0, 60)
    assert weight_of_last_days_ratio(lasting, 3) < 0.35
    assert weight_of_last_days_ratio(noise, 3) > 0.75


def after(days: np.ndarray, coming: float, *, horizon_s: float = 6 * DAY_S) -> SignalOutlook:
    """Return the outlook of 60 flat days and a flat forecast of one."""
    found = build_outlook(
        hourly(np.repeat(days, 24)),
        ahead([coming] * 24, now_s=NOW_S),
        now_s=NOW_S,
        period_s=300.0,
        horizon_s=horizon_s,
    )
    assert found is not None
    return found


@given(st.integers(0, 99), st.floats(50.0, 900.0))
def test_the_level_after_the_forecast_is_between_both(seed: int, coming: float) -> None:
    days = 300.0 + np.cumsum(np.random.default_rng(seed).normal(0.0, 10.0, 60))
    found, last = after(days, coming), days[-MAX_DAYS:]
    tail, tail_s = found.values[25:], found.durations_s[25:]
    mean, usual = float(tail @ tail_s / tail_s.sum()), float(last.mean())
    assert found.timed_s == pytest.approx(DAY_S)
    assert min(coming, usual) - 1e-6 <= mean <= max(coming, usual) + 1e-6
    weight_ratio = weight_of_last_days_ratio(days, 5)
    if np.ptp(last) + 1e-9 < abs(coming - usual):  # no value is shifted beyond the forecast's
        expected = np.clip(last + (1 - weight_ratio) * (coming - usual), min(*last, coming), max(*last, coming))
        assert mean == pytest.approx(expected.mean(), rel=1e-6)


def test_a_longer_forecast_is_used_as_far_as_it_reaches() -> None:
    days, hours = np.full(60, 300.0), [300.0] * 24 + [100.0] * 48
    found = build_outlook(
        hourly(np.repeat(days, 24)), ahead(hours, now_s=NOW_S), now_s=NOW_S, period_s=HOUR_S, horizon_s=5 * DAY_S
    )
    assert found is not None
    assert (found.foreseen_s, found.timed_s) == (3 * DAY_S, 3 * DAY_S)
    timed = found.timed()
    assert timed is not None
    assert timed.values.tolist() == hours
    assert timed.durations_s.sum() == pytest.approx(3 * DAY_S)


@pytest.mark.parametrize("horizon_s", [600.0, HOUR_S, DAY_S])
def test_an_outlook_within_the_forecast_is_timed_throughout(horizon_s: float) -> None:
    assert after(np.full(60, 300.0), 250.0, horizon_s=horizon_s).timed() is None
