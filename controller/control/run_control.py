"""How a node controls the power limit of a run: as its leader, or as a follower of another node."""

from typing import Protocol

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.run_books import GpusNow
from controller.control.curve_learning import CurveUpdate
from controller.ports import Blocked, Target
from controller.runtime.clock import Now
from policies.profiling.paired_looks import Looks
from policies.vocabulary.profile import PowerProfile


class RunControl(Protocol):
    """What leader and follower have in common; which of them controls a run follows from where its rank 0 is."""

    @property
    def profile(self) -> PowerProfile | None:
        """Return the curve that the run is accounted by, as far as this node has measured it."""
        ...

    @property
    def is_steady(self) -> bool:
        """Return whether the limit comes from the plan, and is not just being measured."""
        ...

    @property
    def has_begun(self) -> bool:
        """Return whether the run is under way, so that a rank without iterations does not hold it up."""
        ...

    @property
    def looks(self) -> Looks:
        """Return what was seen of the limits, relative to the highest one."""
        ...

    def add_time(self, interval: MeterInterval, gpus: GpusNow) -> None:
        """Add an interval, active or not, before it is entered in the books, with how its GPUs stand now."""
        ...

    def observe(self, interval: MeterInterval) -> CurveUpdate | None:
        """Learn from an active interval; return what it has changed, or None where it was not measured."""
        ...

    def target(self, now: Now) -> Target | Blocked | None:
        """Return the limit that the run should have now, or why none.

        None: the limit stays as it is.
        """
        ...

    def publish(self, target: Target | Blocked | None, *, is_barred: bool, now: Now) -> None:
        """Publish what has changed: the curve, the plan, or how this node follows; `is_barred`: no limit may be set."""
        ...
