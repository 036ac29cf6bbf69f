"""Settings of the profiler: the range of limits, the steps, and the precision of a measurement."""

import math
from dataclasses import dataclass
from typing import Final

from policies.vocabulary.profile import LIMIT_TOLERANCE_W

GRID_W: Final = 5.0
"""Limits are multiples of this; between them the curve is interpolated to well within the precision of measurements."""

FLOOR_RATIO: Final = 1.08
"""A limit closer to the floor than this is not worth a measurement of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerSettings:
    """The settings of the profiler; limits are those of one GPU, the same for all GPUs of the job.

    Attributes:
        prior_power_limit_w: the first limit, and the reference of every objective [W].
        floor_power_limit_w: the lowest limit [W]; if it is not below the prior limit, only that is measured.
        n_gpus: the number of GPUs that the power of an observation is the sum of; it tells which limits never bind.
        settle_s: the time after a change of limit that is not counted, since clocks and power still move, at most [s].
        sees_settling: whether it may be less, where iterations are steady before.
        window_s: the shortest measurement of the first sweep [s].
        step_ratio: each limit is this share of the one above.
        tolerance_ratio: the half-width of the 95 % interval of the rate at which a measurement ends.
        block_s: the shortest measurement of the refinement [s]; `window_s` where iterations are short enough.
        n_blocks: the number of such measurements for which the plan explores.
    """

    prior_power_limit_w: float
    floor_power_limit_w: float
    n_gpus: int = 1
    settle_s: float = 0.5
    sees_settling: bool = True
    window_s: float = 0.5
    step_ratio: float = 0.8
    tolerance_ratio: float = 0.03
    block_s: float = 2.0
    n_blocks: int = 60

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: a limit, ratio or time is out of bounds.
        """
        limits_w = (self.prior_power_limit_w, self.floor_power_limit_w)
        if not all(math.isfinite(limit_w) and limit_w > 0 for limit_w in limits_w):
            raise ValueError(f"power limits {limits_w} W: must be finite and above 0 W")
        if not 0 < self.step_ratio < 1:
            raise ValueError(f"step_ratio = {self.step_ratio:g}: must be above 0 and below 1")
        if self.n_gpus < 1:
            raise ValueError(f"n_gpus = {self.n_gpus}: must be at least 1")
        if min(self.settle_s, self.window_s, self.block_s, self.tolerance_ratio) < 0:
            raise ValueError(f"{self}: times and tolerance must be at least 0")

    @property
    def lowest_power_limit_w(self) -> float:
        """Return the lowest limit that is ever requested [W]."""
        return min(self.floor_power_limit_w, self.prior_power_limit_w)

    def below_w(self, power_limit_w: float) -> float:
        """Return the limit one step below another: on the grid, at least one grid step lower, never below the floor.

        >>> settings = ProfilerSettings(prior_power_limit_w=300.0, floor_power_limit_w=100.0)
        >>> settings.below_w(300.0), settings.below_w(104.0)
        (240.0, 100.0)
        """
        next_w = min(round(self.step_ratio * power_limit_w / GRID_W) * GRID_W, power_limit_w - GRID_W)
        return self.clear_of_floor_w(next_w)

    def clear_of_floor_w(self, power_limit_w: float) -> float:
        """Return the floor for a limit near it or below, else the limit itself [W]."""
        is_near = power_limit_w <= FLOOR_RATIO * self.lowest_power_limit_w
        return self.lowest_power_limit_w if is_near else power_limit_w

    def ladder_w(self) -> tuple[float, ...]:
        """Return the limits of a full descent, in which every one binds and none is too low [W]."""
        ladder_w = [self.prior_power_limit_w]
        while ladder_w[-1] > self.lowest_power_limit_w + LIMIT_TOLERANCE_W:
            ladder_w.append(self.below_w(ladder_w[-1]))
        return tuple(ladder_w)
