"""`track_energy`: each call or block is a run, measured also without an iteration, and no exception is touched."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any

import pytest

from gridchase import Publisher, track_energy
from publishers.training.reporting.track_energy import EnergyTracker
from tests.publishers.training.fake_connection import FakeConnection, wait_until
from tests.publishers.training.reporting.test_run_report import MeasuredConnection, final
from tests.publishers.training.reporting.test_run_summary import NOTHING_CHANGED


class Bus:
    """A broker for the publishers that are made: a connection for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: list[FakeConnection] = []
        self.is_heard = True
        self.kind: type[MeasuredConnection] = MeasuredConnection
        self.records = (final(iterations=0, time_s=4e9, **NOTHING_CHANGED | {"reason": "waiting_for_ranks"}),)
        monkeypatch.setattr("publishers.training.worker._connect_by_paho", lambda: self._connect)

    def _connect(self, *arguments: Any) -> FakeConnection:  # noqa: ANN401 — as FakeConnection.connect
        connection = self.kind(*self.records, heard=self.is_heard)
        self.connections.append(connection)
        return connection.connect(*arguments)

    def states(self) -> list[list[str]]:
        """Return the states of each run, each once."""
        return [list(dict.fromkeys(status.state for status in each.statuses())) for each in self.connections]


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    monkeypatch.setenv("GRIDCHASE_BROKER", "mqtt://alice@127.0.0.1:1")
    monkeypatch.delenv("GRIDCHASE_JOB", raising=False)
    yield Bus(monkeypatch)
    gc.collect()


def test_a_block_is_a_run_that_is_measured_without_iterations(bus: Bus, capfd: pytest.CaptureFixture[str]) -> None:
    with track_energy("toy", run="r1", flush_s=0.001) as publisher:
        assert isinstance(publisher, Publisher)
        wait_until(lambda: bus.connections and bus.connections[0].statuses())
    (connection,) = bus.connections
    assert not connection.statuses()[-1].has_iterations
    assert bus.states() == [["running", "finished"]]
    assert capfd.readouterr().err == (
        "gridchase: toy run r1: 1.84 kWh, 612 g CO2e, nothing saved: no optimizer steps were seen\n"
    )
    assert (publisher.summary().reason, publisher.summary().saved_energy_ratio) == ("no_iterations", 0.0)


def test_where_no_controller_is_heard_a_block_without_iterations_says_so(
    bus: Bus, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.training.reporting.run_report.HEARD_WITHIN_S", 0.0)
    bus.is_heard = False
    with track_energy("toy", run="r1", flush_s=0.001):
        wait_until(lambda: bus.connections and bus.connections[0].statuses())
    assert capfd.readouterr().err.startswith("gridchase: toy run r1: not measured: no controller of this machine")


def test_once_there_are_iterations_the_status_says_so(bus: Bus) -> None:
    with track_energy("toy", run="r1", flush_s=0.001) as publisher:
        wait_until(lambda: bus.connections and bus.connections[0].statuses())
        for _ in range(5):
            publisher.iteration()
        wait_until(lambda: bus.connections[0].n_iterations() == 4)
    assert [status.has_iterations for status in bus.connections[0].statuses()][-1]


def test_each_call_of_a_function_is_a_run_and_returns_what_it_returns(bus: Bus) -> None:
    @track_energy(job="toy", flush_s=0.001)
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert (add(1), add(2, b=3), add.__name__, add.__doc__) == (2, 5, "add", "Add.")
    assert bus.states() == [["running", "finished"]] * 2


def test_without_arguments_the_job_is_the_functions_name(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    @track_energy
    def évaluate_all() -> None:  # noqa: PLC2401 — Python takes it, and a job does not
        """Do nothing."""

    évaluate_all()
    monkeypatch.setenv("GRIDCHASE_JOB", "named")
    évaluate_all()
    topics = [connection.will.topic for connection in bus.connections if connection.will]
    assert [topic.split("/job/")[1].split("/")[0] for topic in topics] == ["_valuate_all", "named"]


def test_the_trainings_exception_goes_on_and_the_run_is_lost(bus: Bus) -> None:
    @track_energy(job="toy", flush_s=0.001)
    def fail() -> None:
        raise ZeroDivisionError("its own")

    with pytest.raises(ZeroDivisionError, match="its own") as caught:
        fail()
    assert caught.value.__context__ is None
    assert bus.states() == [["running", "lost"]]


def test_a_call_within_a_call_is_part_of_its_run(bus: Bus) -> None:
    @track_energy(job="toy", flush_s=0.001)
    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n else 1

    assert factorial(4) == 24
    assert bus.states() == [["running", "finished"]]


def test_an_asynchronous_generator_is_tracked_to_its_end(bus: Bus) -> None:
    heard: list[object] = []

    @track_energy(job="toy", flush_s=0.001)
    async def count() -> AsyncGenerator[int, str]:
        for k in range(3):
            try:
                heard.append((yield k))
            except ValueError as error:
                heard.append(str(error))

    async def go_through() -> None:
        counting = count()
        assert [await anext(counting), await counting.asend("a")] == [0, 1]
        wait_until(lambda: bus.states() == [["running"]])
        assert await counting.athrow(ValueError("b")) == 2
        with pytest.raises(StopAsyncIteration):
            await anext(counting)
        assert bus.states() == [["running", "finished"]]
        left = count()
        assert await anext(left) == 0
        await left.aclose()

    asyncio.run(go_through())
    assert heard == ["a", "b", None]
    assert bus.states() == [["running", "finished"]] * 2


def test_coroutines_and_generators_are_tracked_to_their_end(bus: Bus) -> None:
    @track_energy(job="toy", flush_s=0.001)
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    @track_energy(job="toy", flush_s=0.001)
    def count(n: int) -> Generator[int, None, str]:
        yield from range(n)
        return "done"

    async def both() -> list[int]:
        async with asyncio.TaskGroup() as tasks:
            doubled = [tasks.create_task(double(n)) for n in (1, 2)]
        return [task.result() for task in doubled]

    assert asyncio.run(both()) == [2, 4]
    assert bus.states() == [["running", "finished"]]
    counting = count(3)
    assert [next(counting), next(counting)] == [0, 1]
    assert bus.states()[1:] in ([["running"]], [[]], [])
    with pytest.raises(StopIteration, match="done"):
        next(counting), next(counting)
    assert bus.states()[1:] == [["running", "finished"]]


def test_an_exit_without_an_entry_is_nothing(bus: Bus) -> None:
    EnergyTracker({"job": "toy"}).__exit__(None, None, None)
    assert bus.connections == []


def test_wrong_settings_switch_it_off_and_the_code_runs(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    with track_energy("no such job name!") as publisher:
        assert publisher.closed
    assert publisher.summary().reason == "off"
    assert "publishing is off" in caplog.messages[0]
    assert bus.connections == []
