"""Turns a rate into power limits: one limit, or a duty cycle of two adjacent ones of the hull within a period."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, NamedTuple

from policies.planning.objectives import CurrentLimit, ScheduledLimit, SwitchingRules
from policies.vocabulary.power_curve import Hull
from policies.vocabulary.profile import SAME_POINT_W, ProfilePoint

MIN_SHARE: Final = 0.01
"""A smaller part of a period at another limit is not worth the change."""
ROUNDING_RATIO: Final = 1e-12
"""Rates that differ by less are equal but for rounding."""
CLOSE_RATIO: Final = 0.002
"""Of two limits whose rates are closer than this, the nearer one will do: the next periods compensate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DutyCycle:
    """The first limit of a period; unless it lasts for all of it, the second, and the duration of the first [s]."""

    first: ProfilePoint
    second: ProfilePoint | None = None
    first_s: float = 0.0

    def scheduled(self, now_s: float) -> ScheduledLimit | None:
        """Return the second limit of a cycle that begins now, or None if there is none."""
        if self.second is None:
            return None
        return ScheduledLimit(
            from_s=now_s + self.first_s,
            power_limit_w=self.second.power_limit_w,
            power_w=self.second.power_w,
            iterations_per_s=self.second.iterations_per_s,
        )

    def __contains__(self, power_limit_w: object) -> bool:
        """Return whether a limit is one of the two [W]."""
        return any(point is not None and point.power_limit_w == power_limit_w for point in (self.first, self.second))


class Mix(NamedTuple):
    """Two adjacent limits of a hull that share a time, and the share of the upper one; of one limit alone both are."""

    low: ProfilePoint
    high: ProfilePoint
    high_ratio: float


def mix_for(hull: Hull, rate_per_s: float) -> Mix:
    """Return the limits of a hull whose mean rate is `rate_per_s`, or the nearest one that it has."""
    least_per_s = rate_per_s * (1 - ROUNDING_RATIO)
    upper = bisect_left(hull.points, least_per_s, key=lambda point: point.iterations_per_s)
    if upper == 0 or upper == len(hull.points):
        point = hull.points[min(upper, len(hull.points) - 1)]
        return Mix(point, point, 0.0)
    low, high = hull.points[upper - 1], hull.points[upper]
    spread_per_s = high.iterations_per_s - low.iterations_per_s
    return Mix(low, high, min((rate_per_s - low.iterations_per_s) / spread_per_s, 1.0))


def duty_cycle_for(
    hull: Hull,
    rate_per_s: float,
    rules: SwitchingRules,
    current: CurrentLimit | None,
    *,
    minimum_per_s: float = 0.0,
    maximum_per_s: float = math.inf,
    pace_per_s: float = math.inf,
) -> DutyCycle:
    """Return the limits whose mean rate over a period is `rate_per_s`, as far as the hull and the dwell time allow.

    A period begins with the current limit if it is one of the two, so there is one change a period. The next period
    compensates what the dwell time makes too fast or too slow; but the mean is never below `minimum_per_s`.

    A run may end within the period: a time before its end, `pace_per_s` times that time less must be done than at its
    end. Where the slower limit would come first and last too long for that, its part is made shorter, as long as the
    mean does not exceed `maximum_per_s`; else the faster one comes first.
    """
    low, high, share_ratio = mix_for(hull, rate_per_s)
    if low is high:
        return DutyCycle(first=low)
    low_per_s, spread_per_s = low.iterations_per_s, high.iterations_per_s - low.iterations_per_s
    minimum_ratio = (minimum_per_s - low_per_s) / spread_per_s
    least_part_ratio = 1.0 if spread_per_s <= CLOSE_RATIO * low_per_s else rules.min_dwell_s / rules.period_s
    fast_first_ratio = _feasible_share_ratio(
        share_ratio, minimum_ratio=minimum_ratio, least_part_ratio=least_part_ratio
    )
    is_low_now = current is not None and abs(current.power_limit_w - low.power_limit_w) <= SAME_POINT_W
    if is_low_now and fast_first_ratio > 0:
        in_time_ratio = (minimum_per_s - low_per_s) / (pace_per_s - low_per_s) if minimum_ratio > 0 else 0.0
        slow_first_ratio = _feasible_share_ratio(
            share_ratio, minimum_ratio=max(minimum_ratio, in_time_ratio), least_part_ratio=least_part_ratio
        )
        if slow_first_ratio == fast_first_ratio or low_per_s + slow_first_ratio * spread_per_s <= maximum_per_s:
            return _cycle(low, high, 1 - slow_first_ratio, rules)
    return _cycle(high, low, fast_first_ratio, rules)


def _cycle(first: ProfilePoint, second: ProfilePoint, first_ratio: float, rules: SwitchingRules) -> DutyCycle:
    """Return the cycle of two limits, or the one that has all of the period."""
    if first_ratio in {0.0, 1.0}:
        return DutyCycle(first=first if first_ratio else second)
    return DutyCycle(first=first, second=second, first_s=first_ratio * rules.period_s)


def _feasible_share_ratio(share_ratio: float, *, minimum_ratio: float, least_part_ratio: float) -> float:
    """Return the share of the upper limit nearest to `share_ratio` whose parts are each 0 or `least_part_ratio`.

    It is at least `minimum_ratio`, or 1 if no share is.
    """
    least = max(least_part_ratio, MIN_SHARE)
    feasible = [0.0, 1.0] if least > 1 / 2 else [0.0, least, min(max(share_ratio, least), 1 - least), 1 - least, 1.0]
    enough = [share for share in feasible if share >= minimum_ratio * (1 - ROUNDING_RATIO)] or [1.0]
    return min(enough, key=lambda share: abs(share - share_ratio))
