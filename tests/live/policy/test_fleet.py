"""Three service processes on one PostgreSQL, 120 runs, one process killed, the database killed and started again."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from policies.service.config import HttpConfig, LearningConfig, PolicyConfig, StoreConfig
from policies.service.records import Trial
from policies.service.store.store import open_store
from publishers.mqtt.bus_config import BusConfig
from publishers.mqtt.client import MqttClient
from tests.live.conftest import Mosquitto, eventually, wait_until
from tests.live.policy.postgres import Postgres, postgres_server
from tests.live.policy.runs import Runs
from tests.policies.service.repositories import Repositories, job_key

__all__ = ["postgres_server"]
pytestmark = pytest.mark.live

N_SERVICES = 3
N_JOBS = 12
N_RUNS = 120
N_EPOCHS = 2
STARTS_S = 6.0
"""Runs start evenly over this time."""
TRAINS_S = 0.5
SERVICE_DIES_S = 2.0
DATABASE_DIES_S = 3.0


class Services:
    """Service processes, each with a state directory of its own."""

    def __init__(self, config: PolicyConfig, directory: Path) -> None:
        self._config = msgspec.json.encode(config).decode()
        self._directory = directory
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        """Start one, as systemd would."""
        command = [
            sys.executable,
            "-m",
            "tests.live.policy.service_process",
            self._config,
            str(self._directory / f"{number}"),
        ]
        with (self._directory / f"service-{number}.log").open("ab") as log:
            self._children[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        """End one by SIGKILL."""
        self._children[number].kill()
        self._children[number].wait(10)

    def stop(self) -> list[int]:
        """End all by SIGTERM, and return how each ended."""
        for child in self._children.values():
            child.send_signal(signal.SIGTERM)
        return [child.wait(20) for child in self._children.values()]

    def log(self) -> str:
        """Return what they have logged."""
        return "\n".join(path.read_text() for path in sorted(self._directory.glob("service-*.log")))

    def has_connected(self, number: int, n_times: int = 1) -> bool:
        """Return whether one has connected to the broker so many times."""
        log = (self._directory / f"service-{number}.log").read_text()
        return log.count("connected to the broker") >= n_times

    def end(self) -> None:
        """End those that still run."""
        for child in self._children.values():
            child.kill()
            child.wait(10)


@pytest.fixture
def services(broker: Mosquitto, postgres_server: Postgres, tmp_path: Path) -> Iterator[Services]:
    """Start them all on a new database."""
    config = PolicyConfig(
        bus=BusConfig(url=broker.url),
        store=StoreConfig(url=postgres_server.new_database(), timeout_s=3.0, spool_dir=str(tmp_path / "spool")),
        learning=LearningConfig(lease_s=60.0),
        http=HttpConfig(port=-1),
    )
    started = Services(config, tmp_path)
    try:
        for number in range(N_SERVICES):
            started.start(number)
        wait_until(lambda: all(started.has_connected(number) for number in range(N_SERVICES)), 60.0)
        yield started
    finally:
        started.end()


async def _live(runs: Runs, number: int, latencies_s: list[float]) -> None:
    """Be one run: ask, train, end."""
    loop = asyncio.get_running_loop()
    job, run = f"job-{number % N_JOBS}", f"run-{number}"
    await asyncio.sleep(STARTS_S * number / N_RUNS)
    asked_s = loop.time()
    await runs.ask(job, run)
    latencies_s.append(loop.time() - asked_s)
    await asyncio.sleep(TRAINS_S)
    runs.say_metric(job, run, N_EPOCHS - 1, reached=True)
    runs.say_status(job, run, "finished", reached=True)
    runs.say_energy(job, run, epochs=N_EPOCHS, energy_j=10_000.0 + number, final=True)


async def _break(services: Services, server: Postgres) -> None:
    """Kill a service, then the database, in the middle of it all."""
    await asyncio.sleep(SERVICE_DIES_S)
    services.kill(0)
    await asyncio.sleep(DATABASE_DIES_S - SERVICE_DIES_S)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    services.start(0)


async def _trials(url: str) -> list[Trial]:
    async with open_store(url, timeout_s=5.0) as store:
        db = Repositories(store, LearningConfig())
        return [trial for job in await db.jobs.jobs() for trial in await db.jobs.trials(job_key(job.name), limit=1_000)]


async def _until_stored(url: str) -> Sequence[Trial]:
    """Wait until every run is an observation with its energy."""
    trials: list[Trial] = []
    async with asyncio.timeout(120.0):  # as long as a busy machine may take
        while sum(_is_whole(trial) for trial in trials) < N_RUNS:
            await asyncio.sleep(0.3)
            trials = await _trials(url)
    return trials


def _is_whole(trial: Trial) -> bool:
    """Return whether all that was told of a run has arrived."""
    return trial.state == "reached" and None not in {trial.result.energy_j, trial.result.reached_epochs}


async def test_every_run_is_answered_and_counts_once_whatever_is_killed(
    services: Services,
    broker: Mosquitto,
    postgres_server: Postgres,
) -> None:
    url = msgspec.json.decode(services._config, type=PolicyConfig).store.url
    latencies_s: list[float] = []
    async with MqttClient(url=broker.url) as bus:
        runs = Runs(bus)
        await eventually(lambda: bus.connected)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_break(services, postgres_server))
            for number in range(N_RUNS):
                tasks.create_task(_live(runs, number, latencies_s))
        trials = await _until_stored(url)
    assert len(latencies_s) == N_RUNS
    assert sorted(trial.result.energy_j or 0.0 for trial in trials) == [10_000.0 + number for number in range(N_RUNS)]
    assert {trial.result.reached_epochs for trial in trials} == {N_EPOCHS}
    answered = {run: answers[0].batch_size for run, answers in runs.answers.items()}
    assert {(trial.job, trial.run): trial.batch_size for trial in trials} == answered
    await eventually(lambda: services.has_connected(0, n_times=2), 30.0)  # else it would not hear SIGTERM yet
    assert services.stop() == [0] * N_SERVICES, services.log()
