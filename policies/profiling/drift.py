"""Detects that a job has left its power curve: a cache has warmed, the code has changed, the data loader is the brake.

Windows of rate and power are compared with the curve. Their deviations, beyond the uncertainty of the curve and in
multiples of their own noise, are accumulated: a two-sided CUSUM for each of the two (Page, Biometrika 41, 1954). The
allowance is half of the least change that matters, 3 % where windows scatter by the usual 1 %. With it and the bound,
steady noise alarms in less than one of a million windows (Siegmund, Sequential Analysis, 1985, equation 2.57); 5 %
take three windows, 3 % about ten. Where windows scatter more, changes must be larger: their noise is measured.

After an alarm of the rate the curve is void, and the job is profiled again; but not sooner than a rest after the last
profile, so that a job without a steady rate is not measured all the time. Where the power alone is off, as at a limit
that was measured on a cold board, the speeds hold, and with them the time budget: only the powers are doubted, and
measured anew as limits are held. Slow changes never alarm: the refinement follows them.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from policies.profiling.curve_model import posterior_curve
from policies.profiling.measurement import (
    EMPTY_WINDOW,
    NORMAL_95,
    PRIOR_SCATTER,
    Observation,
    Scatter,
    Window,
    estimate_point,
)
from policies.profiling.refinement import merge_point
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile, ProfilePoint

MIN_ITERATIONS: Final = 10.0
"""With fewer in a window, their noise would hide a change."""
REST_RATIO: Final = 10.0
"""A rest lasts this many times as long as a profile."""
LEAST_NOISE_RATIO: Final = 0.01
"""The least standard deviation of a window, however small its estimate."""
ALLOWANCE_DEVIATIONS: Final = 1.5
BOUND_DEVIATIONS: Final = 5.0
MOST_DEVIATIONS: Final = 2.0
"""A window adds at most so much: it takes three to alarm, so that one long stall is no change."""
NOISE_WEIGHT: Final = 0.1
NOISE_REACH: Final = 4.0
"""A jump between two windows counts as noise of at most this many times the noise so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cusum:
    """The cumulative sums of one quantity's deviations from the curve.

    Attributes:
        above_ratio: the sum of positive deviations, in multiples of the noise; never below 0.
        below_ratio: the sum of negative ones, likewise.
        noise_ratio: the standard deviation of the logarithm of a window.
        last_log: the logarithmic deviation of the last window at this limit; None before the first.
    """

    above_ratio: float = 0.0
    below_ratio: float = 0.0
    noise_ratio: float = LEAST_NOISE_RATIO
    last_log: float | None = None

    def with_deviation(self, deviation_log: float, *, error_ratio: float, doubt_ratio: float) -> "Cusum":
        """Return the sums after one more window.

        Args:
            deviation_log: the logarithm of its estimate over the curve's.
            error_ratio: the standard error within the window; the scatter between windows may be larger.
            doubt_ratio: the uncertainty of the curve.
        """
        noise_ratio = self.noise_ratio
        if self.last_log is not None:
            jump_ratio = min(abs(deviation_log - self.last_log) / math.sqrt(2), NOISE_REACH * noise_ratio)
            squares = (1 - NOISE_WEIGHT) * noise_ratio**2 + NOISE_WEIGHT * jump_ratio**2
            noise_ratio = max(math.sqrt(squares), LEAST_NOISE_RATIO)
        scale_ratio = max(noise_ratio, error_ratio)
        above, below = (
            min((sign * deviation_log - doubt_ratio) / scale_ratio - ALLOWANCE_DEVIATIONS, MOST_DEVIATIONS)
            for sign in (1, -1)
        )
        return Cusum(
            above_ratio=min(max(self.above_ratio + above, 0.0), 2 * BOUND_DEVIATIONS),
            below_ratio=min(max(self.below_ratio + below, 0.0), 2 * BOUND_DEVIATIONS),
            noise_ratio=noise_ratio,
            last_log=deviation_log,
        )

    @property
    def greater_ratio(self) -> float:
        """Return the greater of the two sums."""
        return max(self.above_ratio, self.below_ratio)


ZERO_CUSUM: Final = Cusum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The state of drift detection since the job was profiled.

    Attributes:
        rested_s: the active time since the profile; infinite if the curve comes from a former run [s].
        rate: the sums of the rate.
        power: the sums of the power.
        power_limit_w: the limit of the current window [W].
        window: the current window.
        scatter: the scatter of iterations.
        seen: what the last window has shown; None before the first.
    """

    rested_s: float = 0.0
    rate: Cusum = ZERO_CUSUM
    power: Cusum = ZERO_CUSUM
    power_limit_w: float = 0.0
    window: Window = EMPTY_WINDOW
    scatter: Scatter = PRIOR_SCATTER
    seen: ProfilePoint | None = None

    @property
    def has_shown(self) -> bool:
        """Return whether a window has shown a deviation of which the next ones must tell whether it lasts."""
        return max(self.rate.greater_ratio, self.power.greater_ratio) >= MOST_DEVIATIONS / 2

    @property
    def is_suspected(self) -> bool:
        """Return whether drift is suspected: the curve should not be refined by what is measured now."""
        return max(self.rate.greater_ratio, self.power.greater_ratio) >= BOUND_DEVIATIONS / 2


def update_drift(drift: Drift, observation: Observation, *, profile: PowerProfile, window_s: float) -> Drift:
    """Return the state after one more observation; a change of the limit begins a new window.

    >>> curve = PowerProfile.from_rows([(300.0, 200.0, 2.0)])
    >>> drift = Drift()
    >>> for _ in range(5):
    ...     slow = Observation(power_limit_w=300.0, active_s=10.0, n_iterations=15.0, energy_j=2e3)
    ...     drift = update_drift(drift, slow, profile=curve, window_s=10.0)
    >>> drift.is_suspected
    True
    """
    if not observation.is_possible:
        return drift
    drift = replace(drift, rested_s=drift.rested_s + observation.active_s)
    if abs(observation.power_limit_w - drift.power_limit_w) > LIMIT_TOLERANCE_W:
        drift = replace(
            drift,
            power_limit_w=observation.power_limit_w,
            window=EMPTY_WINDOW,
            rate=replace(drift.rate, last_log=None),
            power=replace(drift.power, last_log=None),
        )
    window = drift.window.with_observation(observation)
    if window.active_s < window_s or window.n_counted < MIN_ITERATIONS or window.energy_j <= 0:
        return replace(drift, window=window)
    return _with_window(drift, window, posterior_curve(profile))


def has_rested(drift: Drift, *, sweep_s: float) -> bool:
    """Return whether the job has rested long enough after a first sweep of `sweep_s` to be profiled again [s]."""
    return drift.rested_s >= REST_RATIO * sweep_s


def has_drifted(drift: Drift, *, sweep_s: float) -> bool:
    """Return whether the job has another speed, and has rested long enough after a first sweep of `sweep_s` [s]."""
    return drift.rate.greater_ratio >= BOUND_DEVIATIONS and has_rested(drift, sweep_s=sweep_s)


def is_only_power_off(drift: Drift) -> bool:
    """Return whether the job draws what the curve does not say, at the speed that it does say."""
    return drift.power.greater_ratio >= BOUND_DEVIATIONS and drift.rate.greater_ratio < BOUND_DEVIATIONS / 2


def with_powers_renewed(profile: PowerProfile, drift: Drift) -> PowerProfile:
    """Return the curve with the power that was seen, and as much doubt about all others as that one was off.

    Whether they are off as well shows where they are held; their speeds stay.
    """
    if drift.seen is None or drift.power.last_log is None:
        return profile
    off_ratio = abs(math.expm1(drift.power.last_log))
    doubted = (replace(p, power_ci_w=max(p.power_ci_w or 0.0, off_ratio * p.power_w)) for p in profile.points)
    return merge_point(PowerProfile(tuple(doubted)), drift.seen)


def _with_window(drift: Drift, window: Window, curve: PowerProfile) -> Drift:
    scatter = drift.scatter.with_window(window)
    point = estimate_point(window, power_limit_w=drift.power_limit_w, scatter=scatter)
    power_w, iterations_per_s = curve.at(drift.power_limit_w)
    nearest = min(curve.points, key=lambda known: abs(known.power_limit_w - drift.power_limit_w))
    return replace(
        drift,
        window=EMPTY_WINDOW,
        scatter=scatter,
        seen=point,
        rate=drift.rate.with_deviation(
            math.log(point.iterations_per_s / iterations_per_s),
            error_ratio=(point.iterations_per_s_ci or 0.0) / NORMAL_95 / point.iterations_per_s,
            doubt_ratio=nearest.rate_ci_ratio,
        ),
        power=drift.power.with_deviation(
            math.log(point.power_w / power_w),
            error_ratio=(point.power_ci_w or 0.0) / NORMAL_95 / point.power_w,
            doubt_ratio=nearest.power_ci_ratio,
        ),
    )
