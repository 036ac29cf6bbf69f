"""How fast a job runs at a power limit, and what an iteration needs there, relative to the top limit."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRatios:
    """Ratios between a power limit and the top limit: they hold however the job as a whole wanders.

    Errors are standard deviations, in the unit of the ratio itself (0.002 is 0.2 % of the rate at the top). At the top
    limit both ratios are 1 and both errors 0, by definition.

    Attributes:
        power_limit_w: the limit [W].
        rate_ratio: the rate at the limit over the rate at the top.
        rate_error_ratio: its standard deviation.
        energy_ratio: the energy per iteration at the top over that at the limit.
        energy_error_ratio: its standard deviation, of what is its own.
        shared_error_ratio: what one standard deviation of an error that all limits of a run have in common adds to it.
        n_looks: how many looks at the top compared it with this limit; 0 where the ratios come from the curve alone.

    Raises:
        ValueError: a ratio or the limit is not above 0 and finite, an error is not finite, or one of its own or the
            number of looks is below 0.
    """

    power_limit_w: float
    rate_ratio: float
    rate_error_ratio: float
    energy_ratio: float
    energy_error_ratio: float
    shared_error_ratio: float = 0.0
    n_looks: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not all(math.isfinite(x) and x > 0 for x in (self.power_limit_w, self.rate_ratio, self.energy_ratio)):
            raise ValueError(f"{self}: limit and ratios must be finite and above 0")
        if not all(math.isfinite(x) and x >= 0 for x in (self.rate_error_ratio, self.energy_error_ratio, self.n_looks)):
            raise ValueError(f"{self}: errors and the number of looks must be finite and at least 0")
        if not math.isfinite(self.shared_error_ratio):
            raise ValueError(f"{self}: the shared error must be finite")
