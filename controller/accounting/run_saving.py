"""What a run has saved on this node: its books, and the estimate that is made of them now and then.

It is computed in a thread, and never waited for where something must be decided.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Final

import msgspec

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.run_books import GpusNow, RunBooks, describe_saving
from controller.ports import SignalSource
from controller.runtime.clock import Clock
from policies.profiling.paired_looks import Looks
from policies.savings.interval import KnownSaving, UnknownSaving
from policies.thermal.board import ThermalState
from publishers.shared.files.disk_thread import DaemonExecutor
from publishers.shared.log_once import FaultLog

TIMEOUT_S: Final = 5.0
"""The end of a run waits no longer for it."""
CHECK_S: Final = 10.0
"""So often it is looked whether it is due."""
MOST_PERIOD_S: Final = 1_800.0
PERIOD_RATIO: Final = 0.05
"""It is computed anew each time the run is so much longer, at least every half hour, and when the run is limited."""

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
        self._executor = DaemonExecutor("gridchase savings")
        """A thread of its own: one that hangs delays neither another's nor the end of the process."""
        self._due_s = -math.inf

    def resume(self, stored: msgspec.Raw, *, duration_s: float) -> None:
        """Go on with the books of a former controller, or begin new ones, saying so; it accounted for so long [s]."""
        try:
            self.books.resume(stored, duration_s=duration_s)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            _LOGGER.warning("%s: its account is damaged and restarts: %s", self._name, error)

    def add(self, interval: MeterInterval, gpus: GpusNow, *, begins_s: float) -> None:
        """Enter an interval, active or not, that began at a Unix time [s], and how its GPUs stand now."""
        self.books.add(interval, gpus, begins_s=begins_s)
        if self.books.was_limited and isinstance(self.latest, KnownSaving) and self.latest.is_unchanged:
            self._forget()
        if self._signal.history() is not self._seen:
            self._add_signal(begins_s + interval.duration_s)

    def close(self, looks: Looks, *, has_other_gpus: bool = False) -> None:
        """Close the books: another curve holds from here on. What is known meanwhile is of a part of the run alone."""
        self.books.close(looks)
        if has_other_gpus:
            self.books.thermal = ThermalState()
        self._forget()

    def _forget(self) -> None:
        """Say nothing before it is computed anew, soon."""
        if self.latest is not None:
            self.latest, self._due_s = UnknownSaving(code="too_early", n_looks=0), -math.inf

    async def keep_known(self, clock: Clock, looks: Callable[[], Looks]) -> None:
        """Compute it again and again: the longer the run is, the less often."""
        begins_s = clock.now_s()
        while True:
            now_s = clock.now_s()
            if now_s >= self._due_s:
                self._due_s = now_s + min(PERIOD_RATIO * (now_s - begins_s), MOST_PERIOD_S)
                await self.update(looks(), now_s=now_s)
            await clock.sleep_until(now_s + CHECK_S)

    async def update(self, looks: Looks, *, now_s: float) -> None:
        """Compute it, with what was seen of the limits, at a Unix time [s]; where that fails, it is not known."""
        if self.books.is_empty:
            return
        try:
            self._add_signal(now_s)
            found = await self._compute(looks)
        except Exception as error:  # noqa: BLE001 — what is told may not end what acts, whatever it is
            self.latest = UnknownSaving(code="not_computed", n_looks=0)
            self._fault_log.report(f"{self._name}: what was saved cannot be computed: {error!r}")
        else:
            self.latest = found
            self._fault_log.clear()

    async def _compute(self, looks: Looks) -> KnownSaving | UnknownSaving:
        """Compute it in the thread, from the books as they are now.

        Raises:
            TimeoutError: it takes too long, or the one before does.
        """
        before = self._executor.latest
        if before is not None and not before.done():
            raise TimeoutError("the one before is not done yet")
        compute = partial(copy(self.books).saving, looks)
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.get_running_loop().run_in_executor(self._executor, compute)

    def log(self) -> None:
        """Log the parts of what the run has saved, once it has ended; nothing of a run that did nothing here."""
        if self.latest is not None and not self._fault_log.fault:
            _LOGGER.debug("%s: %s", self._name, describe_saving(self.latest))

    def _add_signal(self, until_s: float) -> None:
        """Add what the run has seen of the signal, up to a Unix time [s]; plain energy needs none."""
        self._seen = self._signal.history()
        if self._signal.kind == "energy":
            return
        if self.books.add_signal(self._seen, until_s=until_s, is_stopgap=bool(self._signal.provenance().reason)):
            self._forget()
