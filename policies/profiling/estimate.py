"""What a window says of its limit: a rate and a power, robust, each with the half-width of its 95 % interval.

Rate: the mean of the iterations' times, each drawn in to three robust standard deviations (of their logarithms, from
the median absolute deviation) around the median: one stall among fifteen iterations would else pass for a slower limit.
Where single iterations are not known, stretches of at least one iteration stand in for them.

Power: the slope of cumulative energy over time, by least squares over all readings. Energy counters move in ticks of
20 to 100 ms, so that the first and the last reading alone would be off by a tick each, 6 % in windows of a second.
"""

import math
from dataclasses import dataclass
from statistics import median
from typing import Final

from policies.profile import ProfilePoint
from policies.profiling.settings import ProfilerSettings
from policies.profiling.window import Window

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
