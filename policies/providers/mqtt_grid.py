"""What another gridchase controller tells of the grid, as signals: its history, and what it expects."""

from collections.abc import Iterable

import numpy as np

from policies.providers.series import Point, signal_of
from policies.signal import Signal
from publishers.reports import GridSignal, SignalValue


def grid_history(grid: GridSignal, *, source: str, step_s: float, since_s: float, now_s: float) -> Signal | None:
    """Return the values that hold after `since_s` and start by `now_s`, but for those that were no more than expected.

    Args:
        grid: the message. It leaves out what is missing: the usual step tells where a gap is.
        source: who says so.
        step_s: the step, where the message has one value only [s].
        since_s: from when on [Unix s].
        now_s: when it is asked [Unix s].
    """
    step_s = _step_s(grid, step_s)
    return _signal(
        (value for value in grid.values if _is_history(grid, value, now_s) and value.starts_s + step_s > since_s),
        grid,
        source=source,
        step_s=step_s,
    )


def grid_forecast(grid: GridSignal, *, source: str, step_s: float, now_s: float, until_s: float) -> Signal | None:
    """Return what is expected after `now_s`, and starts before `until_s`; the arguments are those of `grid_history`."""
    step_s = _step_s(grid, step_s)
    return _signal(
        (
            value
            for value in grid.values
            if not _is_history(grid, value, now_s) and now_s < value.starts_s + step_s and value.starts_s < until_s
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


def _is_history(grid: GridSignal, value: SignalValue, now_s: float) -> bool:
    """Return whether a value has begun, and was told as what was."""
    return value.starts_s <= now_s and (grid.forecast_from_s is None or value.starts_s < grid.forecast_from_s)


def _step_s(grid: GridSignal, fallback_s: float) -> float:
    """Return the usual step of the values, the median [s]."""
    steps_s = np.diff(sorted(value.starts_s for value in grid.values))
    return float(np.median(steps_s[steps_s > 0])) if (steps_s > 0).any() else fallback_s
