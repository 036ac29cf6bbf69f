"""Live values reach the trackers of a trainer through its callback: while it trains, and the last ones at its end."""

from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import wait_until
from tests.publishers.training.reporting.test_run_report import MeasuredConnection, running
from tests.publishers.training.reporting.test_run_summary import KWH
from tests.publishers.training.reporting.test_track_energy import Bus

N_STEPS = 40


class LiveConnection(MeasuredConnection):
    """A connection to a controller that says at once what the run has used so far, and at its end what it was."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> Any:  # noqa: ANN401
        if topic.endswith("/status") and not self.statuses():
            self.energy(running(energy_j=1_000.0, time_s=4e9))
        return super().publish(topic, payload, qos=qos, retain=retain)


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Bus:
    monkeypatch.setenv("GRIDCHASE_BROKER", "mqtt://alice@127.0.0.1:1")
    monkeypatch.setenv("GRIDCHASE_QUIET", "1")
    bus = Bus(monkeypatch)
    bus.kind = LiveConnection
    return bus


def slow_net() -> tuple[Any, Any]:
    """Return a module of PyTorch that takes a while for each batch, and a data set."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:  # noqa: ANN401 — tensors
            torch.linalg.svd(torch.rand(100, 100))
            return {"loss": (self.layer(x) - labels).square().mean()}

    return Net(), [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(N_STEPS)]


def assert_live_and_final(logged: list[tuple[int, float]]) -> None:
    """Check that what was known on the way was logged at its steps, and the last record at the end."""
    (*live, (last_step, last)) = logged
    assert {value for _, value in live} == {1_000.0}
    assert 0 < live[0][0] < last_step == 2 * N_STEPS
    assert last == pytest.approx(1.84 * KWH)


def fit_with_lightning(logger: object) -> None:
    """Train for two epochs, with a logger of Lightning."""
    lightning, torch = pytest.importorskip("lightning.pytorch"), pytest.importorskip("torch")
    from gridchase import LightningCallback  # noqa: PLC0415 — it needs Lightning

    net, samples = slow_net()

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, _: int) -> Any:  # noqa: ANN401 — tensors
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:  # noqa: ANN401 — an optimizer
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=logger,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[LightningCallback(job="toy", run="r1", flush_s=0.001)],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(samples))


def test_lightnings_writer_of_tensorboard_gets_them(bus: Bus, tmp_path: Path) -> None:
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logger = loggers.TensorBoardLogger(tmp_path)
    fit_with_lightning(logger)
    events = accumulator.EventAccumulator(logger.log_dir).Reload()
    assert_live_and_final([(event.step, event.value) for event in events.Scalars("gridchase/energy_j")])
    assert bus.states() == [["running", "finished"]]


@pytest.mark.further
def test_lightnings_run_of_mlflow_gets_them(bus: Bus, tmp_path: Path) -> None:
    loggers, mlflow = pytest.importorskip("lightning.pytorch.loggers"), pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    logger = loggers.MLFlowLogger(tracking_uri=uri)
    fit_with_lightning(logger)
    history = mlflow.MlflowClient(uri).get_metric_history(logger.run_id, "gridchase/energy_j")
    assert_live_and_final([(metric.step, metric.value) for metric in history])
    assert bus.states() == [["running", "finished"]]


def test_the_active_run_of_mlflow_gets_them_from_hugging_faces_trainer(bus: Bus, tmp_path: Path) -> None:
    transformers, mlflow = pytest.importorskip("transformers"), pytest.importorskip("mlflow")
    from gridchase import TransformersCallback  # noqa: PLC0415 — it needs transformers

    net, samples = slow_net()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), report_to=["mlflow"], logging_steps=1, num_train_epochs=2, use_cpu=True,
        per_device_train_batch_size=1, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    callback = TransformersCallback(job="toy", run="r1", flush_s=0.001)
    with mlflow.start_run() as run:
        transformers.Trainer(net, arguments, train_dataset=samples, callbacks=[callback]).train()
        client = mlflow.MlflowClient()

        def history() -> list[Any]:
            return list(client.get_metric_history(run.info.run_id, "gridchase/energy_j"))

        wait_until(lambda: history() and history()[-1].value > 1_000.0, timeout_s=60.0)
    assert_live_and_final([(metric.step, metric.value) for metric in history()])
    assert bus.states() == [["running", "finished"]]
