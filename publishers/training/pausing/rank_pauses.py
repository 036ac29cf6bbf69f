"""The pauses and the early stop of one rank's training: from what is asked for to the gate where the training waits.

Where the training has one process, the publisher's own thread puts the holds into the gate. Where it has several, the
ranks agree on a step first, each in a thread of its own (`rank_thread.py`).
"""

import contextlib
import threading
import time
from typing import Final, NamedTuple

from publishers.messages.reports import Command
from publishers.training.coerce import LOGGER, warn_once
from publishers.training.pausing.gate import Hold, IterationGate, PausedRecorder
from publishers.training.pausing.orders import PauseOrder, PauseOrders
from publishers.training.pausing.rank_thread import RankThread
from publishers.training.pausing.step_agreement import Kind
from publishers.training.run.process_group import ProcessGroup, default_process_group
from publishers.training.settings import Settings

MIN_PASSED: Final = 20
"""After so many iterations a process group that is to come has come."""
ABSENT_AFTER_S: Final = 60.0
"""After this long all ranks take part that ever will."""


class PauseStatus(NamedTuple):
    """What the status of a rank says of its pauses, by the names of `RankStatus`."""

    pausable: bool = False
    max_pause_s: float | None = None
    paused_since_ns: int | None = None
    paused_s: float | None = None


class RankPauses:
    """The pauses and the early stop of one rank; the publisher's thread uses it, but where it says otherwise.

    Args:
        settings: what the training has asked for; who this rank is may be known only when it begins.
        recorder: what counts the iterations.
        wake: set where the publisher's thread should look at once.

    Attributes:
        gate: where the training waits, and its loop ends; for the training's thread.
        has_begun: whether it is known which run and which rank this is.
    """

    def __init__(self, settings: Settings, recorder: PausedRecorder, *, wake: threading.Event) -> None:
        self._options = self._settings = settings
        self._clock_ns = recorder.clock_ns
        self._wake = wake
        self.gate = IterationGate(recorder, on_change=self._on_change)
        self._orders = PauseOrders(settings.key, boot_id=settings.boot_id, clock_ns=self._clock_ns)
        self._ranks: RankThread | None = None
        self._n_ranks = settings.world_size
        self.has_begun = False
        self._wants_stop = self._is_closed = self._has_told = False

    def begin(self, settings: Settings) -> None:
        """Say which run and which rank this is, before the first command."""
        self._settings = settings
        self._orders = PauseOrders(settings.key, boot_id=settings.boot_id, clock_ns=self._clock_ns)
        self.has_begun = True

    def on_command(self, command: Command) -> None:
        """Take a command to pause or to resume: rank 0 decides for all."""
        if self._options.pausable and self._settings.rank == 0:
            self._orders.on_command(command)

    @property
    def stops_together(self) -> bool:
        """Return whether this rank stops early only when all do, after the same iteration; for any thread."""
        group = default_process_group() if self._options.early_stop else None
        return group is not None and self._count_ranks(group) > 1

    def want_stop(self) -> None:
        """Let the loop end, where there are several ranks as soon as all can; for any thread."""
        if not self._options.early_stop or self._wants_stop:
            return
        self._wants_stop = True
        if self._count_ranks(default_process_group()) == 1:
            self.gate.is_ended = True
        self._wake.set()

    def advance(self, *, is_connected: bool) -> None:
        """Do what is due: let pauses begin and end."""
        group = default_process_group()
        self._n_ranks = self._count_ranks(group)
        hold = self.gate.hold
        if not is_connected:
            self._orders.end("the broker was lost")
        elif hold is not None and hold.is_confirmed and hold.left_ns is not None and not hold.is_released:
            why = "was interrupted" if hold.is_interrupted else f"has lasted {self._max_pause_s:g} s, the most it may"
            self._orders.end(f"the pause {why}")
            hold.release()
        order = None if self._wants_stop else self._orders.present()
        if self._n_ranks == 1:
            self._hold_alone(order)
        else:
            self._hold_with_others(order, group)
        self._tell(order)

    def status(self) -> PauseStatus:
        """Return what the status says of pauses."""
        gate, ranks = self.gate, self._ranks
        is_able = self._options.pausable and not self._is_closed and gate.n_passed > 0
        if self._n_ranks > 1:
            is_able = is_able and ranks is not None and ranks.is_alive and not ranks.fault
            is_able = is_able and (self._settings.rank != 0 or ranks is None or ranks.is_complete)
        is_told = is_able or gate.paused_since_ns is not None
        return PauseStatus(
            is_able, self._max_pause_s if is_told else None, gate.paused_since_ns, round(gate.paused_s, 3) or None
        )

    def close(self) -> None:
        """Let the training go on, and end: publishing has ended."""
        self._is_closed = True
        self._orders.end("publishing has ended")
        if self.gate.hold is not None:
            self.gate.hold.release()
        if self._ranks is not None:
            self._ranks.close()

    @property
    def _max_pause_s(self) -> float:
        return self._options.max_pause_s if self._ranks is None else self._ranks.max_pause_s

    def _count_ranks(self, group: ProcessGroup | None) -> int:
        return max(self._settings.world_size, 1 if group is None else group.world_size)

    def _on_change(self) -> None:
        """Let the others hear at once that the training has stopped, or goes on; for the training's thread."""
        self._wake.set()
        if self._ranks is not None:
            self._ranks.wake()

    def _hold_alone(self, order: PauseOrder | None) -> None:
        gate = self.gate
        if self._wants_stop:
            gate.is_ended = True
        if order is None:
            if gate.hold is not None:
                gate.hold.release()
        elif gate.hold is None or gate.hold.is_released:
            hold = Hold(None, patience_s=self._max_pause_s, max_s=self._max_pause_s)
            hold.is_confirmed = True  # there is nobody to wait for
            gate.hold = hold

    def _hold_with_others(self, order: PauseOrder | None, group: ProcessGroup | None) -> None:
        ranks, settings, options = self._ranks, self._settings, self._options
        if group is not None and (ranks is None or ranks.has_lost_group) and not self._is_closed:
            name = f"{settings.job}/{settings.run}"
            ranks = self._ranks = RankThread(self.gate, group, name=name, max_pause_s=options.max_pause_s)
            with contextlib.suppress(RuntimeError):  # no thread left: then it is not alive
                ranks.start()
        if ranks is None:
            fault = "without a process group of torch.distributed its ranks cannot agree where to stop"
        elif settings.rank == 0 and not ranks.is_complete and time.monotonic() - ranks.began_s > ABSENT_AFTER_S:
            fault = "not all of its ranks publish their iterations with it"
        else:
            fault = ranks.fault
        if fault and self.gate.n_passed >= MIN_PASSED:
            given = {"pausable=True": options.pausable, "early_stop=True": options.early_stop}
            names = " and ".join(name for name, is_set in given.items() if is_set)
            warn_once(f"{names}: has no effect on this run of {self._n_ranks} ranks: {fault}")
        wish = self._wish(order)
        if ranks is not None and ranks.wish != wish:
            ranks.wish = wish
            ranks.wake()

    def _wish(self, order: PauseOrder | None) -> Kind | None:
        if self._wants_stop:
            return "stop"
        return None if order is None else "pause"

    def _tell(self, order: PauseOrder | None) -> None:
        """Say once that the training waits, and once that it goes on: a progress bar that stands still says nothing."""
        since_ns = self.gate.paused_since_ns
        if since_ns is not None and order is not None and not self._has_told:
            self._has_told = True
            LOGGER.warning(
                "paused after %d iterations of this process, for %g s at most: %s (controller of %s)",
                self.gate.n_passed,
                min(self._max_pause_s, order.for_s),
                order.reason,
                order.node,
            )
        elif since_ns is None and self._has_told:
            self._has_told = False
            LOGGER.warning("the training goes on after a pause: %s", self._orders.ended_because)
