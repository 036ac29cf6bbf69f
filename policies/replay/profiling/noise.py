"""What chance does to a training run: how long its iterations take, what it draws, and when its counter ticks.

Everything depends on a seed and on the position in the run alone, so that two policies that reach an iteration, by
whatever way, find the same chance there: their difference is their own.

The levels are assumptions, but for two: counters of energy that move every 20 to 100 ms, and power that takes tenths of
a second to settle, were measured on dozens of GPUs (Yang, Adamek, Armour, arXiv:2312.02741).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
NoiseName = Literal["clean", "realistic", "harsh"]

STALL_RATIO: Final = 3.0
"""An iteration that stalls takes so many times as long."""
STRETCH_S: Final = 2.0
MIN_STRETCH_ITERATIONS: Final = 10
"""A stretch is as long as what a profiler looks at before it concludes something: shorter ones would average out within
a window, longer ones would be common to several windows, and cancel when they are compared. Whoever looks longer, as
Zeus does, gains by it."""
MIN_CHUNK: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLevel:
    """A level of noise.

    Attributes:
        step_ratio: the standard deviation of an iteration's time, as a share of it.
        stall_ratio: the share of iterations that stall.
        stretch_ratio: the standard deviation of a stretch of iterations, common to all of them: of their time, and,
            independently, of the power.
        tick_s: how often the counter of energy moves [s].
        settling_s: the time constant at which power follows a change of the limit [s].
    """

    step_ratio: float
    stall_ratio: float
    stretch_ratio: float
    tick_s: float
    settling_s: float


LEVELS: Final[Mapping[NoiseName, NoiseLevel]] = {
    "clean": NoiseLevel(step_ratio=0.02, stall_ratio=0.0, stretch_ratio=0.002, tick_s=0.02, settling_s=0.15),
    "realistic": NoiseLevel(step_ratio=0.05, stall_ratio=0.005, stretch_ratio=0.008, tick_s=0.05, settling_s=0.3),
    "harsh": NoiseLevel(step_ratio=0.1, stall_ratio=0.01, stretch_ratio=0.025, tick_s=0.1, settling_s=0.5),
}


class NoisePath:
    """The chance of one run, drawn as far as the run gets.

    Work is measured in iterations of mean length: at a limit where those take T, a run gets through 1/T of it a second.

    Attributes:
        work: the work done at the end of each iteration, the first 0, shape (n_iterations + 1,).
        weighed_work: the same, each iteration weighed by how much its stretch draws.
        phase_ratio: when the counter ticks, from 0 to 1 of its period.
    """

    def __init__(self, noise: NoiseLevel, *, iteration_time_s: float, seed: int) -> None:
        self._noise = noise
        self._rng = np.random.default_rng(seed)
        self._n_stretch = max(MIN_STRETCH_ITERATIONS, math.ceil(STRETCH_S / iteration_time_s))
        self.phase_ratio = float(self._rng.random())
        self.work: Values = np.zeros(1)
        self.weighed_work: Values = np.zeros(1)

    def reach(self, n_iterations: int) -> None:
        """Draw until the end of that iteration is known."""
        while len(self.work) <= n_iterations:
            self._grow()

    def n_done(self, work_iterations: float) -> float:
        """Return how many iterations some work is, with the fraction of the one under way."""
        while self.work[-1] <= work_iterations:
            self._grow()
        after = int(self.work.searchsorted(work_iterations, side="right"))
        begin, end = float(self.work[after - 1]), float(self.work[after])
        return after - 1 + (work_iterations - begin) / (end - begin)

    def weighed_iterations(self, work_iterations: float) -> float:
        """Return some work, weighed by how much it draws."""
        n_done = self.n_done(work_iterations)
        before = int(n_done)
        low, high = float(self.weighed_work[before]), float(self.weighed_work[before + 1])
        return low + (n_done - before) * (high - low)

    def _grow(self) -> None:
        """Draw a chunk of whole stretches; its size is always the same, or the chance would depend on who asks."""
        noise, rng = self._noise, self._rng
        n_stretches = math.ceil(MIN_CHUNK / self._n_stretch)
        n = n_stretches * self._n_stretch
        steps = np.exp(_centred(noise.step_ratio, rng.standard_normal(n)))
        stalled = np.where(rng.random(n) < noise.stall_ratio, STALL_RATIO, 1.0) / (
            1 + noise.stall_ratio * (STALL_RATIO - 1)  # a measured curve is a mean, with what stalled
        )
        times, powers = np.exp(_centred(noise.stretch_ratio, rng.standard_normal((2, n_stretches))))
        parts = steps * stalled * np.repeat(times, self._n_stretch)
        self.work = _continued(self.work, parts)
        self.weighed_work = _continued(self.weighed_work, parts * np.repeat(powers, self._n_stretch))


def _centred(sd_ratio: float, normal: Values) -> Values:
    """Return logarithms whose exponentials have the mean 1."""
    return np.asarray(sd_ratio * normal - sd_ratio * sd_ratio / 2, dtype=np.float64)


def _continued(sums: Values, parts: Values) -> Values:
    return np.concatenate((sums, sums[-1] + np.cumsum(parts)))
