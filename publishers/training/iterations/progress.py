"""The progress of a run: how many iterations it will have, and whether its metric has reached the target."""

import math
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from publishers.training.coerce import to_float, to_int, to_text, warn_once

MAX_METRIC: Final = 1e18
"""What the bus takes; NaN is beyond it, too."""
MAX_ITERATIONS: Final = 1 << 53
"""What the bus takes."""
MAX_EPOCHS: Final = 1 << 31
_MAX_SHOWN: Final = 40


class TargetMetric:
    """The target of a run's metric, and whether it was reached; known whether or not anything is published.

    Attributes:
        reached: True once it was reached; False where there is a target, metrics came, and none reached it; else None.
        reason: how it was reached, in a sentence; None until it is.
    """

    def __init__(self) -> None:
        self.reached: bool | None = None
        self.reason: str | None = None
        self._target: float | None = None
        self._mode: Literal["max", "min"] = "max"

    def set_target(self, target: object, mode: object) -> list[str]:
        """Set the target, to be reached from below (`max`) or above (`min`); return what is wrong with it."""
        faults = []
        if mode not in {"max", "min"}:
            faults.append(f"target_mode = {to_text(mode, _MAX_SHOWN)}: must be max or min")
        if target is None:
            return faults
        value = to_float(target)
        if value is None or not abs(value) <= MAX_METRIC:
            shown = to_text(target, _MAX_SHOWN)
            faults.append(f"target = {shown}: must be a number from -{MAX_METRIC:g} to {MAX_METRIC:g}")
        elif not faults:
            self._target, self._mode = value, "min" if mode == "min" else "max"
        return faults

    def update(self, value: float, *, reached: bool | None) -> bool:
        """Take a metric, and the training's own verdict, which counts more; return whether the target is reached.

        A metric that is not a number, or is beyond what the bus takes, reaches nothing by itself.
        """
        target = self._target
        is_reached = reached if reached is not None else target is not None and self._reaches(value, target)
        if is_reached and self.reason is None:
            self.reason = (
                "the training reports that it has reached its target"
                if reached
                else f"the metric, {value:g}, has reached its target, {target:g}"
            )
        if is_reached or target is not None:
            self.reached = bool(is_reached or self.reached)
        return is_reached

    def _reaches(self, value: float, target: float) -> bool:
        if not abs(value) <= MAX_METRIC:
            return False
        return value >= target if self._mode == "max" else value <= target


class RunProgress:
    """How many iterations a run will have: as given by the training, else estimated from its epochs.

        total = iterations before this epoch + iterations of an epoch · (1 + epochs left)

    In the first epoch the lengths of its loaders give the iterations of an epoch; from the second one on, it is
    the larger of the last two epochs. So a published validation, a `break`, a loader without a length and a loop
    without a loader are right after an epoch or two, and an epoch that was cut short once, as where a run is resumed
    within one, does not make the estimate short.

    The training's thread writes, the worker's reads `total_iterations` and `total_work`.

    Args:
        total_iterations: given by the training; None: estimate it.
        n_ended: returns how many iterations have ended so far.
    """

    def __init__(self, total_iterations: object, n_ended: Callable[[], int]) -> None:
        self.total_iterations: int | None = None
        self.total_work: float | None = None
        self._n_ended = n_ended
        self._is_given = False
        self._epoch_start: int | None = None
        self._n_epochs_left: int | None = None
        self._loader_length: int | None = 0
        self._epoch_lengths: deque[int] = deque(maxlen=2)
        self._passes: tuple[int | None, int] | None = None
        self._batches_per_iteration: int | None = None
        self._is_in_steps = False
        if total_iterations is not None:
            self.set_total(total_iterations)

    def set_total(self, total_iterations: object) -> None:
        """Set how many iterations this process publishes in all: it counts more than any estimate."""
        total = _positive_or_warn(total_iterations, "total_iterations")
        if total is not None:
            self.total_iterations, self._is_given = total, True

    def set_total_work(self, total_work: object) -> None:
        """Set how much work this process does in all."""
        total = to_float(total_work)
        if total is not None and 0 < total <= MAX_METRIC:
            self.total_work = total
        else:
            shown = to_text(total_work, _MAX_SHOWN)
            warn_once(f"total_work = {shown} is not used: must be a number above 0, and up to {MAX_METRIC:g}")

    @property
    def given_total(self) -> int | None:
        """Return what the training has given as its length."""
        return self.total_iterations if self._is_given else None

    @property
    def is_complete(self) -> bool:
        """Return whether all iterations have ended that are known to come; for the loop's own thread."""
        return self.total_iterations is not None and self._n_ended() >= self.total_iterations

    def set_batches_per_iteration(self, n_batches: int) -> None:
        """Set how many batches of a loader an optimizer step takes; the worker's thread finds it out, once."""
        if self._batches_per_iteration is None:
            self._batches_per_iteration = n_batches
            if self._epoch_start is not None:  # else the epochs have ended, and with them what is estimated
                self._estimate()

    def begin_epoch(self, n_left: int | None) -> None:
        """Begin an epoch after which `n_left` follow, None if unknown; the one before it has ended."""
        n_ended = self._n_ended()
        # An empty epoch, of a run that is resumed, is no estimate.
        if self._epoch_start is not None and n_ended > self._epoch_start:
            if not self._epoch_lengths and (expected := self._loader_iterations):
                self._epoch_lengths.append(expected)
            self._epoch_lengths.append(n_ended - self._epoch_start)
        self._epoch_start, self._n_epochs_left, self._loader_length = n_ended, n_left, 0
        self._estimate()

    def end_epochs(self) -> None:
        """Forget the epochs: what follows belongs to none of them."""
        self._epoch_start = self._n_epochs_left = None
        self._epoch_lengths.clear()

    def begin_pass(self, length: int | None, n_epochs: int | None, *, is_in_steps: bool = False) -> None:
        """Begin a pass over a loader of a length, None where it has none; the training makes `n_epochs` such passes.

        `is_in_steps`: an iteration is an optimizer step, which may take several batches; without
        `set_batches_per_iteration` there is no estimate in the first epoch.
        Where `n_epochs` is known the pass is an epoch. Where two loaders have one, there is no estimate.
        """
        if n_epochs is not None:
            n_passes = 0 if self._passes is None else self._passes[1]
            if self._passes is not None and self._passes[0] != length:
                warn_once("the run's length is not published: epochs=… is for one loader, which keeps its length")
                n_passes = n_epochs
            self._passes = length, n_passes + 1
            self.begin_epoch(n_epochs - n_passes - 1)
        self._is_in_steps = is_in_steps
        if length is None or self._loader_length is None:
            self._loader_length = None
        else:
            self._loader_length += length
        self._estimate()

    @property
    def _loader_iterations(self) -> int | None:
        """Return how many iterations the present epoch's loaders are, None if unknown; the last one may be short."""
        n_batches = self._batches_per_iteration if self._is_in_steps else 1
        return None if self._loader_length is None or n_batches is None else -(-self._loader_length // n_batches)

    def _estimate(self) -> None:
        if self._is_given:
            return
        epoch_length = max(self._epoch_lengths, default=self._loader_iterations)
        n_left, total = self._n_epochs_left, None
        if self._epoch_start is not None and n_left is not None and n_left >= 0 and epoch_length:
            total = self._epoch_start + epoch_length * (1 + n_left)
        self.total_iterations = total if total is None or total <= MAX_ITERATIONS else None


def epochs_or_warn(n_epochs: object) -> int | None:
    """Return the argument `epochs` as a plain number, or None, with a warning where it is not one."""
    return None if n_epochs is None else _positive_or_warn(n_epochs, "epochs")


def first_epoch_or_warn(first: object, argument: str) -> int:
    """Return the number of a process's first epoch as a plain one, or 0, with a warning where it is not one."""
    epoch = to_int(first)
    if epoch is not None and 0 <= epoch <= MAX_EPOCHS:
        return epoch
    warn_once(f"{argument} = {to_text(first, _MAX_SHOWN)} is not used: must be a whole number from 0 to {MAX_EPOCHS}")
    return 0


def n_epochs_or_warn(n_epochs: object) -> int | None:
    """Return how many epochs there are, or None for no end, with a warning where it is not a number.

    A wrong value must not make a training train nothing.
    """
    n = math.inf if n_epochs is None else to_float(n_epochs)
    if n is None or math.isnan(n):
        warn_once(f"epochs have no end: n_epochs is {to_text(n_epochs, _MAX_SHOWN)}, and must be a whole number")
        return None
    return None if n == math.inf else int(max(n, 0.0))


def _positive_or_warn(value: object, argument: str) -> int | None:
    integer, real = to_int(value), to_float(value)
    if integer is None and real is not None and real.is_integer():  # as 90 epochs of 1000 / 4 iterations are
        integer = int(real)
    if integer is not None and 1 <= integer <= MAX_ITERATIONS:
        return integer
    shown = to_text(value, _MAX_SHOWN)
    warn_once(f"{argument} = {shown} is not used: must be a whole number from 1 to {MAX_ITERATIONS}")
    return None
