"""The energy meter: counter or integration, carbon and cost by the hour's value, failures logged once."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from controller.accounting.iteration_log import IterationLog
from controller.accounting.meter_intervals import MeterInterval, meter_intervals
from controller.errors import GpuError, GpuLostError, GpuNotSupportedError
from controller.gpu.meter import energy_meter
from controller.gpu.meter.energy_meter import MAX_SAMPLES, GpuEnergyMeter
from controller.gpu.simulation.backend import SimulatedGpu
from controller.gpu.simulation.measured_curve import load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.ports import Hold, LimitState, Sample
from policies.vocabulary.units import Values
from publishers.messages.codec import decode, encode
from publishers.messages.reports import GpuEnergy
from tests.controller.messages import iterations, ns
from tests.fakes import MIDNIGHT_S, FakeGpu, FakeLimiter, FixedSignal, LoopClock

J_PER_KWH = 3_600_000.0


class MeterBench:
    """A meter with its surroundings."""

    def __init__(self, signal: FixedSignal | None = None, *, gpu: FakeGpu | None = None) -> None:
        self.gpu = gpu or FakeGpu()
        self.limiter = FakeLimiter(self.gpu)
        self.signal = signal or FixedSignal(kind="energy")
        self.published: list[GpuEnergy] = []
        self.meter = GpuEnergyMeter(
            self.gpu,
            clock=self.gpu.clock,
            sample_period_s=1.0,
            publish_period_s=5.0,
            signal=self.signal,
            limiter=self.limiter,
            publish=self.published.append,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the meter."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.meter.run())
            await asyncio.sleep(0)
            yield
            task.cancel()


class CountedGpu(FakeGpu):
    """A GPU with the given counter values, one a second."""

    def __init__(self, *energies_j: float | None, power_w: float = 100.0) -> None:
        super().__init__()
        self.readings = [
            Sample(time_ns=ns(second), power_w=power_w, energy_j=energy_j) for second, energy_j in enumerate(energies_j)
        ]

    async def read_sample(self) -> Sample:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


class SimulatedBench(MeterBench):
    """A meter of a simulated GPU under load, whose counter moves every 100 ms."""

    def __init__(self, *, sample_period_s: float = 0.1) -> None:
        clock = LoopClock()
        start_ns = clock.monotonic_ns() - ns(0.03)
        self.timeline = GpuTimeline(load_curve(), Noise(1), start_ns=start_ns, loaded=True)
        self.simulated = WatchedGpu(self.timeline, clock=clock)
        self.signal = FixedSignal(kind="energy")
        self.published = []
        self.meter = GpuEnergyMeter(
            self.simulated,
            clock=clock,
            sample_period_s=sample_period_s,
            publish_period_s=5.0,
            signal=self.signal,
            limiter=FakeLimiter(FakeGpu()),
            publish=self.published.append,
        )

    def off_j(self, since_s: float) -> Values:
        """Return by how much each sample is off with what it says is not counted yet, but for a constant [J]."""
        samples = self.meter.samples_since(ns(since_s))
        assert all(sample.uncounted_j is not None for sample in samples)
        known_j = [(sample.energy_j or 0.0) + (sample.uncounted_j or 0.0) for sample in samples]
        off_j = np.array(known_j) - [self.timeline.energy_j(sample.time_ns) for sample in samples]
        return np.asarray(off_j - off_j.mean())


class WatchedGpu(SimulatedGpu):
    """A simulated GPU that counts its readings; `tells` is what it makes of each."""

    n_reads = n_powers = 0
    last_ns = 0

    @staticmethod
    def tells(sample: Sample) -> Sample:
        return sample

    async def read_sample(self) -> Sample:
        self.n_reads += 1
        sample = self.tells(await super().read_sample())
        self.last_ns = sample.time_ns
        return sample

    async def read_power(self) -> Sample:
        self.n_powers += 1
        return await super().read_power()


async def test_samples_tell_what_a_counter_that_moves_in_steps_has_not_counted() -> None:
    bench = SimulatedBench(sample_period_s=0.11)
    bench.meter.read_closely(ns(60))
    async with bench.running():
        await asyncio.sleep(60)
    step_j = 0.1 * 235.0
    assert np.std(bench.off_j(2.0)) < 0.06 * step_j, "without it: 0.29 of a step"
    instants_w = [sample.instant_power_w for sample in bench.meter.samples_since(ns(50))]
    assert None not in instants_w
    assert bench.meter.samples_since(ns(59))[-1].n_instants > 400


async def test_close_readings_count_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    benches = []
    for max_probed_period_s in (0.25, 0.0):
        monkeypatch.setattr(energy_meter, "MAX_PROBED_PERIOD_S", max_probed_period_s)
        benches.append(SimulatedBench())
        benches[-1].meter.read_closely(ns(60))
        async with benches[-1].running():
            await asyncio.sleep(30.05)
    probing, plain = benches
    assert probing.simulated.n_reads > plain.simulated.n_reads + 30
    energies_j = [[sample.energy_j for sample in bench.meter.samples_since(0)] for bench in benches]
    assert energies_j[0] == pytest.approx(energies_j[1])
    assert len(energies_j[0]) == 301


STEADY_S = 20.0
"""By then it is known when the counter moves, and how it compares with the power."""


async def test_a_counter_is_read_seldom_while_nobody_measures_and_nothing_is_lost_by_that() -> None:
    bench, told = SimulatedBench(), dict[int, float | None]()

    def noted(sample: Sample) -> Sample:
        told[sample.time_ns] = sample.energy_j
        return sample

    bench.simulated.tells = noted  # type: ignore[method-assign]  # it watches
    async with bench.running():
        await asyncio.sleep(STEADY_S)
        begun = bench.simulated.n_reads
        for limit_w in np.random.default_rng(1).uniform(110, 280, 24):
            await asyncio.sleep(10)
            await bench.simulated.set_power_limit(float(limit_w))
    assert bench.simulated.n_reads - begun < 4 * 50, "each 2 s, with each message, and to follow its steps"
    samples = bench.meter.samples_since(0)
    assert len(samples) > 10 * (STEADY_S + 235), "as many as ever"
    first_j = told[samples[0].time_ns] or 0.0
    exact = [sample for sample in samples if sample.time_ns in told]
    assert [sample.energy_j for sample in exact] == pytest.approx([(told[s.time_ns] or 0.0) - first_j for s in exact])
    energies_j = [sample.energy_j or 0.0 for sample in samples]
    assert energies_j == sorted(energies_j)
    assert np.std(bench.off_j(STEADY_S)) < 0.1 * 0.1 * 235.0, "without what is not counted: 0.29 of a step"


async def test_a_counter_is_read_at_each_sample_while_somebody_measures() -> None:
    bench = SimulatedBench()
    async with bench.running():
        await asyncio.sleep(STEADY_S)
        bench.meter.read_closely(ns(STEADY_S + 10))
        begun = bench.simulated.n_reads
        await asyncio.sleep(9.9)
        assert bench.simulated.n_reads - begun >= 99
        begun = bench.simulated.n_reads
        await asyncio.sleep(20)
        assert bench.simulated.n_reads - begun < 60, "with a burst, perhaps, that follows its steps"


@pytest.mark.parametrize("fault", ["stuck", "falls", "absent"])
async def test_a_counter_that_fails_while_it_is_read_seldom_costs_no_energy(fault: str) -> None:
    """What it has not told is told by the power, also of the seconds before that was found."""
    bench = SimulatedBench()

    def failing(sample: Sample) -> Sample:
        wrong_j = {"stuck": stuck_j, "falls": 0.0, "absent": None}[fault]
        return replace(sample, energy_j=wrong_j) if sample.time_ns > ns(60.5) else sample

    async with bench.running():
        await asyncio.sleep(60.3)
        stuck_j = bench.timeline.counted_j(ns(60.5))
        bench.simulated.tells = failing  # type: ignore[method-assign]  # it fails
        await asyncio.sleep(4.5)
        assert bench.meter.doubts
        begun = bench.simulated.n_reads
        await asyncio.sleep(10)
        assert bench.simulated.n_reads - begun >= 90, "in doubt it is read at each sample"
        last = bench.meter.samples_since(ns(74))[-1]
    used_j = bench.timeline.energy_j(last.time_ns) - bench.timeline.energy_j(bench.meter.samples_since(0)[0].time_ns)
    assert last.energy_j == pytest.approx(used_j, abs=0.2 * 235.0 + 0.01 * 14 * 235.0)


async def test_power_that_no_board_draws_is_not_what_energy_is_spread_by() -> None:
    bench = SimulatedBench()

    async def nonsense() -> Sample:
        sample = await SimulatedGpu.read_power(bench.simulated)
        return replace(sample, power_w=1e6, instant_power_w=1e6)

    async with bench.running():
        await asyncio.sleep(STEADY_S)
        bench.simulated.read_power = nonsense  # type: ignore[method-assign]  # it fails
        await asyncio.sleep(20)
    samples = bench.meter.samples_since(ns(STEADY_S))
    off_j = np.array([(s.energy_j or 0.0) - bench.timeline.energy_j(s.time_ns) for s in samples])
    assert np.ptp(off_j) < 2 * 0.1 * 235.0


async def test_where_the_power_alone_cannot_be_read_the_counter_tells_the_energy() -> None:
    bench, faults = SimulatedBench(), list[str]()

    async def fails() -> Sample:
        faults.append(bench.meter.fault)
        raise GpuError("unknown error", gpu_uuid=bench.simulated.uuid, operation="read_power")

    async with bench.running():
        await asyncio.sleep(STEADY_S)
        bench.simulated.read_power = fails  # type: ignore[method-assign]  # it fails
        await asyncio.sleep(5)
    assert len(faults) > 40
    assert {*faults, bench.meter.fault} == {""}
    assert bench.meter.samples_since(0)[-1].time_ns == bench.simulated.last_ns


async def test_a_counter_that_is_not_believed_says_nothing_of_what_is_not_counted() -> None:
    bench = SimulatedBench()
    bench.meter.read_closely(ns(90))
    wrong_j = iter([0.0, -5.0, 1e9])

    def fails_now_and_then(sample: Sample) -> Sample:
        is_wrong = sample.time_ns > ns(20) and bench.simulated.n_reads % 100 == 0
        return replace(sample, energy_j=next(wrong_j, sample.energy_j)) if is_wrong else sample

    bench.simulated.tells = fails_now_and_then  # type: ignore[method-assign]  # it fails
    async with bench.running():
        await asyncio.sleep(90)
    assert next(wrong_j, None) is None
    known_j = [sample.uncounted_j for sample in bench.meter.samples_since(ns(20)) if sample.uncounted_j is not None]
    assert len(known_j) > 500
    assert max(map(abs, known_j)) < 2 * 0.1 * 235.0


@pytest.mark.parametrize(("seed", "is_close"), [(0, True), (1, True), (2, False), (3, False)])
async def test_windows_add_up_to_what_the_counter_has_counted(seed: int, *, is_close: bool) -> None:
    """Billed is the counter's energy alone; what it has not counted at the end of a window is in the next one."""
    bench, rng = SimulatedBench(sample_period_s=0.11), np.random.default_rng(seed)
    bench.meter.read_closely(ns(90) if is_close else 0)
    log = IterationLog()
    log.append(iterations(0.05, np.arange(0.1, 70.0, 0.064).tolist(), seq=0, first=0), now_ns=ns(70))
    async with bench.running():
        for limit_w in rng.uniform(110, 280, 40):
            await asyncio.sleep(float(rng.uniform(0.2, 2.5)))
            await bench.simulated.set_power_limit(float(limit_w))
    found: list[MeterInterval] = []
    since_ns, end_ns = bench.meter.samples_since(ns(5))[0].time_ns, bench.simulated.last_ns - ns(5)
    while since_ns < end_ns:
        until_ns = since_ns + ns(float(rng.uniform(0.3, 3.0)))
        found += meter_intervals(logs=[log], meters=[bench.meter], since_ns=since_ns, until_ns=until_ns)
        since_ns = found[-1].end_ns
    first, last = (
        next(sample for sample in bench.meter.samples_since(at_ns) if sample.time_ns == at_ns)
        for at_ns in (found[0].begin_ns, found[-1].end_ns)
    )
    assert [each.begin_ns for each in found[1:]] == [each.end_ns for each in found[:-1]]
    billed_j = math.fsum(each.energy_j for each in found)
    assert billed_j == pytest.approx((last.energy_j or 0.0) - (first.energy_j or 0.0), abs=1e-6)
    assert bench.meter.energy_j == pytest.approx(bench.timeline.counted_j(bench.simulated.last_ns), abs=0.1 * 300.0)
    interpolated_j = math.fsum(each.interpolated_energy_j or math.nan for each in found)
    assert interpolated_j == pytest.approx(
        billed_j + (last.uncounted_j or math.nan) - (first.uncounted_j or math.nan), abs=1e-6
    )


async def test_a_meter_that_samples_seldom_makes_no_close_readings() -> None:
    bench = SimulatedBench(sample_period_s=1.0)
    async with bench.running():
        await asyncio.sleep(30.5)
    assert bench.simulated.n_reads == 31


async def test_energy_comes_from_the_counter() -> None:
    bench = MeterBench()
    bench.gpu.draw_w = lambda limit_w: limit_w - 60
    async with bench.running():
        await asyncio.sleep(10.5)
        assert bench.meter.energy_j == pytest.approx(2_400)
        bench.gpu.set_externally(100.0)
        await asyncio.sleep(10)
        assert bench.meter.energy_j == pytest.approx(2_400 + 0.5 * 240 + 9.5 * 40)


async def test_without_a_counter_power_is_integrated() -> None:
    bench = MeterBench()
    bench.gpu.has_counter = False
    async with bench.running():
        await asyncio.sleep(10.5)
        assert bench.meter.energy_j == pytest.approx(3_000)


async def test_what_the_counter_showed_before_the_start_does_not_count() -> None:
    bench = MeterBench(gpu=CountedGpu(9e9, 9e9 + 50))
    async with bench.running():
        await asyncio.sleep(1.5)
    assert bench.meter.energy_j == 50


async def test_the_counter_is_known_between_samples_and_after_a_reset() -> None:
    bench = MeterBench(gpu=CountedGpu(1_000, 1_050, *range(10, 400, 50)))
    assert bench.meter.counter_at_j(0) is None
    async with bench.running():
        await asyncio.sleep(1.5)
        assert bench.meter.counter_at_j(ns(0.5)) == 1_025
        await asyncio.sleep(8)
    assert bench.meter.counter_at_j(ns(8.5)) == 335


async def test_a_gpu_without_a_counter_has_no_counter_value() -> None:
    gpu = FakeGpu()
    gpu.has_counter = False
    bench = MeterBench(gpu=gpu)
    async with bench.running():
        await asyncio.sleep(1.5)
    assert bench.meter.counter_at_j(ns(1)) is None


async def test_a_counter_that_was_reset_is_bridged_by_the_power() -> None:
    bench = MeterBench(gpu=CountedGpu(1_000, 1_050, *range(10, 400, 50)))
    async with bench.running():
        await asyncio.sleep(9.5)
    assert bench.meter.energy_j == 50 + 7 * 100 + 50


async def test_a_sample_that_is_not_newer_than_the_last_is_ignored() -> None:
    gpu = CountedGpu(0, 50)
    gpu.readings.insert(1, replace(gpu.readings[0], energy_j=20))
    bench = MeterBench(gpu=gpu)
    async with bench.running():
        await asyncio.sleep(2.5)
    assert bench.meter.energy_j == 50
    assert len(bench.meter.samples_since(0)) == 2


async def test_every_period_everything_known_is_published() -> None:
    bench = MeterBench(FixedSignal(360.0))
    bench.limiter.state = LimitState(
        hold=Hold.HELD,
        prior_power_limit_w=280.0,
        floor_power_limit_w=100.0,
        ceiling_power_limit_w=280.0,
        requested_power_limit_w=200.0,
        enforced_power_limit_w=190.0,
        since_ns=0,
    )
    bench.meter.job = "resnet50"
    async with bench.running():
        await asyncio.sleep(10.5)
    assert [energy.time_s - MIDNIGHT_S for energy in bench.published] == pytest.approx([0, 5, 10])
    last = bench.published[-1]
    assert (last.power_w, last.power_limit_w, last.job) == (300.0, 190.0, "resnet50")
    assert (last.utilization_ratio, last.temperature_c) == (1.0, 60.0)
    assert (last.carbon_intensity_g_per_kwh, last.cost, last.currency) == (360.0, None, None)
    assert last.energy_j == pytest.approx(3_000)
    assert last.carbon_g == pytest.approx(3_000 * 360 / J_PER_KWH)
    sent = decode(encode(last), GpuEnergy)
    assert (sent.energy_j, sent.carbon_g) == (3_000.0, 0.3), "rounded"


async def test_a_price_yields_a_cost_in_its_currency() -> None:
    signal = FixedSignal(0.36, kind="price")
    assert signal.series is not None
    signal.series = replace(signal.series, kind="price", unit="EUR/kWh")
    bench = MeterBench(signal)
    async with bench.running():
        await asyncio.sleep(10.5)
    last = bench.published[-1]
    assert (last.currency, last.carbon_g, last.carbon_intensity_g_per_kwh) == ("EUR", None, None)
    assert last.cost == pytest.approx(3_000 * 0.36 / J_PER_KWH)


async def test_plain_energy_has_neither_carbon_nor_cost() -> None:
    bench = MeterBench()
    async with bench.running():
        await asyncio.sleep(5.5)
    assert (bench.published[-1].carbon_g, bench.published[-1].cost) == (None, None)


async def test_an_expired_signal_value_counts_until_the_next_is_known() -> None:
    signal = FixedSignal(360.0)
    assert signal.series is not None
    signal.series = signal.series.between(0, MIDNIGHT_S + 5)  # the hour is over, the next fetch is to come
    bench = MeterBench(signal)
    async with bench.running():
        await asyncio.sleep(20.5)
    assert bench.published[-1].carbon_g == pytest.approx(6_000 * 360 / J_PER_KWH)


async def test_before_any_signal_value_no_carbon_is_counted() -> None:
    bench = MeterBench(FixedSignal())
    async with bench.running():
        await asyncio.sleep(5.5)
    assert (bench.published[-1].carbon_g, bench.published[-1].carbon_intensity_g_per_kwh) == (0.0, None)


async def test_a_gpu_that_cannot_be_read_is_logged_once_and_once_more_when_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "controller.gpu.meter.energy_meter")
    bench = MeterBench()
    async with bench.running():
        await asyncio.sleep(5.5)
        bench.gpu.errors = {"read_sample": GpuLostError("gone", gpu_uuid=bench.gpu.uuid, operation="read_sample")}
        await asyncio.sleep(60)
        bench.gpu.errors = {}
        await asyncio.sleep(5)
        assert bench.meter.energy_j == pytest.approx(300 * 70), "the counter went on meanwhile"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize("error_class", [GpuNotSupportedError, None], ids=["not supported", "0 W"])
async def test_a_gpu_without_meters_is_told_once_and_publishes_no_value(
    caplog: pytest.LogCaptureFixture, error_class: type[GpuError] | None
) -> None:
    gpu = FakeGpu() if error_class is not None else CountedGpu(*[None] * 60, power_w=0.0)
    bench = MeterBench(gpu=gpu)
    if error_class is not None:
        gpu.errors = {"read_sample": error_class("not offered", gpu_uuid=gpu.uuid, operation="read_sample")}
    async with bench.running():
        await asyncio.sleep(59)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == bench.meter.absence
    assert "its energy is not known" in said
    assert (bench.meter.fault, bench.meter.doubts, bench.meter.current) == ("", (), None)
    assert bench.published == [GpuEnergy(time_s=MIDNIGHT_S + second) for second in range(0, 60, 5)]


async def test_counters_say_since_when_they_count() -> None:
    bench = MeterBench()
    await asyncio.sleep(100)
    async with bench.running():
        await asyncio.sleep(9)
    first, second = bench.published
    assert first.started_at_s == second.started_at_s == MIDNIGHT_S
    assert second.time_s > MIDNIGHT_S + 100


async def test_a_power_of_0_w_at_first_is_an_absence_that_passes() -> None:
    gpu = CountedGpu(None, None, power_w=0.0)
    gpu.readings += [Sample(time_ns=ns(second), power_w=100.0) for second in range(2, 9)]
    bench = MeterBench(gpu=gpu)
    async with bench.running():
        await asyncio.sleep(8.5)
    assert (bench.meter.absence, bench.meter.energy_j) == ("", 600.0)


async def test_a_gpu_that_was_measured_is_faulty_where_its_driver_offers_that_no_more() -> None:
    bench = MeterBench()
    async with bench.running():
        await asyncio.sleep(5.5)
        error = GpuNotSupportedError("too old", gpu_uuid=bench.gpu.uuid, operation="read_sample")
        bench.gpu.errors = {"read_sample": error}
        await asyncio.sleep(5)
        assert "cannot be read" in bench.meter.fault
        assert bench.meter.absence == ""


async def test_a_gpu_that_never_answers_publishes_no_value() -> None:
    bench = MeterBench()
    bench.gpu.errors = {"read_sample": GpuLostError("gone", gpu_uuid=bench.gpu.uuid, operation="read_sample")}
    async with bench.running():
        await asyncio.sleep(59)
        assert (bench.meter.latest, list(bench.meter.samples_since(0))) == (None, [])
    assert bench.published == [GpuEnergy(time_s=MIDNIGHT_S + second) for second in range(0, 60, 5)]


async def test_what_cannot_be_read_now_is_not_published_as_if_it_were() -> None:
    bench = MeterBench(FixedSignal(360.0))
    bench.gpu.has_counter = False
    async with bench.running():
        await asyncio.sleep(7)
        bench.gpu.errors = {"read_sample": GpuLostError("gone", gpu_uuid=bench.gpu.uuid, operation="read_sample")}
        await asyncio.sleep(1)
        states = [(bench.meter.current is None, bench.meter.fault)]
        await asyncio.sleep(10)
        bench.gpu.errors = {}
        await asyncio.sleep(3)
        states.append((bench.meter.current is None, bench.meter.fault))
    gone = f"{bench.gpu.uuid}: cannot be read: read_sample on {bench.gpu.uuid}: gone"
    assert states == [(True, gone), (False, "")]
    sent = [decode(encode(message), GpuEnergy) for message in bench.published]
    assert [message.energy_j for message in sent] == [0.0, 1_500.0, None, None, 6_000.0]
    assert [message.power_w for message in sent] == [300.0, 300.0, None, None, 300.0]
    assert [message.carbon_g is None for message in sent] == [False, False, True, True, False]
    assert [message.unmeasured_s for message in sent] == [0.0, 0.0, 0.0, 0.0, pytest.approx(12.0, abs=1.1)]


async def test_a_message_says_when_its_value_was_measured() -> None:
    gpu = CountedGpu(0.0)
    bench = MeterBench(gpu=gpu)
    gpu.readings = [Sample(time_ns=ns(second - 0.3), power_w=100.0) for second in range(1, 8)]
    async with bench.running():
        await asyncio.sleep(5.5)
    assert bench.published[-1].time_s - MIDNIGHT_S == pytest.approx(5.7)


async def test_a_counter_that_stands_still_is_told_once_and_its_samples_are_made_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpu = CountedGpu(*[9.0] * 60)
    bench = MeterBench(gpu=gpu)
    async with bench.running():
        await asyncio.sleep(59.5)
    assert [sample.energy_j for sample in bench.meter.samples_since(0)] == pytest.approx(
        [100.0 * second for second in range(60)]
    )
    assert bench.meter.counter_at_j(ns(30)) is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert "meter rejected: its energy counter is stuck" in said
    assert bench.meter.doubts


async def test_a_counter_that_fails_again_and_again_is_told_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    gpu = CountedGpu(0.0)
    gpu.readings = [
        Sample(
            time_ns=ns(second), power_w=100.0 + second % 7, energy_j=(second // 20 % 2) * 1e9 + 100.0 * (second % 20)
        )
        for second in range(1_000)
    ]
    bench = MeterBench(gpu=gpu)
    async with bench.running():
        await asyncio.sleep(900)
    assert len([record for record in caplog.records if "meter rejected" in record.getMessage()]) == 1


async def test_a_gpu_that_tells_no_maximum_limit_is_asked_again_and_measured_meanwhile() -> None:
    bench = MeterBench()
    bench.gpu.errors = {"read_range": GpuLostError("gone", gpu_uuid=bench.gpu.uuid, operation="read_range")}
    async with bench.running():
        await asyncio.sleep(10.5)
        assert bench.meter.energy_j == pytest.approx(3_000)
        assert bench.meter.max_power_limit_w is None
        bench.gpu.errors = {}
        await asyncio.sleep(60)
        assert bench.meter.max_power_limit_w == 300.0


async def test_samples_start_with_the_last_one_before_a_moment() -> None:
    bench = MeterBench()
    async with bench.running():
        await asyncio.sleep(5.5)
    seconds = [round(sample.time_ns / 1e9) for sample in bench.meter.samples_since(ns(2.5))]
    assert seconds == [2, 3, 4, 5]
    assert [round(s.time_ns / 1e9) for s in bench.meter.samples_since(ns(3))] == [3, 4, 5]
    assert [round(s.time_ns / 1e9) for s in bench.meter.samples_since(ns(99))] == [5]


@pytest.mark.parametrize(
    ("until_s", "seconds"), [(2.0, [2]), (2.5, [2, 3]), (3.0, [2, 3]), (3.5, [2, 3, 4]), (9.0, [2, 3, 4, 5])]
)
async def test_samples_end_with_the_first_one_after_a_second_moment(until_s: float, seconds: list[int]) -> None:
    bench = MeterBench(gpu=CountedGpu(*[0.0] * 6))
    async with bench.running():
        await asyncio.sleep(5.5)
    found = bench.meter.samples_since(ns(2.2), until_ns=ns(until_s))
    assert [round(s.time_ns / 1e9) for s in found] == seconds


async def test_the_number_of_samples_is_bounded() -> None:
    bench = MeterBench()
    async with bench.running():
        for _ in range(MAX_SAMPLES + 100):
            await asyncio.sleep(1)
    assert len(bench.meter.samples_since(0)) == MAX_SAMPLES
    assert bench.meter.energy_j == pytest.approx(300 * (MAX_SAMPLES + 100), rel=1e-3)
