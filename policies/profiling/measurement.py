"""Measures one power limit: observations, their window, and robust estimates of rate and power.

What the profiler is shown: slices of time in which iterations ran, at a limit that was in force all the time.

One measurement of one limit under way: its sums, its iterations and its readings.

What a window says of its limit: a rate and a power, robust, each with the half-width of its 95 % interval.

Rate: the mean of the iterations' times, each drawn in to three robust standard deviations (of their logarithms, from
the median absolute deviation) around the median: one stall among fifteen iterations would else pass for a slower limit.
Where single iterations are not known, stretches of at least one iteration stand in for them.

Power: the slope of cumulative energy over time, by least squares over all readings. Energy counters move in ticks of
20 to 100 ms, so that the first and the last reading alone would be off by a tick each, 6 % in windows of a second.
"""

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from policies.profiling.settings import ProfilerSettings
from policies.vocabulary.profile import ProfilePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A slice of time in which iterations ran.

    Attributes:
        power_limit_w: the limit enforced all the time [W].
        active_s: how long it was [s].
        n_iterations: how many iterations passed, with fractions of those that began or ended outside.
        energy_j: what all GPUs of the job used [J].
        iteration_times_s: how long each iteration took that ended in it, of the slowest rank [s]; empty where unknown.
    """

    power_limit_w: float
    active_s: float
    n_iterations: float
    energy_j: float
    iteration_times_s: tuple[float, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Return whether it can have been: a counter that went back, or a clock, says that it cannot."""
        quantities = (self.active_s, self.n_iterations, self.energy_j, self.power_limit_w, *self.iteration_times_s)
        return all(math.isfinite(x) and x >= 0 for x in quantities) and self.active_s > 0 and self.power_limit_w > 0


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


NORMAL_95: Final = 1.96
MAD_PER_DEVIATION: Final = 0.6745
"""The median absolute deviation of normal noise, in standard deviations."""
WINSOR_DEVIATIONS: Final = 3.0
WINDOW_CV_RATIO: Final = 0.01
"""How much one measurement as a whole differs from the next: clocks, temperature, the data of the moment. About 1 %
on GPUs; no number of iterations within one measurement shows it."""
SUPPOSED_CV_RATIO: Final = 0.05
SUPPOSED_N: Final = 5.0
"""Before anything is known iterations are supposed to scatter by so much, which counts as so many of them."""
MIN_SCATTERED: Final = 2
MIN_HALF: Final = 3
"""Fewer iterations on either side say nothing of a change between them."""
LEAST_CV_RATIO: Final = 0.01
"""Iterations that seem to scatter less are too few to say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """How much single iterations scatter: their coefficient of variation, and how many of them say so."""

    cv_ratio: float = SUPPOSED_CV_RATIO
    n_iterations: float = SUPPOSED_N

    def with_window(self, window: Window) -> "Scatter":
        """Return the scatter pooled with that of a window."""
        log_times, weights = _log_times(window)
        if len(log_times) < MIN_SCATTERED:
            return self
        middle = median(log_times)
        cv_ratio = (
            median(abs(x - middle) * math.sqrt(weight) for x, weight in zip(log_times, weights, strict=True))
            / MAD_PER_DEVIATION
        )
        n = float(len(log_times))
        squares = self.cv_ratio**2 * self.n_iterations + cv_ratio**2 * n
        return Scatter(cv_ratio=math.sqrt(squares / (self.n_iterations + n)), n_iterations=self.n_iterations + n)


SUPPOSED: Final = Scatter()


def scatter_of(points: tuple[ProfilePoint, ...]) -> Scatter:
    """Return what the intervals of points, each measured once, say about the scatter of iterations."""
    squares, n = SUPPOSED_N * SUPPOSED_CV_RATIO**2, SUPPOSED_N
    for point in points:
        if point.n and point.iterations_per_s_ci is not None:
            error_ratio = point.iterations_per_s_ci / NORMAL_95 / point.iterations_per_s
            squares += max(error_ratio**2 - WINDOW_CV_RATIO**2, 0.0) * point.n**2
            n += point.n
    return Scatter(cv_ratio=math.sqrt(squares / n), n_iterations=n)


def point_of(window: Window, *, power_limit_w: float, scatter: Scatter) -> ProfilePoint:
    """Return what a window says, given how iterations scatter (with its own scatter pooled in)."""
    log_times, weights = _log_times(window)
    n = max(sum(weights), 1.0)
    middle, reach = median(log_times), WINSOR_DEVIATIONS * max(scatter.cv_ratio, LEAST_CV_RATIO)
    time_s = 0.0
    for x, weight in zip(log_times, weights, strict=True):
        bound = reach / math.sqrt(weight)
        time_s += weight * math.exp(min(max(x, middle - bound), middle + bound))
    rate_per_s = sum(weights) / time_s
    power_w, power_error_ratio = _power(window)
    rate_error_ratio = math.hypot(scatter.cv_ratio / math.sqrt(n), WINDOW_CV_RATIO)
    n_whole = max(round(n), 1)
    raw_s = sum(weight * math.exp(x) for x, weight in zip(log_times, weights, strict=True))
    return ProfilePoint(
        power_limit_w=power_limit_w,
        power_w=power_w,
        iterations_per_s=rate_per_s,
        power_ci_w=NORMAL_95 * math.hypot(power_error_ratio, WINDOW_CV_RATIO) * power_w,
        iterations_per_s_ci=NORMAL_95 * rate_error_ratio * rate_per_s,
        n=n_whole,
        active_s=raw_s * n_whole / sum(weights),
    )


def _log_times(window: Window) -> tuple[list[float], tuple[float, ...]]:
    """Return the logarithms of iteration times, and how many iterations each stands for, both of shape (n,)."""
    if window.times_s:
        return [math.log(time_s) for time_s in window.times_s], (1.0,) * len(window.times_s)
    return [math.log(time_s) for time_s in window.stretches_s], window.stretch_iterations


def _power(window: Window) -> tuple[float, float]:
    """Return the power [W] and its standard error as a ratio.

    What a slice has too much the next one has too little, because both are off by the tick between them: a reading is
    off by 1/√2 of what a slice is, and only the readings' own errors remain in the slope.
    """
    mean_w = window.energy_j / window.active_s
    n = window.n_readings + 1  # with the beginning, where time and energy are 0
    spread_s2 = window.sum_tt_s2 - window.sum_t_s**2 / n
    if window.n_readings < MIN_SCATTERED or spread_s2 <= 0:
        return mean_w, WINDOW_CV_RATIO
    power_w = (window.sum_te_j_s - window.sum_t_s * window.sum_e_j / n) / spread_s2
    if power_w <= 0:
        return mean_w, 1.0
    squares_j2 = window.slice_ee_j2 - 2 * power_w * window.slice_te_j_s + power_w**2 * window.slice_tt_s2
    reading_error_j = math.sqrt(max(squares_j2, 0.0) / window.n_readings / 2)
    return power_w, reading_error_j / math.sqrt(spread_s2) / power_w


MIN_ITERATIONS: Final = 5.0
MAX_ITERATIONS: Final = 15.0
"""No measurement asks for more iterations: refinement comes back to the limits that matter."""
MIN_READINGS: Final = 5
PRIOR_RATIO: Final = 2.0
"""The prior limit is measured for so many times as many iterations: every promise is relative to its rate."""
POWER_WINDOWS: Final = 4.0
"""For so many times the shortest window the ticks of the counter are waited for."""
CHANGE_RATIO: Final = 0.1
CHANGE_DEVIATIONS: Final = 4.0


def may_be_enough(settings: ProfilerSettings, window: Window) -> bool:
    """Return whether a window has what the shortest measurement needs."""
    is_long = window.active_s >= settings.window_s and window.n_counted >= MIN_ITERATIONS
    return is_long and window.n_readings >= MIN_READINGS and window.energy_j > 0


def is_enough(settings: ProfilerSettings, window: Window, scatter: Scatter, *, is_prior: bool) -> bool:
    """Return whether a window knows its limit well enough for the first pass."""
    if not may_be_enough(settings, window):
        return False
    is_power_vague = NORMAL_95 * _power(window)[1] > settings.tolerance_ratio
    if is_power_vague and window.active_s < POWER_WINDOWS * settings.window_s:
        return False
    needed = (NORMAL_95 * scatter.cv_ratio / settings.tolerance_ratio) ** 2 if settings.tolerance_ratio else math.inf
    return window.n_counted >= min(needed, MAX_ITERATIONS) * (PRIOR_RATIO if is_prior else 1.0)


def is_as_good_as_any(window: Window, scatter: Scatter) -> bool:
    """Return whether a longer window would say no more: what windows differ by as a whole outweighs what it lacks."""
    rate_error_ratio = scatter.cv_ratio / math.sqrt(window.n_counted)
    return window.n_readings >= MIN_READINGS and max(rate_error_ratio, _power(window)[1]) <= WINDOW_CV_RATIO


def shows_change(window: Window, scatter: Scatter) -> bool:
    """Return whether the iterations of a window's two halves are not of one job."""
    log_times, _ = _log_times(window)
    half = len(log_times) // 2
    if half < MIN_HALF:
        return False
    gap = abs(median(log_times[:half]) - median(log_times[-half:]))
    return gap > max(CHANGE_RATIO, CHANGE_DEVIATIONS * scatter.cv_ratio * math.sqrt(2.5 / half))
