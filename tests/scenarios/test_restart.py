"""The controller restarts, or the wall clock is stepped, while training goes on."""

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from controller.accounting.ranks import LOST_GRACE_S
from controller.errors import GpuLostError
from policies.providers.sources.constant import ConstantProvider
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import cost
from publishers.messages.codec import decode
from publishers.messages.reports import GpuEnergy
from tests.fakes import MIDNIGHT_S, FakeGpu, FixedProvider, LoopClock, SteppedClock
from tests.scenarios.multi_node_site import MultiNodeSite
from tests.scenarios.site import (
    ANY_PROVIDER,
    FINE,
    HOUR_S,
    NODE,
    POWER_RATIO,
    PRIOR_W,
    TOPICS,
    Site,
    Training,
    energy_j,
    prior_gpu,
    rate_per_s,
    told_saving,
)


@pytest.mark.parametrize("away_s", [20.0, 1_800.0])
async def test_after_a_restart_the_account_is_that_of_the_whole_run(
    tmp_path: Path, away_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], "energy.period_s=10")
    training = Training(site)
    async with site.controlled():
        await training.train(HOUR_S)
    await training.train(away_s)
    async with site.controlled():
        await training.train(HOUR_S)
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert training.begin_s is not None
    assert (final.final, final.iterations) == (True, training.n_iterations)
    assert final.duration_s == pytest.approx(training.end_s - training.begin_s, abs=2)
    assert final.energy_j == pytest.approx(energy_j(gpu, training.begin_s, training.end_s), rel=1e-3)
    assert final.saved_ratio is not None
    assert final.saved_ratio > 0
    assert gpu.requested_power_limit_w == PRIOR_W
    top_j = training.n_iterations * POWER_RATIO * PRIOR_W / rate_per_s(PRIOR_W)
    lower, upper = told_saving(caplog.text)
    assert lower <= 1 - energy_j(gpu, training.begin_s, training.end_s) / top_j <= upper


@pytest.mark.parametrize(("first", "second"), [([0, 1], [1]), ([1], [0, 1])])
async def test_with_fewer_or_more_gpus_after_a_restart_each_part_has_its_own_ratios(
    tmp_path: Path, first: Sequence[int], second: Sequence[int]
) -> None:
    gpus = [prior_gpu(f"GPU-{index}", index) for index in range(2)]
    gpus[0].draw_w = lambda limit_w: min(limit_w, 150.0)  # saves less than the other one
    site = Site(tmp_path, gpus)
    before, after = (Training(site, [gpus[index] for index in chosen]) for chosen in (first, second))
    async with site.controlled():
        await before.train(HOUR_S)
    for gpu in gpus:
        gpu.pids = frozenset()
    after._seq, after._n_marks, after.n_iterations = before._seq, before._n_marks, before.n_iterations
    async with site.controlled():
        await after.train(HOUR_S)
        after.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    top_s = [n / rate_per_s(PRIOR_W) for n in (before.n_iterations, after.n_iterations - before.n_iterations)]
    top_j = sum(
        seconds * sum(gpu.draw_w(PRIOR_W) for gpu in each.gpus)
        for seconds, each in zip(top_s, (before, after), strict=True)
    )
    assert final.iterations == after.n_iterations
    assert final.evidence == "measured"
    # The boards here do not warm, as others do: what a run without a thermometer takes for usual is 0.003 too much.
    assert final.saved_ratio == pytest.approx(1 - final.energy_j / top_j, abs=0.004)
    assert final.slowdown_ratio == pytest.approx(final.duration_s / sum(top_s), abs=0.003)


async def test_a_pause_during_downtime_need_not_be_made_up_for(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()])
    training = Training(site)
    async with site.controlled():
        await training.train(2 * HOUR_S)
    await training.train(20)
    await training.pause(600)
    async with site.controlled():
        await training.train(2 * HOUR_S)
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert final.slowdown_ratio == pytest.approx(1.03, abs=0.004)


@pytest.mark.parametrize("away_s", [10.0, 300.0, 2 * HOUR_S])
async def test_a_training_that_its_launcher_starts_again_goes_on_with_its_books(tmp_path: Path, away_s: float) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    first, second = Training(site, pid=100), Training(site, pid=200)
    async with site.controlled():
        await first.train(HOUR_S)
        first.publish_status("lost")
        await asyncio.sleep(away_s)
        assert gpu.requested_power_limit_w == PRIOR_W
        n_measured = [change.reason for change in site.limits(gpu)].count("profiling")
        await second.train(HOUR_S)
        assert gpu.requested_power_limit_w < PRIOR_W
        second.publish_status("finished")
        await asyncio.sleep(60)
    assert [change.reason for change in site.limits(gpu)].count("profiling") == n_measured
    final = site.energies()[-1]
    assert first.begin_s is not None
    assert second.begin_s is not None
    spans = [(first.begin_s, first.end_s), (second.begin_s, second.end_s)]
    if away_s < LOST_GRACE_S:
        spans = [(first.begin_s, second.end_s)]
    assert (final.final, final.state, final.incomplete) == (True, "finished", [])
    assert final.iterations == first.n_iterations + second.n_iterations
    assert final.duration_s == pytest.approx(sum(end_s - begin_s for begin_s, end_s in spans), abs=12)
    assert final.energy_j == pytest.approx(sum(energy_j(gpu, *span) for span in spans), rel=3e-3)
    assert final.slowdown_ratio is not None
    assert final.slowdown_ratio < 1.035


async def test_a_process_that_died_during_downtime_is_not_charged_for_it(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, [prior_gpu()], FINE)
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
    site = MultiNodeSite(tmp_path)
    away, stays = (site.a, site.b) if restarted == "leader" else (site.b, site.a)
    async with AsyncExitStack() as whole_run:
        await whole_run.enter_async_context(stays.controlled())
        async with away.controlled():
            await site.train(HOUR_S)
        await site.train(120.0)
        await whole_run.enter_async_context(away.controlled())
        await site.train(HOUR_S / 4)
        for rank in site.ranks:
            rank.publish_status("finished")
        await asyncio.sleep(60)
    final = site.a.energies()[-1]
    assert final.final
    assert final.baseline_energy_j is not None
    assert final.saved_ratio is not None
    assert final.saved_ratio > 0
    first = site.ranks[0]
    assert first.begin_s is not None
    assert final.duration_s == pytest.approx(first.end_s - first.begin_s, abs=5), "each part ends with an iteration"


@pytest.mark.parametrize("factor", [2.0, 0.5])
async def test_a_job_that_drifted_before_a_restart_keeps_its_time_budget_after_it(
    tmp_path: Path, factor: float
) -> None:
    """Without the start of its time budget, the time on the former curve would be measured by the new one."""
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    changed_s = site.clock.now_s() + HOUR_S
    training = Training(site, rate=lambda w: rate_per_s(w) / (1 if site.clock.now_s() < changed_s else factor))
    async with site.controlled():
        await training.train(3 * HOUR_S)
    states = [report.state for report in site.profiles()]
    assert "profiling" in states[states.index("planned") :], "the drift is known before the restart"
    await training.train(5)
    async with site.controlled():
        n_before, begin_s = training.n_iterations, site.clock.now_s()
        await training.train(3 * HOUR_S)
    ideal_s = factor * (training.n_iterations - n_before) / rate_per_s(PRIOR_W)
    assert 1.015 < (site.clock.now_s() - begin_s) / ideal_s < 1.032


async def counters_j(gpus: Sequence[FakeGpu]) -> float:
    """Return what the counters of GPUs show together [J]."""
    return sum([(await gpu.read_sample()).energy_j or 0.0 for gpu in gpus])


async def test_ranks_that_return_seconds_apart_keep_the_energy_of_each_gpu(tmp_path: Path) -> None:
    """The second GPU draws much more while no controller reads it, which its counter knows."""
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    site = Site(tmp_path, gpus, FINE, "profiler.settle_s=2", "profiler.window_s=10")
    ranks = [Training(site, gpus, references=[gpu.uuid], rank=rank, world_size=2) for rank, gpu in enumerate(gpus)]

    async def train(duration_s: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for rank in ranks:
                tasks.create_task(rank.train(duration_s))

    async with site.controlled():
        await train(600.0)
    before_j, counted_j = site.energies()[-1].energy_j, await counters_j(gpus)
    gpus[1].draw_w = lambda _: 320.0
    await train(300.0)
    await gpus[1].read_sample()
    gpus[1].draw_w = gpus[0].draw_w
    for topic in [topic for topic in site.bus.retained if "/rank/1/" in topic]:
        del site.bus.retained[topic]
    async with site.controlled():
        await train(60.0)
        counted_j = await counters_j(gpus) - counted_j
    assert site.energies()[-1].energy_j - before_j == pytest.approx(counted_j, rel=0.02)


async def test_a_restart_with_a_price_prices_the_whole_run_that_counted_grams(tmp_path: Path) -> None:
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
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = price.energies()[-1]
    assert (final.final, final.carbon_g) == (True, None)
    assert final.cost == pytest.approx(cost(final.energy_j, 0.3), rel=1e-3)


PLAN_S = 300.0


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
        before_s, n_before, n_changes = site.energies()[-1].duration_s, meter_times(site), len(gpu.history)
        clock.step_s = step_s
        await job.train(1_200)
        assert site.energies()[-1].duration_s == pytest.approx(before_s + 1_200, abs=20)
        assert meter_times(site) - n_before == pytest.approx(240, abs=5)
        assert len(gpu.history) >= n_changes + 1, "planned anew, with the value of the hour"


def meter_times(site: Site) -> int:
    """Return how often a GPU's energy was published."""
    return len([decode(p, GpuEnergy) for p in site.bus.payloads(TOPICS.gpu(NODE, site.gpus[0].uuid, "energy"))])


async def test_no_record_after_a_kill_is_older_than_the_last_one_before_it(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site, after = Site(tmp_path / "state", [gpu], FINE), Site(tmp_path / "killed", [gpu], FINE)
    after.bus = site.bus
    training = Training(site)
    async with site.controlled():
        await training.train(1_007.0)
        shutil.copytree(tmp_path / "state", tmp_path / "killed", ignore=shutil.ignore_patterns("*.new"))
    await training.train(20.0)
    async with after.controlled():
        await training.train(100.0)
    energies_j = [record.energy_j for record in site.energies()]
    assert len(energies_j) > 200
    assert energies_j == sorted(energies_j)
    assert site.energies()[-1].incomplete == []


async def test_a_run_that_began_before_its_gpu_could_be_read_says_that_this_is_missing(tmp_path: Path) -> None:
    gpu = prior_gpu()
    gpu.errors = {"read_sample": GpuLostError("not yet", gpu_uuid=gpu.uuid, operation="read_sample")}
    site = Site(tmp_path, [gpu])
    training = Training(site)
    async with site.controlled():
        await training.train(40.0)
        gpu.errors = {}
        await training.train(160.0)
        assert site.energies()[-1].incomplete == ["unmeasured"]
        await training.train(2 * HOUR_S)
        assert site.energies()[-1].incomplete == [], "by now it is less than a hundredth"
