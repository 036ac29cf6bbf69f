"""What another gridchase controller tells of the grid, as signals: its history, and what it expects.

Only what its source told is history: a value that it held, or forecast itself, would be taken for measured here, and
two controllers that follow each other would keep a frozen value for ever.
"""

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from policies.providers.series import Point, signal_of
from policies.signal import Signal
from publishers.reports import GridSignal, SignalValue

LONGEST_STEP_S: Final = 3_600.0
"""No value holds for longer, but where the settings say so: the distance of two values may be a gap."""


def grid_fault(grid: GridSignal) -> str:
    """Return why a message cannot be followed, or "": one that was held does not always say what was told."""
    if grid.known_until_s is None and grid.state != "fresh":
        return f"is {grid.state}, and does not say until when its values were told: update that controller"
    return ""


def grid_history(grid: GridSignal, *, source: str, step_s: float, since_s: float, now_s: float) -> Signal | None:
    """Return the values that hold after `since_s` and start by `now_s`, but for those that were no more than expected.

    Args:
        grid: the message. It leaves out what is missing: the usual step tells where a gap is.
        source: who says so.
        step_s: the step, where the message has one value only [s].
        since_s: from when on [Unix s].
        now_s: when it is asked [Unix s].
    """
    step_s, told_until_s = _step_s(grid, step_s), _told_until_s(grid)
    last_s = min(now_s, math.nextafter(told_until_s, -math.inf))
    history = _signal(
        (value for value in grid.values if since_s - step_s < value.starts_s <= last_s),
        grid,
        source=source,
        step_s=step_s,
    )
    return history.between(-math.inf, told_until_s) if history is not None else None


def grid_forecast(grid: GridSignal, *, source: str, step_s: float, now_s: float, until_s: float) -> Signal | None:
    """Return what is expected after `now_s`, and starts before `until_s`; the arguments are those of `grid_history`.

    Nothing is, where the message is not fresh: what a controller expects then comes of what it does not know any more;
    nor where it only repeats the last value, which would so be held here for longer than there.
    """
    if grid.state != "fresh":
        return None
    step_s, told_until_s = _step_s(grid, step_s), _told_until_s(grid)
    if _repeats(grid, told_until_s):
        return None
    return _signal(
        (
            value
            for value in grid.values
            if (told_until_s <= value.starts_s or now_s < value.starts_s)
            and now_s - step_s < value.starts_s < until_s
            and not _is_held(grid, value)
        ),
        grid,
        source=source,
        step_s=step_s,
        is_expected=True,
    )


def _signal(
    values: Iterable[SignalValue], grid: GridSignal, *, source: str, step_s: float, is_expected: bool = False
) -> Signal | None:
    """Return some of the values; a price of the future may be settled, a carbon intensity never is."""
    is_estimate = is_expected and grid.kind != "price"
    return signal_of(
        (Point(value.starts_s, value.value, estimated=value.estimated or is_estimate) for value in values),
        kind=grid.kind,
        zone=grid.zone,
        source=source,
        unit=grid.unit,
        step_s=step_s,
        now_s=grid.time_s,
        issued_at_s=grid.issued_at_s,
    )


def _told_until_s(grid: GridSignal) -> float:
    """Return until when the values were told by the source [Unix s]; infinite where the message has nothing else."""
    ends_s = (grid.known_until_s, grid.forecast_from_s)
    return min((end_s for end_s in ends_s if end_s is not None), default=math.inf)


def _repeats(grid: GridSignal, told_until_s: float) -> bool:
    """Return whether all that is expected is the last value that was told; a price may well be the same all day."""
    last = max(
        (value for value in grid.values if value.starts_s < told_until_s),
        key=lambda value: value.starts_s,
        default=None,
    )
    expected = {value.value for value in grid.values if value.starts_s >= told_until_s}
    return grid.kind != "price" and last is not None and expected == {last.value}


def _is_held(grid: GridSignal, value: SignalValue) -> bool:
    """Return whether a value stood for the present while nothing was known: neither told, nor forecast."""
    is_before_forecast = grid.forecast_from_s is None or value.starts_s < grid.forecast_from_s
    return value.estimated and value.starts_s >= _told_until_s(grid) and is_before_forecast


def _step_s(grid: GridSignal, fallback_s: float) -> float:
    """Return the usual step of the values, the median [s]."""
    steps_s = np.diff(sorted(value.starts_s for value in grid.values))
    usual_s = float(np.median(steps_s[steps_s > 0])) if (steps_s > 0).any() else fallback_s
    return min(usual_s, max(LONGEST_STEP_S, fallback_s))
