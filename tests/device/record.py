"""Records trainings on a real GPU, which is only read: `python -m tests.device.record DIR [--seconds 90]`.

DIR gets `steps.npz`: of each training NAME `NAME.hook_ns`, when the optimizer's hook was called after each step,
`NAME.device_ns`, when the device had done it, by CUDA events (both on CLOCK_MONOTONIC), and `NAME.what`, what it is;
`about`, what it was measured on. And `meter.npz`: `rows` of the time before and after a reading of the energy counter
[ns], the energy [mJ], the instant and the usual power [mW], and the temperature [°C], read each 15 ms by another
process. `python -m tests.benchmarks.h100 --data DIR` says how precise that is.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import DriverUnavailableError
from controller.gpu.nvml import calls
from controller.runtime.clock import NS_PER_S
from tests.device.trainings import KINDS, STEP_S, Training, trainings

READ_S: Final = 0.015
STARTED_S: Final = 60.0
NS_PER_MS: Final = 1e6


def skips(device: str) -> bool:
    """Return whether there is nothing to measure on, and say so."""
    if find_spec("torch") is None:
        print("skipped: PyTorch is not installed")
        return True
    import torch  # noqa: PLC0415 — so that without it this can be told

    if device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return True
    return False


class Marks:
    """The ends of the steps of a training, as its host sees them, and its device."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._hook_ns = list[int]()
        self._events = list[Any]()

    def record(self, duration_s: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Train for a time [s], and return when the hook was called and when the device was done, shape (n,) [ns]."""
        from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415 — as above

        hook = register_optimizer_step_post_hook(self._on_step)
        try:
            self._training.finish()
            begin_ns = self._mark()
            for _ in self._training.steps(duration_s):
                self._mark()
            self._training.finish()
        finally:
            hook.remove()
        return np.array(self._hook_ns), self._device_ns(begin_ns)

    def _on_step(self, *_: object) -> None:
        self._hook_ns.append(time.monotonic_ns())

    def _mark(self) -> int:
        """Mark the end of what was asked of the device; return the time at which an idle one would be there [ns]."""
        if self._training.device == "cuda":
            import torch  # noqa: PLC0415 — as above

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._events.append(time.monotonic_ns())
        return time.monotonic_ns()

    def _device_ns(self, begin_ns: int) -> NDArray[np.int64]:
        """Return when the device has ended each step [ns].

        The time between two events is a 32-bit float of milliseconds: from one to the next it is exact to nanoseconds.
        """
        if self._training.device != "cuda":
            return np.array(self._events[1:], dtype=np.int64)
        between_ms = [one.elapsed_time(other) for one, other in zip(self._events, self._events[1:], strict=False)]
        return begin_ns + np.rint(np.cumsum(between_ms) * NS_PER_MS).astype(np.int64)


def read_meter(index: int, started: Any, stop: Any, file: Path) -> None:  # noqa: ANN401 — events of a process
    """Read a board until it is time to stop, and write what it said; without NVML write nothing."""
    try:
        calls.initialise()
    except DriverUnavailableError as error:
        print(f"no meters: {error}")
        started.set()
        return
    board, rows = calls.identify(index), list[tuple[int, ...]]()
    is_last = False
    while True:
        sample = calls.read_sample(board.handle, has_energy_counter=board.has_energy_counter)
        if sample.energy_j is not None and sample.instant_power_w is not None:
            half_ns = round(sample.read_s * NS_PER_S / 2)
            values = (1e3 * sample.energy_j, 1e3 * sample.instant_power_w, 1e3 * (sample.power_w or 0.0))
            times_ns = (sample.time_ns - half_ns, sample.time_ns + half_ns)
            rows.append((*times_ns, *map(round, values), round(sample.temperature_c or 0.0)))
        started.set()
        if is_last:
            break
        is_last = stop.wait(READ_S)
    calls.shut_down()
    np.savez_compressed(file, rows=np.array(rows, dtype=np.int64))


@contextmanager
def metered(index: int, file: Path) -> Iterator[None]:
    """Read the meters of a board meanwhile, in another process: the training's is not to wait for them."""
    spawn = multiprocessing.get_context("spawn")
    started, stop = spawn.Event(), spawn.Event()
    reader = spawn.Process(target=read_meter, args=(index, started, stop, file))
    reader.start()
    try:
        if not started.wait(STARTED_S):
            raise TimeoutError("the process that reads the meters has not started")
        yield
    finally:
        stop.set()
        reader.join(STARTED_S)


def about(device: str) -> str:
    """Return what was measured on."""
    import torch  # noqa: PLC0415 — as above

    board = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    return f"{board}, {datetime.now(UTC):%Y-%m-%d}, PyTorch {torch.__version__}; no limit was written."


def main() -> None:
    """Record, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long each training lasts")
    parser.add_argument("--step-s", type=float, default=STEP_S, help="how long a step is, where the device is busy")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script itself")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="whose meters, as NVML counts")
    options = parser.parse_args()
    if skips(options.device):
        return
    options.directory.mkdir(parents=True, exist_ok=True)
    steps: dict[str, Any] = {"about": np.array(about(options.device))}
    with metered(options.gpu, options.directory / "meter.npz"):
        for training in trainings(options.device, options.kinds, step_s=options.step_s):
            hook_ns, device_ns = Marks(training).record(options.seconds)
            name = training.name
            steps |= {f"{name}.hook_ns": hook_ns, f"{name}.device_ns": device_ns, f"{name}.what": np.array(KINDS[name])}
            print(f"{name}: {len(hook_ns)} steps of {np.median(np.diff(hook_ns)) / NS_PER_MS:.2f} ms")
    np.savez_compressed(options.directory / "steps.npz", **steps)


if __name__ == "__main__":
    main()
