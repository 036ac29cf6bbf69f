"""The timeline of a simulated GPU: power, energy and progress of the job as exact functions of time.

Every process folds the same events into the same timeline, whose limit and load are piecewise constant, so that power,
energy and progress at any time do not depend on how the processes are scheduled. An event that is read late corrects
what follows from it.

The board has a thermal state: it draws more as it warms. At each limit it approaches the temperature, and the power,
that it has there in the long run, which is the power of the measured curve:

    temperature(t) = steady + (temperature at the event - steady) * exp(-t / TIME_CONSTANT_S)
    power(t) = curve * (noise + POWER_RATIO_PER_K * (temperature(t) - steady))

Measured on an H100 80GB HBM3, 26 November 2026: the same work at the same clock and rate drew 2.9 % more when the board
had warmed from 48 to 58 °C, 50 s later, and it was some 0.047 K warmer for each watt.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from controller.gpu.simulation.event_log import (
    FOREVER_NS,
    Event,
    EventFile,
    LimitSet,
    LoadChanged,
    LoadSettled,
    ProcessAttached,
)
from controller.gpu.simulation.measured_curve import MeasuredCurve
from controller.gpu.simulation.noise import METER_PERIOD_NS, Noise
from controller.runtime.clock import NS_PER_S

AMBIENT_C: Final = 30.0
"""Without any power the board would be so warm [°C], …"""
K_PER_W: Final = 0.047
"""… and it is so much warmer for each watt."""
POWER_RATIO_PER_K: Final = 0.003
"""For each kelvin it draws so much more."""
TIME_CONSTANT_S: Final = 60.0
"""Of the way to the steady temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSegment:
    """A time segment without an event: limit and load in it, and energy and work before it.

    Attributes:
        start_ns: when it begins [ns].
        power_limit_w: the limit in force [W].
        loaded: whether the job uses the GPU.
        power_w: the mean draw in the long run, without noise [W].
        iterations_per_s: the speed of the job [nominal iterations/s].
        energy_j: the energy used before it [J].
        done_iterations: the work done before it [nominal iterations].
        temperature_c: the temperature at its beginning [°C].
    """

    start_ns: int
    power_limit_w: float
    loaded: bool
    power_w: float
    iterations_per_s: float
    energy_j: float
    done_iterations: float
    temperature_c: float

    @property
    def off_steady_k(self) -> float:
        """Return how much warmer than in the long run the board is at its beginning [K]."""
        return self.temperature_c - steady_temperature_c(self.power_w)


def steady_temperature_c(power_w: float) -> float:
    """Return how warm a board is that draws a power for long [°C]."""
    return AMBIENT_C + K_PER_W * power_w


class GpuTimeline:
    """The timeline of one GPU. Queries change nothing; `record` and `refresh` add events.

    Args:
        curve: what the job draws and how fast it runs at each limit.
        noise: the noise of its power.
        start_ns: when the GPU was switched on, on the node's monotonic clock: energy, work and noise count from here
            [ns].
        power_limit_w: the limit it starts with; None: the highest [W].
        loaded: whether a job uses it from the start. It begins as warm as that, or being idle, makes it in the long
            run.
        path: the event file that other processes share; they must use the same other arguments. None: events stay in
            this process.
    """

    def __init__(
        self,
        curve: MeasuredCurve,
        noise: Noise,
        *,
        start_ns: int,
        power_limit_w: float | None = None,
        loaded: bool = False,
        path: Path | None = None,
    ) -> None:
        self.curve = curve
        self.start_ns = start_ns
        self.pids: set[int] = set()
        """The processes that have registered their load with it."""
        self.settled_ns = FOREVER_NS
        """Until when the load is final: what a job says, if it says it [ns]."""
        self._noise = noise
        self._file = None if path is None else EventFile(path)
        self._events: list[LimitSet | LoadChanged] = []
        limit_w = curve.max_power_limit_w if power_limit_w is None else power_limit_w
        steady_c = steady_temperature_c(self._steady_power_w(limit_w, loaded=loaded))
        self._segments = [
            self._segment(start_ns, limit_w, loaded=loaded, energy_j=0.0, done_iterations=0.0, temperature_c=steady_c)
        ]
        self.refresh()

    @property
    def segments(self) -> tuple[TimelineSegment, ...]:
        """Return the segments between events, oldest first."""
        return tuple(self._segments)

    def record(self, event: Event) -> None:
        """Append an event, for every process to read."""
        if self._file is None:
            self._insert(event)
        else:
            self._file.append(event)
            self.refresh()

    def refresh(self) -> None:
        """Add the events that were written since, by this process and others."""
        for event in self._file.read_new() if self._file else ():
            self._insert(event)

    def close(self) -> None:
        """Close the event file."""
        if self._file is not None:
            self._file.close()

    def at(self, time_ns: int) -> TimelineSegment:
        """Return the segment that holds `time_ns`; the first one where that lies before the start."""
        return self._segments[self._index(time_ns)]

    def power_w(self, time_ns: int) -> float:
        """Return the draw at a time [W]."""
        segment = self.at(time_ns)
        warm_ratio = (
            POWER_RATIO_PER_K * segment.off_steady_k * math.exp(-self._since_s(segment, time_ns) / TIME_CONSTANT_S)
        )
        return segment.power_w * (self._noise.power_ratio(self._age_s(time_ns)) + warm_ratio)

    def instant_power_w(self, time_ns: int) -> float:
        """Return what an instant reading of the power shows at a time [W]: a new value every `METER_PERIOD_NS`."""
        number = self._meter_step(time_ns)
        return self.power_w(self._step_ns(number)) * self._noise.instant_ratio(number)

    def counted_j(self, time_ns: int) -> float:
        """Return what the energy counter shows at a time [J]: it moves every `METER_PERIOD_NS`."""
        number = self._meter_step(time_ns)
        if not number:
            return 0.0
        step_ns = self._step_ns(number)
        segment = self.at(step_ns)
        step_j = segment.power_w * METER_PERIOD_NS / NS_PER_S
        return self._energy_j(segment, step_ns) + step_j * self._noise.counter_ratio(number)

    def _meter_step(self, time_ns: int) -> int:
        return max(0, time_ns - self.start_ns) // METER_PERIOD_NS

    def _step_ns(self, number: int) -> int:
        return self.start_ns + number * METER_PERIOD_NS

    def temperature_c(self, time_ns: int) -> float:
        """Return the temperature at a time [°C]."""
        return self._temperature_c(self.at(time_ns), time_ns)

    def energy_j(self, time_ns: int) -> float:
        """Return the energy used from the start to `time_ns`: the exact integral of `power_w` [J]."""
        return self._energy_j(self.at(time_ns), time_ns)

    def done_iterations(self, time_ns: int) -> float:
        """Return the work done from the start to `time_ns` [nominal iterations]."""
        return self._done_iterations(self.at(time_ns), time_ns)

    def reached_ns(self, done_iterations: float, *, not_before_ns: int) -> int | None:
        """Return when the work done reaches `done_iterations` [ns]; None: never, unless something changes.

        Args:
            done_iterations: the work since the start [nominal iterations].
            not_before_ns: where the search begins: it was not reached earlier [ns].
        """
        last = len(self._segments) - 1
        for index in range(self._index(not_before_ns), last + 1):
            segment = self._segments[index]
            if not segment.loaded:
                continue
            left_s = (done_iterations - segment.done_iterations) / segment.iterations_per_s
            time_ns = segment.start_ns + math.ceil(left_s * NS_PER_S)
            if index == last or time_ns <= self._segments[index + 1].start_ns:
                return max(time_ns, not_before_ns)
        return None

    def _index(self, time_ns: int) -> int:
        return max(0, bisect_right(self._segments, time_ns, key=attrgetter("start_ns")) - 1)

    def _age_s(self, time_ns: int) -> float:
        return max(0, time_ns - self.start_ns) / NS_PER_S

    def _since_s(self, segment: TimelineSegment, time_ns: int) -> float:
        return self._age_s(time_ns) - self._age_s(segment.start_ns)

    def _temperature_c(self, segment: TimelineSegment, time_ns: int) -> float:
        left_k = segment.off_steady_k * math.exp(-self._since_s(segment, time_ns) / TIME_CONSTANT_S)
        return steady_temperature_c(segment.power_w) + left_k

    def _energy_j(self, segment: TimelineSegment, time_ns: int) -> float:
        begin_s, end_s = self._age_s(segment.start_ns), self._age_s(time_ns)
        noisy_s = self._noise.noisy_time_s(end_s) - self._noise.noisy_time_s(begin_s)
        off_k_s = segment.off_steady_k * TIME_CONSTANT_S * -math.expm1(-(end_s - begin_s) / TIME_CONSTANT_S)
        return segment.energy_j + segment.power_w * (noisy_s + POWER_RATIO_PER_K * off_k_s)

    def _done_iterations(self, segment: TimelineSegment, time_ns: int) -> float:
        return segment.done_iterations + segment.iterations_per_s * self._since_s(segment, time_ns)

    def _insert(self, event: Event) -> None:
        """Insert an event at its time, and fold again what comes after it; equal times keep their order."""
        if isinstance(event, ProcessAttached):
            self.pids.add(event.pid)
            return
        if isinstance(event, LoadSettled):
            self.settled_ns = event.time_ns
            return
        place = bisect_right(self._events, event.time_ns, key=attrgetter("time_ns"))
        self._events.insert(place, event)
        del self._segments[place + 1 :]
        for later in self._events[place:]:
            self._fold(later)

    def _fold(self, event: LimitSet | LoadChanged) -> None:
        before = self._segments[-1]
        time_ns = max(event.time_ns, self.start_ns)
        limit_w = event.power_limit_w if isinstance(event, LimitSet) else before.power_limit_w
        loaded = event.loaded if isinstance(event, LoadChanged) else before.loaded
        self._segments.append(
            self._segment(
                time_ns,
                limit_w,
                loaded=loaded,
                energy_j=self._energy_j(before, time_ns),
                done_iterations=self._done_iterations(before, time_ns),
                temperature_c=self._temperature_c(before, time_ns),
            )
        )

    def _steady_power_w(self, power_limit_w: float, *, loaded: bool) -> float:
        return self.curve.power_w(power_limit_w) if loaded else self.curve.idle_power_w

    def _segment(
        self,
        start_ns: int,
        power_limit_w: float,
        *,
        loaded: bool,
        energy_j: float,
        done_iterations: float,
        temperature_c: float,
    ) -> TimelineSegment:
        return TimelineSegment(
            start_ns=start_ns,
            power_limit_w=power_limit_w,
            loaded=loaded,
            power_w=self._steady_power_w(power_limit_w, loaded=loaded),
            iterations_per_s=self.curve.iterations_per_s(power_limit_w) if loaded else 0.0,
            energy_j=energy_j,
            done_iterations=done_iterations,
            temperature_c=temperature_c,
        )
