"""Reproducible noise of a simulated GPU: it depends on the seed and the position only.

Two processes, and two runs that are compared, get the same noise: iteration 4711 is the same amount of work for each.
"""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from policies.vocabulary.units import Values

INSTANT_NOISE_RATIO = 0.07
"""Standard deviation of an instant reading of the power, of which there is a new one every `METER_PERIOD_NS` …"""
INSTANT_SWING = -0.8
"""… and its correlation with the one before: on an H100 at some 15 iterations a second they swing."""
COUNTER_NOISE_RATIO = 0.015
"""Standard deviation of what the energy counter shows, as a share of what is used in `METER_PERIOD_NS`."""
METER_PERIOD_NS = 100_000_000
_CHUNK = 4096
_N_SWINGS = 12
_POWER, _ITERATION, _GROUP, _INSTANT, _COUNTER = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLevels:
    """By how much iterations and power scatter (standard deviations).

    Attributes:
        iteration_ratio: of the work of one iteration.
        group_ratio: of the mean work of a group of iterations: data and host drift a little.
        group_iterations: how many are a group; a divisor of 4,096.
        power_ratio: of the mean power of a block.
        power_block_s: how long a block is [s].
    """

    iteration_ratio: float = 0.02
    group_ratio: float = 0.003
    group_iterations: int = 128
    power_ratio: float = 0.01
    power_block_s: float = 10.0


class _MeterChunk(NamedTuple):
    """The noise of the meters of so many readings: factors on instants, and what the counter shows too much."""

    chunk: int
    instant_ratios: list[float]
    counter_ratios: list[float]


class Noise:
    """The noise of one seed."""

    def __init__(self, seed: int, levels: NoiseLevels | None = None) -> None:
        self.seed = seed
        self._levels = levels or NoiseLevels()
        self._blocks = array("d")
        self._block_ends_s = array("d", [0.0])
        self._meters: _MeterChunk | None = None
        """The chunk that was used last."""

    def iterations(self, first: int = 0) -> Iterator[float]:
        """Yield the work of each iteration from number `first` on, in nominal iterations: about 1 each."""
        chunk, skip = divmod(first, _CHUNK)
        while True:
            yield from self.work_of_chunk(chunk)[skip:].tolist()
            chunk, skip = chunk + 1, 0

    def power_ratio(self, at_s: float) -> float:
        """Return the factor on the mean power, `at_s` seconds after the start."""
        block = max(0, int(at_s // self._levels.power_block_s))
        self._grow(block)
        return self._blocks[block]

    def noisy_time_s(self, at_s: float) -> float:
        """Return the integral of `power_ratio` from the start to `at_s` [s]: mean power times this is energy."""
        block = max(0, int(at_s // self._levels.power_block_s))
        self._grow(block)
        return self._block_ends_s[block] + (at_s - block * self._levels.power_block_s) * self._blocks[block]

    def instant_ratio(self, number: int) -> float:
        """Return the factor on the power that an instant reading shows, by its number: every `METER_PERIOD_NS` one."""
        return self._meter_chunk(number // _CHUNK).instant_ratios[number % _CHUNK]

    def counter_ratio(self, number: int) -> float:
        """Return what the counter shows too much at a step, by its number, of what is used between two steps."""
        return self._meter_chunk(number // _CHUNK).counter_ratios[number % _CHUNK]

    def _meter_chunk(self, chunk: int) -> "_MeterChunk":
        if self._meters is None or self._meters.chunk != chunk:
            before = self._normal(_INSTANT, chunk - 1) if chunk else np.zeros(_CHUNK)
            shocks = np.concatenate([before[1 - _N_SWINGS :], self._normal(_INSTANT, chunk)])
            swings = math.sqrt(1 - INSTANT_SWING**2) * np.convolve(
                shocks, INSTANT_SWING ** np.arange(_N_SWINGS), "valid"
            )
            counter = COUNTER_NOISE_RATIO * self._normal(_COUNTER, chunk)
            self._meters = _MeterChunk(chunk, (1 + INSTANT_NOISE_RATIO * swings).tolist(), counter.tolist())
        return self._meters

    def _grow(self, block: int) -> None:
        while len(self._blocks) <= block:
            ratios = 1 + self._levels.power_ratio * self._normal(_POWER, len(self._blocks) // _CHUNK)
            lengths_s = (self._levels.power_block_s * ratios).tolist()
            ends_s = accumulate(lengths_s, initial=self._block_ends_s.pop())
            self._block_ends_s.extend(ends_s)
            self._blocks.extend(ratios.tolist())

    def work_of_chunk(self, chunk: int) -> Values:
        """Return the work of 4,096 iterations at once, of chunk 0, 1, …, in nominal iterations, shape (4096,)."""
        levels, n_group = self._levels, self._levels.group_iterations
        per_chunk = _CHUNK // n_group
        group_chunk, part = divmod(chunk, n_group)
        groups = self._normal(_GROUP, group_chunk)[part * per_chunk : (part + 1) * per_chunk]
        drift = np.repeat(1 + levels.group_ratio * groups, n_group)
        return np.asarray(drift * (1 + levels.iteration_ratio * self._normal(_ITERATION, chunk)))

    def _normal(self, stream: int, chunk: int) -> Values:
        """Return chunk number `chunk` of a stream of standard normal numbers, shape (4096,)."""
        bits = np.random.Philox(key=[self.seed, stream], counter=[0, 0, 0, chunk])
        return np.random.Generator(bits).standard_normal(_CHUNK)
