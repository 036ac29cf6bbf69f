"""Policies: power limits, profiling, batch sizes and forecasts as pure functions; signal providers; their service."""
