"""The noise of a simulated run: by how much its iterations and its power scatter, and how often it tells iterations."""

from dataclasses import dataclass, field
from typing import Final

from controller.gpu.simulation.noise import NoiseLevels


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNoise:
    """The noise of a run.

    Attributes:
        levels: that of iterations and power.
        iteration_time_s: how long an iteration takes at the highest limit [s]; None: as the curve says.
        told_s: how often iterations are told while a known curve is refined, or a limit is new [s].
    """

    levels: NoiseLevels = field(default_factory=NoiseLevels)
    iteration_time_s: float | None = None
    told_s: float = 0.5


USUAL: Final = RunNoise()
"""Iterations scatter by 2 %, and the power by 1 % from one 10 s to the next."""
H100: Final = RunNoise(
    levels=NoiseLevels(
        iteration_ratio=0.0003, group_ratio=0.0006, group_iterations=8, power_ratio=0.003, power_block_s=4.0
    ),
    iteration_time_s=0.064,
    told_s=0.25,
)
"""A training that its GPU holds up, as on an H100: iterations scatter by 0.03 %; from one window of 0.5, 1, 2 and 4 s
to the next the rate does by 0.04, 0.04, 0.03 and 0.02 %, and the power as the profiler measures it by 1.8, 0.8, 0.4 and
0.3 %. Measured were 0.07, 0.05, 0.03 and 0.02 %, and 0.9, 0.6, 0.4 and 0.35 %."""
