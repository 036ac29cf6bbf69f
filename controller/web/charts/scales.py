"""From places on an axis to places in a panel, from 0 to 1; and how far an axis goes."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from controller.web.charts.marks import (
    Axis,
    Band,
    Bars,
    Chart,
    Line,
    Mark,
    NameAxis,
    NumberAxis,
    Points,
    Rule,
    TimeAxis,
)
from controller.web.charts.ticks import Tick, log_ticks, name_ticks, number_text, number_ticks, time_ticks

PADDING_RATIO: Final = 0.05
"""Of the panel, free beyond the data."""
WIDTH_EM: Final = 52.0
"""The usual width of a panel, in letters of its ticks: for what has room there."""
LONE_TIME_S: Final = 3_600.0
"""On either side of a single time."""
_EQUAL_LOG: Final = 1e-9
"""Of two values on a logarithmic axis that are one."""
_FIRST_TIME_S: Final = datetime(1900, 1, 1, tzinfo=UTC).timestamp()
_LAST_TIME_S: Final = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
"""What is beyond, as milliseconds would be, is no time of a training: a gap."""
_HUGE: Final = 1e250
"""Beyond it, sums and the room beside them overflow, and below its inverse those of a logarithmic axis: a gap."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight or logarithmic axis from its lower to its upper end."""

    lower: float
    upper: float
    is_log: bool = False
    is_time: bool = False
    has_names: bool = False

    def place_ratio(self, value: float) -> float:
        """Return where a value is, 0 at the lower end and 1 at the upper; NaN: nowhere."""
        if not is_drawable(value, is_log=self.is_log) or (self.is_time and not is_time(value)):
            return math.nan
        if self.is_log:
            lower_log, upper_log = math.log(self.lower), math.log(self.upper)
            return (math.log(value) - lower_log) / (upper_log - lower_log)
        return (value - self.lower) / (self.upper - self.lower)


def is_drawable(value: float, *, is_log: bool = False) -> bool:
    """Return whether a value has a place on an axis."""
    return abs(value) < _HUGE and (value > 1 / _HUGE or not is_log)  # false for NaN


def is_time(value: float) -> bool:
    """Return whether a time has a place on an axis [Unix s]."""
    return _FIRST_TIME_S <= value <= _LAST_TIME_S  # false for NaN


def x_scale(chart: Chart) -> Scale:
    """Return the scale of all panels' x axis."""
    axis = chart.x_axis
    if isinstance(axis, NameAxis):
        return Scale(-0.5, max(len(axis.names), 1) - 0.5, has_names=True)
    values = (value for panel in chart.panels for mark in panel.marks for value in _x_values(mark))
    if isinstance(axis, NumberAxis):
        return _scale(axis, values, has_room=any(isinstance(m, Points) for panel in chart.panels for m in panel.marks))
    times = [value for value in values if is_time(value)]
    return replace(_scale(NumberAxis(), times, has_room=False, lone_half=LONE_TIME_S), is_time=True)


def y_scale(axis: NumberAxis, marks: Iterable[Mark]) -> Scale:
    """Return the scale of a panel's y axis; an area is filled from 0, so it is on an axis with one."""
    marks = list(marks)
    has_area = any(isinstance(mark, Line) and mark.is_filled for mark in marks)
    values = (value for mark in marks for value in _y_values(mark))
    return _scale(replace(axis, has_zero=axis.has_zero or has_area), values, has_room=True)


def _scale(axis: NumberAxis, values: Iterable[float], *, has_room: bool, lone_half: float = 0.0) -> Scale:
    """Return the scale of some values; `lone_half` is what is shown on either side of a single one."""
    drawn = [float(value) for value in (*values, *axis.ticks) if is_drawable(value, is_log=axis.is_log)]
    low, high = min(drawn, default=1.0), max(drawn, default=10.0 if axis.is_log else 1.0)
    if axis.has_zero and not axis.is_log:
        low, high = min(low, 0.0), max(high, 0.0)
    if axis.is_log:
        span_log = math.log(high) - math.log(low)
        factor = 2.0 if span_log <= _EQUAL_LOG else math.exp(PADDING_RATIO * span_log) if has_room else 1.0
        return Scale(max(low / factor, 1 / _HUGE), min(high * factor, _HUGE), is_log=True)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        half = lone_half or 0.1 * abs(low) or 1.0
        low, high = low - half, high + half
    padding = PADDING_RATIO * (high - low) if has_room else 0.0
    below, above = ((0.0 if axis.has_zero and end == 0 else padding) for end in (low, high))
    return Scale(low - below, high + above)


def _x_values(mark: Mark) -> Iterator[float]:
    match mark:
        case Rule(axis="x"):
            yield mark.value
        case Points():
            yield from (*mark.xs, *mark.lefts, *mark.rights)
        case Line() | Band() | Bars():
            yield from mark.xs
        case _:
            return


def _y_values(mark: Mark) -> Iterator[float]:
    match mark:
        case Rule(axis="y"):
            yield mark.value
        case Line():
            yield from mark.ys
        case Band():
            yield from (*mark.lowers, *mark.uppers)
        case Points():
            yield from (*mark.ys, *mark.lowers, *mark.uppers)
        case Bars():
            yield from (0.0, *mark.ys, *mark.bottoms, *mark.lowers, *mark.uppers)
        case _:
            return


def ticks_of(axis: Axis, scale: Scale, *, n_wanted: int) -> list[Tick]:
    """Return the ticks of an axis."""
    match axis:
        case NameAxis():
            return name_ticks(axis.names, width_em=WIDTH_EM)
        case TimeAxis():
            return time_ticks(scale.lower, scale.upper, axis.zone)
        case NumberAxis(ticks=ticks) if ticks:
            return [Tick(value, number_text(value)) for value in ticks]
        case NumberAxis(is_log=True):
            return log_ticks(scale.lower, scale.upper)
        case NumberAxis():
            return number_ticks(scale.lower, scale.upper, n_wanted=n_wanted)
