"""How a board warms with its power, and how much more energy the same work needs for each kelvin. Pure.

Both are learnt from the run itself, reading by reading, in bounded memory:

    temperature = T0 + fast * P + slow * F(P) + start * exp(-t / tau)
    log(energy per iteration) = level + a * temperature

F is the exponential filter of the power, for each of a few time constants tau; `start` is how warm the board was when
it was first read. The coefficients are those of least squares, by running sums, for the tau that fits best.

A job that draws more for a while warms its board, which shows nothing of a. So a is learnt only from the minutes after
a change of limit, or a pause: there the temperature goes where it goes, whatever the job does. An exponential in the
time since then is the instrument (Wooldridge, Introductory Econometrics, chapter 15). It also cancels the error of a
sensor that tells whole degrees. Such slopes are pooled, and their own scatter is their error: what a job wanders by.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Final

from policies.profiling.paired_looks import PooledLog
from policies.vocabulary.profile import LIMIT_TOLERANCE_W

TIME_CONSTANTS_S: Final = (15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0)
N_SUMS: Final = 15
"""Of the products of five quantities."""
N_BLOCK_SUMS: Final = 7
MAX_SUM: Final = 1e18
"""No sum comes to more."""
CHUNK_S: Final = 5.0
"""Readings are averaged over so long: energy counters move in ticks, and iterations scatter."""
GAP_S: Final = 1.0
UNKNOWN_S: Final = 600.0
"""After a longer gap between two readings it is not known how warm the board has become; so much later it is."""
COLDEST_C: Final = -40.0
HOTTEST_C: Final = 150.0
JUMP_K: Final = 30.0
"""A temperature outside of these, or one that jumps by more, is not believed."""

SETTLE_S: Final = 2.0
"""For so long after a change jobs may not be what they are else: caches are cold, data are late."""
INSTRUMENT_S: Final = 30.0
BLOCK_S: Final = 150.0
"""So long after a change the temperature still tells something, …"""
SHORTEST_BLOCK_S: Final = 15.0
LEAST_K2: Final = 0.25
"""… where the variance that the change has caused is not less."""
STEEPEST: Final = 0.1
"""A slope of more [1/K] is none of the board's: the job is another one after the change."""
NOISE_LOG: Final = 0.003
"""What energy per iteration wanders by in that time, before slopes have shown by their own scatter what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """What meters have shown of the boards of a run, as if they were one, between two readings.

    Attributes:
        begins_s: when it began, on a clock that is not set [s].
        duration_s: how long it was [s].
        energy_j: the energy of all boards [J].
        n_iterations: the iterations in it.
        power_limit_w: the limit throughout [W]; None: it is not known, or the run has paused.
        temperature_c: the mean temperature [°C]; None: it is not known.
    """

    begins_s: float
    duration_s: float
    energy_j: float
    n_iterations: float = 0.0
    power_limit_w: float | None = None
    temperature_c: float | None = None

    @property
    def is_possible(self) -> bool:
        """Return whether all quantities are valid."""
        quantities = (self.begins_s, self.duration_s, self.energy_j, self.n_iterations)
        return (
            all(map(math.isfinite, quantities)) and self.duration_s > 0 and min(self.energy_j, self.n_iterations) >= 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Readings that are averaged: integrals over their time.

    Attributes:
        power_limit_w: the limit [W]; None: there was none.
        duration_s, energy_j, n_iterations: of all of them.
        temperature_k_s: of the temperature [°C s].
        filtered_j: of each filter of the power [J].
        decays_s: of each exponential since the first reading [s].
    """

    power_limit_w: float | None = None
    duration_s: float = 0.0
    energy_j: float = 0.0
    n_iterations: float = 0.0
    temperature_k_s: float = 0.0
    filtered_j: tuple[float, ...] = ()
    decays_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The time since a change of limit, or a pause.

    Attributes:
        power_limit_w: the limit [W]; None: the run has paused.
        age_s: how long ago it was [s].
        sums_s: the weighted sums of (1, z, T, y), by columns of their products: 1; z, zz; T, zT; y, zy. z is the
            instrument, T the temperature [°C] and y the logarithm of the energy per iteration; the weights are times.
    """

    power_limit_w: float | None = None
    age_s: float = 0.0
    sums_s: tuple[float, ...] = (0.0,) * N_BLOCK_SUMS


@dataclass(frozen=True, slots=True, kw_only=True)
class ThermalState:
    """What is known of the boards of a run.

    Attributes:
        until_s: when the last reading was [s]; None: there was none.
        age_s: how long ago the first one was [s].
        unknown_s: for how long it will not be known yet how warm the board was before a gap [s].
        filtered_w: the power, filtered by each time constant [W].
        seen_w: the same, in the mean over the last reading [W].
        last_c: the last temperature [°C]; None: there was none.
        range_c: the lowest and the highest one that were learnt from [°C]; None: there was none.
        chunk, block: what is being averaged, and since the last change.
        sums_s: for each time constant, the weighted sums of the products of (1, P, F, exp(-t / tau), T), by rows of the
            upper triangle; the weights are times.
        slopes: those of the logarithm of the energy per iteration over the temperature [1/K].
    """

    until_s: float | None = None
    age_s: float = 0.0
    unknown_s: float = 0.0
    filtered_w: tuple[float, ...] = ()
    seen_w: tuple[float, ...] = ()
    last_c: float | None = None
    range_c: tuple[float, float] | None = None
    chunk: Chunk = field(default_factory=Chunk)
    block: Block = field(default_factory=Block)
    sums_s: tuple[tuple[float, ...], ...] = ((0.0,) * N_SUMS,) * len(TIME_CONSTANTS_S)
    slopes: PooledLog = field(default_factory=PooledLog)

    @property
    def warmth_w(self) -> tuple[float, ...]:
        """Return the filtered powers of the last reading [W]; empty where they are not known."""
        return () if self.unknown_s > 0 else self.seen_w

    def check(self) -> None:
        """Check what was read from a file.

        Raises:
            ValueError: a number is impossible, or one is missing.
        """
        n, chunk, slopes = len(TIME_CONSTANTS_S), self.chunk, self.slopes
        lengths = {len(each) for each in (self.filtered_w, self.seen_w, chunk.filtered_j, chunk.decays_s)}
        is_whole = [len(each) for each in self.sums_s] == [N_SUMS] * n and len(self.block.sums_s) == N_BLOCK_SUMS
        if not (is_whole and lengths <= {0, n}):
            raise ValueError("what is known of the temperature is not whole")
        sums = (*self.block.sums_s, *(each for row in self.sums_s for each in row), *self.filtered_w, *self.seen_w)
        is_possible = min(slopes.n, slopes.precision, slopes.square) >= 0 and abs(slopes.mean_log) < 1
        if not (is_possible and all(abs(each) < MAX_SUM for each in (*sums, slopes.precision, slopes.square))):
            raise ValueError("what is known of the temperature is impossible")


def advance_thermal(state: ThermalState, metered: Metered) -> ThermalState:
    """Return what is known after one more reading, in which the run has iterated or paused."""
    if not metered.is_possible:
        return _interrupted(state)
    if state.until_s is not None and abs(metered.begins_s - state.until_s) > GAP_S:
        state = replace(_interrupted(state), unknown_s=UNKNOWN_S, filtered_w=())
    temperature_c = _believed_c(state, metered.temperature_c)
    state, decays = _filtered(state, metered)
    if _is_other(state.chunk.power_limit_w, metered.power_limit_w):
        state = replace(_with_chunk(state, of_block=False), chunk=Chunk(power_limit_w=metered.power_limit_w))
    if _is_other(state.block.power_limit_w, metered.power_limit_w):
        state = replace(_scored(state), block=Block(power_limit_w=metered.power_limit_w))
    if temperature_c is None or state.unknown_s > 0:
        return replace(state, chunk=Chunk(power_limit_w=metered.power_limit_w))
    if state.block.age_s < SETTLE_S:
        return replace(state, block=replace(state.block, age_s=state.block.age_s + metered.duration_s))
    state = replace(state, chunk=_grown(state.chunk, metered, temperature_c, state.seen_w, decays))
    return _with_chunk(state, of_block=True) if state.chunk.duration_s >= CHUNK_S else state


def _interrupted(state: ThermalState) -> ThermalState:
    """Return the state after something that makes the next reading a stranger to the last one."""
    return replace(_scored(state), chunk=Chunk(), block=Block(), last_c=None)


def _believed_c(state: ThermalState, temperature_c: float | None) -> float | None:
    """Return a temperature, if it is one, and not far from the one before."""
    if temperature_c is None or not COLDEST_C < temperature_c < HOTTEST_C:
        return None
    is_jump = state.last_c is not None and abs(temperature_c - state.last_c) > JUMP_K
    return None if is_jump else temperature_c


def _filtered(state: ThermalState, metered: Metered) -> tuple[ThermalState, tuple[float, ...]]:
    """Return the state with its filters, and the mean of each exponential since the first reading."""
    lasts_s, power_w = metered.duration_s, metered.energy_j / metered.duration_s
    before_w = state.filtered_w or (power_w,) * len(TIME_CONSTANTS_S)
    kept = [math.exp(-lasts_s / each_s) for each_s in TIME_CONSTANTS_S]
    means = [-math.expm1(-lasts_s / each_s) * each_s / lasts_s for each_s in TIME_CONSTANTS_S]
    after = replace(
        state,
        until_s=metered.begins_s + lasts_s,
        age_s=state.age_s + lasts_s,
        unknown_s=max(state.unknown_s - lasts_s, 0.0),
        filtered_w=tuple(power_w + (w - power_w) * keep for w, keep in zip(before_w, kept, strict=True)),
        seen_w=tuple(power_w + (w - power_w) * mean for w, mean in zip(before_w, means, strict=True)),
        last_c=metered.temperature_c,
    )
    decays = tuple(math.exp(-state.age_s / each_s) * mean for each_s, mean in zip(TIME_CONSTANTS_S, means, strict=True))
    return after, decays


def _is_other(one_w: float | None, other_w: float | None) -> bool:
    if one_w is None or other_w is None:
        return one_w is not other_w
    return abs(one_w - other_w) > LIMIT_TOLERANCE_W


def _grown(
    chunk: Chunk, metered: Metered, temperature_c: float, seen_w: tuple[float, ...], decays: tuple[float, ...]
) -> Chunk:
    lasts_s, zeros = metered.duration_s, (0.0,) * len(TIME_CONSTANTS_S)
    filtered = zip(chunk.filtered_j or zeros, seen_w, strict=True)
    exponentials = zip(chunk.decays_s or zeros, decays, strict=True)
    return replace(
        chunk,
        duration_s=chunk.duration_s + lasts_s,
        energy_j=chunk.energy_j + metered.energy_j,
        n_iterations=chunk.n_iterations + metered.n_iterations,
        temperature_k_s=chunk.temperature_k_s + lasts_s * temperature_c,
        filtered_j=tuple(sum_j + lasts_s * mean_w for sum_j, mean_w in filtered),
        decays_s=tuple(sum_s + lasts_s * decay for sum_s, decay in exponentials),
    )


def _with_chunk(state: ThermalState, *, of_block: bool) -> ThermalState:
    """Return the state with the averaged readings in its sums, and where they are whole in the block, too."""
    chunk, lasts_s = state.chunk, state.chunk.duration_s
    if not lasts_s:
        return state
    mean_c = chunk.temperature_k_s / lasts_s
    rows = []
    for sums_s, filtered_j, decay_s in zip(state.sums_s, chunk.filtered_j, chunk.decays_s, strict=True):
        at = (1.0, chunk.energy_j / lasts_s, filtered_j / lasts_s, decay_s / lasts_s, mean_c)
        pairs = combinations_with_replacement(at, 2)
        rows.append(tuple([sum_s + lasts_s * (one * other) for sum_s, (one, other) in zip(sums_s, pairs, strict=True)]))
    least_c, most_c = state.range_c or (mean_c, mean_c)
    block = _extended(state.block, chunk, mean_c) if of_block else state.block
    return replace(
        state,
        chunk=Chunk(power_limit_w=chunk.power_limit_w),
        block=block,
        sums_s=tuple(rows),
        range_c=(min(least_c, mean_c), max(most_c, mean_c)),
    )


def _extended(block: Block, chunk: Chunk, mean_c: float) -> Block:
    """Return the block with one more chunk, as long as that tells something."""
    age_s, lasts_s = block.age_s + chunk.duration_s, chunk.duration_s
    is_telling = block.power_limit_w is not None and age_s <= BLOCK_S and min(chunk.n_iterations, chunk.energy_j) > 0
    if not is_telling:
        return replace(block, age_s=age_s)
    z, y = math.exp(-(age_s - lasts_s / 2) / INSTRUMENT_S), math.log(chunk.energy_j / chunk.n_iterations)
    added = (1.0, z, z * z, mean_c, z * mean_c, y, z * y)
    sums_s = tuple(sum_s + lasts_s * each for sum_s, each in zip(block.sums_s, added, strict=True))
    return replace(block, age_s=age_s, sums_s=sums_s)


def _scored(state: ThermalState) -> ThermalState:
    """Return the state with the slope of its block among the others, if it has one."""
    block = state.block
    total_s, *sums_s = block.sums_s
    if total_s < SHORTEST_BLOCK_S:
        return state
    z, zz, t, zt, y, zy = (each / total_s for each in sums_s)
    z_variance, zt_covariance, zy_covariance = zz - z * z, zt - z * t, zy - z * y
    if z_variance <= 0 or zt_covariance**2 < LEAST_K2 * z_variance:
        return state
    slope_log = zy_covariance / zt_covariance
    if abs(slope_log) > STEEPEST:
        return state
    error_log = NOISE_LOG * math.sqrt(z_variance) / abs(zt_covariance)
    return replace(state, slopes=state.slopes.plus(slope_log, error_ratio=error_log))
