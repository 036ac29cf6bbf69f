"""A measured curve, days of a grid, and a training run planned through them, for the tests of the planner."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.planning import CurrentLimit, Decision, Objective, Progress, SwitchingRules, choose_power_limit
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, JOULES_PER_KWH

ITERATIONS_PER_EPOCH: Final = 5_004.56

# ResNet-50 on ImageNet, batch size 256, NVIDIA A40: limit [W], epoch time [s], mean power [W] (Zeus's power trace).
_A40: Final = (
    (100, 10606.19, 120.74),
    (125, 9639.82, 125.51),
    (150, 6326.84, 144.61),
    (175, 4705.61, 160.23),
    (200, 4123.52, 177.58),
    (225, 3909.47, 196.41),
    (250, 3864.98, 214.63),
    (275, 3857.81, 230.85),
    (300, 3847.48, 235.21),
)
A40: Final = PowerProfile(
    tuple(
        ProfilePoint(
            power_limit_w=float(limit_w),
            power_w=power_w,
            iterations_per_s=ITERATIONS_PER_EPOCH / epoch_s,
            iterations_per_s_ci=0.0,
        )
        for limit_w, epoch_s, power_w in _A40
    )
)

# Hourly carbon intensities [g/kWh], typed after the shapes of real grids: a summer day with much sun, one with wind
# that comes and goes, one that hardly moves, one with a peak of coal in the evening.
SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "solar": (313, 300, 292, 288, 290, 276, 248, 214, 180, 156, 143, 139, 141, 148, 163, 190, 236, 288, 331, 352,
              356, 349, 338, 325),
    "wind": (98, 102, 92, 86, 88, 84, 108, 128, 143, 150, 160, 185, 205, 219, 228, 214, 195, 173, 150, 137, 147, 158,
             150, 124),
    "flat": (439, 435, 431, 428, 426, 427, 433, 441, 447, 450, 452, 453, 452, 450, 447, 445, 446, 450, 456, 459, 457,
             452, 447, 442),
    "evening": (410, 405, 398, 390, 378, 360, 345, 331, 315, 300, 291, 285, 283, 286, 296, 315, 349, 384, 421, 440,
                446, 441, 430, 418),
}  # fmt: skip
DAY_FACTORS: Final = (1.0, 1.12, 0.93, 1.05, 0.84, 0.97, 1.18, 1.02, 0.9, 1.07, 1.0, 0.95, 1.1, 1.03, 0.98, 1.04)


def grid(shape: str, *, n_days: int = 16, factors: tuple[float, ...] = DAY_FACTORS) -> Signal:
    """Return days of a shape, each scaled by its own factor, from time 0 on."""
    values = np.concatenate([np.array(SHAPES[shape]) * factors[day % len(factors)] for day in range(n_days)])
    return hourly(values)


def hourly(values: NDArray[np.float64]) -> Signal:
    """Return a carbon intensity of one value an hour, from time 0 on."""
    return Signal(
        kind="average",
        zone="TEST",
        source="typed",
        unit="g/kWh",
        starts_s=np.arange(len(values), dtype=np.float64) * HOUR_S,
        values=values,
        ends_s=len(values) * HOUR_S,
        issued_at_s=0.0,
    )


def known_by(signal: Signal, now_s: float) -> Signal:
    """Return what is known of a signal at a time: nothing that starts later."""
    n = int(np.searchsorted(signal.starts_s, now_s, side="right"))
    ends_s = float(signal.starts_s[n]) if n < len(signal) else signal.ends_s
    return signal.between(-np.inf, ends_s)


def integral(signal: Signal, start_s: float, end_s: float) -> float:
    """Return the integral of a signal over time, in its unit times seconds."""
    durations_s, values = signal.steps(start_s, end_s)
    return float(durations_s @ values)


@dataclass(slots=True, kw_only=True)
class Run:
    """A training run on the measured curve, with its totals."""

    grid: Signal
    now_s: float
    n_iterations: float = 0.0
    active_s: float = 0.0
    energy_j: float = 0.0
    carbon: float = 0.0
    worst_credit_s: float = float("inf")
    limits_w: list[float] = field(default_factory=list)

    def train(self, power_limit_w: float, duration_s: float) -> None:
        """Train at a limit."""
        power_w, iterations_per_s = A40.at(power_limit_w)
        self.carbon += power_w * integral(self.grid, self.now_s, self.now_s + duration_s)
        self.n_iterations += iterations_per_s * duration_s
        self.active_s += duration_s
        self.energy_j += power_w * duration_s
        self.now_s += duration_s

    def sweep(self, lost_s: float) -> None:
        """Profile every limit for equally long, so that `lost_s` are lost against the prior limit."""
        fastest = A40.fastest.iterations_per_s
        lost_ratio = sum(1 - point.iterations_per_s / fastest for point in A40.points)
        for point in reversed(A40.points):
            self.train(point.power_limit_w, lost_s / lost_ratio)

    def slowdown_ratio(self) -> float:
        """Return the time it took over the time at the prior limit."""
        return self.active_s * A40.fastest.iterations_per_s / self.n_iterations

    def saved_ratio(self, started_at_s: float) -> float:
        """Return the carbon saved against the same iterations at the prior limit."""
        fastest = A40.fastest
        ends_s = started_at_s + self.n_iterations / fastest.iterations_per_s
        return 1 - self.carbon / (fastest.power_w * integral(self.grid, started_at_s, ends_s))


def live_through(
    grid: Signal,
    objective: Objective,
    *,
    started_at_s: float = 14 * DAY_S,
    hours: float = 23.0,
    lost_s: float = 0.0,
    profile: PowerProfile = A40,
    rules: SwitchingRules | None = None,
    n_iterations: float | None = None,
    forecast: Callable[[float], Signal] | None = None,
) -> Run:
    """Return a run that is profiled, then planned each period, until its hours, or its announced iterations, are over.

    Args:
        grid: the signal, of which the past and the current are known.
        objective: what is asked for.
        started_at_s: when the run starts [s].
        hours: when it ends, where nobody knows how many iterations it has.
        lost_s: how much time its profiling loses [s].
        profile: the curve that the plan believes in; the truth is the A40's.
        rules: how often the plan is made, and the hysteresis.
        n_iterations: its announced iterations.
        forecast: what is forecast at a time; nothing by default.
    """
    rules = rules or SwitchingRules(period_s=600.0, min_dwell_s=60.0, min_gain_ratio=0.005)
    run, current, ends_s = Run(grid=grid, now_s=started_at_s), None, started_at_s + hours * HOUR_S
    run.sweep(lost_s)
    while run.n_iterations < n_iterations * (1 - 1e-9) if n_iterations else run.now_s < ends_s:
        decision = choose_power_limit(
            profile=profile,
            objective=objective,
            rules=rules,
            history=known_by(grid, run.now_s),
            forecast=forecast(run.now_s) if forecast else None,
            now_s=run.now_s,
            progress=Progress(
                n_iterations=run.n_iterations,
                active_s=run.active_s,
                started_at_s=started_at_s,
                total_iterations=n_iterations,
                spent=run.carbon / JOULES_PER_KWH,
            ),
            current=current,
        )
        for limit_w, until_s in _parts(decision, run.now_s + rules.period_s):
            if current is None or current.power_limit_w != limit_w:
                current = CurrentLimit(power_limit_w=limit_w, since_s=run.now_s)
            left = math.inf if n_iterations is None else n_iterations - run.n_iterations
            duration_s = min(until_s - run.now_s, left / A40.at(limit_w)[1])
            if n_iterations is None:
                duration_s = min(duration_s, ends_s - run.now_s)
            if duration_s > 0:
                run.limits_w.append(limit_w)
                run.train(limit_w, duration_s)
    return run


def _parts(decision: Decision, until_s: float) -> list[tuple[float, float]]:
    """Return the limits of a period [W], each with the time until which it holds [s]."""
    if decision.scheduled is None:
        return [(decision.power_limit_w, until_s)]
    later = decision.scheduled
    return [(decision.power_limit_w, later.from_s), (later.power_limit_w, until_s)]
