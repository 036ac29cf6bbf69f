"""The iteration log of one rank: iterations as they arrive, ready to be counted between any two moments.

A stretch of iterations of one training process: one right after the other, without a gap.

The log of one training process: its iterations as they arrive, ready to be counted between any two moments.

Times are the node's monotonic clock. Memory is bounded: the oldest stretches are forgotten, the totals are not.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.clock import NS_PER_S
from publishers.messages.training import Iterations


@dataclass(frozen=True, slots=True)
class IterationSpan:
    """Iterations without a gap: `marks_ns[0]` is the beginning of the first, the others are ends [ns].

    Before it lies a gap of `gap_ns`; before the first of a log, an endless one.
    """

    marks_ns: NDArray[np.int64]
    gap_ns: int

    @property
    def begin_ns(self) -> int:
        """Return when the first iteration began [ns]."""
        return int(self.marks_ns[0])

    @property
    def end_ns(self) -> int:
        """Return when the last one ended [ns]."""
        return int(self.marks_ns[-1])

    @property
    def duration_s(self) -> float:
        """Return how long they took [s]."""
        return (self.end_ns - self.begin_ns) / NS_PER_S

    def position(self, time_ns: int) -> float:
        """Return how many iterations of this stretch had passed at a time, with the fraction of the one under way."""
        return float(np.interp(time_ns, self.marks_ns, np.arange(len(self.marks_ns))))


MAX_STRETCHES = 4_096
MAX_MARKS = 200_000
"""What was counted is forgotten; this is for what cannot be counted yet, or never."""
LATEST_FUTURE_NS = 60 * NS_PER_S
"""An iteration that ends more than a minute from now comes from another clock, or from nowhere."""

BRIDGE_NS = NS_PER_S
"""A shorter gap between iterations (the turn of an epoch) belongs to the rhythm of the job; a longer one is a pause."""

SUSPENDED_ITERATIONS = 10
"""An iteration during which nobody was heard for long was a pause, where it took more than this many times as long as
usual: its process was suspended."""

ENDLESS_NS = 1 << 62
BELIEVED_RATIO = 2.0
"""In a gap a job may have been this many times as fast as before; more lost iterations are not believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTotals:
    """The totals of a log, and what the next message is measured by: enough to go on after a restart.

    Attributes:
        n_iterations, active_s, running_s: as in `IterationLog`.
        n_epochs, first_epoch, first_iteration: how epochs were counted.
        seq: the number of the last message.
        next_iteration: the number that follows the last iteration.
        end_ns: when that one ended [ns].
    """

    n_iterations: float
    active_s: float
    running_s: float
    n_epochs: int
    first_epoch: int
    first_iteration: int | None
    seq: int
    next_iteration: int
    end_ns: int


class IterationLog:
    """The iterations of one rank of a run.

    Args:
        before: where they were left, by a former controller or before a long silence.
        taken_up_ns: when they are taken up from there [ns].
        lease_s: the least that counts as a long silence [s].
    """

    def __init__(
        self, before: IterationTotals | None = None, *, taken_up_ns: int = 0, lease_s: float = math.inf
    ) -> None:
        self._taken_up_ns = taken_up_ns
        self._lease_s = lease_s
        self._stretches: deque[IterationSpan] = deque()
        self._n_marks = 0
        self._last_seq = -1
        self._next_iteration: int | None = None
        self.is_live = False
        """Whether a message has come to this log, and not only to the one that it goes on from."""
        self.n_iterations = 0.0
        self.n_lost = 0
        self.n_refused = 0
        self.n_epochs = 0
        """How many epochs were begun, counted by the highest number that was heard."""
        self._first_epoch = 0
        self._first_iteration: int | None = None
        """Until it is known how much of the first epoch was heard."""
        self.active_s = 0.0
        """With the short gaps between iterations."""
        self.running_s = 0.0
        """Without them: the time of iterations alone, which a limit may change."""
        if before is not None:
            self._go_on_from(before)

    def tally(self) -> IterationTotals | None:
        """Return the totals, for a log that goes on from here; None while there are none."""
        if self.end_ns is None or self._next_iteration is None:
            return None
        return IterationTotals(
            n_iterations=self.n_iterations,
            active_s=self.active_s,
            running_s=self.running_s,
            n_epochs=self.n_epochs,
            first_epoch=self._first_epoch,
            first_iteration=self._first_iteration,
            seq=self._last_seq,
            next_iteration=self._next_iteration,
            end_ns=self.end_ns,
        )

    def _go_on_from(self, before: IterationTotals) -> None:
        """Take the totals over; what ran since counts as messages that were lost."""
        self.n_iterations, self.active_s, self.running_s = before.n_iterations, before.active_s, before.running_s
        self.n_epochs, self._first_epoch = before.n_epochs, before.first_epoch
        self._first_iteration = before.first_iteration
        self._last_seq, self._next_iteration = before.seq, before.next_iteration
        self._remember(before.end_ns, np.empty(0, dtype=np.int64))

    @property
    def epochs(self) -> int:
        """Return how many epochs were heard from their beginnings; of the first, half is enough."""
        return max(0, self.n_epochs - self._first_epoch)

    @property
    def begin_ns(self) -> int | None:
        """Return when the oldest remembered iteration began [ns]."""
        return self._stretches[0].begin_ns if self._stretches else None

    @property
    def end_ns(self) -> int | None:
        """Return when the newest iteration ended [ns]."""
        return self._stretches[-1].end_ns if self._stretches else None

    def total_iterations(self, said: int | None) -> float | None:
        """Return how many iterations there will be in all, counted as `n_iterations` counts: from the first one heard.

        Args:
            said: how many the process says that it will publish; None where it does not know.
        """
        if said is None or self._next_iteration is None:
            return None
        return self.n_iterations + max(said - self._next_iteration, 0)

    def append(self, message: Iterations, *, now_ns: int) -> bool:
        """Add a message; return False, and count it, where it repeats, goes backwards or comes from the future."""
        ends_ns = np.frombuffer(message.end_ns, dtype="<i8").astype(np.int64)
        previous_end_ns = self.end_ns
        if (
            message.seq <= self._last_seq
            or (self._next_iteration is not None and message.first < self._next_iteration)
            or (previous_end_ns is not None and message.begin_ns < previous_end_ns)
            or int(ends_ns[-1]) > now_ns + LATEST_FUTURE_NS
        ):
            self.n_refused += 1
            return False
        self._last_seq = message.seq
        suspended = self._suspended(message.begin_ns, ends_ns)
        if suspended is None:
            self._enter(message.first, message.begin_ns, ends_ns)
        else:
            self._enter(message.first, message.begin_ns, ends_ns[:suspended])
            self._enter(message.first + suspended + 1, int(ends_ns[suspended]), ends_ns[suspended + 1 :])
        self._count_epoch(message)
        return True

    def _enter(self, first: int, begin_ns: int, ends_ns: NDArray[np.int64]) -> None:
        """Count iterations without a gap, from the one with the number `first` on, and those lost before them."""
        n_lost = self._lost_before(first, begin_ns)
        if self.end_ns is not None:
            gap_s = (begin_ns - self.end_ns) / NS_PER_S
            lost_s = self._lost_s(n_lost, gap_s)
            self.active_s += lost_s if n_lost else gap_s if gap_s <= BRIDGE_NS / NS_PER_S else 0.0
            self.running_s += lost_s
        self.is_live = True
        self._next_iteration = first + len(ends_ns)
        self.n_lost += n_lost
        self.n_iterations += len(ends_ns) + n_lost
        self._remember(begin_ns, ends_ns)
        ran_s = self._stretches[-1].duration_s
        self.active_s += ran_s
        self.running_s += ran_s

    def _suspended(self, begin_ns: int, ends_ns: NDArray[np.int64]) -> int | None:
        """Return which iteration of a message its process was suspended in while nobody was heard; None: in none."""
        if begin_ns >= self._taken_up_ns or not self.n_iterations:
            return None
        marks_ns = np.concatenate(([begin_ns], ends_ns))
        times_ns = np.where(marks_ns[:-1] < self._taken_up_ns, np.diff(marks_ns), 0)
        longest = int(np.argmax(times_ns))
        usual_s = self.running_s / self.n_iterations
        is_pause = times_ns[longest] / NS_PER_S > max(self._lease_s, SUSPENDED_ITERATIONS * usual_s)
        return longest if is_pause else None

    def _count_epoch(self, message: Iterations) -> None:
        """Count epochs, and find out with which of them the account begins.

        Iterations are numbered through all epochs: where the second epoch begins tells how long epochs are, and so how
        much of the first one was heard. Until then the first of all counts, any other does not. A process that goes on
        where another was broken off numbers its epochs on, and its iterations anew.
        """
        if not self.n_epochs and not message.first:
            self._first_epoch = message.epoch
        elif not self.n_epochs:
            self._first_iteration = message.first
            self._first_epoch = message.epoch + 1 if message.epoch else 0
        elif self._first_iteration is not None and message.epoch >= self.n_epochs:
            n_heard = message.first - self._first_iteration
            is_counted = 2 * n_heard * self.n_epochs >= message.first
            self._first_epoch = self.n_epochs - 1 if is_counted else self.n_epochs
            self._first_iteration = None
        self.n_epochs = max(self.n_epochs, message.epoch + 1)

    def forget_before(self, time_ns: int) -> None:
        """Forget what was counted up to a moment: the stretches before the one that it lies in, or that it follows.

        A moment in a short gap follows the stretch before it, which tells that the gap was a short one.
        """
        while len(self._stretches) > 1 and self._stretches[1].begin_ns <= time_ns:
            self._n_marks -= len(self._stretches.popleft().marks_ns)

    def _lost_before(self, first: int, begin_ns: int) -> int:
        """Return how many iterations were lost on the way, as far as there was time for them."""
        if self._next_iteration is None or self.end_ns is None:
            return 0
        gap_s = (begin_ns - self.end_ns) / NS_PER_S
        believed = BELIEVED_RATIO * gap_s * self.n_iterations / self.active_s if self.active_s else 0.0
        return min(first - self._next_iteration, math.ceil(believed))

    def _lost_s(self, n_lost: int, gap_s: float) -> float:
        """Return how long lost iterations took in a gap [s]: all of it, since they ran all the same.

        While nobody listened, for minutes maybe, there may have been a pause as well: there they took what they do.
        """
        if not n_lost or (self.is_live and (self.end_ns or 0) >= self._taken_up_ns):
            return gap_s if n_lost else 0.0
        return min(gap_s, n_lost * self.running_s / self.n_iterations)

    def covers(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether iterations ran, as far as is known, all the time between two moments, but for short gaps.

        A gap is short or long as a whole, however little of it lies between the two.
        """
        if self.begin_ns is None or self.end_ns is None or begin_ns < self.begin_ns or end_ns > self.end_ns:
            return False
        for stretch in reversed(self._stretches):
            if stretch.end_ns <= begin_ns:
                break
            begins_inside = begin_ns < stretch.begin_ns and stretch.begin_ns - stretch.gap_ns < end_ns
            if begins_inside and stretch.gap_ns > BRIDGE_NS:
                return False
        return True

    def count(self, begin_ns: int, end_ns: int) -> float:
        """Return how many iterations passed between two moments, with fractions at both ends."""
        return sum(stretch.position(end_ns) - stretch.position(begin_ns) for stretch in self._between(begin_ns, end_ns))

    def gaps_s(self, begin_ns: int, end_ns: int) -> float:
        """Return for how much of the time between two moments no iteration ran [s]."""
        ran_ns = sum(
            min(stretch.end_ns, end_ns) - max(stretch.begin_ns, begin_ns) for stretch in self._between(begin_ns, end_ns)
        )
        return (end_ns - begin_ns - ran_ns) / NS_PER_S

    def iteration_times_s(self, begin_ns: int, end_ns: int, *, at_most: int) -> tuple[float, ...]:
        """Return how long each iteration took that ended after one moment and not after another [s].

        Of more than `at_most` iterations every second, third, … is left out, so that they still tell of the whole time.
        """
        ended = []
        for stretch in self._between(begin_ns, end_ns):
            first, last = np.searchsorted(stretch.marks_ns[1:], (begin_ns, end_ns), side="right")
            ended.append(np.diff(stretch.marks_ns[first : last + 1]))
        if not ended:
            return ()
        times_ns = np.concatenate(ended)
        return tuple((times_ns[:: max(1, math.ceil(len(times_ns) / at_most))] / NS_PER_S).tolist())

    def _between(self, begin_ns: int, end_ns: int) -> list[IterationSpan]:
        """Return the stretches that touch an interval, oldest first; looked for from the newest, where it lies."""
        found = []
        for stretch in reversed(self._stretches):
            if stretch.end_ns <= begin_ns:
                break
            if stretch.begin_ns < end_ns:
                found.append(stretch)
        return found[::-1]

    def _remember(self, begin_ns: int, ends_ns: NDArray[np.int64]) -> None:
        gap_ns = ENDLESS_NS if self.end_ns is None else begin_ns - self.end_ns
        self._stretches.append(IterationSpan(np.concatenate(([begin_ns], ends_ns)), gap_ns))
        self._n_marks += len(ends_ns) + 1
        while len(self._stretches) > MAX_STRETCHES or self._n_marks > MAX_MARKS:
            self._n_marks -= len(self._stretches.popleft().marks_ns)
