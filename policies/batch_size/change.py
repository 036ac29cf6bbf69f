"""Whether a job has changed at once: a batch size that needed so many epochs needs far more, run after run.

A cumulative sum of how far each run lay above what is usual at its batch size (E. S. Page, Biometrika 41 (1954)), in
standard deviations from run to run. What was learned before such a change counts little after it, of every batch size:
which is the best must be found anew.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.batch_size.study import Floats

NOISE_LOG: Final = 0.15
NOISE_WEIGHT: Final = 4.0
"""The prior of the noise from run to run, a standard deviation of the logarithm, and how many runs it is worth."""
CHANGE_LOG: Final = math.log(2.0)
"""The change that is looked for: twice as many epochs. What is less than half of it adds nothing to the sum."""
CHANGE_SD: Final = 2.0
"""The same, where the noise is large, in standard deviations."""
ALARM_SD: Final = 5.0
"""The sum that is a change; once in 100,000 runs of normal noise that is known well (D. Siegmund, 1985)."""
MOST_SD: Final = 3.0
"""What a single run adds at most: one alone, however long, is no change."""
LEAST_RUNS: Final = 5
"""Of a batch size, before anything is usual there."""


@dataclass(slots=True)
class _Noise:
    """The variance from run to run, pooled over the batch sizes: the mean of an inverse-gamma posterior."""

    sum_log2: float = NOISE_WEIGHT * NOISE_LOG**2
    n_degrees: float = NOISE_WEIGHT


@dataclass(slots=True)
class _Usual:
    """What is usual at a batch size since the last change, and the runs that may be the beginning of the next."""

    n: int = 0
    mean: float = 0.0
    excess_ratio: float = 0.0
    """The sum, in standard deviations."""
    pending: list[int] = field(default_factory=list)

    def add(self, value: float, noise: _Noise) -> None:
        """Take a run for a usual one."""
        apart = value - self.mean
        self.n += 1
        self.mean += apart / self.n
        if self.n > 1:
            noise.sum_log2 += apart**2 * (self.n - 1) / self.n
            noise.n_degrees += 1

    def added_ratio(self, value: float, noise: _Noise) -> float:
        """Return what a run adds to the sum: how far it lies above the usual; little may be known of the noise."""
        if self.n < LEAST_RUNS:
            return 0.0
        sd = math.sqrt(noise.sum_log2 / noise.n_degrees * (1 + 1 / self.n))
        t = (value - self.mean) / sd
        z = math.copysign(math.sqrt(noise.n_degrees * math.log1p(t * t / noise.n_degrees)), t)
        allowance = max(CHANGE_SD, CHANGE_LOG / sd) / 2
        return min(z - allowance, MOST_SD)


def changed_at(index: NDArray[np.intp], log_epochs: Floats, reached: NDArray[np.bool_]) -> int:
    """Return the number of the first run after the last change; 0: there was none.

    Args:
        index: which candidate each run is of, shape (n_runs,), in the order in which they were made.
        log_epochs: the logarithm of the epochs that each trained, shape (n_runs,).
        reached: whether that was to the target, shape (n_runs,). One that was stopped needed more, nobody knows how
            many: it may be dearer than usual, and is never a usual one.
    """
    values = log_epochs.tolist()
    began, noise, usual = 0, _Noise(), dict[int, _Usual]()
    for number, (candidate, got_there) in enumerate(zip(index.tolist(), reached.tolist(), strict=True)):
        own = usual.setdefault(candidate, _Usual())
        excess = own.added_ratio(values[number], noise)
        if not got_there and excess <= 0:
            continue
        own.excess_ratio = max(0.0, own.excess_ratio + excess)
        own.pending.append(number)
        if own.excess_ratio > ALARM_SD:
            began, usual = own.pending[0], {}
        elif own.excess_ratio == 0.0:
            for each in own.pending:
                if reached[each]:
                    own.add(values[each], noise)
            own.pending.clear()
    return began
