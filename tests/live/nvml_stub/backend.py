"""The real NVML backend on the stub, open for the time of a test, and the calls that tests let hang."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from controller.gpu.nvml.backend import NvmlBackend, NvmlGpu

SET = "nvmlDeviceSetPowerManagementLimit"
POWER = "nvmlDeviceGetFieldValues"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
LONG_HANG_MS = 30_000


@asynccontextmanager
async def opened(**timeouts_s: float) -> AsyncIterator[Sequence[NvmlGpu]]:
    backend = NvmlBackend(**timeouts_s)
    try:
        yield await backend.open()
    finally:
        await backend.close()
