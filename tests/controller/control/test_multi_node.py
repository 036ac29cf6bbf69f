"""The curve of several nodes, and the leader's plan: powers add up, the slowest counts, and plans are numbered."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.accounting.other_nodes import MAX_NODES, OtherNodes
from controller.accounting.ranks import Ranks, RunIdentity
from controller.accounting.reports import RunReporter
from controller.config import EnergyConfig, PlanConfig
from controller.control.multi_node import HEARTBEAT_S, NodeShare, PlanBroadcast, joint_profile, joint_ratios
from controller.control.plan import PlanInputs, PlannedTarget
from controller.ports import Blocked, Provenance, Target
from controller.runtime.clock import Now
from policies.planning import Progress, SlackOptions
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from publishers.messages.codec import decode
from publishers.messages.reports import NodeProfile, NodeProfileEntry, RunPlan
from publishers.messages.topics import Topics
from tests.controller.messages import ns
from tests.fakes import KEY, FakeBus, LoopClock

RUN = RunIdentity(**KEY._asdict(), node="node-a")
TOPICS = Topics()
LIMITS_W = (100.0, 200.0, 300.0)
OWN = PowerProfile(
    tuple(
        ProfilePoint(power_limit_w=limit_w, power_w=0.9 * limit_w, iterations_per_s=rate, power_ci_w=1.0)
        for limit_w, rate in zip(LIMITS_W, (0.6, 0.9, 1.0), strict=True)
    )
)
ALONE = NodeShare(n_gpus=1, n_ranks=1, world_size=1)
TARGET = Target(power_limit_w=200.0, reason="slowdown_static", detail="200 W", job="resnet50", speed_ratio=0.95)


def part(*points: tuple[float, float, float], state: str = "following", n_gpus: int = 1) -> NodeProfile:
    """Return what a node has published: (limit [W], power [W], rate [1/s]) of each point."""
    return NodeProfile(
        run="run-1",
        state=state,  # type: ignore[arg-type]  # one of the three
        reason="slowdown_static",
        detail="",
        gpu_model="Fake 300",
        n_gpus=n_gpus,
        n_ranks=n_gpus,
        points=[NodeProfileEntry(power_limit_w=a, power_w=b, iterations_per_s=c, active_s=60.0) for a, b, c in points],
    )


def share(world_size: int, *, host_power_w: float = 0.0) -> NodeShare:
    return NodeShare(n_gpus=1, n_ranks=1, world_size=world_size, host_power_w=host_power_w)


def powers_w(joint: PowerProfile) -> list[float]:
    return [round(point.power_w, 6) for point in joint.points]


def test_a_run_on_one_node_has_its_own_curve() -> None:
    assert joint_profile(OWN, ALONE, []) == OWN


def test_the_power_of_a_node_is_added_by_its_interpolated_ratio_to_the_leader() -> None:
    joint = joint_profile(OWN, share(2), [part((100.0, 45.0, 0.6), (300.0, 405.0, 1.0))])
    assert powers_w(joint) == [90.0 * 1.5, 180.0 * 2.0, 270.0 * 2.5]
    assert [point.power_ci_w for point in joint.points] == pytest.approx([1.5, 2.0, 2.5])


def test_a_node_that_has_measured_nothing_yet_counts_by_its_gpus() -> None:
    assert powers_w(joint_profile(OWN, share(5), [part(n_gpus=4)])) == [450.0, 900.0, 1_350.0]


@pytest.mark.parametrize("state", ["waiting", "observing"])
def test_a_node_that_does_not_follow_draws_its_highest_power_at_every_limit(state: str) -> None:
    assert powers_w(joint_profile(OWN, share(2), [part(state=state)])) == [90.0 + 270, 180.0 + 270, 270.0 + 270]


def test_a_training_process_without_a_controller_draws_its_highest_power() -> None:
    assert powers_w(joint_profile(OWN, share(3), [])) == [90.0 + 540, 180.0 + 540, 270.0 + 540]


def test_the_machines_of_the_other_nodes_draw_what_the_leaders_draws() -> None:
    joint = joint_profile(OWN, share(2, host_power_w=100.0), [part((200.0, 180.0, 0.9))])
    assert powers_w(joint) == [280.0, 460.0, 640.0], "the leader's own host is added where the plan is made"


def test_the_slowest_node_counts_and_noise_does_not() -> None:
    noisy, slow = part((200.0, 180.0, 0.89), (300.0, 270.0, 1.02)), part((200.0, 180.0, 0.9), (300.0, 270.0, 0.8))
    assert joint_profile(OWN, share(2), [noisy]).iterations_per_s.tolist() == [0.6, 0.9, 1.0]
    assert joint_profile(OWN, share(3), [noisy, slow]).iterations_per_s.tolist() == pytest.approx([0.6, 0.9, 0.8])


@pytest.mark.parametrize("n_others", [0, 1, 3])
def test_a_pause_has_all_gpus_idle_and_all_machines_as_they_are(n_others: int) -> None:
    energy = EnergyConfig(host_power_w=100.0, pue=1.5)
    plan = PlannedTarget(
        job="resnet50", rules=PlanConfig().rules_of("resnet50"), energy=energy, bounds_w=(100.0, 300.0)
    )
    own = None if n_others == 0 else share(1 + n_others, host_power_w=energy.host_power_w)
    inputs = PlanInputs(
        now_s=1.7e9,
        history=None,
        forecast=None,
        progress=Progress(n_iterations=0.0, active_s=0.0, started_at_s=1.7e9),
        provenance=Provenance(source="test"),
        slack=SlackOptions(idle_power_w=50.0, max_pause_s=60.0),
        share=own,
        node_profiles=tuple(n_others * [part((200.0, 180.0, 0.9), (300.0, 270.0, 1.0))]),
    )
    plan.choose(OWN, inputs)
    assert plan.made is not None
    slack = plan.made.inputs.slack
    assert slack is not None
    assert slack.idle_power_w == pytest.approx(1.5 * (1 + n_others) * (50.0 + 100.0))


def ratios_of(*energy_ratios: float, error: float = 0.002) -> tuple[list[LimitRatios], np.ndarray]:
    """Return what is known of the leader's limits: energies at the highest one over theirs."""
    known = [
        LimitRatios(
            power_limit_w=limit_w,
            rate_ratio=rate,
            rate_error_ratio=0.001,
            energy_ratio=energy_ratio,
            energy_error_ratio=error if limit_w < LIMITS_W[-1] else 0.0,
        )
        for limit_w, rate, energy_ratio in zip(LIMITS_W, (0.6, 0.9, 1.0), energy_ratios, strict=True)
    ]
    return known, np.eye(len(known))


def knows(node: NodeProfile, *energy_ratios: float, half: float = 0.00329) -> NodeProfile:
    """Return what a node has published once it has looked often enough."""
    entries = zip(node.points, energy_ratios, strict=True)
    points = [msgspec.structs.replace(at, energy_ratio=ratio, energy_ci90_ratio=half) for at, ratio in entries]
    return msgspec.structs.replace(node, points=points)


SAME = part((100.0, 90.0, 0.6), (200.0, 180.0, 0.9), (300.0, 270.0, 1.0))


def test_what_several_nodes_save_is_the_mean_by_what_they_draw_at_the_highest_limit() -> None:
    half_as_much = part((100.0, 45.0, 0.6), (200.0, 90.0, 0.9), (300.0, 135.0, 1.0))
    found = joint_ratios(ratios_of(1.2, 1.25, 1.0), OWN, share(2), [knows(half_as_much, 1.0, 1.1, 1.0)])
    assert found is not None
    low, middle, top = found[0]
    assert 1 / low.energy_ratio == pytest.approx((2 / 1.2 + 1 / 1.0) / 3)
    assert 1 / middle.energy_ratio == pytest.approx((2 / 1.25 + 1 / 1.1) / 3)
    assert (low.rate_ratio, top.energy_ratio) == (0.6, 1.0)
    same = joint_ratios(ratios_of(1.2, 1.25, 1.0), OWN, share(2), [knows(SAME, 1.2, 1.25, 1.0)])
    assert same is not None
    errors = [each.energy_error_ratio for each in same[0]]
    assert errors == pytest.approx([0.002, 0.002, 0.001]), "what both are off by adds up; at the top only the other is"


@pytest.mark.parametrize(
    "parts",
    [
        [SAME],
        [],
        [msgspec.structs.replace(knows(SAME, 1.2, 1.25, 1.0), state="waiting")],
        [knows(part((200.0, 180.0, 0.9), (300.0, 270.0, 1.0)), 1.25, 1.0)],
    ],
)
def test_what_one_node_does_not_know_is_not_known_of_all(parts: list[NodeProfile]) -> None:
    assert joint_ratios(ratios_of(1.2, 1.25, 1.0), OWN, share(2), parts) is None


POINTS = st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e18))


@given(st.lists(st.lists(POINTS, max_size=8), max_size=4), st.integers(1, 65_536))
def test_whatever_nodes_publish_there_is_a_curve_at_the_leaders_limits(
    published: list[list[tuple[float, float, float]]], world_size: int
) -> None:
    others = OtherNodes()
    for number, points in enumerate(published):
        others.on_profile(f"node-{number}", part(*points))
    joint = joint_profile(OWN, share(world_size), others.profiles.values())
    assert joint.power_limits_w.tolist() == list(LIMITS_W)
    assert all(now.power_w >= own.power_w for now, own in zip(joint.points, OWN.points, strict=True))
    assert all(now.iterations_per_s <= own.iterations_per_s for now, own in zip(joint.points, OWN.points, strict=True))


KNOWN_POINTS = st.builds(
    NodeProfileEntry,
    power_limit_w=st.floats(0, 1e6),
    power_w=st.floats(0, 1e6),
    iterations_per_s=st.floats(0, 1e18),
    active_s=st.just(60.0),
    energy_ratio=st.none() | st.floats(0, 1e18),
    energy_ci90_ratio=st.none() | st.floats(0, 1e18),
)


@given(st.lists(st.tuples(KNOWN_POINTS, KNOWN_POINTS, KNOWN_POINTS), min_size=1, max_size=4))
def test_whatever_nodes_publish_of_energies_the_leader_goes_on(
    published: list[tuple[NodeProfileEntry, NodeProfileEntry, NodeProfileEntry]],
) -> None:
    others = OtherNodes()
    for number, entries in enumerate(published):
        at = [msgspec.structs.replace(entry, power_limit_w=w) for w, entry in zip(LIMITS_W, entries, strict=True)]
        others.on_profile(f"node-{number}", msgspec.structs.replace(part(), points=at))
    found = joint_ratios(ratios_of(1.2, 1.25, 1.0), OWN, share(1 + len(published)), list(others.profiles.values()))
    assert found is None or all(each.energy_ratio > 0 for each in found[0])


def test_the_number_of_remembered_nodes_is_bounded() -> None:
    others = OtherNodes()
    for number in range(MAX_NODES + 10):
        others.on_profile(f"node-{number}", part())
    others.on_profile("node-0", part(state="waiting"))
    joint = joint_profile(OWN, share(MAX_NODES + 11), others.profiles.values())
    assert powers_w(joint)[0] == 90.0 * MAX_NODES + 270.0 * 11


def published(*steps: tuple[Target | Blocked, float]) -> list[RunPlan]:
    """Return what a leader publishes that has these targets at monotonic times [s]."""
    bus, ranks = FakeBus(), Ranks(name="resnet50/run-1", lease_s=60.0)
    reporter = RunReporter(RUN, bus=bus, topics=TOPICS, ranks=ranks, other_nodes=OtherNodes(), clock=LoopClock())
    leader = PlanBroadcast(RUN, reporter=reporter)
    for target, now_s in steps:
        leader.publish(
            target,
            gpu_model="Fake 300",
            max_power_limit_w=300.0,
            is_steady=True,
            now=Now(1.7e9 + now_s, ns(now_s)),
        )
    return [decode(payload, RunPlan) for payload in bus.payloads(TOPICS.plan("node-a", KEY))]


def test_the_same_plan_is_published_again_every_heartbeat_under_a_new_number() -> None:
    plans = published(*((TARGET, 0.5 * step) for step in range(21)))
    assert [(plan.seq, plan.time_s - 1.7e9) for plan in plans] == [(0, 0.0), (1, HEARTBEAT_S), (2, 2 * HEARTBEAT_S)]


def test_a_new_plan_is_published_at_once() -> None:
    nothing = Blocked(reason="waiting_for_ranks", detail="a rank has not come")
    plans = published((nothing, 0.0), (TARGET, 0.1), (TARGET, 0.2))
    assert [(plan.power_limit_w, plan.reason, plan.speed_ratio) for plan in plans] == [
        (None, "waiting_for_ranks", None),
        (200.0, "slowdown_static", 0.95),
    ]
