"""What the profiler is shown: slices of time in which iterations ran, at a limit that was in force all the time."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A slice of time in which iterations ran.

    Attributes:
        power_limit_w: the limit enforced all the time [W].
        active_s: how long it was [s].
        n_iterations: how many iterations passed, with fractions of those that began or ended outside.
        energy_j: what all GPUs of the job used [J].
        iteration_times_s: how long each iteration took that ended in it, of the slowest rank [s]; empty where unknown.
    """

    power_limit_w: float
    active_s: float
    n_iterations: float
    energy_j: float
    iteration_times_s: tuple[float, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Return whether it can have been: a counter that went back, or a clock, says that it cannot."""
        quantities = (self.active_s, self.n_iterations, self.energy_j, self.power_limit_w, *self.iteration_times_s)
        return all(math.isfinite(x) and x >= 0 for x in quantities) and self.active_s > 0 and self.power_limit_w > 0
