"""Random noise of a training run: in the time of iterations, in power, and in when the energy counter updates.

It depends only on the seed and on the position in the run (common random numbers): two policies that reach an
iteration, by whatever path, get the same noise there, so differences between them are their own.

The levels are assumptions, with two exceptions: energy counters that update every 20 to 100 ms, and power that settles
within tenths of a second, were measured on dozens of GPUs (Yang, Adamek, Armour, arXiv:2312.02741).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from policies.vocabulary.units import Values

NoiseName = Literal["clean", "realistic", "harsh"]

STALL_RATIO: Final = 3.0
"""How many times as long an iteration takes when it stalls."""
BLOCK_S: Final = 2.0
MIN_BLOCK_ITERATIONS: Final = 10
"""A block of correlated noise is as long as a profiler's window: shorter blocks would average out within a window,
longer ones would span several windows and cancel in comparisons. A policy with longer windows, such as Zeus, gains."""
MIN_CHUNK: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLevel:
    """A level of noise.

    Attributes:
        step_ratio: the standard deviation of an iteration's time, relative to it.
        stall_ratio: the share of iterations that stall.
        block_ratio: the standard deviation common to a block of iterations: of their time and, independently, of
            their power.
        tick_s: the update period of the energy counter [s].
        settling_s: the time constant with which power follows a change of the limit [s].
    """

    step_ratio: float
    stall_ratio: float
    block_ratio: float
    tick_s: float
    settling_s: float


LEVELS: Final[Mapping[NoiseName, NoiseLevel]] = {
    "clean": NoiseLevel(step_ratio=0.02, stall_ratio=0.0, block_ratio=0.002, tick_s=0.02, settling_s=0.15),
    "realistic": NoiseLevel(step_ratio=0.05, stall_ratio=0.005, block_ratio=0.008, tick_s=0.05, settling_s=0.3),
    "harsh": NoiseLevel(step_ratio=0.1, stall_ratio=0.01, block_ratio=0.025, tick_s=0.1, settling_s=0.5),
}


class NoisePath:
    """The noise of one run: a sample path, drawn as far as needed.

    The unit of work is a mean iteration: at a limit where that takes T, a run does 1/T of it per second.

    Attributes:
        work: the cumulative work at the end of each iteration, starting at 0, shape (n_iterations + 1,).
        weighted_work: the same, with each iteration weighted by the relative power of its block.
        phase_ratio: the phase of the counter's updates, 0 to 1 of their period.
    """

    def __init__(self, noise: NoiseLevel, *, iteration_time_s: float, seed: int) -> None:
        self._noise = noise
        self._rng = np.random.default_rng(seed)
        self._n_block = max(MIN_BLOCK_ITERATIONS, math.ceil(BLOCK_S / iteration_time_s))
        self.phase_ratio = float(self._rng.random())
        self.work: Values = np.zeros(1)
        self.weighted_work: Values = np.zeros(1)

    def reach(self, n_iterations: int) -> None:
        """Extend the path to the end of that iteration."""
        while len(self.work) <= n_iterations:
            self._draw_chunk()

    def n_done(self, work_iterations: float) -> float:
        """Return how many iterations an amount of work completes, with the fraction of the current one."""
        while self.work[-1] <= work_iterations:
            self._draw_chunk()
        after = int(self.work.searchsorted(work_iterations, side="right"))
        begin, end = float(self.work[after - 1]), float(self.work[after])
        return after - 1 + (work_iterations - begin) / (end - begin)

    def weighted_iterations(self, work_iterations: float) -> float:
        """Return an amount of work, weighted by relative power."""
        n_done = self.n_done(work_iterations)
        before = int(n_done)
        low, high = float(self.weighted_work[before]), float(self.weighted_work[before + 1])
        return low + (n_done - before) * (high - low)

    def _draw_chunk(self) -> None:
        """Draw a chunk of whole blocks; its size is fixed, so that the path does not depend on how it is read."""
        noise, rng = self._noise, self._rng
        n_blocks = math.ceil(MIN_CHUNK / self._n_block)
        n = n_blocks * self._n_block
        steps = np.exp(_log_mean_one(noise.step_ratio, rng.standard_normal(n)))
        stalled = np.where(rng.random(n) < noise.stall_ratio, STALL_RATIO, 1.0) / (
            1 + noise.stall_ratio * (STALL_RATIO - 1)  # measured curves are means that include stalls
        )
        times, powers = np.exp(_log_mean_one(noise.block_ratio, rng.standard_normal((2, n_blocks))))
        parts = steps * stalled * np.repeat(times, self._n_block)
        self.work = _extend(self.work, parts)
        self.weighted_work = _extend(self.weighted_work, parts * np.repeat(powers, self._n_block))


def _log_mean_one(sd_ratio: float, normal: Values) -> Values:
    """Return logarithms of lognormal values with mean 1."""
    return np.asarray(sd_ratio * normal - sd_ratio * sd_ratio / 2, dtype=np.float64)


def _extend(sums: Values, parts: Values) -> Values:
    return np.concatenate((sums, sums[-1] + np.cumsum(parts)))
