"""The contract of `Gpu`, for those that live on virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controller.ports import Gpu
from tests.controller.gpu.gpu_contract import GpuContract
from tests.fakes import FakeGpu


class FakeBench:
    """The fake on the bench; it is always busy."""

    counter_period_s = 0.1

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Gpu]:
        yield FakeGpu()

    def set_busy(self) -> None:
        pass

    async def pass_time(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


class TestFakeGpu(GpuContract):
    @pytest.fixture
    def bench(self) -> FakeBench:
        return FakeBench()
