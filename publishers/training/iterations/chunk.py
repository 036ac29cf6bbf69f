"""Marks of time in chunks, and the iterations that they are.

In a chunk the first mark, and the first after a `BREAK`, begins an iteration; every other mark ends one and begins the
next:

    [begin, end, end, BREAK, begin, end]     3 iterations; a pause before the third
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from publishers.messages.training import CountedBy

MAX_IN_SEGMENT: Final = 4_096
"""Iterations in one message: 128 KiB with three times and the work of each; brokers take 256 KiB."""
BREAK: Final = -1


class Chunk:
    """Marks that belong to one epoch, of one kind; `length` is set once no further mark counts."""

    __slots__ = ("before_ns", "counted_by", "epoch", "extra", "first", "length", "marks", "n_breaks")

    def __init__(self, *, first: int, epoch: int, marks: list[int], counted_by: CountedBy, before_ns: int = 0) -> None:
        self.first = first
        self.epoch = epoch
        self.marks = marks
        self.counted_by = counted_by
        self.length: int | None = None
        self.n_breaks = 0
        self.extra = 0  # marks of pauses, which are not the loop's own
        self.before_ns = before_ns  # how long the iteration before this chunk took [ns]


@dataclass(slots=True)
class Segment:
    """Consecutive iterations without a gap: what one message carries; what is not known of them are empty lists."""

    first: int
    epoch: int
    begin_ns: int
    ends_ns: list[int]
    counted_by: CountedBy = "loader"
    requests_ns: list[int] = field(default_factory=list)
    received_ns: list[int] = field(default_factory=list)
    work: list[float] = field(default_factory=list)


def n_iterations(chunk: Chunk, length: int) -> int:
    """Return the number of iterations in the first marks of a chunk."""
    marks = chunk.marks
    n_begins = chunk.n_breaks + (length > 0 and marks[length - 1] != BREAK)
    return max(0, length - chunk.n_breaks - n_begins)


def unbroken(marks: list[int], previous: int) -> Iterator[tuple[int, list[int], int]]:
    """Yield the begin and the ends of each sequence without a break, and the place of the first end in `marks`.

    `previous` is the mark before the first.
    """
    start = 0
    while start < len(marks):
        try:
            stop = marks.index(BREAK, start)
        except ValueError:
            stop = len(marks)
        if previous == BREAK and stop > start:
            previous, start = marks[start], start + 1
        if stop > start:
            yield previous, marks[start:stop], start
        previous, start = BREAK, stop + 1


def append_segment(segments: list[Segment], new: Segment) -> None:
    """Add a segment to the list, as part of the last one where it follows without a gap and there is room."""
    last = segments[-1] if segments else None
    if (
        last is not None
        and (last.epoch, last.counted_by) == (new.epoch, new.counted_by)
        and last.first + len(last.ends_ns) == new.first
        and last.ends_ns[-1] == new.begin_ns
        and len(last.ends_ns) + len(new.ends_ns) <= MAX_IN_SEGMENT
    ):
        if last.work or new.work:
            last.work = last.work or [math.nan] * len(last.ends_ns)
            last.work += new.work or [math.nan] * len(new.ends_ns)
        last.ends_ns += new.ends_ns
    else:
        segments.append(new)
