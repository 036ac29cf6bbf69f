"""A run on two nodes: the node of rank 0 decides, the other follows, and neither strands a limit when it is alone."""

import asyncio
from pathlib import Path

import pytest

from publishers.messages.codec import encode
from tests.fakes import FakeGpu
from tests.scenarios.fleet import Fleet
from tests.scenarios.site import POWER_RATIO, PRIOR_W, TOPICS, Training, energy_j, rate_per_s

LEASE_S = 60.0
LAG_S = 1.0
"""A word is on its way, and a limit is written, well within this."""


def limit_at_w(gpu: FakeGpu, time_s: float, *, prior_w: float = PRIOR_W) -> float:
    """Return the limit of a GPU at a Unix time of its own clock [W]."""
    return next((limit_w for since_s, limit_w in reversed(gpu.history) if since_s <= time_s), prior_w)


async def test_both_nodes_have_the_limit_that_the_node_of_rank_0_decides_on(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    async with fleet.controlled():
        await fleet.train(700)
        shift_s = fleet.gpu_b.clock.now_s() - fleet.gpu_a.clock.now_s()
        for since_s, limit_w in fleet.gpu_a.history[1:]:
            assert limit_at_w(fleet.gpu_b, since_s + LAG_S + shift_s) == limit_w
        assert len({limit_w for _, limit_w in fleet.gpu_b.history}) >= 3, "the whole first pass"
        assert fleet.gpu_b.requested_power_limit_w < PRIOR_W
        leader, follower = fleet.a.limits(fleet.gpu_a)[-1], fleet.b.limits(fleet.gpu_b)[-1]
        assert (follower.reason, follower.detail) == (leader.reason, f"plan of node-a: {leader.detail}")


async def test_the_leader_alone_tells_of_the_run_and_adds_up_what_both_have_used(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.gpu_b.draw_w = lambda power_limit_w: 0.5 * power_limit_w
    async with fleet.controlled():
        await fleet.train(700)
        for rank in fleet.ranks:
            rank.tell("finished")
        await asyncio.sleep(30)
    energy = fleet.a.energies()[-1]
    assert (energy.n_gpus, energy.final) == (2, True)
    assert energy.baseline_energy_j is not None
    assert energy.energy_j < energy.baseline_energy_j
    at_the_top_s = fleet.ranks[0].n_iterations / rate_per_s(PRIOR_W)
    assert energy.baseline_energy_j == pytest.approx((POWER_RATIO + 0.5) * PRIOR_W * at_the_top_s, rel=0.01)
    assert {report.n_gpus for report in fleet.a.profiles()} <= {0, 1}, "its own curve"
    assert fleet.b.parts()[-1].points[-1].power_w == pytest.approx(0.5 * PRIOR_W, rel=0.01)


async def test_without_a_controller_on_the_node_of_rank_0_the_prior_limit_stays(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    async with fleet.controlled(fleet.b):
        await fleet.train(600)
        assert fleet.gpu_b.history == []
        assert (fleet.b.parts()[-1].state, fleet.b.parts()[-1].reason) == ("waiting", "no_leader")


async def test_a_leader_that_falls_silent_is_followed_for_the_lease_only_and_again_when_it_comes_back(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path)
    async with fleet.controlled():
        await fleet.train(700)
        fleet.a.bus.is_cut = True
        await fleet.train(LEASE_S - 15)
        assert fleet.gpu_b.requested_power_limit_w < PRIOR_W
        await fleet.train(30)
        assert fleet.gpu_b.requested_power_limit_w == PRIOR_W
        assert fleet.b.limits(fleet.gpu_b)[-1].reason == "leader_silent"
        fleet.a.bus.is_cut = False
        await fleet.train(30)
        assert fleet.gpu_b.requested_power_limit_w == fleet.gpu_a.requested_power_limit_w < PRIOR_W


async def test_the_last_word_of_a_leader_that_is_gone_is_not_obeyed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    async with fleet.controlled():
        await fleet.train(700)
        word = fleet.a.plans()[-1]
    assert word.power_limit_w is not None
    fleet.b.bus.publish(TOPICS.run("resnet50", "run-1", "plan"), encode(word), retain=True)
    fleet.gpu_b.history.clear()
    async with fleet.controlled(fleet.b):
        await fleet.train(600)
    assert fleet.gpu_b.history == []


async def test_a_leader_that_stops_gives_both_nodes_their_limits_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    async with fleet.controlled(fleet.b):
        async with fleet.controlled(fleet.a):
            await fleet.train(700)
            assert fleet.gpu_b.requested_power_limit_w < PRIOR_W
        await fleet.train(5)
        assert [gpu.requested_power_limit_w for gpu in (fleet.gpu_a, fleet.gpu_b)] == [PRIOR_W, PRIOR_W]
        assert fleet.b.limits(fleet.gpu_b)[-1].reason == "controller_stopped"


async def test_the_end_of_the_run_gives_both_nodes_their_limits_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    async with fleet.controlled():
        await fleet.train(700)
        fleet.ranks[0].tell("finished")
        await asyncio.sleep(LAG_S)
        assert fleet.gpu_b.requested_power_limit_w == PRIOR_W
        assert fleet.b.limits(fleet.gpu_b)[-1].reason == "run_finished"


async def test_a_node_never_has_more_than_its_own_prior_limit(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, prior_b_w=200.0)
    async with fleet.controlled():
        await fleet.train(700)
    assert max(limit_w for _, limit_w in fleet.gpu_a.history) > 200.0
    assert max(limit_w for _, limit_w in fleet.gpu_b.history) <= 200.0
    assert fleet.gpu_b.requested_power_limit_w == 200.0


async def test_a_node_with_gpus_of_another_model_follows_by_the_share_of_its_highest_limit(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, prior_b_w=140.0, model_b="Other 150")
    async with fleet.controlled():
        await fleet.train(700)
        shift_s = fleet.gpu_b.clock.now_s() - fleet.gpu_a.clock.now_s()
        followed_w = [
            (limit_w, limit_at_w(fleet.gpu_b, since_s + LAG_S + shift_s, prior_w=140.0))
            for since_s, limit_w in fleet.gpu_a.history
        ]
    assert len(followed_w) >= 3
    assert followed_w == [(limit_w, max(140.0 * limit_w / PRIOR_W, 100.0)) for limit_w, _ in followed_w]


@pytest.mark.parametrize(("may_b_write", "planned_w"), [(True, 120.0), (False, PRIOR_W)])
async def test_the_plan_is_made_for_both_nodes_also_where_one_may_not_write(
    tmp_path: Path, may_b_write: bool, planned_w: float
) -> None:
    # Zeus's cost is least at 3/7 of what depends on no limit: the greatest power, and what b draws anyway.
    fleet = Fleet(tmp_path, "plan.objective=eta", "plan.eta=0.5")
    fleet.gpu_b.mig = not may_b_write
    async with fleet.controlled():
        await fleet.train(700)
        assert fleet.gpu_a.requested_power_limit_w == pytest.approx(planned_w, abs=15)
        if not may_b_write:
            assert (fleet.gpu_b.history, fleet.b.parts()[-1].state) == ([], "observing")


async def test_a_run_that_was_queued_anew_on_another_node_is_not_charged_for_its_first_attempt(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    first, second = (
        Training(site, references=[site.gpus[0].uuid], boot_id=f"boot-of-{site.name}") for site in (fleet.b, fleet.a)
    )
    async with fleet.b.controlled():
        async with fleet.a.controlled():
            await first.train(300)
            first.tell("finished")
            await asyncio.sleep(60)
            await second.train(100)
        async with fleet.a.controlled():  # to it, the first attempt is only what the broker has kept
            await second.train(200)
            second.tell("finished")
            await asyncio.sleep(60)
    last = [energy for energy in fleet.a.energies() if energy.final][-1]
    used_j = energy_j(fleet.gpu_a, second.begin_s or 0.0, second.end_s)
    assert last.n_gpus == 1
    assert last.energy_j == pytest.approx(used_j, rel=0.02)
