"""What a publisher that is off has in place of a worker: it publishes nothing, and knows nothing.

So a publisher need not ask whether it is off. Nothing here warns: `GRIDCHASE_DISABLED=1` is without a word.
"""

from collections.abc import Callable, Sequence
from typing import Final

from publishers.messages.training import Metric, TrialTimes
from publishers.training.reporting.run_summary import OFF, RunSummary
from publishers.training.run.run_search import n_ranks
from publishers.training.settings import Settings
from publishers.training.trial.policy_client import BatchSizeOptions, BatchSizeQuery


class NoCommands:
    """The commands to a run that nobody hears: see `RunCommands`."""

    stop_together: Final = False

    def allow_control(self, settings: Settings) -> None:
        """Let nobody pause the training."""

    def reason_to_stop(self, own: str | None) -> str | None:
        """Return the training's own reason."""
        return own


class NoReport:
    """The report of a run that nobody measures: see `RunReport`."""

    def live(self) -> dict[str, float] | None:
        """Return None."""

    def log_live(self, trackers: Sequence[object], step: Callable[[], int]) -> None:
        """Log nothing."""

    def summary(self) -> RunSummary:
        """Return that publishing is off."""
        return OFF


class NoWorker:
    """In place of a `PublisherWorker`, which see."""

    commands: Final = NoCommands()
    report: Final = NoReport()
    closed: Final = True
    is_inherited: Final = False
    has_trained: Final = False
    is_at_its_end: Final = False
    needs_batch_size: Final = False
    batch_size: Final = None
    run: Final = ""
    rank: Final = 0

    @property
    def world_size(self) -> int:
        """Return how many processes train together, as far as is known."""
        return n_ranks()

    def ask(self, options: BatchSizeOptions) -> BatchSizeQuery | None:
        """Return None: nobody is asked."""

    def add_metric(self, metric: Metric) -> bool:  # noqa: ARG002 — as a `PublisherWorker` has it
        """Publish nothing, and return that this is no fault of the metric."""
        return True

    def add_times(self, times: TrialTimes) -> None:
        """Publish nothing."""

    def add_failure(self, reason: object, detail: object) -> bool:  # noqa: ARG002 — as above
        """Publish nothing, and return that nothing is missing for it."""
        return True

    def measure_without_iterations(self) -> None:
        """Let nobody measure."""

    def set_reached(self, reached: bool | None) -> None:
        """Take no note."""

    def set_batch_size(self, batch_size: int) -> None:
        """Take no note."""

    def request_close(self, *, reached: bool | None, is_broken_off: bool = False, wakes: bool = True) -> None:
        """Close nothing."""

    def wait_closed(self, timeout_s: float) -> None:
        """Wait for nothing."""


NO_WORKER: Final = NoWorker()
