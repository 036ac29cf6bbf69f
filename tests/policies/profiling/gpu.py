"""A job on a GPU, as far as the profiler sees it: a curve, noise, a limit that something else may hold down."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from policies.profiling import Observation, ProfilerSettings, State, advance, target_power_limit_w
from policies.profiling.sweep import Measuring
from policies.vocabulary.profile import PowerProfile, ProfilePoint

Enforced = Callable[[float], float]

CONVEX = PowerProfile(
    tuple(
        ProfilePoint(
            power_limit_w=float(limit_w),
            power_w=0.9 * limit_w,
            iterations_per_s=10 * (1 - ((300 - limit_w) / 220) ** 2),
        )
        for limit_w in range(100, 301, 5)
    )
)
"""Energy per iteration is convex, and least at 180 W: the limit always binds."""
SETTINGS = ProfilerSettings(prior_power_limit_w=300.0, floor_power_limit_w=100.0)


@dataclass
class Job:
    """A job whose iterations take what its curve says, but for noise."""

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
    """Return the last state, and the limits that were wanted, each once for every time that it became wanted."""
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
    """Return the first state that measures the limit that is wanted."""
    while not isinstance(state, Measuring):
        limit_w = target_power_limit_w(state)
        assert limit_w is not None
        state = advance(settings, state, job.observe(limit_w))
    return state
