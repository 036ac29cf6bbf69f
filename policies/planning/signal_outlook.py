"""The signal as far as a plan reaches: known values and then a forecast, or else the last days.

A forecast begins where the known values end, often with the next hour. Without one, the last days give the daily
profile; today's deviation from it decays hour by hour. Beyond that the values of the last days are expected, at unknown
hours, and at a level between theirs and that of the last day before. The first entry is always the present period: its
rate is what the plan decides.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from policies.vocabulary.freshness import PERSISTENCE
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values

MAX_DAYS: Final = 14
"""Older days say little about the next one."""
LEVEL_DAYS: Final = 60
"""As many days as sources are asked for tell how long a level persists."""
MIN_ORIGINS: Final = 7
"""So many of them must have been followed, and preceded, by enough others to tell how far both estimates were off."""
MIN_DAY_RATIO: Final = 0.9
"""A smaller part of a day does not show its level."""
DECAY_PER_HOUR: Final = 0.97
"""The share of today's deviation that is left an hour later: it halves in a day."""
SPAN_TOLERANCE_S: Final = HOUR_S
"""Providers that give the last 24 h give 24 values, the first of which began up to an hour later."""
MIN_KNOWN_RATIO: Final = 0.5
"""Days with more than half of their hours missing are not used."""
MIN_HOURS_RATIO: Final = 0.8
"""No day is used if more than a fifth of the hours of the day are missing on all days."""
MAX_POOLED: Final = 48
"""So many pooled values of days at unknown hours are as good as all of them, and sorted sooner."""
MAX_TIMED: Final = 96
"""So many later values at their own times are enough for a plan that shifts work between hours."""
MIN_REST_RATIO: Final = 1e-6
"""A smaller rest of the horizon is rounding."""
ROUNDING_RATIO: Final = 1e-9
ROUNDING_S: Final = 1e-3
"""A value that begins so little before a full hour begins with it."""


@dataclass(frozen=True, slots=True, eq=False)
class SignalOutlook:
    """The expected values of the signal.

    Attributes:
        durations_s: how long each value will hold, shape (n,); the first one holds now [s].
        values: the values, shape (n,).
        foreseen_s: for how long, from now on, the values are known or forecast [s].
        timed_s: for how long, from now on, each value is expected at its own time [s].
    """

    durations_s: Values
    values: Values
    foreseen_s: float = 0.0
    timed_s: float = np.inf

    @property
    def mean(self) -> float:
        """Return the time-weighted mean."""
        return float(self.values @ self.durations_s / self.durations_s.sum())

    def timed(self) -> "SignalOutlook | None":
        """Return the part in which each value is expected at its own time; None if that is all."""
        ends_s = np.cumsum(self.durations_s)
        n = int(np.searchsorted(ends_s, self.timed_s * (1 + ROUNDING_RATIO), side="right"))
        if n in {0, len(ends_s)}:
            return None
        return SignalOutlook(self.durations_s[:n], self.values[:n], min(self.foreseen_s, self.timed_s))

    @property
    def is_flat(self) -> bool:
        """Return whether the signal is constant."""
        return float(np.ptp(self.values)) <= ROUNDING_RATIO * float(np.abs(self.values).max())


def coarsened(outlook: SignalOutlook, *, now_s: float, max_timed: int = MAX_TIMED) -> SignalOutlook:
    """Return an outlook whose later values at their own times are means of clock hours, or of 2, 4, … if too many.

    The present value stays as it is, and so does one that holds for an hour or longer, unless there are too many.

    Args:
        outlook: the expected signal from now on.
        now_s: Unix time [s].
        max_timed: how many values may stand at their own times after the present one, 1 at least.
    """
    durations_s, ends_s = outlook.durations_s, np.cumsum(outlook.durations_s)
    starts_s = now_s + ends_s - durations_s + ROUNDING_S
    is_timed = ends_s <= outlook.timed_s * (1 + ROUNDING_RATIO)
    step_s = HOUR_S
    while len(np.unique(starts_s[1:][is_timed[1:]] // step_s)) > max_timed:
        step_s *= 2
    begins = np.append(True, ~is_timed[1:] | (np.diff(starts_s // step_s) != 0) | ~is_timed[:-1])
    begins[1:2] = True
    firsts = np.flatnonzero(begins)
    merged_s = np.add.reduceat(durations_s, firsts)
    values = np.add.reduceat(durations_s * outlook.values, firsts) / merged_s
    return replace(outlook, durations_s=merged_s, values=values)


def flat_outlook(value: float, horizon_s: float, *, period_s: float) -> SignalOutlook:
    """Return the outlook on a constant signal: the present period, and the rest."""
    present_s = min(period_s, horizon_s)
    durations_s = [present_s, horizon_s - present_s] if horizon_s > present_s else [horizon_s]
    return SignalOutlook(np.array(durations_s), np.full(len(durations_s), value))


def build_outlook(
    history: Signal | None, forecast: Signal | None, *, now_s: float, period_s: float, horizon_s: float
) -> SignalOutlook | None:
    """Return the expected signal from now on for `horizon_s`; None if the present, or all after it, is unknown.

    Args:
        history: the signal up to now, and as far ahead as it is known, or None.
        forecast: the signal from now on, or from a later time on, or None.
        now_s: Unix time [s].
        period_s: the present period, in which the present value is taken to hold [s].
        horizon_s: how far the outlook reaches [s].
    """
    value = value_now(history, forecast, now_s)
    if value is None:
        return None
    present_s = min(period_s, horizon_s)
    parts, foreseen_s = [(np.array([present_s]), np.array([value]))], 0.0
    days = _last_days(history, now_s, MAX_DAYS) if horizon_s > present_s else None
    if forecast is not None and forecast.source != PERSISTENCE:
        foreseen, duration_s = _foreseen(history, forecast, now_s + present_s, now_s + horizon_s)
        parts.extend(foreseen)
        foreseen_s = present_s + duration_s
    elif days is not None:
        parts.append(_next_day(days, value, present_s, horizon_s))
    durations_s, values = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    timed_s = float(durations_s.sum())
    if horizon_s - timed_s <= MIN_REST_RATIO * horizon_s:
        return SignalOutlook(durations_s, values, foreseen_s)
    if days is None and len(parts) == 1:
        return None
    rest = values
    if days is not None:
        n_days = math.ceil((horizon_s - timed_s) / DAY_S)
        rest = _at_expected_level(days[~np.isnan(days)], (durations_s, values), history, now_s, n_days=n_days)
    rest_s, rest = _pooled(rest, horizon_s - timed_s)
    return SignalOutlook(np.append(durations_s, rest_s), np.append(values, rest), foreseen_s, timed_s)


def _at_expected_level(
    last: Values, timed: tuple[Values, Values], history: Signal | None, now_s: float, *, n_days: int
) -> Values:
    """Return the values of the last days, shifted to the level that is expected of later ones, within what is known.

    Args:
        last: the values of the last days, shape (n,).
        timed: (durations [s], values) of what is expected before, at its own time: its last day counts.
        history: the signal up to now.
        now_s: Unix time [s].
        n_days: how many days come after.
    """
    durations_s, values = timed
    from_end_s = np.cumsum(durations_s[::-1])[::-1]
    in_last_day_s = np.clip(DAY_S - (from_end_s - durations_s), 0.0, durations_s)
    past = _last_days(history, now_s, LEVEL_DAYS)
    if past is None or in_last_day_s.sum() < MIN_DAY_RATIO * DAY_S:
        return last
    weight_ratio = weight_of_last_days_ratio(np.nanmean(past, axis=1), n_days)
    coming = values @ in_last_day_s / in_last_day_s.sum()
    shifted = last + (1 - weight_ratio) * (coming - last.mean())
    lowest, highest = min(last.min(), values.min()), max(last.max(), values.max())
    return np.asarray(np.clip(shifted, lowest, highest), dtype=np.float64)


def weight_of_last_days_ratio(daily_means: Values, n_days: int) -> float:
    """Return the weight of the mean of the last days, beside that of the coming day, for the mean of `n_days` after it.

    A level persists for days. Who expects the mean of the last two weeks from tomorrow on bets on a return that often
    does not come; who expects the coming day for ever is no better. So both count by how far each was off in the past.
    With e the root mean square error of an estimate over all past days, w = e_coming² / (e_last² + e_coming²): the
    weights of two unbiased estimates whose errors are independent. 1 where too few days are known to tell.

    Args:
        daily_means: the means of past days, oldest first, shape (n,), in the signal's unit.
        n_days: how many days are to be expected after the coming one; fewer are looked at where the past is short.
    """
    n_after = min(n_days, len(daily_means) - MAX_DAYS - MIN_ORIGINS)
    if n_after < 1:
        return 1.0
    sums = np.append(0.0, np.cumsum(daily_means))
    coming = np.arange(MAX_DAYS, len(daily_means) - n_after)
    before = (sums[coming] - sums[coming - MAX_DAYS]) / MAX_DAYS
    after = (sums[coming + 1 + n_after] - sums[coming + 1]) / n_after
    last_error, coming_error = ((estimate - after) @ (estimate - after) for estimate in (before, daily_means[coming]))
    both = float(last_error + coming_error)
    return float(coming_error) / both if both > 0 and math.isfinite(both) else 1.0


def _foreseen(
    history: Signal | None, forecast: Signal, start_s: float, end_s: float
) -> tuple[list[tuple[Values, Values]], float]:
    """Return (durations [s], values) between two times, of the known values and then of the forecast; and their reach.

    The reach ends at the first gap between the two [s]: values after a gap come later than their place in the outlook.
    """
    expected = forecast.steps(start_s, end_s)
    expected_s = float(expected[0].sum())
    begins_s = min(float(forecast.starts_s[0]) if len(forecast) else end_s, end_s)
    if history is None or begins_s <= start_s:
        return [expected], expected_s
    known = history.steps(start_s, begins_s)
    reach_s = float(known[0].sum()) + expected_s
    if begins_s - start_s - float(known[0].sum()) > MIN_REST_RATIO * (end_s - start_s):
        part = history.between(start_s, begins_s)
        reach_s = max(float(np.append(part.starts_s[np.isnan(part.values)], part.ends_s)[0]) - start_s, 0.0)
    return [known, expected], reach_s


def _pooled(values: Values, duration_s: float) -> tuple[Values, Values]:
    """Return (durations [s], values) of values at unknown hours, averaged in at most `MAX_POOLED` groups."""
    n_groups = min(len(values), MAX_POOLED)
    firsts = np.arange(n_groups) * len(values) // n_groups
    counts = np.diff(firsts, append=len(values))
    return duration_s / len(values) * counts, np.add.reduceat(np.sort(values), firsts) / counts


def value_now(history: Signal | None, forecast: Signal | None, now_s: float) -> float | None:
    """Return the value now, from the forecast if it has one."""
    value = forecast.value_at(now_s) if forecast is not None else None
    return history.value_at(now_s) if value is None and history is not None else value


def _last_days(history: Signal | None, now_s: float, max_days: int) -> Values | None:
    """Return the last whole days by the hour, shape (n_days, 24), each beginning at the present time of day.

    Days with few values are left out; a missing hour is filled with the mean of the other days, or NaN if no day has
    it. None if less than a day is known.
    """
    if history is None or not len(history):
        return None
    n_days = min(max_days, int((now_s - history.starts_s[0] + SPAN_TOLERANCE_S) // DAY_S))
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


def _next_day(days: Values, value: float, from_s: float, until_s: float) -> tuple[Values, Values]:
    """Return (durations [s], values) of the next 24 h, from `from_s` to `until_s` after now."""
    starts_s = HOUR_S * np.arange(24)
    is_known = np.isfinite(days[0])  # of all days or of none
    usual = np.where(is_known, days.mean(axis=0), 0.0)
    now_usual = usual[0] if is_known[0] else value
    expected = usual + (value - now_usual) * DECAY_PER_HOUR ** np.arange(24)
    expected = np.clip(expected, min(np.nanmin(days), value), max(np.nanmax(days), value))
    durations_s = np.minimum(starts_s + HOUR_S, until_s) - np.maximum(starts_s, from_s)
    kept = (durations_s > 0) & is_known
    return durations_s[kept], expected[kept]
