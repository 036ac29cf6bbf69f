"""Runs of one name, one right after the other: each has its own account, its own limit, and the true prior one."""

import asyncio
from pathlib import Path

import pytest

from tests.scenarios.site import PRIOR_W, Site, Training, energy_j, prior_gpu, rate_per_s

QUICK = ("profiler.settle_s=2", "profiler.window_s=10", "profiler.block_s=10", "energy.period_s=5", "plan.period_s=60")


@pytest.mark.parametrize("away_s", [0.0, 0.1, 1.0])
async def test_each_fold_has_an_account_of_its_own_and_is_managed_from_its_beginning(
    tmp_path: Path, away_s: float
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK)
    folds = [Training(site, rate=lambda limit_w: 10 * rate_per_s(limit_w), pid=pid) for pid in (100, 200, 300)]
    async with site.controlled():
        for fold in folds:
            await fold.train(180)
            fold.tell("finished")
            await asyncio.sleep(away_s)
        await asyncio.sleep(20)
        assert gpu.requested_power_limit_w == PRIOR_W
    finals = [energy for energy in site.energies() if energy.final]
    assert [final.iterations for final in finals] == [fold.n_iterations for fold in folds]
    for fold, final in zip(folds, finals, strict=True):
        assert fold.begin_s is not None
        assert final.duration_s == pytest.approx(fold.end_s - fold.begin_s, abs=2)
        assert final.energy_j == pytest.approx(energy_j(gpu, fold.begin_s, fold.end_s), rel=0.02)
        assert any(fold.begin_s < time_s < fold.begin_s + 30 for time_s, _ in gpu.history), (
            "profiled from its beginning"
        )


@pytest.mark.parametrize(
    ("state", "away_s"), [("lost", 1.0), ("lost", 12.0), ("lost", 20.0), (None, 5.0), (None, 200.0)]
)
async def test_a_process_that_takes_the_place_of_one_that_is_gone_has_an_account_of_its_own(
    tmp_path: Path, state: str | None, away_s: float
) -> None:
    """Whether the former one was seen to go or not: energy is of the iterations beside it."""
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK)
    first, second = (Training(site, rate=lambda limit_w: 10 * rate_per_s(limit_w), pid=pid) for pid in (100, 200))
    async with site.controlled():
        await first.train(600)
        if state is not None:
            first.tell(state)
        await asyncio.sleep(away_s)
        begin_s = site.clock.now_s()
        await second.train(400)
        second.tell("finished")
        await asyncio.sleep(20)
    one, other = [energy for energy in site.energies() if energy.final]
    assert first.begin_s is not None
    assert (one.state, one.iterations) == (state or "silent", first.n_iterations)
    assert one.energy_j == pytest.approx(energy_j(gpu, first.begin_s, first.end_s), rel=0.02)
    conflict_s = site.clock.now_s() - 20 - begin_s - other.duration_s
    assert conflict_s < 65, "for as long as two processes may be at it, nothing is counted"
    assert other.iterations == pytest.approx(second.n_iterations * other.duration_s / 400, rel=0.02)
    assert other.energy_j == pytest.approx(energy_j(gpu, second.end_s - other.duration_s, second.end_s), rel=0.02)


@pytest.mark.parametrize("stuck_s", [1.0, 30.0])
async def test_a_limit_that_is_being_given_back_when_the_next_run_begins_is_not_its_prior_one(
    tmp_path: Path, stuck_s: float
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK)
    folds = [Training(site, rate=lambda limit_w: 10 * rate_per_s(limit_w), pid=pid) for pid in (100, 200)]
    async with site.controlled():
        await folds[0].train(180)
        lowered_w = gpu.requested_power_limit_w
        gpu.hold = asyncio.Event()
        folds[0].tell("finished")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(folds[1].train(180))
            await asyncio.sleep(stuck_s)
            assert lowered_w == gpu.requested_power_limit_w < PRIOR_W
            gpu.hold.set()
        assert gpu.history[-1][1] < PRIOR_W, "it is planned"
        folds[1].tell("finished")
        await asyncio.sleep(20)
        assert gpu.requested_power_limit_w == PRIOR_W
    assert max(limit_w for _, limit_w in gpu.history) == PRIOR_W
