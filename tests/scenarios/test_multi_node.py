"""A run on two nodes: the node of rank 0 decides, the other follows, and neither strands a limit when it is alone."""

import asyncio
from pathlib import Path

import pytest

from controller.errors import GpuError
from publishers.messages.codec import decode, encode
from publishers.messages.reports import RunEnergy
from tests.fakes import KEY, FakeGpu
from tests.scenarios.multi_node_site import MultiNodeSite
from tests.scenarios.site import FINE, HOUR_S, POWER_RATIO, PRIOR_W, TOPICS, Training, energy_j, rate_per_s

LEASE_S = 60.0
LAG_S = 1.0
"""A plan is delivered, and a limit is written, well within this."""


def limit_at_w(gpu: FakeGpu, time_s: float, *, prior_w: float = PRIOR_W) -> float:
    """Return the limit of a GPU at a Unix time of its own clock [W]."""
    return next((limit_w for since_s, limit_w in reversed(gpu.history) if since_s <= time_s), prior_w)


async def test_both_nodes_have_the_limit_that_the_node_of_rank_0_decides_on(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path)
    async with site.controlled():
        await site.train(700)
        shift_s = site.gpu_b.clock.now_s() - site.gpu_a.clock.now_s()
        for since_s, limit_w in site.gpu_a.history[1:]:
            assert limit_at_w(site.gpu_b, since_s + LAG_S + shift_s) == limit_w
        assert len({limit_w for _, limit_w in site.gpu_b.history}) >= 3, "the whole first sweep"
        assert site.gpu_b.requested_power_limit_w < PRIOR_W
        leader, follower = site.a.limits(site.gpu_a)[-1], site.b.limits(site.gpu_b)[-1]
        assert (follower.reason, follower.detail) == (leader.reason, f"plan of node-a: {leader.detail}")


async def test_the_leader_alone_publishes_the_sum_of_both_nodes(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path, FINE)
    site.gpu_b.draw_w = lambda power_limit_w: 0.25 * (PRIOR_W + power_limit_w)
    async with site.controlled():
        await site.train(HOUR_S)
        for rank in site.ranks:
            rank.publish_status("finished")
        await asyncio.sleep(30)
    energy = site.a.energies()[-1]
    assert (energy.n_gpus, energy.final) == (2, True)
    assert energy.baseline_energy_j is not None
    assert energy.energy_j < energy.baseline_energy_j
    at_the_top_s = site.ranks[0].n_iterations / rate_per_s(PRIOR_W)
    assert energy.baseline_energy_j == pytest.approx((POWER_RATIO + 0.5) * PRIOR_W * at_the_top_s, rel=0.01)
    assert {report.n_gpus for report in site.a.profiles()} <= {0, 1}, "its own curve"
    assert site.b.parts()[-1].points[-1].power_w == pytest.approx(0.5 * PRIOR_W, rel=0.01)
    told = next(each for each in reversed(site.a.schedules()) if each is not None)
    power_ratio = told.entries[0].power_w / ((POWER_RATIO + 0.5) * PRIOR_W)
    expected_ratio = 1 - power_ratio / told.entries[0].speed_ratio
    assert told.expected_saved_energy_ratio == pytest.approx(expected_ratio, abs=0.015)


async def test_without_a_controller_on_the_node_of_rank_0_the_prior_limit_stays(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path)
    async with site.controlled(site.b):
        await site.train(600)
        assert site.gpu_b.history == []
        assert (site.b.parts()[-1].state, site.b.parts()[-1].reason) == ("waiting", "no_leader")


@pytest.mark.parametrize("operation", ["read_limit", "read_range", "read_sample"])
async def test_a_follower_lives_on_where_its_gpu_cannot_be_read_at_the_start(tmp_path: Path, operation: str) -> None:
    site = MultiNodeSite(tmp_path)
    site.gpu_b.errors[operation] = GpuError("failed", gpu_uuid="GPU-b", operation=operation)
    async with site.controlled():
        await site.train(60)
        site.gpu_b.errors.clear()
        await site.train(600)
        assert site.gpu_b.requested_power_limit_w < PRIOR_W
    assert site.gpu_b.requested_power_limit_w == PRIOR_W


async def test_a_follower_tells_what_it_has_saved_on_both_sides_of_a_drift(tmp_path: Path) -> None:
    site, divisor = MultiNodeSite(tmp_path), 1.0
    for rank in site.ranks:
        rank._rate = lambda limit_w: rate_per_s(limit_w) / divisor
    async with site.controlled():
        await site.train(HOUR_S)
        n_before, divisor = site.ranks[1].n_iterations, 2.0
        await site.train(HOUR_S)
        for rank in site.ranks:
            rank.publish_status("finished")
        await asyncio.sleep(60)
    assert [plan.reason for plan in site.a.plans()].count("profiling") > 3, "the leader has measured anew"
    own = decode(site.b.bus.payloads(TOPICS.run_on_node(KEY, "node-b", "energy"))[-1], RunEnergy)
    top_s = (n_before + 2 * (site.ranks[1].n_iterations - n_before)) / rate_per_s(PRIOR_W)
    assert own.evidence == "measured"
    assert own.saved_ratio == pytest.approx(1 - own.energy_j / (POWER_RATIO * PRIOR_W * top_s), abs=0.004)
    assert own.slowdown_ratio == pytest.approx(own.duration_s / top_s, abs=0.003)


async def test_a_silent_leader_is_followed_for_the_lease_and_again_when_it_returns(
    tmp_path: Path,
) -> None:
    site = MultiNodeSite(tmp_path)
    async with site.controlled():
        await site.train(700)
        site.a.bus.is_cut = True
        await site.train(LEASE_S - 15)
        assert site.gpu_b.requested_power_limit_w < PRIOR_W
        await site.train(30)
        assert site.gpu_b.requested_power_limit_w == PRIOR_W
        assert site.b.limits(site.gpu_b)[-1].reason == "leader_silent"
        site.a.bus.is_cut = False
        await site.train(30)
        assert site.gpu_b.requested_power_limit_w == site.gpu_a.requested_power_limit_w < PRIOR_W


async def test_the_retained_plan_of_a_leader_that_is_gone_is_not_followed(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path)
    async with site.controlled():
        await site.train(700)
        plan = site.a.plans()[-1]
    assert plan.power_limit_w is not None
    site.b.bus.publish(TOPICS.plan("node-a", KEY), encode(plan), retain=True)
    site.gpu_b.history.clear()
    async with site.controlled(site.b):
        await site.train(600)
    assert site.gpu_b.history == []


async def test_a_leader_that_stops_restores_the_limits_of_both_nodes(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path)
    async with site.controlled(site.b):
        async with site.controlled(site.a):
            await site.train(700)
            assert site.gpu_b.requested_power_limit_w < PRIOR_W
        await site.train(5)
        assert [gpu.requested_power_limit_w for gpu in (site.gpu_a, site.gpu_b)] == [PRIOR_W, PRIOR_W]
        assert site.b.limits(site.gpu_b)[-1].reason == "controller_stopped"


async def test_the_end_of_the_run_restores_the_limits_of_both_nodes(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path)
    async with site.controlled():
        await site.train(700)
        site.ranks[0].publish_status("finished")
        await asyncio.sleep(2 * LAG_S)
        assert site.gpu_b.requested_power_limit_w == PRIOR_W
        assert site.b.limits(site.gpu_b)[-1].reason == "run_finished", "confirmed for a second"


async def test_a_node_never_has_more_than_its_own_prior_limit(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path, prior_b_w=200.0)
    async with site.controlled():
        await site.train(700)
    assert max(limit_w for _, limit_w in site.gpu_a.history) > 200.0
    assert max(limit_w for _, limit_w in site.gpu_b.history) <= 200.0
    assert site.gpu_b.requested_power_limit_w == 200.0


async def test_gpus_of_another_model_follow_by_the_share_of_their_highest_limit(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path, prior_b_w=140.0, model_b="Other 150")
    async with site.controlled():
        await site.train(700)
        shift_s = site.gpu_b.clock.now_s() - site.gpu_a.clock.now_s()
        followed_w = [
            (limit_w, limit_at_w(site.gpu_b, since_s + LAG_S + shift_s, prior_w=140.0))
            for since_s, limit_w in site.gpu_a.history
        ]
    assert len(followed_w) >= 3
    assert followed_w == [(limit_w, max(140.0 * limit_w / PRIOR_W, 100.0)) for limit_w, _ in followed_w]


@pytest.mark.parametrize(("may_b_write", "planned_w"), [(True, 120.0), (False, PRIOR_W)])
async def test_the_plan_is_made_for_both_nodes_also_where_one_may_not_write(
    tmp_path: Path, may_b_write: bool, planned_w: float
) -> None:
    # Zeus's cost is least at 3/7 of what depends on no limit: the greatest power, and what b draws anyway.
    site = MultiNodeSite(tmp_path, "plan.objective=eta", "plan.eta=0.5")
    site.gpu_b.mig = not may_b_write
    async with site.controlled():
        await site.train(700)
        assert site.gpu_a.requested_power_limit_w == pytest.approx(planned_w, abs=15)
        if not may_b_write:
            assert (site.gpu_b.history, site.b.parts()[-1].state) == ([], "observing")


async def test_a_run_requeued_on_another_node_is_not_charged_for_its_first_attempt(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path)
    first, second = (
        Training(site, references=[site.gpus[0].uuid], boot_id=f"boot-of-{site.name}") for site in (site.b, site.a)
    )
    async with site.b.controlled():
        async with site.a.controlled():
            await first.train(300)
            first.publish_status("finished")
            await asyncio.sleep(60)
            await second.train(100)
        async with site.a.controlled():  # to it, the first attempt is only what the broker has kept
            await second.train(200)
            second.publish_status("finished")
            await asyncio.sleep(60)
    last = [energy for energy in site.a.energies() if energy.final][-1]
    used_j = energy_j(site.gpu_a, second.begin_s or 0.0, second.end_s)
    assert last.n_gpus == 1
    assert last.energy_j == pytest.approx(used_j, rel=0.02)
