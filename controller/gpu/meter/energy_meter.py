"""Energy meter of one GPU: samples it, keeps recent samples for the run on it, and publishes energy, carbon and cost.

Energy comes from the GPU's own counter; where there is none, or none that can be believed, from the power integrated
between samples. Totals start with the controller. What cannot be read now is not published as if it were. Samples tell
besides what a counter that moves in steps has not counted yet, and the power of the moment: for the power of short
windows, never for totals.

To read a counter takes milliseconds, the power microseconds. Where it is known when the counter moves, and both meters
are sound, it is read at each sample only while somebody measures, else every few seconds; how its energy was spread
between two readings is told by the power. Such samples come when the counter was read.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from controller.errors import GpuError, GpuNotSupportedError
from controller.gpu.meter.checked_energy import CheckedEnergy, most_j
from controller.gpu.meter.counter_step import PROBE_S, CounterStep
from controller.gpu.meter.instants import InstantPower, spread
from controller.ports import Gpu, Hold, PowerLimiter, Sample, SignalSource
from controller.runtime.clock import NS_PER_S, Clock, Now, is_due, next_tick_s
from policies.vocabulary.units import carbon_g, cost
from publishers.messages.reports import GpuEnergy
from publishers.shared.log_once import FaultLog, LogLimiter

MAX_SAMPLES = 8_192
"""Somewhat more than a run's energy waits for its iterations: about 2 MB a GPU."""
MAX_GAP_S = 5.0
"""Power is interpolated between readings that are so far apart at most, or three sample periods."""
RANGE_RETRY_S = 60.0
MAX_PROBED_PERIOD_S = 0.25
"""Where samples are farther apart, it does not matter when the counter moves."""
COUNTER_PERIOD_S = 2.0
"""While nobody measures the counter is read as often; …"""
CLOSE_S = 10.0
"""… and at first, for so long, at each sample: until its usual ratio to the power has begun to be known."""
DOUBT_LOG_S = 3_600.0
"""A meter that is not believed is logged once in so long, however often that comes and goes."""
NO_METER = "its energy is not known: it has no energy counter, and its power has always read 0 W"

_LOGGER = logging.getLogger(__name__)


class GpuEnergyMeter:
    """The energy meter of one GPU; obeys `EnergyMeter`.

    Attributes:
        job: the job that holds the GPU, for the published message.
        max_power_limit_w: the most that the GPU accepts as power limit, which bounds its draw; None until it is read.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        clock: Clock,
        sample_period_s: float,
        publish_period_s: float,
        signal: SignalSource,
        limiter: PowerLimiter,
        publish: Callable[[GpuEnergy], None],
    ) -> None:
        self.job: str | None = None
        self.max_power_limit_w: float | None = None
        self._gpu = gpu
        self._clock = clock
        self._sample_period_s = sample_period_s
        self._publish_period_s = publish_period_s
        self._signal = signal
        self._limiter = limiter
        self._publish = publish
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._energy = CheckedEnergy(max_gap_s=max(MAX_GAP_S, 3 * sample_period_s))
        self._step, self._instants = CounterStep(), InstantPower()
        self._between: list[Sample] = []
        """Readings of the power since the counter was read last."""
        self._is_instant = False
        """Whether the power, as it was read last with the counter, was that of an instant."""
        self._close_until_ns = clock.monotonic_ns() + round(CLOSE_S * NS_PER_S)
        self._started_at_s = self._range_due_s = clock.now_s()
        self._read_ns = -1
        self._published_ns = -1
        self._carbon_g = 0.0
        self._cost = 0.0
        self._fault_log = FaultLog(_LOGGER, recovered=f"{gpu.uuid}: can be read again", log_changes=False)
        self._absence_log = FaultLog(_LOGGER, recovered=f"{gpu.uuid}: its power can be read now", log_changes=False)
        self._doubt_log = LogLimiter(clock.now_s, period_s=DOUBT_LOG_S)

    @property
    def energy_j(self) -> float:
        """Return the energy used since the controller started [J]."""
        return self._energy.energy_j

    @property
    def unmeasured_s(self) -> float:
        """Return for how much of that time no reading was believed: it counts at the power before [s]."""
        return self._energy.unmeasured_s

    @property
    def current(self) -> Sample | None:
        """Return the newest sample; None where the GPU cannot be read now, or nothing that it says is believed."""
        return self._samples[-1] if self._samples and self._energy.is_current else None

    @property
    def fault(self) -> str:
        """Return why the GPU cannot be read now, in a sentence; "" where it can."""
        return self._fault_log.fault

    @property
    def absence(self) -> str:
        """Return why the GPU's energy cannot be known, in a sentence; "" where it has meters."""
        return self._absence_log.fault

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return which readings are not believed now, and why, a sentence each."""
        return tuple(fault for fault in (self._energy.power_fault, self._energy.counter_fault) if fault)

    @property
    def latest(self) -> Sample | None:
        """Return the newest sample, with its cumulative energy; None before the first."""
        return self._samples[-1] if self._samples else None

    def samples_since(self, time_ns: int, *, until_ns: int | None = None) -> Sequence[Sample]:
        """Return the samples from the last one at or before `time_ns` to the first at or past `until_ns` [ns]."""
        found: list[Sample] = []
        for sample in reversed(self._samples):  # what a run asks for lies at the end
            if until_ns is not None and sample.time_ns >= until_ns:
                found.clear()
            found.append(sample)
            if sample.time_ns <= time_ns:
                break
        return found[::-1]

    def counter_at_j(self, time_ns: int) -> float | None:
        """Return the value of the GPU's own counter at a moment within the samples [J]; None where it has none."""
        around = self.samples_since(time_ns, until_ns=time_ns)
        if not around:
            return None
        at_j = np.interp(time_ns, [s.time_ns for s in around], [s.energy_j or 0.0 for s in around])
        return self._energy.counter_at_j(float(at_j))

    def most_j(self, duration_s: float) -> float:
        """Return the most energy that the counter can show for a time of the board [J]."""
        return most_j(duration_s, self.max_power_limit_w)

    async def run(self) -> None:
        """Sample every `sample_period_s` and publish every `publish_period_s`; missed ticks are skipped."""
        tick_s = publish_s = self._clock.now_s()
        while True:
            is_publishing = is_due(publish_s, period_s=self._publish_period_s, now_s=self._clock.now_s())
            if is_publishing or self._needs_counter:
                await self._sample()
            else:
                await self._sample_power()
            now = Now.of(self._clock)
            if is_publishing:
                self._publish(self._report(now))
                publish_s = next_tick_s(publish_s, period_s=self._publish_period_s, now_s=now.wall_s)
            tick_s = next_tick_s(tick_s, period_s=self._sample_period_s, now_s=now.wall_s)
            if not await self._probe_until(tick_s):
                await self._clock.sleep_until(tick_s)

    def read_closely(self, until_ns: int) -> None:
        """Read the energy counter at each sample until a moment [ns]: what is measured begins or ends there."""
        self._close_until_ns = max(self._close_until_ns, until_ns)

    @property
    def _needs_counter(self) -> bool:
        """Return whether the counter is to be read now: somebody measures, it is time, or something is in doubt."""
        now_ns, energy, latest = self._clock.monotonic_ns(), self._energy, self.latest
        is_attended = now_ns < self._close_until_ns or self._step.is_seeking
        if is_attended or latest is None or latest.uncounted_j is None:
            return True
        is_sound = energy.is_current and energy.has_counter and not (energy.power_fault or energy.is_disputed)
        due_s = COUNTER_PERIOD_S - self._sample_period_s / 2
        return not (is_sound and self._is_instant) or now_ns - latest.time_ns >= due_s * NS_PER_S

    @property
    def is_probing(self) -> bool:
        """Return whether it is to be found out now when the counter moves."""
        is_worth_it = self._sample_period_s <= MAX_PROBED_PERIOD_S and self._energy.has_counter
        return is_worth_it and self._step.is_sought(self._clock.monotonic_ns())

    async def _probe_until(self, time_s: float) -> bool:
        """Read the counter often, where it is to be found out when it moves; these readings count for nothing else.

        Returns:
            Whether it is that time now, or later [Unix s].
        """
        while self.is_probing:
            next_s = self._clock.now_s() + PROBE_S
            if next_s > time_s - PROBE_S / 2:
                return False
            await self._clock.sleep_until(next_s)
            if self._clock.now_s() >= time_s:
                return True
            try:
                self._step.look(await self._gpu.read_sample())
            except GpuError:  # the next sample tells it
                return False
        return False

    def _report(self, now: Now) -> GpuEnergy:
        """Return the message: with values only where they were measured since the last one, and can be now."""
        sample = self.current
        if sample is not None and sample.time_ns <= self._published_ns:
            sample = None
        state = self._limiter.state
        limit_w = None if state is None or state.hold is Hold.SUSPECT else state.enforced_power_limit_w
        if sample is None:
            return GpuEnergy(time_s=now.wall_s, power_limit_w=limit_w, job=self.job)
        self._published_ns = sample.time_ns
        history = self._signal.history()
        value = None if history is None else history.value_at(now.wall_s)
        priced, carbon = self._signal.kind == "price", self._signal.kind == "carbon"
        return GpuEnergy(
            time_s=now.wall_at_s(sample.time_ns),
            energy_j=sample.energy_j,
            started_at_s=self._started_at_s,
            unmeasured_s=sample.unmeasured_s,
            power_w=sample.power_w,
            power_limit_w=limit_w,
            carbon_g=self._carbon_g if carbon else None,
            carbon_intensity_g_per_kwh=value if carbon else None,
            cost=self._cost if priced else None,
            currency=history.unit.partition("/")[0] if priced and history is not None else None,
            utilization_ratio=sample.utilization_ratio,
            temperature_c=sample.temperature_c,
            job=self.job,
        )

    async def _sample_power(self) -> None:
        """Read the power alone; where that fails, the counter tells the energy, or that the GPU cannot be read."""
        try:
            raw = await self._gpu.read_power()
        except GpuError:
            await self._sample()
            return
        if raw.time_ns <= self._read_ns:
            return
        self._read_ns = raw.time_ns
        self._energy.add_power(raw, self.max_power_limit_w)
        if raw.instant_power_w and not self._energy.power_fault:
            self._between.append(raw)

    async def _sample(self) -> None:
        """Take a sample: soon after a step of the counter, where it is read seldom."""
        clear_in_s = self._step.clear_in_s(self._clock.monotonic_ns()) if self._between else 0.0
        if clear_in_s:
            await self._clock.sleep_until(self._clock.now_s() + clear_in_s)
        raw = await self._read()
        if raw is not None:
            self._is_instant = raw.instant_power_w is not None
            self._add(raw)
        self._between.clear()

    async def _read(self) -> Sample | None:
        """Return a whole reading if it is a newer one; a GPU that fails is logged once, and again when it is back."""
        try:
            await self._read_range()
            raw = await self._gpu.read_sample()
        except GpuError as error:
            self._between.clear()
            self.max_power_limit_w = None  # it changes when a driver is loaded again
            self._energy.miss()
            if isinstance(error, GpuNotSupportedError) and not self._samples:
                self._fault_log.clear()
                self._absence_log.report(f"{self._gpu.uuid}: its energy is not known: {error}")
            else:
                self._fault_log.report(f"{self._gpu.uuid}: cannot be read: {error}")
            return None
        self._fault_log.clear()
        is_new = raw.time_ns > self._read_ns
        self._read_ns = max(raw.time_ns, self._read_ns)
        return raw if is_new else None

    async def _read_range(self) -> None:
        """Read the GPU's maximum limit; one that does not tell it is asked again now and then."""
        if self.max_power_limit_w is not None or self._clock.now_s() < self._range_due_s:
            return
        try:
            self.max_power_limit_w = (await self._gpu.read_range()).max_power_limit_w
        except GpuError:
            self._range_due_s = self._clock.now_s() + RANGE_RETRY_S

    def _add(self, raw: Sample) -> None:
        before_j, energy = self.energy_j, self._energy
        if self._step.is_seeking:
            self._step.look(raw)
        begin_ns = energy.add(raw, self.max_power_limit_w)
        self._absence_log.report("" if energy.has_meter else f"{self._gpu.uuid}: {NO_METER}")
        for meter, doubt in (("power", energy.power_fault), ("counter", energy.counter_fault)):
            if doubt and self._doubt_log.allows(meter):
                _LOGGER.warning("%s: meter rejected: %s", self._gpu.uuid, doubt)
        if not energy.is_current:
            return
        used_j, before = energy.energy_j - before_j, self.latest
        self._backdate(begin_ns, raw.time_ns, used_j)
        uncounted_j = self._step.uncounted_j(raw if energy.has_counter else replace(raw, energy_j=None))
        is_instant = energy.has_counter and not energy.power_fault
        instant_w = self._instants.scaled_w(raw, energy.energy_j if is_instant else None)
        sample = replace(
            raw,
            energy_j=energy.energy_j,
            power_w=energy.power_w,
            instant_power_w=instant_w,
            unmeasured_s=energy.unmeasured_s,
            uncounted_j=uncounted_j,
            n_instants=self._instants.n,
        )
        if self._between and before is not None and before.time_ns == begin_ns and energy.has_counter:
            self._samples.extend(spread(before, self._between, sample))
        self._samples.append(sample)
        value = self._signal.value_at(self._clock.now_s())
        if value is not None and self._signal.kind == "carbon":
            self._carbon_g += carbon_g(used_j, value)
        elif value is not None and self._signal.kind == "price":
            self._cost += cost(used_j, value)

    def _backdate(self, begin_ns: int, end_ns: int, used_j: float) -> None:
        """Spread energy that was found late evenly over the samples since it was used."""
        for i in range(len(self._samples) - 1, -1, -1):
            sample = self._samples[i]
            if sample.time_ns <= begin_ns:
                return
            used = used_j * (sample.time_ns - begin_ns) / (end_ns - begin_ns)
            self._samples[i] = replace(sample, energy_j=(sample.energy_j or 0.0) + used)
