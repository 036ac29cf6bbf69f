"""Finds when the training asked for the first batch of each iteration, or got it, in the logs of passes over loaders.

The worker's side: it reads the logs while the training's thread appends to them.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from publishers.training.iterations.chunk import Segment
from publishers.training.iterations.open_pass import TimeLog
from publishers.training.iterations.recorder import MAX_LOGS

_MIN_ITERATIONS: Final = 8
"""Iterations after which it is known how many batches one takes."""


class _PassTimes:
    """The logs of one pass, from where they were read to, and in how many iterations it was asked for batches."""

    def __init__(self) -> None:
        self.logs: deque[TimeLog] = deque()
        self._position = 0
        self._n_iterations = self._n_asked = 0

    @property
    def is_regular(self) -> bool:
        """Return whether it belongs to the training; a validation that goes on with a pass asks now and then."""
        return 2 * self._n_asked >= self._n_iterations

    @property
    def is_read(self) -> bool:
        """Return whether nothing is left, and nothing will come."""
        return not self.logs or (
            len(self.logs) == 1 and self.logs[0].is_sealed and self._position >= len(self.logs[0].times)
        )

    def is_telling(self, time_ns: int, *, is_receipt: bool) -> bool:
        """Return whether it was gone through at a time, so that what was not asked for is known, too."""
        log = self.logs[0] if self.logs else None
        return log is not None and log.is_receipt == is_receipt and log.times[0] <= time_ns

    def firsts(self, begin_ns: int, ends_ns: list[int], *, is_receipt: bool) -> tuple[list[int | None], int]:
        """Return the first time in each iteration, or None, and how many times there are in all; they are read."""
        found: list[int | None] = []
        n_found = 0
        for end_ns in ends_ns:
            first = None
            for time_ns in self._read_until(end_ns, is_receipt=is_receipt):
                if time_ns >= begin_ns:
                    first = time_ns if first is None else first
                    n_found += 1
            found.append(first)
            begin_ns = end_ns
        self._n_iterations += len(found)
        self._n_asked += len(found) - found.count(None)
        return found, n_found

    def _read_until(self, end_ns: int, *, is_receipt: bool) -> list[int]:
        """Return the times before `end_ns`; they are read."""
        read: list[int] = []
        while self.logs:
            log, begin = self.logs[0], self._position
            times, position, n_written = log.times, begin, len(log.times)
            while position < n_written and times[position] < end_ns:
                position += 1
            if position > begin and log.is_receipt == is_receipt:
                read += times[begin:position]
            self._position = position
            if position < n_written or len(self.logs) == 1:
                break
            self.logs.popleft()
            self._position = 0
        return read


class RequestTimes:
    """The requests of one rank's iterations.

    Args:
        logs: from the training's thread; taken out.

    Attributes:
        batches_per_iteration: how many batches the training asks for in an iteration; None: not known yet.
    """

    def __init__(self, logs: deque[TimeLog]) -> None:
        self.batches_per_iteration: int | None = None
        self._logs = logs
        self._passes: dict[object, _PassTimes] = {}
        self._n_logs = self._n_batches = self._n_iterations = 0
        self._known_from_ns = 0

    def complete(self, segment: Segment) -> None:
        """Add to iterations when their first batches were asked for (or, counted by the loader, were there)."""
        self._take_logs()
        if not self._passes:
            return
        is_receipt = segment.counted_by == "loader"
        passes = list(self._passes.values())
        is_known = any(one.is_telling(segment.begin_ns, is_receipt=is_receipt) for one in passes)
        found = [one.firsts(segment.begin_ns, segment.ends_ns, is_receipt=is_receipt) for one in passes]
        regular = [these for one, these in zip(passes, found, strict=True) if one.is_regular and these[1]]
        others = [these for one, these in zip(passes, found, strict=True) if not one.is_regular and these[1]]
        self._passes = {owner: one for owner, one in self._passes.items() if not one.is_read}
        if not (is_known or regular or others) or segment.begin_ns < self._known_from_ns:
            return
        begins = (segment.begin_ns, *segment.ends_ns)  # what asked for nothing did not wait, either
        times = _earliest([firsts for firsts, _ in regular], [firsts for firsts, _ in others], begins)
        if is_receipt:
            segment.received_ns = times
        else:
            segment.requests_ns = times
            self._count_batches(len(times), max((n_times for _, n_times in regular or others), default=0))

    def _count_batches(self, n_iterations: int, n_batches: int) -> None:
        self._n_iterations += n_iterations
        self._n_batches += n_batches
        if self.batches_per_iteration is None and self._n_iterations >= _MIN_ITERATIONS:
            self.batches_per_iteration = max(1, round(self._n_batches / self._n_iterations))

    def _take_logs(self) -> None:
        while self._logs:
            log = self._logs.popleft()
            if log.number != self._n_logs + 1:  # older ones were dropped
                self._known_from_ns = log.times[0]
            self._n_logs = log.number
            self._passes.setdefault(log.owner, _PassTimes()).logs.append(log)
        while len(self._passes) > MAX_LOGS:
            del self._passes[next(iter(self._passes))]


def _earliest(regular: list[list[int | None]], others: list[list[int | None]], begins: Sequence[int]) -> list[int]:
    """Return the earliest time in each iteration: of the regular passes, else of others, else its begin."""
    times = list(begins[:-1])
    for k in range(len(times)):
        candidates = [one[k] for one in regular if one[k] is not None] or [
            one[k] for one in others if one[k] is not None
        ]
        if candidates:
            times[k] = min(time_ns for time_ns in candidates if time_ns is not None)
    return times
