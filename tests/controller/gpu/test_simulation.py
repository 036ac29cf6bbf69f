"""The simulated GPU: measured curves, an exact timeline, and the contract of every GPU.

The measured curves: read whole, linear in between.

The simulated GPU: exact, whoever reads it and however; and the contract of every GPU.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.demo.live_run.noise import H100
from controller.errors import BackendError
from controller.gpu.simulation.backend import SimulatedBackend, SimulatedGpu, default_simulation, simulated_uuid
from controller.gpu.simulation.event_log import Event, EventFile, LimitSet, LoadChanged
from controller.gpu.simulation.measured_curve import A40_RESNET50, list_curves, load_curve
from controller.gpu.simulation.noise import Noise, NoiseLevels
from controller.gpu.simulation.timeline import (
    K_PER_W,
    POWER_RATIO_PER_K,
    TIME_CONSTANT_S,
    GpuTimeline,
    steady_temperature_c,
)
from controller.ports import Backend, Gpu
from controller.runtime.clock import NS_PER_S
from tests.controller.gpu.gpu_contract import GpuContract


@pytest.mark.parametrize("name", list_curves())
def test_every_curve_can_be_read_and_is_plausible(name: str) -> None:
    curve = load_curve(name)
    assert list(curve.power_limits_w) == sorted(set(curve.power_limits_w))
    assert 0 < curve.idle_power_w < min(curve.powers_w)
    assert max(curve.powers_w) <= curve.max_power_limit_w
    assert all(speed_per_s > 0 for speed_per_s in curve.speeds_per_s)


def test_a_measured_limit_gives_what_was_measured() -> None:
    curve = load_curve(A40_RESNET50)
    assert curve.model == "NVIDIA A40"
    assert curve.power_w(225.0) == 196.41
    assert curve.iterations_per_s(225.0) == pytest.approx(5004.56 / 3909.47, rel=1e-12)
    assert curve.power_w(100.0) == 120.74
    assert curve.power_w(300.0) == 235.21


def test_between_two_measured_limits_the_curve_is_linear() -> None:
    curve = load_curve(A40_RESNET50)
    assert curve.power_w(212.5) == pytest.approx((curve.power_w(200.0) + curve.power_w(225.0)) / 2)
    middle_per_s = (curve.iterations_per_s(200.0) + curve.iterations_per_s(225.0)) / 2
    assert curve.iterations_per_s(212.5) == pytest.approx(middle_per_s)


def test_a_curve_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(BackendError, match=A40_RESNET50):
        load_curve("a100")


CURVE = load_curve()
START_NS = 5 * NS_PER_S


class ManualClock:
    """A clock that a test advances."""

    def __init__(self, monotonic_ns: int = START_NS) -> None:
        self.ns = monotonic_ns

    def now_s(self) -> float:
        return self.ns / NS_PER_S

    def monotonic_ns(self) -> int:
        return self.ns

    async def sleep_until(self, time_s: float) -> None:
        self.ns = max(self.ns, round(time_s * NS_PER_S))


def timeline_of(*events: Event, path: Path | None = None, seed: int = 1) -> GpuTimeline:
    timeline = GpuTimeline(CURVE, Noise(seed), start_ns=START_NS, path=path)
    for event in events:
        timeline.record(event)
    return timeline


def at_ns(seconds_s: float) -> int:
    return START_NS + round(seconds_s * NS_PER_S)


A_DAY = (
    LoadChanged(at_ns(100), loaded=True),
    LimitSet(at_ns(250.5), 200.0),
    LimitSet(at_ns(377.7), 137.5),
    LoadChanged(at_ns(500), loaded=False),
    LoadChanged(at_ns(520), loaded=True),
    LimitSet(at_ns(700.1), 300.0),
)


class SimulationBench:
    """A simulated GPU on a manual clock."""

    counter_period_s = 0.1

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._gpu = SimulatedGpu(timeline_of(), clock=self._clock)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Gpu]:
        yield self._gpu

    def set_busy(self) -> None:
        self._gpu.timeline.record(LoadChanged(self._clock.ns, loaded=True))

    async def pass_time(self, duration_s: float) -> None:
        self._clock.ns += round(duration_s * NS_PER_S)


class TestContract(GpuContract):
    @pytest.fixture
    def bench(self) -> SimulationBench:
        return SimulationBench()


def test_the_energy_is_the_integral_of_the_power() -> None:
    timeline = timeline_of(*A_DAY)
    step_ns = NS_PER_S // 100
    middles_ns = range(START_NS + step_ns // 2, at_ns(900), step_ns)
    summed_j = sum(timeline.power_w(time_ns) for time_ns in middles_ns) / 100
    assert timeline.energy_j(at_ns(900)) == pytest.approx(summed_j, rel=1e-9)


def test_a_board_that_was_idle_is_cool_and_draws_less_until_it_has_warmed() -> None:
    timeline, noise = timeline_of(LoadChanged(at_ns(100), loaded=True)), Noise(1)
    warmer_k = K_PER_W * (235.21 - 30.0)
    for since_s, left in ((0.0, 1.0), (TIME_CONSTANT_S, np.exp(-1.0)), (900.0, 0.0)):
        time_ns = at_ns(100.0 + since_s)
        less_ratio = timeline.power_w(time_ns) / 235.21 - noise.power_ratio(100.0 + since_s)
        assert less_ratio == pytest.approx(-POWER_RATIO_PER_K * warmer_k * left, abs=1e-6)
        assert timeline.temperature_c(time_ns) == pytest.approx(
            steady_temperature_c(235.21) - warmer_k * left, abs=1e-4
        )
    assert timeline.temperature_c(at_ns(99)) == steady_temperature_c(30.0)


def test_for_a_moment_at_the_top_a_board_draws_less_than_there_for_long() -> None:
    timeline = timeline_of(
        LoadChanged(at_ns(0), loaded=True), LimitSet(at_ns(1_000), 200.0), LimitSet(at_ns(2_000), 300.0)
    )
    cooler_ratio = POWER_RATIO_PER_K * K_PER_W * (235.21 - CURVE.power_w(200.0))
    seen_w = (timeline.energy_j(at_ns(2_010)) - timeline.energy_j(at_ns(2_000))) / 10
    left = (1 - np.exp(-10 / TIME_CONSTANT_S)) * TIME_CONSTANT_S / 10
    assert seen_w / 235.21 == pytest.approx(Noise(1).power_ratio(2_000.0) - cooler_ratio * left, abs=1e-6)


def test_the_progress_is_the_integral_of_the_speed() -> None:
    timeline = timeline_of(*A_DAY)
    pieces = [(100, 250.5, 300.0), (250.5, 377.7, 200.0), (377.7, 500, 137.5), (520, 700.1, 137.5), (700.1, 900, 300.0)]
    summed = sum((end_s - begin_s) * CURVE.iterations_per_s(limit_w) for begin_s, end_s, limit_w in pieces)
    assert timeline.done_iterations(at_ns(900)) == pytest.approx(summed, rel=1e-12)


@given(goal=st.floats(min_value=0.0, max_value=800.0))
def test_work_is_reached_exactly_when_the_progress_says_so_across_changes_of_limit(goal: float) -> None:
    timeline = timeline_of(*A_DAY)
    reached_ns = timeline.reached_ns(goal, not_before_ns=START_NS)
    assert reached_ns is not None
    assert timeline.done_iterations(reached_ns) >= goal - 1e-9
    assert timeline.done_iterations(reached_ns - 2) <= goal


def test_work_is_never_reached_without_a_job() -> None:
    assert timeline_of().reached_ns(1.0, not_before_ns=START_NS) is None


@given(order=st.permutations(A_DAY))
def test_events_give_the_same_timeline_in_whatever_order_they_are_seen(order: list[Event]) -> None:
    seen, expected = timeline_of(*order), timeline_of(*A_DAY)
    assert seen.segments == expected.segments


def test_two_readers_of_one_file_agree_and_see_each_others_events(tmp_path: Path) -> None:
    one, other = (timeline_of(path=tmp_path / "gpu.events") for _ in range(2))
    for event in A_DAY[:3]:
        one.record(event)
    for event in A_DAY[3:]:
        other.record(event)
    one.refresh()
    assert one.segments == other.segments == timeline_of(*A_DAY).segments
    one.close()
    other.close()


def test_a_record_that_is_half_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "gpu.events"
    writer, reader = EventFile(path), EventFile(path)
    writer.append(LimitSet(1, 250.0))
    record = path.read_bytes()
    with path.open("ab") as file:
        file.write(record[:10])
        file.flush()
        assert reader.read_new() == [LimitSet(1, 250.0)]
        file.write(record[10:])
    assert reader.read_new() == [LimitSet(1, 250.0)]
    writer.close()
    reader.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpu.events"
    path.write_bytes(b"x" * 24)
    with pytest.raises(ValueError, match="event file"):
        timeline_of(path=path)


async def test_the_counter_moves_on_a_grid_of_a_tenth_of_a_second() -> None:
    clock = ManualClock()
    gpu = SimulatedGpu(timeline_of(LoadChanged(START_NS, loaded=True)), clock=clock)
    counted_j = []
    for tick in range(100):
        clock.ns = START_NS + tick * 10_000_000
        counted_j.append((await gpu.read_sample()).energy_j)
    assert [counted_j.index(value) for value in sorted({c for c in counted_j if c is not None})] == [*range(0, 100, 10)]
    assert counted_j[90] == pytest.approx(gpu.timeline.energy_j(at_ns(0.9)), abs=0.1 * 235.21 * 0.06)


async def test_the_meters_scatter_as_those_of_an_h100() -> None:
    """Means of instants as measured there: 1.5 % in half a second, of a reading 7 %; a step of the counter 2.2 %."""
    timeline = timeline_of(LoadChanged(START_NS, loaded=True))
    times_ns = range(at_ns(1_000), at_ns(1_800), NS_PER_S // 10)
    steps_j = np.diff([timeline.counted_j(time_ns) for time_ns in times_ns])
    expected_j = np.diff([timeline.energy_j(time_ns) for time_ns in times_ns])
    instants = np.array([timeline.instant_power_w(time_ns) / timeline.power_w(time_ns) for time_ns in times_ns])
    assert np.std(steps_j / expected_j) == pytest.approx(0.0212, rel=0.1)
    assert np.corrcoef(steps_j[1:] / expected_j[1:], steps_j[:-1] / expected_j[:-1])[0, 1] == pytest.approx(
        -0.5, abs=0.1
    )
    assert np.std(instants) == pytest.approx(0.07, rel=0.1)
    assert np.std(instants.reshape(-1, 5).mean(axis=1)) == pytest.approx(0.0154, rel=0.15)
    assert instants.mean() == pytest.approx(1.0, abs=0.003)
    assert timeline.counted_j(at_ns(1_800)) == pytest.approx(timeline.energy_j(at_ns(1_800)), abs=3)


async def test_instant_readings_are_new_every_100_ms_and_the_same_for_all() -> None:
    one, other = timeline_of(), timeline_of()
    seen_w = [one.instant_power_w(START_NS + tick * 10_000_000) for tick in range(100)]
    assert len(set(seen_w)) == 10
    assert [other.instant_power_w(START_NS + tick * 10_000_000) for tick in reversed(range(100))] == seen_w[::-1]


async def test_the_temperature_is_told_in_whole_degrees() -> None:
    clock = ManualClock()
    gpu = SimulatedGpu(timeline_of(LoadChanged(START_NS, loaded=True)), clock=clock)
    seen_c = []
    for clock.ns in range(START_NS, at_ns(400), NS_PER_S):
        seen_c.append((await gpu.read_sample()).temperature_c)
    assert list(dict.fromkeys(seen_c)) == [float(value) for value in range(31, 42)]  # it warms, degree by degree


async def test_the_counter_never_goes_backwards_when_an_event_is_seen_late(tmp_path: Path) -> None:
    clock = ManualClock(at_ns(100))
    gpu = SimulatedGpu(timeline_of(LoadChanged(START_NS, loaded=True), path=tmp_path / "gpu.events"), clock=clock)
    before = await gpu.read_sample()
    job = GpuTimeline(CURVE, Noise(1), start_ns=START_NS, path=tmp_path / "gpu.events")
    job.record(LoadChanged(at_ns(90), loaded=False))
    after = await gpu.read_sample()
    assert before.energy_j == after.energy_j
    assert gpu.timeline.energy_j(at_ns(100)) < (before.energy_j or 0.0)
    assert after.utilization_ratio == 0.0
    clock.ns = at_ns(1_000)
    assert (await gpu.read_sample()).energy_j == job.counted_j(at_ns(1_000))
    job.close()
    gpu.timeline.close()


def test_noise_depends_on_the_seed_and_the_place_only() -> None:
    one, same, other = Noise(1), Noise(1), Noise(2)
    assert same.power_ratio(50_000.0) == one.power_ratio(50_000.0) != other.power_ratio(50_000.0)
    assert list(islice(same.iterations(5_000), 10)) == list(islice(one.iterations(), 5_010))[5_000:]
    assert one.noisy_time_s(123_456.7) == same.noisy_time_s(123_456.7)


@pytest.mark.parametrize("levels", [NoiseLevels(), H100.levels], ids=["default", "h100"])
def test_noise_has_the_mean_and_the_spread_that_it_says(levels: NoiseLevels) -> None:
    noise, n_group = Noise(3, levels), levels.group_iterations
    work = np.concatenate([noise.work_of_chunk(chunk) for chunk in range(25)])
    groups = work.reshape(-1, n_group).mean(axis=1)
    power = np.array([noise.power_ratio((block + 0.5) * levels.power_block_s) for block in range(10_000)])
    assert work.mean() == pytest.approx(1.0, abs=5e-4)
    assert work.std() == pytest.approx(np.hypot(levels.iteration_ratio, levels.group_ratio), rel=0.02)
    of_groups = np.hypot(levels.iteration_ratio / math.sqrt(n_group), levels.group_ratio)
    assert groups.std() == pytest.approx(of_groups, rel=0.1)
    assert power.mean() == pytest.approx(1.0, abs=5e-4)
    assert power.std() == pytest.approx(levels.power_ratio, rel=0.03)


def test_the_integral_of_the_noise_has_no_steps() -> None:
    noise = Noise(4)
    times_s = [noise.noisy_time_s(tenth / 10) for tenth in range(500_000)]
    assert max(b - a for a, b in pairwise(times_s)) < 0.1 * 1.06
    assert min(b - a for a, b in pairwise(times_s)) > 0.1 * 0.94


async def test_the_default_simulation_is_one_a40_that_works_at_its_default_limit() -> None:
    clock = ManualClock()
    backend: Backend = default_simulation(clock)
    (gpu,) = await backend.open()
    clock.ns = at_ns(10)
    sample = await gpu.read_sample()
    assert gpu.model == "NVIDIA A40 (simulated)"
    assert (await gpu.read_limit()).enforced_power_limit_w == 300.0
    assert sample.power_w == pytest.approx(235.21, rel=0.05)
    assert "a40-resnet50" in backend.driver
    await backend.close()


async def test_an_idle_gpu_draws_its_idle_power_whatever_its_limit() -> None:
    clock = ManualClock()
    (gpu,) = await default_simulation(clock, loaded=False).open()
    await gpu.set_power_limit(100.0)
    assert (await gpu.read_sample()).power_w == pytest.approx(30.0, rel=0.05)


def test_a_name_has_one_uuid_and_another_name_another() -> None:
    assert simulated_uuid("a") == simulated_uuid("a") != simulated_uuid("b")
    assert simulated_uuid("a").startswith("GPU-simulated-")


async def test_closing_the_backend_closes_every_file_of_events(tmp_path: Path) -> None:
    gpu = SimulatedGpu(timeline_of(path=tmp_path / "gpu.events"), clock=ManualClock())
    backend = SimulatedBackend([gpu])
    await backend.close()
    await backend.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        gpu.timeline.refresh()
