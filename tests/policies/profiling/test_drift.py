"""Drift: a job that leaves its power curve is detected, noise is not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.profiling import Observation, posterior_curve
from policies.profiling.drift import (
    BOUND_DEVIATIONS,
    REST_RATIO,
    Cusum,
    Drift,
    has_drifted,
    is_only_power_off,
    update_drift,
    with_powers_renewed,
)
from policies.vocabulary.profile import PowerProfile, ProfilePoint

CURVE = PowerProfile(
    tuple(
        ProfilePoint(
            power_limit_w=w, power_w=p, iterations_per_s=r, power_ci_w=0.005 * p, iterations_per_s_ci=0.005 * r
        )
        for w, p, r in ((200.0, 180.0, 1.8), (300.0, 235.0, 2.0))
    )
)
WINDOW_S = 10.0
SWEEP_S = 100.0


def after(
    *rates: float,
    limit_w: float = 300.0,
    power_ratio: float = 1.0,
    drift: Drift | None = None,
    curve: PowerProfile = CURVE,
) -> Drift:
    """Return the state after windows at these rates, each of ten observations."""
    drift = drift or Drift(rested_s=math.inf)
    power_w, _ = posterior_curve(curve).at(limit_w)
    for rate in rates:
        for _ in range(10):
            seen = Observation(
                power_limit_w=limit_w,
                active_s=WINDOW_S / 10,
                n_iterations=rate * WINDOW_S / 10,
                energy_j=power_ratio * power_w * WINDOW_S / 10,
            )
            drift = update_drift(drift, seen, profile=curve, window_s=WINDOW_S)
    return drift


def n_windows_until_alarm(deviation_log: float, *, seed: int = 1, n_max: int = 1_000) -> int:
    """Return the number of windows with the usual noise until a lasting change alarms."""
    rng, cusum = np.random.default_rng(seed), Cusum()
    for n in range(1, n_max + 1):
        cusum = cusum.with_deviation(deviation_log + 0.01 * rng.standard_normal(), error_ratio=0.01, doubt_ratio=0.005)
        if cusum.greater_ratio >= BOUND_DEVIATIONS:
            return n
    return n_max


@pytest.mark.parametrize("rate", [1.9, 2.1])
def test_a_5_percent_change_of_rate_alarms_after_three_windows(rate: float) -> None:
    assert not has_drifted(after(rate, rate), sweep_s=SWEEP_S)
    assert has_drifted(after(rate, rate, rate), sweep_s=SWEEP_S)


@pytest.mark.parametrize("power_ratio", [0.94, 1.06])
def test_where_the_power_alone_is_off_the_speeds_stay_and_all_powers_are_doubted(power_ratio: float) -> None:
    drift = after(*[2.0] * 4, power_ratio=power_ratio)
    assert is_only_power_off(drift)
    assert not has_drifted(drift, sweep_s=SWEEP_S)
    lower, upper = with_powers_renewed(CURVE, drift).points
    assert upper.power_w == pytest.approx(235.0 * power_ratio, rel=0.01)
    assert lower.power_w == 180.0
    assert lower.power_ci_ratio == pytest.approx(0.06, abs=0.003)
    assert [lower.iterations_per_s, upper.iterations_per_s] == pytest.approx([1.8, 2.0], rel=1e-3)


def test_where_the_rate_is_off_as_well_the_job_is_another_one() -> None:
    drift = after(*[1.8] * 4, power_ratio=0.9)
    assert not is_only_power_off(drift)
    assert has_drifted(drift, sweep_s=SWEEP_S)


def test_a_3_percent_change_alarms_within_minutes() -> None:
    delays = [n_windows_until_alarm(0.03, seed=seed) for seed in range(100)]
    assert np.median(delays) <= 12
    assert max(delays) <= 60
    assert np.median([n_windows_until_alarm(-0.05, seed=seed) for seed in range(100)]) <= 4


def test_the_usual_noise_does_not_alarm() -> None:
    assert n_windows_until_alarm(0.0, n_max=100_000) == 100_000


def test_larger_noise_is_estimated_and_does_not_alarm() -> None:
    rng, cusum, n_alarms = np.random.default_rng(3), Cusum(), 0
    for _ in range(20_000):
        cusum = cusum.with_deviation(0.04 * rng.standard_normal(), error_ratio=0.01, doubt_ratio=0.005)
        n_alarms += cusum.greater_ratio >= BOUND_DEVIATIONS
    assert cusum.noise_ratio == pytest.approx(0.04, rel=0.4)
    assert n_alarms <= 20  # one alarm, before the noise is known, may last for some windows


def test_one_window_never_alarms() -> None:
    drift = after(0.2)
    assert not drift.is_suspected
    assert not has_drifted(after(0.2, 0.2), sweep_s=SWEEP_S)


def test_windows_on_the_curve_reduce_the_sums() -> None:
    assert not has_drifted(after(1.5, 1.5, 2.0, 2.0, 2.0, 1.5, 1.5), sweep_s=SWEEP_S)


def test_the_uncertainty_of_the_curve_is_no_drift() -> None:
    vague = PowerProfile(tuple(replace(p, iterations_per_s_ci=0.06 * p.iterations_per_s) for p in CURVE.points))
    assert not has_drifted(after(*[2.1] * 100, curve=vague), sweep_s=SWEEP_S)


def test_a_change_of_the_limit_begins_a_new_window() -> None:
    half = Observation(power_limit_w=200.0, active_s=5.0, n_iterations=0.5, energy_j=900.0)
    drift = update_drift(Drift(), half, profile=CURVE, window_s=WINDOW_S)
    drift = after(2.0, drift=drift)
    assert drift.rate.greater_ratio == 0.0
    assert drift.rate.last_log == pytest.approx(0.0, abs=1e-3)


def test_no_alarm_before_a_rest() -> None:
    fresh = after(*[1.5] * 5, drift=Drift())
    assert fresh.is_suspected
    assert not has_drifted(fresh, sweep_s=SWEEP_S)
    assert has_drifted(after(*[1.5] * 5, drift=Drift(rested_s=REST_RATIO * SWEEP_S)), sweep_s=SWEEP_S)


def test_an_invalid_observation_changes_nothing() -> None:
    drift = after(2.0)
    wrong = Observation(power_limit_w=300.0, active_s=1.0, n_iterations=-1.0, energy_j=1.0)
    assert update_drift(drift, wrong, profile=CURVE, window_s=WINDOW_S) is drift


@given(st.lists(st.floats(2.0 * 0.982, 2.0 * 1.015), max_size=20))
def test_noise_within_the_allowance_does_not_count(rates: list[float]) -> None:
    drift = after(*rates)
    assert drift.rate.greater_ratio == 0.0


@given(st.lists(st.tuples(st.floats(-1.0, 1.0), st.floats(0.0, 0.1)), max_size=100))
def test_the_sums_stay_within_their_bounds(windows: list[tuple[float, float]]) -> None:
    cusum = Cusum()
    for deviation_log, doubt_ratio in windows:
        cusum = cusum.with_deviation(deviation_log, error_ratio=0.01, doubt_ratio=doubt_ratio)
        assert 0 <= cusum.above_ratio <= 2 * BOUND_DEVIATIONS
        assert 0 <= cusum.below_ratio <= 2 * BOUND_DEVIATIONS
        assert math.isfinite(cusum.noise_ratio)
