"""The recorder: a bounded queue, writes in batches, and a disk that fails or hangs, which nobody waits for."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Connection, func, select

from controller.config import HistoryConfig
from controller.history.energy_history import history_file
from controller.history.energy_history import recorder as module
from controller.history.energy_history.file_store import WRITE_TIMEOUT_S, FileStore
from controller.history.energy_history.history_file import read_history
from controller.history.energy_history.recorder import (
    CLOSE_TIMEOUT_S,
    MAX_ENERGIES,
    PERIOD_S,
    HistoryRecorder,
    RecordedBus,
)
from controller.history.energy_history.schema import DECISIONS, RUN_QUARTERS, RUNS
from policies.vocabulary.units import HOUR_S
from publishers.shared.files.disk_thread import DiskThread
from tests.controller.history.energy_history.records import TOPICS, limit_message, run_message, run_record
from tests.fakes import MIDNIGHT_S, FakeBus, LoopClock

Result = TypeVar("Result")


class FakeDisk(DiskThread):
    """A disk that can fail or hang, or do after the deadline what was asked of it."""

    def __init__(self) -> None:
        super().__init__("fake")
        self.error: Exception | None = None
        self.hangs = False
        self.is_late = False
        self.call_s = 0.0
        self.n_calls = 0

    async def run(self, call: Callable[[], Result]) -> Result:
        """Call, unless it fails or hangs; nobody learns of what is late."""
        self.n_calls += 1
        await asyncio.sleep(self.call_s)
        if self.is_late:
            call()
            raise OSError(110, "the disk does not answer in 20 s")
        if self.hangs:
            await asyncio.sleep(WRITE_TIMEOUT_S)
            raise OSError(110, "the disk does not answer in 20 s")
        if self.error is not None:
            raise self.error
        return call()


def recorder_at(path: Path, disk: DiskThread | None = None, max_energies: int = MAX_ENERGIES) -> HistoryRecorder:
    """Return a recorder of an empty history."""
    store = FileStore(path, topics=TOPICS, config=HistoryConfig(), session_s=MIDNIGHT_S, disk=disk)
    return HistoryRecorder(store, clock=LoopClock(), max_energies=max_energies)


def energies_j(connection: Connection) -> list[float]:
    """Return the energy of each run [J]."""
    return list(connection.execute(select(RUNS.c.energy_j).order_by(RUNS.c.run)).scalars())


async def test_what_is_published_is_sent_and_written_soon(tmp_path: Path) -> None:
    bus = FakeBus()
    recorder = recorder_at(tmp_path / "history.sqlite")
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(recorder.run())
        recorded = RecordedBus(bus, recorder)
        topic, payload = run_message(run_record(energy_j=1e3))
        recorded.publish(topic, payload, qos=1, retain=True)
        await asyncio.sleep(PERIOD_S + 1)
        assert read_history(tmp_path / "history.sqlite", energies_j) == [1e3]
        task.cancel()
    assert bus.payloads(topic) == [payload]
    assert (recorded.connected, recorded.last_error, recorded.quotas) == (True, None, None)


async def test_the_end_of_a_run_is_written_within_a_second(tmp_path: Path) -> None:
    recorder = recorder_at(tmp_path / "history.sqlite")
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(recorder.run())
        recorder.record(*run_message(run_record(energy_j=1e3)))
        await asyncio.sleep(1)
        assert recorder.n_waiting == 1
        recorder.record(*run_message(run_record(energy_j=2e3, state="finished", final=True)))
        await asyncio.sleep(1)
        assert read_history(tmp_path / "history.sqlite", energies_j) == [2e3]
        task.cancel()


@pytest.mark.parametrize(("call_s", "n_calls"), [(0.0, 20), (0.1, 10), (2.0, 2)])
async def test_runs_that_end_together_are_written_together(call_s: float, n_calls: int, tmp_path: Path) -> None:
    disk = FakeDisk()
    disk.call_s = call_s
    disk.error = OSError(28, "No space left on device")  # which brings no more writes either
    recorder = recorder_at(tmp_path / "history.sqlite", disk)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(recorder.run())
        for number in range(1_000):
            recorder.record(*run_message(run_record(run=f"r{number}", state="finished", final=True)))
            await asyncio.sleep(0.01)
        assert n_calls / 2 <= disk.n_calls <= n_calls
        task.cancel()


async def test_of_a_topic_the_newest_of_each_quarter_hour_waits(tmp_path: Path) -> None:
    recorder = recorder_at(tmp_path / "history.sqlite")
    for number in range(4):
        for more in range(10):
            energy_j = 100.0 * number + more
            recorder.record(*run_message(run_record(time_s=MIDNIGHT_S + number * 900 + more, energy_j=energy_j)))
        await asyncio.sleep(900)
    assert recorder.n_waiting == 4
    await recorder.close()
    by_time = select(RUN_QUARTERS.c.energy_j).order_by(RUN_QUARTERS.c.starts_s)
    found = read_history(tmp_path / "history.sqlite", lambda connection: list(connection.execute(by_time).scalars()))
    assert found == [9.0, 100.0, 100.0, 100.0]


async def test_a_full_queue_loses_no_energy_and_the_oldest_decisions(tmp_path: Path) -> None:
    disk = FakeDisk()
    disk.hangs = True
    recorder = recorder_at(tmp_path / "history.sqlite", disk, max_energies=20)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(recorder.run())
        for number in range(40):
            at_s = MIDNIGHT_S + number * 900
            for run in range(5):
                recorder.record(*run_message(run_record(run=f"r{run}", time_s=at_s, energy_j=100.0 * (number + run))))
            for change in range(250):
                recorder.record(*limit_message(at_s + change))
            await asyncio.sleep(900)
        assert recorder.n_waiting <= 20 + module.MAX_DECISIONS
        assert "does not answer" in recorder.fault
        assert recorder.n_dropped == 40 * 250 - module.MAX_DECISIONS
        disk.hangs = False
        await asyncio.sleep(PERIOD_S + WRITE_TIMEOUT_S + 1)
        assert (recorder.fault, recorder.n_waiting) == ("", 0)
        task.cancel()
    assert read_history(tmp_path / "history.sqlite", energies_j) == [100.0 * (39 + run) for run in range(5)]
    oldest = read_history(
        tmp_path / "history.sqlite",
        lambda connection: connection.execute(select(func.min(DECISIONS.c.time_s))).scalar(),
    )
    assert oldest == MIDNIGHT_S + 20 * 900


async def test_a_disk_that_fails_is_told_once_and_what_waits_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "controller.history.energy_history.recorder")
    disk = FakeDisk()
    disk.error = OSError(28, "No space left on device")
    recorder = recorder_at(tmp_path / "history.sqlite", disk)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(recorder.run())
        recorder.record(*run_message(run_record(energy_j=1e3)))
        await asyncio.sleep(HOUR_S)
        assert recorder.fault == "the history is not written: No space left on device"
        disk.error = None
        await asyncio.sleep(PERIOD_S)
        task.cancel()
    assert recorder.fault == ""
    assert [record.getMessage() for record in caplog.records if record.name.endswith("recorder")] == [
        "the history is not written: No space left on device",
        "the history is written again",
    ]
    assert read_history(tmp_path / "history.sqlite", energies_j) == [1e3]


async def test_what_was_written_after_the_deadline_is_not_written_again(tmp_path: Path) -> None:
    disk = FakeDisk()
    recorder = recorder_at(tmp_path / "history.sqlite", disk)
    disk.is_late = True
    recorder.record(*run_message(run_record(energy_j=1e3)))
    recorder.record(*limit_message(MIDNIGHT_S))
    await recorder.close()
    assert "does not answer" in recorder.fault
    assert recorder.n_waiting == 0
    recorder.record(*run_message(run_record(energy_j=2e3)))
    assert recorder.n_waiting == 1
    disk.is_late = False
    await recorder.close()
    assert (recorder.fault, recorder.n_waiting) == ("", 0)
    assert read_history(tmp_path / "history.sqlite", energies_j) == [2e3]


class FailingServer:
    """A server that takes some messages, and fails."""

    name = "server"

    def __init__(self, n_taken: int) -> None:
        self.n_taken = n_taken
        self.taken: list[tuple[str, bytes]] = []

    async def write(
        self, messages: Sequence[tuple[str, bytes]], *, now_s: float, on_written: Callable[[int], None]
    ) -> None:
        """Take some, and fail if there are more."""
        del now_s
        some = messages[: self.n_taken]
        self.taken += some
        on_written(len(some))
        if len(messages) > self.n_taken:
            raise OSError(5, "the server has gone")

    async def close(self) -> None:
        """Close nothing."""


async def test_what_is_written_of_a_batch_that_fails_is_not_written_again() -> None:
    server = FailingServer(3)
    recorder = HistoryRecorder(server, clock=LoopClock())
    sent = [run_message(run_record(run=f"r{n}")) if n % 2 else limit_message(MIDNIGHT_S + n) for n in range(8)]
    for message in sent:
        recorder.record(*message)
    for n_waiting in (5, 2, 0):
        await recorder.flush()
        assert (recorder.n_waiting, bool(recorder.fault)) == (n_waiting, n_waiting > 0)
    assert server.taken == sent


async def test_the_end_waits_for_a_disk_that_hangs_for_a_bounded_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FakeDisk()
    disk.hangs = True
    recorder = recorder_at(tmp_path / "history.sqlite", disk)
    recorder.record(*run_message(run_record(energy_j=1e3)))
    begun_s = asyncio.get_running_loop().time()
    await recorder.close()
    assert asyncio.get_running_loop().time() - begun_s == pytest.approx(CLOSE_TIMEOUT_S)
    assert ": does not answer; the latest is not in the history" in caplog.text


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("any other")])
async def test_the_end_tells_what_fails_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    disk = FakeDisk()
    recorder = recorder_at(tmp_path / "history.sqlite", disk)
    await recorder.close()
    disk.error = error
    await recorder.close()
    said = error.strerror if isinstance(error, OSError) else str(error)
    assert caplog.messages[-1] == f"{tmp_path / 'history.sqlite'} is not closed: {said}"
    recorder.record(*run_message(run_record(energy_j=1e3)))
    await recorder.close()
    assert caplog.messages[-1].endswith(f"not closed: {said}; the latest is not in the history")


def test_a_lock_is_told_before_a_stop_ends() -> None:
    (busy,) = (pragma for pragma in history_file._PRAGMAS if pragma.startswith("busy_timeout"))
    assert float(busy.rpartition(" ")[2]) / 1e3 < CLOSE_TIMEOUT_S
