"""Live values in the real trackers, as a training that uses them sees them afterwards; each where it is installed."""

import json
import zipfile
from pathlib import Path

import pytest

from publishers.training.reporting.tracking import LiveLog
from tests.live.conftest import wait_until

VALUES = {"power_w": 220.5, "energy_j": 1_000.0}


def test_tensorboard_shows_them(tmp_path: Path) -> None:
    writers = pytest.importorskip("torch.utils.tensorboard")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with writers.SummaryWriter(tmp_path) as writer:
        LiveLog().log(VALUES, step=7, trackers=[writer])
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert {tag: (e.step, e.value) for tag in events.Tags()["scalars"] for e in events.Scalars(tag)} == {
        "gridchase/power_w": (7, 220.5),
        "gridchase/energy_j": (7, 1_000.0),
    }


def test_mlflow_shows_them_in_the_run_of_the_thread_that_trains(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    LiveLog().log(VALUES, step=1)
    assert mlflow.active_run() is None, "no run is begun"
    with mlflow.start_run() as run:
        LiveLog().log(VALUES, step=7)
        client = mlflow.MlflowClient()
        wait_until(lambda: len(client.get_run(run.info.run_id).data.metrics) == len(VALUES), timeout_s=60.0)
    (power,) = client.get_metric_history(run.info.run_id, "gridchase/power_w")
    assert (power.step, power.value) == (7, 220.5)


def test_wandb_shows_them_and_counts_the_trainings_own_steps_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    run = wandb.init(mode="offline", project="p", dir=str(tmp_path))
    log = LiveLog()
    for _ in range(3):
        log.log(VALUES, step=99)
        run.log({"loss": 0.5})
    assert (run.summary["gridchase/power_w"], run.step) == (220.5, 3)
    wandb.finish()
    log.log(VALUES, step=99)


def test_comet_shows_them(tmp_path: Path) -> None:
    comet = pytest.importorskip("comet_ml")
    experiment = comet.OfflineExperiment(
        project_name="p", workspace="w", offline_directory=str(tmp_path), log_code=False, auto_output_logging=False
    )
    LiveLog().log(VALUES, step=7)
    experiment.end()
    (archive,) = tmp_path.glob("*.zip")
    with zipfile.ZipFile(archive) as file:
        messages = [json.loads(line) for line in file.read("messages.json").decode().splitlines()]
    metrics = [each["payload"]["metric"] for each in messages if "metric" in each["payload"]]
    ours = {each["metricName"]: (each["step"], each["metricValue"]) for each in metrics}
    assert {name: ours.get(name) for name in ("gridchase/power_w", "gridchase/energy_j")} == {
        "gridchase/power_w": (7, 220.5),
        "gridchase/energy_j": (7, 1_000.0),
    }


def test_aim_shows_them(tmp_path: Path) -> None:
    aim = pytest.importorskip("aim")
    run = aim.Run(repo=str(tmp_path), log_system_params=False, capture_terminal_logs=False)
    LiveLog().log(VALUES, step=7, trackers=[run])
    shown = {metric.name: metric.data.items_list() for metric in run.metrics()}
    steps = {name: (steps, values[0]) for name, (steps, values) in shown.items() if name.startswith("gridchase/")}
    assert steps == {"gridchase/power_w": ([7], [220.5]), "gridchase/energy_j": ([7], [1_000.0])}
    run.close()
