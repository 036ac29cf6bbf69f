"""The spool: what could not be stored is told when the database is back, in order, once, whatever the disk does."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from policies.service.bus import pending_events as spool_module
from policies.service.bus.events import BatchSizesTimed, MetricReported, RunEnded, RunEvent
from policies.service.bus.pending_events import PendingEvents, SpoolFiles
from policies.service.errors import RequestError
from policies.service.records import IterationTime, Timing
from tests.policies.service.memory_desk import NOW_S, MemoryDesk, inline

SOON_S = 20.0
"""Longer than the longest pause."""


class Disk(SpoolFiles):
    """Files on a disk that can be full."""

    is_full = False

    def append(self, news: Iterable[RunEvent]) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "spool")
        super().append(news)


class Bench:
    """A spool whose database is away at first."""

    def __init__(self, directory: Path) -> None:
        self.desk = MemoryDesk()
        self.desk.open()
        self.desk.is_away = True
        self.disk = Disk(directory)
        self.spool = PendingEvents(self.disk, self.desk, in_thread=inline)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(self.spool.write()), tasks.create_task(self.spool.replay())]
            yield
            for worker in workers:
                worker.cancel()
        await self.spool.close()

    @property
    def last_epoch(self) -> int | None:
        return self.desk.trials["resnet50", "r1"].last_epoch


def measured(epoch: int, *, run: str = "r1") -> MetricReported:
    return MetricReported(job="resnet50", run=run, at_s=NOW_S + epoch, epoch=epoch, value=0.5, reached=True)


def n_files(directory: Path) -> int:
    return len(list(directory.glob("*/*.jsonl")))


async def test_what_waits_is_on_disk_and_is_told_when_the_database_is_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.running():
        for run in ("r0", "r2", "r1"):
            bench.desk.open(run=run)
            bench.spool.put(measured(2, run=run))
        await asyncio.sleep(60)
        assert (bench.spool.is_waiting, n_files(tmp_path), bench.last_epoch) == (True, 1, None)
        bench.desk.is_away = False
        await asyncio.sleep(SOON_S)
        assert (bench.spool.is_waiting, n_files(tmp_path), bench.last_epoch) == (False, 0, 2)
    assert bench.desk.calls.count("note_metric") < 20  # ever less often while it was away
    assert bench.spool.n_told == 3


async def test_what_a_run_has_timed_waits_like_any_result(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    timing = Timing(times=(IterationTime(batch_size=32, iteration_time_s=0.1),), too_large=64, batch_size=32)
    async with bench.running():
        bench.spool.put(BatchSizesTimed(job="resnet50", run="r1", at_s=NOW_S, timing=timing))
        await asyncio.sleep(60)
        assert n_files(tmp_path) == 1
        bench.desk.is_away = False
        await asyncio.sleep(SOON_S)
    trial = bench.desk.trials["resnet50", "r1"]
    assert (trial.timing, trial.batch_size) == (timing, 32)


async def test_what_a_process_left_is_told_by_the_next_one(tmp_path: Path) -> None:
    before = Bench(tmp_path)
    async with before.running():
        before.spool.put(measured(5))
        await asyncio.sleep(1)
    after = Bench(tmp_path)
    after.desk.is_away = False
    async with after.running():
        await asyncio.sleep(SOON_S)
        assert after.last_epoch == 5


async def test_what_a_process_leaves_when_it_dies_is_told_by_one_that_lives(tmp_path: Path) -> None:
    dead, living = Bench(tmp_path), Bench(tmp_path)
    living.desk.is_away = False
    async with living.running():
        await asyncio.sleep(1)
        dead.disk.append([measured(5)])
        assert dead.disk._lock is not None
        os.close(dead.disk._lock)
        await asyncio.sleep(spool_module.LOOK_PERIOD_S + SOON_S)
        assert living.last_epoch == 5


async def test_what_arrives_at_the_last_moment_is_on_disk_when_it_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.running():
        pass
    bench.spool.put(measured(1))
    await bench.spool.close()
    heir = SpoolFiles(tmp_path)
    assert heir.take_over() == 1


async def test_without_a_disk_it_waits_in_memory_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.disk.is_full = True
    async with bench.running():
        bench.spool.put(measured(1))
        await asyncio.sleep(60)
        assert (bench.spool.fault, n_files(tmp_path)) == ("spool: No space left on device", 0)
        assert bench.spool.trouble == "results wait in memory: spool: No space left on device"
        assert len([record for record in caplog.records if "No space left" in record.getMessage()]) == 1
        bench.desk.is_away = False
        await asyncio.sleep(SOON_S)
        assert (bench.last_epoch, bench.spool.is_waiting) == (1, False)
        assert not bench.spool.trouble


async def test_when_the_disk_has_room_again_it_takes_what_waits_in_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.disk.is_full = True
    async with bench.running():
        bench.spool.put(measured(1))
        await asyncio.sleep(30)
        bench.disk.is_full = False
        await asyncio.sleep(10)
        assert (bench.spool.fault, n_files(tmp_path)) == ("", 1)


async def test_memory_is_bounded_and_what_there_is_no_room_for_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool_module, "MAX_IN_MEMORY", 10)
    bench = Bench(tmp_path)
    for epoch in range(25):
        bench.spool.put(measured(epoch))
    assert (len(bench.spool._in_memory), bench.spool.n_lost) == (10, 15)
    assert len(caplog.records) == 1
    async with bench.running():
        await asyncio.sleep(1)
        bench.desk.is_away = False
        await asyncio.sleep(SOON_S)
    for epoch in range(12):
        bench.spool.put(measured(epoch))
    assert bench.spool.n_lost == 17
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]  # once more, after there was room


@pytest.mark.parametrize(
    "poison", [measured(1, run="nobody"), RunEnded(job="resnet50", run="nobody", at_s=NOW_S, lost=False, reached=True)]
)
async def test_what_the_desk_refuses_for_good_does_not_block_the_rest(tmp_path: Path, poison: RunEvent) -> None:
    bench = Bench(tmp_path)
    async with bench.running():
        bench.spool.put(poison)
        bench.spool.put(measured(7))
        bench.desk.is_away = False
        await asyncio.sleep(SOON_S)
        assert (bench.last_epoch, bench.spool.n_refused, bench.spool.is_waiting) == (7, 1, False)


@pytest.mark.parametrize("error", [RequestError(["nonsense"]), ZeroDivisionError("a bug")])
async def test_what_fails_for_good_is_said_and_let_go(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.desk.error = error
    async with bench.running():
        bench.spool.put(measured(7))
        await asyncio.sleep(SOON_S)
        assert (bench.spool.n_refused, bench.spool.is_waiting) == (1, False)
    assert "resnet50/r1: measured is not stored" in caplog.text


async def test_a_database_that_goes_away_again_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.running():
        for number in range(10):
            bench.desk.open(run=f"r{number}")
            bench.spool.put(measured(number, run=f"r{number}"))
        await asyncio.sleep(1)
        bench.desk.is_away, bench.desk.delay_s = False, 1.0
        await asyncio.sleep(10)
        bench.desk.is_away = True
        await asyncio.sleep(60)
        assert 0 < bench.spool.n_told < 10
        bench.desk.is_away = False
        await asyncio.sleep(2 * SOON_S)
        epochs = [bench.desk.trials["resnet50", f"r{number}"].last_epoch for number in range(10)]
        assert (epochs, bench.spool.n_told, bench.spool.is_waiting) == ([*range(10)], 10, False)


async def test_what_comes_while_it_tells_is_told_after_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.running():
        bench.spool.put(measured(1))
        await asyncio.sleep(1)
        bench.desk.is_away, bench.desk.delay_s = False, 5.0
        await asyncio.sleep(10)
        bench.spool.put(measured(2))
        await asyncio.sleep(2 * SOON_S)
        assert (bench.last_epoch, bench.spool.is_waiting, n_files(tmp_path)) == (2, False, 0)
