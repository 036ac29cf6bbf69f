"""What a plan expects of the hours ahead: limits, power and speed, when the run ends, and how much slower it was then.

It is the plan that the present limit comes from, read on to its end: nothing is planned again. The next plan may
differ, as signal, forecast, curve and progress will.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.planning.duty_cycle import Mix, mix_for
from policies.planning.objectives import Decision, Progress, RatesAhead
from policies.profiling.measurement import NORMAL_95
from policies.vocabulary.profile import SAME_POINT_W, PowerProfile, ProfilePoint
from policies.vocabulary.units import DAY_S, Values

REACH_S: Final = DAY_S
"""Limits are told for so long ahead."""
SHORTEST_S: Final = 1.0
"""What is planned for a shorter time is not told."""
SAME_SHARE_DIGITS: Final = 2
"""Mixes of the same limits whose shares are the same but for less are one; one whose share rounds to 0 or 1 is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMix:
    """What is planned from a time on.

    Attributes:
        starts_s: from when on [Unix s].
        mix: the limits that share the time; the lower one may be a pause (no rate). One limit alone is both.
    """

    starts_s: float
    mix: Mix

    @property
    def power_w(self) -> float:
        """Return the mean power, host power and PUE included as in the curve [W]."""
        low, high, high_ratio = self.mix
        return low.power_w + high_ratio * (high.power_w - low.power_w)

    @property
    def rate_per_s(self) -> float:
        """Return the mean rate [1/s]."""
        return _rate_per_s(self.mix)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursAhead:
    """What a plan expects.

    Attributes:
        mixes: of the next 24 hours at most, each in force until the next one; at least one.
        until_s: until when the last one is in force [Unix s].
        ends_s: when the run will have ended [Unix s]; None where its length is not known.
        slowdown_ratio: how many times as long as at the highest limit it will have been active, at its end or, where
            that is not known, as far as the plan reaches; None where the time at the highest limit is not known.
        slowdown_error_ratio: its standard deviation, as a share of it: that of the time at the highest limit so far,
            and those of the rates at the planned limits. Hours at one limit share its error, and the errors of two
            limits are taken to be one, which is the worst case. None where an error is not known.
    """

    mixes: tuple[PlannedMix, ...]
    until_s: float
    ends_s: float | None
    slowdown_ratio: float | None
    slowdown_error_ratio: float | None


def hours_ahead(
    decision: Decision, progress: Progress, *, now_s: float, period_s: float, curve: PowerProfile
) -> HoursAhead:
    """Return what the plan behind a decision expects.

    Args:
        decision: the decision.
        progress: the run when it was made.
        now_s: when it was made [Unix s].
        period_s: for how long it holds [s].
        curve: the curve that it was made on.
    """
    ahead = None if decision.ahead is None else decision.ahead()
    durations_s = np.array([period_s]) if ahead is None else ahead.durations_s
    mixes = [_present(decision, ahead, now_s, float(durations_s[0]))]
    if ahead is not None:
        later = zip(ahead.hulls[1:], ahead.rates_per_s[1:].tolist(), strict=True)
        mixes.extend(mix_for(hull, rate_per_s) for hull, rate_per_s in later)
    rates_per_s = np.array([_rate_per_s(mix) for mix in mixes])
    left = _left_iterations(progress, curve.fastest.iterations_per_s)
    ends_s = None if ahead is None else _ends_s(durations_s, rates_per_s, left)
    timed_s = float(durations_s.sum()) if ahead is None else min(ahead.timed_s, float(durations_s.sum()))
    reach_s = max(min(timed_s, REACH_S, timed_s if ends_s is None else ends_s), SHORTEST_S)
    slowdown = None if ahead is None else _slowdown(progress, mixes, _lasts_s(durations_s, ends_s), curve)
    return HoursAhead(
        mixes=tuple(_told(mixes, durations_s, now_s=now_s, reach_s=reach_s)),
        until_s=now_s + reach_s,
        ends_s=None if ends_s is None else now_s + ends_s,
        slowdown_ratio=None if slowdown is None else slowdown[0],
        slowdown_error_ratio=None if slowdown is None else slowdown[1],
    )


def slowdown_after(
    progress: Progress, curve: PowerProfile, *, power_limit_w: float, duration_s: float
) -> tuple[float, float | None] | None:
    """Return how many times as long as at the highest limit a run will have been active after some time at one limit.

    With its standard deviation as a share of it; None: not known.

    Args:
        progress: the run so far.
        curve: its curve.
        power_limit_w: the limit [W].
        duration_s: for how long [s].
    """
    power_w, rate_per_s = curve.at(power_limit_w)
    point = ProfilePoint(power_limit_w=power_limit_w, power_w=power_w, iterations_per_s=rate_per_s)
    return _slowdown(progress, [Mix(point, point, 0.0)], np.array([duration_s]), curve)


def _present(decision: Decision, ahead: RatesAhead | None, now_s: float, duration_s: float) -> Mix:
    """Return the limits of the present period as they were decided."""
    first = ProfilePoint(
        power_limit_w=decision.power_limit_w, power_w=decision.power_w, iterations_per_s=decision.iterations_per_s
    )
    if decision.pause is not None and ahead is not None and ahead.hulls[0].begins_with_pause:
        pause_ratio = min((decision.pause.until_s - decision.pause.from_s) / duration_s, 1.0)
        return Mix(ahead.hulls[0].slowest, first, 1 - pause_ratio)
    if decision.scheduled is None:
        return Mix(first, first, 0.0)
    then = decision.scheduled
    second = ProfilePoint(
        power_limit_w=then.power_limit_w, power_w=then.power_w, iterations_per_s=then.iterations_per_s
    )
    second_ratio = 1 - min((then.from_s - now_s) / duration_s, 1.0)
    is_up = second.power_limit_w > first.power_limit_w
    return Mix(first, second, second_ratio) if is_up else Mix(second, first, 1 - second_ratio)


def _rate_per_s(mix: Mix) -> float:
    low_per_s, high_per_s = mix.low.iterations_per_s, mix.high.iterations_per_s
    return low_per_s + mix.high_ratio * (high_per_s - low_per_s)


def _base_s(progress: Progress) -> float | None:
    """Return how long the work so far takes at the highest limit [s]; None: not known, as of iterations in no time."""
    base_s = progress.base_s
    return base_s if base_s is not None and (base_s > 0 or not progress.n_iterations > 0) else None


def _left_iterations(progress: Progress, fastest_per_s: float) -> float | None:
    """Return the remaining iterations, as many as the curve would make in the time that they take; None: not known.

    A job may have become slower than its curve: by its own iterations so far, as the required rate has it.
    """
    left, base_s = progress.expected_left_iterations, _base_s(progress)
    if left is None or base_s is None or not progress.n_iterations > 0:
        return left
    return left * base_s * fastest_per_s / progress.n_iterations


def _ends_s(durations_s: Values, rates_per_s: Values, left_iterations: float | None) -> float | None:
    """Return after how long the work is done [s]; past the plan it goes on as at its end. None: it is not known."""
    if left_iterations is None:
        return None
    done = np.append(0.0, np.cumsum(durations_s * rates_per_s))
    n = min(int(np.searchsorted(done[1:], left_iterations)), len(durations_s) - 1)
    if not rates_per_s[n] > 0:
        return None
    return float(durations_s[:n].sum() + (left_iterations - done[n]) / rates_per_s[n])


def _lasts_s(durations_s: Values, ends_s: float | None) -> Values:
    """Return for how long the run is at each rate until it ends [s]; past the plan it goes on as at its end."""
    reach_s = float(durations_s.sum()) if ends_s is None else ends_s
    until_s = np.minimum(np.cumsum(durations_s), reach_s)
    until_s[-1] = reach_s
    return np.diff(until_s, prepend=0.0)


def _slowdown(
    progress: Progress, mixes: Sequence[Mix], lasts_s: Values, curve: PowerProfile
) -> tuple[float, float | None] | None:
    """Return how many times as long as at the highest limit the run will have been active, and the error ratio."""
    base_s = _base_s(progress)
    if base_s is None:
        return None
    points = [*(mix.low for mix in mixes), *(mix.high for mix in mixes)]
    high_s = lasts_s * [mix.high_ratio for mix in mixes]
    at_s = np.concatenate((lasts_s - high_s, high_s))
    speed_ratios = np.array([point.iterations_per_s for point in points]) / curve.fastest.iterations_per_s
    whole_s = base_s + float(speed_ratios @ at_s)
    slowdown_ratio = (progress.active_s + float(lasts_s.sum())) / whole_s
    errors = _speed_error_ratios(points, curve)
    if errors is None:
        return slowdown_ratio, None
    return slowdown_ratio, float(progress.base_error_ratio * base_s + (speed_ratios * errors) @ at_s) / whole_s


def _speed_error_ratios(points: Sequence[ProfilePoint], curve: PowerProfile) -> Values | None:
    """Return the standard deviation of the speed at each limit relative to the highest, as a share of it.

    Between limits whose rates have an interval it is interpolated. None: none has one.
    """
    known = [each for each in curve.points if each.iterations_per_s_ci]
    if not known:
        return None
    limits_w = np.array([curve.fastest.power_limit_w, *(point.power_limit_w for point in points)])
    errors = np.interp(limits_w, [each.power_limit_w for each in known], [each.rate_ci_ratio for each in known])
    is_below = limits_w[1:] < limits_w[0] - SAME_POINT_W
    return np.where(is_below, np.hypot(errors[1:], errors[0]), 0.0) / NORMAL_95


def _told(mixes: Sequence[Mix], durations_s: Values, *, now_s: float, reach_s: float) -> Iterator[PlannedMix]:
    """Yield what is planned up to `reach_s` from now on: mixes of the same limits and shares that follow are one."""
    ends_s = np.minimum(np.cumsum(durations_s), reach_s)
    starts_s = np.append(0.0, ends_s[:-1])
    told = [n for n in range(len(mixes)) if ends_s[n] - starts_s[n] >= SHORTEST_S] or [0]
    starts_s[told[0]] = 0.0
    before: object = None
    for n in told:
        mix = _rounded(mixes[n])
        key = [(point.power_limit_w, point.iterations_per_s > 0) for point in mix[:2]], _share_ratio(mix)
        if key != before:
            before = key
            yield PlannedMix(starts_s=now_s + float(starts_s[n]), mix=mix)


def _share_ratio(mix: Mix) -> float:
    return round(mix.high_ratio, SAME_SHARE_DIGITS)


def _rounded(mix: Mix) -> Mix:
    """Return a mix, or the one limit that has all of the time but for rounding."""
    point = {0.0: mix.low, 1.0: mix.high}.get(_share_ratio(mix))
    return mix if point is None else Mix(point, point, 0.0)
