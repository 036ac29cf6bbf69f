"""How much work each iteration was, as the training says it: in tokens, for one. Times scatter with it, rates do not.

It is told with an iteration, or found for each batch of a loader: an iteration's work is then that of the batches which
it has received. The training's thread appends to queues of bounded length; the worker's takes out, and looks whether
plain numbers are amounts. What is none is NaN: the work of its iteration is not known.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from publishers.messages.training import MAX_WORK
from publishers.training.coerce import to_float, to_text, warn_once
from publishers.training.iterations.chunk import Segment

MAX_WAITING: Final = 65_536
"""Amounts that wait while the broker is away, as many as iterations; of older ones the work is not known."""
UNKNOWN: Final = math.nan
WorkOf = Callable[[Any], object]
"""Returns how much work a batch is."""


class WorkLog:
    """The work that waits for its iterations."""

    def __init__(self) -> None:
        self.told: deque[tuple[int, float]] = deque(maxlen=MAX_WAITING)
        self._by_mark: dict[int, float] = {}  # the same, for the worker's thread alone
        self._received: deque[tuple[int, float]] = deque(maxlen=MAX_WAITING)

    def tell(self, mark: int, value: object) -> None:
        """Note the work of the iteration that ends with a mark, before the mark; several amounts add up."""
        self.told.append((mark, plain_work(value)))

    def receive(self, time_ns: int, value: object) -> None:
        """Note the work of a batch that was received at a time [ns]."""
        self._received.append((time_ns, plain_work(value)))

    def amounts(self, marks: list[int]) -> list[float]:
        """Return the work that was told of each mark, shape (n_marks,); an empty list where there is none."""
        by_mark = self._by_mark
        while self.told:
            mark, number = self.told.popleft()
            by_mark[mark] = by_mark.get(mark, 0.0) + to_work(number)
        if not by_mark:
            return []
        found = [by_mark.pop(mark, UNKNOWN) for mark in marks]
        while len(by_mark) > MAX_WAITING:  # of marks that were dropped
            del by_mark[next(iter(by_mark))]
        return found

    def complete(self, segment: Segment) -> None:
        """Add to iterations the work of the batches received in them, where none was told."""
        received, begin_ns = self._received, segment.begin_ns
        if not received:
            return
        found: list[float] = []
        for end_ns in segment.ends_ns:
            amounts = []
            while received and received[0][0] < end_ns:
                time_ns, number = received.popleft()
                if time_ns >= begin_ns:  # else in a pause before
                    amounts.append(to_work(number))
            found.append(sum(amounts) if amounts else UNKNOWN)
            begin_ns = end_ns
        told = segment.work or [UNKNOWN] * len(found)
        segment.work = [found[k] if math.isnan(amount) else amount for k, amount in enumerate(told)]


def plain_work(value: object) -> float:
    """Return work as a plain number, which may be no amount; NaN, which is told once, where it is none.

    Nothing that is on a device is waited for.
    """
    if type(value) is int or type(value) is float:
        return value
    if not _is_here(value):
        warn_once(
            f"the work of an iteration is not used: a {type(value).__name__} on a device would have to be waited for; "
            "pass a number that the host knows"
        )
        return UNKNOWN
    number = None if isinstance(value, str | bytes | bool) else to_float(value)
    if number is None:
        _warn_of(value)
        return UNKNOWN
    return number


def to_work(number: float) -> float:
    """Return a plain number as an amount of work; NaN, which is told once, where it is none."""
    if 0 < number <= MAX_WORK:
        return float(number)
    if number is not UNKNOWN:  # else it was told
        _warn_of(number)
    return UNKNOWN


def work_in(work_of: WorkOf, batch: object) -> object:
    """Return what is said to be the work of a batch; NaN, which is told once, where that fails."""
    try:
        return work_of(batch)
    except Exception as error:  # noqa: BLE001 — training goes on whatever it is
        warn_once(f"the work of a batch is not known: work raises {type(error).__name__}: {to_text(error, 200)}")
        return UNKNOWN


def _warn_of(value: object) -> None:
    warn_once(
        f"the work of an iteration is not used: this {type(value).__name__} is no number above 0 and up to "
        f"{MAX_WORK:g}; such an iteration counts as one of mean work"
    )


def _is_here(value: object) -> bool:
    """Return whether a value is in the host's memory, and computed."""
    try:
        if hasattr(value, "block_until_ready"):
            return False
        return "cpu" in str(getattr(value, "device", "cpu")).lower()
    except Exception:  # noqa: BLE001 — an attribute of somebody else's object
        return False
