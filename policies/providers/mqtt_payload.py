"""What stands in a message on somebody's topic: a number, a number in a JSON object, or the grid as gridchase tells it.

>>> read_payload(b"312.5", value_key="", time_key="")
Reading(value=312.5, time_s=None)
>>> read_payload(b'{"grid": {"co2": "312.5"}, "at": "2026-01-31T12:00Z"}', value_key="grid.co2", time_key="at")
Reading(value=312.5, time_s=1769860800.0)
"""

import math
from typing import Any, Final, NamedTuple

import msgspec

from policies.providers.base import SignalDataError
from policies.providers.series import read_iso_s
from publishers.reports import GridSignal
from publishers.wire import WireError, decode

MILLISECONDS_FROM: Final = 1e11
"""A number of seconds as great as this is in the year 5138: it is one of milliseconds."""
_HINT_BYTES: Final = 60


class Reading(NamedTuple):
    """A value, and its own time where it has one [Unix s]."""

    value: float
    time_s: float | None


class PayloadError(ValueError):
    """A payload is not what the settings say."""


def read_payload(payload: bytes, *, value_key: str, time_key: str) -> Reading | GridSignal:
    """Return what stands in a payload.

    Args:
        payload: JSON.
        value_key: where the value stands in an object, levels parted by dots; "" where the payload is a number, or the
            message `GridSignal` of a gridchase controller.
        time_key: where its time stands: ISO 8601 with an offset, or Unix time in seconds or milliseconds; "" where
            it has none.

    Raises:
        PayloadError: it is not like that.
    """
    try:
        content = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(f"{error}; it begins {payload[:_HINT_BYTES]!r}") from error
    if not value_key and isinstance(content, dict):
        try:
            return decode(payload, GridSignal)
        except WireError as error:
            raise PayloadError(f"an object, but no GridSignal ({error}): set value_key") from error
    value = _value(_at(content, value_key), value_key)
    return Reading(value, _time_s(_at(content, time_key), time_key) if time_key else None)


def _at(content: Any, key: str) -> Any:  # noqa: ANN401 — JSON
    """Return what stands at a key, level by level."""
    for level in key.split(".") if key else ():
        if not isinstance(content, dict) or level not in content:
            raise PayloadError(f"nothing stands at {key!r}")
        content = content[level]
    return content


def _value(found: Any, key: str) -> float:  # noqa: ANN401 — JSON
    """Return a number, which may be written as text."""
    try:
        value = math.nan if isinstance(found, bool) else float(found)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise PayloadError(f"{str(found)[:_HINT_BYTES]!r} {f'at {key!r} ' if key else ''}is no number")
    return value


def _time_s(found: Any, key: str) -> float:  # noqa: ANN401 — JSON
    if isinstance(found, str):
        try:
            return read_iso_s(found, source=f"at {key!r}")
        except SignalDataError as error:
            raise PayloadError(str(error)) from error
    time_s = _value(found, key)
    return time_s / 1e3 if abs(time_s) >= MILLISECONDS_FROM else time_s
