"""The curve between measured points: monotone, on a fine grid of limits; and its lower convex hull.

More power never makes a job slower, and a higher limit never makes it draw less: measured points that say otherwise are
noise, and are pooled (isotonic regression, weighted by how well each is known). Between them the logarithms of rate and
power are interpolated by monotone cubics (PCHIP: Fritsch and Carlson, SIAM J. Numer. Anal. 17, 1980, with the weighted
harmonic mean of the slopes). Five points over the useful range reproduce measured curves to about half a per cent.

>>> measured = PowerProfile.from_rows([(200.0, 180.0, 0.9), (250.0, 215.0, 0.99), (300.0, 240.0, 1.0)])
>>> [point.power_limit_w for point in fit_curve(measured, step_w=25.0).points]
[200.0, 225.0, 250.0, 275.0, 300.0]
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from policies.vocabulary.profile import SAME_POINT_W, PowerProfile, ProfilePoint
from policies.vocabulary.units import Values


def fit_curve(profile: PowerProfile, *, step_w: float) -> PowerProfile:
    """Return the monotone curve through measured points, with points at multiples of `step_w` between them [W].

    The measured limits remain; what is interpolated has `n = 0` and no confidence intervals.
    """
    if len(profile.points) == 1:
        return profile
    measured = smoothed(profile)
    limits_w = measured.power_limits_w
    first, last = math.ceil(limits_w[0] / step_w), math.floor(limits_w[-1] / step_w)
    grid_w = np.arange(first, last + 1) * step_w
    between_w = grid_w[np.abs(grid_w[:, None] - limits_w).min(axis=1, initial=math.inf) > SAME_POINT_W]
    powers_w = np.exp(pchip(limits_w, np.log(measured.power_w), between_w))
    rates_per_s = np.exp(pchip(limits_w, np.log(measured.iterations_per_s), between_w))
    points = [
        ProfilePoint(power_limit_w=limit_w, power_w=power_w, iterations_per_s=rate_per_s)
        for limit_w, power_w, rate_per_s in zip(
            between_w.tolist(), powers_w.tolist(), rates_per_s.tolist(), strict=True
        )
    ]
    return PowerProfile(tuple(sorted((*points, *measured.points), key=lambda point: point.power_limit_w)))


def smoothed(profile: PowerProfile) -> PowerProfile:
    """Return the measured points made monotone: power and rate never fall as the limit rises."""
    power_weights = _weights(profile, [point.power_ci_ratio for point in profile.points])
    rate_weights = _weights(profile, [point.rate_ci_ratio for point in profile.points])
    powers_w = np.exp(isotonic(np.log(profile.power_w), power_weights)).tolist()
    rates_per_s = np.exp(isotonic(np.log(profile.iterations_per_s), rate_weights)).tolist()
    return PowerProfile(
        tuple(
            replace(point, power_w=power_w, iterations_per_s=rate_per_s)
            for point, power_w, rate_per_s in zip(profile.points, powers_w, rates_per_s, strict=True)
        )
    )


@dataclass(frozen=True, slots=True)
class Hull:
    """A lower convex hull of power over rate: points ascend in rate and marginal energy; at least one.

    The first point may be a pause: no rate, the power of a run that waits, and the limit of the point after it, since
    no limit binds a run that waits.
    """

    points: tuple[ProfilePoint, ...]

    @property
    def power_w(self) -> Values:
        """Return the power of each point, shape (n_points,) [W]."""
        return np.array([point.power_w for point in self.points])

    @property
    def iterations_per_s(self) -> Values:
        """Return the rate of each point, shape (n_points,) [1/s]."""
        return np.array([point.iterations_per_s for point in self.points])

    @property
    def marginal_energies_j(self) -> Values:
        """Return the marginal energies dP/dr between neighbours, ascending, shape (n_points - 1,) [J]."""
        return np.array([_slope_j(lower, upper) for lower, upper in pairwise(self.points)], dtype=np.float64)

    @property
    def begins_with_pause(self) -> bool:
        """Return whether the first point is a pause."""
        return self.points[0].iterations_per_s == 0

    @property
    def slowest(self) -> ProfilePoint:
        """Return the first point: a pause, the slowest limit, or the most efficient one."""
        return self.points[0]

    @property
    def most_efficient(self) -> ProfilePoint:
        """Return the point with the least energy per iteration: the first one of `lower_hull`."""
        return min(self.points[self.begins_with_pause :], key=lambda point: point.iteration_energy_j)

    @property
    def chord(self) -> "Hull":
        """Return the first and the last point alone: of all mixes of its points these draw the most at each rate."""
        return Hull(self.points[:1] + self.points[1:][-1:])

    @property
    def fastest(self) -> ProfilePoint:
        """Return the point with the highest rate."""
        return self.points[-1]


def lower_hull(profile: PowerProfile) -> Hull:
    """Return the lower convex hull of power over rate, from the energy-minimal point to the fastest.

    No time-share of two other points beats a point of it. Points slower than the energy-minimal one take more time and
    more energy; points that draw more and are no faster lie above the hull.
    """
    least = profile.energy_minimal
    return _hull(point for point in profile.points if point.iterations_per_s >= least.iterations_per_s)


def whole_hull(profile: PowerProfile, *, idle_power_w: float | None = None) -> Hull:
    """Return the lower convex hull from the slowest point or, where the run may pause, from the pause on.

    Points below the energy-minimal one pay where work can be left to a cheaper hour. The first edge from the pause is
    the tangent, at r* = argmin (P - P_idle)/r: limits slower than that are never used by a run that may pause.

    Args:
        profile: the curve, host power and PUE included.
        idle_power_w: what a paused run draws, with the same included [W]; None: it may not pause.
    """
    hull = _hull(profile.points)
    if idle_power_w is None:
        return hull
    pause = ProfilePoint(power_limit_w=hull.slowest.power_limit_w, power_w=idle_power_w, iterations_per_s=0.0)
    first, *rest = _hull((pause, *profile.points)).points
    return Hull((replace(first, power_limit_w=rest[0].power_limit_w), *rest))


def _hull(points: Iterable[ProfilePoint]) -> Hull:
    hull: list[ProfilePoint] = []
    for point in sorted(points, key=lambda point: (point.iterations_per_s, -point.power_w, point.power_limit_w)):
        if hull and point.iterations_per_s == hull[-1].iterations_per_s:
            hull.pop()  # it draws more or, where it draws the same, is the lower limit, which saves nothing
        while len(hull) > 1 and _slope_j(hull[-2], hull[-1]) >= _slope_j(hull[-2], point):
            hull.pop()
        hull.append(point)
    return Hull(tuple(hull))


def isotonic(values: Values, weights: Values) -> Values:
    """Return the non-decreasing values nearest to `values` in weighted squares, shape (n,): pool adjacent violators."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] >= pool[0]:
            mean, mass, n = pools.pop()
            total = mass + pool[1]
            pool = ((mean * mass + pool[0] * pool[1]) / total, total, n + pool[2])
        pools.append(pool)
    return np.repeat([mean for mean, _, _ in pools], [n for _, _, n in pools])


def pchip(knots: Values, values: Values, at: Values) -> Values:
    """Return the monotone cubic interpolation at `at`, within the knots; knots ascend, at least two."""
    steps, slopes = np.diff(knots), np.diff(values) / np.diff(knots)
    tangents = _tangents(steps, slopes)
    left = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(steps) - 1)
    step, t = steps[left], (at - knots[left]) / steps[left]
    curvature = (3 - 2 * t) * t * t
    rise = t * (1 - t) ** 2 * tangents[left] - t * t * (1 - t) * tangents[left + 1]
    return np.asarray((1 - curvature) * values[left] + curvature * values[left + 1] + step * rise, dtype=np.float64)


def _tangents(steps: Values, slopes: Values) -> Values:
    """Return the derivative at each knot: zero at a turn, else between the slopes of the two sides."""
    if len(slopes) == 1:
        return np.repeat(slopes, 2)
    lower, upper = slopes[:-1], slopes[1:]
    weight_lower, weight_upper = 2 * steps[1:] + steps[:-1], steps[1:] + 2 * steps[:-1]
    is_turn = lower * upper <= 0
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = (weight_lower + weight_upper) / (weight_lower / lower + weight_upper / upper)
    ends = (_end_tangent(steps[:2], slopes[:2]), _end_tangent(steps[::-1][:2], slopes[::-1][:2]))
    return np.concatenate(([ends[0]], np.where(is_turn, 0.0, inner), [ends[1]]))


def _end_tangent(steps: Values, slopes: Values) -> float:
    """Return the one-sided derivative at an end, of the shape that the first two slopes allow."""
    tangent = float(((2 * steps[0] + steps[1]) * slopes[0] - steps[0] * slopes[1]) / steps.sum())
    if tangent * slopes[0] <= 0:
        return 0.0
    if slopes[0] * slopes[1] <= 0 and abs(tangent) > 3 * abs(slopes[0]):
        return 3 * float(slopes[0])
    return tangent


def _weights(profile: PowerProfile, ci_ratios: list[float]) -> Values:
    """Return the precision of each point, by its confidence interval, or by its duration if any has no interval."""
    if all(ci_ratios):
        return np.array([1 / ci_ratio**2 for ci_ratio in ci_ratios])
    return np.array([point.active_s or 1.0 for point in profile.points])


def _slope_j(lower: ProfilePoint, upper: ProfilePoint) -> float:
    return (upper.power_w - lower.power_w) / (upper.iterations_per_s - lower.iterations_per_s)
