"""The buffer between the training loop and the worker's thread: iteration times in bounded memory, with losses counted.

The loop appends clock readings to the list of the present chunk (about 50 ns), and does nothing else. In a chunk the
first mark, and the first after a `BREAK`, begins an iteration; every other mark ends one and begins the next:

    [begin, end, end, BREAK, begin, end]     3 iterations; a pause before the third

Lists are never swapped under the loop, which would lose appends: only the loop itself begins a new chunk, after about
`CHUNK` marks. Each chunk knows the number of its first iteration, so a chunk that a full buffer has dropped shows as a
gap in the numbers. There are no locks: one thread (the loop) writes, one (the worker's) reads.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from publishers.messages.training import CountedBy

CHUNK: Final = 256
"""Marks in a chunk before the next one: opening it costs about 1 µs, so 4 ns an iteration."""
MAX_BUFFERED: Final = 65_536
"""Iterations that wait while the broker is away: about 3 MB. Older ones are dropped, a chunk at a time."""
MAX_IN_SEGMENT: Final = 8_192
"""Iterations in one message: 64 KiB."""
BREAK: Final = -1
_MAX_CHUNKS: Final = 1_024
_MAX_MARKS: Final = 2 * CHUNK
"""Marks after which a pause begins a new chunk; a pass, whose chunk is its own, stays below."""


class Chunk:
    """Marks that belong to one epoch, of one kind; `length` is set once no further mark counts."""

    __slots__ = ("before_ns", "counted_by", "epoch", "extra", "first", "has_breaks", "length", "marks")

    def __init__(self, *, first: int, epoch: int, marks: list[int], counted_by: CountedBy, before_ns: int = 0) -> None:
        self.first = first
        self.epoch = epoch
        self.marks = marks
        self.counted_by = counted_by
        self.length: int | None = None
        self.has_breaks = False
        self.extra = 0  # marks of pauses, which are not the loop's own
        self.before_ns = before_ns  # how long the iteration before this chunk took [ns]


@dataclass(slots=True)
class Segment:
    """Consecutive iterations without a gap: what one message carries; times that are not known are empty lists."""

    first: int
    epoch: int
    begin_ns: int
    ends_ns: list[int]
    counted_by: CountedBy = "loader"
    requests_ns: list[int] = field(default_factory=list)
    received_ns: list[int] = field(default_factory=list)


class Recorder:
    """Records marks of time; the loop appends to `chunk.marks` itself, since a call would cost more than the rest."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self.clock_ns = clock_ns
        self.chunk = Chunk(first=0, epoch=0, marks=[], counted_by="loader")
        self._chunks = deque([self.chunk])
        self._epoch_first = 0
        self._first_epoch = 0
        self._first_batch_ns: int | None = None
        self._head: Chunk | None = None
        self._position = 0
        self._next = 0

    def count_by(self, way: CountedBy) -> None:
        """Let what follows be counted in another way; the next mark begins an iteration."""
        if way != self.chunk.counted_by:
            self._open([]).counted_by = way

    def rotate(self, chunk: Chunk) -> Chunk:
        """Return the chunk that follows `chunk`: without a gap, unless something else was recorded meanwhile."""
        marks = chunk.marks
        if chunk is not self.chunk or not marks or marks[-1] == BREAK:
            return self._open([])
        before_ns = marks[-1] - marks[-2] if len(marks) > 1 and marks[-2] != BREAK else 0
        return self._open([marks[-1]], before_ns=before_ns)

    def begin(self) -> None:
        """Begin an iteration now."""
        self.pause()
        self.chunk.marks.append(self.clock_ns())
        self.chunk.extra += 1

    def pause(self) -> None:
        """Begin the next iteration at the next mark, not at the last one."""
        self.append_break(self.chunk)
        if len(self.chunk.marks) > _MAX_MARKS:
            self._open([])

    def next_epoch(self) -> None:
        """Count what follows to the next epoch, unless this one is still empty; the next mark begins an iteration."""
        chunk = self._open([])
        if chunk.first > self._epoch_first:
            self._epoch_first = chunk.first
            chunk.epoch += 1

    def skip_epoch(self) -> None:
        """Count what follows to the next epoch, though this one is empty."""
        self._open([]).epoch += 1

    def resume_at(self, epoch: int) -> None:
        """Count what follows to this epoch, if it is a later one: the epochs before it were another process's."""
        if epoch > self.epoch:
            self._first_epoch += epoch - self.epoch
            chunk = self._open([])
            self._epoch_first, chunk.epoch = chunk.first, epoch

    @property
    def n_epochs(self) -> int:
        """Return how many epochs this process has gone through."""
        return self.epoch - self._first_epoch

    @property
    def epoch(self) -> int:
        """Return the number of the present epoch, counted from 0."""
        return self.chunk.epoch

    @property
    def n_ended(self) -> int:
        """Return how many iterations have ended so far; for the loop's own thread."""
        return self.chunk.first + _n_iterations(self.chunk, len(self.chunk.marks))

    def first_batch_fetched(self) -> None:
        """Take the time at which a pass may begin; only a request for a second batch makes it one."""
        self._first_batch_ns = self.clock_ns()

    def start_pass(self) -> Chunk:
        """Return the chunk of the pass whose first batch was fetched last: a new epoch."""
        if self._first_batch_ns is not None:
            begin_ns, self._first_batch_ns = self._first_batch_ns, None
            self.next_epoch()
            self.chunk.marks.append(begin_ns)
        return self.chunk

    def pause_pass(self) -> None:
        """End the iteration of the batch in hand now, and begin the next one at the next request."""
        now_ns = self.clock_ns()
        chunk = self.start_pass()
        if not chunk.marks or chunk.marks[-1] == BREAK:
            return  # paused already
        chunk.marks.append(now_ns)
        self.append_break(chunk)
        chunk.extra += 1

    @staticmethod
    def append_break(chunk: Chunk) -> None:
        """Let the next mark in a chunk begin an iteration instead of ending one."""
        if chunk.marks and chunk.marks[-1] != BREAK:
            chunk.has_breaks = True
            chunk.marks.append(BREAK)
            chunk.extra += 1

    def abandon_pass(self, chunk: Chunk) -> None:
        """End a pass that was left with a batch in hand: it counts where it took half as long as the one before.

        A `break` after the step ends a whole iteration, one before the step ends none: only the time differs.
        """
        now_ns, marks = self.clock_ns(), chunk.marks
        if chunk is not self.chunk or not marks or marks[-1] == BREAK:
            return
        before_ns = marks[-1] - marks[-2] if len(marks) > 1 and marks[-2] != BREAK else chunk.before_ns
        if 2 * (now_ns - marks[-1]) >= before_ns:
            marks.append(now_ns)

    def drain(self, max_segments: int) -> list[Segment]:
        """Return what was recorded since the last call, oldest first; about `max_segments` at most.

        Only the worker's thread may call it. What was dropped shows as a gap in the numbers.
        """
        segments: list[Segment] = []
        while len(segments) < max_segments and (head := self._next_head()) is not None:
            written, length = len(head.marks), head.length  # in this order: what is written later may not count
            if length is not None:
                written = length
            previous = head.marks[self._position - 1] if self._position else BREAK
            for begin_ns, ends_ns in _unbroken(head.marks[self._position : written], previous):
                _append(segments, Segment(self._next, head.epoch, begin_ns, ends_ns, head.counted_by))
                self._next += len(ends_ns)
            self._position = written
            if length is None:
                break  # the present chunk, read as far as it was written
        return segments

    def _open(self, marks: list[int], *, before_ns: int = 0) -> Chunk:
        old = self.chunk
        old.length = len(old.marks)
        first = old.first + _n_iterations(old, old.length)
        try:
            if first == old.first and self._chunks[-1] is old:
                self._chunks.pop()  # there is no iteration in it: it must not displace those that have some
            while first - self._chunks[0].first >= MAX_BUFFERED or len(self._chunks) >= _MAX_CHUNKS:
                self._chunks.popleft()
        except IndexError:
            pass  # the worker has read them all meanwhile
        self.chunk = Chunk(first=first, epoch=old.epoch, marks=marks, counted_by=old.counted_by, before_ns=before_ns)
        self._chunks.append(self.chunk)
        return self.chunk

    def _next_head(self) -> Chunk | None:
        """Return the chunk to read from: the present one, or the next where it is read to its end."""
        head = self._head
        if head is None or head.length == self._position:
            try:
                self._head = head = self._chunks.popleft()
            except IndexError:
                return None
            self._position = 0
            self._next = head.first
        return head


def _n_iterations(chunk: Chunk, length: int) -> int:
    """Return the number of iterations in the first marks of a chunk."""
    if chunk.has_breaks:
        return sum(len(ends_ns) for _, ends_ns in _unbroken(chunk.marks[:length], BREAK))
    return max(0, length - 1)


def _unbroken(marks: list[int], previous: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the begin and the ends of each sequence without a break; `previous` is the mark before the first."""
    start = 0
    while start < len(marks):
        try:
            stop = marks.index(BREAK, start)
        except ValueError:
            stop = len(marks)
        if previous == BREAK and stop > start:
            previous, start = marks[start], start + 1
        if stop > start:
            yield previous, marks[start:stop]
        previous, start = BREAK, stop + 1


def _append(segments: list[Segment], new: Segment) -> None:
    """Add a segment to the list, as part of the last one where it follows without a gap and there is room."""
    last = segments[-1] if segments else None
    if (
        last is not None
        and (last.epoch, last.counted_by) == (new.epoch, new.counted_by)
        and last.first + len(last.ends_ns) == new.first
        and last.ends_ns[-1] == new.begin_ns
        and len(last.ends_ns) + len(new.ends_ns) <= MAX_IN_SEGMENT
    ):
        last.ends_ns += new.ends_ns
    else:
        segments.append(new)
