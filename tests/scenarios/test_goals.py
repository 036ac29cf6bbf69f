"""A run whose time budget a person has set: the plan follows it, over a restart, and the configured one after it."""

import asyncio
from pathlib import Path

import pytest

from controller.orders.standing import content_of
from controller.ports.orders import Goal
from tests.fakes import KEY, MIDNIGHT_S
from tests.scenarios.site import HOUR_S, PRIOR_W, Site, Training, prior_gpu, rate_per_s

UNTIL_S = MIDNIGHT_S + 3 * HOUR_S


def aim(state_dir: Path, max_slowdown_ratio: float) -> None:
    """Leave a goal as a former controller does that was stopped while it was in force."""
    goal = Goal(max_slowdown_ratio=max_slowdown_ratio, set_at_s=MIDNIGHT_S, until_s=UNTIL_S, why="it is hot", by="ada")
    state_dir.mkdir(parents=True, exist_ok=True)
    (state_dir / "goals.json").write_bytes(content_of("goals", {KEY: goal}))


async def test_a_budget_outlasts_a_restart_and_ends_at_its_time(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], "plan.max_slowdown=1.0")
    async with site.controlled():
        training = Training(site, total_iterations=100_000)
        await training.train(HOUR_S / 2)
        schedule = site.schedules()[-1]
        assert (gpu.requested_power_limit_w, schedule and schedule.max_slowdown_ratio) == (PRIOR_W, 1.0)
        assert schedule is not None
        assert schedule.budget_since_s is None, "it counts from the beginning of the run"
    aim(tmp_path, 1.1)
    starts_s, n_before = site.clock.now_s(), training.n_iterations
    for _ in range(2):
        site = Site(tmp_path, [gpu], "plan.max_slowdown=1.0")
        training.moves_to(site)
        async with site.controlled():
            await training.train(HOUR_S)
            schedule = site.schedules()[-1]
            assert schedule is not None
            assert (schedule.objective, schedule.max_slowdown_ratio) == ("slowdown", 1.1)
            assert schedule.budget_since_s == pytest.approx(starts_s, abs=60), "by both controllers"
            assert (schedule.goal_by, schedule.goal_why, schedule.goal_until_s) == ("ada", "it is hot", UNTIL_S)
    elapsed_s = site.clock.now_s() - starts_s
    speed_ratio = (training.n_iterations - n_before) / elapsed_s / rate_per_s(PRIOR_W)
    assert 1.06 < 1 / speed_ratio <= 1.1, "the half hour before it is not spent, too"
    site = Site(tmp_path, [gpu], "plan.max_slowdown=1.0")
    training.moves_to(site)
    async with site.controlled():
        await training.train(HOUR_S)
        schedule = site.schedules()[-1]
        assert schedule is not None
        assert (gpu.requested_power_limit_w, schedule.max_slowdown_ratio, schedule.goal_by) == (PRIOR_W, 1.0, None)
        assert schedule.budget_since_s == pytest.approx(UNTIL_S, abs=60), "the configured one begins anew"
    assert not (tmp_path / "goals.json").exists()


async def test_a_run_with_a_deadline_of_a_person_ends_in_time_and_slower_than_it_could(tmp_path: Path) -> None:
    gpu = prior_gpu()
    deadline_s, total_iterations = MIDNIGHT_S + 5 * HOUR_S, round(4 * HOUR_S * rate_per_s(PRIOR_W))
    goal = Goal(deadline_s=deadline_s, set_at_s=MIDNIGHT_S, why="the review is at six", by="ada")
    (tmp_path / "goals.json").write_bytes(content_of("goals", {KEY: goal}))
    site = Site(tmp_path, [gpu], "plan.max_slowdown=1.0")
    async with site.controlled():
        training = Training(site, total_iterations=total_iterations)
        await training.train(2 * HOUR_S)
        schedule = site.schedules()[-1]
        assert schedule is not None
        assert (schedule.objective, schedule.deadline_s, schedule.goal_by) == ("deadline", deadline_s, "ada")
        while training.n_iterations < total_iterations:
            await training.train(60)
        assert deadline_s - 0.1 * HOUR_S < site.clock.now_s() <= deadline_s
        training.publish_status("finished")
        await asyncio.sleep(60)
    assert not (tmp_path / "goals.json").exists(), "it ends with the run"
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_where_limits_are_only_observed_a_goal_changes_no_plan(tmp_path: Path) -> None:
    gpu = prior_gpu()
    aim(tmp_path, 1.1)
    site = Site(tmp_path, [gpu], "plan.observe=true")
    async with site.controlled():
        await Training(site).train(600)
    assert gpu.history == []
