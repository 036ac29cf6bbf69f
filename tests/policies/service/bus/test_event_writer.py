"""Events are written in order, to the spool while the database is away; and runs over their bound are stopped."""

import asyncio
from pathlib import Path

import pytest

from policies.service.bus.event_queue import EventQueue
from policies.service.bus.event_spool import EventSpool, SpoolFile
from policies.service.bus.event_writer import TIMEOUT_S, EventWriter
from policies.service.bus.events import EnergyReported, Heartbeat, MetricReported, RunEvent
from policies.service.errors import TrialConflictError
from policies.service.metrics import Metrics
from publishers.messages.codec import decode
from publishers.messages.reports import Command
from publishers.messages.topics import RunKey
from tests.fakes import USER, FakeBus
from tests.policies.service.memory_store import (
    CHOSEN,
    NOW_S,
    TOPICS,
    InlineThreads,
    MemoryTrials,
    final_energy,
    run_energy,
)

JOB, RUN = "resnet50", "r1"
HEARTBEAT = Heartbeat(user=USER, job=JOB, run=RUN, at_s=NOW_S)
REACHED = MetricReported(user=USER, job=JOB, run=RUN, at_s=NOW_S, epoch=3, value=0.9, reached=True)
PROGRESS = EnergyReported(user=USER, job=JOB, run=RUN, at_s=NOW_S, energy=run_energy())
FINAL = EnergyReported(user=USER, job=JOB, run=RUN, at_s=NOW_S, energy=final_energy())


class Bench:
    """The way of events in one process."""

    def __init__(self, directory: Path) -> None:
        self.memory = MemoryTrials()
        self.bus = FakeBus()
        self.queue: EventQueue[RunEvent] = EventQueue(100)
        self.spool = EventSpool(SpoolFile(directory / "spool"), self.memory.trials, threads=InlineThreads())
        self.answered: set[RunKey] = set()
        self.writer = EventWriter(
            self.queue,
            trials=self.memory.trials,
            bus=self.bus,
            topics=TOPICS,
            spool=self.spool,
            metrics=Metrics(),
            unknown_run_s=60.0,
            was_answered=lambda run: run in self.answered,
        )

    @property
    def waiting(self) -> list[RunEvent]:
        return list(self.spool._in_memory.values())

    def commands(self) -> list[Command]:
        return [
            decode(payload, Command) for payload in self.bus.payloads(TOPICS.run(RunKey(USER, JOB, RUN), "command"))
        ]


async def test_events_are_stored_one_write_transaction_each(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.memory.open()
    n_before = bench.memory.database.n_begun
    for event in (REACHED, FINAL):
        await bench.writer.write(event)
    assert bench.memory.database.n_begun - n_before == 2
    assert (await bench.memory.state(), bench.waiting) == ("reached", [])


async def test_a_run_over_its_bound_is_ordered_to_stop_at_each_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench = Bench(tmp_path)
    await bench.memory.open_bound()
    for _ in range(3):
        await bench.writer.write(PROGRESS)
    commands = bench.commands()
    assert len(commands) == 3
    assert {(command.command, "above the bound" in command.reason) for command in commands} == {("stop", True)}
    assert {(sent.qos, sent.retain) for sent in bench.bus.sent} == {(1, False)}
    assert len([record for record in caplog.records if "ordered to stop" in record.getMessage()]) == 1


async def test_later_events_wait_behind_what_the_database_could_not_take(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.memory.open()
    bench.memory.database.is_away = True
    await bench.writer.write(REACHED)
    bench.memory.database.is_away = False
    await bench.writer.write(FINAL)
    assert bench.waiting == [REACHED, FINAL]
    assert await bench.memory.state() == "open"


async def test_progress_and_heartbeats_are_not_kept_for_later(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.memory.database.is_away = True
    for event in (HEARTBEAT, PROGRESS):
        await bench.writer.write(event)
    assert bench.waiting == []


async def test_a_database_that_hangs_counts_as_away(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.memory.database.delay_s = 3_600.0
    await bench.writer.write(FINAL)
    assert (asyncio.get_running_loop().time(), bench.waiting) == (TIMEOUT_S, [FINAL])


async def test_a_run_without_a_trial_is_looked_up_once_in_a_while(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for _ in range(5):
        await bench.writer.write(HEARTBEAT)
    assert bench.memory.database.n_begun == 1
    await bench.memory.open()
    await bench.writer.write(HEARTBEAT)
    assert await bench.memory.state() == "open"
    await bench.writer.write(REACHED)  # what lasts is stored all the same
    assert (await bench.memory.trial()).result.reached_epochs == 4
    await asyncio.sleep(61)
    await bench.writer.write(PROGRESS)
    assert (await bench.memory.trial()).result.epochs == 4


async def test_a_run_whose_status_came_before_its_request_is_known_from_its_answer_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.writer.write(HEARTBEAT)
    await bench.memory.open()
    bench.answered.add(RunKey(USER, JOB, RUN))
    await bench.writer.write(PROGRESS)
    assert (await bench.memory.trial()).result.epochs == 4


async def test_another_end_than_the_reported_one_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.memory.database.error = TrialConflictError("it has ended as failed")
    await bench.writer.write(FINAL)
    assert (bench.waiting, caplog.records) == ([], [])


async def test_a_bug_with_one_run_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    bench.memory.database.error = ZeroDivisionError("a bug")
    await bench.writer.write(FINAL)
    bench.memory.database.error = None
    await bench.memory.open(choice=CHOSEN)
    await bench.writer.write(FINAL)
    assert (await bench.memory.state(), len(caplog.records)) == ("stopped", 1)


async def test_what_is_under_way_or_queued_at_the_end_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.memory.open()
    bench.memory.database.delay_s = 1.0
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(bench.writer.run())
        for event in (REACHED, HEARTBEAT, FINAL):
            bench.queue.put(event.key, event, job=event.job_key, is_final=event.is_final)
        await asyncio.sleep(0.5)
        task.cancel()
    assert bench.waiting == [REACHED, FINAL]
    bench.memory.database.delay_s = 0.0
    for kept in bench.waiting:
        await kept.apply(bench.memory.trials)
    assert await bench.memory.state() == "reached"
