"""Several trainings in one process: each is a run, however they are told apart. PyTorch's hook is called by hand."""

import gc
import itertools
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType, SimpleNamespace

import pytest

from gridchase import publish_iterations, publisher_of
from publishers.messages.codec import Outgoing, encode
from publishers.mqtt.broker_address import BrokerAddress
from publishers.training.iterations.loader_pass import LEFT_NS, LOOK
from publishers.training.iterations.steps import optimizer_hook
from publishers.training.publisher import PUBLISHERS
from publishers.training.run import next_run
from publishers.training.run.next_run import MAX_SHORT_RUNS
from tests.publishers.training.fake_connection import FakeConnection, publisher_on, wait_until
from tests.publishers.training.reporting.test_run_summary import record

N = 10


class Optimizer:
    """What makes steps."""

    def step(self) -> None:
        optimizer_hook._on_step(self, (), {})


class Loader:
    """A data loader."""

    def __init__(self, n: int = N) -> None:
        self._n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._n))

    def __len__(self) -> int:
        return self._n


class Broker:
    """Connects each run to a connection of its own."""

    def __init__(self) -> None:
        self.connections: list[FakeConnection] = []
        self._others = set(threading.enumerate())
        """Threads of other tests, whose runs may have the same name."""

    def connect(self, broker: BrokerAddress, will: Outgoing) -> FakeConnection:
        connection = FakeConnection()
        self.connections.append(connection)
        return connection.connect(broker, will)

    def runs(self) -> list[tuple[str, int]]:
        """End the runs that are open; return the id and the iterations of each, in their order."""
        for publisher in list(PUBLISHERS.by_key.values()):
            publisher.close()
        wait_until(lambda: not any(t.name == "gridchase[toy]" for t in {*threading.enumerate()} - self._others))
        assert all(one.closed for one in self.connections)
        records = [(one.statuses()[-1], one) for one in self.connections]
        assert {status.state for status, _ in records} == {"finished"}
        for _, one in records:
            firsts = [(message.first, len(message.ends_ns())) for message in one.messages()]
            assert [first for first, _ in firsts] == list(itertools.accumulate((n for _, n in firsts), initial=0))[:-1]
        return [(status.run, one.n_iterations()) for status, one in sorted(records, key=lambda it: it[0].started_at_s)]


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """Have a broker, and PyTorch imported."""
    there = Broker()
    monkeypatch.setattr("publishers.training.worker._connect_by_paho", lambda: there.connect)
    PUBLISHERS.by_key.clear()
    module = ModuleType("torch.optim.optimizer")
    module.register_optimizer_step_post_hook = lambda _: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", module)
    yield there
    optimizer_hook._set_counters()


def wrapped(n: int = N, **arguments: object) -> Iterable[int]:
    return publish_iterations(Loader(n), **{"job": "toy", "flush_s": 0.001, **arguments})  # type: ignore[arg-type]  # by name


def train(loader: Iterable[int], optimizer: Optimizer, epochs: int = 2) -> None:
    for _ in range(epochs):
        for _ in loader:
            optimizer.step()


def sizes(runs: list[tuple[str, int]]) -> list[int]:
    assert len({run for run, _ in runs}) == len(runs)
    return [n for _, n in runs]


def fold_with_new_loader() -> None:
    train(wrapped(), Optimizer())


def folds_with_one_loader() -> Callable[[], None]:
    loader = wrapped()
    return lambda: train(loader, Optimizer())


def folds_whose_optimizers_are_kept() -> Callable[[], None]:
    kept: list[Optimizer] = []

    def fold() -> None:
        kept.append(Optimizer())
        train(wrapped(), kept[-1])

    return fold


def folds_with_validation() -> Callable[[], None]:
    def fold() -> None:
        loader, validation, optimizer = wrapped(), wrapped(5), Optimizer()
        for _ in range(2):
            train(loader, optimizer, epochs=1)
            assert list(validation) == list(range(5))

    return fold


@pytest.mark.parametrize(
    "make",
    [
        lambda: fold_with_new_loader,
        folds_with_one_loader,
        folds_whose_optimizers_are_kept,
        folds_with_validation,
    ],
    ids=["new loaders", "one loader", "kept optimizers", "validation"],
)
def test_three_trainings_in_one_process_are_three_runs(make: Callable[[], Callable[[], None]], broker: Broker) -> None:
    fold = make()
    for _ in range(3):
        fold()
        gc.collect()
    assert sizes(broker.runs()) == [2 * N] * 3


def test_the_runs_of_one_process_are_numbered_in_their_order(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    monkeypatch.setenv("GRIDCHASE_RUN", "r")
    for _ in range(3):
        train(wrapped(), Optimizer())
    assert broker.runs() == [("r", 2 * N), ("r-2", 2 * N), ("r-3", 2 * N)]


def test_a_loader_that_is_wrapped_in_each_epoch_is_one_run(broker: Broker) -> None:
    optimizer = Optimizer()
    for _ in range(5):
        train(wrapped(), optimizer, epochs=1)
    assert sizes(broker.runs()) == [5 * N]


def test_two_optimizers_in_turn_are_one_run(broker: Broker) -> None:
    one, other = Optimizer(), Optimizer()
    for _ in range(4):
        for k in wrapped():
            one.step()
            if k % 3 == 0:
                other.step()
    assert sizes(broker.runs()) == [4 * N]


def test_another_optimizer_within_a_pass_goes_on_with_the_run(broker: Broker) -> None:
    optimizer = Optimizer()
    for k in wrapped():
        if k == N // 2:
            optimizer = Optimizer()
        optimizer.step()
    assert sizes(broker.runs()) == [N]


def test_a_run_that_has_a_name_is_one_whatever_it_trains(broker: Broker) -> None:
    for _ in range(3):
        train(wrapped(run="mine"), Optimizer())
    assert broker.runs() == [("mine", 6 * N)]


def test_a_publisher_of_ones_own_is_one_run() -> None:
    connection = FakeConnection()
    with publisher_on(connection, run=None) as publisher:
        for _ in range(3):
            train(publisher.iterations(Loader()), Optimizer())
    assert connection.n_iterations() == 6 * N


def test_many_short_trainings_belong_to_one_run(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(MAX_SHORT_RUNS + 5):
        train(wrapped(), Optimizer())
    assert sizes(broker.runs()) == [2 * N] * MAX_SHORT_RUNS + [5 * 2 * N]
    assert sum("belong to one run" in record.message for record in caplog.records) == 1


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.optim.optimizer")


@pytest.mark.usefixtures("no_torch")
def test_what_is_announced_again_after_it_was_done_is_another_run(broker: Broker) -> None:
    for _ in range(2):
        loader = wrapped(epochs=3)
        for _ in range(3):
            assert list(loader) == list(range(N))
    assert sizes(broker.runs()) == [3 * N] * 2


@pytest.mark.usefixtures("no_torch")
def test_what_is_announced_in_each_epoch_is_one_run(broker: Broker) -> None:
    for _ in range(3):
        assert list(wrapped(total_iterations=3 * N)) == list(range(N))
    assert list(wrapped(5)) == list(range(5))  # a validation announces nothing
    assert sizes(broker.runs()) == [3 * N + 5]


@pytest.mark.usefixtures("no_torch")
def test_a_cell_of_a_notebook_that_is_run_again_is_another_run(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    shell = SimpleNamespace(execution_count=1)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    loader = wrapped()  # one cell wraps, the next one trains
    shell.execution_count = 2
    assert list(loader) == list(range(N))
    for shell.execution_count in (3, 4):
        for _ in range(2):
            assert list(wrapped()) == list(range(N))
    assert sizes(broker.runs()) == [N, 2 * N, 2 * N]
    assert list(loader) == list(range(N)), "nothing is raised by what has been closed"


@pytest.mark.usefixtures("no_torch")
def test_what_was_wrapped_before_is_published_by_the_next_run_too(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    shell = SimpleNamespace(execution_count=1)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    loader = wrapped()
    assert list(loader) == list(range(N))
    first = publisher_of(loader).run
    shell.execution_count = 2
    wrapped(5)
    assert list(loader) == list(range(N))
    (_, (second, n)) = broker.runs()
    assert (n, publisher_of(loader).run) == (N, second)
    assert first != second


def test_outside_of_a_notebook_there_is_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next_run.notebook_cell() is None
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert next_run.notebook_cell() is None


def test_the_end_of_each_run_is_logged_once(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "publishers")
    for _ in range(2):
        train(wrapped(), Optimizer())
    runs = broker.runs()
    assert sorted(record.message for record in caplog.records if "publishing job" in record.message) == sorted(
        f"publishing job toy, run {run} to mqtt://127.0.0.1:1883" for run, _ in runs
    )


def in_threads(*works: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture(params=[1, 3], ids=["as fast", "faster"])
def at_once(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Return what trains in two threads: the second begins once the first is in its pass, and is as fast or faster."""
    steps, meeting = int(request.param), threading.Barrier(2)

    def first() -> None:
        optimizer = Optimizer()
        for _ in range(2):
            for i, _ in enumerate(wrapped()):
                optimizer.step()
                if i:
                    meeting.wait(60.0)

    def second() -> None:
        optimizer, loader, n = Optimizer(), None, 0
        for _ in range(2 * (N - 1)):
            meeting.wait(60.0)
            loader = loader or iter(wrapped(100))
            for _ in range(steps):
                next(loader)
                optimizer.step()
                n += 1
        assert n == 2 * steps * (N - 1)

    return lambda: in_threads(first, second)


def test_a_second_thread_that_trains_the_job_at_once_is_not_published_and_told(
    broker: Broker, caplog: pytest.LogCaptureFixture, at_once: Callable[[], None]
) -> None:
    at_once()
    assert sizes(broker.runs()) == [2 * N]
    (line,) = [record.message for record in caplog.records if "is not published" in record.message]
    assert line.startswith("a loader is not published while another thread trains the same job")


@pytest.mark.parametrize("has_steps", [True, False])
def test_of_two_threads_that_begin_at_once_one_is_not_published_and_told(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, has_steps: bool
) -> None:
    meeting = threading.Barrier(2)
    if not has_steps:
        monkeypatch.delitem(sys.modules, "torch.optim.optimizer")

    def fit() -> None:
        optimizer = Optimizer()
        for _ in wrapped(3 * LOOK):
            meeting.wait(60.0)
            if has_steps:
                optimizer.step()

    in_threads(fit, fit)
    assert sum(sizes(broker.runs())) < 2 * 3 * LOOK
    assert [record.message[:28] for record in caplog.records if "another thread" in record.message] == [
        "a loader is not published wh"
    ]


def test_trainings_in_threads_one_after_the_other_are_told_apart_as_in_one(broker: Broker) -> None:
    for _ in range(2):
        in_threads(fold_with_new_loader)
    assert sizes(broker.runs()) == [2 * N, 2 * N]


def test_a_loader_of_the_main_thread_that_another_trains_with_is_one_run(broker: Broker) -> None:
    loader, optimizer = wrapped(), Optimizer()
    in_threads(lambda: train(loader, optimizer))
    in_threads(lambda: train(wrapped(), optimizer))
    assert sizes(broker.runs()) == [4 * N]


def test_a_pass_that_another_thread_has_left_open_keeps_nobody_from_training(broker: Broker) -> None:
    left = []

    def train_one_batch_in_hand() -> None:
        optimizer, batches = Optimizer(), iter(wrapped())
        for _ in range(N // 2):
            next(batches)
            optimizer.step()
        left.append((batches, optimizer))

    in_threads(train_one_batch_in_hand)
    train(wrapped(), left[0][1])
    assert sum(sizes(broker.runs())) == N // 2 + 2 * N


@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_thread_trains_where_the_pass_of_another_has_asked_for_nothing_for_long(
    broker: Broker, *, is_at_once: bool
) -> None:
    """The main thread looks at some batches with steps, keeps its iterator, and waits for a thread that trains."""
    now_ns = 0
    optimizer, probe = Optimizer(), iter(wrapped(clock_ns=lambda: now_ns))
    for _ in range(2):
        next(probe)
        now_ns += 1_000_000
        optimizer.step()
    now_ns += 0 if is_at_once else LEFT_NS + 1

    def fit() -> None:
        nonlocal now_ns
        own = Optimizer()
        for i, _ in enumerate(wrapped(300)):
            now_ns += 1_000_000
            own.step()
            if i == LOOK // 2:
                now_ns += LEFT_NS

    in_threads(fit)
    assert sum(sizes(broker.runs())) == 2 + 300 - (LOOK if is_at_once else 0)


def test_evaluations_in_threads_of_their_own_are_told_of_once(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    def evaluate() -> None:
        for _ in wrapped(20):
            pass

    optimizer = Optimizer()
    for i, _ in enumerate(wrapped()):
        optimizer.step()
        if i > 1:
            in_threads(evaluate)
    assert sizes(broker.runs()) == [N]
    assert sum("is not published" in record.message for record in caplog.records) == 1


def test_batches_that_a_thread_fetches_ahead_are_those_of_the_training(broker: Broker) -> None:
    fetched: queue.Queue[int | None] = queue.Queue(2)
    optimizer, loader = Optimizer(), wrapped()

    def fetch() -> None:
        for batch in loader:
            fetched.put(batch)
        fetched.put(None)

    for _ in range(2):
        thread = threading.Thread(target=fetch)
        thread.start()
        while fetched.get(timeout=60.0) is not None:
            optimizer.step()
        thread.join()
    assert sizes(broker.runs()) == [2 * N]


class Notebook:
    """IPython's shell, as far as it is used."""

    def __init__(self) -> None:
        self.execution_count = 1
        self.events = self
        self.callbacks: list[Callable[..., None]] = []

    def register(self, event: str, function: Callable[..., None]) -> None:
        assert event == "post_run_cell"
        if function not in self.callbacks:
            self.callbacks.append(function)

    def end_cell(self) -> None:
        for function in self.callbacks:
            function(SimpleNamespace(success=True))
        self.execution_count += 1


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    shell = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    return shell


@pytest.mark.usefixtures("no_torch")
def test_in_a_notebook_a_run_that_is_complete_ends_with_its_cell(
    notebook: Notebook, broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = wrapped(epochs=2)
    for _ in range(2):
        assert list(loader) == list(range(N))
    assert capfd.readouterr().err == ""
    notebook.end_cell()
    assert broker.connections[0].statuses()[-1].state == "finished"
    assert capfd.readouterr().err.startswith("gridchase: toy run ")
    notebook.end_cell()
    assert list(loader) == list(range(N)), "gone through once more, it is another run"
    assert sizes(broker.runs())[0] == 2 * N
    assert len(broker.connections) == 2
    assert len(notebook.callbacks) == 1


@pytest.mark.usefixtures("no_torch")
def test_one_that_may_go_on_tells_after_each_cell_what_it_has_used_so_far(
    notebook: Notebook, broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = wrapped()
    assert list(loader) == list(range(N))
    notebook.end_cell()
    assert capfd.readouterr().err == "", "nothing was measured yet"
    wait_until(lambda: broker.connections and broker.connections[0].statuses())
    (connection,) = broker.connections
    run = connection.statuses()[-1].run
    topic = next(topic for topic in connection.subscriptions if topic.endswith("/energy"))
    connection.hear(topic, encode(record(run=run, state="running", final=False)))
    publisher = publisher_of(loader)
    wait_until(publisher.live)
    for _ in range(2):
        notebook.end_cell()
    assert capfd.readouterr().err.splitlines() == [f"gridchase: {publisher.summary()}"]
    assert f"{run}, so far: " in str(publisher.summary())
    assert list(loader) == list(range(N))
    notebook.end_cell()
    assert capfd.readouterr().err.count(", so far: ") == 1
    assert sizes(broker.runs()) == [2 * N]
