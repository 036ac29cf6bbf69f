"""A clock that is stepped in the middle of a run, as where a node had come up with a wrong one."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from policies.signal import Signal
from publishers.reports import GpuEnergy
from publishers.wire import decode
from tests.fakes import MIDNIGHT_S, NAP_S, FixedProvider, LoopClock
from tests.scenarios.site import ANY_PROVIDER, HOUR_S, NODE, TOPICS, Site, Training, prior_gpu, rate_per_s

PLAN_S = 300.0


class SteppedClock(LoopClock):
    """A wall clock that can be stepped; it sleeps as that of the system does."""

    def __init__(self) -> None:
        super().__init__()
        self.step_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.step_s

    async def sleep_until(self, time_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + time_s - self.now_s()
        while (left_s := min(time_s - self.now_s(), deadline_s - loop.time())) > 1e-6:  # noqa: ASYNC110 — see `LoopClock`
            await asyncio.sleep(min(left_s, NAP_S))
        await asyncio.sleep(0)


def a_wave() -> FixedProvider:
    """Return a carbon intensity that follows the hour of the day."""
    starts_s = np.arange(-720.0, 240.0, dtype=np.float64) * HOUR_S + MIDNIGHT_S
    values = 300.0 + 200.0 * np.cos((starts_s - MIDNIGHT_S) / 86_400 * 2 * np.pi)
    signal = Signal(
        kind="average",
        zone="XX",
        source="test",
        unit="g/kWh",
        starts_s=starts_s,
        values=values,
        ends_s=float(starts_s[-1] + HOUR_S),
        issued_at_s=MIDNIGHT_S,
    )
    return FixedProvider(signal)


@pytest.mark.parametrize("step_s", [-6 * HOUR_S, 6 * HOUR_S])
async def test_a_clock_that_is_stepped_stops_neither_the_plan_nor_the_account(tmp_path: Path, step_s: float) -> None:
    gpu, clock = prior_gpu(), SteppedClock()
    quick = ("profiler.settle_s=2", "profiler.window_s=10", "energy.period_s=5", f"plan.period_s={PLAN_S:g}")
    carbon = ("signal.kind=carbon", "signal.zone=XX", "plan.max_slowdown=1.1", ANY_PROVIDER)
    site = Site(tmp_path, [gpu], *quick, *carbon, providers=[a_wave()])
    site.clock = clock
    job = Training(site, rate=lambda limit_w: 10 * rate_per_s(limit_w))
    job._clock = LoopClock()
    async with site.controlled():
        await job.train(1_200)
        before_s, n_told, n_changes = site.energies()[-1].duration_s, meter_times(site), len(gpu.history)
        clock.step_s = step_s
        await job.train(1_200)
        assert site.energies()[-1].duration_s == pytest.approx(before_s + 1_200, abs=20)
        assert meter_times(site) - n_told == pytest.approx(240, abs=5)
        assert len(gpu.history) >= n_changes + 1, "planned anew, with the value of the hour"


def meter_times(site: Site) -> int:
    """Return how often a GPU's energy was told."""
    return len([decode(p, GpuEnergy) for p in site.bus.payloads(TOPICS.gpu(NODE, site.gpus[0].uuid, "energy"))])
