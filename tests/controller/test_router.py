"""The router: every message to its run, and every GPU to the run that may have it."""

import asyncio
from pathlib import Path

import pytest

from controller.ranks import LOST_GRACE_S
from tests.controller.messages import iterations, rank_status
from tests.controller.router_bench import TICK_S, RouterBench


async def test_a_status_starts_a_run_and_its_end_retires_it(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        assert list(bench.router.jobs) == [("resnet50", "run-1")]
        assert [unit.meter.job for unit in bench.units.values()] == ["resnet50"]
        bench.say("status", rank_status(state="finished"))
        await asyncio.sleep(5)
        assert bench.router.jobs == {}
        assert [unit.meter.job for unit in bench.units.values()] == [None]
    assert bench.n_bad == 0


async def test_a_retained_status_of_before_the_start_starts_the_run(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    bench.say("status", rank_status())
    async with bench.working():
        assert list(bench.router.jobs) == [("resnet50", "run-1")]


@pytest.mark.parametrize("state", ["finished", "lost"])
async def test_a_retained_status_of_an_ended_run_starts_nothing(tmp_path: Path, state: str) -> None:
    bench = RouterBench(tmp_path)
    bench.say("status", rank_status(state=state))
    async with bench.working():
        assert bench.router.jobs == {}
    assert bench.n_bad == 0


async def test_runs_of_one_job_may_overlap(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path, "GPU-fake-0", "GPU-fake-1")
    async with bench.working():
        bench.say("status", rank_status())
        bench.say("status", rank_status(run="run-2", gpus=["GPU-fake-1"]), run="run-2")
        assert [bench.job(run=run).gpu_uuids for run in ("run-1", "run-2")] == [{"GPU-fake-0"}, {"GPU-fake-1"}]


def owners(bench: RouterBench) -> list[str]:
    """Return the runs that have a GPU."""
    return [run for (_, run), job in bench.router.jobs.items() if job.gpu_uuids]


async def test_a_gpu_passes_to_whoever_was_refused_it_at_the_moment_in_which_its_run_has_finished(
    tmp_path: Path,
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        for run, job in (("run-2", "bert"), ("run-3", "gpt")):
            bench.say("status", rank_status(run=run), job=job, run=run)
        assert owners(bench) == ["run-1"]
        bench.say("status", rank_status(state="finished"))
        assert owners(bench) == ["run-2"]
        assert bench.limiters[0].releases != []
        n_releases = len(bench.limiters[0].releases)
        await asyncio.sleep(5)
        assert (owners(bench), len(bench.limiters[0].releases)) == (["run-2"], n_releases), "not taken from the next"
        assert [unit.meter.job for unit in bench.units.values()] == ["bert"]
        assert len(bench.router.jobs) == 2


async def test_a_gpu_of_a_run_that_is_lost_passes_on_once_nobody_may_come_back_and_not_at_a_heartbeat(
    tmp_path: Path,
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        bench.say("status", rank_status(run="run-2"), run="run-2")
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
        bench.say("status", rank_status(pid=0, world_size=2, state="finished"))
        assert owners(bench) == ["run-1"]


async def test_iterations_reach_the_log_of_their_rank(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await asyncio.sleep(10)
        bench.say("status", rank_status())
        bench.say("iterations", iterations(5, [6, 7, 8]))
        assert bench.job().ranks.members[0].log.n_iterations == 3


async def test_a_message_twice_is_harmless(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        await asyncio.sleep(10)
        for _ in range(2):
            bench.say("status", rank_status())
            bench.say("iterations", iterations(5, [6, 7, 8]))
        assert bench.job().ranks.members[0].log.n_iterations == 3
    assert bench.n_bad == 1


async def test_iterations_of_a_rank_that_nobody_knows_are_another_nodes(tmp_path: Path) -> None:
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
        assert len(bench.bus.retained) == 4, "status, profile, energy, and the node's part of it"
        for _ in range(61):
            await asyncio.sleep(60)
        assert bench.bus.retained == {}
    assert bench.n_bad == 0


async def test_a_run_that_has_ended_is_followed_at_once_by_the_next_one_of_its_name(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await asyncio.sleep(1)
        bench.say("iterations", iterations(0, [0.5, 1]))
        bench.say("status", rank_status(state="finished"))
        ended = bench.job()
        bench.say("status", rank_status(pid=2))
        bench.say("iterations", iterations(1, [1.1, 1.2, 1.3]))
        assert bench.job() is ended
        assert ended.ranks.slowest.n_iterations == 2
        await asyncio.sleep(5 * TICK_S)
        assert bench.job() is not ended
        assert bench.job().ranks.slowest.n_iterations == 3
        assert bench.job().gpu_uuids == {"GPU-fake-0"}
    assert bench.n_bad == 0


async def test_what_was_wrong_with_the_next_run_is_told_as_for_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RouterBench(tmp_path)
    async with bench.working():
        bench.say("status", rank_status())
        await asyncio.sleep(1)
        bench.say("status", rank_status(state="finished"))
        bench.say("status", rank_status(pid=2))
        monkeypatch.setattr("controller.router.MAX_RUNS", 0)
        await asyncio.sleep(5 * TICK_S)
        assert bench.router.jobs == {}
    assert bench.n_bad == 1
