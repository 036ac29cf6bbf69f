"""Arbitrary bytes on any topic neither raise nor grow memory, and leave an honest run as it is."""

import asyncio
import tempfile
from array import array
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import async_solipsism
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.ports import Hold
from controller.runs.quotas import MAX_RUNS
from publishers.messages.codec import decode, encode
from publishers.messages.reports import RunEnergy
from publishers.messages.training import pack_ends
from tests.controller.messages import BOOT_ID, iterations, rank_status, run_energy
from tests.controller.runs.router_bench import TOPICS, RouterBench, limit_state
from tests.fakes import KEY

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_HONEST = [
    TOPICS.rank(BOOT_ID, KEY, 0, "status"),
    TOPICS.rank(BOOT_ID, KEY, 0, "iterations"),
    TOPICS.rank(BOOT_ID, KEY, 1, "status"),
    TOPICS.plan("node-b", KEY),
    TOPICS.run_on_node(KEY, "node-b"),
]
_LEVELS = st.lists(
    st.sampled_from(
        [
            "host",
            BOOT_ID,
            "user",
            "alice",
            "job",
            "resnet50",
            "run",
            "run-1",
            "rank",
            "0",
            "status",
            "iterations",
            "node",
        ]
    )
    | st.text(max_size=8),
    min_size=1,
    max_size=12,
)
TOPIC = st.sampled_from(_HONEST) | _LEVELS.map(lambda levels: "/".join([TOPICS.root, *levels])) | st.text(max_size=40)
_NUMBER = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.booleans() | st.none()
_VALUE = _NUMBER | st.text(max_size=8) | st.binary(max_size=24) | st.lists(_NUMBER | st.text(max_size=4), max_size=3)
_FIELDS = msgpack.unpackb(encode(rank_status())) | msgpack.unpackb(encode(iterations(5, [6, 7])))
_NEARLY = st.dictionaries(st.sampled_from(sorted(_FIELDS)), _VALUE, max_size=4).map(
    lambda changes: bytes(msgpack.packb(_FIELDS | changes))
)
_TIME_NS = st.integers(0, 170 * 10**9) | st.integers(0, 2**62)
_TIMES = st.lists(_TIME_NS, min_size=1, max_size=5).map(sorted)
_COUNT = st.integers(0, 5) | st.integers(0, 2**53)
_ODD_TIMES = st.builds(
    lambda ends, begin, first, seq: bytes(
        msgpack.packb(_FIELDS | {"end_ns": pack_ends(array("q", ends)), "begin_ns": begin, "first": first, "seq": seq})
    ),
    _TIMES,
    _TIME_NS,
    _COUNT,
    _COUNT,
)
PAYLOAD = (
    st.binary(max_size=200) | _NEARLY | _ODD_TIMES | st.just(encode(run_energy())) | st.just(encode(rank_status()))
)


def on_virtual_time(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a loop of its own: Hypothesis calls functions."""
    with asyncio.Runner(loop_factory=async_solipsism.EventLoop) as runner:
        runner.run(work)


@FUZZ
@given(st.lists(st.tuples(TOPIC, PAYLOAD, st.sampled_from([0.0, 0.25, 1.0, 30.0])), max_size=20))
def test_whatever_arrives_neither_raises_nor_stops_the_runs(messages: list[tuple[str, bytes, float]]) -> None:
    async def receive() -> None:
        with tempfile.TemporaryDirectory() as state_dir:
            bench = RouterBench(Path(state_dir))
            bench.limiters[0].state = limit_state(Hold.HELD)
            async with bench.working():
                await asyncio.sleep(100)
                bench.say("status", rank_status())
                for topic, payload, pause_s in messages:
                    bench.bus.publish(topic, payload)
                    await asyncio.sleep(pause_s)
                assert len(bench.router.runs) <= MAX_RUNS
            for payload in bench.bus.payloads(TOPICS.run(KEY, "energy")):
                decode(payload, RunEnergy)  # what we publish stays within the format

    on_virtual_time(receive())


@FUZZ
@given(st.lists(st.tuples(TOPIC, PAYLOAD), min_size=1, max_size=40))
def test_the_handlers_themselves_never_raise(messages: list[tuple[str, bytes]]) -> None:
    async def receive() -> None:
        with tempfile.TemporaryDirectory() as state_dir:
            bench = RouterBench(Path(state_dir))
            router = bench.router
            async with bench.working():
                bench.say("status", rank_status())
                hosts = router._other_hosts
                others = (hosts._on_part, hosts._on_plan, hosts._on_rank_0, hosts._on_node_status)
                for on_message in (router._on_status, router._on_iterations, *others):
                    for topic, payload in messages:
                        router._handler(on_message)(topic, payload)

    on_virtual_time(receive())


async def test_a_flood_of_topics_grows_nothing(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        for number in range(2_000):
            bench.say("status", b"\xc1", job=f"job-{number}", run=f"run-{number}")
            bench.say("iterations", b"\xc1", job=f"job-{number}", run=f"run-{number}")
        assert bench.router.runs == {}
        limiter = bench.router.invalid_messages.limiter
        assert len(limiter) <= limiter.MAX_KEYS
    assert bench.n_bad == 2_000, "iterations of nobody's rank are another node's"


@pytest.mark.parametrize("huge", [2**53, 2**40])
async def test_a_rank_that_counts_its_iterations_absurdly_harms_only_its_own_numbers(tmp_path: Path, huge: int) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await asyncio.sleep(10)
        bench.say("status", rank_status())
        bench.say("iterations", iterations(5, [6], seq=0, first=0))
        bench.say("iterations", iterations(6, [7], seq=1, first=huge))
        await asyncio.sleep(30)
        for payload in bench.bus.payloads(TOPICS.run(KEY, "energy")):
            decode(payload, RunEnergy)
