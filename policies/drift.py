"""Whether a job has left its curve: a cold cache has warmed, the code is another, a data loader has become the brake.

A window says that it has where its rate differs from the curve's by more than `DRIFT_RATIO`; several such windows in a
row are no accident. Then everything that was concluded from the curve is void, and the job is profiled anew; not sooner
than a rest after the last sweep, so that a job without a steady rate does not spend its life being measured.
"""

from dataclasses import dataclass, replace
from typing import Final

from policies.profile import PowerProfile
from policies.profiling import Observation

DRIFT_RATIO: Final = 0.1
"""Far above the noise of a window, a few per cent at worst; below it, a wrong curve costs little."""
STRIKES: Final = 5
MIN_ITERATIONS: Final = 3.0
SAME_LIMIT_W: Final = 1.0
REST_RATIO: Final = 10.0
"""A rest lasts this many times as long as a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What was seen of a job since it was profiled.

    Attributes:
        rested_s: how long the job has run since the sweep; infinite where the curve comes from a former run [s].
        n_strikes: windows in a row that contradict the curve.
        power_limit_w: the limit of the window under way [W].
        active_s: how long it is so far [s].
        n_iterations: the iterations in it.
    """

    rested_s: float = 0.0
    n_strikes: int = 0
    power_limit_w: float = 0.0
    active_s: float = 0.0
    n_iterations: float = 0.0


def watch(drift: Drift, observation: Observation, *, profile: PowerProfile, window_s: float) -> Drift:
    """Return what is known after one more observation; a change of the limit begins a new window.

    >>> from policies.profile import ProfilePoint
    >>> curve = PowerProfile((ProfilePoint(power_limit_w=300.0, power_w=235.0, iterations_per_s=2.0),))
    >>> seen = Drift()
    >>> for _ in range(5):
    ...     slow = Observation(power_limit_w=300.0, active_s=10.0, n_iterations=15.0, energy_j=2e3)
    ...     seen = watch(seen, slow, profile=curve, window_s=10.0)
    >>> seen.n_strikes
    5
    """
    rested_s = drift.rested_s + observation.active_s
    if abs(observation.power_limit_w - drift.power_limit_w) > SAME_LIMIT_W:
        drift = replace(drift, power_limit_w=observation.power_limit_w, active_s=0.0, n_iterations=0.0)
    active_s = drift.active_s + observation.active_s
    n_iterations = drift.n_iterations + observation.n_iterations
    if active_s < window_s or n_iterations < MIN_ITERATIONS:
        return replace(drift, rested_s=rested_s, active_s=active_s, n_iterations=n_iterations)
    _, expected_per_s = profile.at(drift.power_limit_w)
    contradicts = abs(n_iterations / active_s / expected_per_s - 1) > DRIFT_RATIO
    n_strikes = drift.n_strikes + 1 if contradicts else 0
    return replace(drift, rested_s=rested_s, n_strikes=n_strikes, active_s=0.0, n_iterations=0.0)


def has_left(drift: Drift, *, sweep_s: float) -> bool:
    """Return whether the job has left its curve, and has rested long enough since a sweep of `sweep_s` [s]."""
    return drift.n_strikes >= STRIKES and drift.rested_s >= REST_RATIO * sweep_s
