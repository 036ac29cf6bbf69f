"""Steering between the plan and its trials: what ends a trial, and what of a plan does not outlive its curve."""

import pytest

from controller.plan_config import PlanConfig
from controller.ports import Target
from controller.steering import Planned, Steering
from policies.profile import PowerProfile, ProfilePoint
from tests.controller.steering_bench import begin, choose, piece, rate_per_s, steering, train

STEEP = PowerProfile(
    tuple(
        ProfilePoint(power_limit_w=limit_w, power_w=0.9 * limit_w, iterations_per_s=4.0 * limit_w / 300.0)
        for limit_w in (200.0, 240.0, 300.0)
    )
)


def flat_per_s(limit_w: float) -> float:
    """Return the rate of a job that waits for its data at every limit."""
    return 4.4 if limit_w > 0 else 0.0


def left(run: Steering, *, begin_s: int) -> int:
    """Let the job become one of a flat rate, and be profiled anew; return when it is planned again [s]."""
    for second in range(begin_s, begin_s + 1_200):
        if second > begin_s and train(run, 1, begin_s=second, rate=flat_per_s) and run.take_left():
            break
    for after in range(second + 1, second + 200):
        if run.name == "planned":
            return after
        train(run, 1, begin_s=after, rate=flat_per_s)
    raise AssertionError("it is not planned again")


def test_the_plan_of_a_curve_that_the_job_has_left_does_not_come_back() -> None:
    run = begin(steering(plan=PlanConfig(period_s=86_400.0, max_slowdown=1.05)))
    train(run, 600, rate=lambda limit_w: 4.0 * limit_w / 300.0)
    before = choose(run, at_s=600)
    assert before.power_limit_w > 200.0
    at_s = left(run, begin_s=601)
    assert choose(run, at_s=at_s).power_limit_w == 200.0, "a flat job loses nothing at the lowest limit"


def test_a_trial_does_not_outlive_the_curve() -> None:
    run = begin(steering(n_blocks=20, plan=PlanConfig(period_s=86_400.0)), STEEP)
    tried = choose(run)
    assert tried.reason == "refining"
    run.reset()
    begin(run, STEEP)
    assert choose(run, at_s=1.0) is not tried


def in_doubt(run: Steering, *, begin_s: int) -> int:
    """Let the job go slower until it may be another; return the time [s]."""
    for second in range(begin_s, begin_s + 200):
        train(run, 1, begin_s=second, rate=lambda limit_w: 0.8 * rate_per_s(limit_w))
        assert isinstance(run.state, Planned)
        if run.state.drift.is_in_doubt:
            return second + 1
    raise AssertionError("there is no doubt")


def test_nothing_is_tried_out_while_the_job_may_be_leaving_its_curve() -> None:
    run = begin(steering(n_blocks=100, plan=PlanConfig(max_slowdown=1.1)))
    targets = train(run, 60)
    assert targets[-1].reason == "refining"
    at_s = in_doubt(run, begin_s=60)
    target = choose(run, at_s=at_s)
    assert target.reason == "slowdown_static"


def test_the_highest_limit_is_measured_even_in_doubt() -> None:
    run = begin(steering(n_blocks=100, plan=PlanConfig(max_slowdown=1.1)))
    train(run, 60)
    at_s = 60
    while "highest" not in choose(run, at_s=at_s).detail:
        train(run, 1, begin_s=at_s)
        at_s += 1
    at_s = in_doubt(run, begin_s=at_s)
    target = choose(run, at_s=at_s)
    assert (target.power_limit_w, target.reason) == (300.0, "refining")


def paused(run: Steering, *, at_s: float) -> Target:
    """Return what stands while no iteration comes."""
    return run.wait_at_the_top() or choose(run, at_s=at_s)


def test_no_trial_stands_for_a_whole_pause_and_it_goes_on_after_it() -> None:
    run = begin(steering(n_blocks=100, plan=PlanConfig(max_slowdown=1.1)))
    at_s = 60
    train(run, at_s)
    while choose(run, at_s=at_s).power_limit_w == 300.0:
        train(run, 1, begin_s=at_s)
        at_s += 1
    tried = choose(run, at_s=at_s)
    assert tried.reason == "refining"
    for second in (1, 2, 100):
        target = paused(run, at_s=at_s + second)
        assert (target.power_limit_w, target.reason) == (300.0, "profiling_paused")
    assert choose(run, at_s=at_s + 101) is tried


def test_what_ran_at_the_highest_limit_before_a_trial_is_in_force_again_does_not_count_for_it() -> None:
    run = begin(steering(n_blocks=100, plan=PlanConfig(max_slowdown=1.1)))
    train(run, 60)
    assert run.wait_at_the_top() is not None
    before = run.state
    target = choose(run, at_s=61)
    for _ in range(2):  # while the limit settles
        run.observe(piece(270.0, 4.0), enforced_power_limit_w=target.power_limit_w)
    assert run.state is before


@pytest.mark.parametrize("n_blocks", [0, 100])
def test_the_plan_stands_in_a_pause_where_nothing_is_tried_out(n_blocks: int) -> None:
    run = begin(steering(n_blocks=n_blocks))
    train(run, 60)
    if n_blocks:
        in_doubt(run, begin_s=60)
        choose(run, at_s=260)
    target = paused(run, at_s=261)
    assert target.reason == "slowdown_static"
