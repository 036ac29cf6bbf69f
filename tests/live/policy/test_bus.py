"""The policy service on a real bus: question, answer, metrics, energy, observation, and the next question."""

import asyncio
import logging
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from policies.service.app import Served, run_service, store_url
from policies.service.bus import trial_responder as answers
from policies.service.bus.event_queue import GRACE_S
from policies.service.config import HttpConfig, LearningConfig, PolicyConfig, StoreConfig
from policies.service.errors import RequestError, StoreUnavailableError, StoreVersionError, UnknownJobError
from policies.service.records import Trial
from policies.service.store.store import open_store
from publishers.mqtt.bus_config import BusConfig
from publishers.mqtt.client import MqttClient
from publishers.mqtt.embedded_broker import embedded_broker, find_mosquitto
from tests.live.conftest import Mosquitto, eventually, free_port
from tests.live.policy.runs import Runs, are_to_different_requests
from tests.policies.service.repositories import Repositories, job_key

pytestmark = pytest.mark.live
Kind = Literal["mosquitto", "amqtt"]
both = pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
JOB = "resnet50"


@asynccontextmanager
async def broker_of(kind: Kind) -> AsyncIterator[str]:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed: apt-get install mosquitto")
    async with embedded_broker(prefer=kind) as broker:
        yield broker.url


@asynccontextmanager
async def runs_on(url: str, *, default: int = 32) -> AsyncIterator[Runs]:
    async with MqttClient(url=url) as bus:
        runs = Runs(bus, default=default)
        await eventually(lambda: bus.connected)
        yield runs


def config_of(bus_url: str, *, store: str = "", **learning: float) -> PolicyConfig:
    return PolicyConfig(
        bus=BusConfig(url=bus_url),
        store=StoreConfig(url=store, timeout_s=10.0),
        learning=LearningConfig(**learning),  # type: ignore[arg-type]  # the record checks them
        http=HttpConfig(port=-1),
    )


@asynccontextmanager
async def service(config: PolicyConfig, state_dir: Path, *, grace_s: float = GRACE_S) -> AsyncIterator[None]:
    """Run a service, until the end of the body; it may still be on its way to the broker when that begins."""
    stop, is_up = asyncio.Event(), asyncio.Event()
    with suppress(StoreUnavailableError):  # a busy machine is slow to make the first tables
        await trials_in(state_dir, config, timeout_s=30.0)

    def started(_: Served) -> None:
        is_up.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            run_service(config, state_dir=state_dir, version="0", stop=stop, started=started, grace_s=grace_s)
        )
        await is_up.wait()
        try:
            yield
        finally:
            stop.set()


async def trials_in(state_dir: Path, config: PolicyConfig, job: str = JOB, *, timeout_s: float = 5.0) -> list[Trial]:
    """Return what stands in the database, newest first."""
    async with open_store(store_url(config, state_dir), timeout_s=timeout_s) as store:
        try:
            return await Repositories(store, config.learning).jobs.trials(job_key(job), limit=1_000)
        except UnknownJobError:
            return []


async def until_ended(state_dir: Path, config: PolicyConfig, n_trials: int) -> list[Trial]:
    """Wait until so many trials have ended, and return them."""
    async with asyncio.timeout(30.0):  # what waits for the database is told every 8 s at the latest
        while True:
            trials = await trials_in(state_dir, config)
            ended = [trial for trial in trials if trial.ended_at_s is not None]
            if len(ended) >= n_trials:
                return ended
            await asyncio.sleep(0.05)


@both
async def test_a_run_asks_trains_and_teaches_the_next_one(kind: Kind, tmp_path: Path) -> None:
    async with broker_of(kind) as url, runs_on(url) as runs:
        config = config_of(url)
        async with service(config, tmp_path):
            first = await runs.ask(JOB, "r1")
            assert (first.batch_size, first.recurrence, first.cost_bound) == (32, 0, None)
            assert first.lease_s == config.learning.lease_s
            runs.train(JOB, "r1", epochs=4, energy_j=40_000.0)
            (trial,) = await until_ended(tmp_path, config, 1)
            assert (trial.state, trial.last_epoch) == ("reached", 3)
            result = trial.result
            assert (result.reached_epochs, result.epochs, result.energy_j, result.duration_s) == (4, 4, 40_000, 160)
            assert (result.max_power_w, result.gpu_model, result.n_gpus) == (300, "NVIDIA A40", 1)
            second = await runs.ask(JOB, "r2")
            assert second.recurrence == 1
            assert are_to_different_requests(runs.answers[JOB, "r2"])


@both
async def test_a_run_without_memory_is_pruned_and_its_retry_is_the_same_recurrence(kind: Kind, tmp_path: Path) -> None:
    async with broker_of(kind) as url, runs_on(url, default=64) as runs:
        config = config_of(url)
        async with service(config, tmp_path):
            first = await runs.ask(JOB, "r1")
            runs.say_failure(JOB, "r1", first.batch_size)
            (trial,) = await until_ended(tmp_path, config, 1)
            assert (trial.state, trial.result.failure) == ("failed", "out_of_memory")
            retry = await runs.ask(JOB, "r2")
            assert (first.batch_size, retry.batch_size) == (64, 32)  # what is larger has no room, either
            assert retry.recurrence == first.recurrence


async def test_without_a_controller_the_process_says_how_it_ended(broker: Mosquitto, tmp_path: Path) -> None:
    async with runs_on(broker.url) as runs:
        config = config_of(broker.url)
        async with service(config, tmp_path, grace_s=0.5):
            for run in ("reached", "stopped", "vanished"):
                await runs.ask(JOB, run)
                runs.say_status(JOB, run)
                runs.say_metric(JOB, run, 2, reached=run == "reached")
            runs.say_status(JOB, "reached", "finished", reached=True)
            runs.say_status(JOB, "stopped", "finished", reached=False)
            runs.say_status(JOB, "vanished", "lost")
            ended = await until_ended(tmp_path, config, 3)
            states = {trial.run: trial.state for trial in ended}
            assert states == {"reached": "reached", "stopped": "stopped", "vanished": "lost"}


async def test_a_run_that_costs_too_much_is_ordered_to_stop(broker: Mosquitto, tmp_path: Path) -> None:
    async with runs_on(broker.url) as runs:
        config = config_of(broker.url)
        async with service(config, tmp_path):
            bound = None
            for number in range(8):
                answer = await runs.ask(JOB, f"r{number}")
                bound = answer.cost_bound
                if bound is not None:
                    break
                runs.train(JOB, f"r{number}")
                await until_ended(tmp_path, config, number + 1)
            assert bound is not None
            last = (JOB, f"r{number}")
            runs.say_status(*last)
            runs.say_energy(*last, epochs=2, energy_j=0.5 * bound, final=False)
            await runs.sent()
            assert runs.commands[last] == []
            runs.say_energy(*last, epochs=9, energy_j=2 * bound, final=False)
            await eventually(lambda: runs.commands[last])
            command = runs.commands[last][0]
            assert (command.command, bool(command.reason)) == ("stop", True)


async def test_of_several_services_one_answers_and_all_hear_the_result_once(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "TRUST_S", 60.0)  # else one that is slow is taken for dead
    monkeypatch.setattr(answers, "TIMEOUT_S", 60.0)
    async with runs_on(broker.url) as runs:
        config = config_of(broker.url, store=f"sqlite:///{tmp_path / 'shared.sqlite'}")
        async with service(config, tmp_path / "a"), service(config, tmp_path / "b"), service(config, tmp_path / "c"):
            for number in range(10):
                await runs.ask(JOB, f"r{number}")
                runs.train(JOB, f"r{number}")
            ended = await until_ended(tmp_path, config, 10)
            assert {trial.state for trial in ended} == {"reached"}
            assert len(await trials_in(tmp_path, config)) == 10
        assert len(runs.answers) == 10
        for heard in runs.answers.values():
            assert are_to_different_requests(heard)
            assert len({answer.recurrence for answer in heard}) == 1


async def test_the_end_of_a_run_while_the_service_was_away_is_not_missed(broker: Mosquitto, tmp_path: Path) -> None:
    async with runs_on(broker.url) as runs:
        config = config_of(broker.url)
        async with service(config, tmp_path):
            await runs.ask(JOB, "r1")
            runs.say_metric(JOB, "r1", 3, reached=True)
            await runs.sent()  # it may be heard, or not
        runs.say_status(JOB, "r1", "finished", reached=True)
        runs.say_energy(JOB, "r1", epochs=4, energy_j=40_000.0, final=True)
        await runs.sent()
        async with service(config, tmp_path):
            (trial,) = await until_ended(tmp_path, config, 1)
            assert (trial.state, trial.result.energy_j) == ("reached", 40_000.0)


async def test_without_a_database_runs_get_their_default_and_are_recorded_when_it_comes(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = tmp_path / "not-yet" / "policy.sqlite"
    database.parent.write_text("a file where the directory should be")
    config = config_of(broker.url, store=f"sqlite:///{database}")
    caplog.set_level(logging.INFO, "policies.service.store.store")
    async with runs_on(broker.url) as runs, service(config, tmp_path):
        for number in range(3):
            answer = await runs.ask(JOB, f"r{number}")
            assert (answer.batch_size, answer.reason, answer.lease_s) == (32, "store_unavailable", None)
            runs.train(JOB, f"r{number}")
        await runs.sent()
        database.parent.unlink()
        await eventually(lambda: "the database is open" in caplog.text, timeout_s=30.0)
        trials = await until_ended(tmp_path, config, 3)
        assert {(trial.batch_size, trial.reason, trial.state) for trial in trials} == {
            (32, "store_unavailable", "reached")
        }
    warnings = [record for record in caplog.records if "the database is not open" in record.getMessage()]
    assert len(warnings) == 1


async def test_what_could_not_be_stored_is_stored_by_the_next_process(broker: Mosquitto, tmp_path: Path) -> None:
    async with runs_on(broker.url) as runs:
        away = config_of(broker.url, store=f"postgresql://nobody@127.0.0.1:{free_port()}/none")
        async with service(away, tmp_path):
            await runs.ask(JOB, "r1")
            runs.train(JOB, "r1")
            await runs.sent()
            await eventually(lambda: "EnergyReported" in "".join(_spooled(tmp_path)))  # the last that was said
        config = config_of(broker.url)
        async with service(config, tmp_path):
            (trial,) = await until_ended(tmp_path, config, 1)
            assert (trial.batch_size, trial.state, trial.result.energy_j) == (32, "reached", 40_000.0)
            await eventually(lambda: not _spooled(tmp_path))


async def test_what_a_killed_service_could_not_store_is_stored_by_the_next_one(
    broker: Mosquitto, tmp_path: Path
) -> None:
    """The broker retains the final energy, but not the metric: that is on disk alone."""
    away = msgspec.json.encode(config_of(broker.url, store=f"postgresql://nobody@127.0.0.1:{free_port()}/none"))
    command = [sys.executable, "-m", "tests.live.policy.service_process", away.decode(), str(tmp_path)]
    async with runs_on(broker.url) as runs:
        child = await asyncio.create_subprocess_exec(*command)
        try:
            await runs.ask(JOB, "r1")
            runs.say_metric(JOB, "r1", 1, reached=True)
            runs.say_energy(JOB, "r1", epochs=4, energy_j=40_000.0, final=True)
            await runs.sent()
            await eventually(lambda: len(_spooled(tmp_path)) == 3, timeout_s=30.0)
        finally:
            child.kill()
            await child.wait()
    config = config_of(broker.url)
    async with service(config, tmp_path):
        (trial,) = await until_ended(tmp_path, config, 1)
        assert (trial.batch_size, trial.state, trial.result.energy_j) == (32, "reached", 40_000.0)
        assert (trial.result.epochs, trial.result.reached_epochs) == (4, 2)
        await eventually(lambda: not _spooled(tmp_path))


def _spooled(state_dir: Path) -> list[str]:
    """Return the keys of the events that wait on disk for the database."""
    path = state_dir / "spool" / "events.sqlite"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.OperationalError):  # about to be made
        return [key for (key,) in connection.execute("SELECT key FROM pending")]
    return []


async def test_a_flood_of_nonsense_ends_nothing(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs_on(broker.url) as runs, MqttClient(url=broker.url) as bus, service(config_of(broker.url), tmp_path):
        await runs.ask("another", "r0")  # so that it hears what follows
        for leaf in ("trial/request", "trial/times", "trial/failure", "metric", "energy", "rank/0/status"):
            for payload in (b"\xc1", b"{}", b"\x80", b"[" * 10_000):
                bus.publish(f"gridchase/v1/user/alice/job/{JOB}/run/r9/{leaf}", payload, qos=1)
        assert await bus.flush(10.0)
        assert (await runs.ask(JOB, "r1")).batch_size == 32
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    config = config_of("")
    async with service(config, tmp_path):
        pass
    with sqlite3.connect(tmp_path / "policy.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreVersionError):
        await run_service(config, state_dir=tmp_path, version="0", stop=asyncio.Event())


async def test_every_fault_of_the_configuration_is_told_at_once(tmp_path: Path) -> None:
    config = PolicyConfig(
        bus=BusConfig(url="http://x", username="u", password_file="/nowhere/bus"),
        store=StoreConfig(url="postgresql://u@h/db", password_file="/nowhere/store"),
    )
    with pytest.raises(RequestError) as caught:
        await run_service(config, state_dir=tmp_path, version="0", stop=asyncio.Event())
    assert [fault.split()[0].rstrip(":") for fault in caught.value.faults] == [
        "store.password_file",
        "bus.password_file",
        "bus.url",
    ]
