"""The spool: what could not be stored is stored when the database is back, in order, whatever the disk does."""

import asyncio
import errno
import logging
import os
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from policies.service.bus import event_spool as event_spool_module
from policies.service.bus.event_spool import (
    APPLIED_AT_ONCE,
    DISK_PAUSE_S,
    MAX_UNREADABLE,
    POLL_PERIOD_S,
    EventSpool,
    Row,
    SpoolFile,
)
from policies.service.bus.events import BatchSizesTimed, EnergyReported, MetricReported, RunEnded, RunEvent
from policies.service.errors import RequestError
from policies.service.records import IterationTime, Timing
from tests.fakes import USER
from tests.policies.service.memory_store import NOW_S, InlineThreads, MemoryTrials, final_energy

SOON_S = 20.0
"""Longer than the longest pause."""


class Disk(SpoolFile):
    """A file on a disk that can be full, or read-only."""

    is_full = False
    is_read_only = False
    n_read = 0

    def oldest(self, limit: int, *, after: int = -1) -> list[Row]:
        rows = super().oldest(limit, after=after)
        self.n_read += len(rows)
        return rows

    def add(self, events: Sequence[RunEvent]) -> bool:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().add(events)

    def remove(self, rows: Sequence[Row]) -> bool:
        if self.is_read_only:
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return super().remove(rows)


class Bench:
    """A spool whose database is away at first."""

    def __init__(self, directory: Path) -> None:
        self.memory = MemoryTrials()
        self.file = Disk(directory / "spool" / "events.sqlite")
        self.spool = EventSpool(self.file, self.memory.trials, threads=InlineThreads())

    @asynccontextmanager
    async def running(self, *runs: str, is_away: bool = True) -> AsyncIterator[None]:
        for run in runs or ("r1",):
            await self.memory.open(run=run)
        self.memory.database.is_away = is_away
        async with asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(self.spool.save()), tasks.create_task(self.spool.replay())]
            yield
            for worker in workers:
                worker.cancel()
        await self.spool.close()

    @property
    def waiting(self) -> list[RunEvent]:
        return saved(self.file)

    async def last_epoch(self, run: str = "r1") -> int | None:
        return (await self.memory.trial(run=run)).last_epoch


def saved(file: SpoolFile) -> list[RunEvent]:
    return [msgspec.json.decode(event, type=RunEvent) for _, event in file.oldest(100)]


@contextmanager
def nothing_can_be_written() -> Iterator[None]:
    """Let every write to a file fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def measured(epoch: int, *, run: str = "r1", reached: bool = True) -> MetricReported:
    return MetricReported(
        user=USER, job="resnet50", run=run, at_s=NOW_S + epoch, epoch=epoch, value=0.5, reached=reached
    )


async def test_what_waits_is_on_disk_and_stored_when_the_database_is_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.running("r0", "r2", "r1"):
        for run in ("r0", "r2", "r1"):
            bench.spool.put(measured(2, run=run))
        n_before = bench.memory.database.n_begun
        await asyncio.sleep(60)
        assert (bench.spool.is_waiting, len(bench.waiting), await bench.last_epoch()) == (True, 3, None)
        assert bench.memory.database.n_begun - n_before < 20  # ever less often while it is away
        bench.memory.database.is_away = False
        await asyncio.sleep(SOON_S)
        assert (bench.spool.is_waiting, bench.waiting, await bench.last_epoch()) == (False, [], 2)
    assert bench.spool.n_stored == 3


async def test_what_a_run_has_timed_waits_like_any_result(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    timing = Timing(times=(IterationTime(batch_size=32, iteration_time_s=0.1),), too_large=64, batch_size=32)
    async with bench.running():
        bench.spool.put(BatchSizesTimed(user=USER, job="resnet50", run="r1", at_s=NOW_S, timing=timing))
        await asyncio.sleep(60)
        assert len(bench.waiting) == 1
        bench.memory.database.is_away = False
        await asyncio.sleep(SOON_S)
    trial = await bench.memory.trial()
    assert (trial.timing, trial.batch_size) == (timing, 32)


async def test_what_a_process_left_is_stored_by_the_next_one(tmp_path: Path) -> None:
    before = Bench(tmp_path)
    async with before.running():
        before.spool.put(measured(5))
        await asyncio.sleep(1)
    after = Bench(tmp_path)
    async with after.running(is_away=False):
        await asyncio.sleep(SOON_S)
        assert await after.last_epoch() == 5


async def test_what_a_killed_process_leaves_is_stored_by_one_that_lives(tmp_path: Path) -> None:
    killed, living = Bench(tmp_path), Bench(tmp_path)
    async with living.running(is_away=False):
        await asyncio.sleep(1)
        killed.file.add([measured(5)])
        await asyncio.sleep(POLL_PERIOD_S + SOON_S)
        assert (await living.last_epoch(), living.waiting) == (5, [])


async def test_processes_that_share_a_file_take_turns(tmp_path: Path) -> None:
    one, other = Bench(tmp_path), Bench(tmp_path)
    async with one.running("r1", "r2"):
        one.spool.put(measured(5))
        await asyncio.sleep(1)
        assert other.file.acquire()  # it is applying them, and hangs
        one.memory.database.is_away = False
        await asyncio.sleep(SOON_S)
        assert (await one.last_epoch(), one.spool.is_waiting) == (None, True)
        other.file.release()
        await asyncio.sleep(SOON_S)
        assert (await one.last_epoch(), one.spool.is_waiting) == (5, False)


async def test_what_arrives_at_the_last_moment_is_on_disk_when_it_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.running():
        pass
    bench.spool.put(measured(1))
    await bench.spool.close()
    assert bench.waiting == [measured(1)]


async def test_without_a_disk_it_waits_in_memory_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.file.is_full = True
    async with bench.running():
        bench.spool.put(measured(1))
        await asyncio.sleep(60)
        assert (bench.waiting, len(bench.spool._in_memory)) == ([], 1)
        assert bench.spool.trouble == "results wait in memory: [Errno 28] No space left on device"
        assert len([record for record in caplog.records if "No space left" in record.getMessage()]) == 1
        bench.memory.database.is_away = False
        await asyncio.sleep(SOON_S)
        assert (await bench.last_epoch(), bench.spool.is_waiting) == (1, False)
        assert not bench.spool.trouble


async def test_when_the_disk_has_room_again_it_takes_what_waits_in_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.file.is_full = True
    async with bench.running():
        bench.spool.put(measured(1))
        await asyncio.sleep(30)
        bench.file.is_full = False
        await asyncio.sleep(2 * DISK_PAUSE_S)
        assert (bench.spool.trouble, bench.waiting) == (None, [measured(1)])


async def test_memory_is_bounded_and_what_there_is_no_room_for_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_spool_module, "MAX_IN_MEMORY", 10)
    bench = Bench(tmp_path)
    for number in range(25):
        bench.spool.put(measured(1, run=f"r{number}"))
    assert (len(bench.spool._in_memory), bench.spool.n_lost) == (10, 15)
    assert len(caplog.records) == 1
    async with bench.running():
        await asyncio.sleep(1)
        bench.memory.database.is_away = False
        await asyncio.sleep(SOON_S)
    for number in range(12):
        bench.spool.put(measured(1, run=f"r{number}"))
    assert bench.spool.n_lost == 17
    lost = [record for record in caplog.records if record.getMessage().startswith("no room for more results: the disk")]
    assert len(lost) == 2  # once more, after there was room


async def test_a_user_who_floods_the_memory_loses_his_own_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_spool_module, "MAX_IN_MEMORY", 10)
    bench = Bench(tmp_path)
    for number in range(25):
        bench.spool.put(replace(measured(1, run=f"r{number}"), user="loud"))
    bench.spool.put(measured(2))
    waiting = [event.run_key for event in bench.spool._in_memory.values()]
    assert waiting == [*(("loud", "resnet50", f"r{number}") for number in range(9)), (USER, "resnet50", "r1")]
    assert bench.spool.n_lost == 16


@pytest.mark.parametrize(
    "poison",
    [
        measured(1, run="nobody"),
        RunEnded(user=USER, job="resnet50", run="nobody", at_s=NOW_S, lost=False, reached=True),
    ],
)
async def test_an_event_that_cannot_be_applied_does_not_block_the_rest(tmp_path: Path, poison: RunEvent) -> None:
    bench = Bench(tmp_path)
    async with bench.running():
        bench.spool.put(poison)
        bench.spool.put(measured(7))
        bench.memory.database.is_away = False
        await asyncio.sleep(SOON_S)
        assert (await bench.last_epoch(), bench.spool.n_refused, bench.spool.is_waiting) == (7, 1, False)


@pytest.mark.parametrize("error", [RequestError(["nonsense"]), ZeroDivisionError("a bug")])
async def test_an_event_that_fails_is_logged_and_dropped(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    async with bench.running():
        bench.memory.database.error = error
        bench.spool.put(measured(7))
        await asyncio.sleep(SOON_S)
        assert (bench.spool.n_refused, bench.spool.is_waiting) == (1, False)
    assert "resnet50/r1: MetricReported is not stored" in caplog.text


async def test_a_database_that_goes_away_again_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    runs = [f"r{number}" for number in range(10)]
    async with bench.running(*runs):
        for number, run in enumerate(runs):
            bench.spool.put(measured(number, run=run))
        await asyncio.sleep(1)
        bench.memory.database.is_away, bench.memory.database.delay_s = False, 1.0
        await asyncio.sleep(10)
        bench.memory.database.is_away = True
        await asyncio.sleep(60)
        assert 0 < bench.spool.n_stored < 10
        bench.memory.database.is_away = False
        await asyncio.sleep(2 * SOON_S)
        assert [await bench.last_epoch(run) for run in runs] == [*range(10)]
        assert (bench.spool.n_stored, bench.spool.is_waiting) == (10, False)


async def test_what_comes_during_a_replay_is_stored_after_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.running():
        bench.spool.put(measured(1, reached=False))
        await asyncio.sleep(1)
        bench.memory.database.is_away, bench.memory.database.delay_s = False, 5.0
        await asyncio.sleep(10)
        bench.spool.put(measured(2, reached=False))
        await asyncio.sleep(2 * SOON_S)
        assert (await bench.last_epoch(), bench.spool.is_waiting, bench.waiting) == (2, False, [])


async def test_a_disk_that_has_become_read_only_does_not_stop_the_replay(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.running("r1", "r2"):
        bench.spool.put(measured(1))
        await asyncio.sleep(1)
        bench.file.is_full = bench.file.is_read_only = True
        bench.spool.put(measured(2, run="r2"))
        bench.memory.database.is_away = False
        await asyncio.sleep(SOON_S)
        assert (await bench.last_epoch("r1"), await bench.last_epoch("r2")) == (1, 2)
        assert (bench.spool.n_stored, bench.spool.is_waiting) == (2, False)


def test_events_are_read_as_they_were_saved_and_in_order(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "events.sqlite")
    events: list[RunEvent] = [
        measured(1, run="r1"),
        measured(2, run="r2"),
        EnergyReported(user=USER, job="resnet50", run="r1", at_s=NOW_S, energy=final_energy(cost=0.25, currency="EUR")),
        RunEnded(user=USER, job="resnet50", run="r1", at_s=NOW_S, lost=True, reached=False),
    ]
    file.add(events[:2])
    file.add(events[2:])
    assert saved(file) == events
    file.remove(file.oldest(3))
    assert saved(file) == events[3:]


def test_of_several_events_with_one_key_the_newest_stands_in_the_place_of_the_first(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "events.sqlite")
    below = [measured(epoch, reached=False) for epoch in range(3)]
    file.add([below[0], measured(7, run="r7"), *below[1:]])
    assert saved(file) == [below[2], measured(7, run="r7")]


def test_of_several_epochs_that_reached_the_target_the_earliest_is_kept(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "events.sqlite")
    file.add([measured(epoch) for epoch in (7, 5, 6, 8)])
    assert saved(file) == [measured(5)]


def test_an_event_that_was_replaced_while_it_was_applied_is_not_removed(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "events.sqlite")
    file.add([measured(1, reached=False)])
    rows = file.oldest(10)
    file.add([measured(2, reached=False)])
    file.remove(rows)
    assert saved(file) == [measured(2, reached=False)]


def test_a_full_file_takes_nothing_more_and_room_is_used_again(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "events.sqlite", max_bytes=256 << 10)
    file.add([measured(1, run="first")])
    with pytest.raises(sqlite3.OperationalError, match="full"):
        file.add([measured(1, run=f"r{number}") for number in range(10_000)])
    assert saved(file) == [measured(1, run="first")]  # all of a batch, or none
    assert (tmp_path / "events.sqlite").stat().st_size <= 256 << 10
    file.add([measured(1, run="second")])
    assert len(saved(file)) == 2


def test_a_file_on_a_full_disk_can_still_be_read(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "events.sqlite")
    file.add([measured(1)])
    rows = file.oldest(10)
    with nothing_can_be_written():
        with pytest.raises(sqlite3.Error):
            file.remove(rows)
        assert file.oldest(10) == rows
        with closing(SpoolFile(tmp_path / "events.sqlite")) as of_the_next_process:
            assert of_the_next_process.oldest(10) == rows
    file.close()


def test_a_file_that_another_process_writes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    file = SpoolFile(path)
    file.add([measured(1)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert len(file.oldest(10)) == 1
    file.close()


def test_nothing_is_made_before_the_first_event(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "spool" / "events.sqlite")
    assert file.oldest(1) == []
    file.close()
    assert not (tmp_path / "spool").exists()
    file.add([measured(1)])
    assert (tmp_path / "spool" / "events.sqlite").stat().st_mode & 0o077 == 0


async def test_a_file_that_is_broken_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    path = tmp_path / "spool" / "events.sqlite"
    path.parent.mkdir()
    path.write_bytes(b"no database" * 1_000)
    async with bench.running():
        bench.spool.put(measured(1))
        await asyncio.sleep(2 * DISK_PAUSE_S)
        assert bench.waiting == [measured(1)]
        bench.file.close()
        path.write_bytes(b"neither" * 1_000)
        bench.spool.put(measured(2))
        await asyncio.sleep(2 * DISK_PAUSE_S)
        assert bench.waiting == [measured(2)]
    assert path.with_suffix(".unreadable").read_bytes().startswith(b"no database")
    assert path.with_suffix(".unreadable-2").read_bytes().startswith(b"neither")
    assert "kept as events.unreadable" in caplog.text


def test_files_that_are_broken_are_bounded_and_the_first_stay(tmp_path: Path) -> None:
    for number in range(2 * MAX_UNREADABLE):
        path = tmp_path / "events.sqlite"
        path.write_bytes(f"{number}: no database".encode() * 1_000)
        with pytest.raises(sqlite3.DatabaseError):
            SpoolFile(path).add([measured(1)])
    kept = sorted(path.read_bytes()[:2].decode() for path in tmp_path.glob("*.unreadable*"))
    assert kept == ["0:", "15", "1:", "2:", "3:", "4:", "5:", "6:"]


async def test_what_cannot_be_removed_is_read_and_applied_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    runs = [f"r{number}" for number in range(3 * APPLIED_AT_ONCE)]
    async with bench.running(*runs):
        for run in runs:
            bench.spool.put(measured(1, run=run))
        await asyncio.sleep(1)
        bench.file.is_read_only, bench.file.n_read = True, 0
        bench.memory.database.is_away = False
        await asyncio.sleep(2 * POLL_PERIOD_S)
        assert (bench.spool.n_stored, bench.spool.is_waiting, bench.file.n_read) == (len(runs), False, len(runs))
        bench.file.is_read_only = False
        await asyncio.sleep(POLL_PERIOD_S + SOON_S)
        assert (bench.waiting, bench.spool.n_stored) == ([], len(runs))


@pytest.mark.parametrize("event", [b"\xff\xfe", b"null", b'{"what": "else"}', b'{"what": "alive"}', b"[" * 2_000])
async def test_an_event_that_nobody_wrote_is_dropped(
    tmp_path: Path, event: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench(tmp_path)
    bench.file.add([measured(3)])
    with closing(sqlite3.connect(tmp_path / "spool" / "events.sqlite")) as connection, connection:
        connection.execute("INSERT INTO pending (id, key, event) VALUES (0, 'strange', ?)", (event,))
    async with bench.running(is_away=False):
        await asyncio.sleep(SOON_S)
        assert (await bench.last_epoch(), bench.spool.n_refused, bench.waiting) == (3, 1, [])
    assert "dropping an unreadable event" in caplog.text
