"""Live values reach the trackers in use at a bounded rate, and no tracker can harm the training."""

import logging
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from publishers.training.reporting.tracking import PERIOD_S, LiveLog, log_to
from tests.publishers.training.fake_connection import wait_until

VALUES = {"power_w": 220.5, "energy_j": 1_000.0}
NAMED = {"gridchase/power_w": 220.5, "gridchase/energy_j": 1_000.0}


@pytest.fixture(autouse=True)
def _no_tracker_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "comet_ml", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)


class WandbRun:
    """As `wandb.Run`: rows of what was logged, the last one open while it was not committed."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = [{}]

    def log(self, data: dict[str, float], step: int | None = None, commit: bool | None = None) -> None:
        assert step is None
        self.rows[-1].update(data)
        if commit is not False:
            self.rows.append({})


class Metrics:
    """As Comet's `Experiment` and Lightning's loggers."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int | None]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((metrics, step))


class Mlflow:
    """As the module: a run is active for the thread that has begun it; `log_batch` may take long."""

    def __init__(self) -> None:
        self.entities = SimpleNamespace(Metric=lambda *fields: fields)
        self.may_go_on = threading.Event()
        self.batches: list[tuple[str, list[tuple[Any, ...]]]] = []
        self.threads: set[int] = set()
        self._owner = threading.get_ident()

    def active_run(self) -> object:
        return SimpleNamespace(info=SimpleNamespace(run_id="r-1")) if threading.get_ident() == self._owner else None

    def MlflowClient(self) -> "Mlflow":  # noqa: N802 — the library's name
        return self

    def log_batch(self, run_id: str, metrics: list[tuple[Any, ...]]) -> None:
        self.threads.add(threading.get_ident())
        assert self.may_go_on.wait(60.0)
        self.batches.append((run_id, metrics))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mlflow]:
    module = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    yield module
    module.may_go_on.set()


def test_values_join_the_next_row_of_wandb_and_leave_its_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = WandbRun()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    LiveLog().log(VALUES, step=7)
    run.log({"loss": 0.5})
    assert run.rows == [{**NAMED, "loss": 0.5}, {}]


@pytest.mark.parametrize("name", ["get_running_experiment", "get_global_experiment"])
def test_comet_has_its_running_experiment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    experiment = Metrics()
    monkeypatch.setitem(sys.modules, "comet_ml", SimpleNamespace(**{name: lambda: experiment}))
    LiveLog().log(VALUES, step=7)
    assert experiment.logged == [(NAMED, 7)]


def test_a_slow_server_of_mlflow_keeps_nobody_waiting(mlflow: Mlflow) -> None:
    log = LiveLog()
    for step in range(5):
        log.log(VALUES, step=step)
    wait_until(lambda: mlflow.threads)
    assert (mlflow.batches, threading.get_ident() in mlflow.threads) == ([], False)
    mlflow.may_go_on.set()
    wait_until(lambda: mlflow.batches and mlflow.batches[-1][1][0][3] == 4)
    assert len(mlflow.batches) <= 2
    run_id, metrics = mlflow.batches[-1]
    assert (run_id, [(name, value, step) for name, value, _, step in metrics]) == (
        "r-1",
        [("gridchase/power_w", 220.5, 4), ("gridchase/energy_j", 1_000.0, 4)],
    )
    log.log(VALUES, step=9)
    wait_until(lambda: mlflow.batches[-1][1][0][3] == 9)


@pytest.mark.parametrize(
    "module",
    [None, SimpleNamespace(), SimpleNamespace(run=None, active_run=lambda: None, get_running_experiment=lambda: None)],
)
def test_without_an_active_run_nothing_is_logged_and_nothing_begun(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: object
) -> None:
    for name in ("wandb", "comet_ml", "mlflow"):
        monkeypatch.setitem(sys.modules, name, module)
    LiveLog().log(VALUES, step=7)
    assert caplog.messages == []


class Writer:
    """As TensorBoard's `SummaryWriter`."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int | None]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.scalars.append((tag, scalar_value, global_step))


class AimRun:
    """As Aim's `Run`."""

    def __init__(self) -> None:
        self.tracked: list[tuple[float, str | None, int | None]] = []

    def track(self, value: float, name: str | None = None, step: int | None = None) -> None:
        self.tracked.append((value, name, step))


class Tracker:
    """As accelerate's `GeneralTracker`."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int | None]] = []

    def log(self, values: dict[str, float], step: int | None) -> None:
        self.logged.append((values, step))


def test_a_given_tracker_is_called_by_the_method_that_it_has() -> None:
    writer, aim, logger, tracker, plain = Writer(), AimRun(), Metrics(), Tracker(), list[Any]()
    LiveLog().log(VALUES, step=7, trackers=[writer, aim, logger, tracker, plain.append])
    assert writer.scalars == [(name, value, 7) for name, value in NAMED.items()]
    assert aim.tracked == [(value, name, 7) for name, value in NAMED.items()]
    assert logger.logged == tracker.logged == [(NAMED, 7)]
    assert plain == [NAMED]


def test_a_given_run_of_wandb_keeps_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    run = WandbRun()
    monkeypatch.setattr(WandbRun, "__module__", "wandb.sdk.wandb_run")
    log_to(run, NAMED, 7)
    assert run.rows == [NAMED]


class Broken:
    """A tracker whose run has ended."""

    def log_metrics(self, metrics: object, step: int) -> None:
        raise RuntimeError(f"the run is over: {metrics}, {step}")


def test_a_tracker_that_fails_is_told_once_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log, writer = LiveLog(), Writer()
    for _ in range(3):
        log.log(VALUES, step=7, trackers=[Broken(), object(), writer])
    assert len(writer.scalars) == 6
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "live values are not logged to Broken",
        "live values are not logged to object",
    ]


def test_values_are_due_once_a_period_and_once_more_when_they_are_final() -> None:
    now_s = [100.0]
    log = LiveLog(lambda: now_s[0])
    assert log.is_due(is_final=False)
    log.log(VALUES, step=1)
    now_s[0] += PERIOD_S - 1
    assert (log.is_due(is_final=False), log.is_due(is_final=True)) == (False, True)
    now_s[0] += 1
    assert log.is_due(is_final=False)
    log.log(VALUES, step=2, is_final=True)
    now_s[0] += PERIOD_S
    assert (log.is_due(is_final=False), log.is_due(is_final=True)) == (False, False)
