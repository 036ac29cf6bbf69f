"""Errors of past forecasts, each whole, against the forecasts themselves."""

import numpy as np
import pytest

from policies.forecasting import ForecasterState, advance
from policies.forecasting.past_errors import N_FORECASTS, rms_errors
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.forecasting.grids import START_S, grid, until, weather

STEP_S = HOUR_S


def test_they_are_those_of_the_forecasts_that_were_verified() -> None:
    """Thirty days hour by hour: what was issued four weeks ago and less, against what came."""
    whole, state = grid(weather(70)), None
    origins_s = START_S + DAY_S * 20 + STEP_S * np.arange(30 * 24)
    issued: dict[float, tuple[float, ...]] = {}
    for now_s in origins_s.tolist():
        state, forecast = advance(state, history=until(whole, now_s), provider_forecast=None, now_s=now_s)
        assert forecast is not None
        issued[now_s] = tuple(forecast.signal.values.tolist())
    assert isinstance(state, ForecasterState)
    assert state.past_errors is not None
    assert len(state.past_errors) == N_FORECASTS
    found = rms_errors(state.past_errors)
    last_s = float(origins_s[-1])
    for lead in (1, 6, 24):
        ends_s = last_s - STEP_S * np.arange(28 * 24 - 1)
        actual = np.array([whole.value_at(end_s - STEP_S / 2) for end_s in ends_s.tolist()])
        estimate = np.array([issued[end_s - lead * STEP_S][lead - 1] for end_s in ends_s.tolist()])
        assert found[lead - 1] == pytest.approx(float(np.sqrt(np.mean((actual - estimate) ** 2))), rel=0.02)
    assert found[0] < found[5] < found[23]
    made_s = state.past.origins_s[-24 * 7]
    assert state.past_errors[-24 * 7] == pytest.approx(
        [(whole.value_at(made_s + STEP_S * (hour + 0.5)) or 0.0) - issued[made_s][hour] for hour in range(24)]
    ), "each is of one forecast"


def test_without_history_there_are_none() -> None:
    whole = grid(weather(3))
    now_s = START_S + 6 * HOUR_S
    state, _ = advance(None, history=until(whole, now_s), provider_forecast=None, now_s=now_s)
    assert isinstance(state, ForecasterState)
    assert state.past_errors is None
