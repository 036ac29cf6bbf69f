"""A signal's history on a regular grid of steps that ends where the last known value ends.

Models need equal steps and no gaps; signals have neither. The step is the median difference of two starts, rounded so
that an hour is a whole number of steps; each step has the value at its middle. Missing values are interpolated, so that
every feature is finite, and flagged, so that nothing is fitted to them.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values

MAX_STEPS_PER_HOUR: Final = 12
"""Finer steps than five minutes are sampled."""
SAME_S: Final = 1.0
"""Times that differ by less are equal."""
MAX_DIFFERENCES: Final = 1_000
"""The step is the median of the last so many differences."""
MAX_INTERPOLATED_S: Final = 3 * HOUR_S
"""A shorter gap is interpolated linearly, a longer one filled with the mean at the time of the day."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HistoryExtent:
    """The known part of a history at a moment.

    Attributes:
        n_known: the number of starts, missing values included, up to now.
        last: the index of the last known value.
        end_s: when the last known value ends [Unix s].
        step_s: the step of the grid [s].
    """

    n_known: int
    last: int
    end_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """A history on the grid; the last of the n steps is known.

    Attributes:
        step_s: the step [s].
        end_s: where the last step ends [Unix s].
        day: the number of steps in a day, S.
        known: whether the values are known, shape (n,).
        values: the values, filled where missing, shape (n,).
    """

    step_s: float
    end_s: float
    day: int
    known: NDArray[np.bool_]
    values: Values

    def until(self, n: int) -> "Series":
        """Return the first n steps."""
        end_s = self.end_s - (len(self.values) - n) * self.step_s
        return replace(self, end_s=end_s, known=self.known[:n], values=self.values[:n])

    def last(self, n_days: int) -> "Series":
        """Return the last days, or all if there are fewer."""
        n = min(len(self.values), n_days * self.day)
        return replace(self, known=self.known[-n:], values=self.values[-n:])

    def middles_s(self, steps: NDArray[np.int_]) -> NDArray[np.float64]:
        """Return the middles of steps [Unix s]."""
        return np.asarray(self.end_s + (steps - len(self.values) + 0.5) * self.step_s, dtype=np.float64)

    def phase(self, steps: NDArray[np.int_]) -> Values:
        """Return the time of the day (UTC) of the middle of steps, as an angle [rad]."""
        return np.asarray(self.middles_s(steps) % DAY_S * (2 * np.pi / DAY_S), dtype=np.float64)


def history_extent(history: Signal, now_s: float) -> HistoryExtent | None:
    """Return the known part of a history at a time, or None if nothing is known."""
    n_known = int(np.searchsorted(history.starts_s, now_s, side="right"))
    known = np.flatnonzero(~np.isnan(history.values[:n_known]))
    if not len(known):
        return None
    last = int(known[-1])
    end_s = float(history.starts_s[last + 1]) if last + 1 < len(history) else history.ends_s
    differences_s = np.diff(history.starts_s[max(0, n_known - MAX_DIFFERENCES) : n_known])
    median_s = float(np.sort(differences_s)[len(differences_s) // 2]) if len(differences_s) else HOUR_S
    n_per_hour = min(max(round(HOUR_S / median_s), 1), MAX_STEPS_PER_HOUR)
    return HistoryExtent(n_known=n_known, last=last, end_s=end_s, step_s=HOUR_S / n_per_hour)


def hour_of_day(times_s: NDArray[np.float64]) -> NDArray[np.int_]:
    """Return the hour of the day (UTC) of times, 0 to 23, shape as given."""
    return np.asarray(times_s % DAY_S // HOUR_S, dtype=np.int_)


def build_series(history: Signal, extent: HistoryExtent, *, max_days: int) -> Series:
    """Return at most the last `max_days` of a history on the grid."""
    day = round(DAY_S / extent.step_s)
    span_s = extent.end_s - float(history.starts_s[0])
    n = max(1, min(int(span_s / extent.step_s + 0.5), max_days * day))
    values = _gridded(history, extent, n)
    known = ~np.isnan(values)
    values = _filled(values, known, day, max_interpolated=max(1, round(MAX_INTERPOLATED_S / extent.step_s)))
    return Series(step_s=extent.step_s, end_s=extent.end_s, day=day, known=known, values=values)


def _gridded(history: Signal, extent: HistoryExtent, n: int) -> Values:
    """Return the last n values on the grid, shape (n,)."""
    edges_s = np.append(history.starts_s[max(0, extent.last + 1 - n) : extent.last + 1], extent.end_s)
    if len(edges_s) == n + 1 and (np.abs(np.diff(edges_s) - extent.step_s) < SAME_S).all():
        return history.values[extent.last + 1 - n : extent.last + 1]  # the history is on the grid already
    middles_s = extent.end_s - (np.arange(n, 0, -1, dtype=np.float64) - 0.5) * extent.step_s
    values = sample(history, middles_s)
    values[-1] = history.values[extent.last]  # irregular starts may leave a gap in the middle of the last step
    return values


def sample(signal: Signal, times_s: NDArray[np.float64]) -> Values:
    """Return the values at times, shape (n,); NaN where there is none."""
    if not len(signal):
        return np.full(len(times_s), np.nan)
    index = np.searchsorted(signal.starts_s, times_s, side="right") - 1
    values = signal.values[np.maximum(index, 0)].copy()
    values[(index < 0) | (times_s >= signal.ends_s)] = np.nan
    return values


def _filled(values: Values, known: NDArray[np.bool_], day: int, *, max_interpolated: int) -> Values:
    """Return the values with short gaps interpolated, and long ones filled with the mean at the time of the day."""
    missing = np.flatnonzero(~known)
    if not len(missing):
        return values
    there = np.flatnonzero(known)
    values = values.copy()
    values[missing] = np.interp(missing, there, values[there])
    after = np.searchsorted(there, missing)
    lengths = there[np.minimum(after, len(there) - 1)] - there[np.maximum(after - 1, 0)] - 1
    long = missing[(lengths > max_interpolated) | (after == 0)]
    if len(long):
        sums = np.bincount(there % day, values[there], minlength=day)
        counts = np.bincount(there % day, minlength=day)
        usual = np.where(counts > 0, sums / np.maximum(counts, 1), values[there].mean())
        values[long] = usual[long % day]
    return values
