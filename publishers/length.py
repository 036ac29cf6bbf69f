"""How many iterations a run will have: by the training's own word, else by its epochs and what one of them holds.

    total = iterations before this epoch + iterations of an epoch · (1 + epochs left)

In the first epoch the lengths of the loaders gone through in it tell what an epoch holds; from the second one on, the
larger of the last two epochs does, as they were. So a validation that is published, a `break`, a loader without a
length and a loop that is no loader at all are counted right after an epoch or two, and an epoch that was cut short
once, as where a run is resumed within one, does not make the rest look short.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from publishers.caution import number, text, warn_once
from publishers.environment import whole_number

MOST_ITERATIONS: Final = 1 << 53
"""What the bus takes."""
_LONGEST: Final = 40


class Length:
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
        return whole_number(len(iterable))  # type: ignore[arg-type]  # TypeError
    except Exception:  # noqa: BLE001 — somebody else's loader
        return None


def epochs_or_warn(n_epochs: object) -> int | None:
    """Return the number of passes that somebody passed, or None, with a warning where it is none."""
    return None if n_epochs is None else _count_or_warn(n_epochs, "epochs")


def _count_or_warn(value: object, argument: str) -> int | None:
    plain, real = whole_number(value), number(value)
    if plain is None and real is not None and real.is_integer():  # as 90 epochs of 1000 / 4 iterations are
        plain = int(real)
    if plain is not None and 1 <= plain <= MOST_ITERATIONS:
        return plain
    warn_once(f"{argument} = {text(value, _LONGEST)} is not used: must be a whole number from 1 to {MOST_ITERATIONS}")
    return None
