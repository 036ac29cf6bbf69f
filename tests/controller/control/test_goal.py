"""A goal that a person has set for a run: the plan follows it from then on, and the configured one after it."""

from dataclasses import replace

import pytest

from controller.accounting.run_ledger import RunLedger
from controller.config import PlanConfig
from controller.control.limit_control import DecisionInputs, LimitControl
from controller.control.plan import PlanInputs
from controller.ports import Target
from controller.ports.orders import Goal, Pin
from policies.planning import Progress, SlowdownObjective
from policies.planning.time_ledger import BaseTime
from policies.vocabulary.profile import PowerProfile
from tests.controller.control.control_bench import begin, interval, limit_control, plan_inputs, rate_per_s
from tests.fakes import MIDNIGHT_S

CURVE = PowerProfile.from_rows([(limit_w, 0.9 * limit_w, rate_per_s(limit_w)) for limit_w in (200.0, 240.0, 300.0)])
BUDGET = Goal(max_slowdown_ratio=1.06, set_at_s=MIDNIGHT_S + 600, why="it is hot", by="ada")
DEADLINE = Goal(deadline_s=MIDNIGHT_S + 7_200, set_at_s=MIDNIGHT_S + 600, why="a demo at two", by="ada")
PIN = Pin(power_limit_w=300.0, set_at_s=MIDNIGHT_S, until_s=MIDNIGHT_S + 3_600, why="a demo", by="ada")


class Trained:
    """A run that trains second by second, counting its iterations."""

    def __init__(self, run: LimitControl, total_iterations: float | None = 100_000.0) -> None:
        self.run, self.total_iterations = run, total_iterations
        self.n_s, self.n_iterations = 0, 0.0

    @property
    def inputs(self) -> PlanInputs:
        progress = Progress(
            n_iterations=self.n_iterations,
            active_s=float(self.n_s),
            started_at_s=MIDNIGHT_S,
            total_iterations=self.total_iterations,
        )
        return plan_inputs(at_s=self.n_s, progress=progress)

    def train(self, duration_s: int, goal: Goal | None = None, pin: Pin | None = None) -> Target:
        """Train for some time with a goal and a pin; return the last target."""
        target = None
        for _ in range(duration_s):
            plan = self.inputs
            decision = self.run.decide(
                DecisionInputs(
                    now_s=plan.now_s,
                    n_iterations=self.n_iterations,
                    goal=goal,
                    pin=pin,
                    bounds_w=(200.0, 300.0),
                    curve_start=lambda: None,
                    plan=lambda plan=plan: plan,  # type: ignore[misc]
                )
            )
            target = decision.target
            assert target is not None
            seen = interval(0.9 * target.power_limit_w, rate_per_s(target.power_limit_w))
            self.run.ledger.add(seen, (target.power_limit_w, 0))
            self.run.observe(seen, enforced_power_limit_w=target.power_limit_w)
            self.n_s += 1
            self.n_iterations += seen.n_iterations
        assert target is not None
        return target

    @property
    def speed_ratio(self) -> float:
        """Return the mean speed of the present budget so far, as a share of full speed."""
        times = self.run.ledger.times
        full = sum(each.active_s * rate_per_s(each.power_limit_w) for each in times) / rate_per_s(300.0)
        return full / sum(each.active_s for each in times)


def planned(max_slowdown: float = 1.0, **changes: float | None) -> Trained:
    return Trained(begin(limit_control(plan=PlanConfig(max_slowdown=max_slowdown), may_look=False), CURVE), **changes)


def test_a_time_budget_holds_from_the_moment_at_which_it_is_set() -> None:
    bench = planned()
    assert bench.train(600).power_limit_w == 300.0
    target = bench.train(1_800, BUDGET)
    assert target.power_limit_w < 300.0
    assert bench.run.made_plan is not None
    assert bench.run.made_plan.objective == SlowdownObjective(max_slowdown=1.06)
    assert 1 / bench.speed_ratio == pytest.approx(1.06, abs=0.01), "what it was slower before is not spent now"
    assert (bench.run.budget_start and bench.run.budget_start.active_s) == 600.0


def test_the_configured_budget_begins_anew_after_it_and_nothing_is_made_up() -> None:
    bench = planned(1.02)
    bench.train(600)
    bench.train(1_800, BUDGET)
    bench.train(1_800)
    assert (bench.run.budget_start and bench.run.budget_start.active_s) == 2_400.0
    assert 1 / bench.speed_ratio == pytest.approx(1.02, abs=0.005)


def test_a_controller_that_goes_on_with_a_goal_goes_on_with_its_budget() -> None:
    before = planned()
    before.train(600)
    before.train(600, BUDGET)
    after = planned()
    after.n_s, after.n_iterations = before.n_s, before.n_iterations
    after.run.budget_start, after.run.ledger = before.run.budget_start, RunLedger(before.run.ledger.snapshot())
    after.train(10, BUDGET)
    assert after.run.budget_start == before.run.budget_start
    after.train(10)
    assert (after.run.budget_start and after.run.budget_start.active_s) == 1_210.0, "it has ended meanwhile"


def test_a_goal_has_its_own_time_also_where_the_job_leaves_its_curve_just_then() -> None:
    bench = planned(1.02)
    bench.train(600)
    bench.run._restarts_budget, bench.run._left = True, BaseTime(base_s=0.98, error_ratio=0.0)
    bench.train(1, BUDGET)
    start = bench.run.budget_start
    assert start is not None
    assert (start.goal_set_at_s, start.active_s) == (BUDGET.set_at_s, 600.0)
    assert (start.former_active_s, start.former_base_s) == (0.0, 0.0)


def test_what_was_seen_in_pairs_outlives_a_change_of_goal() -> None:
    bench = Trained(begin(limit_control(plan=PlanConfig(max_slowdown=1.05)), CURVE))
    bench.train(3_000)
    n_looks = bench.run.ledger.looks.n_pairs
    assert n_looks > 0
    bench.train(1, BUDGET)
    assert bench.run.ledger.looks.n_pairs >= n_looks


def test_a_deadline_is_planned_for_and_needs_the_length_of_the_run() -> None:
    bench = planned(total_iterations=4.0 * 6_600)
    bench.train(600)
    target = bench.train(600, DEADLINE)
    assert target.reason == "deadline_static"
    assert target.power_limit_w < 300.0
    assert bench.run.made_plan is not None
    assert bench.train(1).reason == "slowdown_static"
    unknown = planned(1.05, total_iterations=None)
    target = unknown.train(60, DEADLINE)
    assert (target.reason, target.power_limit_w) == ("length_unknown", 300.0)


def test_a_deadline_that_has_passed_is_the_highest_limit() -> None:
    bench = planned(1.05)
    target = bench.train(60, replace(DEADLINE, deadline_s=MIDNIGHT_S + 30))
    assert (target.reason, target.power_limit_w) == ("behind_schedule", 300.0)


def test_a_pin_wins_and_the_budget_counts_meanwhile() -> None:
    bench = planned()
    bench.train(60)
    target = bench.train(600, replace(BUDGET, set_at_s=MIDNIGHT_S + 60), PIN)
    assert (target.reason, target.power_limit_w) == ("pinned", 300.0)
    assert (bench.run.budget_start and bench.run.budget_start.active_s) == 60.0
    assert sum(each.active_s for each in bench.run.ledger.times) == 600.0


def test_a_goal_of_a_run_without_a_curve_is_followed_by_its_first_plan() -> None:
    bench = Trained(begin(limit_control(plan=PlanConfig(max_slowdown=1.0), may_look=False)))
    assert bench.train(120, replace(BUDGET, set_at_s=MIDNIGHT_S)).reason == "slowdown_static"
    assert bench.run.made_plan is not None
    assert bench.run.made_plan.objective == SlowdownObjective(max_slowdown=1.06)


def test_a_preview_of_a_goal_changes_nothing_and_says_what_the_plan_does_then() -> None:
    bench = planned()
    bench.train(600)
    before = bench.run.budget_start, bench.run.goal, bench.run.made_plan, bench.run.ledger.times
    seen = bench.run.preview_goal(BUDGET, bench.inputs)
    assert (bench.run.budget_start, bench.run.goal, bench.run.made_plan, bench.run.ledger.times) == before
    assert seen.planned_end_s is not None
    assert seen.expected_end_s is not None
    left_s = (100_000 - bench.n_iterations) / 4.0
    assert seen.expected_end_s == pytest.approx(MIDNIGHT_S + 600 + left_s, abs=60)
    assert seen.planned_end_s == pytest.approx(MIDNIGHT_S + 600 + 1.06 * left_s, rel=1e-3, abs=1_500)
    assert seen.planned_slowdown_ratio is None, "no look yet"
    bench.train(1, BUDGET)
    made = bench.run.made_plan
    assert made is not None
    told = bench.run.schedule(made)
    assert told is not None
    assert (told.entries[0].power_limit_w, told.max_slowdown_ratio) == (seen.planned_power_limit_w, 1.06)
    assert seen.speed_ratio == pytest.approx(told.entries[0].speed_ratio)
    assert begin(limit_control()).preview_goal(BUDGET, plan_inputs()).planned_power_limit_w is None


def test_a_preview_says_no_end_of_a_run_that_another_goal_or_a_pin_decides_on_too() -> None:
    bench = planned()
    bench.train(600)
    ends_s = bench.run.preview_goal(BUDGET, bench.inputs).planned_end_s
    assert ends_s is not None
    for until_s, is_known in ((ends_s + 60, True), (ends_s - 60, False)):
        seen = bench.run.preview_goal(replace(BUDGET, until_s=until_s), bench.inputs)
        assert (seen.planned_end_s is not None, seen.planned_power_limit_w is not None) == (is_known, True)
    bench.train(60, pin=PIN)
    assert bench.run.preview_goal(BUDGET, bench.inputs).planned_end_s is None


def test_a_preview_says_when_the_scheduler_ends_the_run() -> None:
    bench = planned()
    bench.train(600)
    inputs = replace(bench.inputs, time_limit_s=MIDNIGHT_S + 25_000)
    assert bench.run.preview_goal(BUDGET, inputs).time_limit_s == MIDNIGHT_S + 25_000
