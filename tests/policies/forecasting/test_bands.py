"""Prediction bands: quantiles of errors, and a width that follows what is covered."""

import numpy as np
import pytest

from policies.forecasting import bands
from policies.forecasting.bands import Bands, no_bands
from policies.forecasting.record import Outcome

NAN = float("nan")


def outcome(actual: float, *, issued: float = 100.0, band: tuple[float, float] = (NAN, NAN), lead: int = 0) -> Outcome:
    return Outcome(
        lead=np.array([lead]),
        members=np.full((1, 1), issued),
        given=np.array([NAN]),
        issued=np.array([issued]),
        band=np.array(band)[:, None],
        actual=np.array([actual]),
    )


def after(errors: list[float]) -> Bands:
    learned = no_bands(2)
    for error in errors:
        learned = bands.learned(learned, outcome(100.0 + error))
    return learned


def test_a_band_reaches_from_the_5_to_the_95_percent_quantile_of_the_errors() -> None:
    learned = after([float(error) for error in range(1, 100)])  # of 99 errors the next one lies below the 5th in 5 %
    assert bands.offsets(learned)[:, 0] == pytest.approx([5.0, 95.0])


def test_a_lead_without_errors_has_no_band() -> None:
    learned = after([1.0] * (bands.MIN_ERRORS - 1))
    assert np.isnan(bands.offsets(learned)).all()
    assert np.isnan(bands.offsets(after([1.0] * bands.MIN_ERRORS))[:, 1]).all()


def test_the_oldest_errors_are_forgotten() -> None:
    learned = after([1000.0] * 50 + [1.0] * bands.N_ERRORS)
    assert bands.offsets(learned)[:, 0] == pytest.approx([1.0, 1.0])
    assert learned.errors.shape == (2, bands.N_ERRORS)


def test_a_miss_stretches_its_side_and_hits_shrink_both() -> None:
    learned = after([float(error) for error in range(-50, 50)])
    narrow = bands.offsets(learned)[:, 0]
    missed = bands.learned(learned, outcome(200.0, band=(90.0, 110.0)))
    assert missed.stretch[:, 0] == pytest.approx(bands.GAIN_RATIO * np.array([-0.05, 0.95]))
    assert bands.offsets(missed)[1, 0] > narrow[1]
    hit = bands.learned(learned, outcome(100.0, band=(90.0, 110.0)))
    assert bands.offsets(hit)[0, 0] > narrow[0]
    assert bands.offsets(hit)[1, 0] < narrow[1]


def test_what_was_not_issued_teaches_nothing() -> None:
    learned = bands.learned(no_bands(2), outcome(100.0, issued=NAN))
    assert learned.n_errors.tolist() == [0, 0]
    assert np.isnan(learned.errors).all()


@pytest.mark.parametrize("seed", range(3))
def test_nine_of_ten_are_covered_though_the_noise_grows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    learned, covered = no_bands(1), []
    for index in range(3_000):
        low, high = bands.offsets(learned)[:, 0]
        actual = 100 + (1 + index / 500) * rng.standard_t(4)
        if not np.isnan(low):
            covered.append(100 + low <= actual <= 100 + high)
        learned = bands.learned(learned, outcome(actual, band=(100 + low, 100 + high)))
    assert np.mean(covered) == pytest.approx(0.9, abs=0.01)


def test_the_bands_with_more_errors_count() -> None:
    few, many = after([1.0] * 3), after([2.0] * 30)
    for one, other in ((few, many), (many, few)):
        assert bands.fuller(one, other).n_errors.tolist() == [30, 0]
        assert bands.offsets(bands.fuller(one, other))[:, 0] == pytest.approx([2.0, 2.0])
