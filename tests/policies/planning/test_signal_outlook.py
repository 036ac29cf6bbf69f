"""The expected signal: known values and a forecast, else the last days, shifted to the present value."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from policies.planning.signal_outlook import (
    DECAY_PER_HOUR,
    MIN_REST_RATIO,
    SignalOutlook,
    build_outlook,
    coarsened,
)
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import grid, hourly, known_by
from tests.policies.planning.decisions import NOW_S, ahead, judged

USUAL = grid("solar", factors=(1.0,))


def seen(
    history: Signal | None, forecast: Signal | None = None, *, horizon_s: float = DAY_S, now_s: float = NOW_S
) -> SignalOutlook | None:
    return build_outlook(history, forecast, now_s=now_s, period_s=300.0, horizon_s=horizon_s)


@given(st.floats(1.0, 20 * DAY_S), st.booleans(), st.integers(0, 40))
def test_it_reaches_exactly_to_the_horizon(horizon_s: float, has_forecast: bool, n_known: int) -> None:
    forecast = ahead([300.0, *np.linspace(100.0, 500.0, n_known).tolist()]) if has_forecast else None
    found = seen(known_by(USUAL, NOW_S), forecast, horizon_s=horizon_s)
    assert found is not None
    assert found.durations_s.sum() == pytest.approx(horizon_s)
    assert (found.durations_s > 0).all()
    assert np.isfinite(found.values).all()


def test_the_present_comes_first_and_lasts_a_period() -> None:
    found = seen(known_by(USUAL, NOW_S))
    assert found is not None
    assert (found.durations_s[0], found.values[0]) == (300.0, USUAL.value_at(NOW_S))


def test_a_usual_day_is_expected_to_continue() -> None:
    found = seen(known_by(USUAL, NOW_S), horizon_s=6 * HOUR_S)
    assert found is not None
    expected = [USUAL.value_at(NOW_S - DAY_S + hour * HOUR_S) for hour in range(6)]
    assert found.values[1:] == pytest.approx(expected)


def test_todays_deviation_decays() -> None:
    values = USUAL.values.copy()
    now = int(NOW_S // HOUR_S)
    values[now] += 60.0
    found = seen(known_by(hourly(values), NOW_S), horizon_s=12 * HOUR_S)
    assert found is not None
    usual = np.array([USUAL.value_at(NOW_S - DAY_S + hour * HOUR_S) for hour in range(12)], dtype=np.float64)
    excess = np.minimum(usual + 60.0 * DECAY_PER_HOUR ** np.arange(12), max(values[now], USUAL.values.max()))
    assert found.values[1:] == pytest.approx(excess)


def test_beyond_a_day_the_hour_is_unknown() -> None:
    found = seen(known_by(USUAL, NOW_S), horizon_s=10 * DAY_S)
    assert found is not None
    assert found.mean == pytest.approx(USUAL.values.mean(), rel=0.01)


@given(st.integers(1, 14), st.integers(0, 99))
def test_many_days_are_pooled(n_days: int, seed: int) -> None:
    noisy = hourly(np.random.default_rng(seed).normal(300.0, 100.0, int(NOW_S // HOUR_S) + 1))
    history = known_by(noisy, NOW_S).between(NOW_S - n_days * DAY_S, NOW_S + HOUR_S)
    day, month = seen(history), seen(history, horizon_s=30 * DAY_S)
    assert day is not None
    assert month is not None
    durations_s, values = (each[len(day.values) :] for each in (month.durations_s, month.values))
    past = history.values[:-1]
    assert len(values) == min(24 * n_days, 48)
    assert values @ durations_s / durations_s.sum() == pytest.approx(past.mean())
    assert np.sqrt((values - past.mean()) ** 2 @ durations_s / durations_s.sum()) == pytest.approx(past.std(), rel=0.05)


def test_a_forecast_is_used_to_its_end() -> None:
    found = seen(known_by(USUAL, NOW_S), ahead([300.0, 111.0, 222.0]), horizon_s=3 * HOUR_S)
    assert found is not None
    assert found.values.tolist() == [300.0, 300.0, 111.0, 222.0]
    assert found.durations_s.tolist() == [300.0, 3_300.0, 3_600.0, 3_600.0]


LATER = ahead([500.0] * 24, now_s=NOW_S + HOUR_S, source="api+regression")


@given(st.floats(0.0, HOUR_S - 900.0), st.floats(60.0, 23 * HOUR_S))
def test_known_values_precede_the_forecast(at_s: float, horizon_s: float) -> None:
    current, now_s = judged(at_s, LATER), NOW_S + at_s
    assert current.forecast is not None
    assert current.forecast.starts_s[0] == NOW_S + HOUR_S
    found = seen(current.history, current.forecast, now_s=now_s, horizon_s=horizon_s)
    assert found is not None
    known_s = min(HOUR_S - at_s, horizon_s)
    assert found.durations_s[found.values == 100.0].sum() == pytest.approx(known_s, abs=0.1)
    assert found.durations_s[found.values == 500.0].sum() == pytest.approx(horizon_s - known_s, abs=0.1)
    assert found.durations_s.sum() == pytest.approx(horizon_s)
    assert found.foreseen_s == pytest.approx(horizon_s)
    assert sorted(found.values) == found.values.tolist()


def test_a_held_value_precedes_the_forecast() -> None:
    """At the end of an hour the value is held for a while, and the forecast begins after that."""
    current = judged(HOUR_S - 100.0, LATER)
    found = seen(current.history, current.forecast, now_s=NOW_S + HOUR_S - 100.0, horizon_s=HOUR_S)
    assert found is not None
    assert found.durations_s[found.values == 100.0].sum() == pytest.approx(900.0)
    assert found.durations_s[found.values == 500.0].sum() == pytest.approx(HOUR_S - 900.0)
    assert found.foreseen_s == pytest.approx(HOUR_S)


@given(st.floats(0.0, 3 * HOUR_S), st.floats(0.0, 3 * HOUR_S - 1.0))
def test_foreseen_ends_at_a_gap_before_the_forecast(hole_s: float, at_s: float) -> None:
    """The gap counts as unknown hours, and later values are not foreseen."""
    current = judged(at_s, replace(LATER, starts_s=LATER.starts_s + hole_s, ends_s=LATER.ends_s + hole_s))
    history, forecast, now_s = current.history, current.forecast, NOW_S + at_s
    assert history is not None
    assert forecast is not None
    found = seen(history, forecast, now_s=now_s, horizon_s=12 * HOUR_S)
    assert found is not None
    assert found.durations_s.sum() == pytest.approx(12 * HOUR_S)
    assert (found.durations_s > 0).all()
    known_s = max(history.ends_s - now_s, 300.0)
    is_whole = forecast.starts_s[0] - now_s - known_s <= MIN_REST_RATIO * (12 * HOUR_S - 300.0)
    assert found.foreseen_s == pytest.approx(12 * HOUR_S if is_whole else known_s, abs=0.1)
    assert found.durations_s[found.values == 100.0].sum() == pytest.approx(known_s, abs=0.1)


def test_a_missing_value_is_a_gap() -> None:
    values = [300.0] * (14 * 288) + [100.0] * 6 + [np.nan] + [100.0] * 5
    history = ahead(values, now_s=NOW_S - 14 * DAY_S, step_s=300.0, source="api")
    found = seen(history, LATER, horizon_s=2 * HOUR_S)
    assert found is not None
    assert found.durations_s[found.values == 100.0].sum() == HOUR_S - 300.0
    assert found.durations_s[found.values == 500.0].sum() == HOUR_S
    assert found.durations_s[found.values == 300.0].sum() == pytest.approx(300.0)
    assert found.foreseen_s == 1_800.0


def test_a_past_forecast_leaves_the_known_values() -> None:
    found = seen(judged(0.0, LATER).history, LATER.between(0.0, 0.0), horizon_s=HOUR_S)
    assert found is not None
    assert found.values.tolist() == [100.0, 100.0]
    assert found.foreseen_s == HOUR_S


def test_persistence_is_no_forecast() -> None:
    held = ahead([300.0], source="persistence")
    with_it, without = seen(known_by(USUAL, NOW_S), held), seen(known_by(USUAL, NOW_S))
    assert with_it is not None
    assert without is not None
    assert with_it.values[0] == 300.0
    assert len(with_it.values) == len(without.values)


def test_less_than_a_day_needs_a_forecast() -> None:
    young = known_by(USUAL, NOW_S).between(NOW_S - 5 * HOUR_S, NOW_S + HOUR_S)
    assert seen(young) is None
    assert seen(young, ahead([300.0] * 5, source="persistence")) is None
    found = seen(young, ahead([300.0, 100.0]), horizon_s=10 * HOUR_S)
    assert found is not None
    assert set(found.values) == {300.0, 100.0}


def without(hole: NDArray[np.bool_]) -> Signal:
    """Return the usual days without the hours of a gap; the present is known."""
    history = known_by(USUAL, NOW_S)
    hole[-1] = False
    return replace(history, values=np.where(hole, np.nan, history.values))


def test_an_hour_missing_on_all_days_is_left_out() -> None:
    n = len(known_by(USUAL, NOW_S))
    found = seen(without(np.arange(n) % 24 == 15))
    assert found is not None
    assert np.isfinite(found.values).all()
    assert (found.durations_s > 0).all()


def test_days_missing_a_fifth_of_the_hours_are_unused() -> None:
    n = len(known_by(USUAL, NOW_S))
    assert seen(without(np.arange(n) % 2 == 0)) is None
    assert seen(without(np.arange(n) % 24 < 5)) is None


@given(st.floats(0.0, 0.45), st.integers(0, 99))
def test_scattered_missing_hours_are_filled(share: float, seed: int) -> None:
    whole, hole = seen(known_by(USUAL, NOW_S)), np.random.default_rng(seed).random(len(known_by(USUAL, NOW_S))) < share
    found = seen(without(hole))
    assert whole is not None
    assert found is not None
    assert found.values == pytest.approx(whole.values)


@pytest.mark.parametrize("ago_days", [1, 5, 9])
def test_empty_days_are_left_out(ago_days: int) -> None:
    n = len(known_by(USUAL, NOW_S))
    ago = np.arange(n)[::-1] // 24
    found, whole = seen(without((ago >= ago_days) & (ago < ago_days + 4))), seen(known_by(USUAL, NOW_S))
    assert whole is not None
    assert found is not None
    assert found.values == pytest.approx(whole.values)


def test_an_unknown_present_has_no_outlook() -> None:
    assert seen(USUAL.between(0.0, NOW_S - HOUR_S)) is None
    assert seen(None) is None


@given(
    st.floats(0.0, DAY_S),
    st.lists(st.sampled_from([60.0, 300.0, 900.0, 1_800.0, HOUR_S]) | st.floats(1.0, 2 * HOUR_S), min_size=1),
    st.integers(0, 5),
    st.integers(1, 30),
)
def test_a_coarse_outlook_has_few_values_and_the_same_means(
    at_s: float, durations_s: list[float], n_late: int, max_timed: int
) -> None:
    n_timed = max(len(durations_s) - n_late, 1)
    durations = np.array(durations_s, dtype=np.float64)
    values = np.array([n % 7 - 1.0 for n in range(len(durations))])
    fine = SignalOutlook(durations, values, timed_s=float(durations[:n_timed].sum()))
    coarse = coarsened(fine, now_s=NOW_S + at_s, max_timed=max_timed)
    n_late = len(durations) - n_timed
    assert len(coarse.values) - n_late <= 1 + max_timed
    assert (coarse.durations_s[0], coarse.values[0]) == pytest.approx((fine.durations_s[0], fine.values[0]))
    assert coarse.values[len(coarse.values) - n_late :] == pytest.approx(fine.values[n_timed:])
    assert coarse.durations_s.sum() == pytest.approx(durations.sum())
    assert coarse.mean == pytest.approx(fine.mean, abs=1e-9)
    assert (coarse.timed_s, coarse.foreseen_s) == (fine.timed_s, fine.foreseen_s)


@pytest.mark.parametrize("at_s", [0.0, 600.0, 3_599.0])
def test_hours_are_coarse_enough_and_quarters_of_one_are_its_mean(at_s: float) -> None:
    now_s, hours = NOW_S + at_s, ahead(np.arange(48.0).tolist())
    quarters = replace(
        hours,
        starts_s=(hours.starts_s[:, None] + 900.0 * np.arange(4)).ravel(),
        values=np.repeat(hours.values, 4) + np.tile([-9.0, 9.0, 9.0, -9.0], 48),
        estimated=np.repeat(hours.estimated, 4),
    )
    of_hours, of_quarters = (seen(None, each, now_s=now_s, horizon_s=DAY_S) for each in (hours, quarters))
    assert of_hours is not None
    assert of_quarters is not None
    same, merged = coarsened(of_hours, now_s=now_s), coarsened(of_quarters, now_s=now_s)
    assert same.values == pytest.approx(of_hours.values)
    assert merged.durations_s == pytest.approx(same.durations_s)
    assert merged.values[2:-1] == pytest.approx(same.values[2:-1])
