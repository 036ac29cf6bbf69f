"""One measurement of one limit under way: its sums, its iterations and its readings."""

from dataclasses import dataclass, replace
from typing import Final

from policies.profiling.observation import Observation

MAX_TIMES: Final = 256
"""No more iterations are looked at singly: a bound for memory, far above what a measurement needs."""

ROUNDING_RATIO: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was observed at one limit; `_s2`, `_j_s` and `_j2` are sums of squares and products.

    Attributes:
        active_s: how long it is so far [s].
        n_iterations: the iterations in it, with fractions.
        energy_j: the energy in it [J].
        n_readings: slices that ended with a reading of the energy.
        times_s: how long single iterations took, of those that lie in it wholly, shape (n,) [s].
        stretches_s: mean iteration times of stretches of at least one iteration, shape (n,) [s].
        stretch_iterations: how many iterations each stretch has, shape (n,).
        pending_s: the stretch under way [s].
        pending_iterations: its iterations.
        sum_t_s: over the readings, of their times [s]; likewise the next five: of energies, squares, products.
    """

    active_s: float = 0.0
    n_iterations: float = 0.0
    energy_j: float = 0.0
    n_readings: int = 0
    times_s: tuple[float, ...] = ()
    stretches_s: tuple[float, ...] = ()
    stretch_iterations: tuple[float, ...] = ()
    pending_s: float = 0.0
    pending_iterations: float = 0.0
    sum_t_s: float = 0.0
    sum_e_j: float = 0.0
    sum_tt_s2: float = 0.0
    sum_te_j_s: float = 0.0
    slice_tt_s2: float = 0.0
    slice_te_j_s: float = 0.0
    slice_ee_j2: float = 0.0

    def with_slice(self, seen: Observation) -> "Window":
        """Return the window with one more slice."""
        t_s, e_j = self.active_s + seen.active_s, self.energy_j + seen.energy_j
        pending_s, pending_n, stretches_s, stretch_iterations = self._stretched(seen)
        return replace(
            self,
            active_s=t_s,
            n_iterations=self.n_iterations + seen.n_iterations,
            energy_j=e_j,
            n_readings=self.n_readings + 1,
            times_s=self._times_with(seen, t_s),
            stretches_s=stretches_s,
            stretch_iterations=stretch_iterations,
            pending_s=pending_s,
            pending_iterations=pending_n,
            sum_t_s=self.sum_t_s + t_s,
            sum_e_j=self.sum_e_j + e_j,
            sum_tt_s2=self.sum_tt_s2 + t_s * t_s,
            sum_te_j_s=self.sum_te_j_s + t_s * e_j,
            slice_tt_s2=self.slice_tt_s2 + seen.active_s**2,
            slice_te_j_s=self.slice_te_j_s + seen.active_s * seen.energy_j,
            slice_ee_j2=self.slice_ee_j2 + seen.energy_j**2,
        )

    @property
    def n_counted(self) -> float:
        """Return how many iterations its rate rests on."""
        return float(len(self.times_s)) if self.times_s else sum(self.stretch_iterations)

    def _times_with(self, seen: Observation, until_s: float) -> tuple[float, ...]:
        """Return the iterations with those of a slice, less one that began before the window did."""
        times_s = self.times_s
        room_s = until_s - sum(times_s)
        for time_s in reversed(seen.iteration_times_s):
            if len(times_s) >= MAX_TIMES or time_s <= 0 or time_s > room_s * (1 + ROUNDING_RATIO):
                break
            times_s = (*times_s, time_s)
            room_s -= time_s
        return times_s

    def _stretched(self, seen: Observation) -> tuple[float, float, tuple[float, ...], tuple[float, ...]]:
        """Return the stretch under way (its time and iterations), and those that are whole."""
        pending_s, pending_n = self.pending_s + seen.active_s, self.pending_iterations + seen.n_iterations
        if pending_n < 1 or len(self.stretches_s) >= MAX_TIMES:
            return pending_s, pending_n, self.stretches_s, self.stretch_iterations
        return 0.0, 0.0, (*self.stretches_s, pending_s / pending_n), (*self.stretch_iterations, pending_n)


EMPTY: Final = Window()
