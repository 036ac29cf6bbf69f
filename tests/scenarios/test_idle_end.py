"""A training that has ended although its process lives, and one that only seemed to have: on virtual time."""

import asyncio
from pathlib import Path

import pytest

from tests.scenarios.site import FINE, HOUR_S, PRIOR_W, Site, Training, energy_j, prior_gpu

IDLE_S = 60.0
END_S = 5.0
TICK_S = 5.5
"""The controller acts every 5 s."""


def reasons(site: Site) -> list[str]:
    """Return why the limit was what it was, each reason once in a row."""
    found = [change.reason for change in site.limits(site.gpus[0])]
    return [reason for k, reason in enumerate(found) if k == 0 or reason != found[k - 1]]


@pytest.mark.parametrize(("total", "after_s", "reason"), [(None, IDLE_S, "idle"), (2_500, END_S, "run_at_its_end")])
async def test_the_limit_is_given_back_although_the_process_lives(
    tmp_path: Path, total: int | None, after_s: float, reason: str
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE)
    training = Training(site, total_iterations=total)
    async with site.controlled():
        if total is None:
            await training.train(HOUR_S + 300.0)  # no look is under way
        else:
            while training.n_iterations < total:
                await training.train(1.0)
        assert gpu.requested_power_limit_w < PRIOR_W
        await training.pause(after_s - 0.5)
        assert gpu.requested_power_limit_w < PRIOR_W
        await training.pause(0.5 + TICK_S)
        assert gpu.requested_power_limit_w == PRIOR_W
        await training.pause(TICK_S)
        assert reasons(site)[-1] == reason
        await training.pause(HOUR_S)  # a notebook
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert training.begin_s is not None
    assert (final.final, final.iterations) == (True, training.n_iterations)
    assert final.duration_s == pytest.approx(training.end_s - training.begin_s, abs=2)
    assert final.energy_j == pytest.approx(energy_j(gpu, training.begin_s, training.end_s), rel=1e-3)


@pytest.mark.parametrize("gap_s", [90.0, 2 * HOUR_S])
async def test_a_training_that_goes_on_gets_its_limit_back_and_keeps_its_curve(tmp_path: Path, gap_s: float) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    training = Training(site)
    async with site.controlled():
        await training.train(HOUR_S)
        before_w = gpu.requested_power_limit_w
        n_measured = reasons(site).count("profiling")
        await training.pause(gap_s)
        assert gpu.requested_power_limit_w == PRIOR_W
        await training.train(HOUR_S)
        assert gpu.requested_power_limit_w == pytest.approx(before_w, rel=0.1)
        assert reasons(site).count("profiling") == n_measured
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert training.begin_s is not None
    assert final.duration_s == pytest.approx(training.end_s - training.begin_s, abs=3)
    assert final.energy_j == pytest.approx(energy_j(gpu, training.begin_s, training.end_s), rel=2e-3)
    assert final.slowdown_ratio is not None
    assert final.slowdown_ratio < 1.035


async def test_a_validation_in_each_epoch_that_nobody_tells_of_is_taken_for_an_end_once(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()])
    training = Training(site)
    async with site.controlled():
        await training.train(HOUR_S)
        for epoch in range(6):
            await training.train(600.0, epoch=epoch)
            await training.pause(100.0)
        training.publish_status("finished")
        await asyncio.sleep(60)
    assert reasons(site).count("idle") == 1


async def test_neither_long_iterations_nor_a_validation_that_is_told_of_end_the_hold(tmp_path: Path) -> None:
    slow = Site(tmp_path / "slow", [prior_gpu()])
    training = Training(slow, rate=lambda power_limit_w: 0.005 * (power_limit_w / PRIOR_W) ** 0.3)
    async with slow.controlled():
        await training.train(4 * HOUR_S)
        training.publish_status("finished")
        await asyncio.sleep(1_500)
    told = Site(tmp_path / "told", [prior_gpu()])
    training = Training(told)
    async with told.controlled():
        await training.train(2_400.0)
        training.set(in_pause=True)
        await training.pause(1_800.0)
        training.set(in_pause=False)
        await training.train(600.0)
        training.publish_status("finished")
        await asyncio.sleep(60)
    assert "idle" not in {*reasons(slow), *reasons(told)}
