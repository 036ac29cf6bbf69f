"""NVML: the real pynvml on a stub library whose GPUs follow a measured curve, and may hang."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from controller.errors import (
    BackendError,
    DriverUnavailableError,
    GpuError,
    GpuLimitError,
    GpuLostError,
    GpuNotSupportedError,
    GpuPermissionError,
    GpuSuspectError,
)
from controller.gpu.nvml import calls, errors
from controller.gpu.nvml.backend import NvmlBackend, NvmlGpu
from controller.ports import Backend, Gpu
from tests.controller.gpu.gpu_contract import GpuContract
from tests.live.nvml_stub.backend import ENERGY, LONG_HANG_MS, POWER, SET, opened
from tests.live.nvml_stub.machine import STATE_VARIABLE, StubMachine

pytestmark = pytest.mark.live
STARTED_S = 1.0
"""Time enough for a thread to start a call: one that it did not start in time is dropped, and does not hang."""


class NvmlBench:
    """The stub's first GPU."""

    counter_period_s = 0.01

    def __init__(self, machine: StubMachine) -> None:
        self._machine = machine

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Gpu]:
        async with opened() as (gpu,):
            yield gpu

    def set_busy(self) -> None:
        self._machine.gpu().busy = True

    async def pass_time(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


class TestContract(GpuContract):
    @pytest.fixture
    def bench(self, nvml_in_process: StubMachine) -> NvmlBench:
        nvml_in_process.gpu().raw.counter_period_ns = round(NvmlBench.counter_period_s * 1e9)
        return NvmlBench(nvml_in_process)


async def test_the_gpus_of_the_node_are_found(nvml_in_process: StubMachine) -> None:
    backend: Backend = NvmlBackend()
    (gpu,) = await backend.open()
    assert (gpu.uuid, gpu.index, gpu.model) == (nvml_in_process.gpu().uuid, 0, "NVIDIA A40")
    assert backend.driver == "NVIDIA 535.104.05 (NVML 12.535.104.05)"
    await backend.close()
    assert nvml_in_process.calls("nvmlShutdown") == 1


async def test_a_node_without_gpus_is_an_empty_list(nvml_in_process: StubMachine) -> None:
    nvml_in_process.raw.n_gpus = 0
    async with opened() as gpus:
        assert list(gpus) == []


async def test_a_gpu_that_fails_at_opening_is_left_out_with_its_reason(
    nvml_in_process: StubMachine, caplog: pytest.LogCaptureFixture
) -> None:
    nvml_in_process.gpu().fail("nvmlDeviceGetUUID", 15)
    backend = NvmlBackend()
    assert list(await backend.open()) == []
    (fault,) = backend.faults
    assert isinstance(fault, GpuLostError)
    assert "GPU 0 is not managed until it answers" in caplog.text
    assert list(await backend.open_late()) == []
    nvml_in_process.gpu().fail("nvmlDeviceGetUUID", 0)
    (gpu,) = await backend.open_late()
    assert (gpu.uuid, list(backend.faults)) == (nvml_in_process.gpu().uuid, [])
    assert list(await backend.open_late()) == []
    await backend.close()


async def test_a_driver_that_counts_no_gpu_is_asked_again(nvml_in_process: StubMachine) -> None:
    nvml_in_process.raw.n_gpus = 0
    backend = NvmlBackend()
    assert list(await backend.open()) == []
    assert [str(fault) for fault in backend.faults] == ["the driver counts no GPU"]
    assert list(await backend.open_late()) == []
    nvml_in_process.raw.n_gpus = 1
    (gpu,) = await backend.open_late()
    assert (gpu.uuid, list(backend.faults)) == (nvml_in_process.gpu().uuid, [])
    await backend.close()
    assert nvml_in_process.calls("nvmlShutdown") == nvml_in_process.calls("nvmlInitWithFlags")


async def test_a_board_that_is_listed_late_is_opened_and_moves_the_indices(nvml_in_process: StubMachine) -> None:
    raw, first = nvml_in_process.raw, nvml_in_process.gpu()
    backend = NvmlBackend()
    (known,) = await backend.open()
    n_asked = first.calls("nvmlDeviceGetUUID")
    assert list(await backend.open_late()) == []
    assert first.calls("nvmlDeviceGetUUID") == n_asked, "the boards are only counted"
    raw.gpus[1] = raw.gpus[0]
    raw.gpus[0].uuid, raw.n_gpus = b"GPU-late", 2
    (late,) = await backend.open_late()
    assert ((late.uuid, late.index), known.index) == (("GPU-late", 0), 1)
    assert (list(await backend.open_late()), list(backend.faults)) == ([], [])
    assert nvml_in_process.calls("nvmlShutdown") == 0, "what is held stays held"
    await backend.close()


async def test_a_count_that_fails_hides_no_gpu_that_answers_late(nvml_in_process: StubMachine) -> None:
    nvml_in_process.gpu().fail("nvmlDeviceGetUUID", 15)
    backend = NvmlBackend()
    assert list(await backend.open()) == []
    nvml_in_process.gpu().fail("nvmlDeviceGetUUID", 0)
    nvml_in_process.fail("nvmlDeviceGetCount_v2", 999)
    assert len(await backend.open_late()) == 1
    nvml_in_process.fail("nvmlDeviceGetCount_v2", 0)
    await backend.close()


async def test_a_driver_that_comes_late_is_opened_then(nvml_in_process: StubMachine) -> None:
    nvml_in_process.fail("nvmlInitWithFlags", 9)
    backend = NvmlBackend()
    with pytest.raises(DriverUnavailableError):
        await backend.open()
    assert list(await backend.open_late()) == []
    assert [type(fault) for fault in backend.faults] == [DriverUnavailableError]
    nvml_in_process.fail("nvmlInitWithFlags", 0)
    (gpu,) = await backend.open_late()
    assert list(backend.faults) == []
    assert (await gpu.read_limit()).requested_power_limit_w == 300.0
    await backend.close()


async def test_a_gpu_that_hangs_at_opening_is_asked_in_one_thread(nvml_in_process: StubMachine) -> None:
    nvml_in_process.gpu().hang("nvmlDeviceGetUUID", LONG_HANG_MS)
    backend = NvmlBackend(open_timeout_s=0.05)
    assert list(await backend.open()) == []
    n_threads = threading.active_count()
    for _ in range(5):
        assert list(await backend.open_late()) == []
    assert threading.active_count() == n_threads
    nvml_in_process.gpu().hang("nvmlDeviceGetUUID", 0)
    await backend.close()


@pytest.mark.parametrize(
    ("code", "advice"),
    [(9, "modprobe nvidia"), (18, "reboot"), (4, "/dev/nvidia"), (17, "/dev/nvidia"), (999, "kernel log")],
)
async def test_nvml_that_does_not_open_is_an_error_that_says_what_to_do(
    nvml_in_process: StubMachine, code: int, advice: str
) -> None:
    nvml_in_process.fail("nvmlInitWithFlags", code)
    with pytest.raises(BackendError, match=f"NVML error {code}.*{advice}"):
        await NvmlBackend().open()


async def test_nvml_that_hangs_while_opening_is_an_error(nvml_in_process: StubMachine) -> None:
    nvml_in_process.hang("nvmlDeviceGetCount_v2", LONG_HANG_MS)
    with pytest.raises(BackendError, match="the driver hangs"):
        await NvmlBackend(open_timeout_s=0.05).open()
    nvml_in_process.hang("nvmlDeviceGetCount_v2", 0)


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (2, GpuLimitError, r"150 W, where the GPU accepts 100 to 300 W: .*gpu\.min_power_limit_w"),
        (3, GpuNotSupportedError, "only observed"),
        (4, GpuPermissionError, "CAP_SYS_ADMIN"),
        (15, GpuLostError, "fallen off the bus"),
        (16, GpuLostError, "--gpu-reset"),
        (17, GpuError, "cgroup"),
        (18, GpuError, "reboot"),
        (999, GpuError, "dmesg"),
        (777, GpuError, "NVML error 777"),
    ],
)
async def test_a_write_that_fails_is_an_error_that_says_what_to_do(
    nvml_in_process: StubMachine, code: int, kind: type[GpuError], advice: str
) -> None:
    nvml_in_process.gpu().fail(SET, code)
    async with opened() as (gpu,):
        with pytest.raises(kind, match=advice) as caught:
            await gpu.set_power_limit(150.0)
    assert (type(caught.value), caught.value.code) == (kind, code)
    assert (caught.value.gpu_uuid, caught.value.operation) == (gpu.uuid, "set_power_limit")


async def test_a_read_that_fails_is_an_error_that_says_what_to_do(nvml_in_process: StubMachine) -> None:
    nvml_in_process.gpu().fail("nvmlDeviceGetEnforcedPowerLimit", 15)
    async with opened() as (gpu,):
        with pytest.raises(GpuLostError, match=r"read_limit on GPU-.*fallen off the bus"):
            await gpu.read_limit()


async def test_without_permission_a_limit_can_be_read_but_not_written(nvml_in_process: StubMachine) -> None:
    nvml_in_process.gpu().writable = False
    async with opened() as (gpu,):
        with pytest.raises(GpuPermissionError):
            await gpu.set_power_limit(150.0)
        assert (await gpu.read_limit()).requested_power_limit_w == 300.0


@pytest.mark.parametrize("limit_w", [float("nan"), float("inf"), -150.0, 0.0, 4_294_967.296 + 150.0])
async def test_a_number_that_would_wrap_into_a_valid_limit_is_never_sent(
    nvml_in_process: StubMachine, limit_w: float
) -> None:
    async with opened() as (gpu,):
        with pytest.raises(GpuLimitError):
            await gpu.set_power_limit(limit_w)
    assert nvml_in_process.gpu().set_calls == 0


async def test_a_fraction_of_a_watt_is_rounded_to_the_milliwatt(nvml_in_process: StubMachine) -> None:
    async with opened() as (gpu,):
        await gpu.set_power_limit(150.0006)
    assert nvml_in_process.gpu().requested_power_limit_w == 150.001


async def test_a_limit_from_outside_lowers_what_is_enforced_only(nvml_in_process: StubMachine) -> None:
    nvml_in_process.gpu().set_external_limit_w(180.0)
    async with opened() as (gpu,):
        live = await gpu.read_limit()
    assert (live.requested_power_limit_w, live.enforced_power_limit_w) == (300.0, 180.0)


async def test_a_driver_without_power_fields_is_read_by_the_old_calls(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    stub.raw.has_power_fields, stub.busy = 0, True
    async with opened() as (gpu,):
        sample = await gpu.read_sample()
        assert sample.power_w == pytest.approx(235.21)
        assert sample.instant_power_w is None, "it may be a mean of 1 s"
        assert (await gpu.read_limit()).requested_power_limit_w == 300.0
    assert stub.calls("nvmlDeviceGetPowerUsage") == 1
    assert stub.calls("nvmlDeviceGetPowerManagementLimit") == 1


async def test_a_new_driver_is_read_by_its_instant_power(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    stub.busy = True
    async with opened() as (gpu,):
        sample = await gpu.read_sample()
    assert sample.power_w == sample.instant_power_w == pytest.approx(235.21)
    assert stub.calls("nvmlDeviceGetPowerUsage") == 0


async def test_without_an_energy_counter_a_sample_has_no_energy(nvml_in_process: StubMachine) -> None:
    nvml_in_process.gpu().raw.has_energy_counter = 0
    async with opened() as (gpu,):
        sample = await gpu.read_sample()
    assert sample.energy_j is None
    assert sample.power_w == 30.0


async def test_a_board_may_say_what_cannot_be(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    stub.raw.told_power_mw, stub.raw.is_counter_stuck, stub.busy = 3_700_000_000, 1, True
    async with opened() as (gpu,):
        first = await gpu.read_sample()
        books_j = stub.raw.energy_mj
        last = await gpu.read_sample()
    assert (first.power_w, last.energy_j) == (3.7e6, first.energy_j)
    assert stub.raw.energy_mj > books_j, "the stub's own books go on"


@pytest.mark.parametrize("code", [errors.NO_DATA, errors.NO_PERMISSION, 27, 999])
async def test_each_meter_is_read_by_itself(nvml_in_process: StubMachine, code: int) -> None:
    stub = nvml_in_process.gpu()
    stub.raw.has_power_fields = 0
    async with opened() as (gpu,):
        stub.fail("nvmlDeviceGetPowerUsage", code)
        sample = await gpu.read_sample()
        assert (sample.power_w, sample.energy_j is None) == (None, False)
        stub.fail("nvmlDeviceGetTotalEnergyConsumption", code)
        with pytest.raises(GpuError):
            await gpu.read_sample()
        stub.fail("nvmlDeviceGetPowerUsage", 0)
        stub.fail("nvmlDeviceGetTemperature", code)
        stub.fail("nvmlDeviceGetUtilizationRates", code)
        sample = await gpu.read_sample()
        assert (sample.power_w, sample.energy_j) == (30.0, None)
        assert (sample.temperature_c, sample.utilization_ratio) == (None, None)


async def test_only_what_a_safe_write_needs_can_fail_a_reading_of_limits(
    nvml_in_process: StubMachine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_TOLD", set())
    stub = nvml_in_process.gpu()
    stub.fail("nvmlDeviceGetPowerManagementDefaultLimit", 999)
    stub.fail("nvmlDeviceGetEnforcedPowerLimit", 999)
    async with opened() as (gpu,):
        await gpu.read_range()
        limits, live = await gpu.read_range(), await gpu.read_limit()
        assert (limits.max_power_limit_w, limits.default_power_limit_w) == (300.0, None)
        assert live.enforced_power_limit_w == live.requested_power_limit_w == 300.0
        await gpu.set_power_limit(200.0)
        assert stub.requested_power_limit_w == 200.0
        stub.fail("nvmlDeviceGetPowerManagementLimitConstraints", 999)
        with pytest.raises(GpuError):
            await gpu.read_range()
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == [
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetEnforcedPowerLimit",
    ]


async def test_a_counter_that_fails_at_the_start_is_read_once_it_answers(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    stub.fail("nvmlDeviceGetTotalEnergyConsumption", 999)
    async with opened() as (gpu,):
        assert (await gpu.read_sample()).energy_j is None
        stub.fail("nvmlDeviceGetTotalEnergyConsumption", 0)
        assert (await gpu.read_sample()).energy_j is not None


async def test_what_a_gpu_does_not_support_is_none(nvml_in_process: StubMachine) -> None:
    stub = nvml_in_process.gpu()
    entry_points = (
        *("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature"),
        *(f"nvmlDeviceGetComputeRunningProcesses_v{version}" for version in (2, 3)),
        "nvmlDeviceGetPersistenceMode",
    )
    for entry_point in entry_points:
        stub.fail(entry_point, errors.NOT_SUPPORTED)
    async with opened() as (gpu,):
        sample = await gpu.read_sample()
        assert (sample.utilization_ratio, sample.temperature_c) == (None, None)
        assert await gpu.read_processes() is None
        assert await gpu.read_persistence() is None


@pytest.mark.parametrize("is_persistent", [True, False])
async def test_persistence_mode_is_read_and_never_set(nvml_in_process: StubMachine, is_persistent: bool) -> None:
    nvml_in_process.gpu().raw.is_persistent = is_persistent
    async with opened() as (gpu,):
        assert await gpu.read_persistence() is is_persistent


async def test_the_processes_on_a_gpu_are_seen(nvml_in_process: StubMachine) -> None:
    nvml_in_process.gpu().pids = frozenset({4711, 815})
    async with opened() as (gpu,):
        assert await gpu.read_processes() == frozenset({4711, 815})


async def test_a_driver_without_the_newest_list_of_processes_is_asked_for_the_one_before(
    nvml_in_process: StubMachine,
) -> None:
    stub = nvml_in_process.gpu()
    stub.pids = frozenset({4711, 815})
    stub.fail("nvmlDeviceGetComputeRunningProcesses_v3", errors.FUNCTION_NOT_FOUND)
    async with opened() as (gpu,):
        assert await gpu.read_processes() == frozenset({4711, 815})


async def test_a_list_with_entries_of_another_size_is_not_believed(
    nvml_in_process: StubMachine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_TOLD", set())
    stub = nvml_in_process.gpu()
    stub.pids, stub.raw.has_wide_processes = frozenset({4711, 815, 99}), 1
    async with opened() as (gpu,):
        assert await gpu.read_processes() == frozenset({4711, 815, 99}), "by the older list"
        stub.fail("nvmlDeviceGetComputeRunningProcesses_v2", errors.FUNCTION_NOT_FOUND)
        assert await gpu.read_processes() is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert "lists process 0, which is a fault of the driver" in said


async def test_processes_without_permission_are_unknown(nvml_in_process: StubMachine) -> None:
    nvml_in_process.gpu().fail("nvmlDeviceGetComputeRunningProcesses_v3", errors.NO_PERMISSION)
    async with opened() as (gpu,):
        assert await gpu.read_processes() is None


@pytest.mark.parametrize(("mode", "is_partitioned"), [(None, False), (False, False), (True, True)])
async def test_a_partitioned_gpu_is_recognised(
    nvml_in_process: StubMachine, mode: bool | None, is_partitioned: bool
) -> None:
    nvml_in_process.gpu().set_mig(mode)
    async with opened() as (gpu,):
        assert await gpu.read_mig() is is_partitioned


@pytest.mark.parametrize("name", ["GPU-1", b"GPU-1"])
def test_names_are_text_with_old_and_new_bindings(name: bytes | str) -> None:
    assert calls.as_text(name) == "GPU-1"


@pytest.fixture
def released(nvml_in_process: StubMachine) -> Iterator[StubMachine]:
    """End what hangs when the test ends, so that no thread outlives it for long."""
    yield nvml_in_process
    nvml_in_process.gpu().hang(POWER, 0)
    nvml_in_process.gpu().hang(ENERGY, 0)
    nvml_in_process.gpu().hang(SET, 0)


async def test_a_hanging_gpu_is_suspect_and_gets_no_calls_until_it_answers(released: StubMachine) -> None:
    stub = released.gpu()
    async with opened(write_timeout_s=STARTED_S) as (gpu,):
        stub.hang(SET, LONG_HANG_MS)
        await _suspect_write(gpu)
        assert gpu.is_suspect
        n_read = stub.calls(ENERGY)
        for call in (gpu.set_power_limit(150.0), gpu.read_sample()):
            with pytest.raises(GpuSuspectError, match="not sent: set_power_limit has not returned"):
                await call
        assert (stub.set_calls, stub.calls(ENERGY)) == (1, n_read)
        stub.hang(SET, 0)
        await _until_answering(gpu)
        await gpu.set_power_limit(160.0)
    assert stub.requested_power_limit_w == 160.0


async def test_a_meter_that_hangs_is_read_no_more_and_keeps_no_limit_from_being_set(released: StubMachine) -> None:
    stub = released.gpu()
    async with opened(read_timeout_s=STARTED_S) as (gpu,):
        stub.hang(ENERGY, LONG_HANG_MS)
        with pytest.raises(GpuSuspectError, match="no answer in 1 s"):
            await gpu.read_sample()
        n_read = stub.calls(ENERGY)
        with pytest.raises(GpuSuspectError, match="not sent: read_sample has not returned"):
            await gpu.read_sample()
        assert (gpu.is_suspect, stub.calls(ENERGY)) == (True, n_read)
        await gpu.set_power_limit(150.0)
        assert (await gpu.read_limit()).requested_power_limit_w == 150.0
        stub.hang(ENERGY, 0)
        await _until_answering(gpu)
        assert (await gpu.read_sample()).energy_j is not None


async def test_a_slow_reading_of_the_energy_counter_delays_no_limit(released: StubMachine) -> None:
    stub = released.gpu()
    async with opened() as (gpu,), asyncio.TaskGroup() as tasks:
        n_read = stub.calls(ENERGY)
        stub.hang(ENERGY, LONG_HANG_MS)
        reading = tasks.create_task(gpu.read_sample())
        while stub.calls(ENERGY) == n_read:  # noqa: ASYNC110 — a thread has no event to wait for
            await asyncio.sleep(0.001)
        await gpu.set_power_limit(150.0)
        assert (await gpu.read_limit()).requested_power_limit_w == 150.0
        assert not reading.done()
        stub.hang(ENERGY, 0)
    assert reading.result().energy_j is not None


async def _until_answering(gpu: NvmlGpu) -> None:
    while gpu.is_suspect:  # noqa: ASYNC110 — a thread has no event to wait for; the test's own deadline bounds it
        await asyncio.sleep(0.005)


async def test_the_event_loop_goes_on_while_a_gpu_hangs(released: StubMachine) -> None:
    stub = released.gpu()
    stub.hang(SET, LONG_HANG_MS)
    n_turns = 0
    async with opened(write_timeout_s=STARTED_S) as (gpu,), asyncio.TaskGroup() as tasks:
        write = tasks.create_task(_suspect_write(gpu))
        while not write.done():
            await asyncio.sleep(0.005)
            n_turns += 1
    assert n_turns > 10


async def _suspect_write(gpu: NvmlGpu) -> None:
    with pytest.raises(GpuSuspectError):
        await gpu.set_power_limit(150.0)


async def test_one_hanging_gpu_leaves_the_others_alone(released: StubMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = StubMachine.create(released.library_file, released.state_file.with_name("pair"), n_gpus=2)
    monkeypatch.setenv(STATE_VARIABLE, str(machine.state_file))
    async with opened(read_timeout_s=STARTED_S) as (hanging, healthy):
        machine.gpu(0).hang(POWER, LONG_HANG_MS)
        with pytest.raises(GpuSuspectError):
            await hanging.read_sample()
        await healthy.set_power_limit(150.0)
        assert (await healthy.read_limit()).requested_power_limit_w == 150.0
        machine.gpu(0).hang(POWER, 0)
    assert machine.gpu(0).set_calls == 0
