"""The curve while the job trains on: every limit that the plan picks is one more measurement, and is merged.

At first the plan is made curious: it is made on a curve that is perturbed by what is not known of it (Thompson
sampling), so that limits are tried as often as they may be the best. Later it is made on what is believed of the curve;
measurements go on being merged, with a weight that never vanishes, so that it follows a job that changes slowly.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from policies.profiling.curve_model import open_gain_ratio
from policies.profiling.measurement import EMPTY, SUPPOSED, Observation, Scatter, Window, is_as_good_as_any, point_of
from policies.profiling.settings import ProfilerSettings
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile, ProfilePoint

WORTH_RATIO: Final = 0.01
"""What may still be gained by less is not looked for."""
MIN_ITERATIONS: Final = 10.0
"""Fewer iterations would say less of the limit than what is merged anyway takes from it: their scatter would outweigh
that of measurements, about 1 %, by far."""
LEAST_WEIGHT: Final = 0.05
"""A new measurement never weighs less: what was seen more than twenty measurements ago is forgotten."""


Known = tuple[float, float | None]
"""A value, and the half-width of its 95 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """A curve that is refined.

    Attributes:
        profile: the curve so far, measured points alone.
        n_blocks: how many measurements were merged; the caller plans anew whenever it has grown.
        power_limit_w: the limit of the measurement under way [W]; None before the first one.
        settled_s: for how long it has settled [s].
        window: the measurement under way.
        scatter: how much iterations scatter.
    """

    profile: PowerProfile
    n_blocks: int = 0
    power_limit_w: float | None = None
    settled_s: float = 0.0
    window: Window = EMPTY
    scatter: Scatter = SUPPOSED


def begin_refinement(profile: PowerProfile, *, n_blocks: int = 0) -> Refinement:
    """Return a refinement of a curve; give `n_blocks` where it was refined before, in another process."""
    return Refinement(profile=profile, n_blocks=n_blocks)


def is_curious(settings: ProfilerSettings, refinement: Refinement) -> bool:
    """Return whether the plan should still be made on `perturbed(refinement.profile, rng)`.

    No more after `n_blocks` measurements, nor where no plan's cost can fall by more than 1 % if all were known.
    """
    return refinement.n_blocks < settings.n_blocks and open_gain_ratio(refinement.profile) > WORTH_RATIO


def refine(settings: ProfilerSettings, refinement: Refinement, observation: Observation) -> Refinement:
    """Return the refinement after one more observation, at whatever limit is in force."""
    if not observation.is_possible:
        return refinement
    last_w = refinement.power_limit_w
    if last_w is None or abs(observation.power_limit_w - last_w) > LIMIT_TOLERANCE_W:
        refinement = replace(refinement, power_limit_w=observation.power_limit_w, settled_s=0.0, window=EMPTY)
    if refinement.settled_s < settings.settle_s:
        return replace(refinement, settled_s=refinement.settled_s + observation.active_s)
    window = refinement.window.with_slice(observation)
    if window.n_counted < MIN_ITERATIONS or window.active_s < settings.window_s or window.energy_j <= 0:
        return replace(refinement, window=window)
    scatter = refinement.scatter.with_window(window)
    if window.active_s < settings.block_s and not is_as_good_as_any(window, scatter):
        return replace(refinement, window=window)
    point = point_of(window, power_limit_w=observation.power_limit_w, scatter=scatter)
    return replace(
        refinement,
        profile=merged(refinement.profile, point),
        n_blocks=refinement.n_blocks + 1,
        window=EMPTY,
        scatter=scatter,
    )


def merged(profile: PowerProfile, point: ProfilePoint) -> PowerProfile:
    """Return the curve with one more measurement, weighed by its precision where its limit was measured before."""
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


def _pooled(old: Known, new: Known) -> Known:
    """Return the mean by precision, of logarithms, and its interval; the new value has at least `LEAST_WEIGHT`."""
    (old_value, old_ci), (new_value, new_ci) = old, new
    if old_ci is None or new_ci is None:  # by the newer one, which says more of what comes
        return new_value, new_ci
    old_ratio, new_ratio = old_ci / old_value, new_ci / new_value
    weight = max(old_ratio**2 / (old_ratio**2 + new_ratio**2), LEAST_WEIGHT) if old_ratio > 0 else LEAST_WEIGHT
    value = math.exp((1 - weight) * math.log(old_value) + weight * math.log(new_value))
    return value, value * math.hypot((1 - weight) * old_ratio, weight * new_ratio)
