"""The power profile of a job: what it draws and how fast it goes at each power limit.

>>> curve = PowerProfile.from_rows([(200.0, 180.0, 0.9), (300.0, 240.0, 1.0)])
>>> curve.fastest.power_limit_w, curve.energy_minimal.power_limit_w
(300.0, 200.0)
>>> curve.at(250.0)
(210.0, 0.95)
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

SAME_POINT_W: Final = 0.5
"""Points of a curve whose limits are closer than this are one point."""
LIMIT_TOLERANCE_W: Final = 1.0
"""An enforced limit this close to the requested one is that limit: GPUs round, and readings flicker by some mW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """What was measured at one power limit.

    Attributes:
        power_limit_w: the limit in force [W].
        power_w: the mean draw of all GPUs of the job, while iterations ran [W].
        iterations_per_s: the rate of its slowest rank [1/s].
        power_ci_w: the half-width of the 95 % confidence interval of the power [W], or None where it is not known.
        iterations_per_s_ci: the same for the rate [1/s].
        n: the number of measured iterations.
        active_s: the duration of the measurement [s].
    """

    power_limit_w: float
    power_w: float
    iterations_per_s: float
    power_ci_w: float | None = None
    iterations_per_s_ci: float | None = None
    n: int = 0
    active_s: float = 0.0

    @property
    def iteration_energy_j(self) -> float:
        """Return the energy of one iteration [J]."""
        return self.power_w / self.iterations_per_s

    @property
    def power_ci_ratio(self) -> float:
        """Return the half-width of the power's interval as a share of the power; 0 if it is not known."""
        return (self.power_ci_w or 0.0) / self.power_w

    @property
    def rate_ci_ratio(self) -> float:
        """Return the half-width of the rate's interval as a share of the rate; 0 if it is not known."""
        return (self.iterations_per_s_ci or 0.0) / self.iterations_per_s

    def scaled(self, *, power_ratio: float = 1.0, rate_ratio: float = 1.0) -> "ProfilePoint":
        """Return the point with power and rate multiplied, and their intervals."""
        power_ci_w, rate_ci = self.power_ci_w, self.iterations_per_s_ci
        return replace(
            self,
            power_w=self.power_w * power_ratio,
            iterations_per_s=self.iterations_per_s * rate_ratio,
            power_ci_w=None if power_ci_w is None else power_ci_w * power_ratio,
            iterations_per_s_ci=None if rate_ci is None else rate_ci * rate_ratio,
        )


@dataclass(frozen=True, slots=True)
class PowerProfile:
    """A curve of at least one point, in ascending order of the limit.

    Raises:
        ValueError: it has no point, two at one limit, a wrong order, or a number that is not finite and above 0.
    """

    points: tuple[ProfilePoint, ...]

    def __post_init__(self) -> None:
        """Check the points."""
        if not self.points:
            raise ValueError("a power profile needs at least one point")
        for point in self.points:
            if not (
                0.0 < point.power_limit_w < math.inf
                and 0.0 < point.power_w < math.inf
                and 0.0 < point.iterations_per_s < math.inf
            ):
                raise ValueError(f"{point}: limit, power and rate must be finite and above 0")
        for lower, upper in pairwise(self.points):
            if lower.power_limit_w >= upper.power_limit_w:
                raise ValueError(f"limits must ascend: {lower.power_limit_w:g} W before {upper.power_limit_w:g} W")

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[float, float, float]]) -> "PowerProfile":
        """Return the curve through rows of (limit [W], power [W], rate [1/s]), without intervals."""
        return cls(
            tuple(
                ProfilePoint(power_limit_w=limit_w, power_w=power_w, iterations_per_s=rate_per_s)
                for limit_w, power_w, rate_per_s in rows
            )
        )

    @property
    def power_limits_w(self) -> NDArray[np.float64]:
        """Return the limits, shape (n_points,) [W]."""
        return np.array([point.power_limit_w for point in self.points])

    @property
    def power_w(self) -> NDArray[np.float64]:
        """Return the power at each limit, shape (n_points,) [W]."""
        return np.array([point.power_w for point in self.points])

    @property
    def iterations_per_s(self) -> NDArray[np.float64]:
        """Return the rate at each limit, shape (n_points,) [1/s]."""
        return np.array([point.iterations_per_s for point in self.points])

    @property
    def fastest(self) -> ProfilePoint:
        """Return the point at the highest limit: the reference, which is the prior limit."""
        return self.points[-1]

    @property
    def energy_minimal(self) -> ProfilePoint:
        """Return the point with the least energy per iteration: lower limits are slower and need more energy."""
        return min(self.points, key=lambda point: point.iteration_energy_j)

    def point_at(self, power_limit_w: float) -> ProfilePoint | None:
        """Return the point at a limit, within `SAME_POINT_W`, or None."""
        nearest = min(self.points, key=lambda point: abs(point.power_limit_w - power_limit_w))
        return nearest if abs(nearest.power_limit_w - power_limit_w) <= SAME_POINT_W else None

    def at(self, power_limit_w: float) -> tuple[float, float]:
        """Return (power [W], iterations per second) at any limit: linear between points, the end point's outside."""
        limits_w = self.power_limits_w
        return (
            float(np.interp(power_limit_w, limits_w, self.power_w)),
            float(np.interp(power_limit_w, limits_w, self.iterations_per_s)),
        )

    def scaled(self, *, power_ratio: float = 1.0, rate_ratio: float = 1.0) -> "PowerProfile":
        """Return the curve with power and rate multiplied at every limit, and their intervals."""
        return PowerProfile(
            tuple(point.scaled(power_ratio=power_ratio, rate_ratio=rate_ratio) for point in self.points)
        )

    def with_overhead(self, host_power_w: float, pue: float) -> "PowerProfile":
        """Return the curve with host power and PUE included: P becomes PUE·(P + host power)."""
        if (host_power_w, pue) == (0.0, 1.0):
            return self
        return PowerProfile(
            tuple(
                replace(
                    point,
                    power_w=pue * (point.power_w + host_power_w),
                    power_ci_w=None if point.power_ci_w is None else pue * point.power_ci_w,
                )
                for point in self.points
            )
        )

    def usable(self) -> "PowerProfile":
        """Return the Pareto-optimal points, from the energy-minimal one up.

        A point is dominated if another one is no slower and draws no more (noise makes such points, and so does a GPU
        whose clocks no longer rise with the limit). Points slower than the energy-minimal one take more time and more
        energy: no price of either selects them. The highest rate always remains.
        """
        least = self.energy_minimal
        return PowerProfile(
            tuple(
                point
                for point in self.points
                if point.iterations_per_s >= least.iterations_per_s
                and not any(_dominates(other, point) for other in self.points)
            )
        )


def _dominates(one: ProfilePoint, other: ProfilePoint) -> bool:
    """Return whether `one` is no slower, draws no more, and is strictly better in one of the two."""
    is_no_worse = one.iterations_per_s >= other.iterations_per_s and one.power_w <= other.power_w
    return is_no_worse and (one.iterations_per_s, one.power_w) != (other.iterations_per_s, other.power_w)
