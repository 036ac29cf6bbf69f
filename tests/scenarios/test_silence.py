"""Processes that nobody hears for longer than the lease, and that come back: their run goes on where it was."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policies.units import energy_kwh
from publishers.reports import RunEnergy
from publishers.wire import Message
from tests.fakes import FakeGpu
from tests.scenarios.site import HOUR_S, PRIOR_W, Site, Training, energy_j, prior_gpu, rate_per_s

LEASE_S = 60.0


@contextmanager
def unheard(training: Training, *, has_heart: bool = True) -> Iterator[None]:
    """Keep what a process publishes, and publish it afterwards; without a heart it has no statuses meanwhile."""
    publish, waiting = training._publish, list[tuple[str, Message, bool]]()
    training._publish = lambda leaf, message, *, retain: waiting.append((leaf, message, retain))  # type: ignore[method-assign]
    yield
    training._publish = publish  # type: ignore[method-assign]
    training.tell("running")
    for leaf, message, retain in waiting:
        if has_heart or leaf != "status":
            publish(leaf, message, retain=retain)


async def finals(site: Site, training: Training) -> list[RunEnergy]:
    """Let a run finish; return the last words that were said of it."""
    training.tell("finished")
    await asyncio.sleep(60)
    return [energy for energy in site.energies() if energy.final]


def check(final: RunEnergy, training: Training, gpu: FakeGpu) -> None:
    """Check that a record is of all that a process did."""
    assert training.begin_s is not None
    assert (final.state, final.iterations) == ("finished", training.n_iterations)
    assert final.duration_s == pytest.approx(training.end_s - training.begin_s, abs=5)
    assert final.energy_j == pytest.approx(energy_j(gpu, training.begin_s, training.end_s), rel=0.005)


async def test_the_record_of_a_run_whose_broker_was_away_for_longer_than_the_lease_tells_of_all_of_it(
    tmp_path: Path,
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    training = Training(site)
    async with site.controlled():
        await training.train(HOUR_S)
        with unheard(training):
            await training.train(5 * LEASE_S)
            assert gpu.requested_power_limit_w == PRIOR_W
        await training.train(HOUR_S)
        silent, final = await finals(site, training)
    check(final, training, gpu)
    assert silent.state == "silent"
    assert final.slowdown_ratio == pytest.approx(1.03, abs=0.01)


async def test_a_process_that_was_suspended_for_longer_than_the_lease_has_paused(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    suspended_s = 20 * LEASE_S
    is_suspended = False
    training = Training(site, rate=lambda limit_w: 1 / suspended_s if is_suspended else rate_per_s(limit_w))
    async with site.controlled():
        await training.train(HOUR_S)
        with unheard(training, has_heart=False):
            is_suspended = True
            await training.train(1.0)
            assert gpu.requested_power_limit_w == PRIOR_W
        is_suspended = False
        await training.train(HOUR_S)
        _, final = await finals(site, training)
    check(final, training, gpu)
    assert final.slowdown_ratio == pytest.approx(1.02, abs=0.02)


async def test_a_budget_is_not_spent_twice_by_a_run_that_was_silent(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], "plan.objective=budget", "plan.budget=0.3")
    training = Training(site, total_iterations=9_000)
    async with site.controlled():
        await training.train(2_000)
        await asyncio.sleep(2 * LEASE_S)
        await training.train(200)
        left = float(site.limits(gpu)[-1].detail.partition(" of 0.3 left")[0].split()[-1])
    assert training.begin_s is not None
    spent = energy_kwh(energy_j(gpu, training.begin_s, training.begin_s + 2_000 + 2 * LEASE_S))
    assert 0.3 - left == pytest.approx(spent, rel=0.02)


@pytest.mark.parametrize("duration_s", [600.0, 1800.0])
async def test_a_run_that_was_silent_pays_nothing_for_what_another_did_on_its_gpu_meanwhile(
    tmp_path: Path, duration_s: float
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    suspended = Training(site, rate=lambda limit_w: 10 * rate_per_s(limit_w), pid=1)
    other = Training(site, job="bert", run="run-2", rate=lambda limit_w: 10 * rate_per_s(limit_w), pid=2)
    own_j = 0.0
    async with site.controlled():
        for pause_s in (1.5 * LEASE_S, 0.0):
            begin_s = site.clock.now_s()
            await suspended.train(600)
            own_j += energy_j(gpu, begin_s, site.clock.now_s())
            await asyncio.sleep(pause_s)
            if pause_s:
                await other.train(duration_s)
                other.tell("finished")
                await asyncio.sleep(LEASE_S / 2)
        final = (await finals(site, suspended))[-1]
    assert final.iterations == pytest.approx(suspended.n_iterations, abs=30)
    assert final.energy_j == pytest.approx(own_j, rel=0.01)
    assert gpu.requested_power_limit_w == PRIOR_W
