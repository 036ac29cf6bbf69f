"""Observe mode: the plan of a run is made and published, nothing is written, and what it would have saved is estimated.

That is the same iterations at the limits that the plan would have set. It needs a curve that was measured before,
because in `plan.observe` none is. The work is priced when it really ran; that a lower limit would have moved it to
later hours is left out.
"""

import logging

import numpy as np

from controller.accounting.meter_intervals import MeterInterval
from controller.control.gpu_group import GpuGroup
from controller.control.run_control import RunControl
from controller.ports import SignalSource, Target
from controller.runtime.clock import Now
from policies.vocabulary.profile import PowerProfile

_LOGGER = logging.getLogger(__name__)


class ObserveMode:
    """A run whose plan is not carried out: the sums of its plan, beside those of the highest limit."""

    def __init__(self, *, name: str, gpus: GpuGroup, signal: SignalSource) -> None:
        self._name, self._gpus, self._signal = name, gpus, signal
        self._target: Target | None = None
        self._planned = 0.0
        self._baseline = 0.0

    def update(self, control: RunControl, now: Now) -> None:
        """Ask for what the plan says, and publish it; the limiters say that nothing is written."""
        target = control.target(now)
        self._target = target if isinstance(target, Target) and control.profile is not None else None
        if isinstance(target, Target):
            self._gpus.request(target)
        control.publish(target, is_barred=True, now=now)

    def add(self, interval: MeterInterval, profile: PowerProfile | None, now: Now) -> None:
        """Add an interval in which iterations ran, on a measured curve; without one there is nothing to say."""
        signal_value = self._signal.value_at(now.wall_at_s(interval.begin_ns))
        if profile is None or self._target is None or not interval.n_iterations:
            return
        value = 1.0 if signal_value is None else signal_value
        points = sorted(profile.points, key=lambda point: point.power_limit_w)
        limits_w = [point.power_limit_w for point in points]
        energies_j = [point.power_w / point.iterations_per_s for point in points]
        planned_j = float(np.interp(self._target.power_limit_w, limits_w, energies_j))
        fastest = profile.fastest
        self._planned += value * interval.n_iterations * planned_j
        self._baseline += value * interval.n_iterations * fastest.power_w / fastest.iterations_per_s

    @property
    def would_save_ratio(self) -> float | None:
        """Return the share of the signal (carbon, cost or energy) that would have been saved; None if unknown."""
        return 1 - self._planned / self._baseline if self._baseline > 0 else None

    def log(self) -> None:
        """Log what would have been saved, once the run has ended."""
        ratio = self.would_save_ratio
        if ratio is None:
            said = (
                "what would be saved is unknown (not_profiled): no curve of this job was measured; it takes a run"
                " without plan.observe"
            )
        else:
            said = f"the plan would have saved about {100 * ratio:.1f} %, by the curve measured before"
        _LOGGER.info("%s: plan.observe: %s", self._name, said)
