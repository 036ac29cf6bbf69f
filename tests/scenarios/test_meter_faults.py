"""Boards whose meters say what cannot be: the run's energy stays right, and what is not known is told."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.errors import GpuLostError
from controller.ports import Sample
from tests.scenarios.site import Site, Training, energy_j, prior_gpu

QUICK = ("profiler.settle_s=2", "profiler.window_s=10", "profiler.block_s=10")
MINUTES_S = 660.0
Tells = Callable[[Sample], Sample]


def frozen(sample: Sample) -> Sample:
    """Return a sample of a board whose counter answers and never moves."""
    return replace(sample, energy_j=0.0)


def wild(sample: Sample) -> Sample:
    """Return a sample of a board that says to draw 3.7 MW."""
    return replace(sample, power_w=3.7e6)


async def finish(site: Site, training: Training) -> tuple[float, float]:
    """End the training; return the energy on record and what was really used [J]."""
    training.publish_status("finished")
    await asyncio.sleep(20)
    return site.energies()[-1].energy_j, energy_j(training.gpus[0], training.begin_s or 0.0, training.end_s)


async def test_a_counter_that_never_moves_costs_no_energy_and_no_curve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "controller.gpu")
    gpu = prior_gpu()
    gpu.tells = frozen
    site = Site(tmp_path, [gpu], *QUICK)
    training = Training(site)
    async with site.controlled():
        await training.train(MINUTES_S)
        recorded_j, used_j = await finish(site, training)
    assert recorded_j == pytest.approx(used_j, rel=0.01)
    assert site.profiles()[-1].state == "planned"
    (said,) = [record.getMessage() for record in caplog.records if "meter rejected" in record.getMessage()]
    assert "its energy counter is stuck" in said


@pytest.mark.parametrize(
    ("tells", "has_counter"),
    [(wild, False), (wild, True), (frozen, True)],
    ids=["power of a board without a counter", "power", "counter"],
)
async def test_faults_for_a_tenth_of_a_run_cost_less_than_a_hundredth(
    tmp_path: Path, tells: Tells, *, has_counter: bool
) -> None:
    gpu = prior_gpu()
    gpu.has_counter = has_counter
    site = Site(tmp_path, [gpu], *QUICK)
    training, sound = Training(site), gpu.tells
    async with site.controlled():
        for fault_s in (0.45, 5.0, 60.0):
            await training.train(MINUTES_S / 3 - fault_s)
            gpu.tells = tells
            await training.train(fault_s)
            gpu.tells = sound
        await training.train(1.0)
        recorded_j, used_j = await finish(site, training)
    assert recorded_j == pytest.approx(used_j, rel=0.01)
    final = site.energies()[-1]
    if has_counter:
        assert (final.unmeasured_s or 0.0) < 0.2
    else:
        assert final.unmeasured_s == pytest.approx(65.45, abs=3 * site.config.energy.period_s)
        assert final.incomplete == ["unmeasured"]


@pytest.mark.parametrize("has_counter", [True, False])
async def test_a_gpu_that_is_lost_before_the_end_has_drawn_its_last_power(tmp_path: Path, *, has_counter: bool) -> None:
    gpu = prior_gpu()
    gpu.has_counter = has_counter
    site = Site(tmp_path, [gpu], *QUICK)
    training = Training(site)
    async with site.controlled():
        await training.train(MINUTES_S)
        gpu.errors["read_sample"] = GpuLostError("gone", gpu_uuid=gpu.uuid, operation="read_sample")
        await training.train(MINUTES_S / 11)
        recorded_j, used_j = await finish(site, training)
    final = site.energies()[-1]
    assert recorded_j == pytest.approx(used_j, rel=0.01)
    assert final.unmeasured_s == pytest.approx(MINUTES_S / 11, abs=site.config.energy.period_s)
    assert final.incomplete == ["unmeasured"]
    assert final.duration_s == pytest.approx(MINUTES_S * 12 / 11, abs=site.config.energy.period_s)
