"""The first pass on curves of any kind: what holds whatever the job and its units are."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.profiling import (
    Observation,
    Profiled,
    ProfilerSettings,
    advance,
    begin,
    profile_of,
    progress_ratio,
    target_power_limit_w,
)
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.policies.profiling.gpu import CONVEX, SETTINGS, Job, profiled


@st.composite
def curves(draw: st.DrawFn) -> PowerProfile:
    """Draw a monotone curve between 60 and 400 W."""
    limits_w = [60.0, 100.0, 150.0, 200.0, 300.0, 400.0]
    rates = np.cumsum(draw(st.lists(st.floats(0.01, 5.0), min_size=6, max_size=6)))
    powers = np.cumsum(draw(st.lists(st.floats(1.0, 80.0), min_size=6, max_size=6)))
    return PowerProfile(
        tuple(
            ProfilePoint(power_limit_w=w, power_w=min(p, w), iterations_per_s=r)
            for w, p, r in zip(limits_w, powers.tolist(), rates.tolist(), strict=True)
        )
    )


@settings(max_examples=60, deadline=None)
@given(
    curves(), st.floats(80.0, 400.0), st.floats(60.0, 400.0), st.floats(0.5, 0.95), st.floats(0.0, 0.2), st.integers()
)
def test_it_ends_and_requests_only_admissible_limits(
    curve: PowerProfile, prior_w: float, floor_w: float, step_ratio: float, noise_ratio: float, seed: int
) -> None:
    bounds = ProfilerSettings(prior_power_limit_w=prior_w, floor_power_limit_w=floor_w, step_ratio=step_ratio)
    job = Job(curve, noise_ratio=noise_ratio, stall_ratio=0.02, rng=np.random.default_rng(abs(seed)))
    state, wanted_w = profiled(bounds, begin(bounds), job)
    assert all(min(prior_w, floor_w) <= limit_w <= prior_w for limit_w in wanted_w)
    assert all(math.isfinite(x) for p in state.points for x in (p.power_w, p.iterations_per_s))
    assert profile_of(state) is not None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 4), st.floats(0.55, 0.95))
def test_a_restart_gives_the_same_curve(cut: int, step_ratio: float) -> None:
    bounds = replace(SETTINGS, step_ratio=step_ratio)
    whole, wanted_w = profiled(bounds, begin(bounds), Job())
    kept = whole.points[len(whole.points) - min(cut, len(whole.points)) :]
    resumed, rest_w = profiled(bounds, begin(bounds, PowerProfile(kept) if kept else None), Job())
    assert rest_w == wanted_w[len(kept) :]
    assert [p.power_limit_w for p in resumed.points] == [p.power_limit_w for p in whole.points]
    for one, other in zip(resumed.points, whole.points, strict=True):
        assert one.iterations_per_s == pytest.approx(other.iterations_per_s)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 16), st.sampled_from([0.25, 1.0, 8.0, 64.0]), st.integers(0, 100))
def test_units_change_no_limit(n_gpus: int, time_ratio: float, seed: int) -> None:
    _, wanted_w = profiled(SETTINGS, begin(SETTINGS), Job(noise_ratio=0.05, rng=np.random.default_rng(seed)))
    scaled = replace(
        SETTINGS,
        n_gpus=n_gpus,
        settle_s=SETTINGS.settle_s * time_ratio,
        window_s=SETTINGS.window_s * time_ratio,
    )
    job = Job(
        noise_ratio=0.05,
        rng=np.random.default_rng(seed),
        time_scale_ratio=time_ratio,
        energy_scale_ratio=n_gpus * time_ratio,
    )
    assert profiled(scaled, begin(scaled), job)[1] == wanted_w


@settings(max_examples=50, deadline=None)
@given(st.floats(1.2, 4.0), st.floats(0.0, 120.0), st.floats(0.55, 0.9))
def test_it_never_goes_far_below_the_energy_minimum(bend: float, idle_w: float, step_ratio: float) -> None:
    """Power in proportion to the limit, and a rate that saturates: energy per iteration is convex."""
    curve = PowerProfile(
        tuple(
            ProfilePoint(
                power_limit_w=float(w),
                power_w=float(w),
                iterations_per_s=10 * (1 - ((300 - w) / (300 - 0.9 * min(idle_w, 95.0))) ** bend) + 1e-3,
            )
            for w in range(100, 301, 5)
        )
    )
    bounds = replace(SETTINGS, step_ratio=step_ratio)
    state, _ = profiled(bounds, begin(bounds), Job(curve))
    least_j = curve.energy_minimal.iteration_energy_j
    useful_w = min(point.power_limit_w for point in curve.points if point.iteration_energy_j <= 1.04 * least_j)
    assert state.points[0].power_limit_w >= max(step_ratio**2 * useful_w - 10, 100.0)


@given(st.lists(st.floats(0.0, 2.0), max_size=60))
def test_progress_is_monotone_and_ends_at_one(durations_s: list[float]) -> None:
    state, before = begin(SETTINGS), 0.0
    for active_s in durations_s:
        power_w, rate_per_s = CONVEX.at(target_power_limit_w(state) or 100.0)
        seen = Observation(
            power_limit_w=target_power_limit_w(state) or 100.0,
            active_s=active_s,
            n_iterations=rate_per_s * active_s,
            energy_j=power_w * active_s,
        )
        state = advance(SETTINGS, state, seen)
        now = progress_ratio(SETTINGS, state)
        assert before - 1e-12 <= now <= 1.0
        assert isinstance(state, Profiled) or now < 1.0
        before = now
