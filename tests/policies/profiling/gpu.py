"""A simulated job on a GPU for the profiler: a curve, noise, and limits that are not always enforced."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np

from policies.profiling import Observation, ProfilerSettings, State, advance, target_power_limit_w
from policies.profiling.sweep import Measuring
from policies.vocabulary.profile import PowerProfile

Enforced = Callable[[float], float]

CONVEX = PowerProfile.from_rows(
    (float(limit_w), 0.9 * limit_w, 10 * (1 - ((300 - limit_w) / 220) ** 2)) for limit_w in range(100, 301, 5)
)
"""Energy per iteration is convex, and least at 180 W: the limit always binds."""
SETTINGS = ProfilerSettings(prior_power_limit_w=300.0, floor_power_limit_w=100.0)


def with_ci(profile: PowerProfile, ratio: float, limits_w: Collection[float] | None = None) -> PowerProfile:
    """Return a curve, or some of its points, with intervals of this share of power and rate."""
    return PowerProfile(
        tuple(
            replace(point, power_ci_w=ratio * point.power_w, iterations_per_s_ci=ratio * point.iterations_per_s)
            for point in profile.points
            if limits_w is None or point.power_limit_w in limits_w
        )
    )


@dataclass
class Job:
    """A job whose iterations follow its curve, with noise."""

    curve: PowerProfile = CONVEX
    slice_s: float = 0.1
    noise_ratio: float = 0.0
    stall_ratio: float = 0.0
    tells_times: bool = True
    time_scale_ratio: float = 1.0
    energy_scale_ratio: float = 1.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    left_s: float = 0.0

    def observe(self, power_limit_w: float) -> Observation:
        """Train for a slice of whole iterations, at least one."""
        power_w, rate_per_s = self.curve.at(power_limit_w)
        n = max(1, round(self.slice_s * rate_per_s))
        times_s = np.exp(self.noise_ratio * self.rng.standard_normal(n)) / rate_per_s
        times_s *= np.where(self.rng.random(n) < self.stall_ratio, 3.0, 1.0)
        active_s = float(times_s.sum())
        return Observation(
            power_limit_w=power_limit_w,
            active_s=active_s * self.time_scale_ratio,
            n_iterations=float(n),
            energy_j=power_w * active_s * self.energy_scale_ratio,
            iteration_times_s=tuple((times_s * self.time_scale_ratio).tolist()) if self.tells_times else (),
        )


def profiled(
    settings: ProfilerSettings,
    state: State,
    job: Job,
    *,
    enforced: Enforced = float,
    n_max: int = 20_000,
) -> tuple[State, list[float]]:
    """Return the last state and the sequence of target limits."""
    wanted_w: list[float] = []
    for _ in range(n_max):
        limit_w = target_power_limit_w(state)
        if limit_w is None:
            return state, wanted_w
        if not wanted_w or wanted_w[-1] != limit_w:
            wanted_w.append(limit_w)
        state = advance(settings, state, job.observe(enforced(limit_w)))
    raise AssertionError(f"the profile did not end: {state}")


def measuring(settings: ProfilerSettings, state: State, job: Job) -> Measuring:
    """Return the first state that measures the target limit."""
    while not isinstance(state, Measuring):
        limit_w = target_power_limit_w(state)
        assert limit_w is not None
        state = advance(settings, state, job.observe(limit_w))
    return state
