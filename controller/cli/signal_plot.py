"""The signal as a plot of the terminal: the last three days, and the forecast of the next one with its band."""

from typing import Final

import numpy as np
import plotille

from policies.forecasting import Forecast
from policies.signal import Signal

HOUR_S: Final = 3_600.0
BACK_H: Final = 72.0
AHEAD_H: Final = 24.0
WIDTH: Final = 80
"""Characters; the ticks of the axis are ten apart, which makes 12 hours."""
HEIGHT: Final = 14
_MARGIN: Final = 0.05


def draw_signal(known: Signal, forecast: Forecast | None, *, now_s: float, in_colour: bool) -> str:
    """Return the plot, 17 lines; times are hours from now, what is missing stays empty."""
    figure = plotille.Figure()
    figure.width, figure.height = WIDTH, HEIGHT
    figure.with_colors, figure.color_mode, figure.origin = in_colour, "names", False
    figure.x_label, figure.y_label = "h from now", known.unit
    figure.x_ticks_fkt = lambda low, _: f"{low:+.0f}"
    figure.y_ticks_fkt = lambda low, _: f"{low:.4g}"
    low, high = _bounds(known, forecast, now_s)
    figure.set_x_limits(min_=-BACK_H, max_=AHEAD_H)
    figure.set_y_limits(min_=low, max_=high)
    for times_h, values in _stretches(known, now_s):
        figure.plot(times_h, values, lc="green")
    if forecast is not None:
        _draw_forecast(figure, forecast, now_s)
    figure.axvline(BACK_H / (BACK_H + AHEAD_H), lc="white")
    return str(figure.show(legend=False))


def _draw_forecast(figure: "plotille.Figure", forecast: Forecast, now_s: float) -> None:
    """Draw the estimate as a line and its band as dots, a pair an hour."""
    times_h = (forecast.signal.starts_s - now_s) / HOUR_S
    inside = times_h <= AHEAD_H
    figure.plot(times_h[inside].tolist(), forecast.signal.values[inside].tolist(), lc="cyan")
    step = max(1, round(1.0 / float(np.diff(times_h).min()))) if len(times_h) > 1 else 1
    for edge in (forecast.lower, forecast.upper):
        shown = inside & np.isfinite(edge)
        figure.scatter(times_h[shown][::step].tolist(), edge[shown][::step].tolist(), lc="blue")


def _stretches(known: Signal, now_s: float) -> list[tuple[list[float], list[float]]]:
    """Return (hours from now, values) of each stretch without a gap, so that no line bridges one."""
    seen = known.between(now_s - BACK_H * HOUR_S, now_s + AHEAD_H * HOUR_S)
    times_h = (seen.starts_s - now_s) / HOUR_S
    is_known = np.isfinite(seen.values)
    cuts = np.flatnonzero(np.diff(is_known.astype(np.int8))) + 1
    parts = zip(np.split(times_h, cuts), np.split(seen.values, cuts), np.split(is_known, cuts), strict=True)
    return [(t.tolist(), v.tolist()) for t, v, k in parts if len(k) and k[0]]


def _bounds(known: Signal, forecast: Forecast | None, now_s: float) -> tuple[float, float]:
    """Return the lowest and the highest value to be shown, with a margin."""
    shown = [known.between(now_s - BACK_H * HOUR_S, now_s + AHEAD_H * HOUR_S).values]
    if forecast is not None:
        shown += [forecast.signal.values, forecast.lower, forecast.upper]
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = _MARGIN * (high - low) or abs(high) * _MARGIN or 1.0
    return low - margin, high + margin
