"""What every `Gpu` must do, whatever implements it: the fake, the simulation, NVML.

A test class of an implementation inherits `GpuContract` and has a fixture `bench` that returns a `GpuBench`.
"""

import itertools
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from controller.errors import GpuLimitError
from controller.ports import Gpu, Sample

NS_PER_S = 1_000_000_000
COUNTER_TICKS = 40
"""How many updates of the energy counter a measurement spans: each end may be off by one, so it is good to 5 %."""


class GpuBench(Protocol):
    """A GPU on the bench, at its default limit, and what the contract needs around it."""

    counter_period_s: float
    """How often the energy counter moves [s]."""

    def opened(self) -> AbstractAsyncContextManager[Gpu]:
        """Open the GPU for the time of a test."""
        ...

    def set_busy(self) -> None:
        """Let a job compute on it from now on."""
        ...

    async def pass_time(self, duration_s: float) -> None:
        """Let time pass on the clock by which it draws power."""
        ...


class GpuContract:
    """The contract, a test each."""

    async def test_its_identity_stays_the_same(self, bench: GpuBench) -> None:
        async with bench.opened() as gpu:
            before = (gpu.uuid, gpu.index, gpu.model)
            await gpu.set_power_limit((await gpu.read_range()).min_power_limit_w)
            assert (gpu.uuid, gpu.index, gpu.model) == before
            assert gpu.uuid
            assert gpu.model

    async def test_its_range_is_ordered(self, bench: GpuBench) -> None:
        async with bench.opened() as gpu:
            limits = await gpu.read_range()
        assert 0 < limits.min_power_limit_w < limits.max_power_limit_w
        assert limits.default_power_limit_w is not None
        assert limits.min_power_limit_w <= limits.default_power_limit_w <= limits.max_power_limit_w

    async def test_a_limit_that_was_set_reads_back_as_requested(self, bench: GpuBench) -> None:
        async with bench.opened() as gpu:
            limits = await gpu.read_range()
            middle_w = (limits.min_power_limit_w + limits.max_power_limit_w) / 2
            await gpu.set_power_limit(middle_w)
            assert (await gpu.read_limit()).requested_power_limit_w == pytest.approx(middle_w, abs=0.001)

    async def test_both_ends_of_its_range_are_accepted(self, bench: GpuBench) -> None:
        async with bench.opened() as gpu:
            limits = await gpu.read_range()
            for limit_w in (limits.min_power_limit_w, limits.max_power_limit_w):
                await gpu.set_power_limit(limit_w)
                assert (await gpu.read_limit()).requested_power_limit_w == limit_w

    @pytest.mark.parametrize("beyond_w", [-1.0, 1.0])
    async def test_a_limit_outside_its_range_is_refused_and_changes_nothing(
        self, bench: GpuBench, beyond_w: float
    ) -> None:
        async with bench.opened() as gpu:
            limits = await gpu.read_range()
            before = await gpu.read_limit()
            end_w = limits.min_power_limit_w if beyond_w < 0 else limits.max_power_limit_w
            with pytest.raises(GpuLimitError, match=f"{end_w + beyond_w:g}") as caught:
                await gpu.set_power_limit(end_w + beyond_w)
            assert caught.value.gpu_uuid == gpu.uuid
            assert await gpu.read_limit() == before

    async def test_never_more_is_enforced_than_requested(self, bench: GpuBench) -> None:
        async with bench.opened() as gpu:
            limits = await gpu.read_range()
            for limit_w in (limits.min_power_limit_w, limits.max_power_limit_w):
                await gpu.set_power_limit(limit_w)
                live = await gpu.read_limit()
                assert 0 < live.enforced_power_limit_w <= live.requested_power_limit_w

    async def test_the_time_of_its_samples_moves_on(self, bench: GpuBench) -> None:
        async with bench.opened() as gpu:
            times_ns = []
            for _ in range(3):
                times_ns.append((await gpu.read_sample()).time_ns)
                await bench.pass_time(0.001)
        assert all(earlier < later for earlier, later in itertools.pairwise(times_ns))

    async def test_its_energy_grows_by_power_times_time(self, bench: GpuBench) -> None:
        bench.set_busy()
        async with bench.opened() as gpu:
            first = await gpu.read_sample()
            last = await _sample_after(gpu, bench, first.time_ns + COUNTER_TICKS * bench.counter_period_s * NS_PER_S)
        assert first.energy_j is not None
        assert last.energy_j is not None
        mean_power_w = (last.energy_j - first.energy_j) / (last.time_ns - first.time_ns) * NS_PER_S
        assert mean_power_w == pytest.approx(last.power_w, rel=0.1)  # the counter's grid, and noise

    async def test_a_lower_limit_lowers_the_power_of_a_busy_gpu(self, bench: GpuBench) -> None:
        bench.set_busy()
        async with bench.opened() as gpu:
            limits = await gpu.read_range()
            await gpu.set_power_limit(limits.max_power_limit_w)
            unbound = await gpu.read_sample()
            await gpu.set_power_limit(limits.min_power_limit_w)
            bound = await _sample_after(gpu, bench, unbound.time_ns + NS_PER_S / 10)
        assert unbound.power_w is not None
        assert bound.power_w is not None
        assert bound.power_w < 0.8 * unbound.power_w

    async def test_its_meters_are_plausible(self, bench: GpuBench) -> None:
        async with bench.opened() as gpu:
            sample = await gpu.read_sample()
        assert sample.power_w is not None
        assert sample.power_w > 0
        assert sample.instant_power_w is None or sample.instant_power_w > 0
        assert sample.read_s >= 0
        assert sample.utilization_ratio is None or 0 <= sample.utilization_ratio <= 1
        assert sample.temperature_c is None or 0 < sample.temperature_c < 120

    async def test_its_power_can_be_read_without_its_counter(self, bench: GpuBench) -> None:
        async with bench.opened() as gpu:
            whole, power = await gpu.read_sample(), await gpu.read_power()
        assert power.energy_j is None
        assert (power.power_w or 0.0) > 0
        assert power.time_ns >= whole.time_ns
        assert (power.instant_power_w is None) == (whole.instant_power_w is None)

    async def test_its_tenants_can_be_read(self, bench: GpuBench) -> None:
        async with bench.opened() as gpu:
            assert await gpu.read_mig() is False
            processes = await gpu.read_processes()
        assert processes is None or all(pid > 0 for pid in processes)


async def _sample_after(gpu: Gpu, bench: GpuBench, time_ns: float) -> Sample:
    """Return the first sample after a time on the GPU's clock [ns]."""
    while (sample := await gpu.read_sample()).time_ns < time_ns:
        await bench.pass_time(bench.counter_period_s)
    return sample
