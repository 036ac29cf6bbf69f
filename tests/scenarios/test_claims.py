"""Runs that compete for GPUs or for a name."""

import asyncio
from pathlib import Path

import pytest

from tests.fakes import FakeGpu
from tests.scenarios.site import FINE, LADDER_W, PRIOR_W, Site, Training, energy_j, prior_gpu, rate_per_s


def two_gpus() -> list[FakeGpu]:
    """Return two GPUs at their prior limits."""
    return [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]


async def train(*trainings: Training, duration_s: float) -> None:
    """Train several processes at once."""
    async with asyncio.TaskGroup() as tasks:
        for training in trainings:
            tasks.create_task(training.train(duration_s))


async def test_a_gpu_of_another_run_is_granted_when_it_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    first, second = Training(site), Training(site, job="bert", run="run-2")
    async with site.controlled():
        await train(first, second, duration_s=500)
        assert {change.job for change in site.limits(gpu)} == {"resnet50"}
        assert site.profiles("bert", "run-2")[-1].state == "observing"
        first.publish_status("finished")
        await second.train(600)
        assert {change.job for change in site.limits(gpu)[-2:]} == {"bert"}
        assert len(site.profiles("bert", "run-2")[-1].points) >= 2
    assert caplog.text.count("GPU-fake-0 belongs to alice/resnet50/run-1") == 1, "logged once, not at each heartbeat"


@pytest.mark.parametrize("duration_s", [60, 700])
async def test_runs_back_to_back_are_each_measured_from_beginning_to_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, duration_s: float
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE)
    runs = [Training(site, run=run, pid=pid) for pid, run in enumerate(("run-1", "run-2", "run-3"), start=1)]
    async with site.controlled():
        for run in runs:
            await run.train(duration_s)
            run.publish_status("finished")
        await asyncio.sleep(30)
    for number, run in enumerate(runs, start=1):
        begin_s, end_s = run.begin_s or 0.0, run.end_s
        (final,) = (energy for energy in site.energies(run=f"run-{number}") if energy.final)
        assert (final.n_gpus, final.gpu_model, final.iterations) == (1, gpu.model, run.n_iterations)
        assert final.duration_s == pytest.approx(end_s - begin_s, abs=0.01)
        assert final.energy_j == pytest.approx(energy_j(gpu, begin_s, end_s), rel=0.02)
    assert gpu.requested_power_limit_w == PRIOR_W
    assert "no limit is set" not in caplog.text


async def test_a_run_that_names_a_gpu_that_is_not_there_gets_no_limits_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    stranger = Training(site, job="bert", run="run-2", references=["GPU-elsewhere"])
    async with site.controlled():
        await train(Training(site), stranger, duration_s=500)
        assert gpu.requested_power_limit_w < PRIOR_W
    assert site.profiles("bert", "run-2")[-1].state == "observing"
    assert "there is no GPU 'GPU-elsewhere' on this node; it has 0 = GPU-fake-0" in caplog.text


async def test_two_processes_on_one_rank_get_no_limits_until_one_is_gone(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    first, second = Training(site, pid=1), Training(site, pid=2)
    async with site.controlled():
        await first.train(400)
        assert gpu.requested_power_limit_w < PRIOR_W
        await train(first, second, duration_s=200)
        assert gpu.requested_power_limit_w == PRIOR_W
        assert site.profiles()[-1].state == "observing"
        second.publish_status("lost")
        await first.train(900)
    assert len(site.profiles()[-1].points) == 6
    assert all(point.iterations_per_s < 0.51 for point in site.profiles()[-1].points), "never of both together"


async def test_when_one_of_two_processes_on_a_rank_goes_the_other_gets_its_limits(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    first, second = Training(site, pid=1), Training(site, pid=2)
    async with site.controlled():
        await train(first, second, duration_s=100)
        assert gpu.history == []
        first.publish_status("lost")
        await second.train(600)
        assert gpu.requested_power_limit_w < PRIOR_W


async def test_a_run_without_processes_ends_when_another_needs_its_gpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one that was broken off by Ctrl-C and is begun again: another process, another run."""
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    broken_off, again = Training(site, pid=1), Training(site, run="run-2", pid=2)
    async with site.controlled():
        await broken_off.train(60)
        broken_off.publish_status("lost")
        await again.train(600)
        assert gpu.requested_power_limit_w < PRIOR_W
    assert "no limit is set" not in caplog.text
    assert (site.energies()[-1].state, site.energies()[-1].final) == ("lost", True)
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_a_process_that_only_claims_a_rank_gets_none_of_the_gpus_that_it_names(tmp_path: Path) -> None:
    gpus = two_gpus()
    site = Site(tmp_path, gpus)
    first, intruder = Training(site, [gpus[0]], pid=1), Training(site, [gpus[1]], pid=2)
    async with site.controlled():
        await first.train(50)
        intruder.publish_status()
        await first.train(900)
    assert gpus[1].history == []
    assert site.profiles()[-1].n_gpus == 1


async def test_a_run_with_one_rejected_claim_gets_no_limits_at_all(tmp_path: Path) -> None:
    gpus = two_gpus()
    site = Site(tmp_path, gpus)
    owner = Training(site, [gpus[1]], job="bert", run="run-2")
    ranks = [Training(site, [gpus[0]], world_size=2), Training(site, [gpus[1]], rank=1, world_size=2)]
    async with site.controlled():
        await owner.train(20)
        await train(owner, ranks[0], duration_s=3)  # the heartbeats of the two ranks lie seconds apart
        ranks[1].publish_status()
        await train(owner, *ranks, duration_s=500)
        assert gpus[0].history == []
        assert len(site.limits(gpus[0])) <= 2, "no limit comes and goes with the heartbeats"
        assert {change.job for change in site.limits(gpus[1])} == {"bert"}
        owner.publish_status("finished")
        await train(*ranks, duration_s=1_000)
        assert [limit_w for _, limit_w in gpus[0].history][:3] == LADDER_W[1:4]
    final = site.profiles()[-1]
    assert final.n_gpus == 2
    assert final.points[-1].power_w == pytest.approx(2 * 0.9 * PRIOR_W, rel=1e-3)


async def test_a_rank_that_comes_late_joins_and_the_run_is_profiled_anew_with_both_gpus(tmp_path: Path) -> None:
    gpus = two_gpus()
    site = Site(tmp_path, gpus)
    ranks = [Training(site, [gpus[0]], world_size=2), Training(site, [gpus[1]], rank=1, world_size=2)]
    async with site.controlled():
        await ranks[0].train(60)
        await train(*ranks, duration_s=1_200)
        assert gpus[0].requested_power_limit_w == gpus[1].requested_power_limit_w
    for point in site.profiles()[-1].points:
        assert point.power_w == pytest.approx(2 * 0.9 * point.power_limit_w, rel=1e-3)
    assert len(site.profiles()[-1].points) == 6


async def test_a_late_gpu_does_not_make_the_energy_so_far_count_twice(tmp_path: Path) -> None:
    gpus = two_gpus()
    site = Site(tmp_path, gpus)
    ranks = [Training(site, [gpus[0]], world_size=2), Training(site, [gpus[1]], rank=1, world_size=2)]
    async with site.controlled():
        await ranks[0].train(300)
        before_j = site.energies()[-1].energy_j
        await train(*ranks, duration_s=20)
        assert site.energies()[-1].energy_j < before_j + 2 * 0.9 * PRIOR_W * 40


async def test_ranks_of_another_boot_are_left_to_their_own_controller(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        await Training(site, boot_id="another-machine").train(300)
    assert (site.profiles(), site.limits(gpu), gpu.history) == ([], [], [])


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
            fold.publish_status("finished")
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
async def test_a_process_that_takes_the_place_of_a_dead_one_goes_on_with_its_books(
    tmp_path: Path, state: str | None, away_s: float
) -> None:
    """Whether the former one was seen to go or not, and whether its record was out already or not."""
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK)
    first, second = (Training(site, rate=lambda limit_w: 10 * rate_per_s(limit_w), pid=pid) for pid in (100, 200))
    async with site.controlled():
        await first.train(600)
        if state is not None:
            first.publish_status(state)
        await asyncio.sleep(away_s)
        begin_s = site.clock.now_s()
        await second.train(400)
        second.publish_status("finished")
        await asyncio.sleep(20)
    *before, last = [energy for energy in site.energies() if energy.final]
    assert first.begin_s is not None
    first_j = energy_j(gpu, first.begin_s, first.end_s)
    for one in before:
        assert (one.state, one.iterations) == (state or "silent", first.n_iterations)
        assert one.energy_j == pytest.approx(first_j, rel=0.02)
    n_iterations = first.n_iterations + second.n_iterations
    n_in_conflict = second.n_iterations * 65 / 400  # as long as two processes may be at it, nothing is counted
    assert n_iterations - n_in_conflict <= last.iterations <= n_iterations
    assert last.energy_j == pytest.approx(first_j + energy_j(gpu, begin_s, second.end_s), rel=0.02)


@pytest.mark.parametrize("stuck_s", [1.0, 30.0])
async def test_a_limit_that_is_still_being_restored_is_not_the_next_runs_prior_one(
    tmp_path: Path, stuck_s: float
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK)
    folds = [Training(site, rate=lambda limit_w: 10 * rate_per_s(limit_w), pid=pid) for pid in (100, 200)]
    async with site.controlled():
        await folds[0].train(180)
        lowered_w = gpu.requested_power_limit_w
        gpu.write_gate = asyncio.Event()
        folds[0].publish_status("finished")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(folds[1].train(180))
            await asyncio.sleep(stuck_s)
            assert lowered_w == gpu.requested_power_limit_w < PRIOR_W
            gpu.write_gate.set()
        assert gpu.history[-1][1] < PRIOR_W, "it is planned"
        folds[1].publish_status("finished")
        await asyncio.sleep(20)
        assert gpu.requested_power_limit_w == PRIOR_W
    assert max(limit_w for _, limit_w in gpu.history) == PRIOR_W
