"""The reading side of the recorder: what the worker's thread makes of the marks that the training's thread has written.

Neither waits for the other, and there are no locks. The training's thread alone appends chunks, and marks to them; this
one takes chunks out. A step that a third thread waits for has a number in the place of a time: a mark below `BREAK`.
"""

from collections import deque

from publishers.training.iterations.chunk import BREAK, Chunk, Segment, append_segment, unbroken
from publishers.training.iterations.work import WorkLog


class AwaitedSteps:
    """Steps whose ends another thread waits for: marked in the training's thread, ended in that one, read in a third.

    Args:
        max_ended: ends that are kept until they are read; older ones are dropped.
    """

    def __init__(self, max_ended: int) -> None:
        self.n_marked = 0
        self._n_ended = self._last_ns = 0
        self._ends_ns: deque[tuple[int, int]] = deque(maxlen=max_ended)

    @property
    def is_pending(self) -> bool:
        """Return whether steps were marked that have not ended."""
        return self.n_marked > self._n_ended

    def end(self, number: int, now_ns: int) -> None:
        """End a step; for the one thread that waits for them."""
        self._ends_ns.append((number, now_ns))
        self._n_ended = number

    def resolve(self, previous: int, marks: list[int]) -> tuple[int, list[int]]:
        """Return a mark, and those after it as far as they have ended, with times for numbers; none goes backwards."""
        times_ns: list[int] = []
        for mark in (previous, *marks):
            time_ns = mark if mark >= BREAK else self._end_ns(BREAK - mark)
            if time_ns is None:
                break
            if time_ns != BREAK:
                self._last_ns = time_ns = max(time_ns, self._last_ns)
            times_ns.append(time_ns)
        return (times_ns[0], times_ns[1:]) if times_ns else (previous, [])

    def _end_ns(self, number: int) -> int | None:
        """Return when a step has ended; where that was dropped, when the next one had; None: it has not."""
        ends_ns = self._ends_ns
        while ends_ns and ends_ns[0][0] < number:
            ends_ns.popleft()
        return ends_ns[0][1] if ends_ns else None


class ChunkReader:
    """Reads chunks as they are written; only one thread may do so.

    Args:
        chunks: those that are not read yet, oldest first; taken out. The last one may still grow.
        awaited: the steps in them that are waited for.
        work: what the training has told of its iterations.
    """

    def __init__(self, chunks: deque[Chunk], awaited: AwaitedSteps, work: WorkLog) -> None:
        self._chunks = chunks
        self._awaited = awaited
        self._work = work
        self._head: Chunk | None = None
        self._position = 0
        self._next = 0

    def drain(self, max_segments: int) -> list[Segment]:
        """Return what was recorded since the last call, oldest first; about `max_segments` at most.

        What was dropped shows as a gap in the numbers.
        """
        segments: list[Segment] = []
        while len(segments) < max_segments and (head := self._next_head()) is not None:
            written, length = len(head.marks), head.length  # in this order: what is written later may not count
            if length is not None:
                written = length
            previous = head.marks[self._position - 1] if self._position else BREAK
            marks = told = head.marks[self._position : written]
            if head.counted_by == "waiter":
                previous, marks = self._awaited.resolve(previous, marks)
                length = length if self._position + len(marks) == written else None
                written = self._position + len(marks)
            work = self._work.amounts(told[: len(marks)])
            for begin_ns, ends_ns, place in unbroken(marks, previous):
                segment = Segment(self._next, head.epoch, begin_ns, ends_ns, head.counted_by)
                segment.work = work[place : place + len(ends_ns)]
                append_segment(segments, segment)
                self._next += len(ends_ns)
            self._position = written
            if length is None:
                break  # the present chunk, read as far as it was written
        return segments

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
