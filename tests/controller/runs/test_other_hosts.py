"""Runs on several nodes: what this node subscribes to for them, and whose plans it believes."""

import asyncio
from pathlib import Path

import pytest

from controller.runs import other_hosts
from controller.runs.other_hosts import NodeDirectory
from publishers.messages.codec import encode
from publishers.messages.reports import RunPlan
from tests.controller.messages import BOOT_ID, iterations, rank_status
from tests.controller.runs.router_bench import TOPICS, RouterBench, limit_state
from tests.fakes import KEY, LoopClock

HOST = [TOPICS.rank_filter(leaf, boot_id=BOOT_ID) for leaf in ("status", "iterations")]
LEADER = [TOPICS.part_filter(leaf, run=KEY) for leaf in ("energy", "profile")]
FOLLOWER = [TOPICS.rank_filter("status", run=KEY, rank=0), TOPICS.plan_filter(run=KEY), TOPICS.node_status(None)]


def plan(node: str, seq: int, power_limit_w: float = 200.0) -> bytes:
    return encode(
        RunPlan(
            run=KEY.run,
            node=node,
            seq=seq,
            time_s=1.7e9,
            heartbeat_s=5.0,
            reason="slowdown_static",
            detail="a limit",
            gpu_model="Fake 300",
            max_power_limit_w=280.0,
            power_limit_w=power_limit_w,
        )
    )


async def follow(bench: RouterBench) -> None:
    """Run rank 1 here, and rank 0 on node-z."""
    bench.limiters[0].state = limit_state()
    bench.say("status", rank_status(world_size=2), rank=1)
    bench.say_elsewhere()
    await asyncio.sleep(6)
    bench.say("iterations", iterations(0, [1, 2]), rank=1)


async def limits_after_plans(bench: RouterBench, *nodes: str) -> set[float]:
    """Publish plans of nodes, each on its own topic; return the limits that were requested."""
    for seq in (1, 2, 3):
        for node in nodes:
            bench.bus.publish(TOPICS.plan(node, KEY), plan(node, seq), qos=1)
        await asyncio.sleep(1)
    return {target.power_limit_w for target in bench.limiters[0].targets}


async def test_a_node_without_runs_hears_its_own_host_alone(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        assert bench.bus.filters == HOST


async def test_a_run_that_is_all_here_needs_no_other_subscription(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        assert bench.bus.filters == HOST


async def test_the_leader_hears_the_parts_of_its_run_until_the_run_ends(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(world_size=2))
        assert bench.bus.filters == HOST + LEADER
        bench.say("status", rank_status(world_size=2, state="finished"))
        await asyncio.sleep(5)
        assert bench.bus.filters == HOST


async def test_a_follower_hears_rank_0_and_the_plans_until_rank_0_comes_here(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(world_size=3), rank=1)
        assert bench.bus.filters == HOST + FOLLOWER
        bench.say("status", rank_status(world_size=3))
        assert bench.bus.filters == HOST + LEADER


async def test_a_run_whose_last_rank_comes_here_is_no_longer_heard_elsewhere(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(world_size=2), rank=1)
        bench.say("status", rank_status(world_size=2))
        assert bench.bus.filters == HOST


async def test_the_nodes_are_heard_while_one_run_is_followed(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path, "GPU-fake-0", "GPU-fake-1")
    async with bench.working():
        for run in ("run-1", "run-2"):
            bench.say("status", rank_status(world_size=2, run=run, gpus=[]), run=run, rank=1)
        assert bench.bus.filters.count(TOPICS.node_status(None)) == 1
        bench.say("status", rank_status(world_size=2, state="finished", gpus=[]), rank=1)
        await asyncio.sleep(5)
        assert TOPICS.node_status(None) in bench.bus.filters
        bench.say("status", rank_status(world_size=2, run="run-2", state="finished", gpus=[]), run="run-2", rank=1)
        await asyncio.sleep(5)
        assert bench.bus.filters == HOST


async def test_the_plan_of_the_node_of_rank_0_is_followed(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await follow(bench)
        assert await limits_after_plans(bench, "node-z") == {200.0}
    assert bench.n_bad == 0


async def test_a_plan_of_another_node_is_dropped(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await follow(bench)
        bench.say_node("node-b", "boot-b")
        assert await limits_after_plans(bench, "node-b") == set()
    assert bench.n_bad == 3


async def test_a_plan_in_the_name_of_the_leader_on_another_nodes_topic_is_dropped(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await follow(bench)
        for seq in (1, 2, 3):
            bench.bus.publish(TOPICS.plan("node-b", KEY), plan("node-z", seq), qos=1)
        await asyncio.sleep(1)
        assert bench.limiters[0].targets == []
    assert bench.n_bad == 3


async def test_of_two_nodes_with_one_boot_neither_is_believed_and_it_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await follow(bench)
        for _ in range(3):
            bench.say_node("node-b", "boot-z")
        assert await limits_after_plans(bench, "node-z", "node-b") == set()
        bench.say_node("node-b", "boot-z", "offline")
        assert await limits_after_plans(bench, "node-z") == {200.0}
    assert caplog.text.count("both claim the boot") == 1


async def test_a_node_that_is_offline_is_not_believed(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await follow(bench)
        bench.say_node("node-z", "boot-z", "offline")
        assert await limits_after_plans(bench, "node-z") == set()


async def test_no_plan_is_believed_before_it_is_known_where_rank_0_runs(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.limiters[0].state = limit_state()
        bench.say("status", rank_status(world_size=2), rank=1)
        bench.say_node("node-z", "boot-z")
        assert await limits_after_plans(bench, "node-z") == set()
    assert bench.n_bad == 0, "it may be early"


async def test_where_rank_0_moves_its_new_node_is_believed(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await follow(bench)
        bench.say_elsewhere("node-y", "boot-y", started_at_s=rank_status().started_at_s + 60)
        assert await limits_after_plans(bench, "node-z") == set()
        assert await limits_after_plans(bench, "node-y") == {200.0}


async def test_hosts_and_nodes_are_remembered_in_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_hosts, "MAX_NODES", 3)
    bench = RouterBench(tmp_path)
    async with bench.working():
        await follow(bench)
        for number in range(200):
            bench.say_elsewhere(f"node-{number}", f"boot-{number}")
        (membership,) = bench.router._other_hosts._memberships.values()
        assert len(membership.rank_0) == other_hosts.MAX_HOSTS
        assert len(bench.router._other_hosts._nodes._boots) == 3


async def test_a_node_that_boots_again_leaves_its_former_boot() -> None:
    directory = NodeDirectory(LoopClock())
    directory.put("node-a", "boot-1")
    directory.put("node-a", "boot-2")
    assert directory.nodes_of("boot-1") == frozenset()
    assert directory.nodes_of("boot-2") == {"node-a"}
    directory.put("node-a", None)
    assert directory.nodes_of("boot-2") == frozenset()
