"""The gate between two iterations: where a training waits while its run is paused, and where its loop is told to end.

The training's thread calls `passed` at the end of each iteration, and `requested` where its loop asks for a batch.
Other threads decide what happens there: they put a `Hold` into the gate, and release it. The two sides share no lock,
only single references, so that nothing that another thread does can block the training, and every wait has a bound of
its own, which the training's thread keeps by itself: it needs nobody to be released.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from publishers.training.coerce import LOGGER

SLICE_S: Final = 0.2
"""The training looks at its bound this often. On Windows Ctrl-C waits that long, elsewhere it interrupts the wait."""


def is_of_training(error: BaseException) -> bool:
    """Return whether an exception came while the training waited here: a signal handler's, which is to go on to it."""
    return bool(getattr(error, "_is_of_training", False))


class PausedRecorder(Protocol):
    """What the gate needs of the recorder: a known pause is none of the iterations."""

    @property
    def clock_ns(self) -> Callable[[], int]:
        """Return the clock of the iterations [ns]."""
        ...

    def pause(self) -> None:
        """Begin the next iteration at the next mark, not at the last one."""
        ...

    def begin(self) -> None:
        """Begin an iteration now."""
        ...


class Hold:
    """One stop of the training's thread.

    Args:
        step: after how many iterations it stops, as the gate counts them; None: after the present one.
        patience_s: how long it waits for the confirmation that the other ranks have stopped there, too [s].
        max_s: how long it waits in all [s].

    Attributes:
        step: after how many iterations it stops; None: after the present one.
        arrived_ns: when the training's thread stopped; None before [ns].
        left_ns: when it went on; None before [ns].
        is_missed: whether the training's thread was past the step already.
        is_due: whether it is past the step, and stops where it asks for the next batch.
        is_confirmed: whether the other ranks have stopped, too: the run is paused.
        is_interrupted: whether an exception, such as that of Ctrl-C, has ended the wait.
    """

    def __init__(self, step: int | None, *, patience_s: float, max_s: float) -> None:
        self.step = step
        self.arrived_ns: int | None = None
        self.left_ns: int | None = None
        self.is_missed = self.is_due = self.is_confirmed = self.is_interrupted = False
        self._patience_s = patience_s
        self._max_s = max_s
        self._released = threading.Event()

    @property
    def is_released(self) -> bool:
        """Return whether nobody wants the training to wait here any more."""
        return self._released.is_set()

    def release(self) -> None:
        """Let the training go on, or not stop at all."""
        self._released.set()

    def wait(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Wait until it is released, or its time is over; for the training's thread."""
        began_s = clock_s()
        while not self._released.is_set():
            left_s = (self._max_s if self.is_confirmed else self._patience_s) - (clock_s() - began_s)
            if left_s <= 0:
                return
            self._released.wait(min(left_s, SLICE_S))


class IterationGate:
    """The gate of one training thread.

    Args:
        recorder: what counts the iterations.
        on_change: called by the training's thread when it stops and when it goes on; must be quick.
        clock_s: what bounds are measured by [s].

    Attributes:
        n_passed: how many iterations the training's thread has ended, as they are counted at present.
        is_ended: whether the loop is to end where it asks for the next batch.
        hold: where the training's thread is to stop next, or stands; None: nowhere.
    """

    def __init__(
        self,
        recorder: PausedRecorder,
        *,
        on_change: Callable[[], None] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.n_passed = 0
        self._counted_by = ""
        self.is_ended = False
        self.hold: Hold | None = None
        self._recorder = recorder
        self._on_change = on_change
        self._clock_s = clock_s
        self._paused_ns = 0
        self._pid = os.getpid()

    @property
    def paused_since_ns(self) -> int | None:
        """Return since when the run is paused, by the clock of the iterations [ns]; None while it is not."""
        hold = self.hold
        if hold is None or not hold.is_confirmed or hold.left_ns is not None:
            return None
        return hold.arrived_ns

    @property
    def paused_s(self) -> float:
        """Return how long the run was paused so far, without a present pause, by the clock of the iterations [s]."""
        return self._paused_ns / 1e9

    def passed(self, counted_by: str = "", *, may_wait: bool = True) -> None:
        """Say that an iteration has ended; wait where a hold says so.

        Args:
            counted_by: what has told so. Where that changes, counting begins anew: one rank may have seen more than
                another before, as where it alone reads the data.
            may_wait: False where the training must not wait at this place, as within a backward pass: then it does
                where it asks for the next batch.
        """
        if counted_by != self._counted_by:
            self._counted_by, self.n_passed = counted_by, 0
        self.n_passed = n_passed = self.n_passed + 1
        hold = self.hold
        if hold is not None:
            self._reach(hold, n_passed, may_wait=may_wait)

    def requested(self) -> bool:
        """Say that the loop asks for a batch; wait where a hold says so. Return whether the loop is to end here."""
        hold = self.hold
        if hold is not None and hold.is_due and hold.arrived_ns is None:
            self._wait(hold)
        return self.is_ended

    def _reach(self, hold: Hold, n_passed: int, *, may_wait: bool) -> None:
        is_early = hold.step is not None and n_passed < hold.step
        if is_early or hold.arrived_ns is not None:
            return
        if hold.step is not None and n_passed > hold.step:
            hold.is_missed = True
        elif may_wait:
            self._wait(hold)
        else:
            hold.is_due = True

    def _wait(self, hold: Hold) -> None:
        """Wait in a hold; an exception such as KeyboardInterrupt ends the wait, and goes on to the training."""
        if hold.is_released or os.getpid() != self._pid:  # in a forked child nobody would release it
            return
        clock_ns = self._recorder.clock_ns
        self._recorder.pause()
        hold.arrived_ns = arrived_ns = clock_ns()
        self._tell_change()
        try:
            hold.wait(self._clock_s)
        except BaseException as error:
            hold.is_interrupted = True
            with contextlib.suppress(AttributeError):
                error._is_of_training = True  # type: ignore[attr-defined]  # noqa: SLF001 — our own mark on it
            raise
        finally:
            hold.left_ns = left_ns = clock_ns()
            if hold.is_confirmed:
                self._paused_ns += max(0, left_ns - arrived_ns)
            self._recorder.begin()
            self._tell_change()

    def _tell_change(self) -> None:
        try:
            self._on_change()
        except Exception as error:  # noqa: BLE001 — nothing of ours is raised into training
            LOGGER.debug("a pause could not be told: %s", error)
