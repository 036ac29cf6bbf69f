"""Forecasts of a signal from its own history, with prediction intervals, combined with the provider's forecast."""

from policies.forecasting.forecaster import MAX_LAG_S, Forecast, ForecasterState, advance, persistence

__all__ = ["MAX_LAG_S", "Forecast", "ForecasterState", "advance", "persistence"]
