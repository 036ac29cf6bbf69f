"""Deadlines and budgets, kept by the whole controller; and a job that is asked something of its own."""

import asyncio
from pathlib import Path

import pytest

from tests.scenarios.site import HOUR_S, POWER_RATIO, PRIOR_W, Site, Training, energy_j, prior_gpu, rate_per_s

N_ITERATIONS = 3_000
SHORTEST_S = N_ITERATIONS / rate_per_s(PRIOR_W)
J_PER_KWH = 3_600_000.0
CURIOUS = ("profiler.n_blocks=24", "profiler.block_s=40")


async def run_all(site: Site, training: Training) -> None:
    """Train until the run has as many iterations as it said it would have."""
    async with site.controlled():
        while training.n_iterations < N_ITERATIONS:
            await training.train(60)
        training.tell("finished")
        await asyncio.sleep(30)


@pytest.mark.parametrize("share", [1.1, 1.3])
async def test_a_deadline_is_met_and_the_time_until_then_is_used(tmp_path: Path, share: float) -> None:
    gpu = prior_gpu()
    hours = share * SHORTEST_S / HOUR_S
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.objective=deadline", f"plan.deadline={hours:.4f}h")
    training = Training(site, total_iterations=N_ITERATIONS)
    await run_all(site, training)
    assert training.begin_s is not None
    took_s = training.end_s - training.begin_s
    assert 0.97 * share * SHORTEST_S <= took_s <= share * SHORTEST_S + 60
    assert {change.reason for change in site.limits(gpu)} >= {"deadline_static"}


async def test_a_budget_is_kept_and_all_of_it_is_used_for_time(tmp_path: Path) -> None:
    gpu = prior_gpu()
    whole_kwh = POWER_RATIO * PRIOR_W * SHORTEST_S / J_PER_KWH
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.objective=budget", f"plan.budget={0.85 * whole_kwh:.4f}")
    training = Training(site, total_iterations=N_ITERATIONS)
    await run_all(site, training)
    assert training.begin_s is not None
    used_kwh = energy_j(gpu, training.begin_s, training.end_s) / J_PER_KWH
    assert 0.82 * whole_kwh <= used_kwh <= 0.855 * whole_kwh


@pytest.mark.parametrize(
    "overrides", [("plan.objective=deadline", "plan.deadline=9h"), ("plan.objective=budget", "plan.budget=1")]
)
async def test_without_a_known_end_the_run_falls_back_and_says_so(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *overrides)
    async with site.controlled():
        await Training(site).train(1_500)
        assert gpu.requested_power_limit_w <= PRIOR_W
    last = [change for change in site.limits(gpu) if change.reason not in {"profiling", "controller_stopped"}][-1]
    assert "how many iterations" in last.detail


async def test_a_job_is_planned_by_the_table_of_its_own(tmp_path: Path) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    tables = 'plan.job=[{name="bert*", objective="eta", eta=1.0}]'
    site = Site(tmp_path, gpus, "plan.max_slowdown=1.0", tables)
    own, other = Training(site, [gpus[0]], job="bert-large"), Training(site, [gpus[1]], run="run-2")
    async with site.controlled():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(own.train(1_800))
            tasks.create_task(other.train(1_800))
        assert (gpus[0].requested_power_limit_w, gpus[1].requested_power_limit_w) == (100.0, PRIOR_W)
