"""How far a training is: its epochs, how many iterations it will have, whether its metric has reached the target.

Whether a training has reached what it is for: a target for its metric, or its own word.

How many iterations a run will have: by the training's own word, else by its epochs and what one of them holds.

    total = iterations before this epoch + iterations of an epoch · (1 + epochs left)

In the first epoch the lengths of the loaders gone through in it tell what an epoch holds; from the second one on, the
larger of the last two epochs does, as they were. So a validation that is published, a `break`, a loader without a
length and a loop that is no loader at all are counted right after an epoch or two, and an epoch that was cut short
once, as where a run is resumed within one, does not make the rest look short.

The epochs of a training loop, counted: until there are enough, or the run should stop.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

from publishers.training.coerce import to_float, to_text, warn_once
from publishers.training.settings import to_int

if TYPE_CHECKING:
    from publishers.training.publisher import Publisher


LARGEST_METRIC: Final = 1e18
"""What the bus takes; what is not a number is not below it, either."""
Mode = Literal["max", "min"]
_LONGEST: Final = 40


class TargetMetric:
    """A target and how the metrics stand to it; the training loop's own business, whether or not anything is published.

    Attributes:
        reached: True from when it was reached; False where there is a target, metrics came, and none reached it.
        reason: why the training is at its goal, in a sentence; None until it is.
    """

    def __init__(self) -> None:
        self.reached: bool | None = None
        self.reason: str | None = None
        self._target: float | None = None
        self._mode: Mode = "max"

    def aim(self, target: object, mode: object) -> list[str]:
        """Take a target for the metric, to be reached from below (`max`) or above (`min`); return what is wrong."""
        faults = []
        if mode not in {"max", "min"}:
            faults.append(f"target_mode = {to_text(mode, _LONGEST)}: must be max or min")
        if target is None:
            return faults
        value = to_float(target)
        if value is None or not abs(value) <= LARGEST_METRIC:
            faults.append(
                f"target = {to_text(target, _LONGEST)}: must be a number from -{LARGEST_METRIC:g} to {LARGEST_METRIC:g}"
            )
        elif not faults:
            self._target, self._mode = value, "min" if mode == "min" else "max"
        return faults

    def note(self, value: float, *, said: bool | None) -> bool:
        """Take a metric, and what the training says of it, which comes first; return whether it is at the goal.

        What is no number, or lies beyond what the bus takes, reaches nothing by itself.
        """
        target = self._target
        is_reached = said if said is not None else target is not None and self._reaches(value, target)
        if is_reached and self.reason is None:
            self.reason = (
                "the training says that it has reached its target"
                if said
                else f"the metric, {value:g}, has reached its target, {target:g}"
            )
        if is_reached or target is not None:
            self.reached = bool(is_reached or self.reached)
        return is_reached

    def _reaches(self, value: float, target: float) -> bool:
        if not abs(value) <= LARGEST_METRIC:
            return False
        return value >= target if self._mode == "max" else value <= target


MOST_ITERATIONS: Final = 1 << 53
"""What the bus takes."""


class RunProgress:
    """The length of one run. The training's thread writes, the sender's reads `total_iterations`.

    Args:
        said: what the training says: it counts more than any estimate.
        n_ended: returns how many iterations have ended so far.
    """

    def __init__(self, said: object, n_ended: Callable[[], int]) -> None:
        self.total_iterations: int | None = None
        self._n_ended = n_ended
        self._is_said = False
        self._begun: int | None = None
        self._n_left: int | None = None
        self._seen: int | None = 0
        self._epochs: deque[int] = deque(maxlen=2)
        self._passes: tuple[int | None, int] | None = None
        if said is not None:
            self.say(said)

    def say(self, total_iterations: object) -> None:
        """Take the training's own word: how many iterations this process publishes in all."""
        plain = _count_or_warn(total_iterations, "total_iterations")
        if plain is not None:
            self.total_iterations, self._is_said = plain, True

    def begin_epoch(self, n_left: int | None) -> None:
        """Begin an epoch after which `n_left` follow, None where nobody knows; the one before it has ended."""
        n_ended = self._n_ended()
        if self._begun is not None and n_ended > self._begun:  # an empty one, of a run that is resumed, tells nothing
            if not self._epochs and self._seen:
                self._epochs.append(self._seen)
            self._epochs.append(n_ended - self._begun)
        self._begun, self._n_left, self._seen = n_ended, n_left, 0
        self._estimate()

    def end_epochs(self) -> None:
        """Forget the epochs: what follows is none of theirs."""
        self._begun = self._n_left = None
        self._epochs.clear()

    def begin_pass(self, length: int | None, n_epochs: int | None) -> None:
        """Begin a pass over a loader of a length, None where it has none; the training makes `n_epochs` such passes.

        Where `n_epochs` is known the pass is an epoch. Of two loaders with one, nobody knows which of them is.
        """
        if n_epochs is not None:
            n_passes = 0 if self._passes is None else self._passes[1]
            if self._passes is not None and self._passes[0] != length:
                warn_once("the run's length is not published: epochs=… is for one loader, which keeps its length")
                n_passes = n_epochs
            self._passes = length, n_passes + 1
            self.begin_epoch(n_epochs - n_passes - 1)
        self._seen = None if length is None or self._seen is None else self._seen + length
        self._estimate()

    def _estimate(self) -> None:
        if self._is_said:
            return
        holds = max(self._epochs, default=self._seen)
        total = None
        if self._begun is not None and self._n_left is not None and self._n_left >= 0 and holds:
            total = self._begun + holds * (1 + self._n_left)
        self.total_iterations = total if total is None or total <= MOST_ITERATIONS else None


def length_of(iterable: object) -> int | None:
    """Return the length of a loader; None where it has none, or only guesses it.

    PyTorch's loader of an iterable dataset warns, later on, where it had been asked and its guess was wrong.
    """
    try:
        sampler = getattr(iterable, "sampler", None)
        if sampler is not None and not hasattr(type(sampler), "__len__"):
            return None
        return to_int(len(iterable))  # type: ignore[arg-type]  # TypeError
    except Exception:  # noqa: BLE001 — somebody else's loader
        return None


def epochs_or_warn(n_epochs: object) -> int | None:
    """Return the number of passes that somebody passed, or None, with a warning where it is none."""
    return None if n_epochs is None else _count_or_warn(n_epochs, "epochs")


def _count_or_warn(value: object, argument: str) -> int | None:
    plain, real = to_int(value), to_float(value)
    if plain is None and real is not None and real.is_integer():  # as 90 epochs of 1000 / 4 iterations are
        plain = int(real)
    if plain is not None and 1 <= plain <= MOST_ITERATIONS:
        return plain
    warn_once(
        f"{argument} = {to_text(value, _LONGEST)} is not used: must be a whole number from 1 to {MOST_ITERATIONS}"
    )
    return None


MOST_EPOCHS: Final = 1 << 31


def go_through(publisher: "Publisher", n_epochs: object, first: object, *, n_ranks: int) -> Iterator[int]:
    """Yield the number of each epoch, and count what is trained in it; see `Publisher.epochs`."""
    n, start = _number_of(n_epochs), first_or_warn(first, "first")
    publisher.recorder.go_on_at(start)
    try:
        for epoch in itertools.count(start) if n is None else range(start, n):
            if publisher.should_stop:
                if n_ranks == 1:
                    break
                warn_once(f"epochs go on, since this is one of {n_ranks} ranks: broadcast should_stop, and break")
            number_before = publisher.recorder.epoch
            publisher.length.begin_epoch(None if n is None else n - epoch - 1)
            yield epoch
            publisher.epoch()
            if publisher.recorder.epoch == number_before:  # it was not published; it was an epoch all the same
                publisher.recorder.skip_epoch()
    finally:
        publisher.length.end_epochs()


def first_or_warn(first: object, argument: str) -> int:
    """Return with which epoch a process begins, 0 where somebody passed what is no such number, with a warning."""
    plain = to_int(first)
    if plain is not None and 0 <= plain <= MOST_EPOCHS:
        return plain
    warn_once(f"{argument} = {to_text(first, 40)} is not used: must be a whole number from 0 to {MOST_EPOCHS}")
    return 0


def _number_of(n_epochs: object) -> int | None:
    """Return how many epochs there are, None without an end; what is no number must not make training train nothing."""
    n = math.inf if n_epochs is None else to_float(n_epochs)
    if n is None or math.isnan(n):
        warn_once(f"epochs have no end: n_epochs is {to_text(n_epochs, 40)}, and must be a whole number")
        return None
    return None if n == math.inf else int(max(n, 0.0))
