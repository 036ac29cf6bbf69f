"""Ticks that a person would choose, and numbers as people read them."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Final, NamedTuple

_THIN: Final = "\u202f"
_MINUS: Final = "\u2212"
_MAX_TICKS: Final = 8
_RESOLUTION: Final = 1e-10
_ROUND: Final = (1, 2, 5, 10)
_HOUR_STEPS: Final = (1, 2, 3, 6, 12)
_DAY_STEPS: Final = (1, 2, 7, 14, 28, 91, 365)
_MINUTE_STEPS: Final = (1, 5, 15, 30)
_EXPONENT_FROM: Final = 1e15
_WEEKDAYS_UP_TO_DAYS: Final = 7


class Tick(NamedTuple):
    """A tick: its place in the unit of the axis, and its text."""

    value: float
    text: str


def number_text(value: float, n_decimals: int | None = None) -> str:
    """Return a number with thin spaces between thousands and a true minus sign; by default to three digits.

    >>> [number_text(0.012345), number_text(12.3456), number_text(float("nan"))]
    ['0.0123', '12.3', 'not known']
    """
    if not math.isfinite(value):
        return "not known"
    if value and not 1 / _EXPONENT_FROM <= abs(value) < _EXPONENT_FROM:
        text = f"{value:.3g}"
    else:
        decimals = _decimals(value) if n_decimals is None else n_decimals
        text = f"{round(value, decimals) + 0.0:,.{max(decimals, 0)}f}"
        text = text.rstrip("0").rstrip(".") if n_decimals is None and "." in text else text
    return text.replace(",", _THIN).replace("-", _MINUS)


def interval_text(lower: float, upper: float) -> str:
    """Return both ends of an interval, to the third digit of the larger.

    >>> interval_text(0.000123, 12.345)
    '0 to 12.3'
    """
    n_decimals = _decimals(max(abs(lower), abs(upper)))
    return " to ".join(number_text(round(end, n_decimals)) for end in (lower, upper))


def _decimals(value: float) -> int:
    """Return how many decimals make three significant digits; whole numbers stay whole."""
    return max(2 - math.floor(math.log10(abs(value))), 0) if value else 0


def number_ticks(lower: float, upper: float, *, n_wanted: int = 5) -> list[Tick]:
    """Return ticks at 1, 2 or 5 times a power of ten between two numbers; one where floats cannot tell them apart."""
    step = _round_step((upper - lower) / n_wanted)
    if not (step > _RESOLUTION * max(abs(lower), abs(upper)) and math.isfinite(step)):
        return [Tick(lower, number_text(lower))]
    n_decimals = max(-math.floor(math.log10(step) + 1e-9), 0)
    first, last = math.ceil(lower / step - 1e-9), math.floor(upper / step + 1e-9)
    return [Tick(count * step, number_text(count * step, n_decimals)) for count in range(first, last + 1)]


def _round_step(at_least: float) -> float:
    if not (at_least > 0 and math.isfinite(at_least)):
        return 0.0
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(number * power for number in _ROUND if number * power >= at_least * (1 - 1e-9))


def log_ticks(lower: float, upper: float) -> list[Tick]:
    """Return ticks at powers of ten, or at 1, 2 and 5 times them where there are few."""
    first, last = math.floor(math.log10(lower)), math.ceil(math.log10(upper))
    stride = math.ceil((last - first + 1) / _MAX_TICKS)
    for digits in ((1,), (1, 2, 5)):
        values = [digit * 10.0**power for power in range(first, last + 1, stride) for digit in digits]
        inside = [value for value in values if lower * (1 - 1e-9) <= value <= upper * (1 + 1e-9)]
        if len(inside) > 2:  # noqa: PLR2004 — two do not show that it is logarithmic
            return [Tick(value, number_text(value)) for value in inside]
    return number_ticks(lower, upper, n_wanted=4)


def name_ticks(names: Sequence[str], *, width_em: float) -> list[Tick]:
    """Return a tick for as many names as have room side by side, evenly spaced from the first."""
    longest = max(map(len, names), default=0)
    stride = max(math.ceil((longest + 2) * 0.5 * len(names) / width_em), 1)
    return [Tick(place, name) for place, name in enumerate(names) if place % stride == 0]


def time_ticks(lower: float, upper: float, zone: tzinfo) -> list[Tick]:
    """Return ticks at round minutes, hours or days of a time zone, between two times [Unix s].

    A day's tick is the name of the day, within a week, or its date; hours that a change of clocks leaves out have none.
    """
    span = timedelta(seconds=upper - lower)
    for minutes in (*_MINUTE_STEPS, *(60 * hours for hours in _HOUR_STEPS)):
        if span / timedelta(minutes=minutes) <= _MAX_TICKS:
            return list(_clock_ticks(lower, upper, zone, minutes))
    days = next((days for days in _DAY_STEPS if span / timedelta(days=days) <= _MAX_TICKS), None)
    stride = days or _DAY_STEPS[-1] * math.ceil(span / timedelta(days=_DAY_STEPS[-1] * _MAX_TICKS))
    found = list(_midnights(lower, upper, zone, stride))
    by_name = span <= timedelta(days=_WEEKDAYS_UP_TO_DAYS)
    return [Tick(at.timestamp(), f"{at:%a}" if by_name else _date_text(at, span)) for at in found]


def _clock_ticks(lower: float, upper: float, zone: tzinfo, minutes: int) -> Iterator[Tick]:
    for midnight in _midnights(lower - 86_400, upper, zone):
        for minute in range(0, 1_440, minutes):
            at = midnight.replace(hour=minute // 60, minute=minute % 60)
            exists = datetime.fromtimestamp(at.timestamp(), zone).replace(tzinfo=None) == at.replace(tzinfo=None)
            if exists and lower <= at.timestamp() <= upper:
                yield Tick(at.timestamp(), f"{at:%H:%M}" if minute else f"{at:%a}")


def _midnights(lower: float, upper: float, zone: tzinfo, stride: int = 1) -> Iterator[datetime]:
    """Yield the midnights of each so many days, the first one at most a day before the lower time."""
    at = datetime.fromtimestamp(lower, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    at += timedelta(days=-at.toordinal() % stride)
    while at.timestamp() <= upper:
        yield at
        at += timedelta(days=stride)


def _date_text(at: datetime, span: timedelta) -> str:
    return f"{at.day} {at:%b}" if span < timedelta(days=366) else f"{at:%b %Y}"


def time_text(time_s: float, zone: tzinfo) -> str:
    """Return a time [Unix s] for a table."""
    return f"{datetime.fromtimestamp(time_s, zone):%Y-%m-%d %H:%M}"
