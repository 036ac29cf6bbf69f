"""Energy meter of one GPU: samples it, keeps recent samples for the run on it, and publishes energy, carbon and cost.

Energy comes from the GPU's own counter; where there is none, from the power integrated between samples.
A counter that falls was reset with the driver: then the power is integrated, too. Totals start with the controller.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from controller.clock import NS_PER_S, Clock, is_due, next_tick_s
from controller.errors import GpuError
from controller.ports import Gpu, PowerLimiter, Sample, SignalSource
from policies.vocabulary.units import carbon_g, cost
from publishers.messages.reports import GpuEnergy
from publishers.shared.log_once import FaultLog

MAX_SAMPLES = 8_192
"""Somewhat more than a run's energy waits for its iterations: about 2 MB a GPU."""

_LOGGER = logging.getLogger(__name__)


class GpuEnergyMeter:
    """The energy meter of one GPU; obeys `EnergyMeter`.

    Attributes:
        job: the job that holds the GPU, for the published message.
        energy_j: the energy used since the controller started [J].
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
        self.energy_j = 0.0
        self._gpu = gpu
        self._clock = clock
        self._sample_period_s = sample_period_s
        self._publish_period_s = publish_period_s
        self._signal = signal
        self._limiter = limiter
        self._publish = publish
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._raw: Sample | None = None
        self._carbon_g = 0.0
        self._cost = 0.0
        self._fault_log = FaultLog(_LOGGER, recovered=f"{gpu.uuid}: can be read again", log_changes=False)

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
        if self._raw is None or self._raw.energy_j is None:
            return None
        around = self.samples_since(time_ns, until_ns=time_ns)
        at_j = np.interp(time_ns, [s.time_ns for s in around], [s.energy_j or 0.0 for s in around])
        return self._raw.energy_j - (self.energy_j - float(at_j))

    async def run(self) -> None:
        """Sample every `sample_period_s` and publish every `publish_period_s`; missed ticks are skipped."""
        tick_s = publish_s = self._clock.now_s()
        while True:
            await self._sample()
            now_s = self._clock.now_s()
            if self._samples and is_due(publish_s, period_s=self._publish_period_s, now_s=now_s):
                self._publish(self._report(now_s))
                publish_s = next_tick_s(publish_s, period_s=self._publish_period_s, now_s=now_s)
            tick_s = next_tick_s(tick_s, period_s=self._sample_period_s, now_s=now_s)
            await self._clock.sleep_until(tick_s)

    def _report(self, now_s: float) -> GpuEnergy:
        sample = self._samples[-1]
        state = self._limiter.state
        history = self._signal.history()
        value = None if history is None else history.value_at(now_s)
        priced, carbon = self._signal.kind == "price", self._signal.kind == "carbon"
        return GpuEnergy(
            time_s=now_s,
            energy_j=self.energy_j,
            power_w=sample.power_w,
            power_limit_w=state.enforced_power_limit_w if state else None,
            carbon_g=self._carbon_g if carbon else None,
            carbon_intensity_g_per_kwh=value if carbon else None,
            cost=self._cost if priced else None,
            currency=history.unit.partition("/")[0] if priced and history is not None else None,
            utilization_ratio=sample.utilization_ratio,
            temperature_c=sample.temperature_c,
            job=self.job,
        )

    async def _sample(self) -> None:
        """Take a sample; a GPU that fails is logged once, and once more when it is back."""
        try:
            raw = await self._gpu.read_sample()
        except GpuError as error:
            self._fault_log.report(f"{self._gpu.uuid}: cannot be read: {error}")
        else:
            self._fault_log.clear()
            self._add(raw)

    def _add(self, raw: Sample) -> None:
        before = self._raw
        if before is not None and raw.time_ns <= before.time_ns:
            return
        self._raw = raw
        used_j = _used_j(before, raw) if before else 0.0
        self.energy_j += used_j
        self._samples.append(replace(raw, energy_j=self.energy_j))
        value = self._signal.value_at(self._clock.now_s())
        if value is not None and self._signal.kind == "carbon":
            self._carbon_g += carbon_g(used_j, value)
        elif value is not None and self._signal.kind == "price":
            self._cost += cost(used_j, value)


def _used_j(before: Sample, after: Sample) -> float:
    """Return the energy between two samples [J]: by the counter where both have one that did not fall."""
    if before.energy_j is not None and after.energy_j is not None and after.energy_j >= before.energy_j:
        return after.energy_j - before.energy_j
    return (before.power_w + after.power_w) / 2 * (after.time_ns - before.time_ns) / NS_PER_S
