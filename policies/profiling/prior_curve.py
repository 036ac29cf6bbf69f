"""Reuses the power curve of another run: scaled, checked at a few limits, adopted or dropped.

Another GPU of the model, another driver or a neighbouring batch size shift a curve more than they bend it. So a prior
curve is scaled to what is measured at the prior limit, and checked at its energy-minimal limit and half-way there.
Where rate and power agree, the rest of the curve is adopted, as uncertain as the checks were; else it is dropped, and
what was measured stays.
"""

import math
from dataclasses import replace
from typing import Final

from policies.profiling.measurement import NORMAL_95
from policies.profiling.settings import GRID_W, ProfilerSettings
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile, ProfilePoint

AGREES_RATIO: Final = 0.03
"""Shapes that differ by less lead to plans whose costs differ by a fraction of it."""
ADOPTED_ERROR_RATIO: Final = 0.02
"""The standard error of a point that was not measured in this run, beside its own."""


def check_limits_w(settings: ProfilerSettings, prior: PowerProfile) -> tuple[float, ...]:
    """Return the limits at which to check a prior curve, descending [W]: two or three, the prior limit first."""
    top_w, floor_w = settings.prior_power_limit_w, settings.lowest_power_limit_w
    low_w = min(max(prior.energy_minimal.power_limit_w, floor_w), top_w)
    middle_w = round(math.sqrt(top_w * low_w) / GRID_W) * GRID_W
    checks_w = [top_w]
    for limit_w in (middle_w, low_w):
        if floor_w <= limit_w < checks_w[-1] - GRID_W:
            checks_w.append(limit_w)
    return tuple(checks_w)


def can_be_checked(settings: ProfilerSettings, prior: PowerProfile) -> bool:
    """Return whether a prior curve reaches from the prior limit to its energy-minimal one."""
    has_room = len(check_limits_w(settings, prior)) > 1
    return has_room and prior.power_limits_w[-1] >= settings.prior_power_limit_w - GRID_W


def agrees_with(prior: PowerProfile, points: tuple[ProfilePoint, ...]) -> bool:
    """Return whether measured points lie on the prior curve, scaled to the highest of them."""
    top = max(points, key=lambda point: point.power_limit_w)
    scaled = _scaled(prior, top)
    for point in points:
        power_w, iterations_per_s = scaled.at(point.power_limit_w)
        power_gap = abs(math.log(point.power_w / power_w))
        rate_gap = abs(math.log(point.iterations_per_s / iterations_per_s))
        power_error = math.hypot(point.power_ci_ratio, top.power_ci_ratio)
        rate_error = math.hypot(point.rate_ci_ratio, top.rate_ci_ratio)
        if power_gap > max(AGREES_RATIO, power_error) or rate_gap > max(AGREES_RATIO, rate_error):
            return False
    return True


def adopt_prior(
    settings: ProfilerSettings, prior: PowerProfile, points: tuple[ProfilePoint, ...]
) -> tuple[ProfilePoint, ...]:
    """Return the measured points and, between and beyond them, those of the scaled prior curve within the bounds."""
    low_w, high_w = settings.lowest_power_limit_w - LIMIT_TOLERANCE_W, settings.prior_power_limit_w + LIMIT_TOLERANCE_W
    top = max(points, key=lambda point: point.power_limit_w)
    adopted = [
        _with_wider_intervals(point)
        for point in _scaled(prior, top).points
        if low_w <= point.power_limit_w <= high_w
        and all(abs(point.power_limit_w - own.power_limit_w) > GRID_W for own in points)
    ]
    return tuple(sorted((*points, *adopted), key=lambda point: point.power_limit_w))


def _scaled(prior: PowerProfile, top: ProfilePoint) -> PowerProfile:
    """Return the prior curve, scaled in power and rate so that it passes through a point."""
    power_w, iterations_per_s = prior.at(top.power_limit_w)
    return prior.scaled(power_ratio=top.power_w / power_w, rate_ratio=top.iterations_per_s / iterations_per_s)


def _with_wider_intervals(point: ProfilePoint) -> ProfilePoint:
    """Return a point of another run as one that was not measured in this one, with wider intervals."""
    doubt = NORMAL_95 * ADOPTED_ERROR_RATIO
    power_doubt = math.hypot(point.power_ci_ratio, doubt)
    rate_doubt = math.hypot(point.rate_ci_ratio, doubt)
    return replace(
        point,
        power_ci_w=power_doubt * point.power_w,
        iterations_per_s_ci=rate_doubt * point.iterations_per_s,
        n=0,
        active_s=0.0,
    )
