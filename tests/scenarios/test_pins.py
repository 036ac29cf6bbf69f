"""A run whose limit a person has pinned: the GPUs keep it, the record says so, and the plan goes on afterwards."""

import asyncio
from pathlib import Path

import pytest

from controller.orders.standing import content_of
from controller.ports.orders import Pin
from publishers.messages.codec import decode
from publishers.messages.reports import RunEnergy
from tests.fakes import KEY, MIDNIGHT_S, FakeGpu
from tests.scenarios.multi_node_site import MultiNodeSite
from tests.scenarios.site import HOUR_S, PRIOR_W, TOPICS, Site, Training, prior_gpu, rate_per_s

PIN_W = 160.0
UNTIL_S = MIDNIGHT_S + HOUR_S


def pin(state_dir: Path, power_limit_w: float = PIN_W, *, until_s: float = UNTIL_S) -> None:
    """Leave a pin as a former controller does that was stopped while it was in force."""
    one = Pin(power_limit_w=power_limit_w, set_at_s=MIDNIGHT_S, until_s=until_s, why="the room is hot", by="ada")
    state_dir.mkdir(parents=True, exist_ok=True)
    (state_dir / "pins.json").write_bytes(content_of("pins", {KEY: one}))


def limits_between_w(gpu: FakeGpu, begin_s: float, end_s: float) -> set[float]:
    """Return the limits that were written in a time [Unix s]."""
    return {limit_w for time_s, limit_w in gpu.history if begin_s <= time_s < end_s}


async def test_a_pinned_run_keeps_its_limit_and_its_plan_goes_on_after_it(tmp_path: Path) -> None:
    gpus = [prior_gpu(f"GPU-fake-{index}", index) for index in range(2)]
    site = Site(tmp_path, gpus, "plan.share_slack=true")
    async with site.controlled():
        training = Training(site, gpus)
        await training.train(HOUR_S / 2)
    assert [gpu.requested_power_limit_w for gpu in gpus] == 2 * [PRIOR_W]
    pin(tmp_path)
    site = Site(tmp_path, gpus, "plan.share_slack=true")
    training.moves_to(site)
    async with site.controlled():
        began_s = site.clock.now_s()
        await training.train(UNTIL_S - began_s - 30)
        for gpu in gpus:
            written_w = limits_between_w(gpu, began_s, site.clock.now_s())
            assert written_w == {PIN_W}, "no look, no plan and no slack of another GPU leaves it"
        change, energy = site.limits(gpus[0])[-1], site.energies()[-1]
        assert (change.reason, change.power_limit_w) == ("pinned", PIN_W)
        assert change.detail == "pinned to 160 W by ada until 2023-11-15 01:00 UTC: the room is hot"
        assert (energy.reason, energy.pinned_by, energy.pinned_why) == ("pinned", "ada", "the room is hot")
        assert energy.pinned_until_s == UNTIL_S
        assert site.schedules()[-1] is None, "what the plan expects is not what will be"
        await training.train(HOUR_S / 2)
        assert PIN_W not in limits_between_w(gpus[0], UNTIL_S + 60, site.clock.now_s())
        assert site.limits(gpus[0])[-1].reason not in {"pinned", "profiling"}, "its curve is not measured again"
        assert site.schedules()[-1] is not None
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert final.pinned_s == pytest.approx(UNTIL_S - began_s, abs=60)
    assert (final.final, final.pinned_by, final.pinned_until_s) == (True, None, None)
    assert [gpu.requested_power_limit_w for gpu in gpus] == 2 * [PRIOR_W]


async def test_what_a_pin_has_cost_is_told_once_looks_tell_it(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        training = Training(site)
        await training.train(0.9 * HOUR_S)
        begin_s, n_before = site.clock.now_s(), training.n_iterations
        await training.train(4.5 * HOUR_S)
        assert site.energies()[-1].pinned_extra_s is None, "nothing was pinned"
        planned_per_s = (training.n_iterations - n_before) / (site.clock.now_s() - begin_s)
    until_s = site.clock.now_s() + HOUR_S
    pin(tmp_path, until_s=until_s)
    site = Site(tmp_path, [gpu])
    training.moves_to(site)
    async with site.controlled():
        await training.train(2 * HOUR_S)
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert final.pinned_s == pytest.approx(HOUR_S, abs=120)
    assert final.pinned_extra_s is not None
    assert final.pinned_extra_ci90_s is not None
    expected_s = (final.pinned_s or 0.0) * (1 - rate_per_s(PIN_W) / planned_per_s)
    assert final.pinned_extra_s == pytest.approx(expected_s, abs=max(final.pinned_extra_ci90_s, 0.01 * HOUR_S))
    assert final.pinned_extra_energy_j is not None
    assert final.pinned_extra_energy_j < 0, "a lower limit takes less energy"


async def test_a_silent_pinned_run_loses_its_hold_with_its_lease(tmp_path: Path) -> None:
    gpu = prior_gpu()
    pin(tmp_path)
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        training = Training(site)
        await training.train(600)
        assert gpu.requested_power_limit_w == PIN_W
        await asyncio.sleep(2 * site.config.job.lease_s)
        assert gpu.requested_power_limit_w == PRIOR_W
        assert site.limits(gpu)[-1].reason == "lease_ended"


async def test_what_another_program_sets_on_a_pinned_run_is_not_told_as_pinned(tmp_path: Path) -> None:
    gpu = prior_gpu()
    pin(tmp_path)
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        training = Training(site)
        await training.train(600)
        assert site.energies()[-1].pinned_by == "ada"
        gpu.set_externally(222.0)
        await training.train(1_200)
        energy = site.energies()[-1]
        assert (energy.reason, energy.pinned_by, energy.pinned_until_s) == ("another_writer", None, None)
        assert energy.pinned_s == pytest.approx(600, abs=60)
    assert gpu.requested_power_limit_w == 222.0


async def test_a_run_that_ended_while_pinned_has_the_time_in_its_record_and_no_pin(tmp_path: Path) -> None:
    gpu = prior_gpu()
    pin(tmp_path)
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        training = Training(site)
        await training.train(600)
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert (final.final, final.pinned_by, final.pinned_until_s, final.pinned_why) == (True, None, None, None)
    assert final.pinned_s == pytest.approx(600, abs=60)


async def test_an_idle_run_and_a_run_that_is_not_proven_get_no_pinned_limit(tmp_path: Path) -> None:
    gpu = prior_gpu()
    pin(tmp_path)
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        training = Training(site)
        training.registers = False
        await training.train(300)
        assert gpu.history == [], "the driver does not list it: a pin gives no board to a run"
        training.registers = True
        await training.train(300)
        assert gpu.requested_power_limit_w == PIN_W
        await training.pause(600)
        assert (gpu.requested_power_limit_w, site.limits(gpu)[-1].reason) == (PRIOR_W, "idle")


@pytest.mark.parametrize(("asked_w", "floor_w"), [(1e6, 0.0), (1.0, 0.0), (1.0, 150.0), (290.0, 0.0)])
async def test_no_pin_leaves_the_bounds_of_board_and_operator_or_exceeds_the_prior_limit(
    tmp_path: Path, asked_w: float, floor_w: float
) -> None:
    gpu = prior_gpu()
    pin(tmp_path, asked_w)
    site = Site(tmp_path, [gpu], f"gpu.min_power_limit_w={floor_w}", "gpu.allow_above_prior=true")
    async with site.controlled():
        await Training(site).train(300)
        expected_w = min(max(asked_w, floor_w, gpu.range.min_power_limit_w), PRIOR_W)
        assert gpu.requested_power_limit_w == expected_w
        assert limits_between_w(gpu, 0.0, site.clock.now_s()) <= {expected_w}
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_where_limits_are_only_observed_a_pin_writes_nothing(tmp_path: Path) -> None:
    gpu = prior_gpu()
    pin(tmp_path)
    site = Site(tmp_path, [gpu], "plan.observe=true")
    async with site.controlled():
        await Training(site).train(600)
    assert gpu.history == []
    energy = site.energies()[-1]
    assert (energy.pinned_s, energy.pinned_by, energy.pinned_until_s) == (None, None, None)


async def test_a_pin_on_the_node_of_rank_0_reaches_the_gpus_of_the_other_node(tmp_path: Path) -> None:
    site = MultiNodeSite(tmp_path, prior_b_w=150.0)
    pin(tmp_path / "node-a", until_s=MIDNIGHT_S + 0.5 * HOUR_S)
    async with site.controlled():
        await site.train(900)
        assert (site.gpu_a.requested_power_limit_w, site.gpu_b.requested_power_limit_w) == (PIN_W, 150.0)
        assert {limit_w for _, limit_w in site.gpu_a.history} == {PIN_W}
        assert site.gpu_b.history == [], "never above its own prior limit"
        change = site.a.plans()[-1]
        assert (change.reason, change.power_limit_w, change.is_steady) == ("pinned", PIN_W, False)
        assert site.b.parts()[-1].reason == "pinned"
        part = decode(site.b.bus.payloads(TOPICS.run_on_node(KEY, "node-b", "energy"))[-1], RunEnergy)
        assert (part.pinned_s or 0.0) > 600
        await site.train(1_500)
        assert site.a.plans()[-1].reason != "pinned"
