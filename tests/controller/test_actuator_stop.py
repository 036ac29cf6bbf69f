"""The actuator at the end and at the start: what a late answer, or somebody else, must not make us do wrong."""

import asyncio
from pathlib import Path

from controller.errors import GpuSuspectError
from tests.controller.actuator_bench import PRIOR_W, SOON_S, Bench
from tests.fakes import FakeGpu

BUSY = GpuSuspectError("no answer within 2 s", gpu_uuid="GPU-fake-0", operation="read_limit")


async def test_a_gpu_that_is_busy_at_the_stop_is_asked_again_until_it_has_its_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(150.0)
    bench.gpu.errors["read_limit"] = BUSY
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.actuator.stop())
        await asyncio.sleep(3.0)
        assert bench.gpu.requested_power_limit_w == 150.0
        del bench.gpu.errors["read_limit"]
    assert bench.gpu.requested_power_limit_w == PRIOR_W
    assert not bench.journal.entries


async def test_a_gpu_that_never_answers_delays_the_stop_by_ten_seconds_at_most(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(150.0)
    bench.gpu.errors["read_limit"] = BUSY
    begin_s = asyncio.get_running_loop().time()
    await bench.actuator.stop()
    assert asyncio.get_running_loop().time() - begin_s <= 10.5
    assert bench.journal.entries


async def test_a_limit_that_the_operator_set_after_a_kill_is_the_prior_one_from_then_on(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = PRIOR_W
    killed = Bench(tmp_path, gpu=gpu)
    async with killed.working():
        await killed.ask(150.0)
    gpu.set_externally(200.0)
    bench = Bench(tmp_path, gpu=gpu)
    async with bench.working():
        await bench.ask(125.0)
        assert gpu.requested_power_limit_w == 125.0
        await bench.release()
        await asyncio.sleep(SOON_S)
    assert gpu.requested_power_limit_w == 200.0
