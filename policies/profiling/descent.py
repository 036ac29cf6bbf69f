"""Which limit to measure next, from what is measured: down from the prior limit, and not where nobody ever wants to go.

Below the limit of the least energy per iteration a job is slower and needs more: no price of energy, carbon or time
selects such a limit, and nearly all that a full sweep wastes is spent there. So the descent ends where energy per
iteration has risen. Limits that the draw never reaches measure the same as the prior one, and are left out; the lowest
one is, too, where not even peaks of the draw would reach it.
"""

import math
from typing import Final

from policies.profile import ProfilePoint
from policies.profiling.settings import GRID_W, SAME_LIMIT_W, ProfilerSettings

RISEN_TWICE: Final = 1.02
"""Energy per iteration has risen where it is this many times its least at two limits in a row …"""
RISEN_ONCE: Final = 1.08
"""… or this many times at one, where its noise does not explain that: a descent that ends too early is never mended."""
NOISE_CIS: Final = 1.5
"""Half-widths of the 95 % interval that noise may explain: three standard errors."""
PEAKS_OVER_MEAN: Final = 1.2
"""Limits hold within tens of milliseconds, the draw is a mean over iterations: limits above it still cut its peaks.
Most jobs' peaks are so far above it at most: there the way down goes on …"""
HIGHEST_PEAKS_OVER_MEAN: Final = 2.0
"""… but a job that waits half of the time, for data or its host, peaks at twice its mean, and in Zeus's traces there is
one that is cut by 6 % at 1.5 times. So the lowest limit is looked at unless it is above even that. Where it does not
bind, a look costs nothing; where it does, what it saves would else never be found."""


def next_limit_w(
    settings: ProfilerSettings, points: tuple[ProfilePoint, ...], attempted_w: tuple[float, ...] = ()
) -> float | None:
    """Return the limit to measure next, or None where the useful range is measured [W].

    Args:
        settings: the bounds.
        points: what is measured, in any order.
        attempted_w: limits that were asked for and not given; they are not asked for again.
    """
    descending = sorted(points, key=lambda point: -point.power_limit_w)
    wanted_w = settings.prior_power_limit_w
    while True:
        reached = _reached(settings, descending, wanted_w)
        if has_risen(reached):
            return None
        here_w = _nearest_w(reached, wanted_w)
        if here_w is None and not _is_among(wanted_w, attempted_w):
            return wanted_w
        if here_w is None:  # what was enforced instead lies below: the limits between the two would measure the same
            here_w = next((p.power_limit_w for p in descending if p.power_limit_w < wanted_w), wanted_w)
            reached = _reached(settings, descending, here_w)
        wanted_w = _below_w(settings, reached, here_w)
        if wanted_w > here_w - SAME_LIMIT_W:
            return None


def has_risen(descending: list[ProfilePoint]) -> bool:
    """Return whether energy per iteration has risen on the way down through these points, by more than their noise."""
    least, n_risen = None, 0
    for point in descending:
        if least is None or point.iteration_energy_j <= least.iteration_energy_j:
            least, n_risen = point, 0
            continue
        rise_ratio = point.iteration_energy_j / least.iteration_energy_j
        n_risen = n_risen + 1 if rise_ratio > RISEN_TWICE else 0
        if n_risen > 1 or rise_ratio > max(RISEN_ONCE, 1 + NOISE_CIS * _energy_ci_ratio(point, least)):
            return True
    return False


def _energy_ci_ratio(*points: ProfilePoint) -> float:
    """Return the half-width of the 95 % interval of the ratio of two energies per iteration."""
    power_ratios = [(point.power_ci_w or 0.0) / point.power_w for point in points]
    rate_ratios = [(point.iterations_per_s_ci or 0.0) / point.iterations_per_s for point in points]
    return math.hypot(*power_ratios, *rate_ratios)


def _reached(settings: ProfilerSettings, descending: list[ProfilePoint], wanted_w: float) -> list[ProfilePoint]:
    """Return the points down to a wanted limit, or to the first one below where the step does not lead past it."""
    low_w = max(settings.lowest_power_limit_w, wanted_w - GRID_W) - SAME_LIMIT_W
    return [point for point in descending if point.power_limit_w >= low_w]


def _nearest_w(reached: list[ProfilePoint], wanted_w: float) -> float | None:
    """Return the measured limit that stands for a wanted one, or None [W]."""
    lowest_w = reached[-1].power_limit_w if reached else math.inf
    return lowest_w if lowest_w <= wanted_w + GRID_W / 2 else None


def _below_w(settings: ProfilerSettings, reached: list[ProfilePoint], here_w: float) -> float:
    """Return the limit after this one: a step below, or where the draw begins to reach it; itself where none does."""
    next_w = settings.below_w(here_w)
    if not reached:
        return next_w
    mean_w = reached[-1].power_w / settings.n_gpus
    if HIGHEST_PEAKS_OVER_MEAN * mean_w < settings.lowest_power_limit_w:
        return here_w  # no limit that may be set does anything
    draw_w = round(PEAKS_OVER_MEAN * mean_w / GRID_W) * GRID_W
    return next_w if next_w <= draw_w else settings.clear_of_floor_w(draw_w)


def _is_among(limit_w: float, limits_w: tuple[float, ...]) -> bool:
    return any(abs(limit_w - other_w) <= SAME_LIMIT_W for other_w in limits_w)
