"""What a plan expects of the hours ahead: limits, power and speed, the end and slowdown of the run, and the saving.

It is the plan that the present limit comes from, read on to its end: nothing is planned again. The next plan may
differ, as signal, forecast, curve and progress will.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from policies.planning.duty_cycle import Mix, mix_for
from policies.planning.objectives import Decision, Progress, RatesAhead
from policies.profiling.measurement import NORMAL_95
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.profile import SAME_POINT_W, PowerProfile, ProfilePoint
from policies.vocabulary.units import DAY_S, HOUR_S, Values

REACH_S: Final = DAY_S
"""Limits are told for so long ahead."""
SHORTEST_S: Final = 1.0
"""What is planned for a shorter time is not told."""
SAME_SHARE_DIGITS: Final = 2
"""Mixes of the same limits whose shares are the same but for less are one; one whose share rounds to 0 or 1 is none."""

LOOKS_ERROR_RATIO: Final = 0.2
"""The standard deviation of how often there will be a look, as a share of it."""
MIN_FORECASTS: Final = 7 * 24
"""Of fewer hourly forecasts, a week of them, it is not known how far they are off."""
FEW_FORECASTS: Final = 0.93 * 48
"""A root mean square of few is uncertain: 1 + 0.93 / n turns the quantile of the normal distribution into Student's at
n degrees of freedom, and errors of two days have one, as neighbouring days are alike."""


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
    mixes = _mixes(decision, ahead, now_s, float(durations_s[0]))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What an expected saving rests on.

    Attributes:
        ratios: returns what n limits [W] are relative to the highest one, and how their errors correlate, shape (n, n);
            None: they are not known.
        host_power_w, pue: what the curve has beside the GPUs, which the saving has not.
        forecast_errors: the errors of past forecasts 1, 2, … hours ahead, shape (n, n_hours), in the unit of the
            signal; one that is not whole does not count. None: not known.
        known_s: for how long, from now on, the signal is known and not forecast [s].
        look_ratio: which share of the work is done in looks, at the highest limit.
    """

    ratios: Callable[[Sequence[float]], tuple[Sequence[LimitRatios], Values] | None]
    host_power_w: float = 0.0
    pue: float = 1.0
    forecast_errors: Values | None = None
    known_s: float = 0.0
    look_ratio: float = 0.0

    def gpus_w(self, power_w: float) -> float:
        """Return what the GPUs draw of a power of the curve [W]."""
        return max(power_w / self.pue - self.host_power_w, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSaving:
    """What a plan expects to save, of what the same work takes at the highest limit from now on.

    Errors are standard deviations, as shares of the same.

    Attributes:
        energy_ratio, energy_error_ratio: of the energy of the GPUs.
        signal_ratio: of Σ c·P, with c the expected signal; None where the work would cost nothing at the highest limit.
        signal_error_ratio: None: how far forecasts are off is not known, either.
    """

    energy_ratio: float
    energy_error_ratio: float
    signal_ratio: float | None
    signal_error_ratio: float | None


def expected_saving(
    decision: Decision, hours: HoursAhead, evidence: Evidence, *, now_s: float, curve: PowerProfile
) -> ExpectedSaving | None:
    """Return what a plan expects to save as far as it is told; None: it decides on the present alone, or is not known.

    With t the time at a limit, s its speed and e its energy per iteration relative to the highest one, the work is
    W = Σ t·s, and the same at the highest limit takes the time W from now on. So the saved energy is 1 - Σ t·s·e / W; a
    pause adds its idle energy, and looks do their share of the work at the highest limit.
    Errors of limits that are neighbours have much in common. Those of forecasts count by how much more or less the plan
    uses in an hour than its share of the saving says: where all hours are off alike, nothing. So it is seen how far the
    saving would have been off under each of the past forecasts, whose hours were off together as they are.

    Args:
        decision: the decision.
        hours: what is expected of the hours ahead.
        evidence: what is known of limits and forecasts.
        now_s: when it was made [Unix s].
        curve: the curve that it was made on.
    """
    ahead = None if decision.ahead is None else decision.ahead()
    if ahead is None:
        return None
    mixes = _mixes(decision, ahead, now_s, float(ahead.durations_s[0]))
    until_s = np.minimum(np.cumsum(ahead.durations_s), hours.until_s - now_s)
    lasts_s = np.diff(until_s, prepend=0.0)
    use = _used(mixes, lasts_s, evidence, curve)
    if use is None:
        return None
    work_s, used_s, errors = use
    saved_s = evidence.look_ratio * (work_s - used_s)
    used_s = used_s + saved_s
    base_s = float(work_s.sum())
    if not base_s > 0:
        return None
    twin_s = np.clip(base_s - (until_s - lasts_s), 0.0, lasts_s)
    base_cost, cost = float(ahead.values @ twin_s), float(ahead.values @ used_s)
    signal_ratio = 1 - cost / base_cost if base_cost > 0 else None
    signal_error_ratio = None
    if signal_ratio is not None:
        surplus_ratio = (used_s - (1 - signal_ratio) * twin_s) / base_cost
        forecast_error_ratio = _forecast_error_ratio(ahead.values, until_s, surplus_ratio, evidence)
        if forecast_error_ratio is not None:
            limits_error_ratio = errors.weighted_s(ahead.values, saved_s) / base_cost
            signal_error_ratio = math.hypot(limits_error_ratio, forecast_error_ratio)
    return ExpectedSaving(
        energy_ratio=1 - float(used_s.sum()) / base_s,
        energy_error_ratio=errors.weighted_s(np.ones(len(mixes)), saved_s) / base_s,
        signal_ratio=signal_ratio,
        signal_error_ratio=signal_error_ratio,
    )


class _UseErrors(NamedTuple):
    """The errors of what n hours use, by those of m limits: of its own of each, and what all have in common.

    Attributes:
        own_s: what one standard deviation of the own error of each limit adds to each hour, shape (n, m) [s].
        shared_s: the same of what they have in common, shape (n,) [s].
        correlation: of the own errors, shape (m, m).
    """

    own_s: Values
    shared_s: Values
    correlation: Values

    def weighted_s(self, weights: Values, saved_s: Values) -> float:
        """Return the standard deviation of a weighted sum over the hours; of `saved_s` they lose by looks."""
        own = weights @ self.own_s
        looks = LOOKS_ERROR_RATIO * float(weights @ saved_s)
        return math.hypot(
            math.sqrt(max(float(own @ self.correlation @ own), 0.0)), float(weights @ self.shared_s), looks
        )


def _used(
    mixes: Sequence[Mix], lasts_s: Values, evidence: Evidence, curve: PowerProfile
) -> tuple[Values, Values, _UseErrors] | None:
    """Return work and energy of each of n mixes, shape (n,), in seconds at the highest limit, and the errors."""
    top_w = evidence.gpus_w(curve.fastest.power_w)
    points = [(point, n) for n, mix in enumerate(mixes) for point in mix[:2]]
    limits_w = sorted({point.power_limit_w for point, _ in points if point.iterations_per_s > 0})
    ratios = evidence.ratios(limits_w) if limits_w else ((), np.empty((0, 0)))
    if ratios is None:
        return None
    known, correlation = ratios
    work_s, used_s, shared_s = np.zeros((3, len(mixes)))
    own_s = np.zeros((len(mixes), len(limits_w)))
    high_s = lasts_s * [mix.high_ratio for mix in mixes]
    at_s = np.column_stack((lasts_s - high_s, high_s)).ravel().tolist()
    for (point, n), active_s in zip(points, at_s, strict=True):
        if point.iterations_per_s > 0:
            place = limits_w.index(point.power_limit_w)
            at = known[place]
            used = active_s * at.rate_ratio / at.energy_ratio
            work_s[n] += active_s * at.rate_ratio
            used_s[n] += used
            own_s[n, place] += used * at.energy_error_ratio / at.energy_ratio
            shared_s[n] += used * at.shared_error_ratio / at.energy_ratio
        else:
            used_s[n] += active_s * evidence.gpus_w(point.power_w) / top_w if top_w > 0 else 0.0
    return work_s, used_s, _UseErrors(own_s, shared_s, correlation)


def _forecast_error_ratio(values: Values, until_s: Values, surplus_ratio: Values, evidence: Evidence) -> float | None:
    """Return the standard deviation of Σ surplus·c by the errors of past forecasts of c; None: it is not known."""
    starts_s = np.append(0.0, until_s[:-1])
    is_forecast = (starts_s >= evidence.known_s) & (until_s > starts_s)
    is_forecast[0] = False  # the present value
    if not is_forecast.any() or float(np.ptp(values)) == 0:
        return 0.0
    if evidence.forecast_errors is None:
        return None
    errors = evidence.forecast_errors[~np.isnan(evidence.forecast_errors).any(axis=1)]
    if len(errors) < MIN_FORECASTS:
        return None
    middles_h = (starts_s + until_s)[is_forecast] / (2 * HOUR_S)
    hours = np.clip(middles_h - 0.5, 0.0, errors.shape[1] - 1.0)
    before = np.minimum(hours.astype(np.int_), errors.shape[1] - 2)
    off = errors[:, before] + (hours - before) * (errors[:, before + 1] - errors[:, before])
    rms = float(np.sqrt(np.mean((off @ surplus_ratio[is_forecast]) ** 2)))
    return (1 + FEW_FORECASTS / len(errors)) * rms


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


def _mixes(decision: Decision, ahead: RatesAhead | None, now_s: float, duration_s: float) -> list[Mix]:
    """Return the limits of the whole plan; its present period is so long [s]."""
    mixes = [_present(decision, ahead, now_s, duration_s)]
    if ahead is not None:
        later = zip(ahead.hulls[1:], ahead.rates_per_s[1:].tolist(), strict=True)
        mixes.extend(mix_for(hull, rate_per_s) for hull, rate_per_s in later)
    return mixes


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
    base_s += progress.former_base_s
    whole_s = base_s + float(speed_ratios @ at_s)
    slowdown_ratio = (progress.former_active_s + progress.active_s + float(lasts_s.sum())) / whole_s
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
