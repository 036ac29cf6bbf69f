"""Measures one power limit: observations, their window, and robust estimates of rate and power.

Rate: the mean of the iteration times, each winsorised at three robust standard deviations (of their logarithms, from
the median absolute deviation) around the median: one stall among fifteen iterations would else pass for a slower limit.
If single iterations are not known, means of groups of at least one iteration replace them.

Power: the energy between the first and the last reading, where it is known what the counter had not counted yet at
either (counters move in steps of 20 to 100 ms: without it a window of a second is known to 6 %). Else the slope of
cumulative energy over time, by least squares over all readings. Where there are readings of the instant power, their
mean is weighed against that by the errors of both: each of these follows from the scatter within the window.
"""

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from policies.profiling.settings import ProfilerSettings
from policies.vocabulary.profile import ProfilePoint

MAX_TIMES: Final = 256
"""At most so many single iterations are kept: a bound for memory, far above what a measurement needs."""
ROUNDING_RATIO: Final = 1e-9
NORMAL_95: Final = 1.96
MAD_PER_DEVIATION: Final = 0.6745
"""The median absolute deviation of normal noise, in standard deviations."""
WINSOR_DEVIATIONS: Final = 3.0
WINDOW_CV_RATIO: Final = 0.01
"""The variation from one measurement to the next (clocks, temperature, data), about 1 % on GPUs; no number of
iterations within one measurement shows it."""
PRIOR_CV_RATIO: Final = 0.05
PRIOR_N: Final = 8.0
"""The prior of the scatter of iterations, and the number of iterations that it counts as."""
LEAST_CV_RATIO: Final = 1e-4
"""Clocks tell no smaller one."""
LEAST_REACH_RATIO: Final = 0.003
"""A single iteration counts as it is up to so far from the median, however steady the others are."""
MIN_SCATTERED: Final = 2
MIN_HALF: Final = 3
"""With fewer iterations on either side no change between them is detected."""
EARLY_SHARE: Final = 0.6
EARLY_ITERATIONS: Final = 3.0
EARLY_READINGS: Final = 3
EARLY_RATE_SHARE: Final = 1 / 3
"""From this share of the shortest measurement on it may be over, and with so few iterations and readings: where
iterations are so steady that their mean is known to a third of what is tolerated, and the power to that. …"""
EARLY_POWER_RATIO: Final = 1.2
"""… Its error is told by a fifth too large (on an H100, in windows of half a second: 1.10 for 0.92 %), since neighbours
share the errors of the readings between them."""
MIN_ITERATIONS: Final = 5.0
MAX_ITERATIONS: Final = 15.0
"""No measurement of the first sweep takes more iterations: refinement returns to the limits that matter."""
MIN_READINGS: Final = 5
PRIOR_POWER_CV_RATIO: Final = 0.007
PRIOR_POWER_N: Final = 2.0
"""The prior of the scatter of the power of a second, as on an H100, and the number of observations it counts as."""
UNKNOWN_STEP_S: Final = 0.1
"""A counter of which it is not known when it moves may do so as seldom as the slowest known ones: readings at nearly
its own rhythm do not show it."""
MIN_INSTANTS: Final = 4
LEAST_INSTANT_CV_RATIO: Final = 0.01
"""Instant readings that seem to scatter less are too few, or no instants."""
INSTANT_SCALE_RATIO: Final = 0.005
"""To so much they are known to show the same as the counter does: in a long window it alone counts."""
PRIOR_RATIO: Final = 2.0
"""The prior limit is measured for so many times as many iterations: every objective is relative to its rate."""
POWER_WINDOWS: Final = 4.0
"""The ticks of the energy counter are awaited for at most so many times the shortest window."""
NOISE_PRIOR_S: Final = 2.0
"""Before windows are compared, those of so long are taken to differ by `WINDOW_CV_RATIO` [s]."""
KNOWN_WINDOWS: Final = 8
MAX_WINDOWS: Final = 50
"""What was seen before so many windows is forgotten: jobs change."""
NOISE_REACH: Final = 3.0
"""A jump between two windows counts as at most so many standard deviations: a stall is no noise."""
SETTLED_ITERATIONS: Final = 3
SETTLED_RATIO: Final = 0.005
"""A job has settled when so many iterations in a row differ by no more than this, and from the first one by more."""
CHANGE_RATIO: Final = 0.1
CHANGE_DEVIATIONS: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """An interval in which iterations ran, under one enforced limit.

    Attributes:
        power_limit_w: the enforced limit [W].
        active_s: the duration [s].
        n_iterations: the iterations in it, with fractions of those that began or ended outside.
        energy_j: the energy of all GPUs of the job [J].
        iteration_times_s: the times of the iterations that ended in it, of the slowest rank [s]; empty if unknown.
        warmth_w: how warm the boards were, as powers filtered by some time constants [W]; empty if unknown.
        interpolated_energy_j: the energy with what the counters had not counted at both ends [J]; None if unknown.
        n_instants: the number of instant readings of the power of all GPUs.
        instants_w: their sum [W].
        instants_w2: the sum of their squares [W²].
    """

    power_limit_w: float
    active_s: float
    n_iterations: float
    energy_j: float
    iteration_times_s: tuple[float, ...] = ()
    warmth_w: tuple[float, ...] = ()
    interpolated_energy_j: float | None = None
    n_instants: float = 0.0
    instants_w: float = 0.0
    instants_w2: float = 0.0

    @property
    def is_possible(self) -> bool:
        """Return whether all quantities are valid: they are not after a counter or a clock was reset."""
        quantities = (self.active_s, self.n_iterations, self.energy_j, self.power_limit_w, *self.iteration_times_s)
        return all(0.0 <= x < math.inf for x in quantities) and self.active_s > 0 and self.power_limit_w > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """How far a job has settled after a change of the limit.

    Attributes:
        active_s: the time since then [s].
        first_s: the time of the first iteration that ended in it, of which a part at least was before [s].
        times_s: the times of the last iterations [s].
    """

    active_s: float = 0.0
    first_s: float | None = None
    times_s: tuple[float, ...] = ()

    def with_observation(self, observation: Observation) -> "Settle":
        """Return it after one more observation."""
        times_s = (*self.times_s, *observation.iteration_times_s)
        return Settle(
            active_s=self.active_s + observation.active_s,
            first_s=next(iter(times_s), None) if self.first_s is None else self.first_s,
            times_s=times_s[-SETTLED_ITERATIONS:],
        )

    def is_over(self, settle_s: float, *, is_seen: bool = True) -> bool:
        """Return whether the job has settled: after `settle_s`, or after half of it if it is steady at another speed.

        A limit takes some 100 ms to bite; before, iterations are as steady as after.

        Args:
            settle_s: how long settling takes at most [s].
            is_seen: whether iterations show it; they do not where other nodes, which follow later, hold them up.
        """
        if self.active_s >= settle_s * (1 - ROUNDING_RATIO):
            return True
        is_enough = len(self.times_s) == SETTLED_ITERATIONS and self.active_s >= settle_s / 2
        if not (is_seen and is_enough) or self.first_s is None:
            return False
        least_s, most_s = min(self.times_s), max(self.times_s)
        has_changed = max(most_s, self.first_s) > (1 + SETTLED_RATIO) * min(least_s, self.first_s)
        return has_changed and most_s <= (1 + SETTLED_RATIO) * least_s


NOT_SETTLED: Final = Settle()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The sums of one measurement; `_s2`, `_j_s` and `_j2` are sums of squares and products.

    Attributes:
        active_s: the duration so far [s].
        n_iterations: the iterations in it, with fractions.
        energy_j: the energy in it [J].
        n_readings: the number of energy readings.
        times_s: the times of single iterations that lie wholly in it, shape (n,) [s].
        group_means_s: the mean iteration times of groups of at least one iteration, shape (n,) [s].
        group_iterations: the number of iterations of each group, shape (n,).
        pending_s: the duration of the unfinished group [s].
        pending_iterations: its iterations.
        sum_t_s: over the readings, of their times [s]; likewise the next ones: of energies, squares, products.
        slice_tt_s2: over the observations, of their squared durations [s²]; likewise the next ones.
        n_interpolated: the number of observations whose interpolated energy is known.
        interpolated_j: the sum of these energies [J]; likewise the next ones: of products, squares.
        n_instants: the number of instant readings of the power; then their sum, and that of their squares.
    """

    active_s: float = 0.0
    n_iterations: float = 0.0
    energy_j: float = 0.0
    n_readings: int = 0
    times_s: tuple[float, ...] = ()
    group_means_s: tuple[float, ...] = ()
    group_iterations: tuple[float, ...] = ()
    pending_s: float = 0.0
    pending_iterations: float = 0.0
    sum_t_s: float = 0.0
    sum_e_j: float = 0.0
    sum_tt_s2: float = 0.0
    sum_te_j_s: float = 0.0
    slice_tt_s2: float = 0.0
    slice_te_j_s: float = 0.0
    slice_ee_j2: float = 0.0
    n_interpolated: int = 0
    interpolated_j: float = 0.0
    interpolated_te_j_s: float = 0.0
    interpolated_ee_j2: float = 0.0
    n_instants: float = 0.0
    instants_w: float = 0.0
    instants_w2: float = 0.0

    def with_observation(self, observation: Observation) -> "Window":
        """Return the window with one more observation."""
        t_s, e_j = self.active_s + observation.active_s, self.energy_j + observation.energy_j
        pending_s, pending_n, group_means_s, group_iterations = self._groups_with(observation)
        interpolated_j = observation.interpolated_energy_j or 0.0
        return replace(
            self,
            active_s=t_s,
            n_iterations=self.n_iterations + observation.n_iterations,
            energy_j=e_j,
            n_readings=self.n_readings + 1,
            times_s=self._times_with(observation, t_s),
            group_means_s=group_means_s,
            group_iterations=group_iterations,
            pending_s=pending_s,
            pending_iterations=pending_n,
            sum_t_s=self.sum_t_s + t_s,
            sum_e_j=self.sum_e_j + e_j,
            sum_tt_s2=self.sum_tt_s2 + t_s * t_s,
            sum_te_j_s=self.sum_te_j_s + t_s * e_j,
            slice_tt_s2=self.slice_tt_s2 + observation.active_s**2,
            slice_te_j_s=self.slice_te_j_s + observation.active_s * observation.energy_j,
            slice_ee_j2=self.slice_ee_j2 + observation.energy_j**2,
            n_interpolated=self.n_interpolated + (observation.interpolated_energy_j is not None),
            interpolated_j=self.interpolated_j + interpolated_j,
            interpolated_te_j_s=self.interpolated_te_j_s + observation.active_s * interpolated_j,
            interpolated_ee_j2=self.interpolated_ee_j2 + interpolated_j**2,
            n_instants=self.n_instants + observation.n_instants,
            instants_w=self.instants_w + observation.instants_w,
            instants_w2=self.instants_w2 + observation.instants_w2,
        )

    @property
    def n_counted(self) -> float:
        """Return the number of iterations that the rate is estimated from."""
        return float(len(self.times_s)) if self.times_s else sum(self.group_iterations)

    def _times_with(self, observation: Observation, until_s: float) -> tuple[float, ...]:
        """Return the iteration times with those of an observation, without one that began before the window."""
        times_s = self.times_s
        room_s = until_s - sum(times_s)
        for time_s in reversed(observation.iteration_times_s):
            if len(times_s) >= MAX_TIMES or time_s <= 0 or time_s > room_s * (1 + ROUNDING_RATIO):
                break
            times_s = (*times_s, time_s)
            room_s -= time_s
        return times_s

    def _groups_with(self, observation: Observation) -> tuple[float, float, tuple[float, ...], tuple[float, ...]]:
        """Return (pending duration, pending iterations, group means, group iterations)."""
        pending_s, pending_n = self.pending_s + observation.active_s, self.pending_iterations + observation.n_iterations
        if pending_n < 1 or len(self.group_means_s) >= MAX_TIMES:
            return pending_s, pending_n, self.group_means_s, self.group_iterations
        return 0.0, 0.0, (*self.group_means_s, pending_s / pending_n), (*self.group_iterations, pending_n)


EMPTY_WINDOW: Final = Window()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowNoise:
    """By how much neighbouring windows at one limit differ: whatever the cause, and whether it averages out or not.

    Attributes:
        squares_s: the squared differences of the last ones, of (rates, powers), as if windows took 1 s [s].
        rate_s: the variance of their rates, as that of a window of 1 s [s]: squared ratios times duration.
        power_s: the same of their powers.
    """

    squares_s: tuple[tuple[float, float], ...] = ()
    rate_s: float = WINDOW_CV_RATIO**2 * NOISE_PRIOR_S
    power_s: float = WINDOW_CV_RATIO**2 * NOISE_PRIOR_S

    @property
    def is_known(self) -> bool:
        """Return whether so many were compared that errors may follow from it."""
        return len(self.squares_s) >= KNOWN_WINDOWS

    def with_neighbours(self, before: "Estimates", after: "Estimates", *, duration_s: float) -> "WindowNoise":
        """Return the noise with that of two windows, one right after the other, of so long each [s]."""
        rate_log = math.log(after.iterations_per_s / before.iterations_per_s)
        power_log = math.log(after.power_w / before.power_w)
        squares_s = (*self.squares_s, (rate_log**2 / 2 * duration_s, power_log**2 / 2 * duration_s))[-MAX_WINDOWS:]
        rate_s, power_s = (_robust_mean_s(column_s) for column_s in zip(*squares_s, strict=True))
        return WindowNoise(squares_s=squares_s, rate_s=rate_s, power_s=power_s)

    def errors_ratio(self, duration_s: float) -> tuple[float, float]:
        """Return the standard errors of rate and power in a window of so long [s]."""
        return math.sqrt(self.rate_s / duration_s), math.sqrt(self.power_s / duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """The noise of a job.

    Attributes:
        seen_cv_ratio: the coefficient of variation of the single iterations that were seen.
        n_iterations: how many these are.
        windows: the noise from one window to the next.
    """

    seen_cv_ratio: float = PRIOR_CV_RATIO
    n_iterations: float = 0.0
    windows: WindowNoise = WindowNoise()

    @property
    def cv_ratio(self) -> float:
        """Return the coefficient of variation, with its prior.

        That gives way fast where iterations are steadier: the logarithms are averaged, since a mean of squares would be
        the prior's for thousands of iterations.
        """
        seen_ratio = max(self.seen_cv_ratio, LEAST_CV_RATIO)
        prior_share = PRIOR_N / (PRIOR_N + self.n_iterations)
        if seen_ratio < PRIOR_CV_RATIO:
            return float(PRIOR_CV_RATIO**prior_share * seen_ratio ** (1 - prior_share))
        return math.sqrt(prior_share * PRIOR_CV_RATIO**2 + (1 - prior_share) * seen_ratio**2)

    def with_window(self, window: Window) -> "Scatter":
        """Return the scatter pooled with that of the iterations of a window."""
        log_times, weights = _log_times(window)
        if len(log_times) < MIN_SCATTERED:
            return self
        middle = median(log_times)
        cv_ratio = (
            median(abs(x - middle) * math.sqrt(weight) for x, weight in zip(log_times, weights, strict=True))
            / MAD_PER_DEVIATION
        )
        n = float(len(log_times))
        squares = self.seen_cv_ratio**2 * self.n_iterations + cv_ratio**2 * n
        n_iterations = self.n_iterations + n
        return replace(self, seen_cv_ratio=math.sqrt(squares / n_iterations), n_iterations=n_iterations)


def _robust_mean_s(squares_s: tuple[float, ...]) -> float:
    """Return the mean of squared normal noise; what is far off, as after a stall, counts as the most noise."""
    most_s = NOISE_REACH**2 * median(squares_s) / MAD_PER_DEVIATION**2
    return sum(min(square_s, most_s) for square_s in squares_s) / len(squares_s)


PRIOR_SCATTER: Final = Scatter()


def scatter_from_points(points: tuple[ProfilePoint, ...]) -> Scatter:
    """Return the scatter of iterations that follows from the intervals of points, each measured once."""
    squares = n = 0.0
    for point in points:
        if point.n and point.iterations_per_s_ci is not None:
            error_ratio = point.iterations_per_s_ci / NORMAL_95 / point.iterations_per_s
            squares += max(error_ratio**2 - WINDOW_CV_RATIO**2, 0.0) * point.n**2
            n += point.n
    return Scatter(seen_cv_ratio=math.sqrt(squares / n), n_iterations=n) if n else PRIOR_SCATTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What one window shows: rate and power, and the standard errors within it, as ratios.

    From one window to another they vary by more (`WINDOW_CV_RATIO`), unless these are neighbours.
    """

    iterations_per_s: float
    rate_error_ratio: float
    power_w: float
    power_error_ratio: float


def estimate_window(window: Window, scatter: Scatter) -> Estimates:
    """Return the estimates of a window, given the scatter of iterations (with that of the window pooled in)."""
    log_times, weights = _log_times(window)
    n = max(sum(weights), 1.0)
    middle, reach = median(log_times), max(WINSOR_DEVIATIONS * scatter.cv_ratio, LEAST_REACH_RATIO)
    time_s = 0.0
    for x, weight in zip(log_times, weights, strict=True):
        bound = reach / math.sqrt(weight)
        time_s += weight * math.exp(min(max(x, middle - bound), middle + bound))
    rate_per_s = sum(weights) / time_s
    power_w, power_error_ratio = _power(window)
    return Estimates(
        iterations_per_s=rate_per_s,
        rate_error_ratio=scatter.cv_ratio / math.sqrt(n),
        power_w=power_w,
        power_error_ratio=power_error_ratio,
    )


def estimate_point(window: Window, *, power_limit_w: float, scatter: Scatter) -> ProfilePoint:
    """Return the estimates of a window as a point of the curve: it stands for the limit at any time."""
    seen = estimate_window(window, scatter)
    log_times, weights = _log_times(window)
    n_whole = max(round(max(sum(weights), 1.0)), 1)
    raw_s = sum(weight * math.exp(x) for x, weight in zip(log_times, weights, strict=True))
    power_error_ratio, rate_error_ratio = (
        math.hypot(error_ratio, WINDOW_CV_RATIO) for error_ratio in (seen.power_error_ratio, seen.rate_error_ratio)
    )
    return ProfilePoint(
        power_limit_w=power_limit_w,
        power_w=seen.power_w,
        iterations_per_s=seen.iterations_per_s,
        power_ci_w=NORMAL_95 * power_error_ratio * seen.power_w,
        iterations_per_s_ci=NORMAL_95 * rate_error_ratio * seen.iterations_per_s,
        n=n_whole,
        active_s=raw_s * n_whole / sum(weights),
    )


def _log_times(window: Window) -> tuple[list[float], tuple[float, ...]]:
    """Return the logarithms of iteration times, and the number of iterations of each, both of shape (n,)."""
    if window.times_s:
        return [math.log(time_s) for time_s in window.times_s], (1.0,) * len(window.times_s)
    return [math.log(time_s) for time_s in window.group_means_s], window.group_iterations


def _power(window: Window) -> tuple[float, float]:
    """Return the power [W] and its standard error as a ratio: by the counter, and by instants where these help."""
    interpolated, instants = _interpolated(window), _instants(window)
    power_w, error_ratio = interpolated or _slope(window)
    if instants is None or power_w <= 0:
        return power_w, error_ratio
    if interpolated is None:
        error_ratio = math.hypot(error_ratio, UNKNOWN_STEP_S / math.sqrt(6) / window.active_s)
    instant_w, instant_error_ratio = instants
    # Of iterations that take nearly 100 ms all instants may show the same part: the counter tells it.
    off_ratio2 = (instant_w / power_w - 1) ** 2 - error_ratio**2
    instant_error_ratio = max(instant_error_ratio, math.sqrt(max(off_ratio2, 0.0)))
    share = error_ratio**2 / (error_ratio**2 + instant_error_ratio**2)
    return power_w + share * (instant_w - power_w), error_ratio * math.sqrt(1 - share)


def _interpolated(window: Window) -> tuple[float, float] | None:
    """Return the mean power [W], and its error as a ratio, where no step of the counter is in it; None if unknown.

    The error is that of a mean of independent observations, pooled with a prior: a few show little of their scatter.
    Where the draw swings, neighbours have opposite signs, and it is less.
    """
    n = window.n_interpolated
    if n < window.n_readings or n < MIN_SCATTERED or window.interpolated_j <= 0:
        return None
    power_w = window.interpolated_j / window.active_s
    squares_j2 = window.interpolated_ee_j2 - 2 * power_w * window.interpolated_te_j_s + power_w**2 * window.slice_tt_s2
    seen_ratio2 = max(squares_j2, 0.0) * n / (n - 1) / window.interpolated_j**2
    prior_ratio2 = PRIOR_POWER_CV_RATIO**2 / window.active_s
    return power_w, math.sqrt((seen_ratio2 * (n - 1) + prior_ratio2 * PRIOR_POWER_N) / (n - 1 + PRIOR_POWER_N))


def _instants(window: Window) -> tuple[float, float] | None:
    """Return the mean of the instant readings [W], and its error as a ratio; None of a few."""
    n = window.n_instants
    if n < MIN_INSTANTS or window.instants_w <= 0:
        return None
    mean_w = window.instants_w / n
    cv_ratio = math.sqrt(max(window.instants_w2 / n - mean_w**2, 0.0) * n / (n - 1)) / mean_w
    return mean_w, math.hypot(max(cv_ratio, LEAST_INSTANT_CV_RATIO) / math.sqrt(n), INSTANT_SCALE_RATIO)


def _slope(window: Window) -> tuple[float, float]:
    """Return the power by least squares over the readings of the counter [W], and its error as a ratio.

    Neighbouring intervals share the error of the reading between them, with opposite signs: the error of a reading is
    1/√2 of that of an interval, and only the errors of the readings remain in the slope.
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


def has_minimum(settings: ProfilerSettings, window: Window) -> bool:
    """Return whether a window reaches the minimum duration, iterations and readings."""
    is_long = window.active_s >= settings.window_s and window.n_counted >= MIN_ITERATIONS
    return is_long and window.n_readings >= MIN_READINGS and window.energy_j > 0


def is_precise_enough(settings: ProfilerSettings, window: Window, scatter: Scatter, *, is_prior: bool) -> bool:
    """Return whether a window is precise enough for the first sweep."""
    if not has_minimum(settings, window):
        return False
    is_power_imprecise = NORMAL_95 * _power(window)[1] > settings.tolerance_ratio
    if is_power_imprecise and window.active_s < POWER_WINDOWS * settings.window_s:
        return False
    needed = (NORMAL_95 * scatter.cv_ratio / settings.tolerance_ratio) ** 2 if settings.tolerance_ratio else math.inf
    return window.n_counted >= min(needed, MAX_ITERATIONS) * (PRIOR_RATIO if is_prior else 1.0)


def is_known_early(settings: ProfilerSettings, window: Window, scatter: Scatter) -> bool:
    """Return whether a window of the first sweep is precise enough before it has its least duration.

    Only where it is known what the counter had not counted at its ends: a slope of some readings tells no error.
    """
    n, power = window.n_counted, _interpolated(window)
    is_enough = n >= EARLY_ITERATIONS and window.n_readings >= EARLY_READINGS and window.energy_j > 0
    if not is_enough or power is None or window.active_s < EARLY_SHARE * settings.window_s * (1 - ROUNDING_RATIO):
        return False
    is_rate_known = NORMAL_95 * scatter.cv_ratio / math.sqrt(n) <= EARLY_RATE_SHARE * settings.tolerance_ratio
    return is_rate_known and NORMAL_95 * power[1] <= EARLY_POWER_RATIO * settings.tolerance_ratio


def is_precision_limited(window: Window, scatter: Scatter) -> bool:
    """Return whether a longer window would add nothing: the variation between windows exceeds its own error."""
    rate_error_ratio = scatter.cv_ratio / math.sqrt(window.n_counted)
    return window.n_readings >= MIN_READINGS and max(rate_error_ratio, _power(window)[1]) <= WINDOW_CV_RATIO


def shows_change_within(window: Window, scatter: Scatter) -> bool:
    """Return whether the two halves of a window differ by more than noise: the job has changed."""
    log_times, _ = _log_times(window)
    half = len(log_times) // 2
    if half < MIN_HALF:
        return False
    gap = abs(median(log_times[:half]) - median(log_times[-half:]))
    return gap > max(CHANGE_RATIO, CHANGE_DEVIATIONS * scatter.cv_ratio * math.sqrt(2.5 / half))
