"""Which limit a run gets: while its curve is measured, while it is refined, and under the plan; what ends a trial."""

from collections.abc import Callable
from dataclasses import replace
from typing import Never

import pytest

from controller.accounting.run_ledger import TimeBudgetStart
from controller.config import EnergyConfig, JobPlan, PlanConfig, PlanRules
from controller.control import curve_learning
from controller.control.curve_learning import Planned, Profiling, posterior_mean
from controller.control.limit_control import CurveStart, DecisionInputs, LimitControl
from controller.ports import Provenance, Target
from policies.planning import Progress
from policies.planning.run_length import GuessedLength
from policies.profiling.rhythm_track import RunRhythm
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.controller.control.control_bench import (
    FULL,
    LADDER_W,
    begin,
    choose,
    decide,
    interval,
    is_new,
    limit_control,
    limits_of,
    plan_inputs,
    rate_per_s,
    train,
)
from tests.fakes import MIDNIGHT_S, flat_signal


def test_a_run_that_has_not_begun_has_no_target() -> None:
    run = limit_control()
    assert (run.state.name, run.profile) == ("waiting", None)
    assert decide(run, plan_inputs()).target is None
    assert not is_new(run.observe(interval(1, 1), enforced_power_limit_w=300.0))


def test_the_first_pass_goes_from_the_prior_limit_down_and_ends_in_the_plan() -> None:
    run = begin(limit_control())
    first = choose(run)
    assert (first.power_limit_w, first.reason, first.detail) == (300.0, "profiling", "measuring limit 1")
    targets = train(run, 60)
    assert limits_of(targets, "profiling") == LADDER_W
    assert run.state.name == "planned"
    assert run.profile is not None
    assert [point.power_limit_w for point in run.profile.points] == LADDER_W[::-1]
    assert targets[-1].reason == "slowdown_static"


def test_a_curve_is_new_once_a_point() -> None:
    run = begin(limit_control())
    grown = [is_new(run.observe(interval(270.0, 4.0), enforced_power_limit_w=300.0)) for _ in range(20)]
    assert grown.count(True) == 1
    assert run.profile is not None
    assert len(run.profile.points) == 1


def test_a_stored_profile_spares_the_first_pass() -> None:
    run = begin(limit_control(), FULL)
    assert (run.state.name, run.profile) == ("planned", FULL)


def test_half_a_stored_profile_shortens_the_first_pass() -> None:
    run = begin(limit_control(), PowerProfile.from_rows([(300.0, 270.0, 4.0)]))
    assert limits_of(train(run, 60), "profiling") == LADDER_W[1:]


def test_a_similar_curve_is_checked_at_few_limits_and_then_adopted() -> None:
    prior_w = (150.0, 175.0, 200.0, 225.0, 250.0, 275.0, 300.0)
    points = (ProfilePoint(power_limit_w=w, power_w=0.9 * w, iterations_per_s=rate_per_s(w)) for w in prior_w)
    run = begin(limit_control(), prior=PowerProfile(tuple(points)))
    assert len(limits_of(train(run, 60), "profiling")) == 3
    assert run.profile is not None
    assert len(run.profile.points) > 3


def test_while_the_curve_is_refined_each_block_tries_out_what_may_be_best() -> None:
    run = begin(limit_control(n_blocks=20, plan=PlanConfig(max_slowdown=1.1)))
    targets = train(run, 400)
    tried = [target for target in targets if target.reason == "refining"]
    assert len({target.detail for target in tried if "exploring" in target.detail}) == 20
    assert len(limits_of(tried, "refining")) > 1
    assert all(200 <= target.power_limit_w <= 300 for target in tried)
    assert targets[-1].reason != "refining"
    assert run.state.name == "planned"
    assert {target.speed_ratio for target in targets if target.reason == "profiling"} == {None}
    speed_ratios = {target.power_limit_w: target.speed_ratio for target in tried}
    assert speed_ratios == pytest.approx({limit_w: rate_per_s(limit_w) / 4.0 for limit_w in speed_ratios}, abs=0.005)


def test_the_same_run_tries_out_the_same_limits_and_another_run_others() -> None:
    plan = PlanConfig(max_slowdown=1.1)
    runs = [begin(limit_control(run=name, plan=plan, n_blocks=20)) for name in ("r1", "r1", "r2")]
    first, again, other = ([target.power_limit_w for target in train(run, 240)] for run in runs)
    assert first == again
    assert first != other


def test_measurements_under_the_plan_refine_the_curve() -> None:
    run = begin(limit_control(n_blocks=20))
    train(run, 60)
    assert run.profile is not None
    before = run.profile
    assert train(run, 300, begin_s=60)
    assert run.profile is not before, "it is shown once it is refined"
    assert sum(point.n for point in run.profile.points) > sum(point.n for point in before.points)


def test_a_refined_curve_is_not_published_with_every_measurement() -> None:
    run = begin(limit_control(n_blocks=20))
    train(run, 60)
    kept = []
    for second in range(600):
        target = choose(run, at_s=60 + second)
        seen = interval(0.9 * target.power_limit_w, rate_per_s(target.power_limit_w))
        kept.append(is_new(run.observe(seen, enforced_power_limit_w=target.power_limit_w)))
    assert kept.count(True) == 1


def test_a_block_in_which_nothing_runs_is_planned_anew_once_a_period() -> None:
    run = begin(limit_control(n_blocks=20, plan=PlanConfig(period_s=300.0)), FULL)
    targets = [choose(run, at_s=at_s) for at_s in (0, 299, 300)]
    assert targets[1] is targets[0]
    assert targets[2] is not targets[0]


def test_short_gaps_between_iterations_are_no_drift() -> None:
    run = begin(limit_control())
    train(run, 60)
    targets = train(run, 600, begin_s=60, gaps_s=0.4)
    assert limits_of(targets, "profiling") == []


def test_a_job_that_drifts_is_profiled_anew() -> None:
    run = begin(limit_control())
    train(run, 60)
    dropped: list[PowerProfile] = []
    targets = train(run, 1_200, begin_s=60, rate=lambda limit_w: 0.7 * rate_per_s(limit_w), dropped=dropped)
    assert limits_of(targets, "profiling") == LADDER_W
    assert [curve.fastest.iterations_per_s for curve in dropped] == [pytest.approx(4.0)]
    assert run.budget_start is not None
    assert run.profile is not None
    assert run.profile.fastest.iterations_per_s == pytest.approx(2.8, rel=1e-3)


def test_a_job_that_draws_more_at_the_same_speed_keeps_its_curve_and_its_budget() -> None:
    run = begin(limit_control())
    train(run, 600)
    targets, dropped = [], []
    for second in range(600, 1_200):
        targets.append(choose(run, at_s=second))
        limit_w = targets[-1].power_limit_w
        update = run.observe(interval(0.96 * limit_w, rate_per_s(limit_w)), enforced_power_limit_w=limit_w)
        dropped += [update.dropped] if update and update.dropped else []
    assert not dropped
    assert limits_of(targets, "profiling") == []
    assert run.budget_start is None
    assert isinstance(run.state, Planned)
    held_w = targets[-1].power_limit_w
    assert posterior_mean(run.state.refinement.profile).at(held_w)[0] == pytest.approx(0.96 * held_w, rel=0.01)


@pytest.mark.parametrize(("trained_s", "knows"), [(2_000, True), (120, False)])
def test_what_is_left_of_the_time_budget_survives_a_curve_where_looks_have_shown_it(
    trained_s: int, knows: bool
) -> None:
    run = begin(limit_control())
    train(run, trained_s)
    times = run.ledger.times
    dropped: list[PowerProfile] = []
    at_s = trained_s
    while not dropped:
        train(run, 1, begin_s=at_s, rate=slowed(0.7), dropped=dropped)
        at_s += 1
        times = run.ledger.times
    run.restart_time_budget()
    choose(run, at_s=at_s, progress=Progress(n_iterations=3.0 * at_s, active_s=at_s, started_at_s=MIDNIGHT_S))
    start = run.budget_start
    assert start is not None
    assert (start.former_active_s, run.ledger.times) == (at_s, [])
    mean_ratio = sum(each.active_s * rate_per_s(each.power_limit_w) for each in times) / rate_per_s(300.0)
    mean_ratio /= sum(each.active_s for each in times)
    if knows:
        assert start.former_base_s / at_s == pytest.approx(mean_ratio, abs=0.003)
    assert start.former_base_s <= at_s / (1.0 if knows else 1.03)
    assert start.former_error_s > 0


def slowed(factor: float) -> Callable[[float], float]:
    """Return how fast the job is that takes `1 / factor` times as long."""
    return lambda limit_w: factor * rate_per_s(limit_w)


def test_each_drift_is_counted_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_learning, "MAX_DOUBLINGS", 1)
    run = begin(limit_control())
    for change in range(4):
        factor = 0.7 if change % 2 else 1.0
        train(run, 1_200, begin_s=1_200 * change, rate=slowed(factor))
        so_far = Progress(n_iterations=4_000.0 * (change + 1), active_s=1_200.0 * change, started_at_s=MIDNIGHT_S)
        choose(run, at_s=1_200.0 * (change + 1), progress=so_far)
        assert run.state.n_drifts == change


def test_the_time_budget_restarts_where_iterations_are_counted_anew() -> None:
    run = begin(limit_control())
    run.budget_start = TimeBudgetStart(n_iterations=1_000.0, active_s=500.0)
    for n_iterations in (1_001.0, 999.0):  # by the work of several ranks it may fall a little
        choose(run, progress=Progress(n_iterations=n_iterations, active_s=501.0, started_at_s=MIDNIGHT_S))
        assert run.budget_start == TimeBudgetStart(n_iterations=1_000.0, active_s=500.0)
    choose(run, progress=Progress(n_iterations=10.0, active_s=5.0, started_at_s=MIDNIGHT_S))
    assert run.budget_start is None


def test_below_a_power_brake_the_highest_limit_is_requested() -> None:
    held = PowerProfile.from_rows([(200.0, 190.0, 0.5), (250.0, 240.0, 1.0)])
    target = choose(begin(limit_control(), held))
    assert target.power_limit_w == 300.0, "the brake may be gone by now"


def test_the_plan_is_made_once_a_period() -> None:
    run = begin(limit_control(plan=PlanConfig(period_s=300.0)), FULL)
    targets = [choose(run, at_s=at_s, history=flat_signal(100.0 + at_s)) for at_s in (0, 299, 300)]
    assert targets[0].signal == "100 g/kWh (test)"
    assert targets[1] is targets[0]
    assert targets[2].signal == "400 g/kWh (test)"


def test_a_target_that_holds_is_decided_without_what_a_plan_rests_on() -> None:
    run = begin(limit_control(), FULL)
    first = choose(run)

    def unread() -> Never:
        raise AssertionError("it is read")

    inputs = DecisionInputs(now_s=MIDNIGHT_S + 1.0, n_iterations=0.0, curve_start=unread, plan=unread)
    assert run.decide(inputs).target is first


def test_a_run_in_doubt_of_its_iterations_says_once_that_measurements_are_void() -> None:
    run = begin(limit_control(), FULL)
    refused = RunRhythm(standing="refused", not_profiled_reason="too_short", unit=1, regime=1)
    inputs = DecisionInputs(
        now_s=MIDNIGHT_S, n_iterations=0.0, rhythm=refused, curve_start=lambda: None, plan=plan_inputs
    )
    first, second = run.decide(inputs), run.decide(inputs)
    assert (first.voids_measurements, second.voids_measurements) == (True, False)
    assert first.not_profiled_reason == second.not_profiled_reason == "too_short"
    assert second.target is not None
    assert second.target.reason == "not_profiled"


def test_the_second_limit_of_a_period_comes_in_force_without_a_new_plan() -> None:
    plan = PlanConfig(period_s=600.0, min_dwell_s=60.0, max_slowdown=1.03)
    steep = PowerProfile(tuple(replace(p, iterations_per_s=p.iterations_per_s**4) for p in FULL.points))
    run = begin(limit_control(plan=plan), steep)
    progress = Progress(n_iterations=5e3, active_s=5e3, started_at_s=MIDNIGHT_S - 5e3, total_iterations=1e6)
    first, before, *after = (
        choose(run, at_s=at_s, history=flat_signal(100.0 + at_s), progress=progress) for at_s in (0, 59, 541, 599)
    )
    assert before is first
    assert after[0] is after[1]
    assert after[0].power_limit_w != first.power_limit_w
    assert (after[0].reason, after[0].detail, after[0].signal) == (first.reason, first.detail, first.signal)
    assert f"then {after[0].power_limit_w:g} W" in first.detail
    curve = fit_curve(posterior_mean(steep), step_w=plan.step_w)
    for target in (first, after[0]):
        assert target.speed_ratio == pytest.approx(curve.at(target.power_limit_w)[1] / curve.fastest.iterations_per_s)
    assert choose(run, at_s=600, history=flat_signal(700.0), progress=progress).signal == "700 g/kWh (test)"


def test_a_guessed_length_is_that_of_the_whole_run_whenever_the_time_budget_began() -> None:
    run = begin(limit_control(), FULL)
    run.budget_start = TimeBudgetStart(n_iterations=1_000.0, active_s=1_000.0)
    guessed = GuessedLength(total_iterations=1e6, spread_ratio=0.03, n_runs=5)
    progress = Progress(n_iterations=5e3, active_s=5e3, started_at_s=MIDNIGHT_S - 5e3, guessed=guessed)
    target = choose(run, history=flat_signal(100.0), progress=progress)
    assert "left for 995,000 iterations" in target.detail
    assert target.detail.endswith("as guessed from 5 former runs, whose lengths differ by 3.0%")


def test_a_degraded_signal_gives_the_reason_of_the_target() -> None:
    run = begin(limit_control(), FULL)
    provenance = Provenance(source="a, held for 1.2 h", reason="signal_held", detail="a fails; its last value is held")
    target = choose(run, history=flat_signal(100.0), provenance=provenance)
    assert (target.reason, target.signal) == ("signal_held", "100 g/kWh (a, held for 1.2 h)")
    assert target.detail.startswith("a fails; its last value is held: ")


def test_a_plan_without_a_signal_publishes_none() -> None:
    target = choose(begin(limit_control(), FULL))
    assert (target.reason, target.signal, target.power_limit_w) == ("slowdown_static", None, 200.0)


@pytest.mark.parametrize(("eta", "limit_w"), [(1.0, 200.0), (0.0, 300.0)])
def test_the_objective_is_the_configured_one(eta: float, limit_w: float) -> None:
    target = choose(begin(limit_control(plan=PlanConfig(objective="eta", eta=eta)), FULL))
    assert (target.reason, target.power_limit_w) == ("eta_static", limit_w)


def test_a_job_is_planned_by_the_table_of_its_name() -> None:
    table = JobPlan(name="resnet*", rules=PlanRules(objective="eta", eta=0.0), keys=("objective", "eta"))
    target = choose(begin(limit_control(plan=PlanConfig(job=(table,))), FULL))
    assert (target.reason, target.power_limit_w) == ("eta_static", 300.0)


def test_a_costly_host_makes_slowing_down_not_worth_it() -> None:
    slow = PowerProfile.from_rows([(200.0, 190.0, 0.8), (240.0, 227.0, 0.9), (300.0, 280.0, 1.0)])
    plan = PlanConfig(objective="eta", eta=1.0)
    alone, within = (
        choose(begin(limit_control(plan=plan, energy=EnergyConfig(host_power_w=host_w)), slow))
        for host_w in (0.0, 500.0)
    )
    assert (alone.power_limit_w, within.power_limit_w) == (200.0, 300.0)


def test_a_change_of_gpus_begins_anew() -> None:
    run = begin(limit_control(), FULL)
    run.reset()
    assert (run.state.name, run.profile) == ("waiting", None)


def test_a_gpu_without_room_below_its_prior_limit_is_measured_at_that_one() -> None:
    run = limit_control()
    run.begin(CurveStart(floor_power_limit_w=300.0, ceiling_power_limit_w=300.0))
    assert limits_of(train(run, 60), "profiling") == [300.0]
    assert run.state.name == "planned"


def test_a_run_without_a_stable_limit_keeps_its_highest_one() -> None:
    run = begin(limit_control())
    for flicker in range(100):
        run.observe(interval(150.0, 1.0), enforced_power_limit_w=150.0 + 20 * (flicker % 2))
    target = choose(run)
    assert (target.power_limit_w, target.reason, run.profile) == (300.0, "not_profiled", None)


STEEP = PowerProfile.from_rows((limit_w, 0.9 * limit_w, 4.0 * limit_w / 300.0) for limit_w in (200.0, 240.0, 300.0))


def flat_per_s(limit_w: float) -> float:
    """Return the rate of a job that waits for its data at every limit."""
    return 4.4 if limit_w > 0 else 0.0


def drifted(run: LimitControl, *, begin_s: int) -> int:
    """Let the job become one of a flat rate, and be profiled anew; return when it is planned again [s]."""
    dropped: list[PowerProfile] = []
    for second in range(begin_s, begin_s + 1_200):
        if train(run, 1, begin_s=second, rate=flat_per_s, dropped=dropped) and dropped:
            break
    for after in range(second + 1, second + 200):
        if run.state.name == "planned":
            return after
        train(run, 1, begin_s=after, rate=flat_per_s)
    raise AssertionError("it is not planned again")


def test_the_plan_of_a_dropped_curve_does_not_come_back() -> None:
    run = begin(limit_control(plan=PlanConfig(period_s=86_400.0, max_slowdown=1.05)))
    train(run, 600, rate=lambda limit_w: 4.0 * limit_w / 300.0)
    before = choose(run, at_s=600)
    assert before.power_limit_w > 200.0
    at_s = drifted(run, begin_s=601)
    assert choose(run, at_s=at_s).power_limit_w == 200.0, "a flat job loses nothing at the lowest limit"


def test_a_trial_does_not_outlive_the_curve() -> None:
    run = begin(limit_control(n_blocks=20, plan=PlanConfig(period_s=86_400.0)), STEEP)
    tried = choose(run)
    assert tried.reason == "refining"
    run.reset()
    begin(run, STEEP)
    assert choose(run, at_s=1.0) is not tried


def in_doubt(run: LimitControl, *, begin_s: int) -> int:
    """Let the job go slower until it may be another; return the time [s]."""
    for second in range(begin_s, begin_s + 200):
        train(run, 1, begin_s=second, rate=lambda limit_w: 0.8 * rate_per_s(limit_w))
        assert isinstance(run.state, Planned)
        if run.state.drift.is_suspected:
            return second + 1
    raise AssertionError("there is no doubt")


def test_nothing_is_tried_out_while_drift_is_suspected() -> None:
    run = begin(limit_control(n_blocks=100, plan=PlanConfig(max_slowdown=1.1)))
    targets = train(run, 60)
    assert targets[-1].reason == "refining"
    at_s = in_doubt(run, begin_s=60)
    target = choose(run, at_s=at_s)
    assert target.reason == "slowdown_static"


def test_the_highest_limit_is_measured_even_while_drift_is_suspected() -> None:
    run = begin(limit_control(n_blocks=100, plan=PlanConfig(max_slowdown=1.1)))
    train(run, 60)
    at_s = 60
    while "highest" not in choose(run, at_s=at_s).detail:
        train(run, 1, begin_s=at_s)
        at_s += 1
    at_s = in_doubt(run, begin_s=at_s)
    target = choose(run, at_s=at_s)
    assert (target.power_limit_w, target.reason) == (300.0, "refining")


def paused(run: LimitControl, *, at_s: float) -> Target:
    """Return what stands while no iteration comes."""
    target = decide(run, plan_inputs(at_s=at_s), waits_because="no iterations").target
    assert target is not None
    return target


def test_a_trial_is_suspended_for_a_pause_and_continues_after_it() -> None:
    run = begin(limit_control(n_blocks=100, plan=PlanConfig(max_slowdown=1.1)))
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


def test_after_a_pause_a_trial_does_not_count_before_its_limit_is_in_force_again() -> None:
    run = begin(limit_control(n_blocks=100, plan=PlanConfig(max_slowdown=1.1)))
    train(run, 60)
    assert paused(run, at_s=60).reason == "profiling_paused"
    before = run.state
    target = choose(run, at_s=61)
    for _ in range(2):  # while the limit settles
        run.observe(interval(270.0, 4.0), enforced_power_limit_w=target.power_limit_w)
    assert run.state is before


@pytest.mark.parametrize("n_blocks", [0, 100])
def test_the_plan_holds_in_a_pause_without_a_trial(n_blocks: int) -> None:
    run = begin(limit_control(n_blocks=n_blocks))
    train(run, 60)
    if n_blocks:
        in_doubt(run, begin_s=60)
        choose(run, at_s=260)
    target = paused(run, at_s=261)
    assert target.reason == "slowdown_static"


@pytest.mark.parametrize("is_multi_node", [False, True])
def test_on_several_nodes_steady_iterations_do_not_show_that_a_limit_has_bitten(*, is_multi_node: bool) -> None:
    run = limit_control()
    decide(run, plan_inputs(), is_multi_node=is_multi_node)
    state = begin(run).state
    assert isinstance(state, Profiling)
    assert state.settings.sees_settling is not is_multi_node
