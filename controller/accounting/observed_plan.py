"""What a plan that is only observed would have saved: the same iterations at the limits that it would have set.

It needs a curve that was measured before, because in `plan.observe` none is. The work is priced when it really ran;
that a lower limit would have moved it to later hours is left out.
"""

from typing import TYPE_CHECKING

import numpy as np

from controller.accounting.meter_intervals import MeterInterval
from policies.vocabulary.profile import PowerProfile

if TYPE_CHECKING:
    from controller.ports import Target


class ObservedPlan:
    """The sums of a plan that is not carried out, beside those of the highest limit.

    Attributes:
        target: the limit that the plan would have set now; None: it has none.
    """

    def __init__(self) -> None:
        self.target: Target | None = None
        self._planned = 0.0
        self._baseline = 0.0

    def add(self, interval: MeterInterval, profile: PowerProfile | None, signal_value: float | None) -> None:
        """Add an interval in which iterations ran, on a measured curve; without one there is nothing to say."""
        if profile is None or self.target is None or not interval.n_iterations:
            return
        value = 1.0 if signal_value is None else signal_value
        points = sorted(profile.points, key=lambda point: point.power_limit_w)
        limits_w = [point.power_limit_w for point in points]
        energies_j = [point.power_w / point.iterations_per_s for point in points]
        planned_j = float(np.interp(self.target.power_limit_w, limits_w, energies_j))
        fastest = profile.fastest
        self._planned += value * interval.n_iterations * planned_j
        self._baseline += value * interval.n_iterations * fastest.power_w / fastest.iterations_per_s

    @property
    def would_save_ratio(self) -> float | None:
        """Return the share of the signal (carbon, cost or energy) that would have been saved; None if unknown."""
        return 1 - self._planned / self._baseline if self._baseline > 0 else None

    def summary(self) -> str:
        """Return a sentence for the end of a run."""
        ratio = self.would_save_ratio
        if ratio is None:
            return (
                "plan.observe: what would be saved is unknown (not_profiled): no curve of this job was measured; it"
                " takes a run without plan.observe"
            )
        return f"plan.observe: the plan would have saved about {100 * ratio:.1f} %, by the curve measured before"
