"""The output of the demo of recurrences while it runs: a line for each run, and its progress on a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controller.demo.recurrences.jobs import RecurringJob
from controller.demo.recurrences.training import TrainedRun
from policies.vocabulary.units import HOUR_S
from publishers.training.reporting.amounts import energy_text

_BAR: Final = 30
_COLUMNS: Final = "{:>3} {:>10}  {:<13} {:>9} {:>9} {:>9}  {}"
_HEADINGS: Final = ("#", "batch size", "epochs", "energy", "time", "cost/best", "why")


class RecurrencesView:
    """Shows the runs; their progress arrives from another thread, and only the newest is drawn."""

    def __init__(self, job: RecurringJob, console: Console) -> None:
        self._job = job
        self._console = console
        self._best_cost = job.best.cost
        self._progress: TrainedRun | None = None

    @property
    def is_live(self) -> bool:
        """Return whether the console is a terminal."""
        return self._console.is_terminal

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Show what happens while the body runs."""
        self._print(self._job.title, "bold")
        self._print(_COLUMNS.format(*_HEADINGS), "dim")
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, get_renderable=self._draw, refresh_per_second=12, transient=True):
            yield

    def show_progress(self, progress: TrainedRun) -> None:
        """Show how far the current run is."""
        self._progress = progress

    def show_run(self, run: TrainedRun) -> None:
        """Print a run that has ended."""
        self._progress = None
        trial = run.trial
        end = "reached" if run.reached else "stopped" if run.stop_reason else "given up"
        line = _COLUMNS.format(
            "-" if trial.recurrence is None else trial.recurrence,
            trial.batch_size,
            f"{run.n_epochs} {end}",
            energy_text(run.spent.energy_j),
            hours_text(run.spent.duration_s),
            f"{run.cost / self._best_cost:.2f}x",
            trial.reason,
        )
        self._print(line, "" if run.reached else "yellow")

    def _draw(self) -> Table | Text:
        progress = self._progress
        if progress is None:
            return Text("")
        trial, most = progress.trial, self._job.workload.max_epochs
        done = round(_BAR * min(1.0, progress.n_epochs / most))
        row = Table.grid(padding=(0, 2))
        row.add_row(
            f"{trial.recurrence or 0:>3} {trial.batch_size:>10}",
            f"epoch {progress.n_epochs:>3} of at most {most}",
            Text("━" * done, style="green") + Text("━" * (_BAR - done), style="dim"),
        )
        detail = Text(f"    {trial.detail}", style="dim", overflow="ellipsis", no_wrap=True)
        table = Table.grid()
        table.add_row(row)
        table.add_row(detail)
        return table

    def _print(self, line: str, style: str) -> None:
        self._console.print(Text(line, style=style), soft_wrap=not self._console.is_terminal)


def hours_text(duration_s: float) -> str:
    """Return a duration for people."""
    return f"{duration_s / HOUR_S:.3g} h" if duration_s >= HOUR_S else f"{duration_s / 60:.3g} min"
