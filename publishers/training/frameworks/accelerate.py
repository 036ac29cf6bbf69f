"""The tracker of Hugging Face Accelerate, which has no callbacks: there the steps of the optimizer count.

from gridchase import AccelerateTracker
accelerator = Accelerator(log_with=AccelerateTracker(job="resnet50"))
…
accelerator.end_training()

Accelerate starts and ends trackers on the main process alone. So a run begins with its tracker, on every rank; on the
others it ends with the process.
"""

from typing import Unpack

from publishers.training.frameworks.fit import harmless
from publishers.training.publisher import Publisher
from publishers.training.settings import PublisherOptions

try:
    from accelerate.tracking import GeneralTracker
except ImportError:  # for whoever only reads or checks this package
    GeneralTracker = object


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]  # it is not installed where types are checked
    """Publishes a training until `end_training`; each step of its optimizer is an iteration.

    Args:
        options: who publishes, and where to: as for `publish_iterations`.

    Attributes:
        tracker: the publisher; None in a copy.
    """

    name = "gridchase"
    requires_logging_directory = False
    main_process_only = False
    tracker: Publisher | None = None

    def __init__(self, **options: Unpack[PublisherOptions]) -> None:
        super().__init__()
        self.tracker = Publisher.shared(**options)

    @harmless
    def log(self, values: object, step: int | None = None, **_: object) -> None:  # noqa: ARG002 — the others log these
        """Log the live values to W&B, MLflow or Comet, where the training logs to them."""
        if self.tracker is not None:
            self.tracker.log_live()

    @harmless
    def finish(self) -> None:
        """End the run."""
        if self.tracker is not None:
            self.tracker.close()
            self.tracker.log_live()

    def __reduce__(self) -> tuple[object, tuple[type["AccelerateTracker"]]]:
        """Copy and pickle a tracker that publishes nothing."""
        return object.__new__, (type(self),)
