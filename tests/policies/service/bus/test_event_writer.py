"""Results on their way to the desk: in order, to the spool where the database is away, and stop where it says so."""

import asyncio
from pathlib import Path

import pytest

from policies.service.bus.event_queue import EventQueue
from policies.service.bus.event_writer import TIMEOUT_S, EventWriter
from policies.service.bus.events import EnergyReported, Heartbeat, MetricReported, RunEvent, deliver
from policies.service.bus.pending_events import PendingEvents, SpoolFiles
from policies.service.errors import TrialConflictError
from policies.service.metrics import Metrics
from publishers.messages.codec import decode
from publishers.messages.reports import Command
from tests.fakes import FakeBus
from tests.policies.service.memory_desk import NOW_S, TOPICS, MemoryDesk, final_energy, inline, run_energy

JOB, RUN = "resnet50", "r1"
ALIVE = Heartbeat(job=JOB, run=RUN, at_s=NOW_S)
REACHED = MetricReported(job=JOB, run=RUN, at_s=NOW_S, epoch=3, value=0.9, reached=True)
PROGRESS = EnergyReported(job=JOB, run=RUN, at_s=NOW_S, energy=run_energy())
FINAL = EnergyReported(job=JOB, run=RUN, at_s=NOW_S, energy=final_energy())


class Bench:
    """The way of results in one process."""

    def __init__(self, directory: Path) -> None:
        self.desk = MemoryDesk()
        self.bus = FakeBus()
        self.box: EventQueue[RunEvent] = EventQueue(100)
        self.spool = PendingEvents(SpoolFiles(directory), self.desk, in_thread=inline)
        self.answered: set[tuple[str, str]] = set()
        self.results = EventWriter(
            self.box,
            desk=self.desk,
            bus=self.bus,
            topics=TOPICS,
            spool=self.spool,
            metrics=Metrics(),
            stranger_s=60.0,
            was_answered=lambda job, run: (job, run) in self.answered,
        )

    @property
    def waiting(self) -> list[RunEvent]:
        return list(self.spool._in_memory)

    def commands(self) -> list[Command]:
        return [decode(payload, Command) for payload in self.bus.payloads(TOPICS.run(JOB, RUN, "command"))]


async def test_results_reach_the_desk(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.desk.open()
    for news in (REACHED, FINAL):
        await bench.results.take(news)
    assert (bench.desk.state(), bench.waiting) == ("reached", [])


async def test_a_run_over_its_bound_is_told_to_stop_as_often_as_it_is_heard_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench = Bench(tmp_path)
    bench.desk.open()
    bench.desk.stop = "9 kJ spent: the bound is 5 kJ"
    for _ in range(3):
        await bench.results.take(PROGRESS)
    assert bench.commands() == [Command(command="stop", reason="9 kJ spent: the bound is 5 kJ")] * 3
    assert {(sent.qos, sent.retain) for sent in bench.bus.sent} == {(1, False)}
    assert len([record for record in caplog.records if "told to stop" in record.getMessage()]) == 1


async def test_what_the_database_cannot_take_waits_and_what_comes_later_waits_behind_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.desk.open()
    bench.desk.is_away = True
    await bench.results.take(REACHED)
    bench.desk.is_away = False
    await bench.results.take(FINAL)
    assert bench.waiting == [REACHED, FINAL]
    assert bench.desk.calls == ["note_metric"]


async def test_progress_and_signs_of_life_are_not_kept_for_later(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.desk.is_away = True
    for news in (ALIVE, PROGRESS):
        await bench.results.take(news)
    assert bench.waiting == []


async def test_a_database_that_hangs_is_one_that_is_away(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.desk.delay_s = 3_600.0
    await bench.results.take(FINAL)
    assert (asyncio.get_running_loop().time(), bench.waiting) == (TIMEOUT_S, [FINAL])


async def test_a_run_that_said_that_it_runs_before_it_asked_is_listened_to_from_its_answer_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.results.take(ALIVE)
    bench.desk.open()
    bench.answered.add((JOB, RUN))
    await bench.results.take(PROGRESS)
    assert bench.desk.calls == ["hear", "tell"]


async def test_runs_that_never_asked_are_not_asked_about_each_time_but_their_ends_are(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for _ in range(5):
        await bench.results.take(ALIVE)
    assert bench.desk.calls == ["hear"]
    bench.desk.open()
    await bench.results.take(REACHED)
    assert bench.desk.trials[JOB, RUN].result.reached_epochs == 4
    await asyncio.sleep(61)
    await bench.results.take(ALIVE)
    assert bench.desk.calls == ["hear", "note_metric", "hear"]


async def test_another_end_than_the_one_that_was_told_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.desk.error = TrialConflictError("it has ended as failed")
    await bench.results.take(FINAL)
    assert (bench.waiting, caplog.records) == ([], [])


async def test_a_bug_with_one_run_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    bench.desk.error = ZeroDivisionError("a bug")
    await bench.results.take(FINAL)
    bench.desk.error = None
    bench.desk.open()
    await bench.results.take(FINAL)
    assert (bench.desk.state(), len(caplog.records)) == ("stopped", 1)


async def test_what_is_under_way_at_the_end_and_what_waits_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.desk.open()
    bench.desk.delay_s = 1.0
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(bench.results.run())
        for news in (REACHED, ALIVE, FINAL):
            bench.box.put(news.key, news, lasting=news.is_lasting)
        await asyncio.sleep(0.5)
        task.cancel()
    assert bench.waiting == [REACHED, FINAL]
    bench.desk.delay_s = 0.0
    for kept in bench.waiting:
        await deliver(bench.desk, kept)
    assert bench.desk.state() == "reached"
