"""What the signal will be for as long as a plan reaches: what is known and then a forecast, or else the last days.

A forecast that is trusted goes on from where what is known ends, often with the next hour. Without one, the days before
tell how a day goes; today is as far above or below them as it is now, and less so hour by hour. What lies beyond a day
is taken to be like the days before, whichever hour it is. The first entry is always the present: so a plan can say what
to do now, be it part of one thing and part of another.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary.signal import Signal

HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0
MAX_DAYS: Final = 14
"""Older days say little about the next one."""
KEPT_PER_HOUR: Final = 0.97
"""How much of today's difference from the usual is left an hour later: it halves in a day."""
SPAN_TOLERANCE_S: Final = 3_600.0
"""Providers that give the last 24 h give 24 values, the first of which began up to an hour later."""
MIN_KNOWN_RATIO: Final = 0.5
"""Days with more than half of their hours missing are none."""
MIN_HOURS_RATIO: Final = 0.8
"""Nor is a day known where more than a fifth of the hours of the day are not known of any."""
MAX_POOLED: Final = 48
"""Of days at hours unknown, so many values are as good as all of them, and sorted sooner."""
UNSEEN_RATIO: Final = 1e-6
"""A smaller rest of the horizon is rounding."""
SAME_RATIO: Final = 1e-9
PERSISTENCE: Final = "persistence"
"""The source of a forecast that says no more than the present."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SignalOutlook:
    """How long each value of the signal will hold [s], and the values, both of shape (n,); the first one holds now.

    `foreseen_s` is for how long, from now on, they are what is known or what a forecast says [s].
    """

    durations_s: Values
    values: Values
    foreseen_s: float = 0.0

    @property
    def mean(self) -> float:
        """Return the mean value."""
        return float(self.values @ self.durations_s / self.durations_s.sum())

    @property
    def is_flat(self) -> bool:
        """Return whether the signal does not vary."""
        return float(np.ptp(self.values)) <= SAME_RATIO * float(np.abs(self.values).max())


def flat_outlook(value: float, horizon_s: float, *, period_s: float) -> SignalOutlook:
    """Return the outlook on a signal that stays what it is: the present period, and what comes after it."""
    present_s = min(period_s, horizon_s)
    durations_s = [present_s, horizon_s - present_s] if horizon_s > present_s else [horizon_s]
    return SignalOutlook(np.array(durations_s), np.full(len(durations_s), value))


def build_outlook(
    history: Signal | None, forecast: Signal | None, *, now_s: float, period_s: float, horizon_s: float
) -> SignalOutlook | None:
    """Return what the signal will be from now on for `horizon_s`; None where it is not known now, nor the days before.

    Args:
        history: the signal up to now, and as far ahead as it is known, or None.
        forecast: the signal from now on, or from there on, or None.
        now_s: Unix time [s].
        period_s: how long the present is: the present value is taken to hold for as long [s].
        horizon_s: how far to look [s].
    """
    value = value_now(history, forecast, now_s)
    if value is None:
        return None
    present_s = min(period_s, horizon_s)
    parts, foreseen_s = [(np.array([present_s]), np.array([value]))], 0.0
    days = _days(history, now_s) if horizon_s > present_s else None
    if forecast is not None and forecast.source != PERSISTENCE:
        coming, coming_s = _coming(history, forecast, now_s + present_s, now_s + horizon_s)
        parts.extend(coming)
        foreseen_s = present_s + coming_s
    elif days is not None:
        parts.append(_tomorrow(days, value, present_s, horizon_s))
    seen_s = sum(float(durations_s.sum()) for durations_s, _ in parts)
    if horizon_s - seen_s > UNSEEN_RATIO * horizon_s:
        if days is None and len(parts) == 1:
            return None
        rest = np.concatenate([values for _, values in parts]) if days is None else days[~np.isnan(days)]
        parts.append(_pooled(rest, horizon_s - seen_s))
    durations_s, values = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return SignalOutlook(durations_s, values, foreseen_s)


def _coming(
    history: Signal | None, forecast: Signal, start_s: float, end_s: float
) -> tuple[list[tuple[Values, Values]], float]:
    """Return (durations [s], values) of what is known between two times, then of the forecast; and how long they go on.

    They go on [s] to where the one ends before the other begins: what is told of a time after such a hole comes later
    than its place in the outlook says.
    """
    told = forecast.steps(start_s, end_s)
    told_s = float(told[0].sum())
    begins_s = min(float(forecast.starts_s[0]) if len(forecast) else end_s, end_s)
    if history is None or begins_s <= start_s:
        return [told], told_s
    known = history.steps(start_s, begins_s)
    coming_s = float(known[0].sum()) + told_s
    if begins_s - start_s - float(known[0].sum()) > UNSEEN_RATIO * (end_s - start_s):
        part = history.between(start_s, begins_s)
        coming_s = max(float(np.append(part.starts_s[np.isnan(part.values)], part.ends_s)[0]) - start_s, 0.0)
    return [known, told], coming_s


def _pooled(values: Values, duration_s: float) -> tuple[Values, Values]:
    """Return (durations [s], values) of values that come at hours unknown: neighbours of many are taken together."""
    n_groups = min(len(values), MAX_POOLED)
    firsts = np.arange(n_groups) * len(values) // n_groups
    counts = np.diff(firsts, append=len(values))
    return duration_s / len(values) * counts, np.add.reduceat(np.sort(values), firsts) / counts


def value_now(history: Signal | None, forecast: Signal | None, now_s: float) -> float | None:
    """Return the value that holds now, by the forecast where it has one."""
    value = forecast.value_at(now_s) if forecast is not None else None
    return history.value_at(now_s) if value is None and history is not None else value


def _days(history: Signal | None, now_s: float) -> Values | None:
    """Return the last whole days by the hour, shape (n_days, 24), each hour as long after the time of day it is now.

    Days that are hardly known are left out; an hour that a day lacks is as usual, or NaN where no day has it. None
    where less than a day is known.
    """
    if history is None or not len(history):
        return None
    n_days = min(MAX_DAYS, int((now_s - history.starts_s[0] + SPAN_TOLERANCE_S) // DAY_S))
    if n_days < 1:
        return None
    at_s = now_s - DAY_S * np.arange(n_days, 0, -1)[:, None] + HOUR_S * np.arange(24)
    index = np.searchsorted(history.starts_s, at_s, side="right") - 1
    values = np.where((index >= 0) & (at_s < history.ends_s), history.values[np.maximum(index, 0)], np.nan)
    known = np.isfinite(values)
    values, known = (each[known.mean(axis=1) >= MIN_KNOWN_RATIO] for each in (values, known))
    n_known = known.sum(axis=0)
    if not len(values) or (n_known > 0).mean() < MIN_HOURS_RATIO:
        return None
    usual = np.where(n_known > 0, np.nansum(values, axis=0) / np.maximum(n_known, 1), np.nan)
    return np.where(known, values, usual)


def _tomorrow(days: Values, value: float, from_s: float, until_s: float) -> tuple[Values, Values]:
    """Return (durations [s], values) of the coming day, or the part of it from `from_s` to `until_s` after now."""
    starts_s = HOUR_S * np.arange(24)
    is_known = np.isfinite(days[0])  # of all days or of none
    usual = np.where(is_known, days.mean(axis=0), 0.0)
    now_usual = usual[0] if is_known[0] else value
    expected = usual + (value - now_usual) * KEPT_PER_HOUR ** np.arange(24)
    expected = np.clip(expected, min(np.nanmin(days), value), max(np.nanmax(days), value))
    durations_s = np.minimum(starts_s + HOUR_S, until_s) - np.maximum(starts_s, from_s)
    kept = (durations_s > 0) & is_known
    return durations_s[kept], expected[kept]
