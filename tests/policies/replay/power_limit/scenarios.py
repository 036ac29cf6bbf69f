"""Small worlds and runs for the tests of replayed plans."""

import numpy as np
from numpy.typing import NDArray

from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.days import A40, grid, hourly

START_S = 14 * DAY_S


def curve(*points: tuple[float, float, float]) -> PowerProfile:
    """Return a curve of (limit [W], power [W], rate [1/s])."""
    return PowerProfile.from_rows((limit_w, w, rate) for limit_w, w, rate in points)


SIMPLE = curve((100.0, 50.0, 0.5), (200.0, 90.0, 0.9), (300.0, 110.0, 1.0))


def scenario(values: NDArray[np.float64] | list[float] | str, profile: PowerProfile = SIMPLE) -> Scenario:
    """Return a scenario of hourly values, or of 18 days of a shape."""
    signal = grid(values, n_days=18) if isinstance(values, str) else hourly(np.array(values, dtype=np.float64))
    return Scenario(profile=profile, signal=signal)


def spec(hours: float = 24.0, *, start_s: float = 0.0, period_s: float = HOUR_S) -> RunSpec:
    return RunSpec(start_s=start_s, base_duration_s=HOUR_S * hours, period_s=period_s)


def real_spec(hours: float = 48.0) -> RunSpec:
    """Return a run with two weeks before it."""
    return spec(hours, start_s=START_S)


REAL = scenario("solar", A40)
