"""The training process of the demo: `python -m controller.demo.day.training`.

It says `ready` and then gets its task, as a line of JSON, so that the time it takes to start is none of the day's.

It trains nothing, but it takes as long as the real training would on the simulated GPU at its present limit, and it
publishes its iterations as any training process does: through `publish_iterations`, to a real broker. The times that it
publishes are the GPU's own, so that a process that sleeps too long does not look like a slow GPU.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from controller.demo.day.workload import BATCH_SIZE, Training, Workload, run_through
from controller.gpu.simulation.event_log import ProcessAttached
from controller.gpu.simulation.measured_curve import load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S, ScaledClock
from publishers.training.publish_iterations import publish_iterations, publisher_of

SHORTEST_NAP_S: Final = 0.004
"""Iterations take less than a millisecond of real time, so several are run after each sleep."""
HEARTBEAT_S: Final = 5.0
READY: Final = "ready"


class TrainingTask(Struct, frozen=True, kw_only=True):
    """What the training process has to do.

    Attributes:
        broker: the URL of the broker.
        job, run: the names under which it publishes.
        gpu: the UUID of its GPU.
        events: the file of events of the simulated GPU.
        curve: the curve that the GPU follows.
        seed: the seed of its noise.
        power_limit_w: the limit that it was switched on with [W].
        start_s, rate, origin_ns: the scaled clock.
        begin_s: the time of day at which training begins, Unix seconds [s].
        workload: epochs, iterations and pauses.
        flush_s: how often iterations are published, in real time [s].
    """

    broker: str
    job: str
    run: str
    gpu: str
    events: str
    curve: str
    seed: int
    power_limit_w: float
    start_s: float
    rate: float
    origin_ns: int
    begin_s: float
    workload: Workload
    flush_s: float


def train(task: TrainingTask) -> None:
    """Run the whole job, beginning at the time that the task says."""
    clock = ScaledClock(start_s=task.start_s, rate=task.rate, origin_ns=task.origin_ns)
    noise = Noise(task.seed)
    history = GpuTimeline(
        load_curve(task.curve),
        noise,
        start_ns=task.origin_ns,
        power_limit_w=task.power_limit_w,
        path=Path(task.events),
    )
    history.record(ProcessAttached(task.origin_ns, os.getpid()))
    wait = _waiter(clock)
    begin_ns = task.origin_ns + round((task.begin_s - task.start_s) * NS_PER_S)
    training = Training(history, noise, begin_ns=max(begin_ns, clock.monotonic_ns()))
    loader = publish_iterations(
        range(task.workload.iterations_per_epoch),
        job=task.job,
        run=task.run,
        broker=task.broker,
        rank=0,
        world_size=1,
        gpus=[task.gpu],
        batch_size=BATCH_SIZE,
        total_iterations=task.workload.iterations,
        flush_s=task.flush_s,
        heartbeat_s=HEARTBEAT_S,
        clock_ns=lambda: training.time_ns,
        clock_s=clock.now_s,
    )
    wait(training.time_ns)
    run_through(training.run(task.workload, loader), wait)
    publisher_of(loader).close(reached=True)
    history.close()


def _waiter(clock: ScaledClock) -> Callable[[int], int]:
    """Return a function that sleeps at least until a time on the scaled clock and returns the present time [ns]."""

    def wait(time_ns: int) -> int:
        while (present_ns := clock.monotonic_ns()) < time_ns:
            time.sleep(max(SHORTEST_NAP_S, (time_ns - present_ns) / NS_PER_S / clock.rate))
        return present_ns

    return wait


def main() -> None:
    """Print that we are ready, and run the task from standard input; there is none if the demo has ended already."""
    print(READY, flush=True)
    if line := sys.stdin.readline():
        train(msgspec.json.decode(line, type=TrainingTask))


if __name__ == "__main__":
    main()
