"""One pass over a data loader, as far as it concerns the count of iterations: what it records, and whether it counts.

Where a step ends an iteration, a pass logs its requests. When it begins and when it ends, the count is interrupted
until the next step, which begins where its batch is asked for: so a pass without a step, a validation, is a pause. The
pass that asked last before a step is one of the training.

Where no step is told (`loader`), the requests of one pass at a time are the marks, and it logs when it got its batches.
These do not count:

- a pass within an iteration of another one: a validation, or the second loader of a `zip`;
- one in whose first iteration another pass was counted: the outer one of two nested loops;
- one without gradients, where another one was counted with them.

Each of these may be wrong, as where a pass was left open for good: one counts when it has gone on for long, and nothing
else was counted meanwhile.

What a second thread trains while the first one is in a pass is no part of the run: its loader is not recorded, which a
line says, and its steps do not count. A pass that has asked for nothing for long was left, and hinders nobody.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from publishers.training.coerce import warn_once
from publishers.training.iterations.open_pass import Source, TimeLog
from publishers.training.iterations.recorder import CHUNK, Recorder
from publishers.training.iterations.steps.optimizer_hook import gradients_are_off, set_recorded_here
from publishers.training.pausing.gate import IterationGate

LOOK: Final = 16
"""Batches after which a pass that may have to change its role looks again."""
TAKEOVER: Final = 256
"""Batches after which a pass counts that did not at first, if nothing else was counted meanwhile."""
TAKEOVER_ALONE: Final = 8
"""The same where no other pass that counts is open."""
_FEW: Final = 2
"""Iterations of other passes within the first one of a pass: that many, and it is the outer of two loops."""
MAX_UNSTEPPED: Final = 256
"""Batches without any optimizer step, after which none is expected any more."""
MAX_UNSTEPPED_WITHOUT_GRADIENTS: Final = 1_024
"""The same of a pass without gradients, which most likely is a validation."""
MAX_UNSTEPPED_S: Final = 60.0
MIN_UNSTEPPED: Final = 64
"""The same where the pass has gone on for so long, after so many batches."""
MAX_STEPLESS: Final = 1_024
"""Batches of a pass of the training after its last step, after which its steps are not seen any more."""
MAX_STEPLESS_CAPTURED: Final = 16
"""The same where a step was captured in a CUDA graph, whose replays are not seen."""
MAX_STEPLESS_PASSES: Final = 4
"""Passes over one loader in a row without a step: that many are no validations."""
SKIPPED_NS: Final = 50_000
"""PyTorch computes no gradients in less: a batch that was held so briefly was skipped, to resume within an epoch."""
MAX_PREEMPTED_NS: Final = 100_000_000
"""For no longer is a thread kept from its CPU, which looks like a step: the period of a container's CPU quota."""
MAX_SKIPPED_PASSES: Final = 4
"""Passes of skipped batches, after which a line says that they do not count."""
MAX_SKIPPED: Final = 65_536
"""Batches of one pass that may have been skipped, whose times are kept."""
_MAX_KEPT_PASSES: Final = 8
LEFT_NS: Final = 30_000_000_000
"""Its thread has left a pass that has asked for no batch for so long [ns], and for `LEFT_REQUESTS` usual intervals."""
LEFT_REQUESTS: Final = 20
_ELSEWHERE: Final = (
    "a loader is not published while another thread trains the same job: pass another job= or run= in one of them, if "
    "both are trainings"
)


class Holds:
    """For how long batches were held: the mean of many without the longest one, when the thread was preempted."""

    __slots__ = ("_held_ns", "_longest_ns", "_n")

    def __init__(self, holds_ns: Iterable[int] = ()) -> None:
        self._n = self._held_ns = self._longest_ns = 0
        for held_ns in holds_ns:
            self.add(held_ns)

    def add(self, held_ns: int) -> None:
        """Add one [ns]."""
        self._n += 1
        self._held_ns += held_ns
        self._longest_ns = max(self._longest_ns, held_ns)

    @property
    def are_of_steps(self) -> bool:
        """Return whether they lasted as long as steps do."""
        rest_ns = self._held_ns - min(self._longest_ns, MAX_PREEMPTED_NS)
        return self._longest_ns >= SKIPPED_NS and rest_ns >= SKIPPED_NS * (self._n - 1)


class SkippedBatches:
    """Tells from when on a pass does not skip its batches: once several were held for as long as steps take.

    Args:
        of_all: how long the batches of all passes were held.

    Attributes:
        of_all: as given; a pass that is recorded elsewhere has others.
        n_merged: the times that were not kept.
    """

    __slots__ = ("_first_long", "_last_ns", "n_merged", "of_all")

    def __init__(self, of_all: Holds) -> None:
        self.of_all = of_all
        self.n_merged = 0
        self._last_ns: deque[int] = deque(maxlen=LOOK)
        self._first_long: int | None = None  # the first of the times whose batch was held for long

    def add(self, held_ns: int, place: int) -> int | None:
        """Add for how long a batch was held [ns]; return which of the times is the first after skipping, if any is.

        Args:
            held_ns: for how long.
            place: which of the times is that of the batch.
        """
        self.of_all.add(held_ns)
        self._last_ns.append(held_ns)
        if held_ns < SKIPPED_NS:
            return None
        if self._first_long is None:
            self._first_long = place
        return self.first_after(place) if len(self._last_ns) == LOOK else None

    def first_after(self, last: int) -> int | None:
        """Return which of the times is the first after skipping, of those until `last`; None: all are skipped."""
        if Holds(self._last_ns).are_of_steps:
            n_held = len(self._last_ns)
            n_since = next(n_held - place for place, held_ns in enumerate(self._last_ns) if held_ns >= SKIPPED_NS)
            return last if self.n_merged else max(last + 1 - n_since, 0)
        return self._first_long if self.of_all.are_of_steps else None


class LoaderPasses:
    """The passes over loaders whose iterations one recorder records; finds out that no steps come while batches do.

    Without a step, batches may be those of validations. So steps are given up only after many of them, after a second
    pass over one loader, or after a minute; where steps were seen before, after more. What was asked for until then is
    counted, if no step was ever seen: without the batches that were skipped at the beginning of a pass, before several
    were held for as long as steps take, and without passes of nothing else. A minute of such batches is no resumption.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.has_gradients = False
        self.holds = Holds()  # of all passes in which batches may have been skipped
        self.n_skipped = 0  # of the passes, as a whole
        self._elsewhere: list[tuple[Source, LoaderPass]] = []
        """Loaders that are not recorded while the thread of a pass trains."""
        self._stepless: list[LoaderPass] = []  # the last ones that ended without a step since the last iteration
        self._n_ended = 0

    def open(self, source: Source, asked_ns: int | None, on_training: Callable[[], None]) -> "LoaderPass":
        """Return a pass whose first batch has been fetched.

        Args:
            source: the loader: a pass over it replaces one before.
            asked_ns: when the first batch was asked for [ns]; None: like when it was there.
            on_training: called when it turns out to be a pass of the training.
        """
        return LoaderPass(self, source, asked_ns, on_training)

    def is_elsewhere(self, source: Source) -> bool:
        """Return whether another thread trains, so that a pass over this loader in this one is none of the run's."""
        here = threading.current_thread()
        known = [one for loader, one in self._elsewhere if loader.is_same(source)]
        passes = [one for one in self.recorder.passes if isinstance(one, LoaderPass)]
        training = known + [one for one in passes if one.is_training and not one.is_over(source)]
        other = next((one for one in training if one.thread is not here and not one.is_left), None)
        set_recorded_here(self.recorder, is_recorded=other is None)
        if other is None:
            return False
        if other not in known:
            self._elsewhere = [*self._elsewhere[1 - _MAX_KEPT_PASSES :], (source, other)]
        warn_once(_ELSEWHERE)
        return True

    def tell_beside(self, present: "LoaderPass") -> None:
        """Say so where a pass that has led to no iteration goes on while another thread trains: both began at once."""
        passes = [one for one in self.recorder.passes if isinstance(one, LoaderPass)]
        if any(one.is_training and one.thread is not present.thread and not one.is_left for one in passes):
            warn_once(_ELSEWHERE)

    def take_over(self, former: "LoaderPasses") -> None:
        """Go on with the passes that are open, as if they had begun here: another run begins within them."""
        for one in list(former.recorder.passes):
            if isinstance(one, LoaderPass):
                one.move_to(self)
        former.recorder.passes.clear()

    def add_stepless(self, ended: "LoaderPass") -> None:
        """Remember a pass that has ended without a step."""
        if self._n_ended != self.recorder.n_ended:
            self._n_ended, self._stepless = self.recorder.n_ended, []
        self._stepless = [*self._stepless[1 - _MAX_KEPT_PASSES :], ended]

    def is_hopeless(self, present: "LoaderPass") -> bool:
        """Return whether no step is to be expected any more, since a pass has gone on for long without one."""
        recorder, n_idle = self.recorder, present.n_idle
        n_before = sum(one.has_gradients and one.source.is_same(present.source) for one in self._stepless)
        if recorder.awaits_steps:
            limit = MAX_UNSTEPPED if present.has_gradients else MAX_UNSTEPPED_WITHOUT_GRADIENTS
            is_long = n_idle >= MIN_UNSTEPPED and present.duration_ns >= MAX_UNSTEPPED_S * 1e9
            return n_before > 0 or is_long or (n_idle >= limit and not present.is_skipping)
        if recorder.counted_by != "optimizer":
            return False
        if recorder.steps_are_captured:
            return n_idle >= MAX_STEPLESS_CAPTURED
        is_over = self._n_ended == recorder.n_ended and n_before >= MAX_STEPLESS_PASSES - 1
        return is_over or (present.is_training and n_idle >= MAX_STEPLESS)

    def give_up_steps(self, present: "LoaderPass") -> None:
        """Count by the loader from now on."""
        was_awaiting = self.recorder.awaits_steps
        n_batches = present.n_idle + sum(one.n_idle for one in self._stepless)
        self.recorder.fall_back()
        warn_once(
            f"iterations are counted by the data loader, since no step of a PyTorch optimizer was seen in {n_batches} "
            "batches: call Publisher.iteration() after each step, if a step takes several batches or there are "
            "validations; in JAX, Publisher.wait_for(loss)"
        )
        if was_awaiting:
            for ended in self._stepless:
                if ended.has_gradients:
                    ended.count(ended.unskipped)
                    self.recorder.append_break(ended.chunk)
        self._stepless = []
        present.count(present.unskipped if was_awaiting else present.times[-1:])
        self.has_gradients = present.has_gradients


class LoaderPass:
    """A pass whose first batch has been fetched; one thread goes through it.

    Attributes:
        counts: whether its requests are the ends of iterations.
        is_training: whether it has led to a step, or counts.
        times: when it asked for its batches, the first one: when it got it [ns]; or, if it counts, when it got them.
        chunk: where it counts.
        has_gradients: whether PyTorch computed gradients when it asked for its second batch.
        n_idle: the batches it has asked for since the last iteration ended, about.
        n_ended: the iterations that had ended then.
        is_skipping: whether steps are awaited, and batches so far were not held for as long as steps take.
        thread: that goes through it.
    """

    def __init__(
        self, passes: LoaderPasses, source: Source, asked_ns: int | None, on_training: Callable[[], None]
    ) -> None:
        self._passes = passes
        self._recorder = recorder = passes.recorder
        self.counts = self.is_training = False
        self.has_gradients = True
        self.chunk = recorder.chunk
        self.times = [recorder.clock_ns()]
        self.source = source
        self.thread = threading.current_thread()
        self.n_idle = 1
        self.n_ended = recorder.n_ended
        self._n_read = 1  # of the times, as far as `n_idle` has them
        self._n_before = 1
        self._on_training = on_training
        self._asked_ns = self.times[0] if asked_ns is None else asked_ns
        self._log: TimeLog | None = None
        self._is_started = self._is_cut = self.is_skipping = False
        self._unskipped = 0  # the first of the times after skipping
        self._skipped = SkippedBatches(passes.holds)
        self._resume = 0
        self._begin_ns: int | None = None
        self._is_nested = any(one.counts for one in recorder.passes)
        recorder.hold(self)

    def __enter__(self) -> Self:
        """Return itself: its first batch is handed out."""
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """End it: without an exception there are no more batches, or the training leaves it with one in hand."""
        try:
            if kind is None:
                self._finish()
            elif issubclass(kind, GeneratorExit):
                self._abandon()
        finally:
            self._close()

    def move_to(self, passes: LoaderPasses) -> None:
        """Be recorded there from now on, with what was asked for since the last interruption."""
        self._passes = passes
        self._recorder = recorder = passes.recorder
        self._skipped.of_all = passes.holds
        self.counts = self.is_training = False
        self.chunk, self.n_ended = recorder.chunk, recorder.n_ended
        recorder.hold(self)
        if self._log is not None:
            self._log.is_sealed = True
            self._log = None
            self._publish_log()

    @property
    def is_new(self) -> bool:
        """Return whether it has neither asked for a second batch nor led to a step."""
        return not (self._is_started or self.is_training)

    @property
    def last_ns(self) -> int:
        """Return when it last asked for a batch [ns]."""
        return self.times[-1]

    @property
    def is_left(self) -> bool:
        """Return whether its thread has ended, or does something else: it has asked for no batch for long."""
        interval_ns = (self.times[-1] - self.times[0]) // max(len(self.times) - 1, 1)
        is_idle = self._recorder.clock_ns() - self.last_ns > max(LEFT_NS, LEFT_REQUESTS * interval_ns)
        return is_idle or not self.thread.is_alive()

    @property
    def duration_ns(self) -> int:
        """Return how long it has gone on, as far as its times are kept [ns]."""
        return self.times[-1] - self.times[self._unskipped]

    @property
    def unskipped(self) -> list[int]:
        """Return the times without those of batches that were skipped [ns]."""
        return self.times[self._unskipped :]

    def begin_ns(self) -> int | None:
        """Return when it first asked for a batch after the last interruption, or None [ns]."""
        if self._begin_ns is None and self._resume < len(self.times):
            return self.times[self._resume]
        return self._begin_ns

    def interrupt(self) -> None:
        """Take note that what was asked for so far belongs to no step to come."""
        self._resume, self._begin_ns = len(self.times), None

    def begin_epoch(self) -> None:
        """Take note that it is a pass of the training: its requests are those of iterations."""
        self.is_training, self.is_skipping = True, False
        self._publish_log()
        self._on_training()

    def start(self) -> None:
        """Take note that a second batch is asked for: this is a pass, not a look at one batch."""
        now_ns = self._recorder.clock_ns()
        self.has_gradients = not gradients_are_off()
        was_started, self._is_started = self._is_started, True
        if self._recorder.counts_passes:
            if not was_started:
                self._choose_role()
            if self.counts:
                self.chunk.marks.append(now_ns)
            return
        self.is_skipping = self._recorder.awaits_steps
        if self.is_skipping:
            self.ask(self.times[0], now_ns)
        else:
            self.times.append(now_ns)
        if not self.is_training:
            self._recorder.interrupt()
            self._resume = 0
        self._publish_log()

    def add_work(self, value: object, received_ns: int | None = None) -> None:
        """Note the work of the batch that was received last, now or at a time [ns]; that of a validation is none."""
        recorder = self._recorder
        if recorder.counts_passes and not self.counts and (self._is_started or self._is_nested):
            return
        recorder.add_batch_work(value, recorder.clock_ns() if received_ns is None else received_ns)

    def ask(self, received_ns: int, asked_ns: int) -> None:
        """Take note, while batches may be skipped, that one was received and the next one asked for [ns]."""
        if self.is_skipping:
            self._end_skipping(self._skipped.add(asked_ns - received_ns, len(self.times) - 1))
        if self.is_skipping and len(self.times) >= MAX_SKIPPED:
            self._skipped.n_merged += 1
            self.times[-1] = asked_ns
        else:
            self.times.append(asked_ns)

    def _end_skipping(self, first: int | None) -> None:
        """Take note of which of the times is the first after skipping; None: batches are skipped still."""
        if first is None:
            return
        self.is_skipping = False
        self._unskipped, self._resume = first, max(self._resume, first)
        self.n_idle, self._n_read = 0, first + 1

    def _finish(self) -> None:
        """Take note that there are no more batches: where they were not held for long, the whole pass was skipped."""
        if self.is_skipping:
            self._end_skipping(self._skipped.first_after(len(self.times) - 2))
        if self.is_skipping:
            self.n_idle, self._n_read = 0, len(self.times)
            self._passes.n_skipped += 1
            if self._passes.n_skipped > MAX_SKIPPED_PASSES:
                warn_once(
                    "whole passes over a loader do not count, since each batch was held for less than 0.05 ms, as where"
                    " they are skipped to resume: call Publisher.iteration() after each step, if they are trained on"
                )

    def start_paused(self) -> None:
        """Begin to count, if it has only handed out its first batch, since its iteration ends now."""
        if not self._is_started:
            self._is_started = True
            self._choose_role()

    def next_batches(self) -> int:
        """Return how many batches it may go on for as it is; called at a request, before each of these stretches."""
        self._count_idle()
        recorder = self._recorder
        if self._passes.is_hopeless(self):
            self._passes.give_up_steps(self)
        if not recorder.counts_passes:
            self.counts = False
        elif self.counts:
            self._rotate_marks()
        elif self._takes_over():
            self.count(self.times[-1:])
        if not self.is_training:
            self._passes.tell_beside(self)
        self._rotate_log()
        if recorder.gate is not None:
            return self._pass_gate(recorder.gate)
        return CHUNK if self.counts or (self.is_training and not recorder.counts_passes) else LOOK

    def has_ended(self, n_batches: int) -> bool:
        """Return whether the loader had fewer batches than that, or the training has ended early."""
        return self._is_cut or len(self.times) + self._skipped.n_merged - self._n_before < n_batches

    def count(self, times: list[int]) -> None:
        """Count from now on: the first of the times begins an iteration, the others have ended one each [ns]."""
        self.counts = True
        self.chunk = self._recorder.start_pass(times[0])
        self.begin_epoch()
        marks = self.chunk.marks
        marks.extend(time_ns for time_ns in times[1:] if time_ns >= marks[0])  # passes may have overlapped

    def _abandon(self) -> None:
        """Count the batch in hand or not, since the training leaves the pass with it."""
        if self.counts:
            self._recorder.abandon_pass(self.chunk)

    def _close(self) -> None:
        """End the pass."""
        if self._log is not None:
            self._log.is_sealed = True
        if self.is_new:
            self._recorder.release(self)
            return
        if self.counts:
            self._recorder.append_break(self.chunk)
        self._count_idle()
        if self.n_idle:
            self._passes.add_stepless(self)
        self._recorder.end_pass(self)

    def is_over(self, source: Source) -> bool:
        """Return whether it is one over this loader."""
        return self.source.is_same(source)

    def _pass_gate(self, gate: IterationGate) -> int:
        """Wait where the gate says so; return 1, since it may say so at each request, or 0 where this is the last."""
        if self.counts:
            gate.passed("loader")
        self._is_cut = gate.requested() and self.is_training
        return 0 if self._is_cut else 1

    def _choose_role(self) -> None:
        """Count, unless the training does something else with the loader than to train."""
        recorder = self._recorder
        others = [one for one in recorder.passes if one.counts and one is not self]
        for other in others:
            other.counts = not other.is_over(self.source)  # else it has been left
        is_within = any(one.counts for one in others)
        if not is_within and recorder.n_ended - self.n_ended < _FEW and self._may_train:
            self.count(self.times[:1])
            self._passes.has_gradients |= self.has_gradients
        elif is_within and self._is_nested:
            recorder.end_iteration(self._asked_ns)

    def _takes_over(self) -> bool:
        """Return whether it counts from now on, since nothing else has for long."""
        limit = TAKEOVER if any(one.counts for one in self._recorder.passes) else TAKEOVER_ALONE
        return self.n_idle >= limit and self._may_train

    @property
    def _may_train(self) -> bool:
        return self.has_gradients or not self._passes.has_gradients

    def _count_idle(self) -> None:
        n_ended = self._recorder.n_ended
        self.n_idle = 0 if n_ended != self.n_ended else self.n_idle + len(self.times) - self._n_read
        self.n_ended, self._n_read = n_ended, len(self.times)

    def _rotate_marks(self) -> None:
        chunk = self.chunk
        if chunk is not self._recorder.chunk or len(chunk.marks) - chunk.extra > CHUNK:
            self.chunk = self._recorder.rotate(chunk)

    def _rotate_log(self) -> None:
        """Begin another log where the present one is long, or is of another kind."""
        is_full = len(self.times) >= CHUNK and not self._recorder.awaits_steps
        if is_full or (self._log is not None and self._log.is_receipt != self.counts):
            self._begin_ns = self.begin_ns()
            if self._log is not None:
                self._log.is_sealed = True
            self.times, self._log = self.times[-1:], None
            self._resume = self._n_read = 1
            self._unskipped, self.is_skipping = 0, False
            self._publish_log()
        self._n_before = len(self.times) + self._skipped.n_merged

    def _publish_log(self) -> None:
        if self._log is None:
            self._log = TimeLog(self, self.times, is_receipt=self.counts)
            self._recorder.add_log(self._log)
