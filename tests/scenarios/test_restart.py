"""A controller that is restarted in the middle of a run, on virtual time: its books go on, and so do its promises."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from policies.providers.constant import ConstantProvider
from policies.units import cost
from tests.scenarios.fleet import HOUR_S, Fleet
from tests.scenarios.site import ANY_PROVIDER, PRIOR_W, Site, Training, energy_j, prior_gpu, rate_per_s


@pytest.mark.parametrize("away_s", [20.0, 1_800.0])
async def test_after_a_restart_the_account_is_that_of_the_whole_run(tmp_path: Path, away_s: float) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    training = Training(site)
    async with site.controlled():
        await training.train(2 * HOUR_S)
    await training.train(away_s)
    async with site.controlled():
        await training.train(2 * HOUR_S)
        training.tell("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert training.begin_s is not None
    assert (final.final, final.iterations) == (True, training.n_iterations)
    assert final.duration_s == pytest.approx(training.end_s - training.begin_s, abs=2)
    assert final.energy_j == pytest.approx(energy_j(gpu, training.begin_s, training.end_s), rel=1e-3)
    assert final.saved_ratio is not None
    assert final.saved_ratio > 0
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_a_pause_while_nobody_listened_is_no_time_that_has_to_be_made_up(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()])
    training = Training(site)
    async with site.controlled():
        await training.train(3 * HOUR_S)
    await training.train(20)
    await training.pause(600)
    async with site.controlled():
        await training.train(3 * HOUR_S)
        training.tell("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert final.slowdown_ratio == pytest.approx(1.03, abs=0.004)


async def test_a_process_that_died_while_nobody_listened_is_not_charged_for_what_the_gpu_did_since(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, [prior_gpu()])
    training = Training(site)
    async with site.controlled():
        await training.train(3_000.0)
    await asyncio.sleep(10 * HOUR_S)
    async with site.controlled():
        await asyncio.sleep(200)
    final = site.energies()[-1]
    assert (final.final, final.state) == (True, "silent")
    assert final.duration_s == pytest.approx(3_000, abs=15)


@pytest.mark.parametrize("restarted", ["leader", "follower"])
async def test_whichever_node_of_a_run_is_restarted_the_run_keeps_its_baseline(tmp_path: Path, restarted: str) -> None:
    fleet = Fleet(tmp_path)
    away, stays = (fleet.a, fleet.b) if restarted == "leader" else (fleet.b, fleet.a)
    async with AsyncExitStack() as whole_run:
        await whole_run.enter_async_context(stays.controlled())
        async with away.controlled():
            await fleet.train(HOUR_S)
        await fleet.train(120.0)
        await whole_run.enter_async_context(away.controlled())
        await fleet.train(HOUR_S)
        for rank in fleet.ranks:
            rank.tell("finished")
        await asyncio.sleep(60)
    final = fleet.a.energies()[-1]
    assert final.final
    assert final.baseline_energy_j is not None
    assert final.saved_ratio is not None
    assert final.saved_ratio > 0
    assert final.duration_s == pytest.approx(2 * HOUR_S + 120, abs=5)


@pytest.mark.parametrize("factor", [2.0, 0.5])
async def test_a_job_that_had_become_another_before_a_restart_is_kept_within_its_budget_after_it(
    tmp_path: Path, factor: float
) -> None:
    """Without where its ledger starts, what ran on the former curve would be measured by the new one."""
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    changed_s = site.clock.now_s() + 3 * HOUR_S
    training = Training(site, rate=lambda w: rate_per_s(w) / (1 if site.clock.now_s() < changed_s else factor))
    async with site.controlled():
        await training.train(5 * HOUR_S)
    await training.train(5)
    async with site.controlled():
        n_before, begin_s = training.n_iterations, site.clock.now_s()
        await training.train(5 * HOUR_S)
    ideal_s = factor * (training.n_iterations - n_before) / rate_per_s(PRIOR_W)
    assert 1.015 < (site.clock.now_s() - begin_s) / ideal_s < 1.032


async def test_ranks_that_come_back_seconds_apart_keep_what_each_gpu_has_used_meanwhile(tmp_path: Path) -> None:
    """The second GPU draws much more while no controller reads it, which its counter knows."""
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    site = Site(tmp_path, gpus, "profiler.settle_s=2", "profiler.window_s=10")
    ranks = [Training(site, gpus, references=[gpu.uuid], rank=rank, world_size=2) for rank, gpu in enumerate(gpus)]

    async def train(duration_s: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for rank in ranks:
                tasks.create_task(rank.train(duration_s))

    async with site.controlled():
        await train(600.0)
    before_j = site.energies()[-1].energy_j
    gpus[1].draw_w = lambda _: 1_000.0
    await train(300.0)
    await gpus[1].read_sample()
    gpus[1].draw_w = gpus[0].draw_w
    for topic in [topic for topic in site.bus.retained if "/rank/1/" in topic]:
        del site.bus.retained[topic]
    async with site.controlled():
        await train(60.0)
    assert site.energies()[-1].energy_j - before_j > 300 * 1_000.0


async def test_a_run_that_was_counted_in_grams_is_priced_whole_where_a_restart_brought_a_price(tmp_path: Path) -> None:
    gpu = prior_gpu()
    carbon, price = (
        Site(tmp_path, [gpu], f"signal.kind={kind}", "signal.zone=XX", ANY_PROVIDER, providers=[provider])
        for kind, provider in (
            ("carbon", ConstantProvider(400.0, kind="average", unit="g/kWh")),
            ("price", ConstantProvider(0.3, kind="price", unit="EUR/kWh")),
        )
    )
    price.bus, price.clock = carbon.bus, carbon.clock
    training = Training(carbon)
    async with carbon.controlled():
        await training.train(1_000.0)
    async with price.controlled():
        await training.train(1_000.0)
        training.tell("finished")
        await asyncio.sleep(60)
    final = price.energies()[-1]
    assert (final.final, final.carbon_g) == (True, None)
    assert final.cost == pytest.approx(cost(final.energy_j, 0.3), rel=1e-3)
