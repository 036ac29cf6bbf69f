"""The forecaster: refits when due, learns from what has come true, forecasts."""

from dataclasses import dataclass, replace

import numpy as np

from policies.forecasting.forecast import MAX_LAG_S, Forecast
from policies.signal import ESTIMATED, Signal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecasterState:
    """What is remembered between two forecasts."""


def begin() -> ForecasterState:
    """Return a state that has seen nothing."""
    return ForecasterState()


def advance(
    state: ForecasterState, *, history: Signal, given: Signal | None, now_s: float, horizon_s: float = 86_400.0
) -> tuple[ForecasterState, Forecast | None]:
    """Return the state after a look at the history, and the forecast, or None where nothing can be said.

    Args:
        state: what `begin` or the last call returned.
        history: what is known; what starts after `now_s` is not looked at.
        given: what the provider itself forecasts, or None.
        now_s: Unix time [s].
        horizon_s: how far from now the forecast reaches [s].
    """
    del given
    known = np.flatnonzero(~np.isnan(history.values) & (history.starts_s <= now_s))
    if not len(known) or history.age_s(now_s) > MAX_LAG_S:
        return state, None
    last = known[-1]
    end_s = float(np.append(history.starts_s, history.ends_s)[last + 1])
    step_s = float(np.median(np.diff(history.starts_s))) if len(history) > 1 else 3_600.0
    starts_s = np.arange(end_s, now_s + horizon_s, step_s, dtype=np.float64)
    if not len(starts_s):
        return state, None
    signal = replace(
        history,
        source="persistence",
        starts_s=starts_s,
        values=np.full(len(starts_s), history.values[last]),
        ends_s=now_s + horizon_s,
        issued_at_s=now_s,
        estimated=ESTIMATED,
    )
    unknown = np.full(len(starts_s), np.nan)
    return state, Forecast(signal=signal, lower=unknown, upper=unknown)
