"""The history on real databases, and on a disk that hangs under a real thread."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, func, select

from controller.config import HistoryConfig
from controller.history.energy_history.file_store import FileStore
from controller.history.energy_history.history_file import HistoryFile, read_history
from controller.history.energy_history.recorder import CLOSE_TIMEOUT_S, HistoryRecorder
from controller.history.energy_history.schema import GPU_QUARTERS, METADATA, MIGRATIONS, RUN_QUARTERS, RUNS
from controller.history.energy_history.writing import tidy, write_messages
from controller.runtime.clock import SystemClock
from policies.database.backends import make_database
from policies.vocabulary.units import DAY_S, HOUR_S
from publishers.shared.files.disk_thread import DiskThread
from tests.controller.history.energy_history.records import (
    TOPICS,
    gpu_message,
    limit_message,
    measured,
    run_message,
    run_record,
)
from tests.fakes import MIDNIGHT_S
from tests.live.policy.postgres import Postgres, postgres_server

__all__ = ["postgres_server"]
pytestmark = pytest.mark.live
N_HOURS = 30
Found = TypeVar("Found")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.sqlite"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


def two_days(connection: Connection) -> None:
    """Write a run, its GPU and its decisions, twice."""
    for hour in range(N_HOURS):
        at_s = MIDNIGHT_S + hour * HOUR_S
        record = run_record(time_s=at_s, duration_s=hour * HOUR_S, energy_j=1e6 * hour, carbon_g=80.0 * hour)
        run = run_message(measured(record, saved_ratio=0.1) if hour > 3 else record)
        for _ in range(2):
            messages = [run, gpu_message(at_s, 2e6 * hour), limit_message(at_s)]
            write_messages(connection, messages, topics=TOPICS, session_s=MIDNIGHT_S)


def differences(connection: Connection) -> list[object]:
    """Return in what the tables differ from the schema."""
    options = {"compare_type": True, "version_table": MIGRATIONS.version_table}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))


async def test_both_databases_give_the_same_sums_before_and_after_a_merge(url: str) -> None:
    database = make_database(url, client="test", password="", timeout_s=60.0)

    def sums(connection: Connection) -> list[float]:
        columns = (RUN_QUARTERS.c.energy_j, RUN_QUARTERS.c.baseline_carbon_g, GPU_QUARTERS.c.energy_j)
        return [connection.execute(select(func.sum(column))).scalars().one() for column in columns]

    def rows(connection: Connection) -> tuple[int | None, float]:
        n_quarters = connection.execute(select(func.count()).select_from(RUN_QUARTERS)).scalar()
        return n_quarters, connection.execute(select(RUNS.c.energy_j)).scalars().one()

    try:
        for _ in range(2):
            await database.write(MIGRATIONS.migrate)
        assert await database.read(differences) == []
        await database.write(two_days)
        expected = pytest.approx([1e6 * (N_HOURS - 1), 80.0 * (N_HOURS - 1) / 0.9, 2e6 * (N_HOURS - 1)])
        assert await database.read(sums) == expected
        assert await database.read(rows) == (N_HOURS - 1, 1e6 * (N_HOURS - 1))
        await database.write(lambda it: tidy(it, now_s=MIDNIGHT_S + 4 * DAY_S, config=HistoryConfig(quarter_days=1)))
        assert await database.read(sums) == expected
        n_days, _ = await database.read(rows)
        assert n_days in {2, 3}, "by the zone of this machine"
    finally:
        await database.close()


class HangingDisk(DiskThread):
    """A thread whose calls wait for an event before they begin."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__("hanging disk", timeout_s=0.2)
        self._event = event

    async def run(self, call: Callable[[], Found]) -> Found:
        """Run a call once the event is set."""

        def waiting() -> Found:
            self._event.wait()
            return call()

        return await super().run(waiting)


async def test_a_disk_that_hangs_delays_nothing_and_nothing_is_lost(tmp_path: Path) -> None:
    path, event = tmp_path / "history.sqlite", threading.Event()
    disk = HangingDisk(event)
    store = FileStore(path, topics=TOPICS, config=HistoryConfig(), session_s=MIDNIGHT_S, disk=disk)
    recorder = HistoryRecorder(store, clock=SystemClock())
    recorder.record(*run_message(run_record(energy_j=1e3)))
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    for _ in range(3):
        await recorder.close()
    assert loop.time() - begun_s < 3 * CLOSE_TIMEOUT_S
    assert "does not answer" in recorder.fault
    recorder.record(*run_message(run_record(energy_j=2e3)))
    event.set()
    async with asyncio.timeout(30.0):
        while recorder.n_waiting:
            await recorder.close()
            await asyncio.sleep(0)
    assert recorder.fault == ""
    assert read_history(path, lambda connection: connection.execute(select(RUNS.c.energy_j)).scalars().one()) == 2e3


def test_a_history_is_read_while_its_controller_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = HistoryFile(path, topics=TOPICS, config=HistoryConfig(), session_s=MIDNIGHT_S)
    for energy_j in (1e3, 2e3):
        history.write([run_message(run_record(energy_j=energy_j))], now_s=MIDNIGHT_S)
        assert read_history(path, lambda it: it.execute(select(RUNS.c.energy_j)).scalars().one()) == energy_j
    history.close()
