"""Climatologies: the usual value at the time of the day."""

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.forecasting.climatology import Climatologies, fit_climatologies
from tests.policies.forecasting.grids import series, weather

OF_LATE, OF_A_MONTH, YESTERDAY = range(3)


def climate(values: NDArray[np.float64]) -> Climatologies:
    return fit_climatologies(series(values))


def test_repeating_days_have_no_anomaly() -> None:
    day = np.arange(1.0, 25.0)
    usual = climate(np.tile(day, 10))
    assert usual.anomaly == pytest.approx(np.zeros((3, 240)))
    assert usual.ahead(30)[OF_LATE] == pytest.approx(np.tile(day, 2)[:30])


def test_the_short_window_weights_recent_days_more() -> None:
    usual = climate(np.repeat([100.0, 200.0], 24)).ahead(1)[:, 0]
    ages = 0.5 ** (np.array([2, 1]) / 5.0)
    assert usual == pytest.approx([np.average([100.0, 200.0], weights=ages), 150.0, 200.0])


def test_missing_values_are_not_averaged() -> None:
    values = np.repeat([100.0, 200.0, 300.0], 24)
    values[24:48] = np.nan
    assert climate(values).ahead(1)[OF_A_MONTH, 0] == pytest.approx(200.0)


def test_a_climatology_uses_earlier_days_only() -> None:
    values = weather(9)
    changed = values.copy()
    changed[120:] += 50
    n = 120 + 24
    assert climate(values).values[OF_LATE, : n - 24] == pytest.approx(climate(changed).values[OF_LATE, : n - 24])
    assert climate(values).values[YESTERDAY, 120 : n - 1] == pytest.approx(values[96 : n - 25])


def test_the_last_days_equal_those_of_the_whole() -> None:
    gridded = series(weather(9.5))
    whole, last = fit_climatologies(gridded), fit_climatologies(gridded, n_last_days=3)
    assert last.values == pytest.approx(whole.values[:, -4 * 24 :])
    assert last.anomaly == pytest.approx(whole.anomaly[:, -3 * 24 :])
