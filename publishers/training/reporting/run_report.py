"""What a run's own process says of it: that a controller hears it, live values, the summary, and one line at the end.

At the end the controller's last record is waited for, within the time that closing takes at most; where no controller
was ever heard nothing is waited for. `GRIDCHASE_QUIET=1` switches the lines off, and nothing else.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

from publishers.mqtt.connection import Connection
from publishers.shared.fork_guard import hold_forks
from publishers.shared.stderr_handler import write_line
from publishers.training.coerce import QUIET, is_switched_on
from publishers.training.reporting.notices import Place, RunNotices
from publishers.training.reporting.run_energy import RunEnergyFeed
from publishers.training.reporting.run_summary import RunSummary, explained, summarize
from publishers.training.reporting.tracking import LiveLog
from publishers.training.run.launchers import is_child
from publishers.training.settings import Settings

if TYPE_CHECKING:
    from publishers.training.reporting.emissions_file import EmissionsFile


HEARD_WITHIN_S: Final = 5.0
"""A controller that listens answers the first status sooner, also where it has much to do."""
WELCOME_WITHIN_S: Final = 10.0
"""That a controller hears the training is told at its beginning, or not at all."""
_welcomed: Final[set[str]] = set()
"""The jobs of which this process has told that."""


class RunReport:
    """The summary of one run, for its own process. `subscribe` is called by the publisher's thread, the rest by any.

    Args:
        settings: whose run it is, as far as is known at its start.
        notices: what controllers have told it.
        started_at_s: when the publisher started [s, Unix].

    """

    def __init__(self, settings: Settings, notices: RunNotices, *, started_at_s: float) -> None:
        self._settings = settings
        self._notices = notices
        self._feed = RunEnergyFeed(started_at_s=started_at_s)
        self._live_log = LiveLog()
        self._untold = threading.Lock()
        """Taken for good by whoever tells the end."""
        self._joined: Place | None = None
        self._is_welcomed = False
        self._n_told = 0
        self._connected_at_s: float | None = None
        self._connected_for_s = 0.0
        self._emissions_file = _emissions_file(settings)

    def note_connections(self, n: int) -> None:
        """Take note of how often the broker was there so far; called again and again until the run ends."""
        if n:
            now_s = time.monotonic()
            self._connected_at_s = now_s if self._connected_at_s is None else self._connected_at_s
            self._connected_for_s = now_s - self._connected_at_s

    def welcome(self) -> None:
        """Print, at the beginning of the first run of a job, that a controller hears it; called again and again.

        Processes below a `gridchase run` that share a GPU may turn out to be ranks of another run: they say nothing.
        """
        settings = self._settings
        if self._is_welcomed or not self._notices.is_heard:
            return
        self._is_welcomed = True
        may_speak = self._rank == 0 and not (settings.launch and is_child())
        if may_speak and self._connected_for_s < WELCOME_WITHIN_S and settings.job not in _welcomed:
            _welcomed.add(settings.job)
            _print(f"publishing as {settings.job} run {settings.run}; the controller on this machine hears it")

    @property
    def was_connected(self) -> bool:
        """Return whether the broker was ever there."""
        return self._connected_at_s is not None

    def begin(self, settings: Settings) -> None:
        """Say which run it is, before the first subscription."""
        self._settings = settings
        self._feed.begin(settings)

    def subscribe(self, connection: Connection) -> None:
        """Subscribe, before the first status: the records are of what follows it."""
        joined = self._notices.joined
        if joined != self._joined:
            self._joined, run = joined, self._settings.run if joined is None else joined.run
            self._feed.follow(self._settings.key._replace(run=run), self._settings.root)
        self._feed.subscribe(connection)

    def live(self) -> dict[str, float] | None:
        """Return what is known now: see `RunEnergyFeed.live`."""
        self._feed.want()
        return self._feed.live()

    def log_live(self, trackers: Sequence[object], step: Callable[[], int]) -> None:
        """Log the live values of rank 0 to trackers, where that is due: see `tracking`."""
        record = self._feed.latest
        if self._rank or record is None or not self._live_log.is_due(is_final=record.final):
            return
        values = self._feed.live()
        if values:
            self._live_log.log(values, step=step(), trackers=trackers, is_final=record.final)

    def summary(self) -> RunSummary:
        """Return what is known now, or was when the run ended."""
        self._feed.want()
        run = self._settings.run if self._joined is None else self._joined.run
        return summarize(self._settings.job, run, self._feed.latest, unmeasured=self._why_unmeasured())

    @property
    def _rank(self) -> int:
        return self._settings.rank if self._joined is None else self._joined.rank

    @property
    def _speaks(self) -> bool:
        """Return whether the end of the run is told here: on rank 0, or where the last one of several has ended."""
        if self._joined is None:
            return self._settings.rank == 0
        record = self._feed.latest
        return record is not None and record.final and record.last_rank == self._joined.rank

    @property
    def is_awaited(self) -> bool:
        """Return whether the run's last record is still to come: a controller has heard this process."""
        may_speak = self._rank == 0 if self._joined is None else not self._notices.others_run
        return may_speak and self._notices.is_heard and not self._feed.has_ended

    def write_emissions(self) -> None:
        """Append the row of a run that was measured to the emissions file, where the run's end is told."""
        file, record = self._emissions_file, self._feed.latest
        if file is not None and record is not None and record.n_gpus and self._speaks:
            with hold_forks():  # the C library has a lock on time zones
                file.append(record, at=datetime.now())  # noqa: DTZ005 — local time, as CodeCarbon's

    def tell(self, *, is_used: bool, is_broken_off: bool) -> None:
        """Print the line, once, on rank 0; of a run that the controller has joined of several, where the last one ends.

        There is none for a publisher that was never used; nor where nothing was measured and no broker was ever there,
        which was told at the start, or an exception has ended the training, which is what to read then.
        """
        if not self._speaks or not self._untold.acquire(blocking=False):
            return
        summary = self.summary()
        if summary.energy_j is None and (is_broken_off or not self.was_connected or not is_used):
            return
        _print(str(summary))

    def tell_so_far(self, n_iterations: int) -> None:
        """Print what the run has used so far, where it was measured and has had iterations since the last time."""
        summary = self.summary()
        if self._joined is None and self._speaks and n_iterations > self._n_told and summary.energy_j is not None:
            self._n_told = n_iterations
            _print(str(summary))

    def _why_unmeasured(self) -> tuple[str, str]:
        """Return why nothing is measured, where that is so."""
        url, record = self._settings.broker.url, self._feed.latest
        if not self.was_connected:
            return explained("no_broker", f"no connection to {url}")
        if not self._notices.is_heard and self._connected_for_s < HEARD_WITHIN_S:
            return "too_short", f"it was too short to be heard by a controller, if one of this machine listens at {url}"
        if not self._notices.is_heard:
            return explained(
                "no_controller", f"no controller of this machine listens at {url}: is `gridchase up` running here?"
            )
        if self._notices.refusal is not None:
            return explained(*self._notices.refusal)
        if record is not None and record.reason not in {None, "waiting_for_ranks"}:
            return explained(str(record.reason), record.detail or "")
        return explained("too_short")


def _print(text: str) -> None:
    """Print a line, unless the user wants none."""
    if not is_switched_on(QUIET):
        with suppress(Exception):  # tqdm's bars are its own
            write_line(f"{_line_break()}gridchase: {text}")


def _line_break() -> str:
    """Return what ends the line of a progress bar of tqdm that is still open; its locks are left alone."""
    bars = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())
    return "\n" if len(bars) else ""


def _emissions_file(settings: Settings) -> "EmissionsFile | None":
    """Return the file that a row is appended to, if any: imported by the training's thread, like paho."""
    if settings.emissions_path is None:
        return None
    from publishers.training.reporting.emissions_file import EmissionsFile  # noqa: PLC0415 — few need it

    return EmissionsFile(settings.emissions_path, settings.job)
