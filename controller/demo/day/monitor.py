"""The demo's eye on the bus: what a dashboard would see, and nothing else.

It hears the energy and the limit of the GPU, the profile and the account of the run, as the controller publishes them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Final

from controller.clock import Clock
from controller.ports import Bus
from publishers.messages.codec import M, decode
from publishers.messages.reports import GpuEnergy, LimitChange, NodeStatus, ProfileReport, RunEnergy
from publishers.messages.topics import Topics

N_SLOTS: Final = 48
SLOT_S: Final = 1_800.0
_BARS: Final = "▁▂▃▄▅▆▇█"


class HalfHourMeans:
    """The mean power limit and carbon intensity in each half hour of a day that begins at `starts_s` [s]."""

    def __init__(self, starts_s: float) -> None:
        self._starts_s = starts_s
        self._limits_w: list[list[float]] = [[] for _ in range(N_SLOTS)]
        self._intensities_g_per_kwh: list[list[float]] = [[] for _ in range(N_SLOTS)]

    def add(self, energy: GpuEnergy) -> None:
        """Take a reading; one of another day is not shown."""
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
    """Return a row of bars, one a height from 0 to 1; nothing where there is none."""
    top = len(_BARS) - 1
    return "".join(" " if ratio is None else _BARS[round(min(max(ratio, 0.0), 1.0) * top)] for ratio in height_ratios)


MAX_CHANGES = 64
"""The newest changes of the limit that are remembered."""


class BusMonitor:
    """What has been heard so far.

    Attributes:
        energy: the newest reading of the GPU.
        profile: the curve and the state of the job.
        run: the newest account of the run.
        changes: the newest changes of the limit, oldest first.
        n_changes: how many there were.
        profiling_began_s, profiling_ended_s: when the sweep began and ended [s]; None: not yet.
        online, finished: set once the controller is there, and once the account of the run is final.
        released: set once the limit was given back after the run; the disk may take its time for that.
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

    def listen(self, bus: Bus, topics: Topics) -> None:
        """Begin to listen."""
        bus.subscribe(topics.node_status("+"), _heard(NodeStatus, self._hear_node), qos=1)
        bus.subscribe(topics.gpu("+", "+", "energy"), _heard(GpuEnergy, self._hear_energy))
        bus.subscribe(topics.gpu("+", "+", "limit"), _heard(LimitChange, self._hear_change), qos=1)
        bus.subscribe(topics.all_runs("profile"), _heard(ProfileReport, self._hear_profile), qos=1)
        bus.subscribe(topics.all_runs("energy"), _heard(RunEnergy, self._hear_run), qos=1)

    def _hear_node(self, status: NodeStatus) -> None:
        if status.state == "online":
            self.online.set()

    def _hear_energy(self, energy: GpuEnergy) -> None:
        self.energy = energy
        self.slots.add(energy)

    def _hear_change(self, change: LimitChange) -> None:
        self.changes.append(change)
        self.n_changes += 1
        if change.reason.startswith("run_"):
            self.released.set()

    def _hear_profile(self, profile: ProfileReport) -> None:
        now_s = self._clock.now_s()
        if profile.state == "profiling" and self.profiling_began_s is None:
            self.profiling_began_s = now_s
        if profile.state == "planned" and self.profiling_ended_s is None:
            self.profiling_ended_s = now_s
        self.profile = profile

    def _hear_run(self, run: RunEnergy) -> None:
        self.run = run
        if run.final:
            self.finished.set()


def _heard(kind: type[M], hear: Callable[[M], None]) -> Callable[[str, bytes], None]:
    """Return a handler that decodes a message; what is malformed is the bus's to count."""
    return lambda _, payload: hear(decode(payload, kind))
