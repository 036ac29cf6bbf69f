"""Forecasts of a signal from its own history, with bands, and beside what a provider forecasts."""

from policies.forecasting.forecast import MAX_LAG_S, Forecast
from policies.forecasting.forecaster import ForecasterState, advance, begin
from policies.forecasting.persistence import MAX_AGE_S, persistence

__all__ = ["MAX_AGE_S", "MAX_LAG_S", "Forecast", "ForecasterState", "advance", "begin", "persistence"]
