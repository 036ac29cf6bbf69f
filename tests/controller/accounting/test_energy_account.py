"""The energy account: intervals at the readings of the meters, totals, and resumption."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from controller.accounting.energy_account import AccountSnapshot, EnergyAccount, EnergyTotals
from controller.accounting.iteration_log import IterationLog
from controller.accounting.meter_intervals import MeterInterval, meter_intervals
from controller.gpu.meter.energy_meter import GpuEnergyMeter
from controller.ports import EnergyMeter, Sample
from publishers.messages.training import Iterations
from tests.controller.messages import iterations, ns
from tests.fakes import MIDNIGHT_S, FakeGpu, FakeLimiter, FixedSignal, LoopClock

J_PER_KWH = 3_600_000.0


class FixedMeter:
    """A meter whose readings are given: (time [s], cumulative energy [J])."""

    def __init__(self, *readings: tuple[float, float]) -> None:
        self.samples = [Sample(time_ns=ns(time_s), power_w=0.0, energy_j=energy_j) for time_s, energy_j in readings]

        self.n_read = 0

    def samples_since(self, time_ns: int, *, until_ns: int | None = None) -> Sequence[Sample]:
        first = max(sum(sample.time_ns <= time_ns for sample in self.samples) - 1, 0)
        end = sum(until_ns is None or sample.time_ns < until_ns for sample in self.samples) + 1
        found = self.samples[first:end]
        self.n_read += len(found)
        return found

    @property
    def latest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    def counter_at_j(self, time_ns: int) -> float | None:
        del time_ns
        return None

    def read_closely(self, until_ns: int) -> None:
        """Do nothing."""

    def most_j(self, duration_s: float) -> float:
        return 1.5 * 300.0 * duration_s


def steady_meter(power_w: float, *times_s: float) -> FixedMeter:
    """Return a meter of a GPU that always draws the same."""
    return FixedMeter(*((time_s, power_w * time_s) for time_s in times_s))


def log_of(begin_s: float, ends_s: Sequence[float]) -> IterationLog:
    """Return the log of one message."""
    log = IterationLog()
    log.append(iterations(begin_s, ends_s), now_ns=ns(1e6))
    return log


def interval(*, duration_s: float, n_iterations: float, energy_j: float, active: bool = True) -> MeterInterval:
    """Return a slice that begins at 0."""
    return MeterInterval(begin_ns=0, end_ns=ns(duration_s), active=active, n_iterations=n_iterations, energy_j=energy_j)


def test_time_is_cut_at_the_readings_and_energy_goes_with_it() -> None:
    log = log_of(0, [1, 2, 3, 4, 5, 6])
    intervals = meter_intervals(logs=[log], meters=[FixedMeter((0, 0), (2, 100), (4, 400))], since_ns=0, until_ns=ns(6))
    assert [(p.duration_s, p.n_iterations, p.energy_j, p.active) for p in intervals] == [
        (2, 2, 100, True),
        (2, 2, 300, True),
    ]


def test_intervals_end_where_the_iterations_are_known_no_further() -> None:
    log = log_of(0, [1, 2, 3])
    intervals = meter_intervals(logs=[log], meters=[steady_meter(10, 0, 2, 4)], since_ns=0, until_ns=ns(3))
    assert [p.end_ns for p in intervals] == [ns(2)]


def test_the_end_of_a_run_is_cut_between_two_readings() -> None:
    log = log_of(0, [1, 2, 3])
    intervals = meter_intervals(
        logs=[log], meters=[steady_meter(10, 0, 2, 4)], since_ns=0, until_ns=ns(3), to_the_end=True
    )
    assert [(p.end_ns, p.energy_j) for p in intervals] == [(ns(2), 20), (ns(3), 10)]


def test_intervals_continue_between_two_readings() -> None:
    log = log_of(0, [1, 2, 3, 4])
    intervals = meter_intervals(logs=[log], meters=[steady_meter(10, 0, 2, 4)], since_ns=ns(1), until_ns=ns(4))
    assert [(p.begin_ns, p.end_ns, p.energy_j) for p in intervals] == [
        (ns(1), ns(2), 10),
        (ns(2), ns(4), 20),
    ]


def test_energy_before_the_first_reading_is_not_guessed() -> None:
    log = log_of(0, [1, 2, 3, 4])
    intervals = meter_intervals(logs=[log], meters=[steady_meter(10, 2, 4)], since_ns=0, until_ns=ns(4))
    assert [(p.begin_ns, p.end_ns) for p in intervals] == [(ns(2), ns(4))]


def test_two_gpus_add_up_and_the_slowest_rank_counts() -> None:
    quick, slow = log_of(0, [1, 2, 3, 4]), log_of(0, [2, 4])
    meters = [steady_meter(100, 0, 2, 4), steady_meter(50, 0.5, 1.5, 4.5)]
    intervals = meter_intervals(logs=[quick, slow], meters=meters, since_ns=ns(2), until_ns=ns(4))
    assert [(p.n_iterations, p.energy_j) for p in intervals] == [(1, 300)]


def with_power(meter: FixedMeter, *readings: tuple[float | None, float | None, int]) -> FixedMeter:
    """Return a meter whose samples tell what is not counted [J], the instant power [W] and how many of these."""
    meter.samples = [
        replace(sample, uncounted_j=uncounted_j, instant_power_w=instant_w, n_instants=n_instants)
        for sample, (uncounted_j, instant_w, n_instants) in zip(meter.samples, readings, strict=True)
    ]
    return meter


def test_an_interval_has_what_no_counter_had_counted_and_the_power_at_its_end() -> None:
    meters = [
        with_power(steady_meter(100, 0, 2, 4), (1.0, 90.0, 1), (4.0, 110.0, 2), (2.0, 100.0, 2)),
        with_power(steady_meter(50, 0, 1, 5), (0.0, 40.0, 1), (1.0, 50.0, 2), (9.0, 60.0, 3)),
    ]
    intervals = meter_intervals(logs=[log_of(0, [1, 2, 3, 4])], meters=meters, since_ns=0, until_ns=ns(4))
    assert [p.energy_j for p in intervals] == [300, 300], "energy is the counters' alone"
    assert [p.interpolated_energy_j for p in intervals] == [300 + 3.0 + 3.0, 300 - 2.0 + 4.0]
    assert [(p.instant_power_w, p.n_instants) for p in intervals] == [(160.0, 1.0), (150.0, 0.0)]


def test_what_one_gpu_does_not_tell_is_not_known_of_an_interval() -> None:
    meters = [
        with_power(steady_meter(100, 0, 2, 4), (1.0, 90.0, 1), (4.0, 110.0, 2), (2.0, 100.0, 2)),
        with_power(steady_meter(50, 0, 2, 4), (0.0, 40.0, 1), (None, 50.0, 2), (9.0, None, 2)),
    ]
    intervals = meter_intervals(logs=[log_of(0, [1, 2, 3, 4])], meters=meters, since_ns=0, until_ns=ns(4))
    assert [p.interpolated_energy_j for p in intervals] == [None, None]
    assert [p.instant_power_w for p in intervals] == [160.0, None]


@pytest.mark.parametrize(("other_c", "mean_c"), [((50.0, 54.0, 58.0), 51.0), ((50.0, None, 58.0), None)])
def test_an_interval_has_the_mean_temperature_of_all_gpus(
    other_c: tuple[float | None, ...], mean_c: float | None
) -> None:
    meters = [steady_meter(100, 0, 2, 4), steady_meter(50, 0, 2, 4)]
    for meter, readings_c in zip(meters, ((40.0, 46.0, 46.0), other_c), strict=True):
        samples = zip(meter.samples, readings_c, strict=True)
        meter.samples = [replace(sample, temperature_c=temperature_c) for sample, temperature_c in samples]
    intervals = meter_intervals(logs=[log_of(0, [1, 2, 3, 4])], meters=meters, since_ns=ns(2), until_ns=ns(4))
    assert [p.temperature_c for p in intervals] == [mean_c]


def test_an_interval_in_which_one_rank_paused_is_a_pause() -> None:
    running, paused = log_of(0, [1, 2, 3, 4]), log_of(0, [1])
    intervals = meter_intervals(logs=[running, paused], meters=[steady_meter(10, 0, 4)], since_ns=0, until_ns=ns(4))
    assert [p.active for p in intervals] == [False]


@pytest.mark.parametrize("meters", [[], [FixedMeter()], [steady_meter(1, 0, 9), FixedMeter()]])
def test_without_a_reading_of_every_meter_there_is_no_interval(meters: list[FixedMeter]) -> None:
    assert meter_intervals(logs=[log_of(0, [1])], meters=meters, since_ns=0, until_ns=ns(1)) == []


def test_without_anything_new_there_is_no_interval() -> None:
    assert meter_intervals(logs=[log_of(0, [1])], meters=[steady_meter(1, 0, 9)], since_ns=ns(1), until_ns=ns(1)) == []


def test_a_pause_costs_no_more_to_read_the_longer_it_lasts() -> None:
    meters = [steady_meter(100, *range(3_000)), steady_meter(50, *(second + 0.5 for second in range(3_000)))]
    assert meter_intervals(logs=[log_of(0, [1, 2, 3])], meters=meters, since_ns=ns(3), until_ns=ns(3)) == []
    assert sum(meter.n_read for meter in meters) <= 2 * len(meters)


def test_a_meter_that_has_read_far_enough_is_not_missing() -> None:
    log, meters = log_of(0, [1, 2, 3, 4]), [steady_meter(100, 0, 2, 4, 90), steady_meter(50, 0, 2, 4)]
    intervals = meter_intervals(logs=[log], meters=meters, since_ns=0, until_ns=ns(4), patient_from_ns=ns(60))
    assert [p.energy_j for p in intervals] == [300, 300]


def test_an_interval_has_the_iteration_times_of_the_slowest_rank() -> None:
    quick, slow = log_of(0, [1, 2, 3, 4]), log_of(0, [2, 4])
    intervals = meter_intervals(logs=[quick, slow], meters=[steady_meter(1, 0, 1.5, 4)], since_ns=0, until_ns=ns(4))
    assert [interval.iteration_times_s for interval in intervals] == [(), (2.0, 2.0)]


@pytest.mark.parametrize(("kind", "spent"), [("energy", 2 * 3_000 / J_PER_KWH), ("carbon", 2 * 3_000 * 50 / J_PER_KWH)])
def test_a_budget_pays_for_the_host_and_the_building(kind: str, spent: float) -> None:
    totals = EnergyTotals()
    totals.add(interval(duration_s=10, n_iterations=8, energy_j=2_000), 50.0)
    assert totals.spent(kind=kind, host_power_w=100.0, pue=2.0) == pytest.approx(spent)


def test_what_a_budget_of_money_has_paid_is_unknown_without_a_price() -> None:
    totals = EnergyTotals()
    totals.add(interval(duration_s=10, n_iterations=8, energy_j=2 * J_PER_KWH), None)
    assert totals.spent(kind="price") is None
    totals.add(interval(duration_s=10, n_iterations=8, energy_j=2 * J_PER_KWH), 0.30)
    totals.add(interval(duration_s=10, n_iterations=8, energy_j=2 * J_PER_KWH), 0.60)
    assert totals.spent(kind="price") == pytest.approx(2 * (0.30 + 0.30 + 0.60))
    host_kwh = 360.0 * 10 / J_PER_KWH
    assert totals.spent(kind="price", host_power_w=360.0) == pytest.approx((2 + host_kwh) * (0.30 + 0.30 + 0.60))


def test_the_first_signal_value_prices_what_ran_before() -> None:
    late, known = EnergyTotals(), EnergyTotals()
    for totals, first in ((late, None), (known, 200.0)):
        totals.add(interval(duration_s=10, n_iterations=8, energy_j=2_000), first)
        totals.add(interval(duration_s=10, n_iterations=9, energy_j=2_500), first)
        totals.add(interval(duration_s=5, n_iterations=0, energy_j=300, active=False), first)
        totals.add(interval(duration_s=10, n_iterations=8, energy_j=2_000), 200.0)
        totals.add(interval(duration_s=10, n_iterations=8, energy_j=2_000), 400.0)
    assert late.report(kind="carbon") == pytest.approx(known.report(kind="carbon"))


def test_carbon_is_energy_by_its_intensity() -> None:
    totals = EnergyTotals()
    totals.add(interval(duration_s=10, n_iterations=8, energy_j=2_000), 360.0)
    assert totals.report(kind="carbon") == {
        "energy_j": 2_000,
        "duration_s": 10,
        "carbon_g": 2_000 * 360 / J_PER_KWH,
    }


def test_a_price_makes_a_cost() -> None:
    totals = EnergyTotals()
    totals.add(interval(duration_s=10, n_iterations=8, energy_j=1_800_000), 0.30)
    report = totals.report(kind="price")
    assert report["cost"] == pytest.approx(0.15)
    assert "carbon_g" not in report


def test_a_pause_that_was_asked_for_counts_and_is_told() -> None:
    totals = EnergyTotals()
    totals.add(interval(duration_s=10, n_iterations=8, energy_j=2_000), 100.0)
    asked = interval(duration_s=100, n_iterations=0, energy_j=5_000, active=False)
    totals.add(replace(asked, is_asked=True), 100.0)
    report = totals.report(kind="carbon")
    assert (report["energy_j"], report["duration_s"], report["paused_s"]) == (7_000, 110, 100)
    assert report["carbon_g"] == pytest.approx(7_000 * 100 / J_PER_KWH)


def test_a_missing_value_counts_as_the_last_known_or_else_the_first() -> None:
    totals = EnergyTotals()
    totals.add(interval(duration_s=1, n_iterations=1, energy_j=J_PER_KWH), None)
    totals.add(interval(duration_s=1, n_iterations=1, energy_j=J_PER_KWH), 200.0)
    totals.add(interval(duration_s=1, n_iterations=1, energy_j=J_PER_KWH), None)
    totals.add(interval(duration_s=1, n_iterations=1, energy_j=J_PER_KWH), 300.0)
    assert totals.report(kind="carbon")["carbon_g"] == pytest.approx(200 + 200 + 200 + 300)


def test_while_one_meter_fails_nothing_is_active_and_its_energy_is_added_later() -> None:
    log = log_of(0, list(range(1, 101)))
    good, failing = steady_meter(10, *range(101)), FixedMeter(*((second, 5.0 * second) for second in range(11)))
    accounted: dict[EnergyMeter, Sample] = {}
    intervals: list[MeterInterval] = []
    for until_s in (10, 50, 100):
        if until_s == 100:
            failing.samples += steady_meter(5, 60, *range(61, 101)).samples
        intervals += meter_intervals(
            logs=[log],
            meters=[good, failing],
            since_ns=intervals[-1].end_ns if intervals else 0,
            until_ns=ns(until_s),
            patient_from_ns=ns(until_s - 5),
            accounted=accounted,
        )
    assert sum(interval.energy_j for interval in intervals) == pytest.approx(1_500)
    assert sum(interval.duration_s for interval in intervals) == pytest.approx(100)
    assert sum(interval.duration_s for interval in intervals if not interval.active) == pytest.approx(40)
    assert [interval.energy_j for interval in intervals if not interval.duration_s] == [pytest.approx(200)]


def test_what_a_gpu_uses_that_was_never_read_is_not_measured() -> None:
    log, meters = log_of(0, list(range(1, 101))), [steady_meter(10, *range(101)), FixedMeter()]
    intervals = meter_intervals(logs=[log], meters=meters, since_ns=0, until_ns=ns(100), patient_from_ns=ns(50))
    assert sum(each.unmeasured_s for each in intervals) == pytest.approx(100.0)
    assert not any(each.active for each in intervals)


async def test_a_run_whose_gpus_were_never_read_is_not_measured() -> None:
    account, log = EnergyAccount(clock=LoopClock(), signal=FixedSignal(kind="energy")), log_of(0, [10, 20, 30])
    list(account.advance((0, ns(30)), logs=[log], meters={"GPU-0": FixedMeter()}, tick_s=1.0, to_the_end=True))
    assert (account.totals.energy_j, account.totals.unmeasured_s) == (0.0, 30.0)
    assert account.totals.is_unmeasured


TICK_S = 0.1


async def test_an_iteration_of_twelve_minutes_is_no_pause() -> None:
    gpu, signal = FakeGpu(), FixedSignal(kind="energy")
    meter = GpuEnergyMeter(
        gpu,
        clock=gpu.clock,
        sample_period_s=TICK_S,
        publish_period_s=5.0,
        signal=signal,
        limiter=FakeLimiter(gpu),
        publish=lambda *_: None,
    )
    account, log = EnergyAccount(clock=gpu.clock, signal=signal), IterationLog()

    def add(message: Iterations) -> list[bool]:
        assert log.append(message, now_ns=gpu.clock.monotonic_ns())
        assert log.begin_ns is not None
        assert log.end_ns is not None
        known_ns = log.begin_ns, log.end_ns
        intervals = account.advance(known_ns, logs=[log], meters={gpu.uuid: meter}, tick_s=TICK_S)
        return [interval.active for interval in intervals]

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(meter.run())
        await asyncio.sleep(2.05)
        assert all(add(iterations(0, [1, 2])))
        await asyncio.sleep(720)
        known_ns = ns(0), ns(2)
        assert list(account.advance(known_ns, logs=[log], meters={gpu.uuid: meter}, tick_s=TICK_S)) == []
        intervals = add(iterations(2, [722], seq=1, first=2))
        reading.cancel()
    assert (len(intervals) > 7_000, all(intervals)) == (True, True)
    assert account.totals.energy_j > 0.99 * meter.energy_j


async def running(gpu: FakeGpu, *, duration_s: float) -> GpuEnergyMeter:
    """Return the meter of a GPU that was read for a while."""
    meter = GpuEnergyMeter(
        gpu,
        clock=gpu.clock,
        sample_period_s=1.0,
        publish_period_s=5.0,
        signal=FixedSignal(kind="energy"),
        limiter=FakeLimiter(gpu),
        publish=lambda *_: None,
    )
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(meter.run())
        await asyncio.sleep(duration_s)
        reading.cancel()
    return meter


def before(
    cut_s: float,
    *,
    gpus: Sequence[str] = ("GPU-fake-0",),
    signal: tuple[str | None, str | None] = (None, None),
    **sums: Any,  # noqa: ANN401 — the record checks them
) -> AccountSnapshot:
    """Return the account of a former controller, of GPUs without a counter that drew 300 W."""
    totals = EnergyTotals(energy_j=300.0 * cut_s, duration_s=cut_s, **sums)
    return AccountSnapshot(totals=totals, until_ns=ns(cut_s), counters_j=dict.fromkeys(gpus), signal=signal)


async def test_each_part_of_the_downtime_has_the_price_of_its_time() -> None:
    """Four hours, of which the first costs 100 and each other 500; known is the iteration that follows them."""
    gpu, signal = FakeGpu(), FixedSignal(100.0)
    assert signal.series is not None
    values = np.where(signal.series.starts_s < MIDNIGHT_S + 3_600, 100.0, 500.0)
    signal.series = replace(signal.series, values=values)
    await asyncio.sleep(4 * 3_600)
    meter = await running(gpu, duration_s=20.0)
    account, log = EnergyAccount(clock=gpu.clock, signal=signal), IterationLog()
    account.resume(before(10.0))
    assert log.append(iterations(4 * 3_600, [4 * 3_600 + 15]), now_ns=gpu.clock.monotonic_ns())
    known_ns = ns(4 * 3_600), ns(4 * 3_600 + 15)
    list(account.advance(known_ns, logs=[log], meters={gpu.uuid: meter}, tick_s=1.0))
    expected = 300.0 * (3_590 * 100.0 + (3 * 3_600 + 15) * 500.0)
    assert account.totals.signal_energy == pytest.approx(expected + 300.0 * 10 * 100.0, rel=0.03)


@pytest.mark.parametrize(
    ("used_j", "unmeasured_s"),
    [(90 * 250.0, 0.0), (90 * 3.7e6, 90.0), (-1.0, 90.0)],
    ids=["possible", "more than the board can draw", "less than before"],
)
async def test_a_counter_tells_of_the_downtime_only_what_the_board_can_have_used(
    used_j: float, unmeasured_s: float
) -> None:
    gpu = FakeGpu()
    await asyncio.sleep(100)
    meter = await running(gpu, duration_s=20.0)
    now_j = meter.counter_at_j(ns(100))
    assert now_j is not None
    account, log = EnergyAccount(clock=gpu.clock, signal=FixedSignal(kind="energy")), IterationLog()
    account.resume(replace(before(10.0), counters_j={gpu.uuid: now_j - used_j}))
    assert log.append(iterations(100, [105, 110, 115]), now_ns=gpu.clock.monotonic_ns())
    list(account.advance((ns(100), ns(115)), logs=[log], meters={gpu.uuid: meter}, tick_s=1.0))
    downtime_j = used_j if unmeasured_s == 0 else 90 * 300.0
    assert account.totals.energy_j == pytest.approx(10 * 300 + downtime_j + 15 * 300)
    assert account.totals.unmeasured_s == pytest.approx(unmeasured_s)


async def test_a_resumed_account_waits_a_minute_for_the_signal() -> None:
    gpu, signal = FakeGpu(), FixedSignal()
    await asyncio.sleep(100)
    meter = await running(gpu, duration_s=20.0)
    account, log = EnergyAccount(clock=gpu.clock, signal=signal), IterationLog()
    account.resume(before(10.0, has_signal=True, last_value=100.0))
    assert log.append(iterations(100, [105, 110, 115]), now_ns=gpu.clock.monotonic_ns())

    def intervals() -> list[MeterInterval]:
        return list(account.advance((ns(100), ns(115)), logs=[log], meters={gpu.uuid: meter}, tick_s=1.0))

    assert intervals() == []
    await asyncio.sleep(59)
    assert intervals() == []
    await asyncio.sleep(2)
    assert [interval.active for interval in intervals()][:3] == [False, True, True]


@pytest.mark.parametrize("former", [("price", "EUR/kWh"), ("price", None), ("carbon", "lb/kWh")])
async def test_sums_in_the_unit_of_another_signal_are_void_and_priced_anew(
    former: tuple[str, str | None],
) -> None:
    gpu, signal = FakeGpu(), FixedSignal(100.0)
    await asyncio.sleep(10)
    meter = await running(gpu, duration_s=20.0)
    account, log = EnergyAccount(clock=gpu.clock, signal=signal), IterationLog()
    sums: dict[str, Any] = {"signal_energy": 9e9, "signal_time": 9e9, "last_value": 9e9}
    account.resume(before(10.0, signal=former, has_signal=True, **sums))
    assert log.append(iterations(10, [20, 25]), now_ns=gpu.clock.monotonic_ns())
    list(account.advance((ns(10), ns(25)), logs=[log], meters={gpu.uuid: meter}, tick_s=1.0))
    totals = account.totals
    assert totals.signal_energy == pytest.approx(100.0 * totals.energy_j)
    assert totals.signal_time == pytest.approx(100.0 * totals.duration_s)
    balance = account.snapshot({gpu.uuid: meter})
    assert balance is not None
    assert balance.signal == ("carbon", "g/kWh")


@pytest.mark.parametrize("former", [(None, None), ("carbon", None), ("carbon", "g/kWh")])
async def test_sums_of_the_same_or_an_unknown_signal_are_kept(
    former: tuple[str | None, str | None],
) -> None:
    gpu, signal = FakeGpu(), FixedSignal(100.0)
    await asyncio.sleep(10)
    meter = await running(gpu, duration_s=20.0)
    account, log = EnergyAccount(clock=gpu.clock, signal=signal), IterationLog()
    account.resume(before(10.0, signal=former, has_signal=True, signal_energy=9e9))
    assert log.append(iterations(10, [20, 25]), now_ns=gpu.clock.monotonic_ns())
    list(account.advance((ns(10), ns(25)), logs=[log], meters={gpu.uuid: meter}, tick_s=1.0))
    assert account.totals.signal_energy > 9e9


async def test_a_resumed_account_waits_three_heartbeats_for_its_gpus() -> None:
    gpu = FakeGpu()
    await asyncio.sleep(100)
    meter = await running(gpu, duration_s=20.0)
    account, log = EnergyAccount(clock=gpu.clock, signal=FixedSignal(kind="energy")), IterationLog()
    account.resume(before(10.0, gpus=["GPU-fake-0", "GPU-fake-1"]))
    assert log.append(iterations(100, [105, 110, 115]), now_ns=gpu.clock.monotonic_ns())

    def intervals(*uuids: str) -> list[MeterInterval]:
        meters = dict.fromkeys(uuids, meter)
        return list(account.advance((ns(100), ns(115)), logs=[log], meters=meters, tick_s=1.0))

    await asyncio.sleep(29)
    assert intervals("GPU-fake-0") == []
    await asyncio.sleep(2)
    assert len(intervals("GPU-fake-0")) > 1, "one that never comes is not waited for any longer"


@pytest.mark.parametrize(
    ("former", "are_others"), [(["GPU-0"], True), (["GPU-0", "GPU-1"], False), (["GPU-0", "GPU-1", "GPU-2"], True)]
)
async def test_a_resumed_account_tells_once_whether_its_gpus_are_others(former: list[str], are_others: bool) -> None:
    gpu = FakeGpu()
    await asyncio.sleep(100)
    meter = await running(gpu, duration_s=20.0)
    account, log = EnergyAccount(clock=gpu.clock, signal=FixedSignal(kind="energy")), IterationLog()
    account.resume(before(10.0, gpus=former))
    await asyncio.sleep(31)
    assert log.append(iterations(100, [105, 110, 115]), now_ns=gpu.clock.monotonic_ns())
    list(account.advance((ns(100), ns(115)), logs=[log], meters={"GPU-0": meter, "GPU-1": meter}, tick_s=1.0))
    assert [account.take_other_gpus(), account.take_other_gpus()] == [are_others, False]
