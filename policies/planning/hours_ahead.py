"""What a plan expects of the hours ahead: limits, power and speed, when the run ends, and how much slower it was then.

It is the plan that the present limit comes from, read on to its end: nothing is planned again. The next plan may
differ, as signal, forecast, curve and progress will.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from policies.planning.duty_cycle import Mix, mix_for
from policies.planning.objectives import Decision, Progress, RatesAhead
from policies.vocabulary.profile import ProfilePoint
from policies.vocabulary.units import DAY_S, Values

REACH_S: Final = DAY_S
"""Limits are told for so long ahead."""
SAME_SHARE_DIGITS: Final = 2
"""Mixes of the same limits whose shares are the same but for less are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMix:
    """What is planned from a time on.

    Attributes:
        starts_s: from when on [Unix s].
        mix: the limits that share the time; the lower one may be a pause (no rate).
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
        mixes: of the next 24 hours at most, each in force until the next one.
        until_s: until when the last one is in force [Unix s].
        ends_s: when the run will have ended [Unix s]; None where its length is not known.
        slowdown_ratio: how many times as long as at the highest limit it will have been active, at its end or, where
            that is not known, as far as the plan reaches; None where the time at the highest limit is not known.
    """

    mixes: tuple[PlannedMix, ...]
    until_s: float
    ends_s: float | None
    slowdown_ratio: float | None


def hours_ahead(
    decision: Decision, progress: Progress, *, now_s: float, period_s: float, fastest_per_s: float
) -> HoursAhead:
    """Return what the plan behind a decision expects.

    Args:
        decision: the decision.
        progress: the run when it was made.
        now_s: when it was made [Unix s].
        period_s: for how long it holds [s].
        fastest_per_s: the rate at the highest limit, by the curve that it was made on [1/s].
    """
    ahead = None if decision.ahead is None else decision.ahead()
    durations_s = np.array([period_s]) if ahead is None else ahead.durations_s
    mixes = [_present(decision, ahead, now_s, float(durations_s[0]))]
    if ahead is not None:
        later = zip(ahead.hulls[1:], ahead.rates_per_s[1:].tolist(), strict=True)
        mixes.extend(mix_for(hull, rate_per_s) for hull, rate_per_s in later)
    rates_per_s = np.array([_rate_per_s(mix) for mix in mixes])
    ends_s = None if ahead is None else _ends_s(durations_s, rates_per_s, _left_iterations(progress, fastest_per_s))
    timed_s = float(durations_s.sum()) if ahead is None else min(ahead.timed_s, float(durations_s.sum()))
    reach_s = min(timed_s, REACH_S, timed_s if ends_s is None else ends_s)
    starts_s = np.cumsum(durations_s) - durations_s
    told = [(now_s + at_s, mix) for at_s, mix in zip(starts_s.tolist(), mixes, strict=True) if at_s < reach_s]
    return HoursAhead(
        mixes=tuple(PlannedMix(starts_s=at_s, mix=mix) for at_s, mix in _merged(told)),
        until_s=now_s + reach_s,
        ends_s=None if ends_s is None else now_s + ends_s,
        slowdown_ratio=None
        if ahead is None
        else _slowdown_ratio(progress, durations_s, rates_per_s / fastest_per_s, ends_s),
    )


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


def _left_iterations(progress: Progress, fastest_per_s: float) -> float | None:
    """Return the remaining iterations, as many as the curve would make in the time that they take; None: not known.

    A job may have become slower than its curve: by its own iterations so far, as the required rate has it.
    """
    left, base_s = progress.expected_left_iterations, progress.base_s
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


def _slowdown_ratio(
    progress: Progress, durations_s: Values, speed_ratios: Values, ends_s: float | None
) -> float | None:
    """Return how many times as long as at the highest limit the run will have been active."""
    if progress.base_s is None:
        return None
    reach_s = float(durations_s.sum()) if ends_s is None else ends_s
    until_s = np.minimum(np.cumsum(durations_s), reach_s)
    base_s = float(speed_ratios @ np.diff(until_s, prepend=0.0)) + float(speed_ratios[-1]) * (reach_s - until_s[-1])
    return float((progress.active_s + reach_s) / (progress.base_s + base_s))


def _merged(told: list[tuple[float, Mix]]) -> Iterator[tuple[float, Mix]]:
    """Yield each mix once, from when on it is planned: those of the same limits and shares that follow are one."""
    yield told[0]
    for (_, before), (at_s, mix) in pairwise(told):
        if _key(before) != _key(mix):
            yield at_s, mix


def _key(mix: Mix) -> tuple[object, ...]:
    ratio = round(mix.high_ratio, SAME_SHARE_DIGITS)
    low, high = ((each.power_limit_w, each.iterations_per_s > 0) for each in (mix.low, mix.high))
    return (high, high, 0.0) if ratio == 1 else (low, low, 0.0) if ratio == 0 else (low, high, ratio)
