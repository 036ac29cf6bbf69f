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
from typing import Any, Final

from publishers.training.coerce import warn_once
from publishers.training.iterations.recorder import CHUNK, Recorder

MAX_OPTIMIZERS: Final = 4_096
"""Optimizers whose steps are told apart; further ones are not seen."""
LOST_AFTER: Final = 256
"""Steps of another optimizer, and none of the one that counts, after which that one has been left."""
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
        self._leader: Any = _nothing
        self._n = 0
        self._others: dict[int, _Steps] = {}

    def step(self, optimizer: object) -> None:
        """Take a step, which has just been made. The first lines are the hot path."""
        if self._leader() is optimizer:
            self._n += 1
            recorder = self.recorder
            if recorder.is_stepping:
                marks = recorder.chunk.marks
                marks.append(recorder.clock_ns())
                if len(marks) > CHUNK:
                    recorder.rotate(recorder.chunk)
            else:
                recorder.add_step("optimizer")
            if self._n < _CAPTURES_IN:
                recorder.steps_are_captured |= _is_capturing()
        else:
            self._step_of_another(optimizer)

    def _step_of_another(self, optimizer: object) -> None:
        steps = self._steps_of(optimizer)
        if steps is None:
            return
        steps.n += 1
        if steps.leader_n != self._n:
            steps.leader_n, steps.run, steps.first_ns = self._n, 0, self.recorder.clock_ns()
        steps.run += 1
        is_left = self._leader() is None or steps.run >= LOST_AFTER
        is_elsewhere = steps.run >= 2 and not self.recorder.is_stepping  # noqa: PLR2004 — a pause, then two steps
        if not (is_left or is_elsewhere or steps.n > self._n):
            return
        self._follow(optimizer, steps)
        if is_elsewhere and not is_left and steps.run == 2:  # noqa: PLR2004 — the first of the two was one, too
            self.recorder.add_step("optimizer", steps.first_ns)
        self.recorder.add_step("optimizer")

    def _follow(self, optimizer: object, steps: _Steps) -> None:
        """Let the steps of another optimizer count."""
        before = self._leader()
        if before is not None:
            kept = self._others[id(before)] = _Steps(before)
            kept.n = self._n
        del self._others[id(optimizer)]
        self._leader, self._n = steps.reference, steps.n

    def _steps_of(self, optimizer: object) -> _Steps | None:
        steps = self._others.get(id(optimizer))
        if steps is None or steps.reference() is not optimizer:
            if len(self._others) >= MAX_OPTIMIZERS:
                self._others = {key: one for key, one in self._others.items() if one.reference() is not None}
            if len(self._others) >= MAX_OPTIMIZERS:
                return None
            steps = self._others[id(optimizer)] = _Steps(optimizer)
        return steps


_counters: tuple[StepCounter, ...] = ()
"""Of the publishers that are open; that of the one used last is the last."""
_hooked: list[object] = []
"""PyTorch's module that calls the hook."""
_MAX_COUNTERS: Final = 64


def count_steps(recorder: Recorder) -> None:
    """Count the steps of this thread's optimizers for a recorder from now on, if PyTorch is there; never raises."""
    global _counters  # noqa: PLW0603 — replaced as a whole, since other threads go through it
    if recorder.is_closed or not _is_hooked():
        return
    recorder.await_steps()
    present = _counters
    if present and present[-1].recorder is recorder:
        return
    own = next((one for one in present if one.recorder is recorder), None) or StepCounter(recorder)
    own.thread_id = threading.get_ident()
    others = [one for one in present if one is not own and not one.recorder.is_closed]
    _counters = (*others[1 - _MAX_COUNTERS :], own)


def gradients_are_off() -> bool:
    """Return whether PyTorch is there, and computes no gradients now."""
    torch = sys.modules.get("torch")
    try:
        return torch is not None and not torch.is_grad_enabled()
    except Exception:  # noqa: BLE001 — a module that is only half imported
        return False


def _on_step(optimizer: object, _args: object, _kwargs: object) -> None:
    """Count a step: what PyTorch calls after each, in the thread that made it."""
    try:
        counters = _counters
        if len(counters) == 1:
            counters[0].step(optimizer)
        elif counters:
            _counter_here(counters).step(optimizer)
    except Exception as error:  # noqa: BLE001 — it would go through the optimizer into the training
        warn_once(f"steps of optimizers are not counted as they are: {type(error).__name__}: {error}")


def _counter_here(counters: tuple[StepCounter, ...]) -> StepCounter:
    """Return that of the publisher used last in this thread; in one that has used none, of the one used last at all."""
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


def _is_capturing() -> bool:
    """Return whether this step is captured in a CUDA graph, whose replays nobody tells us of."""
    torch: Any = sys.modules.get("torch")
    try:
        return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
    except Exception:  # noqa: BLE001 — without CUDA
        return False


def _nothing() -> None:
    """Stand for an optimizer that is not there."""


def _reset_in_child() -> None:
    global _counters  # noqa: PLW0603 — nothing is published in a forked child
    _counters = ()


os.register_at_fork(after_in_child=_reset_in_child)
