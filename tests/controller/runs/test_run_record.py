"""What is remembered of a run once it has ended: by the node that leads it, whatever the disk does."""

import asyncio
from pathlib import Path

import pytest

from controller.history.run_history import EndedRun, JobKey
from publishers.messages.codec import decode
from publishers.messages.reports import RunEnergy
from tests.controller.messages import iterations, rank_status
from tests.controller.runs.router_bench import TICK_S, TOPICS, RouterBench, limit_state
from tests.fakes import KEY, MIDNIGHT_S

JOB = JobKey(KEY.user, KEY.job)


async def run_to_the_end(bench: RouterBench, n_s: int = 20, *, first: int = 0, **status: object) -> None:
    """Train for some seconds, two iterations a second, and finish."""
    bench.limiters[0].state = limit_state()
    bench.say("status", rank_status(**status))
    for second in range(n_s):
        await asyncio.sleep(1)
        end_s = bench.clock.monotonic_ns() / 1e9
        ends_s = [end_s - 0.5, end_s]
        bench.say("iterations", iterations(end_s - 1, ends_s, seq=second, first=first + 2 * second))
    bench.say("status", rank_status(state="finished", **status))
    await asyncio.sleep(8 * TICK_S)


def remembered(bench: RouterBench) -> tuple[EndedRun, ...]:
    """Return the runs that are remembered."""
    return bench.history.ended(JOB)


async def test_a_run_that_ends_is_remembered(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await run_to_the_end(bench, time_limit_s=MIDNIGHT_S + 100.0, reached=True)
        (ended,) = remembered(bench)
    assert (ended.run, ended.number, ended.end, ended.reached) == (KEY.run, 0, "finished", True)
    assert (ended.is_complete, ended.n_iterations, ended.batch_size, ended.world_size) == (True, 40.0, 256, 1)
    assert (ended.gpu_model, ended.n_gpus) == ("Fake 300", 1)
    assert ended.active_s == pytest.approx(20.0)
    assert ended.energy_j == pytest.approx(20 * 300.0, rel=0.15)
    assert ended.ended_at_s - ended.started_at_s == pytest.approx(20.0, abs=4.0)
    assert ended.time_limit_s == MIDNIGHT_S + 100.0


async def test_a_run_that_was_joined_late_is_not_complete(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await run_to_the_end(bench, first=1_000)
        (ended,) = remembered(bench)
    assert (ended.is_complete, ended.n_iterations) == (False, 40.0)


async def test_the_next_run_has_the_next_number(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await run_to_the_end(bench)
        await run_to_the_end(bench, pid=5_000, started_at_s=MIDNIGHT_S + 50.0)
        assert [ended.number for ended in remembered(bench)] == [0, 1]


async def test_a_run_that_another_node_leads_is_not_remembered_here(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status(world_size=2), rank=1)
        await asyncio.sleep(10)
        bench.say("status", rank_status(world_size=2, state="finished"), rank=1)
        await asyncio.sleep(8 * TICK_S)
        assert remembered(bench) == ()


async def test_a_disk_that_refuses_delays_no_release(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("in the way")
    bench = RouterBench(tmp_path)
    async with bench.working():
        await run_to_the_end(bench)
        assert set(bench.limiters[0].releases) == {"run_finished"}
        assert len(remembered(bench)) == 1


async def test_where_a_run_cannot_be_remembered_its_last_record_is_published_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = RouterBench(tmp_path)

    def refuse(*_: object) -> None:
        raise ValueError("a comparison with runs held out that cannot be made")

    monkeypatch.setattr(bench.history, "end", refuse)
    async with bench.working():
        await run_to_the_end(bench)
        assert set(bench.limiters[0].releases) == {"run_finished"}
        assert bench.router.runs == {}
    record = decode(bench.bus.payloads(TOPICS.run(KEY, "energy"))[-1], RunEnergy)
    assert (record.final, record.state, record.iterations) == (True, "finished", 40)
    assert [entry.message for entry in caplog.records if entry.exc_info] == [
        f"{KEY}: how it has ended is not remembered"
    ]


async def test_the_schedule_of_a_run_that_another_node_leads_is_left_alone(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.limiters[0].state = limit_state()
    async with bench.working():
        bench.say("status", rank_status(world_size=2), rank=1)
        await asyncio.sleep(10)
        bench.say("status", rank_status(world_size=2, state="finished"), rank=1)
        await asyncio.sleep(8 * TICK_S)
    assert bench.bus.payloads(TOPICS.run(KEY, "schedule")) == []
