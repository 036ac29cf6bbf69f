"""The setup of the demo: grid, job, clock and configuration, in the simulated time of the day.

Settings that depend on real time (periods of sending, and the windows that they need) are scaled, so that a day in a
few seconds works as well as a day in an hour.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.config import (
    Config,
    EnergyConfig,
    GpuConfig,
    HttpConfig,
    JobConfig,
    NodeConfig,
    PlanConfig,
    ProfilerConfig,
    ProviderConfig,
    SignalConfig,
)
from controller.demo.day.grid import Grid
from controller.demo.day.training import TrainingTask
from controller.demo.day.workload import Workload, fill
from controller.gpu.simulation.measured_curve import A40_RESNET50, MeasuredCurve, load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S, ScaledClock
from policies.providers.sources.csv_file import CsvSettings
from policies.vocabulary.units import DAY_S, HOUR_S
from publishers.mqtt.bus_config import BusConfig

JOB: Final = "resnet50"
RUN: Final = "demo"
NODE: Final = "demo"
LEAD_IN_S: Final = 1.0
"""The real time between the start of the clock and the first iteration, in which the controller starts [s]."""
BUSY_S: Final = 23 * HOUR_S
"""The job would fill this much of the day at the prior limit [s]."""
FLUSH_S: Final = 0.015
_SETTLE_S, _SHORTEST_SETTLE_S = 0.5, 0.01
_WINDOW_S, _SHORTEST_WINDOW_S = 0.5, 0.025
_BLOCK_S, _SHORTEST_BLOCK_S = 2.0, 0.03
_MOST_BLOCKS, _LEAST_BLOCKS, _BLOCK_TAKES_S, _REFINING_S = 60, 2, 0.1, 2_400.0
"""A refinement block needs `_BLOCK_TAKES_S` of real time, in which minutes of the day pass: all sixty, which take two
minutes of a real training, would take hours. So as many are made as fit into `_REFINING_S` of the day."""
_PLAN_PERIOD_S, _SHORTEST_PLAN_PERIOD_S = 300.0, 0.1
_ENERGY_PERIOD_S: Final = 0.1
_LEASE_S: Final = 30.0
_IDLE_S: Final = 3.0
"""`_SHORTEST_…`, the energy period, lease and idle time are real time [s]; the others in the time of the day [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySetup:
    """A demo that is ready to start; its clock already runs."""

    grid: Grid
    curve: MeasuredCurve
    workload: Workload
    seed: int
    max_slowdown: float
    clock: ScaledClock
    folder: Path

    @property
    def events(self) -> Path:
        """Return the file of events of the simulated GPU."""
        return self.folder / "gpu.events"

    @property
    def prior_power_limit_w(self) -> float:
        """Return the limit that the GPU has before anybody touches it [W]."""
        return self.curve.max_power_limit_w

    def open_history(self) -> GpuTimeline:
        """Return the history of the simulated GPU, as this process sees it."""
        return GpuTimeline(
            self.curve,
            Noise(self.seed),
            start_ns=self.clock.origin_ns,
            power_limit_w=self.prior_power_limit_w,
            path=self.events,
        )

    def time_s(self, time_ns: int) -> float:
        """Convert monotonic time [ns] to the time of day [Unix s]."""
        return self.clock.start_s + (time_ns - self.clock.origin_ns) / NS_PER_S

    def time_ns(self, time_s: float) -> int:
        """Convert a time of day [Unix s] to monotonic time [ns]."""
        return self.clock.origin_ns + round((time_s - self.clock.start_s) * NS_PER_S)

    def config(self, broker_url: str) -> Config:
        """Return the controller's configuration; what is not named here is the default."""
        rate = self.clock.rate
        return Config(
            bus=BusConfig(url=broker_url),
            node=NodeConfig(name=NODE, state_dir=str(self.folder / "state")),
            gpu=GpuConfig(backend="simulation"),
            profiler=ProfilerConfig(
                settle_s=max(_SETTLE_S, _SHORTEST_SETTLE_S * rate),
                window_s=max(_WINDOW_S, _SHORTEST_WINDOW_S * rate),
                block_s=max(_BLOCK_S, _SHORTEST_BLOCK_S * rate),
                n_blocks=min(max(round(_REFINING_S / (_BLOCK_TAKES_S * rate)), _LEAST_BLOCKS), _MOST_BLOCKS),
            ),
            plan=PlanConfig(
                max_slowdown=self.max_slowdown, period_s=max(_PLAN_PERIOD_S, _SHORTEST_PLAN_PERIOD_S * rate)
            ),
            signal=SignalConfig(
                kind="carbon",
                zone=self.grid.zone,
                period_s=max(_PLAN_PERIOD_S, _SHORTEST_PLAN_PERIOD_S * rate),
                provider=(self._provider(),),
            ),
            energy=EnergyConfig(period_s=_ENERGY_PERIOD_S * rate),
            job=JobConfig(lease_s=min(DAY_S, _LEASE_S * rate), idle_s=min(DAY_S, _IDLE_S * rate)),
            http=HttpConfig(port=-1),
        )

    def _provider(self) -> ProviderConfig:
        return ProviderConfig(name="csv", settings=CsvSettings(path=str(self.grid.path), zone=self.grid.zone))

    def training_task(self, *, broker_url: str, gpu_uuid: str) -> TrainingTask:
        """Return the task of the training process."""
        return TrainingTask(
            broker=broker_url,
            job=JOB,
            run=RUN,
            gpu=gpu_uuid,
            events=str(self.events),
            curve=self.curve.name,
            seed=self.seed,
            power_limit_w=self.prior_power_limit_w,
            start_s=self.clock.start_s,
            rate=self.clock.rate,
            origin_ns=self.clock.origin_ns,
            begin_s=self.grid.starts_s,
            workload=self.workload,
            flush_s=FLUSH_S,
        )


def prepare_day(
    grid: Grid,
    *,
    seed: int,
    duration_s: float,
    max_slowdown: float,
    folder: Path,
    read_ns: Callable[[], int] = time.monotonic_ns,
) -> DaySetup:
    """Return a setup in which the day of the grid takes `duration_s` of the time that `read_ns` reads, from now on."""
    curve = load_curve(A40_RESNET50)
    rate = DAY_S / duration_s
    return DaySetup(
        grid=grid,
        curve=curve,
        workload=fill(curve, power_limit_w=curve.max_power_limit_w, duration_s=BUSY_S),
        seed=seed,
        max_slowdown=max_slowdown,
        clock=ScaledClock(start_s=grid.starts_s - LEAD_IN_S * rate, rate=rate, origin_ns=read_ns(), read_ns=read_ns),
        folder=folder,
    )
