"""The stub's own faults, seen through the real adapter: what a driver does to a write that it has accepted."""

import pytest

from controller.errors import GpuLostError
from tests.live.conftest import eventually
from tests.live.nvml_stub.backend import opened
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
LATE_MS = 300


async def test_a_late_write_takes_effect_later_and_is_read_back_then(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    stub.fault_writes(delay_ms=LATE_MS)
    async with opened() as (gpu,):
        await gpu.set_power_limit(180.0)
        live = await gpu.read_limit()
        assert (live.requested_power_limit_w, live.enforced_power_limit_w) == (300.0, 300.0)
        await eventually(lambda: stub.requested_power_limit_w == 180.0)
        assert (await gpu.read_limit()).requested_power_limit_w == 180.0


async def test_a_newer_write_takes_the_place_of_a_late_one(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    stub.fault_writes(delay_ms=LATE_MS)
    async with opened() as (gpu,):
        await gpu.set_power_limit(180.0)
        stub.fault_writes()
        await gpu.set_power_limit(200.0)
        await eventually(lambda: stub.raw.pending_mw == 0)
    assert stub.requested_power_limit_w == 200.0


async def test_a_late_readback_shows_the_former_limit_while_the_new_one_holds(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    stub.fault_writes(readback_delay_ms=60_000)
    async with opened() as (gpu,):
        await gpu.set_power_limit(180.0)
        live = await gpu.read_limit()
        assert (live.requested_power_limit_w, live.enforced_power_limit_w) == (300.0, 180.0)
        assert stub.requested_power_limit_w == 180.0


async def test_ignored_writes_succeed_without_effect_until_their_number_is_used_up(
    nvml_in_process: StubMachine,
) -> None:
    stub = nvml_in_process.gpu()
    stub.fault_writes(n_ignored=1)
    async with opened() as (gpu,):
        await gpu.set_power_limit(180.0)
        assert (await gpu.read_limit()).requested_power_limit_w == 300.0
        await gpu.set_power_limit(190.0)
        assert (await gpu.read_limit()).requested_power_limit_w == 190.0
        stub.fault_writes(n_ignored=None)
        await gpu.set_power_limit(200.0)
        await gpu.set_power_limit(200.0)
    assert stub.requested_power_limit_w == 190.0
    assert [limit_w for _, limit_w in stub.writes] == [180.0, 190.0, 200.0, 200.0]


@pytest.mark.parametrize(("asked_w", "gets_w"), [(120.0, 150.0), (280.0, 250.0), (200.0, 200.0)])
async def test_a_clamped_write_gets_the_nearest_limit_allowed(
    nvml_in_process: StubMachine, asked_w: float, gets_w: float
) -> None:
    nvml_in_process.gpu().fault_writes(min_power_limit_w=150.0, max_power_limit_w=250.0)
    async with opened() as (gpu,):
        await gpu.set_power_limit(asked_w)
        assert (await gpu.read_limit()).requested_power_limit_w == gets_w


async def test_a_reloaded_driver_has_the_default_limit_and_a_counter_at_zero(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    stub.raw.energy_mj = 1e9
    async with opened() as (gpu,):
        await gpu.set_power_limit(180.0)
        stub.reload_driver()
        assert (await gpu.read_limit()).requested_power_limit_w == 300.0
        energy_j = (await gpu.read_sample()).energy_j
    assert energy_j is not None
    assert energy_j < 1e6


async def test_the_energy_counter_can_be_reset_alone(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    stub.raw.energy_mj = 1e9
    stub.set_requested_power_limit_w(180.0)
    stub.reset_energy_counter()
    assert stub.raw.energy_mj < 1e6
    assert stub.requested_power_limit_w == 180.0


async def test_a_lost_gpu_fails_each_call_until_it_is_back(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    async with opened() as (gpu,):
        stub.lost = True
        for call in (gpu.read_limit, gpu.read_sample, lambda: gpu.set_power_limit(180.0)):
            with pytest.raises(GpuLostError):
                await call()
        stub.lost = False
        await gpu.set_power_limit(180.0)
    assert stub.requested_power_limit_w == 180.0
