"""What a controller does by the runs that it, or the one before it, remembers."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.history.run_history import JobKey, RunHistory
from policies.savings.holdout import is_held_out
from tests.controller.history.outcomes import outcome
from tests.fakes import USER, FakeGpu
from tests.scenarios.multi_node_site import MultiNodeSite
from tests.scenarios.site import Site, Training, prior_gpu

KEY = JobKey(USER, "resnet50")


def remember(state_dir: Path, n_runs: int, **changes: object) -> None:
    """Let a former controller have led runs, one after the other."""
    with RunHistory(state_dir) as history:
        for number in range(n_runs):
            history.begin(KEY, f"former-{number}")
            history.end(KEY, outcome(f"former-{number}", **changes))


async def test_how_long_former_runs_were_is_planned_by(tmp_path: Path) -> None:
    gpu = prior_gpu()
    remember(tmp_path, 3, batch_size=256, n_iterations=500.0)
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        training = Training(site)
        await training.train(900.0)
        training.publish_status("finished")
        await asyncio.sleep(60)
    details = [change.detail for change in site.limits(gpu) if change.reason.startswith(("slowdown", "behind"))]
    assert details
    assert all("as guessed from 3 former runs" in detail for detail in details)
    with RunHistory(tmp_path) as history:
        *_, ended = history.ended(KEY)
    assert (ended.run, ended.number, ended.n_iterations) == ("run-1", 3, training.n_iterations)


def held_out_numbers(n_runs: int) -> list[int]:
    """Return which of a job's runs are held out, of every other one."""
    return [number for number in range(n_runs) if is_held_out("/".join(KEY), number, holdout_ratio=0.5)]


async def test_a_run_held_out_keeps_its_prior_limit_and_is_told_to_have_saved_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gpu = prior_gpu()
    number = held_out_numbers(8)[-1]
    remember(tmp_path, number, batch_size=256, gpu_model=gpu.model)
    site = Site(tmp_path, [gpu], "plan.holdout_ratio=0.5")
    async with site.controlled():
        training = Training(site)
        await training.train(900.0)
        training.publish_status("finished")
        await asyncio.sleep(60)
    assert gpu.history == []
    assert {profile.state for profile in site.profiles()} <= {"waiting", "observing"}
    *_, running, final = site.energies()
    assert (running.reason, final.reason) == ("held_out", "held_out")
    assert (final.evidence, final.saved_energy_ratio, final.slowdown_ratio) == ("nothing_changed", 0.0, 1.0)
    assert final.ab_held_out_runs is not None
    assert "A/B: " in caplog.text
    with RunHistory(tmp_path) as history:
        *_, ended = history.ended(KEY)
    assert (ended.number, ended.is_held_out) == (number, True)


async def train_under_two_controllers(state_dir: Path, gpu: FakeGpu, **plan: Any) -> Site:  # noqa: ANN401 — the record checks them
    """Hold a run out, and let it go on under another controller, whose plan differs."""
    remember(state_dir, held_out_numbers(8)[-1])
    site = Site(state_dir, [gpu], "plan.holdout_ratio=0.5")
    training = Training(site, total_iterations=10_000)
    async with site.controlled():
        await training.train(300.0)
    assert gpu.history == []
    changed = msgspec.structs.replace(site.config.plan, **plan)
    site.config = msgspec.structs.replace(site.config, plan=changed)
    async with site.controlled():
        await training.train(300.0)
    return site


async def test_a_run_held_out_stays_so_under_the_next_controller(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = await train_under_two_controllers(tmp_path, gpu, holdout_ratio=0.0)
    assert (gpu.history, site.energies()[-1].reason) == ([], "held_out")


async def test_a_run_held_out_that_gets_a_deadline_is_held_out_no_more(tmp_path: Path) -> None:
    gpu = prior_gpu()
    await train_under_two_controllers(tmp_path, gpu, objective="deadline", deadline="8h")
    assert gpu.history != []


@pytest.mark.parametrize("objective", ["objective=deadline", "objective=budget"])
async def test_a_deadline_or_a_budget_is_never_held_out(tmp_path: Path, objective: str) -> None:
    gpu = prior_gpu()
    remember(tmp_path, held_out_numbers(8)[-1])
    site = Site(tmp_path, [gpu], "plan.holdout_ratio=0.5", f"plan.{objective}", "plan.deadline=8h", "plan.budget=1e6")
    async with site.controlled():
        await Training(site, total_iterations=10_000).train(300.0)
    assert gpu.history != []


async def test_the_other_nodes_of_a_run_held_out_are_told_by_the_plan(tmp_path: Path) -> None:
    remember(tmp_path / "node-a", held_out_numbers(8)[-1])
    site = MultiNodeSite(tmp_path, "plan.holdout_ratio=0.5")
    async with site.controlled():
        await site.train(300)
        part = site.b.parts()[-1]
        assert (part.state, part.reason) == ("waiting", "held_out")
        for rank in site.ranks:
            rank.publish_status("finished")
        await asyncio.sleep(60)
    assert (site.gpu_a.history, site.gpu_b.history) == ([], [])
    with RunHistory(tmp_path / "node-a") as history:
        *_, ended = history.ended(KEY)
    assert (ended.is_held_out, ended.n_gpus, ended.world_size) == (True, 2, 2)
    assert ended.energy_j == pytest.approx(site.a.energies()[-1].energy_j)
    with RunHistory(tmp_path / "node-b") as history:
        assert history.ended(KEY) == ()
