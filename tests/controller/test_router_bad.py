"""The router and what should not be: it is counted, told and dropped, and no flood makes more than a node can have."""

import asyncio
from array import array
from pathlib import Path

import msgpack
import pytest

from controller.router import MAX_RANKS, MAX_RUNS
from publishers.wire import Iterations, Message, Metric, encode, pack_ends
from tests.controller.messages import iterations, rank_status
from tests.controller.router_bench import TOPICS, RouterBench


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
async def test_iterations_that_cannot_be_are_counted_told_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, message: Iterations
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await asyncio.sleep(10)
        bench.say("status", rank_status())
        bench.say("iterations", iterations(5, [6, 7, 8]))
        bench.say("iterations", message)
        assert bench.job().ranks.members[0].log.n_iterations == 3
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
async def test_a_status_that_is_none_is_counted_told_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, payload: bytes
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", payload)
        assert bench.router.jobs == {}
    assert bench.n_bad == 1
    assert "rank/0/status: dropped" in caplog.text


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
async def test_iterations_that_are_none_are_counted_and_dropped(tmp_path: Path, payload: bytes) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await asyncio.sleep(10)
        bench.say("status", rank_status())
        bench.say("iterations", payload)
        assert bench.job().ranks.members[0].log.n_iterations == 0
    assert bench.n_bad == 1


async def test_bad_messages_are_told_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for _ in range(120):
            bench.say("status", b"bad")
            await asyncio.sleep(1)
    assert bench.n_bad == 120
    assert caplog.text.count("rank/0/status: dropped") == 2


async def test_a_status_that_somebody_cleared_is_no_bad_message(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        bench.say("status", b"")
        bench.bus.publish(TOPICS.run_on_node("resnet50", "run-1", "node-b"), b"", retain=True)
        assert list(bench.router.jobs) == [("resnet50", "run-1")]
    assert bench.n_bad == 0


async def test_a_metric_is_checked(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    good = Metric(run="run-1", epoch=1, value=0.7, reached=False)
    async with bench.working():
        bench.bus.publish(TOPICS.run("resnet50", "run-1", "metric"), encode(good))
        assert bench.n_bad == 0
        bench.bus.publish(TOPICS.run("resnet50", "run-2", "metric"), encode(good))
        bench.bus.publish(TOPICS.run("resnet50", "run-1", "metric"), b"good")
    assert bench.n_bad == 2


async def test_a_flood_of_runs_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for number in range(MAX_RUNS + 50):
            bench.say("status", rank_status(run=f"r{number}"), run=f"r{number}")
        assert len(bench.router.jobs) == MAX_RUNS
        assert "256 runs on one node already" in caplog.text
        await asyncio.sleep(70)
        assert bench.router.jobs == {}, "silent for the lease"
    assert bench.n_bad == 50


async def test_a_flood_of_ranks_is_cut_off(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for rank in range(MAX_RANKS + 50):
            bench.say("status", rank_status(pid=rank, world_size=65_536), rank=rank)
        assert len(bench.job().ranks.members) == MAX_RANKS
    assert bench.n_bad == 50
