"""The buffer between the training loop and the worker's thread: iteration times in bounded memory, with losses counted.

The loop appends clock readings to the list of the present chunk (about 50 ns), and does nothing else.

Lists are never swapped under the loop, which would lose appends: only the loop itself begins a new chunk, after about
`CHUNK` marks. Each chunk knows the number of its first iteration, so a chunk that a full buffer has dropped shows as a
gap in the numbers. There are no locks: one thread (the loop) writes, one (the worker's) reads (`chunk_reader.py`).

What tells the end of an iteration is one of five ways (`CountedBy`), the best that was seen. Only where nothing else
tells, the passes over a data loader do (`loader`): their requests are the marks. Else an iteration is an optimizer
step, its end is the mark, and requests are logged beside it (`loader_pass.py`), to tell where an iteration begins after
a pause, and where pauses can be. While steps may still come (`awaits_steps`) requests are logged, and nothing is told.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from itertools import repeat, starmap
from typing import Final

from publishers.messages.training import CountedBy
from publishers.training.iterations.chunk import BREAK, Chunk, n_iterations
from publishers.training.iterations.chunk_reader import AwaitedSteps, ChunkReader
from publishers.training.iterations.open_pass import OpenPass, TimeLog
from publishers.training.iterations.work import WorkLog, plain_work
from publishers.training.pausing.gate import IterationGate

CHUNK: Final = 1_024
"""Marks in a chunk before the next one: opening it and its log costs several µs, so some 5 ns an iteration."""
MAX_BUFFERED: Final = 65_536
"""Iterations that wait while the broker is away: about 3 MB. Older ones are dropped, a chunk at a time."""
MAX_LOGS: Final = 128
"""Logs of requests that wait for the worker, of at most `CHUNK` each; older ones are dropped."""
MAX_PASSES: Final = 64
"""Passes over loaders that are open at once, and known of."""
_RANKS: Final[Mapping[CountedBy, int]] = {"loader": 0, "optimizer": 1, "waiter": 2, "caller": 3, "callback": 4}
"""What counts where several ways tell: what the training says itself, before what was found out."""
_TOLD: Final = ("caller", "callback")
_MAX_CHUNKS: Final = 1_024
_MAX_MARKS: Final = 2 * CHUNK
"""Marks after which a pause begins a new chunk; a pass, whose chunk is its own, stays below."""


class _Steps(Enum):
    """What is expected of an optimizer's steps."""

    UNKNOWN = auto()
    """Nothing, or they have come."""
    AWAITED = auto()
    """Until the first one, or until none comes, passes over loaders count nothing."""
    MISSED = auto()
    """None came: passes over loaders count, until one does."""
    IGNORED = auto()
    """Those that came have stopped, unseen: passes over loaders count, for good."""


class Recorder:
    """Records marks of time; the loop appends to `chunk.marks` itself, since a call would cost more than the rest."""

    gate: IterationGate | None = None  # where the training waits between two iterations

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self.clock_ns = clock_ns
        self.chunk = Chunk(first=0, epoch=0, marks=[], counted_by="loader")
        self.is_told = False  # the next mark of a caller or a callback ends an iteration, and so can just be appended
        self.marking: Iterator[None] = iter(())  # appends such a mark each time that it is asked
        self.is_stepping = False  # the same of an optimizer's mark
        self.disarm: Callable[[], None] = nothing  # called before marks may no longer be appended to the present chunk
        self._is_running = False
        self._expected = _Steps.UNKNOWN
        self.steps_are_captured = False  # in a CUDA graph, whose replays nobody sees
        self.is_closed = False
        self.begin_next_run: Callable[[], object] = nothing  # ends this recorder's run; false: it goes on
        self.wrapped_at = 0  # how many iterations had ended when a loader was wrapped last
        self._paused_at: int | None = None  # how many iterations had ended when the training told of a pause
        self.passes: list[OpenPass] = []
        self.logs: deque[TimeLog] = deque(maxlen=MAX_LOGS)
        self._awaited = AwaitedSteps(2 * MAX_BUFFERED)
        self.work = WorkLog()
        self._n_logs = 0
        self._last_ns = 0  # the last mark before the present chunk
        self._since_ns: int | None = None  # when the first iteration began, where no loader tells
        self._chunks = deque([self.chunk])
        self._epoch_first = 0
        self._first_epoch = 0
        self.drain = ChunkReader(self._chunks, self._awaited, self.work).drain  # for the worker's thread alone

    @property
    def counted_by(self) -> CountedBy:
        """Return what tells the end of an iteration at present."""
        return self.chunk.counted_by

    @property
    def counts_passes(self) -> bool:
        """Return whether the passes over loaders tell the iterations."""
        return self.chunk.counted_by == "loader" and self._expected is not _Steps.AWAITED

    @property
    def awaits_steps(self) -> bool:
        """Return whether an optimizer's steps may still come, and none has: passes over loaders count nothing."""
        return self._expected is _Steps.AWAITED

    def set_gate(self, gate: IterationGate) -> None:
        """Let each iteration end at a gate: no mark may just be appended any more."""
        self.gate, self.is_told = gate, False
        self._disarm()

    def await_steps(self) -> None:
        """Expect an optimizer's steps: until the first one, or until none comes, passes over loaders count nothing."""
        if self.counted_by == "loader" and self._expected is _Steps.UNKNOWN and not self.n_ended:
            self._expected = _Steps.AWAITED
            self._since_ns = self.clock_ns()

    def close(self) -> None:
        """Record no more steps; safe anywhere, also in a garbage collection."""
        self.is_closed = True
        self._hold()

    def count_by(self, way: CountedBy) -> bool:
        """Let what follows be counted in another way, if it is a better one; return whether it now is this one."""
        marks, present = self.chunk.marks, self.chunk.counted_by
        if way == present:
            return True
        if _RANKS[way] < _RANKS[present] or (way == "optimizer" and self._expected is _Steps.IGNORED):
            return False
        if self._expected is _Steps.AWAITED:
            self._expected = _Steps.UNKNOWN
        self._hold()
        self._open([marks[-1]] if marks and marks[-1] >= 0 else []).counted_by = way
        return True

    def fall_back(self) -> None:
        """Count by the passes over loaders from now on, since no steps come."""
        self._expected = _Steps.MISSED if self._expected is _Steps.AWAITED else _Steps.IGNORED
        self._interrupt()
        self._open([]).counted_by = "loader"

    def add_step(self, way: CountedBy, now_ns: int | None = None) -> None:
        """Record the end of an optimizer step, where it may not just be appended: the first one, or after a pause.

        It began when the pass that has asked for a batch last first asked after the pause. Where no pass tells, it is
        only the begin of the next one; but the first step that an optimizer is seen to make is an iteration, too.
        """
        since_ns = self._since_ns
        if self.is_closed or not self.count_by(way):
            return
        end_ns = self.clock_ns() if now_ns is None else now_ns
        leading = max(self.passes, key=lambda one: one.last_ns, default=None)
        if leading is not None:
            since_ns = leading.begin_ns()
            if not leading.is_training:
                if way != "callback":  # a callback tells the epochs, too
                    self.next_epoch()
                leading.begin_epoch()
        marks = self.chunk.marks
        if since_ns is not None and (not marks or marks[-1] == BREAK):
            since_ns = max(since_ns, marks[-2] if marks else self._last_ns)
            marks.append(min(since_ns, end_ns) if end_ns >= 0 else since_ns)
        marks.append(end_ns)
        if len(marks) > CHUNK:
            self.rotate(self.chunk)
        self._run_on()

    def add_batch_work(self, value: object, now_ns: int) -> None:
        """Note the work of a batch that was received now [ns]."""
        if self.counted_by == "waiter":  # its step is the next one that is marked, whichever the device is at
            self.work.tell(BREAK - self._awaited.n_marked - 1, value)
        else:
            self.work.receive(now_ns, value)

    def add_awaited_step(self, number: int, work: float | None = None) -> None:
        """Record a step that ends when `end_awaited_step` is called for its number, from 1 in their order."""
        if not self.is_closed and self.count_by("waiter"):
            if work is not None:
                self.work.tell(BREAK - number, work)
            if self._is_running:
                self.mark(BREAK - number)
            else:
                self.add_step("waiter", BREAK - number)
            self._awaited.n_marked = number

    def end_awaited_step(self, number: int) -> None:
        """End a step now; for the one thread that waits for them."""
        self._awaited.end(number, self.clock_ns())

    @property
    def is_awaiting(self) -> bool:
        """Return whether steps were recorded that have not ended."""
        return self._awaited.is_pending

    def tell_step(self, way: CountedBy, work: float | None = None) -> None:
        """Record the end of a step that the training tells of, and wait where it is to wait."""
        self.add_step(way, None if work is None else self._end_ns(work))
        if self.gate is not None:
            self.gate.passed(way)

    def mark(self, now_ns: int) -> None:
        """Record a step that may just be appended."""
        marks = self.chunk.marks
        marks.append(now_ns)
        if len(marks) > CHUNK:
            self.rotate(self.chunk)

    def mark_told(self, work: float | None = None) -> None:
        """Record a step that the training tells of; without work the next ones may just be marked by `marking`, too."""
        if work is not None:
            marks, now_ns = self.chunk.marks, self.clock_ns()
            self.work.told.append((now_ns, work if type(work) is int else plain_work(work)))
            marks.append(now_ns)
            if len(marks) > CHUNK:
                self.rotate(self.chunk)
        else:
            self.mark(self.clock_ns())
            self.marking = self.marks_ahead()

    def _end_ns(self, work: float) -> int:
        """Return the time, at which an iteration with this work ends [ns]."""
        now_ns = self.clock_ns()
        self.work.tell(now_ns, work)
        return now_ns

    def marks_ahead(self) -> Iterator[None]:
        """Return what marks a step each time that it is asked, until the present chunk is full.

        It is the cheapest way to append the time where there is room, and no other thread comes between the two.
        """
        marks = self.chunk.marks
        return map(marks.append, starmap(self.clock_ns, repeat((), max(0, CHUNK - len(marks)))))

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
        self._run_on()

    def pause(self) -> None:
        """Begin the next iteration at the next request or, where none is known, at the next mark: not at the last."""
        self._interrupt()
        self.append_break(self.chunk)
        if len(self.chunk.marks) > _MAX_MARKS:
            self._open([])

    def pause_with_batch(self) -> None:
        """Pause with a batch in hand: where the passes over loaders tell, its iteration ends here."""
        if self.counts_passes and self.passes:
            now_ns = self.clock_ns()
            for one in self.passes:
                one.start_paused()
            self.end_iteration(now_ns)
        else:
            self.pause()
        self._paused_at = self.n_ended

    def has_told_of_pause(self, n_read: int) -> bool:
        """Return whether the training has told of a pause after which none of the `n_read` iterations has ended."""
        return self._paused_at is not None and n_read <= self._paused_at

    def last_validation_request_ns(self) -> int | None:
        """Return when a pass that trains nothing, a validation, last asked for a batch; None without one [ns]."""
        looks = [one.last_ns for one in list(self.passes) if not (one.is_training or one.is_new)]
        return max(looks, default=None)

    def next_epoch(self) -> None:
        """Count what follows to the next epoch, unless this one is still empty; the next mark begins an iteration."""
        chunk = self._open_epoch()
        if chunk.first > self._epoch_first:
            self._epoch_first = chunk.first
            chunk.epoch += 1

    def skip_epoch(self) -> None:
        """Count what follows to the next epoch, though this one is empty."""
        self._open_epoch().epoch += 1

    def resume_at(self, epoch: int) -> None:
        """Count what follows to this epoch, if it is a later one: the epochs before it were another process's."""
        if epoch > self.epoch:
            self._first_epoch += epoch - self.epoch
            chunk = self._open_epoch()
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
        return self.chunk.first + n_iterations(self.chunk, len(self.chunk.marks))

    def start_pass(self, begin_ns: int) -> Chunk:
        """Return the chunk of a pass that counts, whose first batch was handed out at `begin_ns`: a new epoch."""
        self.next_epoch()
        self.chunk.marks.append(max(begin_ns, self._last_ns))
        return self.chunk

    def end_iteration(self, end_ns: int) -> None:
        """End the iteration that a pass over a loader is in, and begin the next one at the next request."""
        chunk = self.chunk
        if chunk.marks and chunk.marks[-1] != BREAK:  # else paused already
            if end_ns > chunk.marks[-1]:
                chunk.marks.append(end_ns)
                chunk.extra += 1
            self.append_break(chunk)

    def add_log(self, log: TimeLog) -> None:
        """Hand the log of a pass to the worker, which reads it while the pass goes on."""
        self._n_logs += 1
        log.number = self._n_logs
        self.logs.append(log)

    def hold(self, opened: OpenPass) -> None:
        """Look more closely at the next step: it may belong to a pass that has just begun."""
        if len(self.passes) >= MAX_PASSES:
            del self.passes[0]
        self.passes.append(opened)
        self._hold()

    def release(self, closed: OpenPass) -> None:
        """Forget a pass that was only a look at a batch: it changes nothing for the steps."""
        self._forget(closed)
        marks = self.chunk.marks
        if self.counted_by != "loader" and marks and marks[-1] != BREAK and not any(one.is_new for one in self.passes):
            self._run_on()

    def interrupt(self) -> None:
        """Let the next step begin where its batch is asked for: a pass begins, and it may be a validation."""
        self._interrupt()
        if self.counted_by != "loader":
            self.append_break(self.chunk)

    def end_pass(self, closed: OpenPass) -> None:
        """Let the next step begin where its batch is asked for or, if no loader tells that, here: a pass has ended."""
        self._forget(closed)
        self.interrupt()
        if self.awaits_steps or self.counted_by == "optimizer":
            self._since_ns = self.clock_ns()

    def _forget(self, closed: OpenPass) -> None:
        if closed in self.passes:
            self.passes.remove(closed)

    def _hold(self) -> None:
        self._disarm()
        self.is_told = self.is_stepping = self._is_running = False

    def _interrupt(self) -> None:
        self._hold()
        self._since_ns = None
        for one in self.passes:
            one.interrupt()

    def _run_on(self) -> None:
        self._since_ns = None
        self._is_running = True
        self.is_stepping = self.counted_by == "optimizer"
        self.is_told = self.counted_by in _TOLD and self.gate is None
        if self.is_told:
            self.marking = self.marks_ahead()

    def _disarm(self) -> None:
        """Let nobody just append marks to the present chunk any more."""
        self.marking = iter(())
        self.disarm()

    def _open_epoch(self) -> Chunk:
        self._interrupt()
        chunk = self._open([])
        if self.awaits_steps or chunk.counted_by == "optimizer":
            self._since_ns = self.clock_ns()
        return chunk

    @staticmethod
    def append_break(chunk: Chunk) -> None:
        """Let the next mark in a chunk begin an iteration instead of ending one."""
        if chunk.marks and chunk.marks[-1] != BREAK:
            chunk.n_breaks += 1
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

    def _open(self, marks: list[int], *, before_ns: int = 0) -> Chunk:
        self._disarm()
        old = self.chunk
        old.length = len(old.marks)
        if old.marks:
            self._last_ns = old.marks[-1] if old.marks[-1] != BREAK else old.marks[-2]
        first = old.first + n_iterations(old, old.length)
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


def nothing() -> None:
    """Do nothing; also stand for a weak reference to nothing."""
