"""How the boards of the A/A benchmark warm."""

from dataclasses import dataclass
from typing import Final

import numpy as np

K_PER_W: Final = (0.03, 0.064)
RATIO_PER_K: Final = (0.0015, 0.0045)
TIME_CONSTANTS_S: Final = (40.0, 90.0)
"""With a thermal state a board that draws a watt less is so much cooler, draws so much less for each kelvin, and warms
within so long: each run has its own, around what an H100 has shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """How a board warms.

    Attributes:
        k_per_w: by how much for each watt; 0: it is as warm at each limit.
        ratio_per_k: how much more it draws for each kelvin.
        time_constant_s: within how long it warms, or cools [s].
    """

    k_per_w: float = 0.0
    ratio_per_k: float = 0.003
    time_constant_s: float = 60.0

    def warmth_ratio(self, less_w: float) -> float:
        """Return by how much more than on a board as warm as at the top it draws in the long run."""
        return -self.ratio_per_k * self.k_per_w * less_w


def thermal_of(seed: int) -> Thermal:
    """Return how the board of a run warms."""
    k_per_w, ratio_per_k, time_constant_s = (
        float(np.random.default_rng([seed, number]).uniform(*bounds))
        for number, bounds in enumerate((K_PER_W, RATIO_PER_K, TIME_CONSTANTS_S))
    )
    return Thermal(k_per_w=k_per_w, ratio_per_k=ratio_per_k, time_constant_s=time_constant_s)
