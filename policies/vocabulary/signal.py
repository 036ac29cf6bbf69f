"""Grid signals: carbon intensity or price as a step function of Unix time, with gaps and an age.

>>> day = Signal(kind="average", zone="DE", source="example", unit="g/kWh", starts_s=np.array([0.0, 3600.0]),
...              values=np.array([300.0, 500.0]), ends_s=7200.0, issued_at_s=0.0)
>>> day.value_at(3599.0), day.value_at(3600.0), day.value_at(7200.0)
(300.0, 500.0, None)
>>> day.mean(1800.0, 7200.0), day.age_s(7260.0)
(433.3333333333333, 60.0)
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

SignalKind = Literal["average", "marginal", "price", "energy"]
NOT_ESTIMATED: Final = np.array(False)
"""For `Signal.estimated`: every value was measured, and will not be revised."""
ESTIMATED: Final = np.array(True)
"""For `Signal.estimated`: no value is more than an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Signal:
    """A step function of time: each value holds until the next one starts.

    Attributes:
        kind: average or marginal carbon intensity, price, or plain energy (the constant 1); kinds never mix.
        zone: the zone of the grid.
        source: where the values come from.
        unit: `g/kWh`, `EUR/kWh` and the like, or `1`.
        starts_s: when each value begins to hold, shape (n,), strictly increasing; Unix time [s].
        values: the values, shape (n,); NaN where missing.
        ends_s: until when the last value holds [s]; infinite for a constant.
        issued_at_s: when the source issued it [s].
        estimated: whether each value is an estimate (a forecast, or what will be revised), shape (n,), or one for all.
    """

    kind: SignalKind
    zone: str
    source: str
    unit: str
    starts_s: NDArray[np.float64]
    values: NDArray[np.float64]
    ends_s: float
    issued_at_s: float
    estimated: NDArray[np.bool_] = field(default_factory=lambda: NOT_ESTIMATED)

    def __post_init__(self) -> None:
        """Check the shapes, the order and the end; the arrays become read-only copies."""
        starts_s, values = np.array(self.starts_s, dtype=np.float64), np.array(self.values, dtype=np.float64)
        if starts_s.ndim != 1 or starts_s.shape != values.shape:
            raise ValueError(f"starts_s has shape {starts_s.shape}, values {values.shape}: both must be (n,)")
        if not np.isfinite(starts_s).all() or (np.diff(starts_s) <= 0).any():
            raise ValueError("starts_s must be finite and strictly increasing")
        if np.isinf(values).any():
            raise ValueError("values must be finite, or NaN where missing")
        if np.isnan(self.ends_s) or (len(starts_s) and self.ends_s <= starts_s[-1]):
            raise ValueError(f"ends_s = {self.ends_s}: must be after the last start, {starts_s[-1:]}")
        if self.estimated.shape not in {(), (1,), values.shape}:
            raise ValueError(f"estimated has shape {self.estimated.shape}, values {values.shape}: must be the same")
        estimated = np.array(np.broadcast_to(self.estimated, values.shape), dtype=np.bool_)
        starts_s.flags.writeable = values.flags.writeable = estimated.flags.writeable = False
        object.__setattr__(self, "estimated", estimated)
        object.__setattr__(self, "starts_s", starts_s)
        object.__setattr__(self, "values", values)

    def __len__(self) -> int:
        """Return how many values there are, missing ones included."""
        return len(self.values)

    def value_at(self, now_s: float) -> float | None:
        """Return the value at a time, or None if it is missing."""
        index = int(self.starts_s.searchsorted(now_s, side="right")) - 1
        if index < 0 or now_s >= self.ends_s:
            return None
        value = float(self.values[index])
        return None if math.isnan(value) else value

    def last_value_at(self, now_s: float) -> float | None:
        """Return the value that holds at a time, or the last known one before it; None where none is known."""
        index = int(np.searchsorted(self.starts_s, now_s, side="right")) - 1
        while index >= 0 and np.isnan(self.values[index]):
            index -= 1
        return float(self.values[index]) if index >= 0 else None

    def age_s(self, now_s: float) -> float:
        """Return the time since the last known value ended: 0 while one holds, infinite if there is none [s]."""
        known = ~np.isnan(self.values) & (self.starts_s <= now_s)
        if not known.any():
            return float("inf")
        return max(0.0, now_s - float(self._stops_s()[known][-1]))

    def between(self, start_s: float, end_s: float) -> "Signal":
        """Return the part from `start_s` to `end_s`, clipped to both; it may be empty."""
        kept = (self._stops_s() > start_s) & (self.starts_s < end_s) & (start_s < end_s)
        starts_s = np.maximum(self.starts_s[kept], start_s)
        return replace(
            self,
            starts_s=starts_s,
            values=self.values[kept],
            estimated=self.estimated[kept],
            ends_s=min(self.ends_s, end_s),
        )

    def steps(self, start_s: float, end_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (durations [s], values) of the known values between two times, both of shape (n_known,)."""
        durations_s = np.minimum(self._stops_s(), end_s) - np.maximum(self.starts_s, start_s)
        kept = (durations_s > 0) & ~np.isnan(self.values)
        return durations_s[kept], self.values[kept]

    def mean(self, start_s: float, end_s: float) -> float | None:
        """Return the time-weighted mean of the known values between two times, or None if none is known."""
        durations_s, values = self.steps(start_s, end_s)
        return float(np.average(values, weights=durations_s)) if len(values) else None

    def unmeasured_s(self, start_s: float, end_s: float) -> float:
        """Return for how long between two times no measured value holds: an estimate, or none [s]."""
        begin = max(int(self.starts_s.searchsorted(start_s, side="right")) - 1, 0)
        part = slice(begin, int(self.starts_s.searchsorted(end_s)))
        durations_s = np.minimum(self._stops_s()[part], end_s) - np.maximum(self.starts_s[part], start_s)
        is_measured = (durations_s > 0) & ~np.isnan(self.values[part]) & ~self.estimated[part]
        return max(end_s - start_s - float(durations_s[is_measured].sum()), 0.0)

    def maximum(self, start_s: float, end_s: float) -> float | None:
        """Return the greatest known value between two times, or None if none is known."""
        _, values = self.steps(start_s, end_s)
        return float(values.max()) if len(values) else None

    def joined(self, other: "Signal") -> "Signal":
        """Return this signal continued by `other`, which wins from its start on; a gap between them is missing.

        Raises:
            ValueError: the kinds or units differ.
        """
        if (self.kind, self.unit) != (other.kind, other.unit):
            raise ValueError(f"cannot join {self.kind} [{self.unit}] with {other.kind} [{other.unit}]")
        if not len(other):
            return self
        past = self.between(-np.inf, float(other.starts_s[0]))
        gap = [past.ends_s] if len(past) and past.ends_s < other.starts_s[0] else []
        return replace(
            other,
            source=self.source if self.source == other.source else f"{self.source}+{other.source}",
            starts_s=np.concatenate((past.starts_s, gap, other.starts_s)),
            values=np.concatenate((past.values, [np.nan] * len(gap), other.values)),
            estimated=np.concatenate((past.estimated, [False] * len(gap), other.estimated)),
        )

    def revised(self, newer: "Signal") -> "Signal":
        """Return this signal merged with a newer fetch of the same source.

        Before the first start of `newer` this signal stays, and a gap between the two is missing. From there on the
        newer values win. Where `newer` has no value, or ends earlier, this signal's values that start there stay, each
        for as long as it held; nothing is interpolated.

        Raises:
            ValueError: the kinds, zones or units differ.
        """
        mine, theirs = (self.kind, self.zone, self.unit), (newer.kind, newer.zone, newer.unit)
        if mine != theirs:
            raise ValueError(f"cannot revise {mine} with {theirs}: kind, zone and unit must be the same")
        if not len(self) or not len(newer):
            return newer if len(newer) else self
        return replace(self, source=newer.source).joined(_filled(newer, self))

    def _stops_s(self) -> NDArray[np.float64]:
        """Return when each value ceases to hold, shape (n,) [s]."""
        return np.append(self.starts_s[1:], self.ends_s)[: len(self.starts_s)]


def constant_signal(
    value: float, *, kind: SignalKind, unit: str, zone: str = "", source: str = "constant", now_s: float
) -> Signal:
    """Return a signal with one value at all times, past and future."""
    return Signal(
        kind=kind,
        zone=zone,
        source=source,
        unit=unit,
        starts_s=np.array([min(0.0, now_s)]),
        values=np.array([value]),
        ends_s=float("inf"),
        issued_at_s=now_s,
    )


def _filled(newer: Signal, older: Signal) -> Signal:
    """Return a signal whose gaps, and the time after its end, are filled with the values of an older one."""
    if (older.starts_s >= newer.ends_s).any():
        newer = replace(
            newer,
            starts_s=np.append(newer.starts_s, newer.ends_s),
            values=np.append(newer.values, np.nan),
            estimated=np.append(newer.estimated, False),
            ends_s=older.ends_s,
        )
    ends = [older.ends_s] if np.isfinite(older.ends_s) else []
    starts_s = np.append(older.starts_s, ends)
    index = np.searchsorted(newer.starts_s, starts_s, side="right") - 1
    lacking = (index >= 0) & (starts_s < newer.ends_s) & np.isnan(newer.values[index])
    # Of two rows with one start the first is taken. The older one's gaps and its end come along: they end its values.
    starts_s, first = np.unique(np.concatenate((starts_s[lacking], newer.starts_s)), return_index=True)
    values = np.append(older.values, [np.nan] * len(ends))[lacking]
    estimated = np.append(older.estimated, [False] * len(ends))[lacking]
    return replace(
        newer,
        starts_s=starts_s,
        values=np.concatenate((values, newer.values))[first],
        estimated=np.concatenate((estimated, newer.estimated))[first].astype(np.bool_),
    )
