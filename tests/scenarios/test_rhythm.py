"""Runs whose marks are not all iterations: validations in the loop, and batches drawn in bursts."""

import asyncio
from pathlib import Path

import pytest

from publishers.messages.codec import decode
from publishers.messages.reports import Notice
from publishers.messages.training import CountedBy
from tests.fakes import KEY, FakeGpu
from tests.scenarios.site import (
    HOUR_S,
    POWER_RATIO,
    PRIOR_W,
    TOPICS,
    Site,
    Training,
    prior_gpu,
    rate_per_s,
    told_saving,
)

QUICK = ("plan.max_slowdown=1.10", "profiler.settle_s=4", "profiler.window_s=20", "profiler.block_s=20")
IDLE_W = 60.0
"""What a GPU draws while the host validates: below every limit."""
EVERY = 40
"""After so many steps there is a validation."""
LONG_STEPS = 100
"""A validation that lasts as long as so many steps."""


class Validation:
    """A validation in the loop, which a limit does not slow: it computes on the host."""

    def __init__(self, job: Training, gpu: FakeGpu, duration_s: float) -> None:
        self.duration_s = duration_s
        self._job, self._gpu = job, gpu

    async def __call__(self) -> None:
        if self._job.n_iterations % EVERY:
            return
        await self._gpu.read_sample()  # it counts what was used until now, at the draw until now
        training_w, self._gpu.draw_w = self._gpu.draw_w, lambda _: IDLE_W
        await self._job.pause(self.duration_s)
        await self._gpu.read_sample()
        self._gpu.draw_w = training_w


async def run_with_validation(tmp_path: Path, *, n_steps: float, counted_by: CountedBy) -> tuple[Site, float, float]:
    """Train with a validation of so many steps' length; return the site, and what is true: saved, and the slowdown."""
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK)
    job = Training(site)
    job.counted_by = counted_by
    validation = Validation(job, gpu, n_steps / rate_per_s(PRIOR_W))
    job.after_step = validation
    async with site.controlled():
        await job.train(1_600 + 1_600 * (1 + n_steps / EVERY))
        job.publish_status("finished")
        await asyncio.sleep(60)
    assert job.begin_s is not None
    duration_s = job.end_s - job.begin_s  # what follows the last step is no part of the account
    validated_s = (job.n_iterations - 1) // EVERY * validation.duration_s
    ideal_s = job.n_iterations / rate_per_s(PRIOR_W) + validated_s
    ideal_j = job.n_iterations * POWER_RATIO * PRIOR_W / rate_per_s(PRIOR_W) + validated_s * IDLE_W
    used_j = site.energies()[-1].energy_j
    return site, 1 - used_j / ideal_j, duration_s / ideal_s


@pytest.mark.parametrize("n_steps", [5, 20])
async def test_a_validation_between_counted_steps_leaves_account_and_books_right(
    tmp_path: Path, n_steps: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A meter interval in which a validation begins is work until then: as a pause it would hide half a point."""
    caplog.set_level("DEBUG")
    site, saved_ratio, slowdown_ratio = await run_with_validation(tmp_path, n_steps=n_steps, counted_by="optimizer")
    check_account(site, saved_ratio, slowdown_ratio)
    lower, upper = told_saving(caplog.text)
    assert lower <= saved_ratio <= upper


async def test_a_long_validation_between_counted_steps_leaves_the_curve_right(tmp_path: Path) -> None:
    """Nothing is told of savings: no look fits in between."""
    site, _, _ = await run_with_validation(tmp_path, n_steps=LONG_STEPS, counted_by="optimizer")
    check_curve(site)
    assert site.energies()[-1].evidence == "too_early"


def check_curve(site: Site) -> None:
    """Check the curve of a run that was profiled."""
    assert site.profiles()[-1].state == "planned"
    for point in site.profiles()[-1].points:
        assert point.iterations_per_s == pytest.approx(rate_per_s(point.power_limit_w), rel=0.01)


def check_account(site: Site, saved_ratio: float, slowdown_ratio: float) -> None:
    """Check curve and account of a run that was profiled."""
    final = site.energies()[-1]
    check_curve(site)
    assert final.saved_ratio == pytest.approx(saved_ratio, abs=0.015)
    assert final.slowdown_ratio == pytest.approx(slowdown_ratio, abs=0.01)


@pytest.mark.parametrize("which", [0, 1])
async def test_while_one_rank_validates_the_others_wait_within_their_step(tmp_path: Path, which: int) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    site = Site(tmp_path, gpus, *QUICK)
    ranks = [Training(site, [gpu], rank=rank, world_size=2) for rank, gpu in enumerate(gpus)]
    barrier = asyncio.Barrier(2)
    for job in ranks:
        job.counted_by, job.all_reduce = "optimizer", barrier.wait
    n_steps = 1_200
    validation = Validation(ranks[which], gpus[which], 20 / rate_per_s(PRIOR_W))
    ranks[which].after_step = validation
    async with site.controlled():
        async with asyncio.TaskGroup() as tasks:
            for job in ranks:
                tasks.create_task(job.train_steps(n_steps))
        for job in ranks:
            job.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    ideal_s = n_steps / rate_per_s(PRIOR_W) + (n_steps - 1) // EVERY * validation.duration_s
    assert ranks[0].begin_s is not None
    assert final.slowdown_ratio is not None
    assert final.slowdown_ratio == pytest.approx((ranks[0].end_s - ranks[0].begin_s) / ideal_s, abs=0.01)
    assert "behind_schedule" not in {change.reason for change in site.limits(gpus[0])}
    assert final.slowdown_ratio > 1.02, "the budget is spent"
    for point in site.profiles()[-1].points:
        assert point.iterations_per_s == pytest.approx(rate_per_s(point.power_limit_w), rel=0.01)


@pytest.mark.parametrize("n_steps", [5, 20])
async def test_a_short_validation_behind_a_loader_leaves_the_account_right(tmp_path: Path, n_steps: float) -> None:
    site, saved_ratio, slowdown_ratio = await run_with_validation(tmp_path, n_steps=n_steps, counted_by="loader")
    final = site.energies()[-1]
    assert final.saved_ratio == pytest.approx(saved_ratio, abs=0.015)
    assert final.slowdown_ratio == pytest.approx(slowdown_ratio, abs=0.01)


async def test_marks_that_may_be_bursts_are_not_profiled_and_it_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site, _, _ = await run_with_validation(tmp_path, n_steps=LONG_STEPS, counted_by="loader")
    check_not_profiled(site, caplog.text)
    final = site.energies()[-1]
    assert (final.evidence, final.saved_ratio, final.slowdown_ratio) == ("nothing_changed", 0.0, 1.0)


async def test_accumulation_behind_the_marks_of_a_loader_is_never_profiled_wrong(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK)
    job = Training(site)
    job.draws = 8
    async with site.controlled():
        await job.train(HOUR_S)
        job.publish_status("finished")
        await asyncio.sleep(60)
    for report in site.profiles():
        for point in report.points:
            assert point.iterations_per_s == pytest.approx(rate_per_s(point.power_limit_w), rel=0.02)
    final = site.energies()[-1]
    assert final.saved_ratio is None or final.saved_ratio > 0.05 or final.evidence == "nothing_changed"


def check_not_profiled(site: Site, log: str) -> None:
    """Check that a run was left at its highest limit, and that this was told where it is looked for, once."""
    gpu = site.gpus[0]
    refused_s = next(notice.time_s for notice in notices(site) if notice.code == "not_profiled")
    assert all(limit_w == PRIOR_W for time_s, limit_w in gpu.history if time_s > refused_s + 1)
    last = site.profiles()[-1]
    assert (last.state, last.reason, last.points) == ("not_profiled", "bursts_ambiguous", [])
    assert site.limits(gpu)[-2].reason == "not_profiled"
    told = [notice for notice in notices(site) if notice.code != "heard"]
    assert [(notice.code, notice.rank) for notice in told] == [("not_profiled", 0)]
    assert "publisher.iteration()" in told[0].detail
    assert log.count("(bursts_ambiguous)") == 1


def notices(site: Site) -> list[Notice]:
    """Return what the training was told."""
    return [decode(payload, Notice) for payload in site.bus.payloads(TOPICS.run(KEY, "notice"))]
