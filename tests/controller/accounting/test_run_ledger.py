"""Tests of the ledger of a run: time at each limit, looks that come and end, and what a restart keeps."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.accounting.run_ledger import MAX_LIMITS, RunLedger
from controller.config import PlanConfig
from controller.control.curve_learning import Planned, observation_of
from controller.control.limit_control import LimitControl
from controller.ports import Target
from policies.planning import Progress
from policies.profiling.drift import Cusum
from policies.profiling.paired_looks import SLOW_SETTLE_S, TOP_S
from tests.controller.control.control_bench import (
    FULL,
    begin,
    choose,
    decide,
    interval,
    limit_control,
    plan_inputs,
    rate_per_s,
    train,
)
from tests.controller.messages import ns
from tests.fakes import MIDNIGHT_S

ACTIVE = interval(200.0, 4.0)
PAUSE = replace(ACTIVE, active=False, n_iterations=0.0)


def looks_in(targets: list[Target]) -> list[int]:
    """Return in which seconds looks begin."""
    is_look = [target.reason == "refining" and target.power_limit_w == 300.0 for target in targets]
    return [second for second in range(1, len(is_look)) if is_look[second] and not is_look[second - 1]]


def planned() -> LimitControl:
    """Return a run whose first pass is done, and which explores nothing."""
    run = begin(limit_control())
    train(run, 60)
    assert isinstance(run.state, Planned)
    return run


def scaled_per_s(limit_w: float, *, level: float) -> float:
    """Return the rate of a job that is as a whole so many times as fast."""
    return level * rate_per_s(limit_w)


@dataclass
class PowerBrake:
    """A GPU whose power brake holds it below what is asked for.

    Attributes:
        limit_w: what it is held at [W].
    """

    limit_w: float

    def train(self, run: LimitControl, duration_s: int, *, begin_s: int) -> list[Target]:
        """Train second by second at what is asked for, but no faster than the brake allows."""
        targets = []
        for second in range(begin_s, begin_s + duration_s):
            targets.append(choose(run, at_s=second))
            enforced_w = min(targets[-1].power_limit_w, self.limit_w)
            seen = interval(0.9 * enforced_w, rate_per_s(enforced_w))
            run.ledger.add(seen, (enforced_w, 0))
            run.observe(seen, enforced_power_limit_w=enforced_w)
        return targets


def base_s(run: LimitControl, active_s: float = 100.0) -> float:
    """Return how long the work of so much time would have taken at the highest limit."""
    assert isinstance(run.state, Planned)
    return run.ledger.base(run.state.refinement.profile, active_s=active_s).base_s


def test_time_is_added_at_the_limit_that_was_in_force_then() -> None:
    """Intervals come late: what began before the last change ran at the limit before it."""
    ledger = RunLedger()
    ledger.add(ACTIVE, (300.0, 0))
    early, late = (replace(ACTIVE, begin_ns=ns(at_s), end_ns=ns(at_s + 1.0)) for at_s in (8.0, 12.0))
    for each in (early, late):
        ledger.add(each, (200.0, ns(10.0)))
    assert [(each.power_limit_w, each.active_s) for each in ledger.times] == [(200.0, 1.0), (300.0, 2.0)]
    assert ledger.times[0].energy_j == pytest.approx(200.0)


@pytest.mark.parametrize(("seen", "in_force"), [(PAUSE, (300.0, 0)), (ACTIVE, None), (ACTIVE, (300.0, ns(5.0)))])
def test_pauses_and_unknown_limits_have_no_time(seen: object, in_force: tuple[float, int] | None) -> None:
    ledger = RunLedger()
    ledger.add(seen, in_force)  # type: ignore[arg-type]
    assert ledger.times == []


def test_gaps_between_iterations_are_no_time_of_a_limit() -> None:
    ledger = RunLedger()
    ledger.add(interval(200.0, 4.0, gaps_s=0.4), (300.0, 0))
    assert ledger.times[0].active_s == pytest.approx(0.6)
    assert ledger.times[0].energy_j == pytest.approx(0.6 * 200.0)


def test_the_limits_of_a_ledger_are_bounded() -> None:
    ledger = RunLedger()
    for number in range(2 * MAX_LIMITS):
        ledger.add(ACTIVE, (100.0 + 2 * number, 0))
    assert len(ledger.times) == MAX_LIMITS
    assert sum(each.active_s for each in ledger.times) == pytest.approx(2 * MAX_LIMITS)


def test_looks_come_two_minutes_apart_and_then_each_half_hour() -> None:
    run = planned()
    begins = looks_in(train(run, 10_000, begin_s=60))
    gaps = [after - before for before, after in pairwise(begins)]
    assert all(120 <= gap <= 200 for gap in gaps[:7])
    assert all(1_790 <= gap <= 1_900 for gap in gaps[8:])
    assert len(begins) > 10


def test_a_look_takes_some_seconds_and_the_plan_goes_on() -> None:
    run = planned()
    targets = train(run, 1_000, begin_s=60)
    first = looks_in(targets)[0]
    until = next(second for second in range(first, 1_000) if targets[second].reason != "refining")
    assert 10 <= until - first <= 16
    assert targets[until].power_limit_w == targets[first - 1].power_limit_w
    assert run.ledger.looks.n_looks(300.0) > 3


@pytest.mark.parametrize(("is_multi_node", "longest_s"), [(False, 8), (True, 16)])
def test_a_steady_job_is_looked_at_for_a_moment_unless_other_nodes_compare(is_multi_node: bool, longest_s: int) -> None:
    run = begin(limit_control(window_s=4.0))
    looks_s = [0]
    for second in range(900):
        target = decide(run, plan_inputs(at_s=second), is_multi_node=is_multi_node).target
        assert target is not None
        seen = interval(0.9 * target.power_limit_w, rate_per_s(target.power_limit_w))
        run.ledger.add(seen, (target.power_limit_w, 0))
        run.observe(seen, enforced_power_limit_w=target.power_limit_w)
        looks_s = [*looks_s[:-1], looks_s[-1] + 1] if run.ledger.is_looking else [*looks_s, 0]
    assert longest_s - 4 <= max(looks_s[-500:]) <= longest_s


@pytest.mark.parametrize(("shown", "longest_s"), [(0.0, 8), (1.5, 14)])
def test_a_short_look_goes_on_where_a_window_deviates_from_the_curve(shown: float, longest_s: int) -> None:
    run = begin(limit_control(window_s=4.0))
    looks_s = [0]
    for second in range(600):
        if run.ledger.is_looking and isinstance(run.state, Planned):
            run.state = replace(run.state, drift=replace(run.state.drift, rate=Cusum(above_ratio=shown)))
        train(run, 1, begin_s=second)
        looks_s = [*looks_s[:-1], looks_s[-1] + 1] if run.ledger.is_looking else [*looks_s, 0]
    assert longest_s - 4 <= max(looks_s[-300:]) <= longest_s


def test_looks_take_longer_while_too_little_is_known_of_the_energy() -> None:
    run = begin(limit_control(window_s=4.0))
    train(run, 2_000)
    assert isinstance(run.state, Planned)
    longer_s = run.ledger.look_lengths(run.state.refinement).top_s
    run.ledger.knows_energy = True
    assert run.ledger.look_lengths(run.state.refinement).top_s < longer_s <= TOP_S


def test_limits_that_bite_slowly_are_waited_for_longer_on_every_curve() -> None:
    run = begin(limit_control(window_s=4.0))
    train(run, 600, begin_s=0)
    run.ledger.looks = replace(run.ledger.looks, bites_slowly=True)
    train(run, 1, begin_s=600)
    assert isinstance(run.state, Planned)
    assert (run.state.settings.settle_s, run.state.settings.sees_settling) == (SLOW_SETTLE_S, False)
    lasts_s = [0]
    for second in range(601, 5_000):
        train(run, 1, begin_s=second)
        lasts_s = [*lasts_s[:-1], lasts_s[-1] + 1] if run.ledger.is_looking else [*lasts_s, 0]
    assert max(lasts_s) >= TOP_S, "a look is no shorter than usual"
    run.restart_time_budget()
    choose(run, at_s=5_000, progress=Progress(n_iterations=4_000.0, active_s=1_060.0, started_at_s=MIDNIGHT_S))
    assert run.ledger.looks.bites_slowly


def top_w(run: LimitControl) -> float:
    """Return the highest limit of the curve [W]; 0 while it is measured."""
    return run.state.refinement.profile.fastest.power_limit_w if isinstance(run.state, Planned) else 0.0


def look_begun(run: LimitControl) -> int:
    """Train until a look begins; return the time [s]."""
    for second in range(60, 1_000):
        train(run, 1, begin_s=second)
        if run.ledger.is_looking:
            return second + 1
    raise AssertionError("there is no look")


@pytest.mark.parametrize("window_s", [10.0, 4.0])
def test_a_look_that_shows_another_job_lasts_until_that_is_settled(window_s: float) -> None:
    """A power brake that has gone shows at the highest limit alone: back at the plan, the doubt would be forgotten."""
    run = begin(limit_control(window_s=window_s))
    braked = PowerBrake(limit_w=240.0)
    braked.train(run, 1_200, begin_s=0)
    assert top_w(run) == 240.0
    braked.limit_w = 300.0
    at_s = 1_200
    while top_w(run) < 300.0:
        braked.train(run, 1, begin_s=at_s)
        at_s += 1
        assert at_s < 4_000, "the curve is measured anew"


def test_behind_a_power_brake_the_top_is_not_looked_for_every_two_minutes() -> None:
    run = planned()
    braked = PowerBrake(limit_w=250.0)
    begins = looks_in(braked.train(run, 7_200, begin_s=60))
    assert 1 <= len(begins) <= 5
    assert run.ledger.looks.n_looks(300.0) == 0


@pytest.mark.parametrize("is_paused", [False, True])
def test_no_look_begins_in_a_pause(is_paused: bool) -> None:
    run = begin(limit_control(), FULL)
    assert isinstance(run.state, Planned)
    ledger, refinement, profiler = run.ledger, run.state.refinement, run.state.settings
    seen = observation_of(interval(180.0, rate_per_s(200.0)), enforced_power_limit_w=200.0)
    for _ in range(300):
        ledger.observe(seen, refinement, profiler, settle_s=2.0)
    if is_paused:
        ledger.add(PAUSE, None)
    ledger.update_look(refinement, profiler, settle_s=2.0, length_s=None)
    assert ledger.is_looking is not is_paused


def test_in_doubt_no_look_begins() -> None:
    run = planned()
    begun_s = look_begun(run)
    train(run, 60, begin_s=begun_s)
    assert not run.ledger.is_looking
    slow = partial(scaled_per_s, level=0.8)
    for second in range(begun_s + 60, begun_s + 1_000):
        train(run, 1, begin_s=second, rate=slow)
        if not isinstance(run.state, Planned):
            return
        if run.state.drift.is_suspected:
            assert not run.ledger.is_looking
    raise AssertionError("the curve is dropped in the end")


@pytest.mark.parametrize(
    ("objective", "looks"),
    [("slowdown", True), ("eta", True), ("budget", False), ("deadline", False)],
    ids=str,
)
def test_all_objectives_look_but_a_budget_which_a_look_would_cost(objective: str, *, looks: bool) -> None:
    """A deadline that is far away leaves the run at its highest limit: there is nothing to compare."""
    rules = msgspec.convert({"objective": objective, "deadline": "24h", "budget": 1e6, "period_s": 60.0}, PlanConfig)
    run = begin(limit_control(plan=rules))
    assert bool(looks_in(train(run, 1_500)[60:])) == looks
    assert (run.ledger.looks.n_pairs >= 8) == looks


def test_without_looks_there_are_none() -> None:
    run = begin(limit_control(may_look=False))
    assert looks_in(train(run, 1_000)) == []


@settings(max_examples=5, deadline=None)
@given(st.floats(0.97, 1.03))
@example(1.0)
def test_a_job_that_changes_as_a_whole_changes_nothing_in_the_ledger(factor: float) -> None:
    """By absolute rates it would be off by half of the change; by more the job is another one, with another curve."""
    run = planned()
    for part in range(40):
        level = factor ** (part / 40)
        train(run, 50, begin_s=60 + 50 * part, rate=partial(scaled_per_s, level=level))
    active_s = sum(each.active_s for each in run.ledger.times)
    true_s = sum(each.active_s * rate_per_s(each.power_limit_w) / rate_per_s(300.0) for each in run.ledger.times)
    assert base_s(run, active_s) / true_s == pytest.approx(1.0, abs=0.003)


def test_the_plan_gets_the_time_at_the_highest_limit_and_its_error() -> None:
    run = planned()
    assert isinstance(run.state, Planned)
    before = run.ledger.base(run.state.refinement.profile, active_s=60.0).error_ratio
    train(run, 1_500, begin_s=60)
    after = run.ledger.base(run.state.refinement.profile, active_s=1_560.0)
    assert 0 < after.error_ratio < 0.005
    assert after.base_s < 1_560.0
    assert before >= 0.0


def test_a_look_that_does_not_come_in_force_is_given_up() -> None:
    """Another process may have fixed the limit: what is asked for does not happen."""
    run = planned()
    at_s = 60
    while not run.ledger.is_looking:
        train(run, 1, begin_s=at_s)
        at_s += 1
    for second in range(60):
        choose(run, at_s=at_s + second)
        run.observe(interval(180.0, rate_per_s(200.0)), enforced_power_limit_w=200.0)
    assert not run.ledger.is_looking


def test_a_dropped_curve_has_a_new_ledger() -> None:
    run = planned()
    train(run, 1_000, begin_s=60)
    assert run.ledger.looks.n_pairs
    run.restart_time_budget()
    choose(run, at_s=1_100, progress=Progress(n_iterations=4_000.0, active_s=1_060.0, started_at_s=MIDNIGHT_S))
    assert (run.ledger.looks.n_pairs, run.ledger.times) == (0, [])


def test_a_ledger_is_resumed_as_it_was() -> None:
    run = planned()
    train(run, 2_000, begin_s=60)
    before, snapshot = base_s(run), run.ledger.snapshot()
    other = begin(limit_control(), FULL)
    assert isinstance(run.state, Planned)
    other.ledger = RunLedger(snapshot)
    assert other.ledger.base(run.state.refinement.profile, active_s=100.0).base_s == pytest.approx(before)
    assert other.ledger.snapshot() == snapshot
    assert other.ledger.looks.n_pairs == run.ledger.looks.n_pairs
