"""Zeus's own optimizer (zeus-ml) on a simulated run: its monitor and its GPUs are the simulation's.

It asks PyTorch or JAX whether there are other ranks. Neither is installed; a stand-in says that there are none.
"""

import atexit
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from zeus.device import gpu as zeus_gpu
from zeus.optimizer import power_limit
from zeus.utils import framework

from policies.replay.profiling.training import SimulatedTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What the optimizer reads of a measurement."""

    time: float
    gpu_energy: dict[int, float]


class Bench:
    """A GPU and a monitor as the optimizer calls them."""

    def __init__(self, training: SimulatedTraining) -> None:
        self.gpu_indices = [0]
        self._training = training
        self._begin = (0.0, 0.0)

    def begin_window(self, _key: str) -> None:
        self._begin = (self._training.now_s, self._training.counter_j)

    def end_window(self, _key: str) -> Window:
        begin_s, begin_j = self._begin
        return Window(time=self._training.now_s - begin_s, gpu_energy={0: self._training.counter_j - begin_j})

    def getPowerManagementLimitConstraints(self, _index: int) -> tuple[int, int]:  # noqa: N802 — Zeus's name
        points = self._training.curve.profile.points
        return round(1_000 * points[0].power_limit_w), round(1_000 * points[-1].power_limit_w)

    def setPowerManagementLimit(self, _index: int, power_limit_mw: int) -> None:  # noqa: N802
        self._training.set_power_limit(power_limit_mw / 1_000)

    def setPersistenceMode(self, _index: int, *, enabled: bool) -> None:  # noqa: N802
        assert enabled


def run_reference(training: SimulatedTraining, *, eta: float, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 — Zeus's class
    """Let Zeus's own optimizer find the limit of a run; return it, done."""
    bench = Bench(training)
    monkeypatch.setattr(zeus_gpu, "_gpus", bench)
    monkeypatch.setattr(framework, "torch_is_available", lambda **_: True)
    alone = SimpleNamespace(distributed=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(framework.MODULE_CACHE, "torch", alone)
    monkeypatch.setattr(atexit, "register", lambda _: None)  # nothing of it is to happen when the tests end
    optimizer = power_limit.GlobalPowerLimitOptimizer(bench, power_limit.ZeusCost(eta_knob=eta))
    while not isinstance(optimizer.state, power_limit.Done):
        optimizer.on_step_begin()
        if not isinstance(optimizer.state, power_limit.Done):
            training.iterate()
    return optimizer
