"""The power curve of a run is measured in a first sweep and refined under the plan."""

import asyncio
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from publishers.messages.codec import decode
from publishers.messages.reports import LimitChange, RunEnergy
from tests.fakes import KEY, MIDNIGHT_S, FakeGpu
from tests.scenarios.site import (
    FINE,
    HOUR_S,
    LADDER_W,
    NODE,
    POWER_RATIO,
    PRIOR_W,
    TOPICS,
    Site,
    Training,
    energy_j,
    prior_gpu,
    rate_per_s,
)
from tests.scenarios.test_day import SLOW, slow_rate_per_s, trace

STATIC = "plan.max_slowdown=1.10"
LEAST_W = 205.0
"""With this budget 205 W is the best static limit: 9.8 % slower. What the first sweep has lost asks for more."""


def written_w(gpu: FakeGpu) -> list[float]:
    """Return every limit that was written."""
    return [limit_w for _, limit_w in gpu.history]


def check_the_limits(gpu: FakeGpu) -> None:
    """Check that the first sweep went down the ladder, the plan kept its budget, and the prior limit was restored."""
    *limits_w, last_w = written_w(gpu)
    first_sweep_w, planned_w = limits_w[: len(LADDER_W) - 1], limits_w[len(LADDER_W) - 1 :]
    assert first_sweep_w == LADDER_W[1:]
    assert planned_w
    assert all(LEAST_W <= limit_w <= PRIOR_W for limit_w in planned_w)
    assert last_w == PRIOR_W


async def finish(*trainings: Training) -> None:
    """End the runs, and wait until their accounts are closed."""
    for training in trainings:
        training.publish_status("finished")
    await asyncio.sleep(30)


async def test_a_job_is_profiled_while_it_trains_and_then_gets_its_best_static_limit(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], STATIC)
    training = Training(site)
    async with site.controlled():
        await training.train(1_800)
        await finish(training)
    check_the_limits(gpu)
    reports = site.profiles()
    assert list(dict.fromkeys(report.state for report in reports)) == ["waiting", "profiling", "planned"]
    assert [point.power_limit_w for point in reports[-1].points] == LADDER_W[::-1]
    for point in reports[-1].points:
        assert point.power_w == pytest.approx(POWER_RATIO * point.power_limit_w, rel=1e-6)
        assert point.iterations_per_s == pytest.approx(rate_per_s(point.power_limit_w), rel=1e-3)
    reasons = [change.reason for change in site.limits(gpu)]
    assert reasons[: len(LADDER_W)] == ["profiling"] * len(LADDER_W)
    planned = {"slowdown_static", "kept_small_gain"}
    assert set(reasons[len(LADDER_W) : -1]) <= planned | {"behind_schedule", "refining"}
    assert {change.power_limit_w for change in site.limits(gpu) if change.reason == "refining"} == {PRIOR_W}, "looks"
    assert reasons[-1] == "run_finished"


async def test_the_sweep_takes_the_time_that_settling_and_measuring_take(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE, STATIC)
    async with site.controlled():
        await Training(site).train(1_800)
    times_s = [time_s - MIDNIGHT_S for time_s, _ in gpu.history[:6]]
    steps_s = [b_s - a_s for a_s, b_s in pairwise([0.0, *times_s])]
    # At most 20 s to settle, and 100 s to measure, in intervals of 5 s, the first of which is not whole.
    assert all(120 <= step_s <= 135 for step_s in steps_s), steps_s


async def test_the_final_account_agrees_with_what_the_gpu_really_used(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE, STATIC)
    training = Training(site)
    async with site.controlled():
        await training.train(2 * HOUR_S)
        await finish(training)
    final = site.energies()[-1]
    assert training.begin_s is not None
    used_j = energy_j(gpu, training.begin_s, training.end_s)
    baseline_j = training.n_iterations * POWER_RATIO * PRIOR_W / rate_per_s(PRIOR_W)
    duration_s = training.end_s - training.begin_s
    assert (final.final, final.state, final.iterations) == (True, "finished", training.n_iterations)
    assert (final.gpu_model, final.n_gpus, final.batch_size, final.epochs) == ("Fake 300", 1, 256, 1)
    assert final.max_power_w == PRIOR_W
    assert final.duration_s == pytest.approx(duration_s, rel=1e-3)
    assert final.energy_j == pytest.approx(used_j, rel=1e-3)
    assert final.baseline_energy_j == pytest.approx(baseline_j, rel=2e-3)
    assert final.baseline_duration_s == pytest.approx(training.n_iterations / rate_per_s(PRIOR_W), rel=2e-3)
    assert final.saved_ratio == pytest.approx(1 - used_j / baseline_j, abs=2e-3)
    assert final.slowdown_ratio == pytest.approx(duration_s * rate_per_s(PRIOR_W) / training.n_iterations, rel=2e-3)
    assert final.carbon_g is None


async def test_only_the_final_account_is_retained_and_the_only_node_has_no_part(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()], FINE, STATIC)
    training = Training(site)
    energy_topic = TOPICS.run(KEY, "energy")
    part_topic = TOPICS.run_on_node(KEY, NODE)
    async with site.controlled():
        await training.train(600)
        assert energy_topic not in site.bus.retained
        await finish(training)
    assert decode(site.bus.retained[energy_topic], RunEnergy).final
    assert site.bus.payloads(part_topic) == [], "it would count twice"
    assert len(site.energies()) == pytest.approx(600 / 5, abs=10), "one a period while it runs"


async def test_short_epochs_and_pauses_do_not_stop_the_sweep(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE, STATIC)
    training = Training(site)
    async with site.controlled():
        for epoch in range(70):
            await training.train(24, epoch=epoch)
            await training.pause(16)
        await finish(training)
    check_the_limits(gpu)
    for point in site.profiles()[-1].points:
        assert point.power_w == pytest.approx(POWER_RATIO * point.power_limit_w, rel=1e-6)
        assert point.iterations_per_s == pytest.approx(rate_per_s(point.power_limit_w), rel=0.01)
    final = site.energies()[-1]
    assert training.begin_s is not None
    assert final.epochs == 70
    assert final.energy_j == pytest.approx(energy_j(gpu, training.begin_s, training.end_s), rel=1e-3)
    assert final.duration_s == pytest.approx(training.end_s - training.begin_s, rel=1e-3)


async def test_slow_iterations_are_measured_until_there_are_enough_of_them(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], STATIC)
    training = Training(site, rate=lambda limit_w: rate_per_s(limit_w) / 60)
    async with site.controlled():
        for _ in range(60):
            await training.train(120)
    assert len(site.profiles()[-1].points) == len(LADDER_W)
    assert all(point.n >= 3 for point in site.profiles()[-1].points)


async def test_points_are_recorded_at_the_enforced_limit(tmp_path: Path) -> None:
    gpu = prior_gpu()
    gpu.out_of_band_power_limit_w = 220.0
    site = Site(tmp_path, [gpu], STATIC)
    training = Training(site, rate=lambda limit_w: rate_per_s(min(limit_w, 220.0)))
    async with site.controlled():
        await training.train(1_800)
    points = {point.power_limit_w: point.power_w for point in site.profiles()[-1].points}
    assert list(points) == [100.0, 110.0, 140.0, 175.0, 220.0], "280 and 225 W would measure the same"
    assert points[220.0] == pytest.approx(POWER_RATIO * 220, rel=1e-6)


async def test_two_gpus_are_profiled_by_their_summed_power_and_the_slowest_rank(tmp_path: Path) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    site = Site(tmp_path, gpus, FINE, STATIC)
    ranks = [
        Training(site, [gpus[0]], rank=0, world_size=2),
        Training(site, [gpus[1]], rank=1, world_size=2, rate=lambda limit_w: 0.8 * rate_per_s(limit_w)),
    ]
    async with site.controlled():
        async with asyncio.TaskGroup() as tasks:
            for rank in ranks:
                tasks.create_task(rank.train(1_800))
        await finish(*ranks)
    check_the_limits(gpus[0])
    assert written_w(gpus[0]) == written_w(gpus[1])
    report = site.profiles()[-1]
    assert report.n_gpus == 2
    for point in report.points:
        assert point.power_w == pytest.approx(2 * POWER_RATIO * point.power_limit_w, rel=1e-6)
        assert point.iterations_per_s == pytest.approx(0.8 * rate_per_s(point.power_limit_w), rel=0.02)
    final = site.energies()[-1]
    assert (final.n_gpus, final.iterations) == (2, ranks[1].n_iterations)


async def test_two_jobs_on_two_gpus_are_profiled_independently(tmp_path: Path) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    site = Site(tmp_path, gpus, STATIC)
    flat = Training(site, [gpus[1]], job="flat", run="run-2", rate=lambda _: 0.5)
    steep = Training(site, [gpus[0]])
    async with site.controlled():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(steep.train(1_800))
            tasks.create_task(flat.train(1.5 * HOUR_S))
        await finish(steep, flat)
    check_the_limits(gpus[0])
    # It runs as fast at any limit: the sweep ends where its plan wants it to be.
    written = written_w(gpus[1])
    assert written[: len(LADDER_W) - 1] == LADDER_W[1:]
    assert set(written[len(LADDER_W) - 1 :]) == {LADDER_W[-1], PRIOR_W}, "but for the looks"
    assert {change.job for change in site.limits(gpus[1])[:-1]} == {"flat"}
    assert site.energies("flat", "run-2")[-1].slowdown_ratio == pytest.approx(1.0, abs=1e-3)


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


async def test_a_day_of_refinement_and_mixes_keeps_the_promise_and_saves(tmp_path: Path) -> None:
    gpu = prior_gpu()
    overrides = (*SLOW, "plan.max_slowdown=1.10", "profiler.window_s=200", "profiler.n_blocks=40", "plan.period_s=600")
    site = Site(tmp_path / "state", [gpu], *overrides, providers=[trace(tmp_path)])
    training = Training(site, rate=noisy(slow_rate_per_s))
    async with site.controlled():
        await training.train(16 * HOUR_S, flush_s=60)
        training.publish_status("finished")
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
        training.publish_status("finished")
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
        await job.train(2.5 * HOUR_S)
        job.publish_status("finished")
        await asyncio.sleep(30)
    assert list(dict.fromkeys(report.state for report in site.profiles())) == ["waiting", "profiling", "planned"]
    for point in site.profiles()[-1].points:
        assert point.iterations_per_s == pytest.approx(rate_per_s(point.power_limit_w), rel=0.01)
    final = site.energies()[-1]
    assert final.slowdown_ratio is not None
    assert 1.0 < final.slowdown_ratio <= 1.10


async def test_the_next_run_starts_from_the_refined_curve_and_explores_little(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.max_slowdown=1.10")
    first, second = Training(site), Training(site, run="run-2", pid=200)
    async with site.controlled():
        await first.train(HOUR_S)
        first.publish_status("finished")
        n_before = len(site.limits(gpu))
        await second.train(600)
        second.publish_status("finished")
        await asyncio.sleep(30)
    reasons = [change.reason for change in site.limits(gpu)[n_before:]]
    assert "profiling" not in reasons
    assert reasons.count("refining") <= 24 // 3
    assert [report.state for report in site.profiles(run="run-2")][:2] == ["waiting", "planned"]


async def test_refinement_resumes_after_an_interruption(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.max_slowdown=1.10")
    job = Training(site)
    async with site.controlled():
        await job.train(1_500)
    n_before = len(site.limits(gpu))
    async with site.controlled():
        await job.train(HOUR_S)
    changes = site.limits(gpu)[n_before:]
    reasons = [change.reason for change in changes]
    assert PRIOR_W not in {change.power_limit_w for change in changes if change.reason == "slowdown_static"}
    assert "slowdown_static" in reasons
    assert "profiling" not in reasons
    assert "refining" in reasons


async def test_a_job_that_changes_during_the_sweep_is_measured_anew(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()], *CURIOUS)
    begin_s = site.clock.now_s()
    changed_s = begin_s + 320

    def rate(limit_w: float) -> float:
        return rate_per_s(limit_w) * (1.0 if site.clock.now_s() < changed_s else 1.5)

    async with site.controlled():
        await Training(site, rate=rate).train(1.5 * HOUR_S)
    for point in site.profiles()[-1].points:
        assert abs(point.iterations_per_s / rate_per_s(point.power_limit_w) / 1.5 - 1) < 0.02, point


async def test_a_passing_power_brake_during_refinement_does_not_change_the_curve(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE, *CURIOUS, "plan.max_slowdown=1.02")

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
    assert gpu.history[-2][1] > 200.0, "before it was restored"


async def test_epochs_of_ten_iterations_are_profiled_and_kept_within_the_budget(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.max_slowdown=1.10")
    job = Training(site)
    async with site.controlled():
        for epoch in range(520):
            await job.train(10 / rate_per_s(gpu.requested_power_limit_w), epoch=epoch)
            await job.pause(0.8)  # shorter than what counts as a pause: it belongs to the rhythm of the job
        job.publish_status("finished")
        await asyncio.sleep(30)
    assert [report.state for report in site.profiles()].count("profiling") < 10, "it is profiled once"
    final = site.energies()[-1]
    assert final.saved_ratio is not None
    assert final.slowdown_ratio is not None
    assert final.saved_ratio > 0.1
    assert 1.05 < final.slowdown_ratio <= 1.105


async def test_a_validation_in_mid_sweep_runs_at_the_highest_limit(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        job = Training(site)
        await job.train(700)
        assert gpu.requested_power_limit_w < PRIOR_W
        job.set(in_pause=True)
        await job.pause(HOUR_S)
        assert gpu.requested_power_limit_w == PRIOR_W
        job.set(in_pause=False)
        await job.train(HOUR_S)
        assert site.profiles()[-1].state == "planned"
    assert "idle" not in {change.reason for change in site.limits(gpu)}
    assert "profiling_paused" in {change.reason for change in site.limits(gpu)}


async def test_short_bursts_between_pauses_still_measure_every_limit(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()], "profiler.window_s=20", "profiler.settle_s=4")
    async with site.controlled():
        job = Training(site)
        for epoch in range(60):
            await job.train(30, epoch=epoch)
            await job.pause(100)
    assert [point.power_limit_w for point in site.profiles()[-1].points] == LADDER_W[::-1]
