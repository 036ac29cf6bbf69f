"""The grid message for dashboards: history, forecast with its interval, and the state of both."""

from typing import Final, Literal

import numpy as np

from controller.ports import Provenance
from controller.signal.source_state import SourceState
from policies.forecasting import Forecast
from policies.vocabulary.freshness import CurrentSignal, Freshness
from policies.vocabulary.signal import Signal
from publishers.messages.reports import GridSignal, SignalValue

MAX_SOURCE = 200
MAX_DETAIL = 1_000
MAX_PUBLISHED = 1_000
"""A dashboard shows the last days and the next one, not two months of five-minute steps."""

_STATES: Final[dict[Freshness, Literal["fresh", "held", "forecast", "stale"]]] = {
    Freshness.FRESH: "fresh",
    Freshness.HELD: "held",
    Freshness.FORECAST: "forecast",
    Freshness.STALE: "stale",
    Freshness.ABSENT: "stale",  # never published: without any history there is no message
}


def build_grid_message(
    current: CurrentSignal, state: SourceState, provenance: Provenance, *, now_s: float
) -> GridSignal | None:
    """Return the message, or None while nothing is known."""
    history, forecast = current.history, current.forecast
    if history is None or history.kind == "energy" or not len(history):
        return None
    series = history.joined(forecast) if forecast is not None and len(forecast) else history
    known = np.flatnonzero(np.isfinite(series.values))[-MAX_PUBLISHED:]
    return GridSignal(
        source=history.source[:MAX_SOURCE],
        zone=history.zone,
        kind=history.kind,
        unit=history.unit,
        issued_at_s=history.issued_at_s,
        state=_STATES[current.freshness],
        detail=provenance.detail[:MAX_DETAIL] or None,
        age_s=current.age_s,
        values=[_entry(series, int(i), state.forecast) for i in known],
        forecast_from_s=float(forecast.starts_s[0]) if forecast is not None and len(forecast) else None,
        known_until_s=_finite_s(current.known_until_s),
        value=history.value_at(now_s),
        time_s=now_s,
    )


def _finite_s(time_s: float | None) -> float | None:
    """Return a time as JSON can carry it: an infinite one becomes None."""
    return time_s if time_s is not None and np.isfinite(time_s) else None


def _entry(series: Signal, index: int, forecast: Forecast | None) -> SignalValue:
    """Return one value, with its interval if it is our own forecast."""
    starts_s, value = float(series.starts_s[index]), float(series.values[index])
    lower, upper = _interval(forecast, starts_s, value) if series.estimated[index] else (None, None)
    return SignalValue(
        starts_s=starts_s, value=value, estimated=bool(series.estimated[index]), lower=lower, upper=upper
    )


def _interval(forecast: Forecast | None, starts_s: float, value: float) -> tuple[float | None, float | None]:
    """Return the interval of a value; (None, None) if it is not our own forecast, or has none yet."""
    if forecast is None or forecast.signal.value_at(starts_s) != value:
        return None, None
    index = int(np.searchsorted(forecast.signal.starts_s, starts_s, side="right")) - 1
    lower, upper = float(forecast.lower[index]), float(forecast.upper[index])
    return (None, None) if np.isnan(lower) or np.isnan(upper) else (lower, upper)
