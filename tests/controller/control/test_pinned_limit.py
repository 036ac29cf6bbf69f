"""A limit that a person has pinned: it wins over plan and measurement, within what the GPUs may have."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.config import PlanConfig
from controller.control.curve_learning import Planned
from controller.control.limit_control import CurveStart, DecisionInputs, LimitControl, clamped_w
from controller.control.plan import PlanInputs
from controller.ports import Target
from controller.ports.orders import Pin
from policies.planning import Progress
from policies.savings.books import Purpose
from policies.vocabulary.profile import LIMIT_TOLERANCE_W
from tests.controller.control.control_bench import (
    FULL,
    LADDER_W,
    begin,
    interval,
    limit_control,
    limits_of,
    plan_inputs,
    rate_per_s,
    train,
)
from tests.fakes import MIDNIGHT_S

PIN = Pin(power_limit_w=225.0, set_at_s=MIDNIGHT_S, until_s=MIDNIGHT_S + 3_600, why="the room is hot", by="ada")
BOUNDS_W = (200.0, 300.0)
limits_w = st.floats(min_value=1.0, max_value=1e6)


def decide_pinned(
    run: LimitControl,
    plan: PlanInputs,
    pin: Pin = PIN,
    *,
    waits_because: str = "",
    bounds_w: tuple[float, float] = BOUNDS_W,
) -> Target:
    """Return the target of a run that is pinned."""
    decision = run.decide(
        DecisionInputs(
            now_s=plan.now_s,
            n_iterations=plan.progress.n_iterations,
            waits_because=waits_because,
            pin=pin,
            bounds_w=bounds_w,
            curve_start=lambda: None,
            plan=lambda: plan,
        )
    )
    assert decision.purpose is Purpose.PINNED
    assert decision.target is not None
    return decision.target


def train_pinned(run: LimitControl, duration_s: int, *, begin_s: int, pin: Pin = PIN) -> list[Target]:
    """Train under a pin, second by second; return the targets."""
    targets = []
    for second in range(duration_s):
        targets.append(decide_pinned(run, plan_inputs(at_s=begin_s + second), pin))
        limit_w = targets[-1].power_limit_w
        seen = interval(0.9 * limit_w, rate_per_s(limit_w))
        run.ledger.add(seen, (limit_w, 0))
        run.observe(seen, enforced_power_limit_w=limit_w)
    return targets


@given(asked_w=limits_w, floor_w=limits_w, ceiling_w=limits_w)
def test_whatever_is_pinned_is_never_above_the_ceiling_nor_below_a_floor_under_it(
    asked_w: float, floor_w: float, ceiling_w: float
) -> None:
    limit_w = clamped_w(asked_w, (floor_w, ceiling_w))
    assert limit_w <= ceiling_w
    assert limit_w >= min(floor_w, ceiling_w)
    assert limit_w in {asked_w, ceiling_w} or not floor_w <= asked_w <= ceiling_w
    assert abs(limit_w - asked_w) <= LIMIT_TOLERANCE_W or not floor_w <= asked_w <= ceiling_w


def test_a_pin_that_is_nearly_the_prior_limit_is_that_limit() -> None:
    assert clamped_w(299.9, BOUNDS_W) == 300.0


@pytest.mark.parametrize(("asked_w", "limit_w"), [(225.0, 225.0), (50.0, 200.0), (900.0, 300.0)])
def test_a_pin_is_the_limit_of_a_run_before_anything_is_known_of_it(asked_w: float, limit_w: float) -> None:
    target = decide_pinned(limit_control(), plan_inputs(), replace(PIN, power_limit_w=asked_w))
    assert (target.power_limit_w, target.reason, target.speed_ratio) == (limit_w, "pinned", None)
    assert f"pinned to {asked_w:g} W by ada until 20" in target.detail
    assert target.detail.endswith(" UTC: the room is hot")


def test_the_first_pass_waits_for_the_end_of_a_pin_and_measures_nothing_meanwhile() -> None:
    run = begin(limit_control())
    train(run, 5)
    targets = train_pinned(run, 100, begin_s=5)
    assert {target.power_limit_w for target in targets} == {225.0}
    assert (run.state.name, run.profile) == ("profiling", None)
    after = train(run, 60, begin_s=105)
    assert limits_of(after, "profiling") == LADDER_W
    assert run.profile is not None
    assert [point.power_limit_w for point in run.profile.points] == LADDER_W[::-1]


def test_no_trial_and_no_validation_leaves_a_pin_and_trials_go_on_after_it() -> None:
    run = begin(limit_control(n_blocks=20, plan=PlanConfig(max_slowdown=1.1)))
    train(run, 70)
    assert run.is_exploring
    targets = train_pinned(run, 200, begin_s=70)
    targets.append(decide_pinned(run, plan_inputs(at_s=270), waits_because="no iterations"))
    assert {target.power_limit_w for target in targets} == {225.0}
    assert run.is_exploring, "what was not asked for is no trial"
    assert "refining" in {target.reason for target in train(run, 10, begin_s=271)}


def test_no_look_leaves_the_pinned_limit_and_one_that_was_under_way_ends() -> None:
    run = begin(limit_control(), FULL)
    train(run, 300)
    run.ledger.is_looking = True
    assert {target.power_limit_w for target in train_pinned(run, 600, begin_s=300)} == {225.0}
    assert not run.ledger.is_looking


def test_no_plan_is_made_while_pinned_and_a_new_one_at_once_after_it() -> None:
    run = begin(limit_control(may_look=False), FULL)
    train(run, 6)
    before = run.made_plan
    assert before is not None
    train_pinned(run, 5, begin_s=6)
    during = run.made_plan
    assert during is None, "what was planned is not what will be"
    train(run, 1, begin_s=11)
    assert run.made_plan not in {None, before}, "a new one, although the period of the last is not over"


def test_the_ledger_counts_what_the_run_loses_and_the_plan_makes_up_for_it() -> None:
    run = begin(limit_control(plan=PlanConfig(max_slowdown=1.02), may_look=False), FULL)
    train(run, 60)
    train_pinned(run, 600, begin_s=60, pin=replace(PIN, power_limit_w=200.0))
    assert sum(each.active_s for each in run.ledger.times if each.power_limit_w == 200.0) >= 600
    progress = Progress(n_iterations=2_000.0, active_s=660.0, started_at_s=MIDNIGHT_S)
    plan = plan_inputs(at_s=660, progress=progress)
    decision = run.decide(
        DecisionInputs(now_s=plan.now_s, n_iterations=2_000.0, curve_start=lambda: None, plan=lambda: plan)
    )
    assert decision.target is not None
    assert decision.purpose is Purpose.PLAN
    unpinned = begin(limit_control(plan=PlanConfig(max_slowdown=1.02), may_look=False), FULL)
    assert decision.target.power_limit_w > train(unpinned, 661)[-1].power_limit_w


def test_a_pin_below_the_measured_curve_is_no_drift_and_the_curve_reaches_it() -> None:
    def rate(limit_w: float) -> float:  # below 225 W energy per iteration rises: no sweep goes on to the floor
        return rate_per_s(limit_w) * min((limit_w / 225.0) ** 3, 1.0)

    run = limit_control(may_look=False)
    run.begin(CurveStart(floor_power_limit_w=100.0, ceiling_power_limit_w=300.0))
    train(run, 1_200, rate=rate)
    assert isinstance(run.state, Planned)
    assert run.state.settled.points[0].power_limit_w > 150.0
    for second in range(600):
        plan, pin = plan_inputs(at_s=1_200 + second), replace(PIN, power_limit_w=100.0)
        limit_w = decide_pinned(run, plan, pin, bounds_w=(100.0, 300.0)).power_limit_w
        seen = interval(0.9 * limit_w, rate(limit_w))
        run.ledger.add(seen, (limit_w, 0))
        update = run.observe(seen, enforced_power_limit_w=limit_w)
        assert update is None or update.dropped is None, "the job is as it was: its time budget goes on"
    lowest = run.state.refinement.profile.points[0]
    assert lowest.power_limit_w == 100.0
    assert lowest.iterations_per_s == pytest.approx(rate(100.0), rel=0.02)
    progress = Progress(n_iterations=1.0, active_s=1_800.0, started_at_s=MIDNIGHT_S)
    base_s = sum(each.active_s * rate(each.power_limit_w) for each in run.ledger.times) / rate(300.0)
    assert run._with_base(progress).base_s == pytest.approx(base_s, rel=0.01), "what the run has lost is known"


def test_a_time_budget_that_restarts_under_a_pin_counts_what_follows() -> None:
    run = begin(limit_control(may_look=False), FULL)
    train(run, 60)
    run.restart_time_budget()
    train_pinned(run, 600, begin_s=60, pin=replace(PIN, power_limit_w=200.0))
    train(run, 1, begin_s=660)
    assert sum(each.active_s for each in run.ledger.times if each.power_limit_w == 200.0) >= 599


def test_a_pinned_target_is_one_object_until_the_pin_or_the_bounds_change() -> None:
    run = begin(limit_control(), FULL)
    first = decide_pinned(run, plan_inputs())
    assert decide_pinned(run, plan_inputs(at_s=60)) is first
    assert first.speed_ratio == pytest.approx(0.9865, abs=0.005)
    assert decide_pinned(run, plan_inputs(at_s=60), replace(PIN, by="bob")) is not first


def test_a_preview_says_speed_and_power_where_the_curve_is_known_and_nothing_before() -> None:
    unknown = begin(limit_control()).preview(225.0, 3_600.0, plan_inputs())
    assert (unknown.speed_ratio, unknown.power_w, unknown.slowdown_ratio) == (None, None, None)
    run = begin(limit_control(plan=PlanConfig(max_slowdown=1.03)), FULL)
    seen = run.preview(240.0, 3_600.0, plan_inputs())
    assert (seen.power_limit_w, seen.max_slowdown_ratio, seen.slowdown_ratio) == (240.0, 1.03, None), "no look yet"
    assert seen.speed_ratio == pytest.approx(0.99, abs=0.003)
    assert seen.power_w == pytest.approx(225.0, abs=2.0)
    below = run.preview(150.0, 3_600.0, plan_inputs())
    assert (below.speed_ratio, below.power_w) == (None, None), "no limit so low was measured"


def test_a_preview_says_how_much_slower_the_run_will_have_been_once_looks_tell_it() -> None:
    run = begin(limit_control(plan=PlanConfig(max_slowdown=1.03)))
    n_s = 5_400
    train(run, n_s)
    progress = Progress(n_iterations=4.0 * n_s, active_s=float(n_s), started_at_s=MIDNIGHT_S)
    seen = run.preview(200.0, float(n_s), plan_inputs(at_s=n_s, progress=progress))
    assert seen.slowdown_ratio is not None
    assert seen.slowdown_ci90_ratio is not None
    slow = 1 / (rate_per_s(200.0) / 4.0)
    assert 1.03 < seen.slowdown_ratio < slow, "half of its time at full speed but for the plan, half there"
    assert 0 <= seen.slowdown_ci90_ratio < 0.02
