"""Two jobs in closed form: one whose rate bends as the limit falls, and one that no limit slows."""

from collections.abc import Callable
from typing import Final

from policies.replay.profiling.curves import TrueCurve
from policies.replay.profiling.noise import NoiseLevel
from policies.vocabulary.profile import PowerProfile, ProfilePoint

LIMITS_W: Final = tuple(float(limit_w) for limit_w in range(100, 305, 5))
QUIET: Final = NoiseLevel(step_ratio=0.0, stall_ratio=0.0, block_ratio=0.0, tick_s=0.001, settling_s=0.001)
"""A noise level close to none."""


def bending(iteration_time_s: float = 0.1) -> TrueCurve:
    """Return a job that draws 4/5 of the limit, l of the highest, at 1 - (1 - l)² / 0.6 of the highest rate.

    Its energy per iteration is least where l² = 0.4, at 190 W.
    """
    return _curve("bending", lambda limit_w: 1 - (1 - limit_w / 300) ** 2 / 0.6, iteration_time_s)


def flat(iteration_time_s: float = 0.1) -> TrueCurve:
    """Return a job that every limit leaves as fast as it is."""
    return _curve("flat", lambda _: 1.0, iteration_time_s)


def _curve(name: str, rate_ratio: Callable[[float], float], iteration_time_s: float) -> TrueCurve:
    points = tuple(
        ProfilePoint(
            power_limit_w=limit_w, power_w=0.8 * limit_w, iterations_per_s=rate_ratio(limit_w) / iteration_time_s
        )
        for limit_w in LIMITS_W
    )
    return TrueCurve(name=f"{name} {iteration_time_s:g} s", profile=PowerProfile(points), is_assumed=False)
