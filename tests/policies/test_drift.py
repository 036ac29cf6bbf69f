"""Whether a job has left its curve."""

import math

from hypothesis import given
from hypothesis import strategies as st

from policies.drift import DRIFT_RATIO, REST_RATIO, STRIKES, Drift, has_left, watch
from policies.profile import PowerProfile, ProfilePoint
from policies.profiling import Observation

CURVE = PowerProfile(
    (
        ProfilePoint(power_limit_w=200.0, power_w=180.0, iterations_per_s=1.8),
        ProfilePoint(power_limit_w=300.0, power_w=235.0, iterations_per_s=2.0),
    )
)
WINDOW_S = 10.0
SWEEP_S = 100.0


def after(*rates: float, limit_w: float = 300.0, drift: Drift | None = None) -> Drift:
    """Return what is known after windows at these rates, each of ten observations."""
    drift = drift or Drift(rested_s=math.inf)
    for rate in rates:
        for _ in range(10):
            seen = Observation(power_limit_w=limit_w, active_s=WINDOW_S / 10, n_iterations=rate, energy_j=200.0)
            drift = watch(drift, seen, profile=CURVE, window_s=WINDOW_S)
    return drift


def test_a_rate_that_stays_away_from_the_curve_has_left_it() -> None:
    assert not has_left(after(*[1.5] * (STRIKES - 1)), sweep_s=SWEEP_S)
    assert has_left(after(*[1.5] * STRIKES), sweep_s=SWEEP_S)
    assert has_left(after(*[2.5] * STRIKES), sweep_s=SWEEP_S)


def test_one_window_on_the_curve_forgives_those_before_it() -> None:
    assert not has_left(after(1.5, 1.5, 1.5, 1.5, 2.0, 1.5), sweep_s=SWEEP_S)


def test_the_curve_is_asked_at_the_limit_of_the_window() -> None:
    assert after(*[1.8] * STRIKES, limit_w=200.0).n_strikes == 0
    assert after(*[1.9] * STRIKES, limit_w=250.0).n_strikes == 0


def test_a_change_of_the_limit_begins_a_new_window() -> None:
    half = Observation(power_limit_w=200.0, active_s=5.0, n_iterations=0.5, energy_j=900.0)
    drift = watch(Drift(), half, profile=CURVE, window_s=WINDOW_S)
    assert after(2.0, drift=drift).n_strikes == 0


def test_nobody_is_profiled_again_before_a_rest() -> None:
    fresh = after(*[1.5] * 2 * STRIKES, drift=Drift())
    assert fresh.n_strikes == 2 * STRIKES
    assert not has_left(fresh, sweep_s=SWEEP_S)
    assert has_left(after(*[1.5] * STRIKES, drift=Drift(rested_s=REST_RATIO * SWEEP_S)), sweep_s=SWEEP_S)


@given(st.lists(st.floats(2.0 * (1 - DRIFT_RATIO) + 1e-6, 2.0 * (1 + DRIFT_RATIO) - 1e-6), max_size=20))
def test_noise_within_the_bound_never_counts(rates: list[float]) -> None:
    assert after(*rates).n_strikes == 0
