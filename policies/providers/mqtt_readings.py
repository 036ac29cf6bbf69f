"""Values as they come over a bus, early, late, twice or too often: one is kept for each step.

>>> readings = Readings(step_s=300.0, keep_s=3600.0)
>>> for time_s, value in ((0.0, 1.0), (299.0, 2.0), (100.0, 3.0)):
...     readings.add(time_s, value, now_s=300.0)
>>> [(point.starts_s, point.value) for point in readings.holding_from(0.0)]
[(0.0, 3.0), (299.0, 2.0)]
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from policies.providers.series import Point

SAME_STEPS: Final = 0.9
"""Two values closer than this are of one step, and the one that comes later counts; messages come a little early."""


class Readings:
    """Values by their start, in steps of `step_s` [s], back to `keep_s` ago [s]."""

    def __init__(self, *, step_s: float, keep_s: float) -> None:
        self._step_s = step_s
        self._keep_s = keep_s
        self._points: list[Point] = []

    def add(self, time_s: float, value: float, *, now_s: float) -> None:
        """Add a value that holds from a time on [Unix s], or replace that of the same step."""
        place = bisect_right(self._points, time_s, key=_starts_s)
        if place and time_s - self._points[place - 1].starts_s < SAME_STEPS * self._step_s:
            self._points[place - 1] = Point(self._points[place - 1].starts_s, value)
        else:
            self._points.insert(place, Point(time_s, value))
        del self._points[: bisect_right(self._points, now_s - self._keep_s, key=_starts_s)]

    def holding_from(self, since_s: float) -> Iterator[Point]:
        """Give the values that hold after a time [Unix s], in their order."""
        first = max(0, bisect_right(self._points, since_s, key=_starts_s) - 1)
        return iter(self._points[first:])


def _starts_s(point: Point) -> float:
    return point.starts_s
