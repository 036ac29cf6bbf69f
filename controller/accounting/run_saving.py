"""What a run has saved on this node: its books, and the estimate that is made of them now and then.

It is computed in a thread, and never waited for where something must be decided.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.run_books import RunBooks, describe_saving
from controller.clock import Clock
from controller.ports import SignalSource
from policies.profiling.paired_looks import Looks
from publishers.shared.log_once import FaultLog

if TYPE_CHECKING:
    from policies.savings.interval import KnownSaving, UnknownSaving

TIMEOUT_S: Final = 10.0
"""The end of a run waits no longer for it."""
LEAST_PERIOD_S: Final = 10.0
MOST_PERIOD_S: Final = 1_800.0
PERIOD_RATIO: Final = 0.05
"""It is computed anew each time the run is so much longer, at least every half hour."""

_LOGGER = logging.getLogger(__name__)


class RunSaving:
    """What a run has saved on this node.

    Args:
        signal: the grid signal.
        name: the run, for the log.
        is_incomplete: whether a former controller knew of the run what cannot be read any more.

    Attributes:
        books: what the run did at each limit.
        latest: what it has saved, or why that is not known, when it was last computed; None before.
    """

    def __init__(self, *, signal: SignalSource, name: str, is_incomplete: bool = False) -> None:
        self.books = RunBooks(gap="incomplete" if is_incomplete else None)
        self.latest: KnownSaving | UnknownSaving | None = None
        self._signal, self._name = signal, name
        self._seen: object = None
        """The signal as the books have it."""
        self._fault_log = FaultLog(_LOGGER)

    def resume(self, stored: msgspec.Raw) -> None:
        """Go on with the books of a former controller, or begin new ones, saying so."""
        try:
            self.books.resume(stored)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            _LOGGER.warning("%s: its books are damaged, and begin anew: %s", self._name, error)

    def add(
        self, interval: MeterInterval, in_force: tuple[float, int] | None, *, highest_w: float, begins_s: float
    ) -> None:
        """Enter an interval, active or not.

        Args:
            interval: what the run did.
            in_force: the limit now [W], and since when [ns]; None where it is not known.
            highest_w: the highest limit that the run might have now; 0 where that is not known [W].
            begins_s: when the interval began [Unix s].
        """
        self.books.top_power_limit_w = max(self.books.top_power_limit_w, highest_w)
        self.books.add(interval, in_force, begins_s=begins_s)
        if self._signal.history() is not self._seen:
            self._add_signal(begins_s + interval.duration_s)

    async def keep_known(self, clock: Clock, looks: Callable[[], Looks]) -> None:
        """Compute it again and again: the longer the run is, the less often."""
        begins_s = clock.now_s()
        while True:
            now_s = clock.now_s()
            await self.update(looks(), now_s=now_s)
            period_s = max(PERIOD_RATIO * (now_s - begins_s), LEAST_PERIOD_S)
            await clock.sleep_until(now_s + min(period_s, MOST_PERIOD_S))

    async def update(self, looks: Looks, *, now_s: float) -> None:
        """Compute it, with what was seen of the limits, at a Unix time [s]; where that fails, it is not known."""
        if not (self.books.books.slots or self.books.closed):
            return
        try:
            self._add_signal(now_s)
            async with asyncio.timeout(TIMEOUT_S):
                self.latest = await asyncio.to_thread(self.books.saving, looks)
        except Exception as error:  # noqa: BLE001 — what is told may not end what acts, whatever it is
            self.latest = None
            self._fault_log.report(f"{self._name}: what was saved cannot be computed: {error!r}")
        else:
            self._fault_log.clear()

    def log(self) -> None:
        """Log what the run has saved, once it has ended; nothing of a run that did nothing here."""
        if self.latest is not None:
            _LOGGER.info("%s: %s", self._name, describe_saving(self.latest))

    def _add_signal(self, until_s: float) -> None:
        """Add what the run has seen of the signal, up to a Unix time [s]; plain energy needs none."""
        self._seen = self._signal.history()
        if self._signal.kind != "energy":
            self.books.add_signal(self._seen, until_s=until_s, is_stopgap=bool(self._signal.provenance().reason))
