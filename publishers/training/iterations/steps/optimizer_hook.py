"""Counts the steps of PyTorch's optimizers as iterations, by the hook that PyTorch calls after each step of any one.

PyTorch is never imported here: without it there is no hook. Training code may have several optimizers: the two of a
GAN, one for each parameter where the step is made within the backward pass, or one that wraps another. So the steps of
one of them count: of the one that has made most, ties the first seen. An optimizer takes its place when it has made
more, when it was collected, or when it makes steps and the other one none: the next fold of a cross-validation.
A step that is skipped, as a GradScaler does where gradients overflow, is part of the next one.

Nothing that goes wrong here reaches the training.
"""

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from publishers.training.coerce import warn_once
from publishers.training.iterations.recorder import Recorder, nothing
from publishers.training.iterations.steps.dynamo import untraced
from publishers.training.pausing.gate import IterationGate

MAX_OPTIMIZERS: Final = 4_096
"""Optimizers whose steps are told apart; further ones are not seen."""
LOST_AFTER: Final = 256
"""Steps of another optimizer, and none of the one that counts, after which that one has been left."""
_TWO: Final = 2
"""Steps of another optimizer after a pause, and none of the one that counts, after which that one is not used there."""
_ELSEWHERE_AFTER: Final = 16
"""Steps in another thread, while the optimizer that counts makes some, after which that is told."""
_CAPTURES_IN: Final = 64
"""Steps of an optimizer, among which the one that is captured in a CUDA graph must be."""


class _Steps:
    """The steps of one optimizer that does not count, and when that one last made some."""

    __slots__ = ("first_ns", "leader_n", "n", "reference", "run")

    def __init__(self, optimizer: object) -> None:
        self.reference = weakref.ref(optimizer)
        self.n = 0
        self.run = 0  # those since the last step of the one that counts
        self.leader_n = -1
        self.first_ns = 0  # the time of the first of these


class StepCounter:
    """Records the iterations of a training by the steps of its optimizers."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.thread_id = threading.get_ident()
        self._leader: Callable[[], object] = nothing
        self._leader_thread_id = self.thread_id
        self._n_more = 0  # steps of the one that counts, beyond the iterations that have ended
        self._others: dict[int, _Steps] = {}
        self._n_refused = 0

    def step(self, optimizer: object) -> IterationGate | None:
        """Take a step, which has just been made, and which cannot just be marked; return the gate it leads to."""
        recorder = self.recorder
        if self._leader() is not optimizer:
            self._step_of_another(optimizer)
        elif recorder.is_stepping:
            recorder.mark(recorder.clock_ns())
        else:
            self._add_step()
        n = self._n
        if n <= _CAPTURES_IN:
            recorder.steps_are_captured |= _is_capturing()
        elif recorder.is_stepping and _only is self and recorder.gate is None:
            _arm(recorder, self._leader)
        is_counted = recorder.counted_by == "optimizer" and self._leader() is optimizer
        return recorder.gate if is_counted else None

    @property
    def _n(self) -> int:
        """Return how many steps the optimizer that counts has made."""
        return self.recorder.n_ended + self._n_more

    def _add_step(self, now_ns: int | None = None) -> None:
        n_before = self._n
        self.recorder.add_step("optimizer", now_ns)
        self._n_more += n_before + 1 - self._n

    def _step_of_another(self, optimizer: object) -> None:
        steps = self._steps_of(optimizer)
        if steps is None or getattr(_here, "unrecorded", None) is self.recorder:
            return
        n, is_stepping = self._n, self.recorder.is_stepping
        steps.n += 1
        if steps.leader_n != n:
            steps.leader_n, steps.run, steps.first_ns = n, 0, self.recorder.clock_ns()
        steps.run += 1
        is_left = self._leader() is None or steps.run >= LOST_AFTER
        is_elsewhere = steps.run == _TWO and not is_stepping
        if not (is_left or is_elsewhere or steps.n > n):
            if steps.n >= _ELSEWHERE_AFTER and steps.run < steps.n:
                self._tell_elsewhere()
            return
        if self._begins_training(steps) and self.recorder.begin_next_run():
            _begin(optimizer, steps.first_ns if is_elsewhere and not is_left else None)
            return
        self._follow(optimizer, steps)
        if is_elsewhere and not is_left:  # the first of the two was an iteration, too
            self._add_step(steps.first_ns)
        if is_stepping:
            self.recorder.mark(self.recorder.clock_ns())
        else:
            self._add_step()

    def _tell_elsewhere(self) -> None:
        """Say so where another thread trains than the one that counts; passes over loaders say it themselves.

        A backward pass has threads of its own, which belong to the training.
        """
        is_elsewhere = threading.get_ident() != self._leader_thread_id
        if is_elsewhere and not self.recorder.passes and not _is_in_backward_pass():
            warn_once(
                "steps of an optimizer are not published while another thread trains: call publish_iterations with "
                "another job= or run= in one of them, if both are trainings"
            )

    def _begins_training(self, steps: _Steps) -> bool:
        """Return whether another training begins: with a new optimizer in a new pass, and the one before is done with.

        That is gone, or has made no step since a loader was wrapped.
        """
        recorder = self.recorder
        if self._leader is nothing or recorder.is_stepping or steps.n != steps.run:
            return False
        return self._leader() is None or recorder.wrapped_at == recorder.n_ended

    def _follow(self, optimizer: object, steps: _Steps) -> None:
        """Let the steps of another optimizer count; its present ones are still to be recorded."""
        before = self._leader()
        if before is not None:
            kept = self._others[id(before)] = _Steps(before)
            kept.n = self._n
        del self._others[id(optimizer)]
        self._leader, self._leader_thread_id = steps.reference, threading.get_ident()
        self._n_more = steps.n - 1 - self.recorder.n_ended

    def _forget_dead(self) -> bool:
        """Return whether there is room for another optimizer, looking for one that is gone now and then."""
        self._n_refused += 1
        if self._n_refused % MAX_OPTIMIZERS == 1:
            self._others = {key: one for key, one in self._others.items() if one.reference() is not None}
        return len(self._others) < MAX_OPTIMIZERS

    def _steps_of(self, optimizer: object) -> _Steps | None:
        steps = self._others.get(id(optimizer))
        if steps is None or steps.reference() is not optimizer:
            if len(self._others) >= MAX_OPTIMIZERS and not self._forget_dead():
                return None
            steps = self._others[id(optimizer)] = _Steps(optimizer)
        return steps


_counters: tuple[StepCounter, ...] = ()
"""Of the publishers that are open; that of the one used last is the last."""
_only: StepCounter | None = None
"""The counter, if there is one alone."""
_hooked: list[object] = []
"""PyTorch's module that calls the hook."""
_MAX_COUNTERS: Final = 64
_here: Final = threading.local()
"""`unrecorded`: the recorder for which this thread trains nothing, while another one does."""


def set_recorded_here(recorder: Recorder, *, is_recorded: bool) -> None:
    """Let the steps of this thread's optimizers count for a recorder or not, as what its loaders yield is recorded."""
    if not is_recorded:
        _here.unrecorded = recorder
    elif getattr(_here, "unrecorded", None) is recorder:
        _here.unrecorded = None


def count_steps(recorder: Recorder) -> None:
    """Count the steps of this thread's optimizers for a recorder from now on, if PyTorch is there; never raises."""
    if recorder.is_closed or not _is_hooked():
        return
    recorder.await_steps()
    present = _counters
    own = next((one for one in present if one.recorder is recorder), None) or StepCounter(recorder)
    own.thread_id = threading.get_ident()
    if present and present[-1] is own:
        return
    others = [one for one in present if one is not own and not one.recorder.is_closed]
    _set_counters(*others[1 - _MAX_COUNTERS :], own)


def _set_counters(*counters: StepCounter) -> None:
    global _counters, _only  # noqa: PLW0603 — each replaced as a whole, since other threads look at them
    _disarm()
    _only = counters[0] if len(counters) == 1 else None
    _counters = counters


def gradients_are_off() -> bool:
    """Return whether PyTorch is there, and computes no gradients now."""
    torch = sys.modules.get("torch")
    try:
        return torch is not None and not torch.is_grad_enabled()
    except Exception:  # noqa: BLE001 — a module that is only half imported
        return False


def _make_hook() -> tuple[Callable[..., None], Callable[[Recorder, Callable[[], object]], None], Callable[[], None]]:
    """Return what PyTorch calls after each step, and how it is armed and disarmed.

    Armed, it marks the steps of one optimizer on its own. Variables of an enclosing function are the cheapest to read.
    """
    leader: Callable[[], object] = nothing
    marking: Iterator[None] = iter(())

    def on_step(optimizer: object, _args: object, _kwargs: object) -> None:
        """Count a step, in the thread that has made it. The first lines are the hot path."""
        try:
            if leader() is optimizer:
                for _ in marking:
                    return
            gate = _counter_here(_counters).step(optimizer) if _counters else None
        except Exception as error:  # noqa: BLE001 — it would go through the optimizer into the training
            warn_once(f"steps of optimizers are not counted as they are: {type(error).__name__}: {error}")
            return
        if gate is not None:  # what is raised there is of a signal handler: the training's own
            gate.passed("optimizer", may_wait=not _is_in_backward_pass())

    def arm(recorder: Recorder, reference: Callable[[], object]) -> None:
        nonlocal leader, marking
        marking = recorder.marks_ahead()  # once the chunk is full, the next step begins another, and arms again
        recorder.disarm = disarm
        leader = reference

    def disarm() -> None:
        nonlocal leader
        leader = nothing

    return untraced(on_step), arm, disarm


_on_step, _arm, _disarm = _make_hook()


def _begin(optimizer: object, first_ns: int | None) -> None:
    """Count an optimizer's step for the run that has just begun, and the one before it, if it has made one there."""
    counter = _counter_here(_counters)
    if first_ns is not None:
        counter.recorder.add_step("optimizer", first_ns)
    counter.step(optimizer)


def _counter_here(counters: tuple[StepCounter, ...]) -> StepCounter:
    """Return that of the publisher used last in this thread; in one that has used none, of the one used last at all."""
    if len(counters) == 1:
        return counters[0]
    thread_id = threading.get_ident()
    live = [one for one in counters if not one.recorder.is_closed] or counters[-1:]
    return next((one for one in reversed(live) if one.thread_id == thread_id), live[-1])


def _is_hooked() -> bool:
    """Return whether PyTorch calls the hook; asks it to, the first time."""
    module: Any = sys.modules.get("torch.optim.optimizer")
    if module is None:
        return False
    if not any(one is module for one in _hooked):
        try:
            module.register_optimizer_step_post_hook(_on_step)
        except Exception:  # noqa: BLE001 — before 2.0, or only half imported
            return False
        _hooked.append(module)
    return True


def _is_in_backward_pass() -> bool:
    """Return whether this step is made within a backward pass, where others may wait for this rank's gradients."""
    torch: Any = sys.modules.get("torch")
    try:
        return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001 — there is no public way to ask
    except Exception:  # noqa: BLE001 — before 2.0
        return False


def _is_capturing() -> bool:
    """Return whether this step is captured in a CUDA graph, whose replays nobody tells us of."""
    torch: Any = sys.modules.get("torch")
    try:
        return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
    except Exception:  # noqa: BLE001 — without CUDA
        return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_set_counters)  # nothing is published in a forked child
