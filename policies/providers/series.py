"""Time series: from the values of a source, in any order and number, to one signal.

>>> signal = build_signal([Point(3600.0, 300.0), Point(0.0, 0.0)], kind="average", zone="DE", source="example",
...                       unit="g/kWh", step_s=3600.0, now_s=4000.0)
>>> signal.values, signal.ends_s
(array([ nan, 300.]), 7200.0)
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.providers.base import SignalDataError
from policies.vocabulary.signal import Signal, SignalKind

GAP_STEPS: Final = 1.5
"""Two starts further apart than this many steps enclose a gap."""
MIN_STARTS: Final = 6
"""The step cannot be inferred from fewer starts."""
CLOCK_TOLERANCE_S: Final = 300.0
"""A measured value that starts later than this after now shows that a clock is wrong."""
AHEAD_S: Final = 3 * 3_600.0
"""Queries for measured values end this long after now: a value from the future shows that a clock is wrong."""
LOOK_BACK_S: Final = 60 * 86_400.0
"""No query reaches further back."""


class Point(NamedTuple):
    """A value from its start on [Unix s], None if missing. `updated_at_s` tells which of two revisions is newer."""

    starts_s: float
    value: float | None
    estimated: bool = False
    updated_at_s: float = 0.0


def build_signal(
    points: Iterable[Point],
    *,
    kind: SignalKind,
    zone: str,
    source: str,
    unit: str,
    step_s: float,
    now_s: float,
    issued_at_s: float | None = None,
) -> Signal | None:
    """Return the signal of some points, or None if there are none.

    Of two points with the same start the one updated later wins, then the one that comes later. A carbon intensity
    that is not above 0 is missing (sources write 0 for "unknown"); a price may have any value. A gap of more than 1.5
    steps is missing; the last value holds for one step.

    Args:
        points: the values.
        kind: what they are.
        zone: their zone.
        source: the source to name.
        unit: their unit.
        step_s: how long a value holds [s].
        now_s: when they were fetched [Unix s].
        issued_at_s: when they were issued [Unix s]; by default the latest update, else `now_s`.
    """
    ordered = _newest(points)
    if not ordered:
        return None
    values = np.array([_value(point.value, kind) for point in ordered])
    starts_s, values, estimated = insert_gaps(
        np.array([point.starts_s for point in ordered]),
        values,
        np.array([point.estimated for point in ordered]),
        step_s=step_s,
    )
    updated_at_s = max(point.updated_at_s for point in ordered) or now_s
    return Signal(
        kind=kind,
        zone=zone,
        source=source,
        unit=unit,
        starts_s=starts_s,
        values=values,
        estimated=estimated,
        ends_s=float(starts_s[-1]) + step_s,
        issued_at_s=updated_at_s if issued_at_s is None else issued_at_s,
    )


def describe_losses(points: Iterable[Point], *, kind: SignalKind, missing: str, others: Mapping[str, int]) -> str:
    """Return how many values `build_signal` leaves out, and why, in words; "" if none.

    Args:
        points: the values.
        kind: what they are.
        missing: the reason for those that are None or not finite.
        others: how many were left out before, by the reason.

    >>> points = [Point(0.0, 0.0), Point(1.0, None), Point(2.0, 300.0)]
    >>> describe_losses(points, kind="average", missing="without a value", others={"of another market": 2})
    'left out: 2 of another market, 1 not above 0, 1 without a value'
    """
    counts = Counter(others)
    for point in _newest(points):
        if math.isnan(_value(point.value, kind)):
            counts[missing if point.value is None or not math.isfinite(point.value) else "not above 0"] += 1
    told = [f"{n} {why}" for why, n in counts.items() if n]
    return f"left out: {', '.join(told)}" if told else ""


def _newest(points: Iterable[Point]) -> list[Point]:
    newest: dict[float, Point] = {}
    for point in points:
        known = newest.get(point.starts_s)
        if known is None or point.updated_at_s >= known.updated_at_s:
            newest[point.starts_s] = point
    return [newest[starts_s] for starts_s in sorted(newest)]


def insert_gaps(
    starts_s: NDArray[np.float64], values: NDArray[np.float64], estimated: NDArray[np.bool_], *, step_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return starts, values and flags, with a missing value inserted where a gap begins."""
    before = np.flatnonzero(np.diff(starts_s) > GAP_STEPS * step_s)
    return (
        np.insert(starts_s, before + 1, starts_s[before] + step_s),
        np.insert(values, before + 1, np.nan),
        np.insert(estimated, before + 1, np.zeros(len(before), dtype=np.bool_)),
    )


def past_points(points: Iterable[Point], *, since_s: float, now_s: float, step_s: float) -> list[Point]:
    """Return the points of a history: those that hold after `since_s` and start by `now_s`."""
    return [point for point in points if point.starts_s + step_s > since_s and point.starts_s <= now_s]


def future_points(points: Iterable[Point], *, now_s: float, until_s: float) -> list[Point]:
    """Return the points of a forecast: those known that start after `now_s` and before `until_s`."""
    return [point for point in points if now_s < point.starts_s < until_s and point.value is not None]


def infer_step_s(points: Iterable[Point], *, otherwise_s: float, longest_s: float) -> float:
    """Return the median distance of two starts, but no more than `longest_s` [s].

    With fewer than 6 starts it is `otherwise_s`: the distances of sparse values are gaps, and a step of many hours
    would extend an old value until now.
    """
    starts_s = sorted({point.starts_s for point in points})
    usual_s = float(np.median(np.diff(starts_s))) if len(starts_s) >= MIN_STARTS else otherwise_s
    return min(usual_s, longest_s)


def single_unit(units: Iterable[tuple[float, str]], *, source: str, latest: bool) -> str:
    """Return the unit of a series: of two that follow one another, the latest or the first.

    A market changes its currency at one moment: no series mixes two.

    Args:
        units: (start [Unix s], unit) of each value, at least one.
        source: the source, for messages.
        latest: return the latest, as for a history, not the first, as for a forecast that continues one.

    Raises:
        SignalDataError: the units do not follow one another.
    """
    starts_s: dict[str, list[float]] = {}
    for start_s, unit in units:
        starts_s.setdefault(unit, []).append(start_s)
    ordered = sorted(starts_s, key=lambda unit: min(starts_s[unit]))
    if any(max(starts_s[before]) >= min(starts_s[after]) for before, after in pairwise(ordered)):
        raise SignalDataError(f"{source}: returns values in {' and '.join(sorted(ordered))} at one time")
    return ordered[-1 if latest else 0]


def split_range_s(start_s: float, end_s: float, *, longest_s: float) -> list[tuple[float, float]]:
    """Return consecutive parts of a time range [Unix s], none longer than `longest_s`, the limit of one request."""
    n_parts = max(1, math.ceil((end_s - start_s) / longest_s))
    edges_s = [start_s + i * longest_s for i in range(n_parts)] + [end_s]
    return list(pairwise(edges_s))


def check_clock(points: Iterable[Point], *, source: str, now_s: float) -> None:
    """Refuse measured values from the future: the source's clock or ours is wrong, and with it every age.

    Raises:
        SignalDataError: a known value starts more than `CLOCK_TOLERANCE_S` after `now_s`.
    """
    latest_s = max((point.starts_s for point in points if point.value is not None), default=-math.inf)
    if latest_s > now_s + CLOCK_TOLERANCE_S:
        raise SignalDataError(
            f"{source}: gives a measured value for {format_iso(latest_s)}, and here it is {format_iso(now_s)}: "
            f"one clock is wrong by {(latest_s - now_s) / 3600:.1f} h or more"
        )


def format_iso(time_s: float) -> str:
    """Return a Unix time as ISO 8601, in UTC, to the minute; as a number if no calendar reaches it."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
    except (ValueError, OverflowError):
        return f"{time_s:g} s after 1970"


def parse_iso_s(text: str, *, source: str) -> float:
    """Return the Unix time of an ISO 8601 time with an offset [s].

    Raises:
        SignalDataError: it is not one, or has no offset, so that its meaning is unknown.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise SignalDataError(f"{source}: {text[:40]!r} is not a time in ISO 8601") from None
    if time.tzinfo is None:
        raise SignalDataError(f"{source}: the time {text!r} has no offset from UTC")
    return time.timestamp()


def _value(value: float | None, kind: SignalKind) -> float:
    if value is None or not math.isfinite(value) or (kind in {"average", "marginal"} and value <= 0):
        return math.nan
    return value
