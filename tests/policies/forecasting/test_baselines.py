"""What forecasts are compared with."""

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.forecasting.baselines import chase_linear, held, same_time_yesterday
from policies.forecasting.series import Series, past_of, series_of
from tests.policies.forecasting.grids import grid, weather


def series(values: NDArray[np.float64]) -> Series:
    signal = grid(values)
    past = past_of(signal, signal.ends_s)
    assert past is not None
    return series_of(signal, past, max_days=30)


def test_the_last_value_is_held() -> None:
    assert held(series(np.array([1.0, 2.0])), 3).tolist() == [2.0, 2.0, 2.0]


def test_yesterday_comes_again() -> None:
    values = weather(3)
    assert same_time_yesterday(series(values), 30).tolist() == [*values[-24:], *values[-24:-18]]


def test_the_regression_of_chase_finds_what_is_linear() -> None:
    told = series(np.zeros(25))
    phase = told.phase(np.arange(60))
    values = [200.0]
    for step in range(1, 60):
        values.append(100 + 20 * np.sin(phase[step]) - 10 * np.cos(phase[step]) + 0.5 * values[-1])
    told = series(np.array(values[:36]))
    assert chase_linear(told, 24) == pytest.approx(values[36:], rel=1e-3)


def test_the_regression_of_chase_stays_within_bounds() -> None:
    values = 100 * 1.1 ** np.arange(30, dtype=np.float64)
    assert chase_linear(series(values), 24).max() <= 1.3 * values.max()
