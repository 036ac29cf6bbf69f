"""Refining the curve while a job trains: the promise holds, pauses and brakes do no harm, the next run finds it."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from publishers.reports import LimitChange
from tests.fakes import FakeGpu
from tests.scenarios.site import HOUR_S, PRIOR_W, Site, Training, prior_gpu, rate_per_s
from tests.scenarios.test_day import SLOW, slow_rate_per_s, trace

CURIOUS = ("profiler.n_blocks=24", "profiler.block_s=40")
QUICK = ("profiler.settle_s=5", "profiler.window_s=20", "profiler.block_s=20", "energy.period_s=2")


def noisy(rate: Callable[[float], float], *, seed: int = 1) -> Callable[[float], float]:
    """Return a rate of iterations that scatter by 3 %, of which one in two hundred stalls."""
    dice = np.random.default_rng(seed)

    def disturbed(power_limit_w: float) -> float:
        stall = 3.0 if dice.random() < 0.005 else 1.0
        return rate(power_limit_w) / stall * math.exp(0.03 * dice.standard_normal())

    return disturbed


def refining(site: Site, gpu: FakeGpu) -> list[LimitChange]:
    """Return the changes that tried out a limit."""
    return [change for change in site.limits(gpu) if change.reason == "refining"]


async def test_a_whole_day_of_refinement_and_mixes_keeps_the_promise_and_saves(tmp_path: Path) -> None:
    gpu = prior_gpu()
    overrides = (*SLOW, "plan.max_slowdown=1.10", "profiler.window_s=200", "profiler.n_blocks=40", "plan.period_s=600")
    site = Site(tmp_path / "state", [gpu], *overrides, providers=[trace(tmp_path)])
    training = Training(site, rate=noisy(slow_rate_per_s))
    async with site.controlled():
        await training.train(24 * HOUR_S, flush_s=60)
        training.tell("finished")
        await asyncio.sleep(120)
    final = site.energies()[-1]
    assert training.begin_s is not None
    ideal_s = training.n_iterations / slow_rate_per_s(PRIOR_W) * (1 + 2 * 0.005)
    assert (training.end_s - training.begin_s) / ideal_s <= 1.105
    assert final.saved_ratio is not None
    assert final.saved_ratio > 0.1
    assert any("then" in change.detail for change in site.limits(gpu)), "two limits share a period"
    assert len({change.power_limit_w for change in refining(site, gpu)}) > 3


async def test_the_promise_holds_while_the_curve_is_refined(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK, "plan.max_slowdown=1.15")
    training = Training(site, rate=noisy(rate_per_s))
    async with site.controlled():
        await training.train(600)
        training.tell("finished")
        await asyncio.sleep(30)
    assert training.begin_s is not None
    assert (training.end_s - training.begin_s) * rate_per_s(PRIOR_W) / training.n_iterations <= 1.16


async def test_a_pause_in_mid_refinement_leaves_the_curve_and_the_account_alone(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.max_slowdown=1.10")
    job = Training(site)
    async with site.controlled():
        await job.train(1_500)
        n_tried = len(refining(site, gpu))
        assert 0 < n_tried < 24
        await job.pause(HOUR_S)
        await job.train(HOUR_S)
        job.tell("finished")
        await asyncio.sleep(30)
    assert list(dict.fromkeys(report.state for report in site.profiles())) == ["waiting", "profiling", "planned"]
    for point in site.profiles()[-1].points:
        assert point.iterations_per_s == pytest.approx(rate_per_s(point.power_limit_w), rel=0.01)
    final = site.energies()[-1]
    assert final.slowdown_ratio is not None
    assert 1.0 < final.slowdown_ratio <= 1.10


async def test_the_next_run_of_a_job_finds_its_refined_curve_and_tries_little_out(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.max_slowdown=1.10")
    first, second = Training(site), Training(site, run="run-2", pid=200)
    async with site.controlled():
        await first.train(HOUR_S)
        first.tell("finished")
        n_before = len(site.limits(gpu))
        await second.train(600)
        second.tell("finished")
        await asyncio.sleep(30)
    reasons = [change.reason for change in site.limits(gpu)[n_before:]]
    assert "profiling" not in reasons
    assert reasons.count("refining") <= 24 // 3
    assert [report.state for report in site.profiles(run="run-2")][:2] == ["waiting", "planned"]


async def test_a_run_that_was_cut_off_in_mid_refinement_goes_on_where_it_was(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.max_slowdown=1.10")
    job = Training(site)
    async with site.controlled():
        await job.train(1_500)
    n_before = len(site.limits(gpu))
    async with site.controlled():
        await job.train(HOUR_S)
        assert gpu.requested_power_limit_w < PRIOR_W
    reasons = [change.reason for change in site.limits(gpu)[n_before:]]
    assert "profiling" not in reasons
    assert "refining" in reasons


async def test_a_job_that_becomes_another_in_mid_profile_is_measured_as_the_other(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()], *CURIOUS)
    begin_s = site.clock.now_s()
    changed_s = begin_s + 320

    def rate(limit_w: float) -> float:
        return rate_per_s(limit_w) * (1.0 if site.clock.now_s() < changed_s else 1.5)

    async with site.controlled():
        await Training(site, rate=rate).train(1.5 * HOUR_S)
    for point in site.profiles()[-1].points:
        assert abs(point.iterations_per_s / rate_per_s(point.power_limit_w) / 1.5 - 1) < 0.02, point


async def test_a_brake_that_comes_and_goes_while_the_curve_is_refined_is_not_taken_for_the_gpu(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.max_slowdown=1.02")

    def rate(limit_w: float) -> float:
        return rate_per_s(min(limit_w, gpu.out_of_band_power_limit_w))

    job = Training(site, rate=rate)
    async with site.controlled():
        gpu.out_of_band_power_limit_w = 200.0
        await job.train(2_400)
        assert site.profiles()[-1].points[-1].power_limit_w == 200.0
        gpu.out_of_band_power_limit_w = math.inf
        await job.train(2 * HOUR_S)
    assert site.profiles()[-1].points[-1].power_limit_w == PRIOR_W
    assert gpu.history[-2][1] > 200.0, "before it was given back"


async def test_epochs_of_ten_iterations_are_profiled_and_slowed_no_more_than_was_asked_for(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.max_slowdown=1.10")
    job = Training(site)
    async with site.controlled():
        for epoch in range(250):
            await job.train(10 / rate_per_s(gpu.requested_power_limit_w), epoch=epoch)
            await job.pause(0.8)  # shorter than what counts as a pause: it belongs to the rhythm of the job
        job.tell("finished")
        await asyncio.sleep(30)
    assert [report.state for report in site.profiles()].count("profiling") < 10, "it is profiled once"
    final = site.energies()[-1]
    assert final.saved_ratio is not None
    assert final.slowdown_ratio is not None
    assert final.saved_ratio > 0.1
    assert 1.05 < final.slowdown_ratio <= 1.105
