"""Following another node's plan: within own bounds, while its leader lives, and never above the prior limit."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.other_nodes import OtherNodes
from controller.accounting.ranks import Ranks, RunIdentity
from controller.accounting.reports import RunReporter
from controller.accounting.run_books import RunBooks
from controller.config import load_config
from controller.control.gpu_group import GpuGroup
from controller.control.run_follower import MAX_ACTIVE_S, MAX_LIMITS, NodeCurve, RunFollower
from controller.ports import Blocked, Hold, Target
from controller.runtime.clock import Now
from policies.savings.interval import KnownSaving
from policies.thermal.board import TIME_CONSTANTS_S
from publishers.messages.codec import decode
from publishers.messages.reports import NodeProfile, RunPlan
from publishers.messages.topics import Topics
from tests.controller.messages import ns, rank_status
from tests.controller.runs.router_bench import limit_state
from tests.fakes import KEY, FakeBus, FakeGpu, FakeLimiter, LoopClock

RUN = RunIdentity(**KEY._asdict(), node="node-b")
PLAN = RunPlan(
    run="run-1",
    node="node-a",
    seq=0,
    time_s=1.7e9,
    heartbeat_s=5.0,
    reason="slowdown_static",
    detail="200 W",
    gpu_model="Fake 300",
    max_power_limit_w=280.0,
    power_limit_w=200.0,
    is_steady=True,
)


class StoppedClock(LoopClock):
    """A clock that always shows midnight."""

    def now_s(self) -> float:
        return self.start_s


class Bench:
    """A follower with one GPU, 100 to 280 W."""

    def __init__(self, **state: Any) -> None:  # noqa: ANN401 — the record checks them
        self.bus, self.books = FakeBus(), RunBooks()
        self.limiter = FakeLimiter(FakeGpu())
        self.limiter.state = replace(limit_state(Hold.HELD), **state)
        self.gpus = GpuGroup()
        self.gpus.add(self.limiter, None)  # type: ignore[arg-type]  # no meter is read here
        ranks = Ranks(name="resnet50/run-1", lease_s=60.0)
        ranks.on_status(1, rank_status(world_size=2), now_s=0.0)
        reporter = RunReporter(
            RUN, bus=self.bus, topics=Topics(), ranks=ranks, other_nodes=OtherNodes(), clock=StoppedClock()
        )
        config = load_config(None, ["profiler.settle_s=2", "job.lease_s=60"])
        self.follower = RunFollower(RUN, config=config, gpus=self.gpus, reporter=reporter, books=self.books)
        self.n_plans = 0

    def on_plan(self, at_s: float, **changes: Any) -> bool:  # noqa: ANN401 — the record checks them
        """Receive a new plan of the leader."""
        self.n_plans += 1
        return self.follower.on_plan(msgspec.structs.replace(PLAN, seq=self.n_plans, **changes), now_ns=ns(at_s))

    def target(self, at_s: float) -> Target | Blocked:
        return self.follower.target(Now(at_s, ns(at_s)))

    def lead(self, **changes: Any) -> "Bench":  # noqa: ANN401 — the record checks them
        """Receive the plans of a living leader: one at 0 s and the next at 5 s."""
        self.on_plan(0.0, **changes)
        self.on_plan(5.0, **changes)
        return self

    def published(self) -> list[NodeProfile]:
        """Return what was published of how it follows."""
        topic = Topics().run_on_node(KEY, "node-b", "profile")
        return [decode(payload, NodeProfile) for payload in self.bus.payloads(topic)]

    def observe(self, begin_s: float, *, duration_s: float = 1.0, energy_j: float = 180.0) -> None:
        self.follower.observe(interval(begin_s, duration_s, energy_j))


def interval(begin_s: float, duration_s: float = 1.0, energy_j: float = 180.0) -> MeterInterval:
    """Return an interval of a board that warms at once."""
    return MeterInterval(
        begin_ns=ns(begin_s),
        end_ns=ns(begin_s + duration_s),
        active=True,
        n_iterations=5 * duration_s,
        energy_j=energy_j,
        temperature_c=30.0 + 0.1 * energy_j / duration_s,
    )


def reason(target: Target | Blocked) -> tuple[str, str]:
    return type(target).__name__, target.reason


def test_before_a_plan_no_limit_is_set() -> None:
    assert reason(Bench().target(100.0)) == ("Blocked", "no_leader")


def test_a_plan_is_followed_from_the_second_number_on() -> None:
    bench = Bench()
    assert not bench.on_plan(0.0)
    assert not bench.follower.on_plan(msgspec.structs.replace(PLAN, seq=1), now_ns=ns(1.0)), "the same plan once more"
    assert reason(bench.target(1.0)) == ("Blocked", "no_leader")
    assert bench.on_plan(2.0)
    assert reason(bench.target(2.0)) == ("Target", "slowdown_static")


def test_a_heartbeat_is_no_new_plan_and_another_limit_is() -> None:
    bench = Bench().lead()
    assert not bench.on_plan(10.0)
    assert bench.on_plan(11.0, power_limit_w=180.0)


def test_the_leaders_limit_is_requested_with_its_reason_and_source() -> None:
    assert Bench().lead(signal="200 g/kWh", speed_ratio=0.97).target(6.0) == Target(
        power_limit_w=200.0,
        reason="slowdown_static",
        detail="plan of node-a: 200 W",
        job="resnet50",
        signal="200 g/kWh",
        speed_ratio=0.97,
    )


@pytest.mark.parametrize(("heartbeat_s", "patience_s"), [(5.0, 60.0), (30.0, 90.0)])
def test_a_leader_is_silent_after_the_lease_or_three_heartbeats(heartbeat_s: float, patience_s: float) -> None:
    bench = Bench().lead(heartbeat_s=heartbeat_s)
    assert reason(bench.target(5.0 + patience_s)) == ("Target", "slowdown_static")
    assert reason(bench.target(5.1 + patience_s)) == ("Blocked", "leader_silent")
    bench.on_plan(200.0)
    assert reason(bench.target(200.0)) == ("Target", "slowdown_static")


def test_a_plan_without_a_limit_is_a_reason_to_hold_none() -> None:
    assert reason(Bench().lead(power_limit_w=None, reason="run_lost").target(6.0)) == ("Blocked", "run_lost")


@given(
    st.floats(0, 1e6),
    st.floats(1e-3, 1e6),
    st.sampled_from(["Fake 300", "Other"]),
    st.floats(50, 400),
    st.floats(100, 700),
    st.floats(100, 700),
)
def test_no_plan_leads_above_the_prior_limit_or_below_the_floor(
    planned_w: float, highest_w: float, model: str, floor_w: float, ceiling_w: float, prior_w: float
) -> None:
    ceiling_w = max(ceiling_w, floor_w)  # the operator may allow more than the prior limit
    bench = Bench(
        floor_power_limit_w=floor_w, ceiling_power_limit_w=ceiling_w, prior_power_limit_w=max(prior_w, floor_w)
    )
    target = bench.lead(power_limit_w=planned_w, max_power_limit_w=highest_w, gpu_model=model).target(6.0)
    assert isinstance(target, Target)
    assert floor_w <= target.power_limit_w <= min(ceiling_w, max(prior_w, floor_w))


def test_gpus_of_another_model_follow_by_the_share_of_the_highest_limit() -> None:
    target = Bench().lead(gpu_model="Other 700", power_limit_w=350.0, max_power_limit_w=700.0).target(6.0)
    assert isinstance(target, Target)
    assert target.power_limit_w == 140.0


def measured(bench: Bench) -> list[tuple[float, float, float]]:
    return [(e.power_limit_w, e.power_w, e.iterations_per_s) for e in bench.follower.curve.entries]


def test_power_under_a_plan_is_measured_at_the_limit_of_the_plan() -> None:
    bench = Bench(requested_power_limit_w=200.0, enforced_power_limit_w=200.0).lead()
    bench.gpus.request(bench.target(5.0))  # type: ignore[arg-type]  # a target
    for begin_s in range(20):
        bench.observe(float(begin_s))
    assert measured(bench) == [pytest.approx((200.0, 180.0, 5.0))]
    assert bench.follower.curve.entries[0].active_s == pytest.approx(13.0), "from 7 s on: it was new at 5 s"


def test_a_follower_knows_by_its_own_looks_what_a_limit_saves() -> None:
    """The leader looks at the highest limit for all nodes: the power here falls from 252 to 180 W, at the same rate."""
    bench = Bench(requested_power_limit_w=200.0, enforced_power_limit_w=200.0).lead()
    begin_s = 6
    for _ in range(9):
        for limit_w, duration_s in ((200.0, 40), (280.0, 15)):
            bench.limiter.state = replace(
                limit_state(Hold.HELD, since_ns=ns(begin_s)),
                requested_power_limit_w=limit_w,
                enforced_power_limit_w=limit_w,
            )
            bench.on_plan(float(begin_s), power_limit_w=limit_w)
            bench.gpus.request(bench.target(float(begin_s)))  # type: ignore[arg-type]  # a target
            for second in range(begin_s, begin_s + duration_s):
                each = interval(float(second), energy_j=0.9 * limit_w)
                bench.follower.add_time(each, bench.gpus.now())
                bench.books.add(each, bench.gpus.now(), begins_s=float(second))
                bench.follower.observe(each)
            begin_s += duration_s
    assert bench.follower.looks.n_looks(280.0) >= 8
    looks = bench.follower.looks
    assert all(len(pair.warmed_w2) == len(TIME_CONSTANTS_S) for pair in looks.pairs)
    all_seen = [replace(pair, warmed_w2=(pair.power_w2,) * len(TIME_CONSTANTS_S)) for pair in looks.pairs]
    found = bench.books.saving(replace(looks, pairs=tuple(all_seen)))  # eight minutes tell little of how a board warms
    assert isinstance(found, KnownSaving)
    time_ratio = 40 / (40 + 15)
    assert found.saving.saved_energy_ratio == pytest.approx(time_ratio * (1 - 200 / 280), abs=0.01)
    assert found.saving.slowdown_ratio == pytest.approx(1.0, abs=1e-3)
    bench.follower.publish(bench.target(begin_s), is_barred=False, now=Now(begin_s, ns(begin_s)))
    low, top = bench.published()[-1].points
    assert low.energy_ratio == pytest.approx(280 / 200, rel=0.02)
    assert top.energy_ratio == 1.0
    assert low.energy_ci90_ratio is not None
    assert top.energy_ci90_ratio == 0 < low.energy_ci90_ratio


def test_where_the_leader_drops_its_curve_the_books_are_closed() -> None:
    bench = Bench(requested_power_limit_w=280.0, enforced_power_limit_w=280.0).lead(power_limit_w=280.0)
    bench.gpus.request(bench.target(5.0))  # type: ignore[arg-type]  # a target
    for second in range(10, 20):
        each = interval(float(second))
        bench.follower.add_time(each, bench.gpus.now())
        bench.books.add(each, bench.gpus.now(), begins_s=float(second))
        bench.follower.observe(each)
    bench.on_plan(20.0, reason="refining", power_limit_w=280.0)
    assert not bench.books.closed, "a look is no first pass"
    bench.on_plan(25.0, reason="profiling", power_limit_w=280.0)
    bench.on_plan(30.0, reason="profiling", power_limit_w=200.0)
    assert len(bench.books.closed) == 1
    assert (bench.books.books.slots, bench.books.curve, bench.books.gap) == ((), None, None)


def test_a_pin_before_the_first_pass_is_no_plan_whose_curve_could_be_dropped() -> None:
    bench = Bench(requested_power_limit_w=280.0, enforced_power_limit_w=280.0)
    bench.on_plan(5.0, reason="pinned", power_limit_w=280.0)
    bench.on_plan(10.0, reason="pinned", power_limit_w=280.0)
    bench.gpus.request(bench.target(10.0))  # type: ignore[arg-type]  # a target
    each = interval(10.0)
    bench.follower.add_time(each, bench.gpus.now())
    bench.books.add(each, bench.gpus.now(), begins_s=10.0)
    assert bench.books.pinned_s == 1.0
    bench.on_plan(20.0, reason="profiling", power_limit_w=200.0)
    assert bench.books.closed == ()
    assert bench.books.books.slots, "the books go on"


def test_what_another_program_sets_here_meanwhile_is_not_told_as_pinned() -> None:
    bench = Bench(requested_power_limit_w=222.0, enforced_power_limit_w=222.0)
    bench.on_plan(5.0, reason="pinned", power_limit_w=250.0)
    bench.gpus.release("other_gpu_not_ours", "another program writes", only=Hold.HELD)
    each = interval(10.0)
    bench.follower.add_time(each, bench.gpus.now())
    bench.books.add(each, bench.gpus.now(), begins_s=10.0)
    assert bench.books.books.slots, "it ran"
    assert bench.books.pinned_s == 0.0


def test_time_is_added_also_before_the_gpus_have_answered() -> None:
    bench = Bench().lead()
    bench.limiter.state = None
    each = interval(0.0)
    bench.follower.add_time(each, bench.gpus.now())
    bench.books.add(each, bench.gpus.now(), begins_s=0.0)
    (slot,) = bench.books.books.slots
    assert (slot.active_s, slot.pause_s) == (0.0, 1.0)


def test_power_while_the_limit_is_not_in_force_is_not_measured() -> None:
    bench = Bench(requested_power_limit_w=250.0, enforced_power_limit_w=250.0).lead()
    bench.gpus.request(bench.target(5.0))  # type: ignore[arg-type]  # a target
    for begin_s in range(20):
        bench.observe(float(begin_s))
    assert measured(bench) == []


@pytest.mark.parametrize(
    ("n_intervals", "duration_s", "n_iterations", "energy_j"),
    [
        pytest.param(1, 0.9, 9.0, 180.0, id="less than a second"),
        pytest.param(4, 1.0, 0.5, 180.0, id="two iterations"),
        pytest.param(4, 1.0, 9.0, 0.0, id="no energy"),
    ],
)
def test_a_limit_with_little_time_few_iterations_or_no_energy_is_not_measured(
    n_intervals: int, duration_s: float, n_iterations: float, energy_j: float
) -> None:
    curve = NodeCurve()
    for begin_s in range(n_intervals):
        curve.observe(replace(interval(begin_s, duration_s, energy_j), n_iterations=n_iterations), power_limit_w=200.0)
    assert curve.entries == []


def test_a_node_curve_is_a_reference_only_up_to_the_leaders_highest_limit() -> None:
    curve = NodeCurve()
    for second in range(5):
        curve.observe(interval(second), power_limit_w=200.0)
    assert curve.profile(280.0) is None
    for second in range(5):
        curve.observe(interval(second, energy_j=250.0), power_limit_w=280.0)
    profile = curve.profile(280.0)
    assert profile is not None
    assert [point.power_w for point in profile.points] == [180.0, 250.0]


def test_the_curve_is_bounded_and_forgets_slowly_what_a_limit_drew_long_ago() -> None:
    curve = NodeCurve()
    for limit_w in range(100, 100 + 2 * MAX_LIMITS):
        for _ in range(2):
            curve.observe(interval(0.0), power_limit_w=float(limit_w))
    assert [entry.power_limit_w for entry in curve.entries] == [100.0 + n for n in range(MAX_LIMITS, 2 * MAX_LIMITS)]
    for _ in range(int(MAX_ACTIVE_S)):
        curve.observe(interval(0.0, energy_j=100.0), power_limit_w=227.0)
    for _ in range(int(2 * MAX_ACTIVE_S)):
        curve.observe(interval(0.0, energy_j=200.0), power_limit_w=227.0)
    (last,) = curve.entries[-1:]
    assert last.active_s <= MAX_ACTIVE_S + 2
    assert last.power_w == pytest.approx(200.0, rel=0.05)


def test_a_node_profile_is_published_once_and_again_when_its_curve_moves() -> None:
    bench = Bench(requested_power_limit_w=200.0, enforced_power_limit_w=200.0).lead()
    target = bench.target(5.0)
    assert isinstance(target, Target)
    bench.gpus.request(target)
    for begin_s in range(300):
        bench.observe(float(begin_s), energy_j=180.0 + 0.001 * (begin_s % 7))
        bench.follower.publish(target, is_barred=False, now=Now(0.0, 0))
    (first, second) = bench.published()
    assert (first.state, first.points, len(second.points)) == ("following", [], 1)


@pytest.mark.parametrize(("is_barred", "state"), [(True, "observing"), (False, "waiting")])
def test_a_node_without_a_limit_publishes_why(is_barred: bool, state: str) -> None:
    bench = Bench()
    bench.follower.publish(bench.target(0.0), is_barred=is_barred, now=Now(0.0, 0))
    (published,) = bench.published()
    assert (published.state, published.reason, published.n_gpus, published.n_ranks) == (state, "no_leader", 1, 1)


def test_nothing_is_published_while_rank_0_may_yet_come_to_this_node() -> None:
    bench = Bench()
    bench.follower.publish(Blocked(reason="waiting_for_ranks", detail="not yet"), is_barred=False, now=Now(0.0, 0))
    assert bench.published() == []
