"""Runs a training script as if on the simulated GPU: `python on_simulated_gpu.py EVENTS BOOKS SCRIPT`.

The script trains with its real library. Each optimizer step lasts until the GPU, at its present limit, has done its
work, which begins with the first forward pass (or Keras' call of its compiled step); what Python does meanwhile costs
no time of its own, as on a real GPU. At the end the books are written: what the run and its limits have cost, exactly.
"""

import atexit
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from controller.gpu.simulation.event_log import LoadChanged, ProcessAttached
from controller.gpu.simulation.measured_curve import load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S

SEED: Final = 1
STEP_S: Final = 0.1
"""How long a step takes at the highest limit [s]."""
LAG_NS: Final = NS_PER_S
"""What a step lasted too long because its process was held up, the next ones make up for, up to this."""
NAP_S: Final = 0.02
"""A limit that changes in the middle of a step is noticed so soon."""


class SimulatedSteps:
    """The steps of a training on a simulated GPU, and their books.

    Args:
        events: the event file of the GPU, which the controller's process has made.
        books: where to write the books.
    """

    def __init__(self, events: Path, books: Path) -> None:
        curve = load_curve()
        self._top_per_s = curve.iterations_per_s(curve.max_power_limit_w)
        self._work = Noise(SEED).iterations()
        self._gpu = GpuTimeline(curve, Noise(SEED), start_ns=time.monotonic_ns(), path=events)
        self._gpu.record(ProcessAttached(time.monotonic_ns(), os.getpid()))
        self._books = books
        self._begin_ns: int | None = None
        self._late_ns = 0
        self._first_ns: int | None = None
        self._last_ns = 0
        self._extra_s = 0.0
        self._n_steps = 0

    def begin(self) -> None:
        """Take note that the GPU has got work; the first call in a step counts."""
        if self._begin_ns is None:
            self._begin_ns = time.monotonic_ns()
        if self._first_ns is None:
            self._first_ns = self._begin_ns
            self._gpu.record(LoadChanged(self._begin_ns, loaded=True))

    def end(self) -> None:
        """Wait until the GPU has done the work of the step."""
        self.begin()
        work = STEP_S * self._top_per_s * next(self._work)
        begin_ns = (self._begin_ns or 0) - self._late_ns
        goal = self._gpu.done_iterations(begin_ns) + work
        while (end_ns := self._reached_ns(goal, begin_ns)) > (now_ns := time.monotonic_ns()):
            time.sleep(min((end_ns - now_ns) / NS_PER_S, NAP_S))
        # The first step compiles: nothing of that is made up for.
        self._late_ns = min(now_ns - end_ns, LAG_NS) if self._n_steps else 0
        self._extra_s += (end_ns - begin_ns) / NS_PER_S - work / self._top_per_s
        self._begin_ns, self._last_ns = None, now_ns
        self._n_steps += 1

    def write_books(self) -> None:
        """Stop using the GPU, and write what there was, and by how much less it would have lasted without limits."""
        self._gpu.record(LoadChanged(time.monotonic_ns(), loaded=False))
        duration_s = (self._last_ns - (self._first_ns or 0)) / NS_PER_S
        baseline_s = duration_s - self._extra_s
        books = {
            "n_steps": self._n_steps,
            "duration_s": duration_s,
            "energy_j": self._gpu.energy_j(self._last_ns) - self._gpu.energy_j(self._first_ns or 0),
            "slowdown_ratio": duration_s / baseline_s,
        }
        self._books.write_text(json.dumps(books), encoding="utf-8")

    def _reached_ns(self, goal: float, begin_ns: int) -> int:
        self._gpu.refresh()
        reached_ns = self._gpu.reached_ns(goal, not_before_ns=begin_ns)
        assert reached_ns is not None, "the GPU is loaded"
        return reached_ns


def hook_torch(steps: SimulatedSteps) -> None:
    """Let each step of a torch optimizer take as long as on the GPU; evaluation costs nothing."""
    import torch  # noqa: PLC0415 — Keras does without
    from torch.nn.modules.module import register_module_forward_pre_hook  # noqa: PLC0415
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415

    register_module_forward_pre_hook(lambda *_: steps.begin() if torch.is_grad_enabled() else None)
    register_optimizer_step_post_hook(lambda *_: steps.end())


def hook_keras(steps: SimulatedSteps) -> None:
    """Let each call of the compiled training step take as long as on the GPU."""
    import keras  # noqa: PLC0415 — only one of them is imported

    make: Callable[..., None] = keras.Model.make_train_function

    def make_slower(model: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 — those of Keras
        make(model, *arguments, **options)
        train: Callable[..., Any] = model.train_function

        def step(*values: Any) -> Any:  # noqa: ANN401
            steps.begin()
            result = train(*values)
            steps.end()
            return result

        model.train_function = step

    keras.Model.make_train_function = make_slower


def hook_flax(steps: SimulatedSteps) -> None:
    """Let each call of a function that flax compiles take as long as on the GPU."""
    import jax  # noqa: PLC0415 — only one of them is imported
    from flax import nnx  # noqa: PLC0415 — the same

    compiled: Callable[..., Callable[..., Any]] = nnx.jit

    def slower(function: Callable[..., Any]) -> Callable[..., Any]:
        train = compiled(function)

        def step(*values: Any) -> Any:  # noqa: ANN401
            steps.begin()
            result = jax.block_until_ready(train(*values))
            steps.end()
            return result

        return step

    nnx.jit = slower


HOOKS: Final = {"import keras": hook_keras, "from flax": hook_flax, "import torch": hook_torch}
"""How the steps of a training are hooked, by what its script imports."""


def main() -> None:
    """Run the script."""
    events, books, script = map(Path, sys.argv[1:])
    steps = SimulatedSteps(events, books)
    atexit.register(steps.write_books)
    text = script.read_text(encoding="utf-8")
    next(hook for line, hook in HOOKS.items() if line in text)(steps)
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
