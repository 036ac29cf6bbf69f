"""What an MQTT message contains: a number, a number in a JSON object, or another controller's `GridSignal`.

Only values of the other controller's source become history: values that it held or forecast itself would count as
measured here, and two controllers that follow each other would keep a frozen value for ever.

>>> read_payload(b"312.5", value_key="", time_key="")
Reading(value=312.5, time_s=None)
>>> read_payload(b'{"grid": {"co2": "312.5"}, "at": "2026-01-31T12:00Z"}', value_key="grid.co2", time_key="at")
Reading(value=312.5, time_s=1769860800.0)
"""

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from policies.providers.base import SignalDataError
from policies.providers.series import Point, build_signal, parse_iso_s
from policies.vocabulary.signal import Signal
from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import GridSignal, SignalValue

MILLISECONDS_FROM: Final = 1e11
"""As seconds, this would be the year 5138: larger numbers are milliseconds."""
_HINT_BYTES: Final = 60


class Reading(NamedTuple):
    """A value and, if the message has one, its time [Unix s]."""

    value: float
    time_s: float | None


class PayloadError(ValueError):
    """A payload is not what the settings describe."""


def read_payload(payload: bytes, *, value_key: str, time_key: str) -> Reading | GridSignal:
    """Decode a payload.

    Args:
        payload: JSON.
        value_key: the path of the value in an object, levels separated by dots; "" if the payload is a number, or a
            gridchase controller's `GridSignal`.
        time_key: the path of its time (ISO 8601 with an offset, or Unix seconds or milliseconds); "" if it has none.

    Raises:
        PayloadError: it is something else.
    """
    try:
        content = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(f"{error}; it begins {payload[:_HINT_BYTES]!r}") from error
    if not value_key and isinstance(content, dict):
        try:
            return decode(payload, GridSignal)
        except DecodeError as error:
            raise PayloadError(f"an object, but no GridSignal ({error}): set value_key") from error
    value = _value(_at(content, value_key), value_key)
    return Reading(value, _time_s(_at(content, time_key), time_key) if time_key else None)


def _at(content: Any, key: str) -> Any:  # noqa: ANN401 — JSON
    for level in key.split(".") if key else ():
        if not isinstance(content, dict) or level not in content:
            raise PayloadError(f"there is nothing at {key!r}")
        content = content[level]
    return content


def _value(found: Any, key: str) -> float:  # noqa: ANN401 — JSON
    """Return a number, which may come as text."""
    try:
        value = math.nan if isinstance(found, bool) else float(found)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise PayloadError(f"{str(found)[:_HINT_BYTES]!r} {f'at {key!r} ' if key else ''}is not a number")
    return value


def _time_s(found: Any, key: str) -> float:  # noqa: ANN401 — JSON
    if isinstance(found, str):
        try:
            return parse_iso_s(found, source=f"at {key!r}")
        except SignalDataError as error:
            raise PayloadError(str(error)) from error
    time_s = _value(found, key)
    return time_s / 1e3 if abs(time_s) >= MILLISECONDS_FROM else time_s


LONGEST_STEP_S: Final = 3_600.0
"""No value holds for longer, unless the settings say so: a larger distance is a gap."""


def grid_fault(grid: GridSignal) -> str:
    """Return why a message cannot be used, or "": old controllers do not say which values were held."""
    if grid.known_until_s is None and grid.state != "fresh":
        return f"is {grid.state}, and does not say until when its values were known: update that controller"
    return ""


def grid_history(grid: GridSignal, *, source: str, step_s: float, since_s: float, now_s: float) -> Signal | None:
    """Return the values that hold after `since_s` and start by `now_s`, without those that were only expected.

    Args:
        grid: the message. It leaves out missing values: gaps are inferred from the usual step.
        source: the source to name.
        step_s: the step if the message has one value only [s].
        since_s: start of the range [Unix s].
        now_s: the time [Unix s].
    """
    step_s, known_until_s = _step_s(grid, step_s), _known_until_s(grid)
    last_s = min(now_s, math.nextafter(known_until_s, -math.inf))
    history = _signal(
        (value for value in grid.values if since_s - step_s < value.starts_s <= last_s),
        grid,
        source=source,
        step_s=step_s,
    )
    return history.between(-math.inf, known_until_s) if history is not None else None


def grid_forecast(grid: GridSignal, *, source: str, step_s: float, now_s: float, until_s: float) -> Signal | None:
    """Return the forecast after `now_s` that starts before `until_s`; arguments as for `grid_history`.

    None if the message is not fresh, because such a forecast rests on old values; or if it only repeats the last
    value, which would then be held longer here than there.
    """
    if grid.state != "fresh":
        return None
    step_s, known_until_s = _step_s(grid, step_s), _known_until_s(grid)
    if _repeats(grid, known_until_s):
        return None
    return _signal(
        (
            value
            for value in grid.values
            if (known_until_s <= value.starts_s or now_s < value.starts_s)
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
    """Return some of the values as a signal; future prices may be settled, carbon intensities never are."""
    is_estimate = is_expected and grid.kind != "price"
    return build_signal(
        (Point(value.starts_s, value.value, estimated=value.estimated or is_estimate) for value in values),
        kind=grid.kind,
        zone=grid.zone,
        source=source,
        unit=grid.unit,
        step_s=step_s,
        now_s=grid.time_s,
        issued_at_s=grid.issued_at_s,
    )


def _known_until_s(grid: GridSignal) -> float:
    """Return until when the values are the source's own [Unix s]; infinite if all are."""
    ends_s = (grid.known_until_s, grid.forecast_from_s)
    return min((end_s for end_s in ends_s if end_s is not None), default=math.inf)


def _repeats(grid: GridSignal, known_until_s: float) -> bool:
    """Return whether the forecast only repeats the last known value; a price may well be the same all day."""
    last = max(
        (value for value in grid.values if value.starts_s < known_until_s),
        key=lambda value: value.starts_s,
        default=None,
    )
    expected = {value.value for value in grid.values if value.starts_s >= known_until_s}
    return grid.kind != "price" and last is not None and expected == {last.value}


def _is_held(grid: GridSignal, value: SignalValue) -> bool:
    """Return whether a value was held: neither known nor forecast."""
    is_before_forecast = grid.forecast_from_s is None or value.starts_s < grid.forecast_from_s
    return value.estimated and value.starts_s >= _known_until_s(grid) and is_before_forecast


def _step_s(grid: GridSignal, fallback_s: float) -> float:
    steps_s = np.diff(sorted(value.starts_s for value in grid.values))
    usual_s = float(np.median(steps_s[steps_s > 0])) if (steps_s > 0).any() else fallback_s
    return min(usual_s, max(LONGEST_STEP_S, fallback_s))
