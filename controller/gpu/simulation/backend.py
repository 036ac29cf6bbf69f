"""Simulated GPUs that follow measured curves: power and speed at each limit, temperature, an energy counter, noise.

A limit takes effect at once; a real GPU takes some tens of milliseconds. The energy counter moves every 100 ms, as
that of an H100 does, with its noise, and as often there is a new instant reading of the power. The counter never goes
backwards for its reader here, even where another process's event is read late. Where the job says how far its load is
settled, the meters are read as of then: no later event revises what they have shown.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from controller.errors import GpuError, GpuLimitError
from controller.gpu.processes import ProcFileSystem
from controller.gpu.simulation.event_log import LimitSet
from controller.gpu.simulation.measured_curve import A40_RESNET50, MeasuredCurve, load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.ports import LimitRange, LiveLimit, Sample
from controller.runtime.clock import Clock
from publishers.messages.reports import SIMULATED


class SimulatedGpu:
    """A GPU whose state is a `GpuTimeline`; obeys `controller.ports.Gpu`.

    Args:
        timeline: its power, energy and progress; shared with the process that simulates the job.
        clock: the node's clock.
        index: its index on this node.
        name: what its UUID is derived from.
        pids: returns the processes that compute on it; None: those that have registered with the timeline.
    """

    def __init__(
        self,
        timeline: GpuTimeline,
        *,
        clock: Clock,
        index: int = 0,
        name: str = "gpu-0",
        pids: Callable[[], Awaitable[frozenset[int]]] | None = None,
    ) -> None:
        self.timeline = timeline
        self._clock = clock
        self._pids = pids
        self.uuid = simulated_uuid(name)
        self.index = index
        self.model = f"{timeline.curve.model} {SIMULATED}"
        self._counter_j = 0.0

    async def read_range(self) -> LimitRange:
        """Return the range of the curve; the default is its top."""
        curve = self.timeline.curve
        return LimitRange(
            min_power_limit_w=curve.min_power_limit_w,
            max_power_limit_w=curve.max_power_limit_w,
            default_power_limit_w=curve.max_power_limit_w,
        )

    async def read_limit(self) -> LiveLimit:
        """Return the power limit in force; nothing else limits a simulated GPU."""
        self.timeline.refresh()
        limit_w = self.timeline.at(self._clock.monotonic_ns()).power_limit_w
        return LiveLimit(requested_power_limit_w=limit_w, enforced_power_limit_w=limit_w)

    async def set_power_limit(self, power_limit_w: float) -> None:
        """Request a power limit [W].

        Raises:
            GpuLimitError: it lies outside the range.
        """
        low_w, high_w = self.timeline.curve.min_power_limit_w, self.timeline.curve.max_power_limit_w
        if not low_w <= power_limit_w <= high_w:
            raise GpuLimitError(
                f"{power_limit_w:g} W is outside {low_w:g} to {high_w:g} W; ask for a limit inside",
                gpu_uuid=self.uuid,
                operation="set_power_limit",
            )
        self.timeline.record(LimitSet(self._clock.monotonic_ns(), power_limit_w))

    async def read_sample(self) -> Sample:
        """Return its meters, as far as the load is settled."""
        sample = self._power_sample()
        self._counter_j = max(self._counter_j, self.timeline.counted_j(sample.time_ns))
        return replace(sample, energy_j=self._counter_j)

    async def read_power(self) -> Sample:
        """Return its meters but for the energy counter."""
        return self._power_sample()

    def _power_sample(self) -> Sample:
        """Return the meters but for the energy counter; the temperature in whole degrees, as NVML tells it."""
        self.timeline.refresh()
        now_ns = min(self._clock.monotonic_ns(), self.timeline.settled_ns)
        return Sample(
            time_ns=now_ns,
            power_w=self.timeline.power_w(now_ns),
            instant_power_w=self.timeline.instant_power_w(now_ns),
            utilization_ratio=float(self.timeline.at(now_ns).loaded),
            temperature_c=float(round(self.timeline.temperature_c(now_ns))),
        )

    async def read_processes(self) -> frozenset[int] | None:
        """Return the processes that have registered their load with it."""
        if self._pids is not None:
            return await self._pids()
        self.timeline.refresh()
        return frozenset(self.timeline.pids)

    async def read_mig(self) -> bool:
        """Return that it is not partitioned."""
        return False

    async def read_persistence(self) -> bool | None:
        """Return None: there is no driver that could forget."""
        return None


class SimulatedBackend:
    """A node's simulated GPUs; obeys `controller.ports.Backend`."""

    def __init__(self, gpus: Sequence[SimulatedGpu]) -> None:
        self.driver = "simulation of " + ", ".join(sorted({gpu.timeline.curve.name for gpu in gpus}))
        self.faults: Sequence[GpuError] = ()
        self._gpus = tuple(gpus)

    async def open(self) -> Sequence[SimulatedGpu]:
        """Return the GPUs."""
        return self._gpus

    async def open_late(self) -> Sequence[SimulatedGpu]:
        """Return none: all answer at once."""
        return ()

    async def close(self) -> None:
        """Close the event files."""
        for gpu in self._gpus:
            gpu.timeline.close()


def simulated_uuid(name: str) -> str:
    """Return the UUID that belongs to a name: the same one for every process and run."""
    digits = hashlib.sha256(f"gridchase {name}".encode()).hexdigest()
    return f"GPU-simulated-{digits[:8]}"


def default_simulation(
    clock: Clock, *, curve: MeasuredCurve | None = None, seed: int = 1, loaded: bool = True, path: Path | None = None
) -> SimulatedBackend:
    """Return a node with one simulated GPU, an A40 unless `curve` says otherwise, at its default limit.

    Nothing computes on it, so it draws what the job of the curve would draw (or, where not `loaded`, idles), whoever
    publishes iterations. With no driver to register with, each process of this machine that publishes a run counts as
    one that computes on it: its publishing thread says so.
    """
    curve = curve or load_curve(A40_RESNET50)
    timeline = GpuTimeline(curve, Noise(seed), start_ns=clock.monotonic_ns(), loaded=loaded, path=path)
    return SimulatedBackend([SimulatedGpu(timeline, clock=clock, pids=ProcFileSystem().marked)])
