"""A training process on the stub machine: `python -m tests.live.training_on_stub SECONDS`, with the real publisher.

Its iterations take as long as the stub's GPUs need at their present limits. It is configured by the environment alone,
as a user's would be, but for the batch size. SIGTERM lets it reach its target sooner. SIGUSR1 lets it do nothing, as a
notebook at its prompt, and the next one go on.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from gridchase import publish_iterations, publisher_of
from tests.live.nvml_stub.machine import StubMachine

PASS = 200
LAG_S = 0.25
"""A process that was held up for longer does not make up for more."""


def main(duration_s: float) -> None:
    """Train for a time, or until SIGTERM."""
    machine = StubMachine.from_environment()
    gpu = machine.gpu()
    pid = int(
        Path("/proc/self").readlink().name
    )  # as the host counts, like the driver, also in a pid namespace of our own
    gpu.busy = True
    gpu.pids |= {pid}
    done, idle = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    signal.signal(signal.SIGUSR1, lambda *_: idle.clear() if idle.is_set() else idle.set())
    due_s = time.monotonic()
    end_s = due_s + duration_s
    pausable = bool(os.environ.get("PAUSABLE"))
    work_s = float(os.environ.get("WORK_S", "0"))
    loader = publish_iterations(
        range(PASS),
        batch_size=256,
        flush_s=0.05,
        heartbeat_s=1.0,
        pausable=pausable,
        max_pause_s=float(os.environ.get("MAX_PAUSE_S", "300")),
        total_iterations=round(work_s / gpu.iteration_time_s()) or None,
    )
    while time.monotonic() < end_s and not done.is_set():
        gpu.busy = not idle.is_set()
        if idle.is_set():
            done.wait(LAG_S)
            continue
        for _ in loader:
            # Until the iteration is over, and not for its time: what one lasted too long, the next makes up for.
            due_s = max(due_s + gpu.iteration_time_s(), time.monotonic() - LAG_S)
            is_over = done.wait(max(0.0, due_s - time.monotonic())) or time.monotonic() >= end_s
            if is_over or idle.is_set():
                break
    gpu.busy = False
    gpu.pids -= {pid}
    publisher_of(loader).close(reached=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
