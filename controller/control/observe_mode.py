"""Observe mode: the plan of a run is made and published, nothing is written, and what it would have saved is estimated.

That is the same iterations at the limits that the plan would have set. It needs a curve that was measured before,
because in `plan.observe` none is, and looks, which would tell it better, take writes. The work is priced when it really
ran; that a lower limit would have moved it to later hours is left out.
"""

import logging
import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from controller.accounting.meter_intervals import MeterInterval
from controller.control.gpu_group import GpuGroup
from controller.control.run_control import RunControl
from controller.ports import SignalSource, Target
from controller.runtime.clock import Now
from policies.profiling.curve_model import estimate_ratios
from policies.profiling.paired_looks import Looks
from policies.savings.interval import NORMAL_QUANTILE
from policies.vocabulary.profile import PowerProfile
from publishers.training.reporting.run_summary import percent

MAX_CI90_RATIO: Final = 0.05
"""A curve of a former run is known to some points, since jobs wander; nothing is said while it is worse than this."""

_LOGGER = logging.getLogger(__name__)


class Estimate(NamedTuple):
    """A share of the signal (carbon, cost or energy), and the half-width of its 90 % interval."""

    ratio: float
    ci90_ratio: float


class ObserveMode:
    """A run whose plan is not carried out, and what it would have done: its work at each planned limit."""

    def __init__(self, *, name: str, gpus: GpuGroup, signal: SignalSource) -> None:
        self._name, self._gpus, self._signal = name, gpus, signal
        self._target: Target | None = None
        self._profile: PowerProfile | None = None
        self._work: dict[float, float] = {}
        """Iterations times the signal, by the limit that was planned for them [W]."""

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
        self._profile, limit_w = profile, self._target.power_limit_w
        value = 1.0 if signal_value is None else signal_value
        self._work[limit_w] = self._work.get(limit_w, 0.0) + value * interval.n_iterations

    @property
    def would_save(self) -> Estimate | None:
        """Return what would have been saved; None: it is not known, or not to some points."""
        return None if self._profile is None else estimate(self._profile, self._work)

    def log(self) -> None:
        """Log what would have been saved, once the run has ended."""
        found = self.would_save
        if self._profile is None:
            said = (
                "what would be saved is unknown (not_profiled): no curve of this job was measured; it takes a run"
                " without plan.observe"
            )
        elif found is None:
            said = "what would be saved is unknown: the curve measured before is not precise enough"
        else:
            said = f"the plan would have saved about {percent(*found)}, by the curve measured before"
        _LOGGER.info("%s: plan.observe: %s", self._name, said)


def estimate(profile: PowerProfile, work: Mapping[float, float]) -> Estimate | None:
    """Return what work would have saved at limits below the highest one, by a curve alone; None: not known.

    The errors of all limits are taken for one: they have the highest limit in common.

    Args:
        profile: the curve.
        work: iterations times the signal, by limit [W].
    """
    limits_w, total = list(work), math.fsum(work.values())
    if not total > 0:
        return None
    ratios = estimate_ratios(profile, Looks(), limits_w).ratios
    shares = [work[each.power_limit_w] / total for each in ratios]
    saved = 1 - math.fsum(share / each.energy_ratio for share, each in zip(shares, ratios, strict=True))
    errors = (each.energy_error_ratio / each.energy_ratio**2 for each in ratios)
    half = NORMAL_QUANTILE * math.fsum(abs(share) * error for share, error in zip(shares, errors, strict=True))
    return Estimate(saved, half) if half <= MAX_CI90_RATIO else None
