"""The iteration log of one rank: records iterations as they arrive, and counts them between any two moments.

A pause that the training did not tell of, as a validation in its loop, is found (`policies.profiling.rhythm_track`) and
cut out: it is a gap like any other. A late mark is moved to where its step ended (`policies.profiling.late_marks`).
Times are the node's monotonic clock. Memory is bounded: the oldest spans are dropped, the totals are kept.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from controller.accounting.iteration_marks import IterationMarks, Part, work_of
from controller.runtime.clock import NS_PER_S
from policies.profiling.late_marks import MOST_LATE, UsualStep, settle_marks, usual_step
from policies.profiling.rhythm_track import RhythmTracker
from policies.vocabulary.units import Values
from publishers.messages.training import Iterations, RankStatus

MAX_SPANS = 4_096
MAX_MARKS = 200_000
"""Counted iterations are forgotten; these bounds are for iterations that cannot be counted yet, or never."""
LATEST_FUTURE_NS = 60 * NS_PER_S
"""An iteration that ends more than a minute from now was timed by another clock."""

BRIDGE_NS = NS_PER_S
"""A shorter gap between iterations (the turn of an epoch) belongs to the rhythm of the job; a longer one is a pause."""
PAUSE_ITERATIONS = 10
"""A job is not paused before this many of its usual iteration times have passed."""

SUSPENDED_ITERATIONS = 10
"""An iteration that ran while no controller listened was a suspension of its process, not work, if it took more than
this many times as long as usual."""

ENDLESS_NS = 1 << 62
WARM_UP_ITERATIONS = 10
"""The first iteration of a process, where it took more than this many times as long as the next ones, was its start:
it compiled, or was begun long before there was a batch. No limit changes that, so it is a pause."""

MEAN_ITERATIONS = 64
"""The mean work of so many iterations is what a rank is counted by from then on; after so many without, no more."""
EVEN_RATIO = 0.01
"""Where the work of single iterations differs by less, their times are judged as they are."""
MUCH_MORE = 1.5
"""Work that makes times differ by so much more than they do by themselves is not what takes the time."""
MOST_MEAN_ITERATIONS = 1_000.0
"""No iteration counts as more of mean work, nor as less than one over this: it counts as one, as if it told nothing."""

MAX_SPEEDUP_RATIO = 2.0
"""A job cannot have been so many times as fast in a gap as before: lost iterations beyond it do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTotals:
    """The totals of a log, and what the next message is checked against: enough to resume after a restart.

    Attributes:
        n_iterations, active_s, running_s: as in `IterationLog`.
        n_epochs, first_epoch, first_iteration: the state of the epoch counter.
        seq: the number of the last message.
        next_iteration: the number that follows the last iteration.
        end_ns: when the last iteration ended [ns].
        n_more: as in `IterationLog`.
        work_per_iteration: as in `WorkScale`.
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
    n_more: float = 0.0
    work_per_iteration: float | None = None


class WorkScale:
    """How many iterations of mean work an iteration of one rank counts as: its work over the mean of the first ones.

    The mean is fixed once, so that rates keep their scale. Until then, and where work is not told any more, each counts
    as one; so it does where the times of the first iterations do not follow their work, as where all are padded to one
    length: by work these would scatter more than as they are.

    Args:
        mean: the mean work, where it is known.
        sets_times: whether the work of this rank alone says how long its iterations take.

    Attributes:
        mean: the mean work of an iteration; None: it is not known.
        is_uneven: whether the first iterations differed in work.
        follows_times: whether they took as long as their work says.
        has_stopped: whether work does not count any more.
    """

    def __init__(self, mean: float | None = None, *, sets_times: bool = True) -> None:
        self.mean = mean
        self.is_uneven = self.has_stopped = False
        self.follows_times = True
        self._sets_times, self._was_known = sets_times, mean is not None
        self._first: list[tuple[float, float]] = []
        self._n_unknown = 0

    @property
    def work_per_iteration(self) -> float | None:
        """Return the mean by which iterations are counted; None: each counts as one."""
        return None if self.has_stopped else self.mean

    @property
    def is_awaited(self) -> bool:
        """Return whether work is told, and its mean not known yet."""
        return self.mean is None and bool(self._first) and not self.has_stopped

    @property
    def is_doubted(self) -> bool:
        """Return whether the first iterations can tell if their times follow their work; a former log has seen it."""
        return len(self._first) >= MEAN_ITERATIONS and not (self._was_known or self.has_stopped)

    @property
    def first(self) -> Values:
        """Return work and time [s] of each of the first iterations, shape (n, 2)."""
        return np.array(self._first)

    def n_mean(self, work: Values | None, times_s: Values) -> Values | None:
        """Return how many of mean work iterations count as, given their work and times [s]; None: each as one."""
        if self.has_stopped:
            return None
        n, mean = len(times_s), self.mean
        known = np.flatnonzero(np.isfinite(work)) if work is not None else np.empty(0, dtype=np.intp)
        self._n_unknown = n - 1 - int(known[-1]) if len(known) else self._n_unknown + n
        if work is not None and len(known) and len(self._first) < MEAN_ITERATIONS:
            self._learn(work[known], times_s[known])
        if self._n_unknown >= MEAN_ITERATIONS and (mean is not None or self._first):
            self.has_stopped = True
        if work is None or mean is None or self.has_stopped:
            return None
        n_mean = work / mean
        is_plausible = (n_mean <= MOST_MEAN_ITERATIONS) & (n_mean >= 1 / MOST_MEAN_ITERATIONS)
        return np.where(is_plausible, n_mean, 1.0)

    def iterations_of(self, total_work: float | None) -> int | None:
        """Return how many iterations of mean work that is; None: it is not known."""
        return None if total_work is None or self.mean is None else round(total_work / self.mean)

    def _learn(self, work: Values, times_s: Values) -> None:
        self._first += zip(work.tolist(), times_s.tolist(), strict=True)
        if len(self._first) >= MEAN_ITERATIONS:
            first = np.array(self._first)[:, 0]
            self.mean = self.mean or float(first.mean())
            self.is_uneven = float(first.std()) > EVEN_RATIO * float(first.mean())
            self._first = self._first[:MEAN_ITERATIONS]
            if self._sets_times:
                stop_unless_followed([self])


def stop_unless_followed(scales: Sequence[WorkScale]) -> None:
    """Let work count no more if the times of iterations do not follow it, that of ranks in step with each other added.

    They do not where times per work differ much more from one iteration to the next than the times, in the median.
    """
    known = [scale for scale in scales if scale.is_doubted]
    if len(known) < len(scales) or not any(scale.is_uneven for scale in known):
        return
    work, times_s = np.sum([scale.first for scale in known], axis=0).T
    times_log = np.diff(np.log(np.maximum(times_s, 1 / NS_PER_S)))
    if np.median(np.abs(times_log - np.diff(np.log(work)))) > MUCH_MORE * np.median(np.abs(times_log)):
        for scale in known:
            scale.follows_times, scale.has_stopped = False, True


@dataclass(frozen=True, slots=True)
class IterationSpan:
    """Consecutive iterations without a gap.

    Attributes:
        marks_ns: the start of the first iteration, then the end of each, shape (n_iterations + 1,) [ns].
        begin_ns, end_ns: the first and the last mark [ns].
        gap_ns: the gap before the span [ns]; endless before the first span of a log.
        n_mean: how many iterations of mean work were done at each mark, shape (n_iterations + 1,); None: as many as
            iterations.
    """

    marks_ns: NDArray[np.int64]
    begin_ns: int
    end_ns: int
    gap_ns: int
    n_mean: Values | None = None

    def count(self, begin_ns: int, end_ns: int, *, by_work: bool = False) -> float:
        """Return how many iterations, or of mean work, passed between two moments, with fractions at both ends."""
        done = self.n_mean if by_work and self.n_mean is not None else np.arange(len(self.marks_ns))
        first, last = np.interp((begin_ns, end_ns), self.marks_ns, done)
        return float(last - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a rank did between two moments.

    Attributes:
        n_iterations: how many iterations passed, with fractions at both ends.
        is_continuous: whether iterations ran, as far as is known, all the time, but for short gaps.
        gaps_s: for how much of the time no iteration ran [s].
        n_mean: how many iterations of mean work passed.
    """

    n_iterations: float
    n_mean: float
    is_continuous: bool
    gaps_s: float


class RankLog(Protocol):
    """What is asked of the log of a rank, or of the ranks of a pool together; see `IterationLog`."""

    @property
    def begin_ns(self) -> int | None:
        """Return when the oldest remembered iteration began [ns]."""
        ...

    @property
    def first_begin_ns(self) -> int | None:
        """Return when the first iteration of all began [ns]."""
        ...

    @property
    def end_ns(self) -> int | None:
        """Return until when the iterations are known [ns]."""
        ...

    @property
    def settled_ns(self) -> int | None:
        """Return the same without the last iterations, where their marks may turn out to be late [ns]."""
        ...

    @property
    def is_live(self) -> bool:
        """Return whether there were iterations."""
        ...

    @property
    def n_iterations(self) -> float:
        """Return how many there were."""
        ...

    @property
    def n_mean(self) -> float:
        """Return how many of mean work there were."""
        ...

    @property
    def work_per_iteration(self) -> float | None:
        """Return the work of a mean iteration; None: it is not known."""
        ...

    @property
    def n_epochs(self) -> int:
        """Return how many epochs were begun."""
        ...

    @property
    def epochs(self) -> int:
        """Return how many of them were observed."""
        ...

    @property
    def running_s(self) -> float:
        """Return the time of the iterations alone [s]."""
        ...

    @property
    def n_unobserved(self) -> float:
        """Return how many were done before they were observed."""
        ...

    def total_iterations(self, announced: int | None) -> float | None:
        """Return how many there will be in all."""
        ...

    def is_paused(self, now_ns: int, *, after_s: float) -> bool:
        """Return whether none has come for long."""
        ...

    def forget_before(self, time_ns: int) -> None:
        """Forget what was counted up to a moment."""
        ...

    def activity(self, begin_ns: int, end_ns: int) -> Activity:
        """Return what is known of the iterations between two moments."""
        ...

    def iteration_times_s(self, begin_ns: int, end_ns: int, *, at_most: int) -> tuple[float, ...]:
        """Return how long each took [s]; none where the rate does not follow from that."""
        ...


def n_together(logs: Sequence[RankLog], activities: Sequence[Activity]) -> float:
    """Return how many iterations ranks did together: of the slowest or, where all tell their work, of mean work."""
    work = [log.work_per_iteration or 0.0 for log in logs]
    if not all(work):
        return min(activity.n_iterations for activity in activities)
    done = sum(each * activity.n_mean for each, activity in zip(work, activities, strict=True))
    return done / sum(work)


class IterationLog:
    """The iterations of one rank of a run.

    Args:
        before: the totals to resume from, of a former controller or before a long silence.
        resumed_ns: when the log is resumed [ns].
        lease_s: the shortest silence that counts as long [s].
        by_another: whether another process goes on with the run: it numbers its messages and iterations from 0.
        is_alone: whether no other rank has part in its iterations: then its work says how long they take.

    Attributes:
        begin_ns: when the oldest remembered iteration began [ns].
        first_begin_ns: when the first iteration of all began [ns]; None before one is known, and in a resumed log.
        end_ns: when the newest iteration ended [ns].
        settled_ns: the same, without iterations whose marks may turn out to be late [ns].
        is_live: whether a message has come to this log, and not only to the one that it resumes.
        n_iterations: iterations so far, lost ones included.
        n_lost: iterations that ran but were never reported.
        n_rejected: messages that were not accepted.
        n_epochs: epochs that were begun, by the highest number reported.
        active_s: time of iterations, with the short gaps between them [s].
        running_s: time of iterations alone, which a power limit may change [s].
        rhythm: what is known of the rhythm of the iterations.
        work: how iterations count by their work.
        n_more: how many more of mean work there were than iterations.
    """

    def __init__(
        self,
        before: IterationTotals | None = None,
        *,
        resumed_ns: int = 0,
        lease_s: float = math.inf,
        by_another: bool = False,
        is_alone: bool = True,
    ) -> None:
        self._resumed_ns = resumed_ns
        self._lease_s = lease_s
        self._spans: deque[IterationSpan] = deque()
        self._n_marks = 0
        self._last_seq = -1
        self._next_iteration: int | None = None
        self.begin_ns: int | None = None
        self.first_begin_ns: int | None = None
        self.end_ns: int | None = None
        self.settled_ns: int | None = None
        self._counted_ns = 0
        self.is_live = False
        self.n_iterations = 0.0
        self.n_lost = 0
        self.n_rejected = 0
        self.n_epochs = 0
        self._first_epoch = 0
        self._first_iteration: int | None = None
        """Set until it is known how much of the first epoch was observed."""
        self.active_s = 0.0
        self.running_s = 0.0
        self._before = None if before is None else replace(before, seq=-1, next_iteration=0)
        """What another process goes on with, until it has done something itself."""
        self.rhythm = RhythmTracker()
        self._trusts_requests = True
        self.work = WorkScale(None if before is None else before.work_per_iteration, sets_times=is_alone)
        self.n_more = 0.0 if before is None else before.n_more
        self._is_alone, self._is_by_work = is_alone, False
        if before is not None:
            self._resume(before, by_another=by_another)

    def totals(self) -> IterationTotals | None:
        """Return the totals to resume from later; None while there are none."""
        if self.end_ns is None or self._next_iteration is None:
            return self._before
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
            n_more=self.n_more,
            work_per_iteration=self.work.work_per_iteration,
        )

    def _resume(self, before: IterationTotals, *, by_another: bool) -> None:
        """Continue from former totals; iterations that the same process did since count as lost messages."""
        self.n_iterations, self.active_s, self.running_s = before.n_iterations, before.active_s, before.running_s
        self.n_epochs, self._first_epoch = before.n_epochs, before.first_epoch
        if by_another:
            return
        self._first_iteration = before.first_iteration
        self._last_seq, self._next_iteration = before.seq, before.next_iteration
        self._add_span(before.end_ns, np.empty(0, dtype=np.int64))

    @property
    def epochs(self) -> int:
        """Return how many epochs were observed from their beginning; of the first, half is enough."""
        return max(0, self.n_epochs - self._first_epoch)

    @property
    def n_unobserved(self) -> float:
        """Return how many iterations the process had done before the first one that was observed."""
        return max((self._next_iteration or 0) - self.n_iterations, 0.0)

    def total_iterations(self, announced: int | None) -> float | None:
        """Return how many iterations there will be in all, counted as `n_iterations` counts: from the first observed.

        Args:
            announced: how many the process has announced; None where it does not know.
        """
        if announced is None or self._next_iteration is None:
            return None
        return self.n_iterations + max(announced - self._next_iteration, 0)

    @property
    def n_mean(self) -> float:
        """Return how many iterations of mean work there were so far."""
        return self.n_iterations + self.n_more

    @property
    def work_per_iteration(self) -> float | None:
        """Return the work of a mean iteration; None: it is not known."""
        return self.work.work_per_iteration

    def n_in_all(self, status: RankStatus) -> float | None:
        """Return how many iterations of mean work there will be in all, counted as `n_mean` counts.

        What was done before the first observed iteration, and what is left of the announced ones, counts as those seen.
        """
        mean = self.work_per_iteration
        if self._next_iteration is None:
            return None
        mean_ratio = self.n_mean / self.n_iterations if self.n_iterations else 1.0
        if mean is not None and status.total_work is not None:
            n_left = status.total_work / mean - self._next_iteration * mean_ratio
        elif status.total_iterations is not None:
            n_left = (status.total_iterations - self._next_iteration) * mean_ratio
        else:
            return None
        return self.n_mean + max(n_left, 0.0)

    def is_paused(self, now_ns: int, *, after_s: float) -> bool:
        """Return whether no iteration has come for `after_s`, and for several of the usual iteration times."""
        if self.end_ns is None or not self.n_iterations:
            return False
        silent_s = (now_ns - self.end_ns) / NS_PER_S
        return silent_s >= max(after_s, PAUSE_ITERATIONS * self.active_s / self.n_iterations)

    def pass_time(self, now_ns: int) -> None:
        """Take note that a process which has published no iteration was there until now: a pause, as far as is known.

        The first iteration takes the place of all this: it may have begun before the last of these calls.
        """
        if self._next_iteration is not None or (self.end_ns is not None and now_ns <= self.end_ns):
            return
        self._add(IterationSpan(np.array([now_ns]), now_ns, now_ns, ENDLESS_NS))

    def append(self, message: Iterations, *, now_ns: int) -> bool:
        """Add a message; return False, and count it, where it repeats, goes backwards or comes from the future."""
        marks = IterationMarks.of(message)
        ends_ns = marks.ends_ns
        if self._next_iteration is None and self._spans:
            self._forget_passed_time()
        if (
            message.seq <= self._last_seq
            or (self._next_iteration is not None and message.first < self._next_iteration)
            or (self.end_ns is not None and message.begin_ns < self.end_ns)
            or int(ends_ns[-1]) > now_ns + LATEST_FUTURE_NS
        ):
            self.n_rejected += 1
            return False
        self._last_seq = message.seq
        times_s = np.diff(ends_ns, prepend=message.begin_ns) / NS_PER_S
        n_mean = self.work.n_mean(work_of(message), times_s)
        marks = marks.counted_as(n_mean, is_by_work=self._judges_by_work)
        suspended = None
        if message.begin_ns < self._resumed_ns and self.n_iterations:
            suspended = self._suspended_iteration(message.begin_ns, ends_ns)
        if self._next_iteration is None and _is_warm_up(message.begin_ns, ends_ns):
            self._count_warm_up(message.first, message.begin_ns)
            self._count_iterations(marks.after_first())
        elif suspended is None:
            self._count_iterations(marks)
        else:
            self._count(marks.part(0, message.begin_ns, ends_ns[:suspended]))
            self._count(marks.part(suspended + 1, int(ends_ns[suspended]), ends_ns[suspended + 1 :]))
        if message.epoch >= self.n_epochs:
            self._count_epoch(message)
        return True

    def _count_iterations(self, marks: IterationMarks) -> None:
        """Count the iterations of a message, without the pauses in it."""
        if not len(marks.ends_ns):  # the only one was the warm-up: the next one begins here
            self._count(marks.part(0, marks.begin_ns, marks.ends_ns))
            return
        if marks.is_by_work and not self._is_by_work:
            self._is_by_work = True
            self.rhythm.forget()
        self._trusts_requests = self._trusts_requests and not marks.fetches_ahead
        intervals = marks.intervals(trusts_requests=self._trusts_requests)
        is_regular = marks.counts_steps and not self._judges_by_work  # else a late mark is not to be told from work
        usual = usual_step(self.rhythm.last_times_s(intervals)) if is_regular else None
        for part in marks.without(self.rhythm.find_pauses(intervals)):
            self._count(part, usual)
        self.rhythm.add(intervals, duration_s=(int(marks.ends_ns[-1]) - marks.begin_ns) / NS_PER_S)

    def _count(self, part: Part, usual: UsualStep | None = None) -> None:
        """Count iterations without a gap, and those lost before them; `usual` is what the last ones took."""
        first, begin_ns, ends_ns, n_mean = part
        n_lost = 0
        if self.end_ns is not None and self._next_iteration is not None:
            gap_ns = begin_ns - self.end_ns
            if first > self._next_iteration:
                n_lost = self._n_lost(first - self._next_iteration, gap_ns / NS_PER_S)
            if n_lost:
                lost_s = self._lost_s(n_lost, gap_ns / NS_PER_S)
                self.active_s += lost_s
                self.running_s += lost_s
            elif gap_ns <= BRIDGE_NS:
                self.active_s += gap_ns / NS_PER_S
        self.is_live = True
        self._next_iteration = first + len(ends_ns)
        self.n_lost += n_lost
        self.n_iterations += len(ends_ns) + n_lost
        if n_mean is not None:
            self.n_more += float(n_mean.sum()) - len(ends_ns)
        span = self._add_span(begin_ns, ends_ns, n_mean)
        self._settle(usual)
        ran_s = (span.end_ns - span.begin_ns) / NS_PER_S
        self.active_s += ran_s
        self.running_s += ran_s

    @property
    def _judges_by_work(self) -> bool:
        """Return whether times are those of an iteration of mean work."""
        return self._is_alone and self.work.is_uneven and self.work_per_iteration is not None

    def _count_warm_up(self, first: int, begin_ns: int) -> None:
        """Count the first iteration of a process, whose time is a pause, up to where the next ones begin."""
        self.n_iterations += 1
        self._next_iteration = first + 1
        self._add_span(begin_ns, np.empty(0, dtype=np.int64))
        self.first_begin_ns = self.first_begin_ns or begin_ns

    def _suspended_iteration(self, begin_ns: int, ends_ns: NDArray[np.int64]) -> int | None:
        """Return the index of the iteration during which the process was suspended before the resumption, or None."""
        marks_ns = np.concatenate(([begin_ns], ends_ns))
        times_ns = np.where(marks_ns[:-1] < self._resumed_ns, np.diff(marks_ns), 0)
        longest = int(np.argmax(times_ns))
        usual_s = self.running_s / self.n_iterations
        is_pause = times_ns[longest] / NS_PER_S > max(self._lease_s, SUSPENDED_ITERATIONS * usual_s)
        return longest if is_pause else None

    def _count_epoch(self, message: Iterations) -> None:
        """Count epochs, and find out with which of them the account begins.

        Iterations are numbered through all epochs: the first number of the second epoch shows how long epochs are, and
        so how much of the first one was observed. Until then the first of all counts, any other does not. A process
        that resumes an aborted one continues to number epochs, and numbers iterations from 0.
        """
        if not self.n_epochs and not message.first:
            self._first_epoch = message.epoch
        elif not self.n_epochs:
            self._first_iteration = message.first
            self._first_epoch = message.epoch + 1 if message.epoch else 0
        elif self._first_iteration is not None:
            n_observed = message.first - self._first_iteration
            is_counted = 2 * n_observed * self.n_epochs >= message.first
            self._first_epoch = self.n_epochs - 1 if is_counted else self.n_epochs
            self._first_iteration = None
        self.n_epochs = message.epoch + 1

    def forget_before(self, time_ns: int) -> None:
        """Forget what was counted up to a moment: the spans before the one that it lies in, or that it follows.

        A moment in a short gap follows the span before it, which shows that the gap was short.
        """
        self._counted_ns = time_ns
        spans = self._spans
        while len(spans) > 1 and spans[1].begin_ns <= time_ns:
            self._n_marks -= len(spans.popleft().marks_ns)
            self.begin_ns = spans[0].begin_ns

    def _n_lost(self, n_missing: int, gap_s: float) -> int:
        """Return how many of the iterations missing before a message there was time for."""
        possible = MAX_SPEEDUP_RATIO * gap_s * self.n_iterations / self.active_s if self.active_s else 0.0
        return min(n_missing, math.ceil(possible))

    def _lost_s(self, n_lost: int, gap_s: float) -> float:
        """Return how long lost iterations took in a gap [s]: all of it, since they ran all the same.

        While no controller listened there may have been a pause as well: there they took their usual time.
        """
        if self.is_live and (self.end_ns or 0) >= self._resumed_ns:
            return gap_s
        return min(gap_s, n_lost * self.running_s / self.n_iterations)

    def activity(self, begin_ns: int, end_ns: int) -> Activity:
        """Return what is known of the iterations between two moments."""
        is_continuous = self.begin_ns is not None and self.begin_ns <= begin_ns and end_ns <= (self.end_ns or 0)
        n_iterations, n_mean, ran_ns = 0.0, 0.0, 0
        for span in reversed(self._spans):  # the interval lies at the end
            if span.end_ns <= begin_ns:
                break
            # A gap is short or long as a whole, however little of it lies between the two.
            if span.gap_ns > BRIDGE_NS and begin_ns < span.begin_ns and span.begin_ns - span.gap_ns < end_ns:
                is_continuous = False
            if span.begin_ns < end_ns:
                n = span.count(begin_ns, end_ns)
                n_iterations += n
                n_mean += n if span.n_mean is None else span.count(begin_ns, end_ns, by_work=True)
                ran_ns += min(span.end_ns, end_ns) - max(span.begin_ns, begin_ns)
        gaps_s = (end_ns - begin_ns - ran_ns) / NS_PER_S
        return Activity(n_iterations=n_iterations, n_mean=n_mean, is_continuous=is_continuous, gaps_s=gaps_s)

    def iteration_times_s(self, begin_ns: int, end_ns: int, *, at_most: int) -> tuple[float, ...]:
        """Return how long each iteration took that ended after one moment and not after another [s].

        Of more than `at_most` iterations only every second, third, … is returned, over the whole time. Where they
        differ in work it is the time of one of mean work.
        """
        ended: list[Values] = []
        for span in reversed(self._spans):
            if span.end_ns <= begin_ns:
                break
            if span.begin_ns < end_ns:
                first, last = np.searchsorted(span.marks_ns[1:], (begin_ns, end_ns), side="right")
                times_ns = np.diff(span.marks_ns[first : last + 1])
                n_mean = span.n_mean if self._judges_by_work else None
                ended.append(times_ns if n_mean is None else times_ns / np.diff(n_mean[first : last + 1]))
        if not ended:
            return ()
        times_ns = np.concatenate(ended[::-1])
        return tuple((times_ns[:: max(1, math.ceil(len(times_ns) / at_most))] / NS_PER_S).tolist())

    def _add_span(self, begin_ns: int, ends_ns: NDArray[np.int64], n_mean: Values | None = None) -> IterationSpan:
        gap_ns = ENDLESS_NS if self.end_ns is None else begin_ns - self.end_ns
        if self.end_ns is None and len(ends_ns):
            self.first_begin_ns = begin_ns
        marks_ns = np.concatenate(([begin_ns], ends_ns))
        done = None if n_mean is None else np.concatenate(([0.0], np.cumsum(n_mean)))
        span = IterationSpan(marks_ns, begin_ns, int(marks_ns[-1]), gap_ns, done)
        self._add(span)
        return span

    def _settle(self, usual: UsualStep | None) -> None:
        """Move late marks among the last ones, as far as none of them is counted."""
        if usual is None:
            return
        spans, n_marks = [self._spans.pop()], 0
        while self._spans and spans[0].gap_ns == 0 and n_marks <= MOST_LATE:
            n_marks += len(self._spans[-1].marks_ns) - 1
            spans.insert(0, self._spans.pop())
        joined_ns = np.concatenate((spans[0].marks_ns[:1], *(span.marks_ns[1:] for span in spans)))
        marks_ns, self.settled_ns = settle_marks(joined_ns, usual, fixed_until_ns=self._counted_ns)
        if marks_ns is not joined_ns:
            first = 0
            for place, span in enumerate(spans):
                last = first + len(span.marks_ns) - 1
                part_ns = marks_ns[first : last + 1]
                spans[place] = IterationSpan(part_ns, int(part_ns[0]), int(part_ns[-1]), span.gap_ns, span.n_mean)
                first = last
        self._spans.extend(spans)

    def _add(self, span: IterationSpan) -> None:
        self._spans.append(span)
        self._n_marks += len(span.marks_ns)
        while len(self._spans) > MAX_SPANS or self._n_marks > MAX_MARKS:
            self._n_marks -= len(self._spans.popleft().marks_ns)
        self.begin_ns, self.end_ns = (self._spans[0].begin_ns, span.end_ns) if self._spans else (None, None)
        self.settled_ns = self.end_ns

    def _forget_passed_time(self) -> None:
        self._spans.clear()
        self._n_marks = 0
        self.begin_ns = self.end_ns = self.settled_ns = None


def _is_warm_up(begin_ns: int, ends_ns: NDArray[np.int64]) -> bool:
    """Return whether the first iteration of a process was its start. Alone in its message, it is if it took long."""
    first_ns = int(ends_ns[0]) - begin_ns
    if len(ends_ns) == 1:
        return first_ns > BRIDGE_NS
    return first_ns > WARM_UP_ITERATIONS * float(np.median(np.diff(ends_ns)))
