"""Zeus's sweep: it measures every limit from the highest to the lowest, then keeps the cheapest.

After one iteration of waiting, each limit gets 10 warm-up iterations and 40 measured ones, in steps of 25 W; then the
limit with the least η·E + (1-η)·(highest limit)·T is kept. Source: Zeus's documentation
(ml.energy/zeus/optimize/power_limit_optimizer, `GlobalPowerLimitOptimizer` with its defaults, `ZeusCost`; the paper is
arXiv:2208.06102). Zeus restarts a limit when an epoch ends during its measurement; here no epoch ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from policies.replay.profiling.training import SimulatedTraining
from policies.vocabulary.profile import PowerProfile, ProfilePoint

N_WAITING: Final = 1
N_WARMING: Final = 10
N_MEASURED: Final = 40
STEP_W: Final = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measured iterations at a limit [W]: energy by the counter [J] and time [s]."""

    power_limit_w: float
    energy_j: float
    duration_s: float


def sweep(training: SimulatedTraining) -> tuple[Measurement, ...]:
    """Return the measurement at each limit, in the order of the sweep; the last limit stays in force."""
    training.iterate(N_WAITING)
    return tuple(_measure(training, limit_w) for limit_w in sweep_limits_w(training.curve.profile))


def sweep_limits_w(profile: PowerProfile) -> tuple[float, ...]:
    """Return the limits of the sweep, descending; the lowest is left out if the steps miss it [W].

    >>> points = [ProfilePoint(power_limit_w=limit_w, power_w=90.0, iterations_per_s=1.0) for limit_w in (110.0, 180.0)]
    >>> sweep_limits_w(PowerProfile(tuple(points)))
    (180.0, 155.0, 130.0)
    """
    low_w, high_w = profile.points[0].power_limit_w, profile.fastest.power_limit_w
    return tuple(high_w - STEP_W * step for step in range(int((high_w - low_w) // STEP_W) + 1))


def choose_limit_w(measurements: Sequence[Measurement], *, eta: float) -> float:
    """Return the limit of least cost; the first of equals [W]."""
    max_power_w = max(measurement.power_limit_w for measurement in measurements)
    return min(
        measurements,
        key=lambda measurement: eta * measurement.energy_j + (1 - eta) * max_power_w * measurement.duration_s,
    ).power_limit_w


def measured_profile(measurements: Sequence[Measurement]) -> PowerProfile:
    """Return the measurements as a curve, without limits at which the counter did not move."""
    return PowerProfile(
        tuple(
            ProfilePoint(
                power_limit_w=measurement.power_limit_w,
                power_w=measurement.energy_j / measurement.duration_s,
                iterations_per_s=N_MEASURED / measurement.duration_s,
                n=N_MEASURED,
                active_s=measurement.duration_s,
            )
            for measurement in sorted(measurements, key=lambda measurement: measurement.power_limit_w)
            if measurement.energy_j > 0
        )
    )


def _measure(training: SimulatedTraining, power_limit_w: float) -> Measurement:
    training.set_power_limit(power_limit_w)
    training.iterate(N_WARMING)
    begin_s, begin_j = training.now_s, training.counter_j
    training.iterate(N_MEASURED)
    return Measurement(
        power_limit_w=power_limit_w, energy_j=training.counter_j - begin_j, duration_s=training.now_s - begin_s
    )
