"""A run from its first iteration to its plan and its account, with the real controller on virtual time."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from publishers.reports import RunEnergy
from publishers.wire import decode
from tests.fakes import MIDNIGHT_S, FakeGpu
from tests.scenarios.site import (
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

STATIC = "plan.max_slowdown=1.10"
LEAST_W = 205.0
"""With this budget 205 W is the best static limit: 9.8 % slower. What the first pass has lost asks for more."""


def written_w(gpu: FakeGpu) -> list[float]:
    """Return every limit that was written."""
    return [limit_w for _, limit_w in gpu.history]


def check_the_limits(gpu: FakeGpu) -> None:
    """Check that the first pass went down the ladder, the plan kept to its budget, and the limit was given back."""
    *limits_w, last_w = written_w(gpu)
    first_pass_w, planned_w = limits_w[: len(LADDER_W) - 1], limits_w[len(LADDER_W) - 1 :]
    assert first_pass_w == LADDER_W[1:]
    assert planned_w
    assert all(LEAST_W <= limit_w <= PRIOR_W for limit_w in planned_w)
    assert last_w == PRIOR_W


async def finish(*trainings: Training) -> None:
    """End the runs, and wait until their accounts are closed."""
    for training in trainings:
        training.tell("finished")
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
    assert set(reasons[len(LADDER_W) : -1]) <= {"slowdown_static", "behind_schedule"}
    assert reasons[-1] == "run_finished"


async def test_the_sweep_takes_the_time_that_settling_and_measuring_take(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], STATIC)
    async with site.controlled():
        await Training(site).train(1_800)
    times_s = [time_s - MIDNIGHT_S for time_s, _ in gpu.history[:6]]
    steps_s = [b_s - a_s for a_s, b_s in pairwise([0.0, *times_s])]
    # 20 s to settle and 100 s to measure, in slices of 5 s, the first of which is not whole.
    assert all(120 <= step_s <= 135 for step_s in steps_s), steps_s


async def test_the_final_account_agrees_with_what_the_gpu_really_used(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], STATIC)
    training = Training(site)
    async with site.controlled():
        await training.train(3_600)
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


async def test_only_the_final_account_is_retained_and_the_nodes_part_with_it(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()], STATIC)
    training = Training(site)
    energy_topic = TOPICS.run("resnet50", "run-1", "energy")
    part_topic = TOPICS.run_on_node("resnet50", "run-1", NODE)
    async with site.controlled():
        await training.train(600)
        assert energy_topic not in site.bus.retained
        await finish(training)
    assert decode(site.bus.retained[energy_topic], RunEnergy).final
    assert decode(site.bus.retained[part_topic], RunEnergy).final
    assert len(site.energies()) == pytest.approx(600 / 5, abs=10), "one a period while it runs"


async def test_short_epochs_and_pauses_do_not_stop_the_sweep(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], STATIC)
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


async def test_the_model_is_of_the_limit_that_is_enforced(tmp_path: Path) -> None:
    gpu = prior_gpu()
    gpu.out_of_band_power_limit_w = 220.0
    site = Site(tmp_path, [gpu], STATIC)
    training = Training(site, rate=lambda limit_w: rate_per_s(min(limit_w, 220.0)))
    async with site.controlled():
        await training.train(1_800)
    points = {point.power_limit_w: point.power_w for point in site.profiles()[-1].points}
    assert list(points) == [100.0, 110.0, 140.0, 175.0, 220.0], "280 and 225 W would measure the same"
    assert points[220.0] == pytest.approx(POWER_RATIO * 220, rel=1e-6)


async def test_a_run_on_two_gpus_is_profiled_by_the_sum_of_their_power_and_its_slowest_rank(tmp_path: Path) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    site = Site(tmp_path, gpus, STATIC)
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


async def test_two_jobs_on_two_gpus_are_profiled_at_once_and_apart(tmp_path: Path) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    site = Site(tmp_path, gpus, STATIC)
    flat = Training(site, [gpus[1]], job="flat", run="run-2", rate=lambda _: 0.5)
    steep = Training(site, [gpus[0]])
    async with site.controlled():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(steep.train(1_800))
            tasks.create_task(flat.train(1_800))
        await finish(steep, flat)
    check_the_limits(gpus[0])
    # It runs as fast at any limit: the sweep ends where its plan wants it to be.
    assert written_w(gpus[1]) == [*LADDER_W[1:], PRIOR_W]
    assert {change.job for change in site.limits(gpus[1])[:-1]} == {"flat"}
    assert site.energies("flat", "run-2")[-1].slowdown_ratio == pytest.approx(1.0, abs=1e-3)
