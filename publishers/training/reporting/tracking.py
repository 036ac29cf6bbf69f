"""Logs the live values of a run to the experiment trackers that its training uses already.

The active runs of W&B, MLflow and Comet are found where the training has imported these libraries; nothing is imported
and no run is begun for it. A writer of TensorBoard, a run of Aim, and whatever else has one of their methods is passed.
Nothing is raised: what fails is told once. MLflow may talk to a server for minutes, so it is called in a thread of its
own; the others queue what they are given, and are called where the training calls them.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from publishers.shared.fork_guard import hold_forks
from publishers.training.coerce import warn_once

PREFIX: Final = "gridchase/"
"""Of each name: trackers show them in a group of their own."""
PERIOD_S: Final = 10.0
Values = Mapping[str, float]
Log = Callable[[Values, int], None]


class LiveLog:
    """Logs live values, at most once a period and whenever they are final. One thread calls it.

    Args:
        clock_s: a monotonic clock [s].
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._due_s = -math.inf
        self._has_logged_final = False
        self._mlflow = _MlflowThread()

    def is_due(self, *, is_final: bool) -> bool:
        """Return whether values are to be logged now."""
        return not self._has_logged_final and (is_final or self._clock_s() >= self._due_s)

    def log(self, values: Values, *, step: int, trackers: Iterable[object] = (), is_final: bool = False) -> None:
        """Log values to the active runs of this thread, and to the given trackers.

        Args:
            values: what to log, by name.
            step: the optimizer step that they belong to.
            trackers: further ones, of any of the libraries.
            is_final: whether there will be no others.
        """
        self._due_s, self._has_logged_final = self._clock_s() + PERIOD_S, is_final
        named = {f"{PREFIX}{name}": value for name, value in values.items()}
        for name, find in _FINDERS.items():
            _harmlessly(name, lambda find=find: find(named, step, self._mlflow))  # type: ignore[misc]  # bound now
        for tracker in trackers:
            _harmlessly(type(tracker).__name__, lambda tracker=tracker: log_to(tracker, named, step))  # type: ignore[misc]


def log_to(tracker: Any, values: Values, step: int) -> None:  # noqa: ANN401 — of any library
    """Log values to a tracker, by the first of these methods that it has.

    `add_scalar` (TensorBoard's SummaryWriter), `track` (Aim's Run), `log_metrics` (Comet's Experiment, Lightning's
    loggers), `log` (W&B's Run, accelerate's trackers); else it is called with the values.

    Raises:
        Exception: whatever the tracker raises.
    """
    if hasattr(tracker, "add_scalar"):
        for name, value in values.items():
            tracker.add_scalar(name, value, step)
    elif hasattr(tracker, "track"):
        for name, value in values.items():
            tracker.track(value, name=name, step=step)
    elif hasattr(tracker, "log_metrics"):
        tracker.log_metrics(dict(values), step=step)
    elif type(tracker).__module__.partition(".")[0] == "wandb":
        tracker.log(dict(values), commit=False)
    elif hasattr(tracker, "log"):
        tracker.log(dict(values), step=step)
    else:
        tracker(dict(values))


def _log_to_wandb(values: Values, step: int, _mlflow: "_MlflowThread") -> None:  # noqa: ARG001 — its own step
    """Log to the run of `wandb.init`: as part of the training's next row, so that its steps stay what they are."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        run.log(dict(values), commit=False)


def _log_to_comet(values: Values, step: int, _mlflow: "_MlflowThread") -> None:
    """Log to the running experiment."""
    comet = sys.modules.get("comet_ml")
    find = getattr(comet, "get_running_experiment", None) or getattr(comet, "get_global_experiment", None)
    experiment = find() if find is not None else None
    if experiment is not None:
        experiment.log_metrics(dict(values), step=step)


def _log_to_mlflow(values: Values, step: int, thread: "_MlflowThread") -> None:
    """Log to the run of `mlflow.start_run`, which only the thread that has begun it sees."""
    find = getattr(sys.modules.get("mlflow"), "active_run", None)
    run = find() if find is not None else None
    if run is not None:
        thread.log(run.info.run_id, values, step)


_FINDERS: Final[dict[str, Callable[[Values, int, "_MlflowThread"], None]]] = {
    "W&B": _log_to_wandb,
    "Comet": _log_to_comet,
    "MLflow": _log_to_mlflow,
}


class _MlflowThread:
    """Logs to MLflow one batch after another; what comes while one is under way replaces what waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: tuple[str, Values, int, int] | None = None
        self._is_running = False

    def log(self, run_id: str, values: Values, step: int) -> None:
        """Log values soon."""
        with self._lock:
            self._waiting = run_id, values, step, round(time.time() * 1_000)
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name="gridchase[mlflow]", daemon=True).start()

    def _run(self) -> None:
        while True:
            with hold_forks(), self._lock:
                waiting, self._waiting = self._waiting, None
                if waiting is None:
                    self._is_running = False
                    return
            with hold_forks():  # MLflow logs, and takes the locks of its HTTP client
                _harmlessly("MLflow", lambda waiting=waiting: _send_to_mlflow(*waiting))  # type: ignore[misc]  # bound now


def _send_to_mlflow(run_id: str, values: Values, step: int, time_ms: int) -> None:
    mlflow = sys.modules["mlflow"]
    metrics = [mlflow.entities.Metric(name, value, time_ms, step) for name, value in values.items()]
    mlflow.MlflowClient().log_batch(run_id, metrics=metrics)


def _harmlessly(name: str, log: Callable[[], None]) -> None:
    """Log to one tracker; tell once what fails."""
    try:
        log()
    except Exception as error:  # noqa: BLE001 — training goes on whatever it is
        warn_once(f"live values are not logged to {name}: {type(error).__name__}: {str(error)[:200]}")
