"""A stretch of iterations of one training process: one right after the other, without a gap."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class Stretch:
    """Iterations without a gap: `marks_ns[0]` is the beginning of the first, the others are ends [ns].

    Before it lies a gap of `gap_ns`; before the first of a log, an endless one.
    """

    marks_ns: NDArray[np.int64]
    gap_ns: int

    @property
    def begin_ns(self) -> int:
        """Return when the first iteration began [ns]."""
        return int(self.marks_ns[0])

    @property
    def end_ns(self) -> int:
        """Return when the last one ended [ns]."""
        return int(self.marks_ns[-1])

    @property
    def duration_s(self) -> float:
        """Return how long they took [s]."""
        return (self.end_ns - self.begin_ns) / NS_PER_S

    def position(self, time_ns: int) -> float:
        """Return how many iterations of this stretch had passed at a time, with the fraction of the one under way."""
        return float(np.interp(time_ns, self.marks_ns, np.arange(len(self.marks_ns))))
