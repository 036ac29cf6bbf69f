"""A training run on the stub GPU, and who finds its limit: `profiling_child gridchase|zeus SEED ETA`; it prints JSON.

Iterations take as long as the stub says, times the chance of the simulation's realistic noise: the same for both. Zeus
gets PyTorch's place in `sys.modules` taken by a stand-in that has nothing to wait for and no other ranks.
"""

import asyncio
import json
import math
import sys
import threading
import time
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
from zeus.monitor import ZeusMonitor
from zeus.optimizer.power_limit import Done, GlobalPowerLimitOptimizer, ZeusCost

from controller.accounting.iteration_log import IterationLog
from controller.accounting.meter_intervals import meter_intervals
from controller.control.curve_learning import posterior_mean
from controller.gpu.nvml.backend import NvmlBackend, NvmlGpu
from controller.ports import Sample
from controller.runtime.clock import NS_PER_S
from policies import profiling
from policies.profiling import Observation, ProfilerSettings
from policies.replay.profiling.curves import GRID_W
from policies.replay.profiling.noise import LEVELS, NoisePath
from policies.replay.profiling.policies import best_limit_w
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile
from publishers.messages.training import Iterations
from tests.live.nvml_stub.machine import StubGpu, StubMachine

READING_S: Final = 0.1
MAX_STEPS: Final = 20_000


class Diary:
    """What happened: the limit and the duration of each step, and what was known after which of them."""

    def __init__(self, gpu: StubGpu, seed: int) -> None:
        course = NoisePath(LEVELS["realistic"], iteration_time_s=gpu.iteration_time_s(), seed=seed)
        course.reach(MAX_STEPS)
        self._gpu, self._factors = gpu, np.diff(course.work)
        self._end_s = time.monotonic()
        self.steps: list[tuple[float, float]] = []
        self.known: list[dict[str, Any]] = []

    def begin_step(self) -> float:
        """Return how long to wait for the end of the next step [s]; what one is late is taken from the next."""
        duration_s = self._gpu.iteration_time_s() * float(self._factors[len(self.steps)])
        self.steps.append((self._gpu.enforced_power_limit_w, duration_s))
        self._end_s += duration_s
        return max(self._end_s - time.monotonic(), 0.0)

    def learn(self, choice_w: float, curve: PowerProfile) -> None:
        """Write down what is known."""
        points = [(point.power_limit_w, point.power_w, point.iterations_per_s) for point in curve.points]
        self.known.append({"n": len(self.steps), "choice_w": choice_w, "curve": points})


class Meter:
    """The readings of the GPU; obeys `controller.ports.EnergyMeter`."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def samples_since(self, time_ns: int, *, until_ns: int | None = None) -> Sequence[Sample]:
        """Return the readings after a moment."""
        del until_ns  # more of them do no harm
        return [sample for sample in self.samples if sample.time_ns >= time_ns]

    @property
    def latest(self) -> Sample | None:
        """Return the newest reading."""
        return self.samples[-1] if self.samples else None

    def counter_at_j(self, time_ns: int) -> float | None:
        """Return None: no run outlives this process."""
        del time_ns
        return None

    def read_closely(self, until_ns: int) -> None:
        """Do nothing."""

    def most_j(self, duration_s: float) -> float:
        """Return infinity: nothing is bridged [J]."""
        del duration_s
        return math.inf


class Profiler:
    """The controller's decisions, in their order: the first sweep, then refinement until it is no longer curious."""

    def __init__(self, settings: ProfilerSettings, diary: Diary, *, seed: int, eta: float) -> None:
        self._settings, self._diary, self._eta = settings, diary, eta
        self._rng = np.random.default_rng(seed)
        self._state = profiling.begin(settings)
        self._refinement: profiling.Refinement | None = None
        self.wanted_w: float | None = settings.prior_power_limit_w
        self.is_done = False

    def observe(self, observation: Observation) -> None:
        """Take what was seen at the limit that is wanted."""
        if self._refinement is None:
            self._state = profiling.advance(self._settings, self._state, observation)
            self.wanted_w = profiling.target_power_limit_w(self._state)
            profile = profiling.profile_of(self._state)
            if self.wanted_w is None and profile is not None:
                self._refinement = profiling.begin_refinement(profile)
                self._plan(self._refinement)
            return
        n_blocks = self._refinement.n_blocks
        self._refinement = profiling.refine(self._settings, self._refinement, observation)
        if self._refinement.n_blocks > n_blocks:
            self._plan(self._refinement)

    def _plan(self, refinement: profiling.Refinement) -> None:
        known = posterior_mean(refinement.profile)
        choice_w = self._best_w(known)
        self._diary.learn(choice_w, fit_curve(known, step_w=GRID_W))
        self.is_done = not profiling.is_exploring(self._settings, refinement)
        self.wanted_w = (
            choice_w if self.is_done else self._best_w(profiling.sampled_curve(refinement.profile, self._rng))
        )

    def _best_w(self, curve: PowerProfile) -> float:
        fine = fit_curve(curve, step_w=GRID_W)
        return best_limit_w(fine, eta=self._eta, max_power_limit_w=self._settings.prior_power_limit_w)


async def train(diary: Diary, log: IterationLog) -> None:
    """Train for ever."""
    while True:
        begin_ns = time.monotonic_ns()
        await asyncio.sleep(diary.begin_step())
        end_ns = time.monotonic_ns()
        n = len(diary.steps) - 1
        ends = np.array([end_ns], dtype="<i8").tobytes()
        log.append(
            Iterations(run="run", seq=n, first=n, begin_ns=begin_ns, end_ns=ends, epoch=0, dropped=0), now_ns=end_ns
        )


async def control(gpu: NvmlGpu, log: IterationLog, profiler: Profiler) -> None:
    """Read, cut, decide and set, until the limit is found."""
    meter, since_ns, changed_ns, present_w = Meter(), time.monotonic_ns(), 0, profiler.wanted_w
    while not profiler.is_done:
        await asyncio.sleep(READING_S)
        meter.samples.append(await gpu.read_sample())
        pieces = meter_intervals(logs=[log], meters=[meter], since_ns=since_ns, until_ns=log.end_ns or 0)
        for piece in pieces:
            since_ns = piece.end_ns
            if piece.active and piece.begin_ns >= changed_ns and profiler.wanted_w == present_w:
                profiler.observe(_observation(piece, present_w or 0.0))
        if profiler.wanted_w is not None and profiler.wanted_w != present_w:
            await gpu.set_power_limit(profiler.wanted_w)
            present_w, changed_ns = profiler.wanted_w, time.monotonic_ns()
        meter.samples = [sample for sample in meter.samples if sample.time_ns >= since_ns - NS_PER_S]


def _observation(piece: Any, power_limit_w: float) -> Observation:  # noqa: ANN401 — a slice of the account
    return Observation(
        power_limit_w=power_limit_w,
        active_s=piece.duration_s,
        n_iterations=piece.n_iterations,
        energy_j=piece.energy_j,
        iteration_times_s=piece.iteration_times_s,
    )


async def play_gridchase(diary: Diary, *, seed: int, eta: float) -> None:
    """Let the controller's profiler find the limit, through the NVML adapter and the account of a run."""
    backend, log = NvmlBackend(), IterationLog()
    (gpu,) = await backend.open()
    limits = await gpu.read_range()
    settings = ProfilerSettings(
        prior_power_limit_w=limits.max_power_limit_w, floor_power_limit_w=limits.min_power_limit_w
    )
    async with asyncio.TaskGroup() as group:
        training = group.create_task(train(diary, log), name="training")
        await control(gpu, log, Profiler(settings, diary, seed=seed, eta=eta))
        training.cancel()
    await backend.close()


def play_zeus(diary: Diary, *, eta: float) -> None:
    """Let Zeus's own optimizer find the limit, with its own monitor, through its own NVML adapter."""
    torch: Any = ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})
    torch.cuda = SimpleNamespace(is_available=lambda: True, synchronize=lambda _: None)
    torch.distributed = SimpleNamespace(is_available=lambda: False)
    sys.modules["torch"] = torch
    monitor = ZeusMonitor(gpu_indices=[0], cpu_indices=[])
    optimizer = GlobalPowerLimitOptimizer(monitor, ZeusCost(eta_knob=eta))
    pause = threading.Event()
    while True:
        optimizer.on_step_begin()
        if isinstance(optimizer.state, Done):
            break
        pause.wait(diary.begin_step())
    points = sorted((one.power_limit, one.energy / one.time, 40 / one.time) for one in optimizer.measurements)
    choice_w = optimizer.state.optimal_power_limit / 1_000
    diary.known.append({"n": len(diary.steps), "choice_w": choice_w, "curve": points})


def main(policy: str, seed: int, eta: float) -> None:
    """Train until the limit is found, and tell."""
    gpu = StubMachine.from_environment().gpu()
    diary = Diary(gpu, seed)
    gpu.busy = True
    if policy == "zeus":
        play_zeus(diary, eta=eta)
    else:
        asyncio.run(play_gridchase(diary, seed=seed, eta=eta))
    print(json.dumps({"steps": diary.steps, "known": diary.known}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
