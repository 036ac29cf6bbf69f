"""Prediction intervals: quantiles of errors, and a width that follows the coverage."""

import numpy as np
import pytest

from policies.forecasting.prediction_intervals import (
    GAIN_RATIO,
    MIN_ERRORS,
    N_ERRORS,
    PredictionIntervals,
    interval_offsets,
    no_intervals,
    update_intervals,
    with_more_errors,
)
from policies.forecasting.track_record import VerifiedForecasts

NAN = float("nan")


def verified(
    actual: float, *, issued: float = 100.0, interval: tuple[float, float] = (NAN, NAN), lead: int = 0
) -> VerifiedForecasts:
    return VerifiedForecasts(
        lead=np.array([lead]),
        members=np.full((1, 1), issued),
        provider=np.array([NAN]),
        issued=np.array([issued]),
        interval=np.array(interval)[:, None],
        actual=np.array([actual]),
    )


def after(errors: list[float]) -> PredictionIntervals:
    intervals = no_intervals(2)
    for error in errors:
        intervals = update_intervals(intervals, verified(100.0 + error))
    return intervals


def test_an_interval_spans_the_5_to_95_percent_quantiles() -> None:
    intervals = after([float(error) for error in range(1, 100)])  # of 99 errors the next one lies below the 5th in 5 %
    assert interval_offsets(intervals)[:, 0] == pytest.approx([5.0, 95.0])


def test_a_lead_with_few_errors_has_no_interval() -> None:
    intervals = after([1.0] * (MIN_ERRORS - 1))
    assert np.isnan(interval_offsets(intervals)).all()
    assert np.isnan(interval_offsets(after([1.0] * MIN_ERRORS))[:, 1]).all()


def test_the_oldest_errors_are_forgotten() -> None:
    intervals = after([1000.0] * 50 + [1.0] * N_ERRORS)
    assert interval_offsets(intervals)[:, 0] == pytest.approx([1.0, 1.0])
    assert intervals.errors.shape == (2, N_ERRORS)


def test_a_miss_widens_its_side_and_a_hit_narrows_both() -> None:
    intervals = after([float(error) for error in range(-50, 50)])
    narrow = interval_offsets(intervals)[:, 0]
    missed = update_intervals(intervals, verified(200.0, interval=(90.0, 110.0)))
    assert missed.stretch[:, 0] == pytest.approx(GAIN_RATIO * np.array([-0.05, 0.95]))
    assert interval_offsets(missed)[1, 0] > narrow[1]
    hit = update_intervals(intervals, verified(100.0, interval=(90.0, 110.0)))
    assert interval_offsets(hit)[0, 0] > narrow[0]
    assert interval_offsets(hit)[1, 0] < narrow[1]


def test_unissued_forecasts_have_no_errors() -> None:
    intervals = update_intervals(no_intervals(2), verified(100.0, issued=NAN))
    assert intervals.n_errors.tolist() == [0, 0]
    assert np.isnan(intervals.errors).all()


@pytest.mark.parametrize("seed", range(3))
def test_coverage_holds_as_noise_grows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    intervals, covered = no_intervals(1), []
    for index in range(3_000):
        low, high = interval_offsets(intervals)[:, 0]
        actual = 100 + (1 + index / 500) * rng.standard_t(4)
        if not np.isnan(low):
            covered.append(100 + low <= actual <= 100 + high)
        intervals = update_intervals(intervals, verified(actual, interval=(100 + low, 100 + high)))
    assert np.mean(covered) == pytest.approx(0.9, abs=0.01)


def test_the_intervals_with_more_errors_win() -> None:
    few, many = after([1.0] * 3), after([2.0] * 30)
    for one, other in ((few, many), (many, few)):
        assert with_more_errors(one, other).n_errors.tolist() == [30, 0]
        assert interval_offsets(with_more_errors(one, other))[:, 0] == pytest.approx([2.0, 2.0])
