"""The inputs of a replay: the measured curve, the signal with its future, and the runs.

Gaps of the signal are interpolated linearly for accounting; policies see them as gaps.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, Values

HISTORY_S: Final = 60 * DAY_S
"""How much history policies get: no planner and no forecaster looks further back."""
SAME_RATIO: Final = 1e-12
"""Tolerance for rounding in the number of periods."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario:
    """The ground truth of a replay.

    Attributes:
        profile: power and rate at each measured limit, as the building draws it.
        signal: carbon intensity or price, including the future.
        limit_power_w: the building's power while the GPU draws its highest limit, which it may never do [W];
            None: that limit.
    """

    profile: PowerProfile
    signal: Signal
    limit_power_w: float | None = None

    @property
    def max_power_w(self) -> float:
        """Return the power at which Zeus and Chase price time: the highest limit [W]."""
        return self.limit_power_w or self.profile.fastest.power_limit_w

    @cached_property
    def certain_profile(self) -> PowerProfile:
        """Return the curve without confidence intervals, as planners get it."""
        return PowerProfile(
            tuple(replace(point, power_ci_w=0.0, iterations_per_s_ci=0.0) for point in self.profile.points)
        )

    @cached_property
    def edges_s(self) -> Values:
        """Return when each value of the signal begins, and when the last one ends, shape (n + 1,) [Unix s]."""
        return np.append(self.signal.starts_s, self.signal.ends_s)

    @cached_property
    def values(self) -> Values:
        """Return the values of the signal, gaps interpolated, shape (n,)."""
        known = ~np.isnan(self.signal.values)
        return np.interp(self.signal.starts_s, self.signal.starts_s[known], self.signal.values[known])

    @cached_property
    def power_w(self) -> Values:
        """Return the power at each limit, shape (n_limits,) [W]."""
        return self.profile.power_w

    @cached_property
    def iterations_per_s(self) -> Values:
        """Return the rate at each limit, shape (n_limits,) [1/s]."""
        return self.profile.iterations_per_s

    @cached_property
    def _integrals(self) -> Values:
        return np.concatenate(([0.0], np.cumsum(np.diff(self.edges_s) * self.values)))

    def integral_until(self, times_s: Values) -> Values:
        """Return the integral of the signal from its beginning to some times within it [unit·s]."""
        return np.interp(times_s, self.edges_s, self._integrals)

    def index_of(self, power_limit_w: float) -> int:
        """Return the index of a limit.

        Raises:
            ValueError: it was not measured, so its power and rate are unknown.
        """
        point = self.profile.point_at(power_limit_w)
        if point is None:
            known = ", ".join(f"{known_w:g}" for known_w in self.profile.power_limits_w)
            raise ValueError(f"power_limit_w = {power_limit_w:g} W: was not measured; measured limits: {known} W")
        return self.profile.points.index(point)

    def known_at(self, now_s: float) -> Signal:
        """Return the last 60 days of values that had ended by a time: what a source could have published."""
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
        base_duration_s: how long its work takes at the highest limit [s].
        period_s: the time between two decisions [s].
    """

    start_s: float
    base_duration_s: float
    period_s: float


def run_starts_s(
    scenario: Scenario, *, n_starts: int, history_s: float, longest_s: float, period_s: float
) -> list[float]:
    """Return start times spread evenly over the signal, at whole periods from its beginning [Unix s].

    Args:
        scenario: the ground truth.
        n_starts: how many; some coincide where the signal has fewer periods.
        history_s: the history before the first start, if the signal has that much [s].
        longest_s: the signal needed after the last start [s].
        period_s: the time between two decisions [s].

    Raises:
        ValueError: the signal is too short.
    """
    begin_s, latest_s = float(scenario.edges_s[0]), float(scenario.edges_s[-1]) - longest_s
    if latest_s < begin_s:
        days = float(scenario.edges_s[-1] - begin_s) / DAY_S
        raise ValueError(f"spans {days:.1f} days: must be at least {longest_s / DAY_S:.1f} days for these runs")
    first_s = min(begin_s + history_s, latest_s)
    offsets_s = np.linspace(first_s, latest_s, n_starts) - begin_s
    return [float(begin_s + math.floor(offset_s / period_s + SAME_RATIO) * period_s) for offset_s in offsets_s]
