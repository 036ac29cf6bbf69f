"""Prediction intervals: quantiles of errors scaled by the hour of the day, and a width that follows the coverage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from policies.forecasting.prediction_intervals import (
    GAIN_RATIO,
    HOURLY_GAIN_RATIO,
    MAX_HOURLY_STRETCH,
    MAX_STRETCH,
    MIN_ERRORS,
    N_ERRORS,
    N_HOURS,
    PredictionIntervals,
    interval_ends,
    intervals_of_errors,
    no_intervals,
    update_intervals,
    usual_errors,
    with_more_errors,
)
from policies.forecasting.track_record import VerifiedForecasts
from policies.vocabulary.units import DAY_S, HOUR_S

NAN = float("nan")
WINDOW = N_HOURS * N_ERRORS


def verified(
    actual: float,
    *,
    hour: int = 0,
    issued: float = 100.0,
    interval: tuple[float, float] = (NAN, NAN),
    lead: int = 0,
) -> VerifiedForecasts:
    return VerifiedForecasts(
        lead=np.array([lead]),
        members=np.full((1, 1), issued),
        provider=np.array([NAN]),
        issued=np.array([issued]),
        interval=np.array(interval)[:, None],
        actual=np.array([actual]),
        times_s=np.array([3 * DAY_S + (hour + 0.5) * HOUR_S]),
    )


def after(errors: list[float]) -> PredictionIntervals:
    """Return the intervals after errors at the first of two leads, one an hour."""
    intervals = no_intervals(2)
    for number, error in enumerate(errors):
        intervals = update_intervals(intervals, verified(100.0 + error, hour=number % N_HOURS))
    return intervals


def walked(
    rng: np.random.Generator, n_days: int, sd_by_hour: NDArray[np.float64], growth_a_day: float = 0.0
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Forecast noise an hour ahead; return which values were covered, and the widths, both of shape (days, 24)."""
    intervals = no_intervals(1)
    covered, widths = np.zeros((n_days, N_HOURS), dtype=np.bool_), np.full((n_days, N_HOURS), np.nan)
    for day in range(n_days):
        for hour in range(N_HOURS):
            low, high = interval_ends(intervals)[:, 0, hour]
            actual = 100 + sd_by_hour[hour] * (1 + growth_a_day * day) * rng.standard_normal()
            covered[day, hour], widths[day, hour] = 100 + low <= actual <= 100 + high, high - low
            intervals = update_intervals(intervals, verified(actual, hour=hour, interval=(100 + low, 100 + high)))
    return covered, widths


def test_errors_of_one_size_span_their_5_to_95_percent_quantiles() -> None:
    rng = np.random.default_rng(1)
    errors = rng.permuted(np.linspace(-1, 1, N_ERRORS)[:, None].repeat(N_HOURS, axis=1), axis=0)
    ends = interval_ends(after(errors.ravel().tolist()))[:, 0]
    assert ends == pytest.approx(np.array([-0.93, 0.93])[:, None].repeat(N_HOURS, axis=1), abs=0.01)


def test_hours_with_large_errors_have_wide_intervals() -> None:
    sd = np.where((np.arange(N_HOURS) >= 5) & (np.arange(N_HOURS) < 9), 20.0, 2.0)
    rng = np.random.default_rng(2)
    widths = np.diff(interval_ends(after((np.tile(sd, N_ERRORS) * rng.normal(size=WINDOW)).tolist())), axis=0)[0, 0]
    assert widths[5:9].mean() == pytest.approx(2 * 1.645 * 20, rel=0.2)
    assert widths[12:].mean() == pytest.approx(2 * 1.645 * 2, rel=0.2)


def test_with_little_history_every_hour_is_usual() -> None:
    errors = np.full((1, N_HOURS, N_ERRORS), NAN)
    errors[0, 6, 0], errors[0, 7, 0] = 3.0, -1.0
    usual = usual_errors(errors)[0]
    assert usual[18] == pytest.approx(2.0)  # nothing near it is known: the mean of the day
    assert 1.0 < usual[7] < 2.0 < usual[6] < 3.0


def test_a_lead_with_few_errors_has_no_interval() -> None:
    assert np.isnan(interval_ends(after([1.0] * (MIN_ERRORS - 1)))).all()
    ends = interval_ends(after([1.0] * MIN_ERRORS))
    assert not np.isnan(ends[:, 0]).any()
    assert np.isnan(ends[:, 1]).all()


def test_the_oldest_errors_are_forgotten() -> None:
    intervals = after([1000.0] * N_HOURS + [1.0] * WINDOW)
    assert interval_ends(intervals)[:, 0] == pytest.approx(np.ones((2, N_HOURS)))
    assert intervals.errors.shape == (2, N_HOURS, N_ERRORS)


def test_a_miss_widens_its_side_most_at_its_hour_and_a_hit_narrows_both() -> None:
    intervals = after([float(error) for error in range(-50, 50)])
    before = interval_ends(intervals)[:, 0]
    missed = update_intervals(intervals, verified(200.0, hour=5, interval=(90.0, 110.0)))
    assert missed.stretch[:, 0] == pytest.approx(GAIN_RATIO * np.array([-0.05, 0.95]))
    assert missed.hourly_stretch[:, 0, 5] == pytest.approx(HOURLY_GAIN_RATIO * np.array([-0.05, 0.95]))
    assert np.count_nonzero(missed.hourly_stretch) == 2
    assert interval_ends(missed)[1, 0, 5] > before[1, 5]
    hit = update_intervals(intervals, verified(100.0, hour=5, interval=(90.0, 110.0)))
    assert (hit.stretch[:, 0] < 0).all()
    assert (hit.hourly_stretch[:, 0, 5] < 0).all()


def test_unissued_forecasts_have_no_errors() -> None:
    intervals = update_intervals(no_intervals(2), verified(100.0, issued=NAN))
    assert intervals.n_errors.tolist() == [0, 0]
    assert np.isnan(intervals.errors).all()


@pytest.mark.parametrize("seed", range(2))
def test_coverage_holds_as_noise_grows(seed: int) -> None:
    covered, _ = walked(np.random.default_rng(seed), 125, np.ones(N_HOURS), growth_a_day=0.05)
    assert covered[2:].mean() == pytest.approx(0.9, abs=0.015)


def test_coverage_holds_at_each_hour() -> None:
    sd = 1 + 9 * np.exp(-((np.arange(N_HOURS) - 7.0) ** 2) / 2)
    covered, widths = walked(np.random.default_rng(3), 330, sd)
    by_hour = covered[30:].mean(axis=0)
    assert by_hour.min() > 0.85
    assert by_hour.max() < 0.95
    assert widths[30:].mean() == pytest.approx(2 * 1.645 * sd.mean(), rel=0.06)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.floats(1e-6, 1e6), st.integers(0, WINDOW))
def test_intervals_scale_with_the_errors(seed: int, factor: float, n_known: int) -> None:
    rng = np.random.default_rng(seed)
    errors = rng.standard_t(3, size=(WINDOW, 2))
    errors[rng.permutation(WINDOW)[n_known:]] = NAN
    hours = (np.arange(WINDOW)[:, None] + np.array([0, 5])) % N_HOURS
    one = interval_ends(intervals_of_errors(errors, hours))
    assert interval_ends(intervals_of_errors(factor * errors, hours)) == pytest.approx(
        factor * one, rel=1e-3, nan_ok=True
    )
    known = ~np.isnan(one[0])
    assert (one[0][known] <= one[1][known]).all()


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 23), st.floats(-1e3, 1e3)), min_size=1, max_size=200))
def test_a_stretch_is_bounded(errors: list[tuple[int, float]]) -> None:
    intervals = no_intervals(1)
    for hour, error in errors:
        low, high = interval_ends(intervals)[:, 0, hour]
        intervals = update_intervals(intervals, verified(error, hour=hour, issued=0.0, interval=(low, high)))
    assert np.abs(intervals.stretch).max() <= MAX_STRETCH
    assert np.abs(intervals.hourly_stretch).max() <= MAX_HOURLY_STRETCH


def test_known_errors_are_as_if_learned_one_by_one() -> None:
    rng = np.random.default_rng(4)
    errors = rng.normal(size=(100, 1))
    hours = (np.arange(100)[:, None] + 9) % N_HOURS
    learned = no_intervals(1)
    for error, hour in zip(errors[:, 0], hours[:, 0], strict=True):
        learned = update_intervals(learned, verified(100 + error, hour=int(hour)))
    assert interval_ends(intervals_of_errors(errors, hours)) == pytest.approx(interval_ends(learned))


def test_the_intervals_with_more_errors_win() -> None:
    few, many = after([1.0] * 3), after([2.0] * 30)
    for one, other in ((few, many), (many, few)):
        assert with_more_errors(one, other).n_errors.tolist() == [30, 0]
        assert interval_ends(with_more_errors(one, other))[:, 0] == pytest.approx(np.full((2, N_HOURS), 2.0))
