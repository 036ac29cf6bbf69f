"""What the callbacks of all frameworks share: one fit of a trainer is one run, and its steps are the iterations.

Nothing is raised into training: what goes wrong in a callback, as where a framework has changed, is told once.
"""

import functools
import math
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final, ParamSpec, Self

from publishers.training.coerce import warn_once
from publishers.training.iterations.chunk import BREAK
from publishers.training.iterations.recorder import Recorder
from publishers.training.pausing.gate import IterationGate, is_of_training
from publishers.training.publisher import Publisher
from publishers.training.settings import PublisherOptions

P = ParamSpec("P")

MAX_STEPS_AT_ONCE: Final = 10_000
"""What a framework executes as one; each step is a mark in memory."""
_NO_RECORDER: Final = Recorder(time.monotonic_ns)
_open_fits: "weakref.WeakKeyDictionary[threading.Thread, Fit]" = weakref.WeakKeyDictionary()
"""The fit that each thread is in."""


class Fit:
    """The publisher of a trainer's present fit; closed between fits.

    The framework's thread calls it. Copied or pickled, with the trainer it belongs to, it is one without a fit.

    Args:
        options: who publishes, and where to: as for `publish_iterations`.

    Attributes:
        end_step: ends an iteration, perhaps with its work, and begins the next; the publisher's own method, since each
            call counts.
        is_in_step: whether an iteration has begun, so that `begin_step` has nothing to do.
    """

    def __init__(self, options: PublisherOptions) -> None:
        self._options: Final = options
        self._publisher: Publisher | None = None
        self._owner: object = None
        self.end_step: Callable[..., None] = _nothing
        self.is_in_step = True

    @property
    def is_open(self) -> bool:
        """Return whether a fit is being published."""
        return self._publisher is not None

    def begin(
        self,
        owner: object,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        batch_size: int | None = None,
        total_iterations: float | None = None,
        first_epoch: int = 0,
        stop: Callable[[], None] | None = None,
        work_unit: str | None = None,
    ) -> None:
        """Begin a fit, as a run of its own.

        A fit that this thread is still in was broken off, unless it has the same owner: then two callbacks report one
        fit, and the second one has nothing to publish.

        Args:
            owner: an object that the trainer makes anew for each fit, or is in one fit at a time.
            rank: this process among the `world_size`; None: it is found out, from the process group of PyTorch first.
            world_size: how many processes train together; None: likewise.
            batch_size: samples of an iteration in this process.
            total_iterations: how many steps the fit will have in this process; None, infinite or below 1: unknown.
            first_epoch: the number of its first epoch: of a resumed training, how many were trained before.
            stop: lets the trainer stop after the present step, as `early_stop=True` asks; None: that is not possible.
            work_unit: what the work is counted in that `end_step` is told.
        """
        before = _open_fits.get(threading.current_thread())
        if before is not None:
            if before is not self and before._owner is owner:  # noqa: SLF001 — the same class
                return
            before.fail(RuntimeError("another fit has begun before this one ended"))
        options: PublisherOptions = {"batch_size": batch_size, "work_unit": work_unit, **self._options}
        if rank is not None:
            options = {"rank": rank, "world_size": world_size, **options}
        publisher = Publisher.for_callback(**options)
        if publisher.closed:  # it has said why
            return
        publisher.recorder.resume_at(first_epoch)
        if total_iterations is not None and 1 <= total_iterations < math.inf:
            publisher.progress.set_total(int(total_iterations))
        self._publisher, self._owner = publisher, owner
        gate = publisher.recorder.gate
        self.end_step = (
            publisher.iteration if gate is None else partial(_end_step_at_gate, publisher, gate, stop or _nothing)
        )
        self.is_in_step = False
        _open_fits[threading.current_thread()] = self

    def begin_epoch(self, n_left: int | None, n_steps: int | None) -> None:
        """Say that an epoch of so many steps begins, and how many follow: where the total is not known otherwise."""
        if self._publisher is not None:
            self._publisher.progress.begin_epoch(n_left)
            self._publisher.progress.begin_pass(n_steps, None)

    @property
    def recorder(self) -> Recorder:
        """Return what records the present fit; between fits, one that nobody asks."""
        return self._publisher.recorder if self._publisher is not None else _NO_RECORDER

    def begin_step(self) -> None:
        """Begin an iteration, unless the end of the last one has begun it."""
        if not self.is_in_step and self._publisher is not None:
            self.is_in_step = True
            self._publisher.begin()

    def end_steps(self, n: int) -> None:
        """End `n` iterations that were executed as one: each took the same time. Too many to be true count as one."""
        if self._publisher is None:
            return
        if n > MAX_STEPS_AT_ONCE:
            warn_once(f"{n} steps that are said to have been executed at once count as one")
            n = 1
        recorder = self._publisher.recorder
        marks = recorder.chunk.marks
        if n > 1 and marks and marks[-1] != BREAK:
            begin_ns = marks[-1]
            duration_ns = recorder.clock_ns() - begin_ns
            marks.extend(begin_ns + duration_ns * k // n for k in range(1, n))
        self.end_step()

    def pause(self) -> None:
        """Say that what follows the last step (validation, a checkpoint) is no iteration, until `begin_step`."""
        if self.is_in_step and self._publisher is not None:
            self.is_in_step = False
            self._publisher.pause()

    def end_epoch(self) -> None:
        """End the epoch; what follows, until `begin_step`, is no iteration."""
        if self._publisher is not None:
            self.is_in_step = False
            self._publisher.epoch()

    def log_live(self, *trackers: object) -> None:
        """Log the live values to the experiment trackers in use, and to these, every 10 s at most."""
        if self._publisher is not None:
            self._publisher.log_live(*trackers)

    def end(self, *trackers: object) -> None:
        """End the fit: the run is finished. Waits for that to arrive, 2 s at most; logs its last values as above."""
        publisher = self._publisher
        self._leave(None)
        if publisher is not None:
            publisher.log_live(*trackers)

    def fail(self, error: BaseException) -> None:
        """End the fit with the exception that has broken it off."""
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        publisher, self._publisher, self._owner = self._publisher, None, None
        self.end_step, self.is_in_step = _nothing, True
        if _open_fits.get(threading.current_thread()) is self:
            del _open_fits[threading.current_thread()]
        if publisher is not None:
            publisher.__exit__(None if error is None else type(error), error, None)

    def __reduce__(self) -> tuple[type[Self], tuple[PublisherOptions]]:
        """Copy and pickle the options alone."""
        return type(self), (self._options,)


def _end_step_at_gate(
    publisher: Publisher, gate: IterationGate, stop: Callable[[], None], *, work: float | None = None
) -> None:
    """End an iteration, wait where the training is to wait, and stop where it is to stop."""
    publisher.iteration(work=work)
    if gate.is_ended:
        stop()


def _nothing(*, work: float | None = None) -> None:
    """End no iteration: there is no fit."""


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """Return a callback's method that raises nothing into the training: what goes wrong in it is told once."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 — training goes on whatever it is
            warn_fault(method.__qualname__, error)

    return guarded


def warn_fault(where: str, error: Exception) -> None:
    """Tell, once, what has gone wrong in a callback.

    Raises:
        Exception: what a signal handler of the training has raised while it was paused: that is not ours to keep.
    """
    if is_of_training(error):
        raise error
    warn_once(f"a training may not be published as it is: {where}: {type(error).__name__}: {error}")
