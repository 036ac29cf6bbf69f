"""The sweep: which limits it visits, when a point is done, what it does about limits that are not ours."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.profile import PowerProfile
from policies.profiling import (
    MAX_RESTARTS,
    REFERENCE_WINDOWS,
    Measuring,
    Observation,
    Profiled,
    Settling,
    State,
    SweepPlan,
    advance,
    begin,
    profile_of,
    progress_ratio,
    sweep_plan,
    wanted_power_limit_w,
)
from tests.policies.days import A40

PLAN = SweepPlan(power_limits_w=(300.0, 200.0, 100.0), settle_s=2.0, window_s=10.0)
Enforced = Callable[[float], float]


def observed(power_limit_w: float, active_s: float = 1.0, work_ratio: float = 1.0) -> Observation:
    """Observe the measured curve for a while."""
    power_w, iterations_per_s = A40.at(power_limit_w)
    return Observation(
        power_limit_w=power_limit_w,
        active_s=active_s,
        n_iterations=iterations_per_s * active_s * work_ratio,
        energy_j=power_w * active_s,
    )


def sweep(
    plan: SweepPlan,
    state: State | None = None,
    *,
    active_s: float = 1.0,
    enforced: Enforced = float,
    n_max: int = 20_000,
) -> tuple[PowerProfile | None, list[float]]:
    """Return the curve and the limits that were wanted, each once for every time that it became wanted."""
    state = state or begin(plan)
    wanted_w: list[float] = []
    for _ in range(n_max):
        limit_w = wanted_power_limit_w(state)
        if limit_w is None:
            return profile_of(state), wanted_w
        if not wanted_w or wanted_w[-1] != limit_w:
            wanted_w.append(limit_w)
        state = advance(plan, state, observed(enforced(limit_w), active_s))
    raise AssertionError(f"the sweep did not end: {state}")


@pytest.mark.parametrize(
    ("prior_w", "floor_w", "step_w", "limits_w"),
    [
        (300, 100, 50, (300, 250, 200, 150, 100)),
        (250, 100, 40, (250, 210, 170, 130, 100)),
        (300, 285, 25, (300, 285)),
        (300, 299.5, 25, (300,)),
        (300, 100.4, 100, (300, 200, 100.4)),
        (150, 200, 25, (150,)),
    ],
)
def test_the_sweep_goes_down_by_steps_and_ends_at_the_floor(
    prior_w: float, floor_w: float, step_w: float, limits_w: tuple[float, ...]
) -> None:
    plan = sweep_plan(prior_power_limit_w=prior_w, floor_power_limit_w=floor_w, step_w=step_w, settle_s=2, window_s=10)
    assert plan.power_limits_w == limits_w


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0 W"):
        sweep_plan(prior_power_limit_w=300, floor_power_limit_w=100, step_w=0, settle_s=2, window_s=10)


def test_each_limit_is_wanted_once_in_descending_order() -> None:
    profile, wanted_w = sweep(PLAN)
    assert wanted_w == [300.0, 200.0, 100.0]
    assert profile is not None
    assert profile.power_limits_w.tolist() == [100.0, 200.0, 300.0]


def test_the_curve_is_what_was_observed() -> None:
    profile, _ = sweep(PLAN)
    assert profile is not None
    for point in profile.points:
        assert (point.power_w, point.iterations_per_s) == pytest.approx(A40.at(point.power_limit_w))


def test_time_while_the_limit_settles_is_not_counted() -> None:
    state = advance(PLAN, begin(PLAN), observed(300.0, 2.0, work_ratio=0.5))
    while isinstance(state, Settling | Measuring) and state.power_limit_w == 300.0:
        state = advance(PLAN, state, observed(300.0))
    assert state.points[0].iterations_per_s == pytest.approx(A40.fastest.iterations_per_s)


def test_without_settling_the_first_observation_counts() -> None:
    plan = replace(PLAN, settle_s=0.0)
    assert isinstance(advance(plan, begin(plan), observed(300.0)), Measuring)


def test_the_prior_limit_is_measured_for_longer_than_the_others() -> None:
    profile, _ = sweep(PLAN)
    assert profile is not None
    assert [point.active_s for point in profile.points] == [10.0, 10.0, 10.0 * REFERENCE_WINDOWS]


def test_long_iterations_make_the_window_longer_until_there_are_three() -> None:
    state: State = Measuring(points=(), power_limit_w=200.0)
    seen = 0
    while isinstance(state, Measuring):
        state = advance(PLAN, state, Observation(power_limit_w=200.0, active_s=1.0, n_iterations=0.05, energy_j=150.0))
        seen += 1
    assert seen in {60, 61}
    assert state.points[0].iterations_per_s == pytest.approx(0.05)


def test_observations_without_an_iteration_count_with_their_time_and_energy() -> None:
    state: State = Measuring(points=(), power_limit_w=200.0)
    for n_iterations in (0.0, 4.0, 0.0, 4.0):
        state = advance(
            PLAN, state, Observation(power_limit_w=200.0, active_s=4.0, n_iterations=n_iterations, energy_j=400.0)
        )
    assert state.points[0].iterations_per_s == pytest.approx(4 / 12)


@pytest.mark.parametrize(
    "impossible",
    [
        replace(observed(300.0), active_s=0.0),
        replace(observed(300.0), energy_j=-1.0),
        replace(observed(300.0), n_iterations=math.nan),
        replace(observed(300.0), active_s=math.inf),
    ],
)
def test_an_observation_that_cannot_be_changes_nothing(impossible: Observation) -> None:
    state = Measuring(points=(), power_limit_w=300.0)
    assert advance(PLAN, state, impossible) is state


def test_without_energy_no_point_is_made() -> None:
    state: State = Measuring(points=(), power_limit_w=200.0)
    for _ in range(50):
        state = advance(PLAN, state, replace(observed(200.0), energy_j=0.0))
    assert isinstance(state, Measuring)


def test_a_limiter_beside_us_is_recorded_where_it_holds_and_its_range_is_left_out() -> None:
    plan = SweepPlan(power_limits_w=(300.0, 275.0, 250.0, 225.0, 200.0), settle_s=2.0, window_s=5.0)
    profile, wanted_w = sweep(plan, enforced=lambda limit_w: min(limit_w, 240.0))
    assert wanted_w == [300.0, 225.0, 200.0]
    assert profile is not None
    assert profile.power_limits_w.tolist() == [200.0, 225.0, 240.0]


def test_a_reading_that_flickers_by_less_than_a_watt_is_the_same_limit() -> None:
    profile, _ = sweep(PLAN, enforced=lambda limit_w: limit_w - 0.7)
    assert profile is not None
    assert profile.power_limits_w.tolist() == [100.0, 200.0, 300.0]


def test_a_limit_that_changes_while_it_is_measured_is_measured_anew() -> None:
    state: State = Measuring(points=(), power_limit_w=300.0)
    state = advance(PLAN, state, observed(300.0))
    state = advance(PLAN, state, observed(280.0))
    assert isinstance(state, Settling)
    assert (state.power_limit_w, state.settled_s) == (300.0, 1.0)


def test_a_limit_that_will_not_stand_still_is_given_up() -> None:
    state = begin(PLAN)
    for turn in range(2 * MAX_RESTARTS):
        state = advance(PLAN, state, observed(300.0 if turn % 2 else 250.0))
    assert wanted_power_limit_w(state) == 200.0


def test_what_is_known_is_not_measured_again() -> None:
    known = PowerProfile(tuple(point for point in A40.points if point.power_limit_w in {300.0, 200.0}))
    state = begin(PLAN, known)
    assert wanted_power_limit_w(state) == 100.0
    profile, wanted_w = sweep(PLAN, state)
    assert wanted_w == [100.0]
    assert profile is not None
    assert profile.points[1:] == known.points


def test_a_whole_known_curve_needs_no_sweep() -> None:
    assert begin(PLAN, A40) == Profiled(points=A40.points)


def test_known_points_outside_the_range_are_forgotten() -> None:
    plan = SweepPlan(power_limits_w=(250.0, 200.0), settle_s=2.0, window_s=10.0)
    state = begin(plan, A40)
    assert [point.power_limit_w for point in state.points] == [200.0, 225.0, 250.0]


@given(
    st.integers(0, 8),
    st.floats(0.3, 30.0),
    st.floats(0.0, 10.0),
    st.floats(0.5, 40.0),
    st.floats(15.0, 120.0),
)
def test_the_sweep_ends_and_a_restart_in_the_midst_gives_the_same_limits(
    cut: int, active_s: float, settle_s: float, window_s: float, step_w: float
) -> None:
    plan = sweep_plan(
        prior_power_limit_w=300, floor_power_limit_w=100, step_w=step_w, settle_s=settle_s, window_s=window_s
    )
    n_limits = len(plan.power_limits_w)
    n_each = math.ceil(settle_s / active_s) + math.ceil(max(window_s, 10.0) / active_s) + 2
    whole, wanted_w = sweep(plan, active_s=active_s, n_max=n_each * (n_limits + REFERENCE_WINDOWS))
    assert wanted_w == list(plan.power_limits_w)
    assert whole is not None
    kept = whole.points[len(whole.points) - min(cut, n_limits) :]
    resumed, _ = sweep(plan, begin(plan, PowerProfile(kept) if kept else None), active_s=active_s)
    assert resumed == whole


@given(st.lists(st.floats(0.0, 8.0), max_size=60))
def test_progress_never_goes_back_and_ends_at_one(durations_s: list[float]) -> None:
    state, before = begin(PLAN), 0.0
    for active_s in durations_s:
        state = advance(PLAN, state, observed(wanted_power_limit_w(state) or 100.0, active_s))
        now = progress_ratio(PLAN, state)
        assert before - 1e-12 <= now <= 1.0
        assert isinstance(state, Profiled) or now < 1.0
        before = now


def test_the_confidence_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    plan, covered = SweepPlan(power_limits_w=(200.0,), settle_s=0.0, window_s=5.0), 0
    for _ in range(400):
        state = begin(plan)
        while wanted_power_limit_w(state) is not None:
            state = advance(plan, state, observed(200.0, work_ratio=1 + 0.05 * rng.standard_normal()))
        point, truth = state.points[0], A40.at(200.0)[1]
        assert point.iterations_per_s_ci is not None
        covered += abs(point.iterations_per_s - truth) <= point.iterations_per_s_ci
    assert 0.92 <= covered / 400 <= 0.98


def test_two_observations_say_nothing_about_their_scatter() -> None:
    state: State = Measuring(points=(), power_limit_w=200.0)
    for _ in range(2):
        state = advance(PLAN, state, observed(200.0, 6.0))
    assert (state.points[0].power_ci_w, state.points[0].iterations_per_s_ci) == (None, None)


def test_slices_of_one_iteration_do_not_make_it_more_certain() -> None:
    """Ten slices of each iteration repeat what it says, so the interval is that of the iterations."""
    intervals = []
    for n_slices in (1, 10):
        state: State = Measuring(points=(), power_limit_w=200.0)
        for iteration in range(200):
            duration_s = 2.0 if iteration % 2 else 1.0
            for _ in range(n_slices if isinstance(state, Measuring) else 0):
                piece = Observation(
                    power_limit_w=200.0,
                    active_s=duration_s / n_slices,
                    n_iterations=1 / n_slices,
                    energy_j=100 * duration_s / n_slices,
                )
                state = advance(replace(PLAN, window_s=60.0), state, piece)
        intervals.append(state.points[0].iterations_per_s_ci)
    assert intervals[1] == pytest.approx(intervals[0], rel=0.1)
