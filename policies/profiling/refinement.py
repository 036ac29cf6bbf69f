"""Refines the curve while the job trains: every limit that the plan picks is measured once more, and merged.

At first the plan explores: it is made on a random sample of the posterior of the curve (Thompson sampling), so that
limits are tried as often as they may be the best. Later it is made on the posterior mean. Measurements go on being
merged, with a weight that never vanishes, so that the curve follows a job that changes slowly.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from policies.profiling.curve_model import max_gain_ratio
from policies.profiling.measurement import (
    EMPTY_WINDOW,
    NOT_SETTLED,
    PRIOR_SCATTER,
    Estimates,
    Observation,
    Scatter,
    Settle,
    Window,
    estimate_point,
    estimate_window,
    is_precision_limited,
)
from policies.profiling.settings import ProfilerSettings
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile, ProfilePoint

WORTH_RATIO: Final = 0.01
"""The plan explores as long as more than this share of its cost may be saved."""
MIN_ITERATIONS: Final = 10.0
"""With fewer iterations their scatter would exceed, by far, the 1 % between measurements."""
SAME_LENGTH: Final = 1.5
"""Measurements of about the same length differ by no more than this factor."""
LEAST_WEIGHT: Final = 0.05
"""The least weight of a new measurement: those more than twenty measurements ago are forgotten."""


Estimate = tuple[float, float | None]
"""A value, and the half-width of its 95 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The state of the refinement.

    Attributes:
        profile: the curve so far, measured points alone.
        n_blocks: the number of merged measurements; the caller replans whenever it has grown.
        power_limit_w: the limit of the current measurement [W]; None before the first one.
        settle: how far the job has settled at it.
        window: the current measurement.
        scatter: the noise of the job.
        former: what the last measurement has shown, and how long it was [s], if the limit is still the same.
    """

    profile: PowerProfile
    n_blocks: int = 0
    power_limit_w: float | None = None
    settle: Settle = NOT_SETTLED
    window: Window = EMPTY_WINDOW
    scatter: Scatter = PRIOR_SCATTER
    former: tuple[Estimates, float] | None = None


def begin_refinement(profile: PowerProfile, *, n_blocks: int = 0) -> Refinement:
    """Return the refinement of a curve; `n_blocks` counts the measurements of an earlier process."""
    return Refinement(profile=profile, n_blocks=n_blocks)


def is_exploring(settings: ProfilerSettings, refinement: Refinement) -> bool:
    """Return whether the plan should still be made on `sampled_curve(refinement.profile, rng)`.

    It should for `n_blocks` measurements, and as long as the cost of some plan may still fall by more than 1 %.
    """
    return refinement.n_blocks < settings.n_blocks and max_gain_ratio(refinement.profile) > WORTH_RATIO


def refine(settings: ProfilerSettings, refinement: Refinement, observation: Observation) -> Refinement:
    """Return the state after one more observation, at whatever limit is in force."""
    if not observation.is_possible:
        return refinement
    last_w = refinement.power_limit_w
    if last_w is None or abs(observation.power_limit_w - last_w) > LIMIT_TOLERANCE_W:
        refinement = replace(
            refinement, power_limit_w=observation.power_limit_w, settle=NOT_SETTLED, window=EMPTY_WINDOW, former=None
        )
    if not refinement.settle.is_over(settings.settle_s, is_seen=settings.sees_settling):
        return replace(refinement, settle=refinement.settle.with_observation(observation))
    window = refinement.window.with_observation(observation)
    if window.n_counted < MIN_ITERATIONS or window.active_s < settings.window_s or window.energy_j <= 0:
        return replace(refinement, window=window)
    scatter = refinement.scatter.with_window(window)
    if window.active_s < settings.block_s and not is_precision_limited(window, scatter):
        return replace(refinement, window=window)
    point = estimate_point(window, power_limit_w=observation.power_limit_w, scatter=scatter)
    seen = estimate_window(window, scatter), window.active_s
    return replace(
        refinement,
        profile=merge_point(refinement.profile, point),
        n_blocks=refinement.n_blocks + 1,
        window=EMPTY_WINDOW,
        scatter=_with_neighbours(scatter, refinement.former, seen),
        former=seen,
    )


def _with_neighbours(
    scatter: Scatter, before: tuple[Estimates, float] | None, after: tuple[Estimates, float]
) -> Scatter:
    """Return the noise with that of two measurements, one right after the other.

    Two of lengths that differ much, as after a reading that came late, tell nothing of either length.
    """
    if before is None or max(before[1], after[1]) > SAME_LENGTH * min(before[1], after[1]):
        return scatter
    noise = scatter.windows.with_neighbours(before[0], after[0], duration_s=(before[1] + after[1]) / 2)
    return replace(scatter, windows=noise)


def merge_point(profile: PowerProfile, point: ProfilePoint) -> PowerProfile:
    """Return the curve with one more measurement, weighted by its precision if its limit was measured before."""
    same = [p for p in profile.points if abs(p.power_limit_w - point.power_limit_w) <= LIMIT_TOLERANCE_W]
    others = [p for p in profile.points if abs(p.power_limit_w - point.power_limit_w) > LIMIT_TOLERANCE_W]
    for old in same:
        power_w, power_ci_w = _pooled((old.power_w, old.power_ci_w), (point.power_w, point.power_ci_w))
        rate_per_s, rate_ci = _pooled(
            (old.iterations_per_s, old.iterations_per_s_ci), (point.iterations_per_s, point.iterations_per_s_ci)
        )
        point = replace(
            point,
            power_limit_w=old.power_limit_w,
            power_w=power_w,
            power_ci_w=power_ci_w,
            iterations_per_s=rate_per_s,
            iterations_per_s_ci=rate_ci,
            n=old.n + point.n,
            active_s=old.active_s + point.active_s,
        )
    return PowerProfile(tuple(sorted((*others, point), key=lambda p: p.power_limit_w)))


def _pooled(old: Estimate, new: Estimate) -> Estimate:
    """Return the precision-weighted mean of logarithms, and its interval; the new value has at least `LEAST_WEIGHT`."""
    (old_value, old_ci), (new_value, new_ci) = old, new
    if old_ci is None or new_ci is None:  # the newer one alone
        return new_value, new_ci
    old_ratio, new_ratio = old_ci / old_value, new_ci / new_value
    weight = max(old_ratio**2 / (old_ratio**2 + new_ratio**2), LEAST_WEIGHT) if old_ratio > 0 else LEAST_WEIGHT
    value = math.exp((1 - weight) * math.log(old_value) + weight * math.log(new_value))
    return value, value * math.hypot((1 - weight) * old_ratio, weight * new_ratio)
