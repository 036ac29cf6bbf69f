"""Finds when the training asked for the first batch of each iteration, or got it, in the logs of passes over loaders.

The worker's side: it reads the logs while the training's thread appends to them.
"""

from collections import deque
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

    def first_within(self, begin_ns: int, end_ns: int, *, is_receipt: bool) -> tuple[int | None, int]:
        """Return the first time from `begin_ns` on, before `end_ns`, or None, and how many there are; they are read."""
        first, n_times = None, 0
        while self.logs:
            times, position = self.logs[0].times, self._position
            n_written = len(times)
            while position < n_written and times[position] < begin_ns:
                position += 1
            start = position
            while position < n_written and times[position] < end_ns:
                position += 1
            if position > start and self.logs[0].is_receipt == is_receipt:
                first = times[start] if first is None else first
                n_times += position - start
            self._position = position
            if position < n_written or len(self.logs) == 1:
                break
            self.logs.popleft()
            self._position = 0
        self._n_iterations += 1
        self._n_asked += first is not None
        return first, n_times


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
        is_known = any(one.is_telling(segment.begin_ns, is_receipt=is_receipt) for one in self._passes.values())
        times: list[int] = []
        begin_ns = segment.begin_ns
        for end_ns in segment.ends_ns:
            time_ns = self._first(begin_ns, end_ns, is_receipt=is_receipt)
            is_known = is_known or time_ns is not None
            times.append(begin_ns if time_ns is None else time_ns)  # one that asked for nothing did not wait, either
            begin_ns = end_ns
        self._passes = {owner: one for owner, one in self._passes.items() if not one.is_read}
        if not is_known or segment.begin_ns < self._known_from_ns:
            return
        if is_receipt:
            segment.received_ns = times
        else:
            segment.requests_ns = times
            self._count_batches(len(times))

    def _first(self, begin_ns: int, end_ns: int, *, is_receipt: bool) -> int | None:
        """Return the first time within an iteration of a pass that belongs to it; None: there is none."""
        found: list[tuple[int, int]] = []
        regular: list[tuple[int, int]] = []
        for one in self._passes.values():
            is_regular = one.is_regular
            time_ns, n_times = one.first_within(begin_ns, end_ns, is_receipt=is_receipt)
            if time_ns is not None:
                (regular if is_regular else found).append((time_ns, n_times))
        if regular or found:
            found = regular or found
            self._n_batches += max(n_times for _, n_times in found)
            return min(found)[0]
        return None

    def _count_batches(self, n_iterations: int) -> None:
        self._n_iterations += n_iterations
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
