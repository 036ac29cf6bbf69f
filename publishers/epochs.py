"""The epochs of a training loop, counted: until there are enough, or the run should stop."""

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from publishers.caution import number, text, warn_once
from publishers.environment import whole_number

if TYPE_CHECKING:
    from publishers.publisher import Publisher

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
    plain = whole_number(first)
    if plain is not None and 0 <= plain <= MOST_EPOCHS:
        return plain
    warn_once(f"{argument} = {text(first, 40)} is not used: must be a whole number from 0 to {MOST_EPOCHS}")
    return 0


def _number_of(n_epochs: object) -> int | None:
    """Return how many epochs there are, None without an end; what is no number must not make training train nothing."""
    n = math.inf if n_epochs is None else number(n_epochs)
    if n is None or math.isnan(n):
        warn_once(f"epochs have no end: n_epochs is {text(n_epochs, 40)}, and must be a whole number")
        return None
    return None if n == math.inf else int(max(n, 0.0))
