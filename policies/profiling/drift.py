"""Whether a job has left its curve: a cold cache has warmed, the code is another, a data loader has become the brake.

Windows of rate and power are held against the curve; what they deviate from it beyond what is not known of the curve,
in multiples of their own noise, is summed up: a two-sided CUSUM for each of the two (Page, Biometrika 41, 1954). The
allowance is half of the least change that matters, 3 % where windows scatter by the usual 1 %. With it and the bound,
steady noise alarms in less than one of a million windows (Siegmund, Sequential Analysis, 1985, equation 2.57); 5 %
take three windows, 3 % about ten. Where windows scatter more, changes must be larger: their noise is measured.

Then everything that was concluded from the curve is void, and the job is profiled anew; not sooner than a rest after
the last profile, so that a job without a steady rate does not spend its life being measured. Slow changes never come
here: the refinement of the curve follows them.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from policies.profiling import Observation, posterior_curve
from policies.profiling.measurement import EMPTY, NORMAL_95, SUPPOSED, Scatter, Window, point_of
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile

MIN_ITERATIONS: Final = 10.0
"""Fewer in a window say little, and their noise would hide what is looked for."""
REST_RATIO: Final = 10.0
"""A rest lasts this many times as long as a profile."""
LEAST_NOISE_RATIO: Final = 0.01
"""Windows scatter by as much, whatever they seem to."""
ALLOWANCE_DEVIATIONS: Final = 1.5
BOUND_DEVIATIONS: Final = 5.0
MOST_DEVIATIONS: Final = 2.0
"""What one window adds at most: it takes three to alarm, so that one long stall is no change."""
NOISE_WEIGHT: Final = 0.1
NOISE_REACH: Final = 4.0
"""A jump between two windows counts as noise of at most this many times the noise so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cusum:
    """The deviations of one quantity from the curve.

    Attributes:
        above_ratio: what was too much, summed up, in multiples of the noise; never below 0.
        below_ratio: what was too little.
        noise_ratio: the standard deviation of a window's logarithm.
        last_log: the deviation of the last window at this limit, of the logarithm; None where there was none.
    """

    above_ratio: float = 0.0
    below_ratio: float = 0.0
    noise_ratio: float = LEAST_NOISE_RATIO
    last_log: float | None = None

    def after(self, deviation_log: float, *, error_ratio: float, doubt_ratio: float) -> "Cusum":
        """Return the sums after one more window.

        Args:
            deviation_log: the logarithm of what it saw over what the curve says.
            error_ratio: its own standard error, as far as one window can tell; what two differ by may tell more.
            doubt_ratio: what is not known of the curve.
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
    def most_ratio(self) -> float:
        """Return the greater of the two sums."""
        return max(self.above_ratio, self.below_ratio)


NOTHING: Final = Cusum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What was seen of a job since it was profiled.

    Attributes:
        rested_s: how long the job has run since the profile; infinite where the curve comes from a former run [s].
        rate: the deviations of the rate.
        power: those of the power.
        power_limit_w: the limit of the window under way [W].
        window: the window under way.
        scatter: how much iterations scatter.
    """

    rested_s: float = 0.0
    rate: Cusum = NOTHING
    power: Cusum = NOTHING
    power_limit_w: float = 0.0
    window: Window = EMPTY
    scatter: Scatter = SUPPOSED

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the job may be leaving its curve: what is measured now may belong to another."""
        return max(self.rate.most_ratio, self.power.most_ratio) >= BOUND_DEVIATIONS / 2


def watch(drift: Drift, observation: Observation, *, profile: PowerProfile, window_s: float) -> Drift:
    """Return what is known after one more observation; a change of the limit begins a new window.

    >>> from policies.vocabulary.profile import ProfilePoint
    >>> curve = PowerProfile((ProfilePoint(power_limit_w=300.0, power_w=200.0, iterations_per_s=2.0),))
    >>> seen = Drift()
    >>> for _ in range(5):
    ...     slow = Observation(power_limit_w=300.0, active_s=10.0, n_iterations=15.0, energy_j=2e3)
    ...     seen = watch(seen, slow, profile=curve, window_s=10.0)
    >>> seen.is_in_doubt
    True
    """
    if not observation.is_possible:
        return drift
    drift = replace(drift, rested_s=drift.rested_s + observation.active_s)
    if abs(observation.power_limit_w - drift.power_limit_w) > LIMIT_TOLERANCE_W:
        drift = replace(
            drift,
            power_limit_w=observation.power_limit_w,
            window=EMPTY,
            rate=replace(drift.rate, last_log=None),
            power=replace(drift.power, last_log=None),
        )
    window = drift.window.with_slice(observation)
    if window.active_s < window_s or window.n_counted < MIN_ITERATIONS or window.energy_j <= 0:
        return replace(drift, window=window)
    return _compared(drift, window, posterior_curve(profile))


def has_left(drift: Drift, *, sweep_s: float) -> bool:
    """Return whether the job has left its curve, and has rested long enough since a profile of `sweep_s` [s]."""
    has_alarmed = max(drift.rate.most_ratio, drift.power.most_ratio) >= BOUND_DEVIATIONS
    return has_alarmed and drift.rested_s >= REST_RATIO * sweep_s


def _compared(drift: Drift, window: Window, curve: PowerProfile) -> Drift:
    """Return what is known after a window, held against the curve."""
    scatter = drift.scatter.with_window(window)
    seen = point_of(window, power_limit_w=drift.power_limit_w, scatter=scatter)
    power_w, iterations_per_s = curve.at(drift.power_limit_w)
    nearest = min(curve.points, key=lambda point: abs(point.power_limit_w - drift.power_limit_w))
    return replace(
        drift,
        window=EMPTY,
        scatter=scatter,
        rate=drift.rate.after(
            math.log(seen.iterations_per_s / iterations_per_s),
            error_ratio=(seen.iterations_per_s_ci or 0.0) / NORMAL_95 / seen.iterations_per_s,
            doubt_ratio=(nearest.iterations_per_s_ci or 0.0) / nearest.iterations_per_s,
        ),
        power=drift.power.after(
            math.log(seen.power_w / power_w),
            error_ratio=(seen.power_ci_w or 0.0) / NORMAL_95 / seen.power_w,
            doubt_ratio=(nearest.power_ci_w or 0.0) / nearest.power_w,
        ),
    )
