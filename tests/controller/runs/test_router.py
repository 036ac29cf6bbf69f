"""The router: runs start, get their GPUs and are retired; nodes exchange parts and plans; bad messages are dropped."""

import asyncio
from array import array
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from controller.accounting.ranks import LOST_GRACE_S
from controller.runs.quotas import MAX_RANKS, MAX_RUNS_OF_JOB
from publishers.messages.codec import Message, decode, encode
from publishers.messages.reports import NodeProfile, RunEnergy, RunPlan
from publishers.messages.training import Iterations, pack_ends
from tests.controller.messages import BOOT_ID, iterations, rank_status, run_energy
from tests.controller.runs.router_bench import NODE, TICK_S, TOPICS, RouterBench, limit_state
from tests.fakes import KEY


async def test_a_status_starts_a_run_and_its_end_retires_it(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await bench.say_and_settle("status", rank_status())
        assert list(bench.router.runs) == [KEY]
        assert [unit.meter.job for unit in bench.workers.values()] == ["resnet50"]
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(5)
        assert bench.router.runs == {}
        assert [unit.meter.job for unit in bench.workers.values()] == [None]
    assert bench.n_bad == 0


async def test_a_status_retained_before_the_start_starts_the_run(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.say("status", rank_status())
    async with bench.working():
        assert list(bench.router.runs) == [KEY]


@pytest.mark.parametrize("state", ["finished", "lost"])
async def test_a_retained_status_of_an_ended_run_starts_nothing(tmp_path: Path, state: str) -> None:
    bench = RouterBench(tmp_path)
    bench.say("status", rank_status(state=state))
    async with bench.working():
        assert bench.router.runs == {}
    assert bench.n_bad == 0


async def test_runs_of_one_job_may_overlap(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path, "GPU-fake-0", "GPU-fake-1")
    async with bench.working():
        bench.say("status", rank_status())
        await bench.say_and_settle("status", rank_status(run="run-2", gpus=["GPU-fake-1"]), run="run-2")
        owned = bench.router.arbiter.claims.owned
        assert owned == {KEY: {"GPU-fake-0"}, KEY._replace(run="run-2"): {"GPU-fake-1"}}


def owners(bench: RouterBench) -> list[str]:
    """Return the runs that have a GPU."""
    return [key.run for key, gpus in bench.router.arbiter.claims.owned.items() if gpus]


async def test_a_gpu_passes_to_the_oldest_waiting_run_as_soon_as_its_run_has_finished(
    tmp_path: Path,
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        for run, job in (("run-2", "bert"), ("run-3", "gpt")):
            await bench.say_and_settle("status", rank_status(run=run), job=job, run=run)
        assert owners(bench) == ["run-1"]
        await bench.say_and_settle("status", rank_status(state="finished"))
        assert owners(bench) == ["run-2"]
        assert bench.limiters[0].releases != []
        n_releases = len(bench.limiters[0].releases)
        await asyncio.sleep(5)
        assert (owners(bench), len(bench.limiters[0].releases)) == (["run-2"], n_releases), "not taken from the next"
        assert [unit.meter.job for unit in bench.workers.values()] == ["bert"]
        assert len(bench.router.runs) == 2


async def test_a_gpu_of_a_lost_run_passes_on_when_its_grace_period_is_over(
    tmp_path: Path,
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await bench.say_and_settle("status", rank_status(run="run-2"), run="run-2")
        bench.say("status", rank_status(state="lost"))
        await asyncio.sleep(LOST_GRACE_S - TICK_S)
        assert owners(bench) == ["run-1"]
        await asyncio.sleep(2 * TICK_S)
        assert owners(bench) == ["run-2"]


async def test_a_run_of_which_one_rank_goes_on_keeps_its_gpus(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for rank in (0, 1):
            bench.say("status", rank_status(pid=rank, world_size=2), rank=rank)
        bench.say("status", rank_status(run="run-2"), run="run-2")
        await bench.say_and_settle("status", rank_status(pid=0, world_size=2, state="finished"))
        assert owners(bench) == ["run-1"]


async def test_a_message_twice_is_harmless(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await asyncio.sleep(10)
        for _ in range(2):
            bench.say("status", rank_status())
            bench.say("iterations", iterations(5, [6, 7, 8]))
        assert bench.training_run().ranks.members[0].log.n_iterations == 3
    assert bench.n_bad == 1


async def test_iterations_of_an_unknown_rank_are_ignored(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("iterations", iterations(5, [6]))
        bench.say("status", rank_status())
        bench.say("iterations", b"whatever", rank=3)
    assert bench.n_bad == 0


async def test_the_retained_topics_of_an_ended_run_are_cleared_after_an_hour(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await asyncio.sleep(10)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(60)
        assert len(bench.bus.retained) == 3, "status, profile, energy"
        for _ in range(61):
            await asyncio.sleep(60)
        assert bench.bus.retained == {}
    assert bench.n_bad == 0


async def test_the_successor_of_an_ended_run_begins_at_once(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await asyncio.sleep(1)
        bench.say("iterations", iterations(0, [0.5, 1]))
        bench.say("status", rank_status(state="finished"))
        ended = bench.training_run()
        bench.say("status", rank_status(pid=2))
        bench.say("iterations", iterations(1, [1.1, 1.2, 1.3]))
        assert bench.training_run() is ended
        assert ended.ranks.slowest.n_iterations == 2
        await asyncio.sleep(5 * TICK_S)
        assert bench.training_run() is not ended
        assert bench.training_run().ranks.slowest.n_iterations == 3
        assert bench.training_run().gpus.uuids == {"GPU-fake-0"}
    assert bench.n_bad == 0


async def test_an_invalid_message_of_a_successor_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await asyncio.sleep(1)
        bench.say("status", rank_status(state="finished"))
        bench.say("status", rank_status(pid=2))
        monkeypatch.setattr("controller.runs.quotas.MAX_RUNS", 0)
        await asyncio.sleep(5 * TICK_S)
        assert bench.router.runs == {}
    assert bench.n_bad == 1


async def test_the_leader_adds_up_the_parts_of_other_nodes_but_not_its_own(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(world_size=2))
        bench.bus.publish(TOPICS.run_on_node(KEY, "node-b"), encode(run_energy(energy_j=1_000.0)))
        bench.bus.publish(TOPICS.run_on_node(KEY, "node-b"), encode(run_energy(energy_j=2_000.0)))
        bench.bus.publish(TOPICS.run_on_node(KEY, NODE), encode(run_energy(energy_j=9_999.0)))
        await asyncio.sleep(6)
    sums = bench.bus.payloads(TOPICS.run(KEY, "energy"))
    assert decode(sums[-1], RunEnergy).energy_j == 2_000.0
    assert bench.n_bad == 0


async def test_a_run_whose_ranks_are_all_here_has_no_part_elsewhere(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        bench.bus.publish(TOPICS.run_on_node(KEY, "node-b"), encode(run_energy(energy_j=1_000.0)))
        await asyncio.sleep(6)
    sums = bench.bus.payloads(TOPICS.run(KEY, "energy"))
    assert decode(sums[-1], RunEnergy).energy_j == 0.0


@pytest.mark.parametrize("leaf", ["energy", "profile"])
async def test_a_node_without_rank_0_ignores_the_parts_of_other_nodes(tmp_path: Path, leaf: str) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(world_size=2), rank=1)
        bench.bus.publish(TOPICS.run_on_node(KEY, "node-b", leaf), b"not even decoded")
        bench.bus.publish(TOPICS.run_on_node(KEY._replace(run="run-9"), "node-b", leaf), b"nor for an unknown run")
        await asyncio.sleep(TICK_S)
    assert bench.n_bad == 0


async def test_a_node_without_rank_0_publishes_its_part_and_no_sum(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(world_size=2), rank=1)
        await asyncio.sleep(6)
    assert bench.bus.payloads(TOPICS.run(KEY, "energy")) == []
    assert bench.bus.payloads(TOPICS.run_on_node(KEY, NODE)) != []


def plan(**changes: Any) -> RunPlan:  # noqa: ANN401 — the record checks them
    """Return the plan of a node that leads."""
    leaders = RunPlan(
        run="run-1",
        node="node-z",
        seq=1,
        time_s=1.7e9,
        heartbeat_s=5.0,
        reason="slowdown_static",
        detail="200 W",
        gpu_model="Fake 300",
        max_power_limit_w=280.0,
        power_limit_w=200.0,
    )
    return msgspec.structs.replace(leaders, **changes)


async def publish_plans(bench: RouterBench, rank: int, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
    """Run a rank that iterates, and let two plans come."""
    bench.limiters[0].state = limit_state()
    bench.say("status", rank_status(world_size=2), rank=rank)
    bench.say_elsewhere()
    await asyncio.sleep(6)
    bench.say("iterations", iterations(0, [1, 2]), rank=rank)
    for seq in (1, 2):
        message = plan(seq=seq, **changes)
        bench.bus.publish(TOPICS.plan(message.node, KEY), encode(message), retain=True)


async def test_a_plan_is_followed_where_rank_0_is_elsewhere(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await publish_plans(bench, rank=1)
        assert [target.power_limit_w for target in bench.limiters[0].targets] == [200.0]


async def test_a_plan_is_not_followed_by_the_node_of_rank_0(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await publish_plans(bench, rank=0)
        await asyncio.sleep(20)
        assert 200.0 not in [target.power_limit_w for target in bench.limiters[0].targets]


async def test_a_plan_for_another_run_is_invalid_and_ones_own_is_ignored(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await publish_plans(bench, rank=1, run="run-2")
        assert bench.n_bad == 2
        await publish_plans(bench, rank=1, node=NODE)
        assert bench.limiters[0].targets == []


async def test_a_node_without_its_leader_publishes_why_and_no_curve(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await publish_plans(bench, rank=1, node=NODE)
        await asyncio.sleep(1)
    parts = bench.bus.payloads(TOPICS.run_on_node(KEY, NODE, "profile"))
    assert [decode(part, NodeProfile).reason for part in parts] == ["no_leader", "controller_stopped"]
    assert bench.bus.payloads(TOPICS.run(KEY, "profile")) == []


@pytest.mark.parametrize(
    "message",
    [
        iterations(5, [6], seq=1, first=3),
        iterations(8, [9], seq=1, first=0),
        iterations(8, [500], seq=1, first=3),
        iterations(8, [9], seq=1, first=3, run="run-9"),
    ],
    ids=["goes backwards", "repeats", "comes from the future", "speaks of another run"],
)
async def test_implausible_iterations_are_counted_logged_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, message: Iterations
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await asyncio.sleep(10)
        bench.say("status", rank_status())
        bench.say("iterations", iterations(5, [6, 7, 8]))
        bench.say("iterations", message)
        assert bench.training_run().ranks.members[0].log.n_iterations == 3
    assert bench.n_bad == 1
    assert "dropped" in caplog.text


def packed(message: Message, **changes: object) -> bytes:
    """Return a message with fields that its record would refuse."""
    fields = msgpack.unpackb(encode(message)) | changes
    return bytes(msgpack.packb({name: value for name, value in fields.items() if value != "(left out)"}))


BAD_STATUSES = [
    b"\xc1",
    b"not msgpack",
    msgpack.packb([1, 2]),
    packed(rank_status(), state="sleeping"),
    packed(rank_status(), pid=-1),
    packed(rank_status(), world_size=0),
    packed(rank_status(), heartbeat_s=float("nan")),
    packed(rank_status(), started_at_s=1e300),
    packed(rank_status(), gpus=["x"] * 1_000),
    packed(rank_status(), gpus=["x" * 1_000]),
    packed(rank_status(), batch_size=-5),
    packed(rank_status(), run="(left out)"),
    packed(rank_status(), run="run-9"),
    packed(rank_status(), host="h" * 100_000),
    packed(rank_status(), boot_id="x" * (1 << 20)),
]


@pytest.mark.parametrize("payload", BAD_STATUSES)
async def test_an_invalid_status_is_counted_logged_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, payload: bytes
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", payload)
        assert bench.router.runs == {}
    assert bench.n_bad == 1
    assert "rank/0/status: invalid message dropped" in caplog.text


@pytest.mark.parametrize(
    "payload",
    [
        packed(iterations(5, [6]), end_ns=b""),
        packed(iterations(5, [6]), end_ns=b"1234567"),
        packed(iterations(5, [6]), end_ns=pack_ends(array("q", [6 * 10**9, 5 * 10**9]))),
        packed(iterations(5, [6]), end_ns=pack_ends(array("q", [-1]))),
        packed(iterations(5, [6]), end_ns=bytes(8 * 70_000)),
        packed(iterations(5, [6]), begin_ns=-1),
        packed(iterations(5, [6]), begin_ns=7 * 10**9),
        packed(iterations(5, [6]), first=-1),
        packed(iterations(5, [6]), seq=2**60),
    ],
)
async def test_invalid_iterations_are_counted_and_dropped(tmp_path: Path, payload: bytes) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await asyncio.sleep(10)
        bench.say("status", rank_status())
        bench.say("iterations", payload)
        assert bench.training_run().ranks.members[0].log.n_iterations == 0
    assert bench.n_bad == 1


async def test_invalid_messages_are_logged_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for _ in range(120):
            bench.say("status", b"bad")
            await asyncio.sleep(1)
    assert bench.n_bad == 120
    assert caplog.text.count("rank/0/status: invalid message dropped") == 2


async def test_a_cleared_status_is_no_invalid_message(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        bench.say("status", b"")
        bench.bus.publish(TOPICS.run_on_node(KEY, "node-b"), b"", retain=True)
        assert list(bench.router.runs) == [KEY]
    assert bench.n_bad == 0


async def test_a_status_of_another_boot_than_its_topic_says_is_dropped(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status(boot_id="another-boot"))
        assert bench.router.runs == {}
    assert bench.n_bad == 1


async def test_two_users_jobs_of_one_name_are_two_jobs(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path, "GPU-fake-0", "GPU-fake-1")
    theirs = KEY._replace(user="bob@example.org")
    async with bench.working():
        bench.say("status", rank_status())
        topic = TOPICS.rank(BOOT_ID, theirs, 0, "status")
        bench.bus.publish(topic, encode(rank_status(gpus=["GPU-fake-1"], pid=2)), qos=1, retain=True)
        assert list(bench.router.runs) == [KEY, theirs]
        await asyncio.sleep(TICK_S)
        assert bench.router.arbiter.claims.owned == {KEY: {"GPU-fake-0"}, theirs: {"GPU-fake-1"}}


async def test_the_runs_of_a_job_are_bounded_and_those_too_many_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for number in range(MAX_RUNS_OF_JOB + 50):
            for _ in range(2):
                bench.say("status", rank_status(run=f"r{number}"), run=f"r{number}")
        assert len(bench.router.runs) == MAX_RUNS_OF_JOB
        assert "32 runs of job resnet50 on this node" in caplog.text
        assert [notice.code for notice in bench.notices(run=f"r{MAX_RUNS_OF_JOB}")] == ["too_many_runs"]
        bench.say("status", rank_status(), job="bert")
        assert KEY._replace(job="bert") in bench.router.runs, "another job of the same user"
        await asyncio.sleep(70)
        assert bench.router.runs == {}, "silent for the lease"
    assert bench.n_bad == 100


async def test_the_number_of_ranks_is_bounded(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for rank in range(MAX_RANKS + 50):
            bench.say("status", rank_status(pid=rank, world_size=65_536), rank=rank)
            if rank % 100 == 0:  # not more messages a second than a run may send
                await asyncio.sleep(1)
        assert len(bench.training_run().ranks.members) == MAX_RANKS
    assert bench.n_bad == 50


async def test_messages_that_are_too_many_are_not_decoded_and_their_run_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = RouterBench(tmp_path, "GPU-fake-0", "GPU-fake-1")
    async with bench.working():
        bench.say("status", rank_status())
        bench.say("status", rank_status(run="run-2", gpus=["GPU-fake-1"]), run="run-2")
        for _ in range(10_000):
            bench.say("iterations", b"not decoded")
        assert bench.bus.quotas is not None
        assert bench.bus.quotas.n_dropped > 8_000
        assert [notice.code for notice in bench.notices()].count("too_many_messages") == 1
        await asyncio.sleep(1)
        bench.say("iterations", iterations(0.1, [0.2, 0.3], run="run-2"), run="run-2")
        assert bench.training_run(run="run-2").ranks.members[0].log.n_iterations == 2, "of another run: read"
    assert caplog.text.count("more messages a second than are read") == 1


async def test_each_process_is_told_once_that_it_is_heard(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for pid in (1, 1, 2):
            bench.say("status", rank_status(pid=pid, started_at_s=float(pid)))
            await asyncio.sleep(61)  # the first one is silent for the lease by then
    notices = bench.notices()
    assert [(notice.code, notice.rank, notice.node, notice.boot_id) for notice in notices] == [
        ("heard", 0, NODE, BOOT_ID)
    ] * 2


async def test_a_refused_claim_is_told_once_for_each_reason(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for _ in range(10):
            await bench.say_and_settle("status", rank_status(gpus=[7]))
        bench.say("status", rank_status(gpus=["MIG-1"]))
    told = [(notice.code, notice.detail) for notice in bench.notices() if notice.code != "heard"]
    assert [code for code, _ in told] == ["gpu_unknown", "mig_instance"]
    assert "there is no GPU 7 on this node; it has 0 = GPU-fake-0" in told[0][1]


async def test_the_record_of_another_process_of_a_name_says_that_there_was_one_before(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(5)
        bench.say("status", rank_status(pid=rank_status().pid + 1))
        await asyncio.sleep(5)
    records = [decode(p, RunEnergy) for p in bench.bus.payloads(TOPICS.run(KEY, "energy"))]
    assert [record.incomplete for record in records if record.final] == [[]]
    assert records[-1].incomplete == ["earlier_process"]


async def test_a_record_in_which_two_processes_claimed_a_rank_says_so(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        bench.say("status", rank_status(pid=rank_status().pid + 1))
        await asyncio.sleep(5)
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(5)
    records = [decode(p, RunEnergy) for p in bench.bus.payloads(TOPICS.run(KEY, "energy"))]
    assert [record.incomplete for record in records if record.final] == [["two_processes"]]
