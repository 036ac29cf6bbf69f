"""The training job of the demo: how many iterations it has, and when each ends on the simulated GPU.

The training process and the baseline run the same code with the same noise; only limits and the passage of time differ.
"""

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass

from controller.gpu.simulation.event_log import FOREVER_NS, LoadChanged, LoadSettled
from controller.gpu.simulation.measured_curve import MeasuredCurve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S

PAUSE_S = 20.0
"""The GPU is idle after each epoch, as for a checkpoint [s]."""
BATCH_SIZE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training job: epochs of equal length, with pauses between them."""

    epochs: int
    iterations_per_epoch: int
    pause_s: float = PAUSE_S

    @property
    def iterations(self) -> int:
        """Return the number of iterations of the job."""
        return self.epochs * self.iterations_per_epoch


def fill(curve: MeasuredCurve, *, power_limit_w: float, duration_s: float) -> Workload:
    """Return the job with as many whole epochs as fit into `duration_s` at a limit, at least one.

    The last, partial batch of an epoch is dropped.
    """
    iterations_per_epoch = math.floor(curve.iterations_per_epoch)
    epoch_s = iterations_per_epoch / curve.iterations_per_s(power_limit_w) + PAUSE_S
    return Workload(epochs=max(1, math.floor(duration_s / epoch_s)), iterations_per_epoch=iterations_per_epoch)


Waits = Generator[int, int, None]
"""A job that yields each moment that it waits for [ns], and is sent the present, which is not before it [ns]."""


def run_through(job: Waits, wait: Callable[[int], int]) -> None:
    """Run a job to its end; `wait` waits at least until a moment and returns the present [ns]."""
    until_ns = next(job, None)
    with suppress(StopIteration):
        while until_ns is not None:
            until_ns = job.send(wait(until_ns))


class Training:
    """The training loop on the simulated GPU; `time_ns` is the job's present time.

    Args:
        history: the GPU's timeline, to which the job adds when it starts and stops using the GPU.
        noise: the noise of the job's work.
        begin_ns: when the first iteration begins [ns].
    """

    def __init__(self, history: GpuTimeline, noise: Noise, *, begin_ns: int) -> None:
        self.time_ns = begin_ns
        self._history = history
        self._work = noise.iterations()
        self._goal_iterations = history.done_iterations(begin_ns)
        self._present_ns = begin_ns
        history.record(LoadSettled(begin_ns))

    def begin(self) -> None:
        """Start using the GPU."""
        self._history.record(LoadChanged(self.time_ns, loaded=True))

    def end(self) -> None:
        """Stop using the GPU."""
        self._history.record(LoadChanged(self.time_ns, loaded=False))

    def run_iteration(self) -> Waits:
        """Run the next iteration to its end, which `time_ns` then is; limits that change in a wait move it."""
        self._goal_iterations += next(self._work)
        while (end_ns := self._end_ns()) > self._present_ns:
            self._history.record(LoadSettled(self._present_ns))  # what follows is told when the wait is over, or later
            self._present_ns = yield end_ns
            self._history.refresh()
        self.time_ns = end_ns

    def pause(self, pause_s: float) -> None:
        """Leave the GPU idle for a time [s]."""
        self.end()
        self.time_ns += round(pause_s * NS_PER_S)
        self.begin()

    def run(self, workload: Workload, loader: Iterable[int]) -> Waits:
        """Run the whole job, with one pass over `loader` per epoch."""
        try:
            self.begin()
            for epoch in range(workload.epochs):
                if epoch:
                    self.pause(workload.pause_s)
                for _ in loader:
                    yield from self.run_iteration()
            self.end()
        finally:  # the meters go on, however this ends
            self._history.record(LoadSettled(FOREVER_NS))

    def _end_ns(self) -> int:
        end_ns = self._history.reached_ns(self._goal_iterations, not_before_ns=self.time_ns)
        if end_ns is None:
            raise RuntimeError("the job does not use the GPU: call begin() first")
        return end_ns
