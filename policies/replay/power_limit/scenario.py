"""What is true in a replay: the measured curve, the signal with its future, and the runs to play on them.

Gaps of the signal cost what lies on the line between the values around them, but no policy is told.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal

Values = NDArray[np.float64]
HISTORY_S: Final = 60 * 86_400.0
"""No planner and no forecaster looks further back."""
SAME_RATIO: Final = 1e-12
"""Counts of periods that differ by no more are the same; the rest is rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario:
    """What is true.

    Attributes:
        profile: the curve as the building sees it.
        signal: carbon intensity or price, the future included.
        limit_power_w: what the building sees where the GPU draws its highest limit [W], which it may never do; None:
            that limit.
    """

    profile: PowerProfile
    signal: Signal
    limit_power_w: float | None = None

    @property
    def max_power_w(self) -> float:
        """Return the power by which Zeus and Chase turn time into energy: the highest limit [W]."""
        return self.limit_power_w or self.profile.fastest.power_limit_w

    @cached_property
    def told_profile(self) -> PowerProfile:
        """Return the curve as a planner is told it: without doubt, since it is the truth."""
        return PowerProfile(
            tuple(replace(point, power_ci_w=0.0, iterations_per_s_ci=0.0) for point in self.profile.points)
        )

    @cached_property
    def edges_s(self) -> Values:
        """Return when the values of the signal begin, and when the last one ceases, shape (n + 1,) [Unix s]."""
        return np.append(self.signal.starts_s, self.signal.ends_s)

    @cached_property
    def values(self) -> Values:
        """Return the values of the signal, gaps bridged by lines, shape (n,)."""
        known = ~np.isnan(self.signal.values)
        return np.interp(self.signal.starts_s, self.signal.starts_s[known], self.signal.values[known])

    @cached_property
    def power_w(self) -> Values:
        """Return what each limit draws, shape (n_limits,) [W]."""
        return self.profile.power_w

    @cached_property
    def iterations_per_s(self) -> Values:
        """Return how fast each limit is, shape (n_limits,) [1/s]."""
        return self.profile.iterations_per_s

    @cached_property
    def _integrals(self) -> Values:
        return np.concatenate(([0.0], np.cumsum(np.diff(self.edges_s) * self.values)))

    def integral_until(self, times_s: Values) -> Values:
        """Return the integral of the signal from its beginning to some times within it [unit·s]."""
        return np.interp(times_s, self.edges_s, self._integrals)

    def index_of(self, power_limit_w: float) -> int:
        """Return which limit this is; raise `ValueError` where it was not measured, since nobody knows what it does."""
        point = self.profile.point_at(power_limit_w)
        if point is None:
            known = ", ".join(f"{known_w:g}" for known_w in self.profile.power_limits_w)
            raise ValueError(f"power_limit_w = {power_limit_w:g} W: was not measured; known are {known} W")
        return self.profile.points.index(point)

    def known_at(self, now_s: float) -> Signal:
        """Return the last 60 days of values that had ceased to hold by a time: what a source could have told."""
        end = int(np.searchsorted(self.edges_s, now_s, side="right")) - 1
        first = int(np.searchsorted(self.edges_s, now_s - HISTORY_S))
        whole = self.signal
        return Signal(
            kind=whole.kind,
            zone=whole.zone,
            source=whole.source,
            unit=whole.unit,
            starts_s=whole.starts_s[first : max(end, first)],
            values=whole.values[first : max(end, first)],
            ends_s=float(self.edges_s[max(end, first)]),
            issued_at_s=now_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A run to replay.

    Attributes:
        start_s: when it starts [Unix s].
        top_s: how long its work takes at the highest limit [s].
        period_s: how often it is planned [s].
    """

    start_s: float
    top_s: float
    period_s: float


def run_starts_s(world: Scenario, *, n_starts: int, history_s: float, longest_s: float, period_s: float) -> list[float]:
    """Return when runs start: evenly over the signal, on whole periods from its beginning [Unix s].

    Args:
        world: the truth.
        n_starts: how many; where the signal leaves room for fewer periods, some are the same.
        history_s: what shall precede the first, where there is that much [s].
        longest_s: what must follow the last [s].
        period_s: how often runs are planned [s].

    Raises:
        ValueError: the signal is too short.
    """
    begin_s, latest_s = float(world.edges_s[0]), float(world.edges_s[-1]) - longest_s
    if latest_s < begin_s:
        days = float(world.edges_s[-1] - begin_s) / 86_400
        raise ValueError(f"spans {days:.1f} days: must be at least {longest_s / 86_400:.1f} for such a run")
    first_s = min(begin_s + history_s, latest_s)
    offsets_s = np.linspace(first_s, latest_s, n_starts) - begin_s
    return [float(begin_s + math.floor(offset_s / period_s + SAME_RATIO) * period_s) for offset_s in offsets_s]
