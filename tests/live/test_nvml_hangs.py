"""NVML that hangs: its GPU is suspect, gets nothing more, and holds up neither the others nor the event loop."""

import asyncio
from collections.abc import Iterator

import pytest

from controller.errors import GpuSuspectError
from controller.gpu.nvml import NvmlGpu
from tests.live.nvml_stub import fixtures
from tests.live.nvml_stub.backend import LONG_HANG_MS, POWER, SET, opened
from tests.live.nvml_stub.machine import STATE_VARIABLE, StubMachine

pytestmark = pytest.mark.live
nvml_library = fixtures.nvml_library
nvml_machine = fixtures.nvml_machine
nvml_in_process = fixtures.nvml_in_process
BEGUN_S = 1.0
"""A call that is to hang has begun by then: one that its thread did not come to in its time is dropped instead."""


@pytest.fixture
def released(nvml_in_process: StubMachine) -> Iterator[StubMachine]:
    """End what hangs when the test ends, so that no thread outlives it for long."""
    yield nvml_in_process
    nvml_in_process.gpu().hang(POWER, 0)
    nvml_in_process.gpu().hang(SET, 0)


async def test_a_hanging_gpu_becomes_suspect_and_gets_nothing_more_until_it_answers(released: StubMachine) -> None:
    stub = released.gpu()
    async with opened(read_timeout_s=BEGUN_S) as (gpu,):
        stub.hang(POWER, LONG_HANG_MS)
        with pytest.raises(GpuSuspectError, match="no answer in 1 s"):
            await gpu.read_sample()
        assert gpu.is_suspect
        with pytest.raises(GpuSuspectError, match="not sent: read_sample has not returned"):
            await gpu.set_power_limit(150.0)
        assert stub.set_calls == 0
        stub.hang(POWER, 0)
        await _answers_again(gpu)
        await gpu.set_power_limit(150.0)
    assert stub.requested_power_limit_w == 150.0


async def _answers_again(gpu: NvmlGpu) -> None:
    while gpu.is_suspect:  # noqa: ASYNC110 — a thread has no event to wait for; the test's own deadline bounds it
        await asyncio.sleep(0.005)


async def test_the_event_loop_goes_on_while_a_gpu_hangs(released: StubMachine) -> None:
    stub = released.gpu()
    stub.hang(SET, LONG_HANG_MS)
    n_turns = 0
    async with opened(write_timeout_s=BEGUN_S) as (gpu,), asyncio.TaskGroup() as tasks:
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
    async with opened(read_timeout_s=BEGUN_S) as (hanging, healthy):
        machine.gpu(0).hang(POWER, LONG_HANG_MS)
        with pytest.raises(GpuSuspectError):
            await hanging.read_sample()
        await healthy.set_power_limit(150.0)
        assert (await healthy.read_limit()).requested_power_limit_w == 150.0
        machine.gpu(0).hang(POWER, 0)
    assert machine.gpu(0).set_calls == 0
