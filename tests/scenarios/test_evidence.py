"""Whatever happens to a run, what it is said to have saved holds the truth, or nothing is said: on virtual time."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from controller.ports import LiveLimit
from publishers.messages.reports import RunEnergy
from publishers.training.reporting.run_summary import summarize
from tests.fakes import FakeGpu, LoopClock, SteppedClock
from tests.scenarios.site import (
    FINE,
    HOUR_S,
    POWER_RATIO,
    PRIOR_W,
    Site,
    Training,
    energy_j,
    prior_gpu,
    rate_per_s,
)

QUICK = ("profiler.settle_s=2", "profiler.window_s=10", "profiler.block_s=10")
ROUNDING = 1e-4
"""Of a record's ratios."""


async def end_of(site: Site, training: Training) -> RunEnergy:
    """End the training; return its final record."""
    training.publish_status("finished")
    await asyncio.sleep(60)
    final = site.energies()[-1]
    assert final.final
    return final


def check_what_is_told(final: RunEnergy, training: Training, *, speed_up: float = 1.0) -> None:
    """Check that the record tells what was saved, and that its intervals hold the truth."""
    assert training.begin_s is not None
    top_s = training.n_iterations / rate_per_s(PRIOR_W) / speed_up
    used_j = energy_j(training.gpus[0], training.begin_s, training.end_s)
    assert (final.evidence, final.iterations) == ("measured", training.n_iterations)
    told = (
        (final.saved_energy_ratio, final.saved_energy_ci90_ratio, 1 - used_j / (POWER_RATIO * PRIOR_W * top_s)),
        (final.slowdown_ratio, final.slowdown_ci90_ratio, (training.end_s - training.begin_s) / top_s),
    )
    for ratio, half, true_ratio in told:
        assert ratio is not None
        assert half is not None
        assert half <= 0.01
        assert ratio == pytest.approx(true_ratio, abs=half + ROUNDING)
    assert told[0][2] > 0.03


async def test_a_counter_that_was_reset_changes_nothing_of_what_is_told(tmp_path: Path) -> None:
    gpu, zero_j = prior_gpu(), 0.0
    gpu.tells = lambda sample: replace(sample, energy_j=(sample.energy_j or 0.0) - zero_j)
    site = Site(tmp_path, [gpu], FINE, *QUICK)
    training = Training(site)
    async with site.controlled():
        for _ in range(2):  # as by a driver that is loaded again
            await training.train(HOUR_S / 4)
            zero_j += (await gpu.read_sample()).energy_j or 0.0
        await training.train(HOUR_S / 2)
        check_what_is_told(await end_of(site, training), training)


async def test_a_restart_in_the_middle_of_a_look_changes_nothing_of_what_is_told(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE, *QUICK)
    training = Training(site)
    for _ in range(2):
        async with site.controlled():
            await training.train(HOUR_S / 4)
            while not (gpu.requested_power_limit_w == PRIOR_W and site.limits(gpu)[-1].reason == "refining"):
                await training.train(1.0)
        await training.train(20.0)
    async with site.controlled():
        await training.train(HOUR_S / 2)
        check_what_is_told(await end_of(site, training), training)


@pytest.mark.parametrize("step_s", [-6 * HOUR_S, 40.0])
async def test_a_clock_that_is_stepped_changes_nothing_of_what_is_told(tmp_path: Path, step_s: float) -> None:
    gpu, clock = prior_gpu(), SteppedClock()
    site = Site(tmp_path, [gpu], FINE, *QUICK)
    site.clock = clock
    training = Training(site)
    training._clock = LoopClock()
    async with site.controlled():
        await training.train(HOUR_S / 4)
        clock.step_s = step_s
        await training.train(HOUR_S / 2)
        check_what_is_told(await end_of(site, training), training)


class LateClock(LoopClock):
    """That of a process that gets the processor up to 3 s after it should."""

    LATE_S = 3.0

    def __init__(self) -> None:
        super().__init__()
        self._dice = np.random.default_rng(1)

    async def sleep_until(self, time_s: float) -> None:
        await super().sleep_until(max(time_s, self.now_s()) + self.LATE_S * self._dice.random())


class SlowToTell(FakeGpu):
    """A GPU whose driver takes a second to tell its limit."""

    async def read_limit(self) -> LiveLimit:
        live = await super().read_limit()
        await asyncio.sleep(1.0)
        return live


async def test_a_controller_that_is_late_and_a_slow_driver_change_nothing_of_what_is_told(tmp_path: Path) -> None:
    gpu = SlowToTell("GPU-fake-0")
    gpu.requested_power_limit_w, gpu.draw_w = PRIOR_W, lambda limit_w: POWER_RATIO * limit_w
    site = Site(tmp_path, [gpu], FINE, *QUICK)
    site.clock = LateClock()
    training = Training(site)
    training._clock = LoopClock()
    async with site.controlled():
        await training.train(HOUR_S * 3 / 4)
        check_what_is_told(await end_of(site, training), training)


async def test_of_one_iteration_there_is_no_number(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()])
    training = Training(site)
    async with site.controlled():
        await training.train_steps(1)
        final = await end_of(site, training)
    line = str(summarize("resnet50", "run-1", final, unmeasured=("", "")))
    assert (final.iterations, final.evidence) in {(1, "nothing_changed"), (1, "too_early")}
    assert final.saved_ratio in {None, 0.0}
    assert "saved" not in line.replace("nothing saved", "").replace("too early to tell what was saved", "")
    assert 0 <= final.energy_j / max(final.duration_s, 1e-3) <= PRIOR_W


class FastTraining(Training):
    """A training of some thousand iterations a second: half a second of them at a time."""

    SPEED_UP = 8_000.0
    CHUNK_S = 0.5

    async def _step(self) -> None:
        begin_ns, per_s = self._clock.monotonic_ns(), self.SPEED_UP * self._rate(self.gpus[0].requested_power_limit_w)
        await self.pause(self.CHUNK_S)
        n_done = round(self.CHUNK_S * per_s)
        self._ends_ns.extend(begin_ns + round((i + 1) * self.CHUNK_S * 1e9 / n_done) for i in range(n_done))
        self.n_iterations += n_done
        self.end_s = self._clock.now_s()


async def test_ten_million_iterations_are_as_well_known_as_some_thousand(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE, *QUICK)
    training = FastTraining(site)
    async with site.controlled():
        while training.n_iterations < 1e7:
            await training.train(60.0)
        check_what_is_told(await end_of(site, training), training, speed_up=FastTraining.SPEED_UP)
