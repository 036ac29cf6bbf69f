"""Signals for the tests of forecasts: days that repeat, with weather."""

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.series import Series, build_series, history_extent
from policies.vocabulary.signal import Signal, SignalKind
from policies.vocabulary.units import DAY_S, HOUR_S

START_S = 1_600_000_000.0 // DAY_S * DAY_S


def grid(
    values: NDArray[np.float64] | list[float],
    *,
    step_s: float = HOUR_S,
    start_s: float = START_S,
    kind: SignalKind = "average",
    unit: str = "g/kWh",
    source: str = "grid",
) -> Signal:
    """Return a signal of regular steps."""
    starts_s = start_s + step_s * np.arange(len(values), dtype=np.float64)
    ends_s = start_s + step_s * len(values)
    return Signal(
        kind=kind,
        zone="DE",
        source=source,
        unit=unit,
        starts_s=starts_s,
        values=np.array(values, dtype=np.float64),
        ends_s=ends_s,
        issued_at_s=ends_s,
    )


def series(values: NDArray[np.float64], step_s: float = HOUR_S, *, max_days: int = 60) -> Series:
    """Return values as the regular series that the models are fitted to."""
    signal = grid(values, step_s=step_s)
    extent = history_extent(signal, signal.ends_s)
    assert extent is not None
    return build_series(signal, extent, max_days=max_days)


def weather(n_days: float, *, step_s: float = HOUR_S, seed: int = 1) -> NDArray[np.float64]:
    """Return days of a grid: a daily curve with a dip at noon, and weather that lasts for a day or so."""
    rng = np.random.default_rng(seed)
    n, day = round(n_days * DAY_S / step_s), round(DAY_S / step_s)
    phase = 2 * np.pi * np.arange(n) / day
    share = 0.5 ** (step_s / (12 * HOUR_S))
    noise = rng.normal(size=n) * np.sqrt(1 - share**2)
    state, states = 0.0, []
    for shock in noise:
        state = share * state + shock
        states.append(state)
    return np.asarray(300 + 60 * np.sin(phase) + 25 * np.cos(2 * phase) + 40 * np.array(states), dtype=np.float64)


def until(signal: Signal, now_s: float, *, days: float = 60.0) -> Signal:
    """Return the last days of a signal as they are known at a time."""
    return signal.between(now_s - days * DAY_S, now_s)
