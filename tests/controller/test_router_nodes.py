"""The router and other nodes: parts that a leader adds up, plans that its followers keep to."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from publishers.reports import PartProfile, RunEnergy, RunPlan
from publishers.wire import decode, encode
from tests.controller.messages import iterations, rank_status, run_energy
from tests.controller.router_bench import NODE, TOPICS, RouterBench, limit_state


async def test_the_leader_adds_up_the_parts_of_other_nodes_but_not_its_own(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(world_size=2))
        bench.bus.publish(TOPICS.run_on_node("resnet50", "run-1", "node-b"), encode(run_energy(energy_j=1_000.0)))
        bench.bus.publish(TOPICS.run_on_node("resnet50", "run-1", "node-b"), encode(run_energy(energy_j=2_000.0)))
        bench.bus.publish(TOPICS.run_on_node("resnet50", "run-1", NODE), encode(run_energy(energy_j=9_999.0)))
        await asyncio.sleep(6)
    sums = bench.bus.payloads(TOPICS.run("resnet50", "run-1", "energy"))
    assert decode(sums[-1], RunEnergy).energy_j == 2_000.0
    assert bench.n_bad == 0


async def test_a_run_whose_ranks_are_all_here_has_no_part_elsewhere(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        bench.bus.publish(TOPICS.run_on_node("resnet50", "run-1", "node-b"), encode(run_energy(energy_j=1_000.0)))
        await asyncio.sleep(6)
    sums = bench.bus.payloads(TOPICS.run("resnet50", "run-1", "energy"))
    assert decode(sums[-1], RunEnergy).energy_j == 0.0


async def test_a_node_without_rank_0_publishes_its_part_and_no_sum(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(world_size=2), rank=1)
        await asyncio.sleep(6)
    assert bench.bus.payloads(TOPICS.run("resnet50", "run-1", "energy")) == []
    assert bench.bus.payloads(TOPICS.run_on_node("resnet50", "run-1", NODE)) != []


def plan(**changes: Any) -> RunPlan:  # noqa: ANN401 — the record checks them
    """Return the word of a node that leads."""
    word = RunPlan(
        run="run-1",
        node="node-z",
        beat=1,
        time_s=1.7e9,
        heartbeat_s=5.0,
        reason="slowdown_static",
        detail="200 W",
        gpu_model="Fake 300",
        max_power_limit_w=280.0,
        power_limit_w=200.0,
    )
    return msgspec.structs.replace(word, **changes)


async def hear_plans(bench: RouterBench, rank: int, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
    """Run a rank that iterates, and let two words of a plan come."""
    bench.limiters[0].state = limit_state()
    bench.say("status", rank_status(world_size=2), rank=rank)
    await asyncio.sleep(6)
    bench.say("iterations", iterations(0, [1, 2]), rank=rank)
    for beat in (1, 2):
        bench.bus.publish(TOPICS.run("resnet50", "run-1", "plan"), encode(plan(beat=beat, **changes)), retain=True)


async def test_a_plan_is_followed_where_rank_0_is_elsewhere(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await hear_plans(bench, rank=1)
        assert [target.power_limit_w for target in bench.limiters[0].targets] == [200.0]


async def test_a_plan_is_not_followed_by_the_node_of_rank_0(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await hear_plans(bench, rank=0)
        await asyncio.sleep(20)
        assert 200.0 not in [target.power_limit_w for target in bench.limiters[0].targets]


async def test_a_plan_for_another_run_is_bad_and_ones_own_is_no_leader(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await hear_plans(bench, rank=1, run="run-2")
        assert bench.n_bad == 2
        await hear_plans(bench, rank=1, node=NODE)
        assert bench.limiters[0].targets == []


async def test_a_node_without_its_leader_publishes_why_and_no_curve(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await hear_plans(bench, rank=1, node=NODE)
        await asyncio.sleep(1)
    parts = bench.bus.payloads(TOPICS.run_on_node("resnet50", "run-1", NODE, "profile"))
    assert [decode(part, PartProfile).reason for part in parts] == ["no_leader", "controller_stopped"]
    assert bench.bus.payloads(TOPICS.run("resnet50", "run-1", "profile")) == []
