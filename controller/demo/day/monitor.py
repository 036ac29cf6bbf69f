"""Subscribes to what a dashboard would see: the GPU's energy and limit, the run's profile and energy."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Final

from controller.ports import Bus
from controller.runtime.clock import Clock
from publishers.messages.codec import M, decode
from publishers.messages.reports import GpuEnergy, LimitChange, NodeStatus, ProfileReport, RunEnergy
from publishers.messages.topics import Topics

N_SLOTS: Final = 48
SLOT_S: Final = 1_800.0
_BARS: Final = "▁▂▃▄▅▆▇█"
MAX_CHANGES: Final = 64
"""How many of the newest limit changes are kept."""


class HalfHourMeans:
    """The mean power limit and carbon intensity in each half hour of a day that begins at `starts_s` [s]."""

    def __init__(self, starts_s: float) -> None:
        self._starts_s = starts_s
        self._limits_w: list[list[float]] = [[] for _ in range(N_SLOTS)]
        self._intensities_g_per_kwh: list[list[float]] = [[] for _ in range(N_SLOTS)]

    def add(self, energy: GpuEnergy) -> None:
        """Add a reading; readings of other days are ignored."""
        slot = int((energy.time_s - self._starts_s) // SLOT_S)
        if not 0 <= slot < N_SLOTS:
            return
        if energy.power_limit_w is not None:
            self._limits_w[slot].append(energy.power_limit_w)
        if energy.carbon_intensity_g_per_kwh is not None:
            self._intensities_g_per_kwh[slot].append(energy.carbon_intensity_g_per_kwh)

    def limits(self, low_w: float, high_w: float) -> str:
        """Return the power limits of the day as a row of bars, from `low_w` to `high_w` [W]."""
        means_w = [fmean(slot) if slot else None for slot in self._limits_w]
        return sparkline([None if mean_w is None else (mean_w - low_w) / (high_w - low_w) for mean_w in means_w])

    def intensities(self) -> str:
        """Return the carbon intensities of the day as a row of bars, from the lowest to the highest so far."""
        means = [fmean(slot) if slot else None for slot in self._intensities_g_per_kwh]
        known = [mean for mean in means if mean is not None]
        low = min(known, default=0.0)
        span = max(known, default=0.0) - low or 1.0
        return sparkline([None if mean is None else (mean - low) / span for mean in means])


def sparkline(height_ratios: Sequence[float | None]) -> str:
    """Return a row of bars, one for each height from 0 to 1; a blank for None."""
    top = len(_BARS) - 1
    return "".join(" " if ratio is None else _BARS[round(min(max(ratio, 0.0), 1.0) * top)] for ratio in height_ratios)


class BusMonitor:
    """The latest messages of the controller.

    Attributes:
        energy: the newest reading of the GPU.
        profile: the newest profile and state of the job.
        run: the newest energy of the run.
        changes: the newest limit changes, oldest first.
        n_changes: the number of all limit changes.
        profiling_began_s, profiling_ended_s: when the sweep began and ended [s]; None: not yet.
        online, finished: set when the controller is online, and when the energy of the run is final.
        released: set when the limit was restored after the run, which can take a moment because of the journal.
        slots: the half-hour means of limit and carbon intensity.
    """

    def __init__(self, *, clock: Clock, slots: HalfHourMeans) -> None:
        self.energy: GpuEnergy | None = None
        self.profile: ProfileReport | None = None
        self.run: RunEnergy | None = None
        self.changes: deque[LimitChange] = deque(maxlen=MAX_CHANGES)
        self.n_changes = 0
        self.profiling_began_s: float | None = None
        self.profiling_ended_s: float | None = None
        self.online = asyncio.Event()
        self.finished = asyncio.Event()
        self.released = asyncio.Event()
        self.slots = slots
        self._clock = clock

    def subscribe(self, bus: Bus, topics: Topics) -> None:
        """Subscribe to the controller's topics."""
        bus.subscribe(topics.node_status(None), _decoded(NodeStatus, self._on_node_status), qos=1)
        bus.subscribe(topics.gpu(None, None, "energy"), _decoded(GpuEnergy, self._on_gpu_energy))
        bus.subscribe(topics.gpu(None, None, "limit"), _decoded(LimitChange, self._on_limit_change), qos=1)
        bus.subscribe(topics.run_filter("profile"), _decoded(ProfileReport, self._on_profile), qos=1)
        bus.subscribe(topics.run_filter("energy"), _decoded(RunEnergy, self._on_run_energy), qos=1)

    def _on_node_status(self, status: NodeStatus) -> None:
        if status.state == "online":
            self.online.set()

    def _on_gpu_energy(self, energy: GpuEnergy) -> None:
        self.energy = energy
        self.slots.add(energy)

    def _on_limit_change(self, change: LimitChange) -> None:
        self.changes.append(change)
        self.n_changes += 1
        if change.reason.startswith("run_"):
            self.released.set()

    def _on_profile(self, profile: ProfileReport) -> None:
        now_s = self._clock.now_s()
        if profile.state == "profiling" and self.profiling_began_s is None:
            self.profiling_began_s = now_s
        if profile.state == "planned" and self.profiling_ended_s is None:
            self.profiling_ended_s = now_s
        self.profile = profile

    def _on_run_energy(self, run: RunEnergy) -> None:
        self.run = run
        if run.final:
            self.finished.set()


def _decoded(kind: type[M], handle: Callable[[M], None]) -> Callable[[str, bytes], None]:
    """Return a handler that decodes messages; the bus counts malformed ones.

    An empty payload is none: it clears a retained message, of a run that has ended some time ago.
    """
    return lambda _, payload: handle(decode(payload, kind)) if payload else None
