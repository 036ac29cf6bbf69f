"""A run with a deadline waits for cheap hours, is done in time, and has saved what meter and clock say."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from controller.orders.pauses import LEASE_S
from policies.vocabulary.signal import NOT_ESTIMATED, Signal
from policies.vocabulary.units import JOULES_PER_KWH
from publishers.messages.codec import decode
from publishers.messages.reports import Command
from tests.fakes import MIDNIGHT_S, FakeGpu, FixedProvider, flat_signal
from tests.scenarios.pausable_training import FIRST_S, KEY, LOOK_S, DayAheadPrices, PausableTraining
from tests.scenarios.site import FINE, HOUR_S, PRIOR_W, TOPICS, Site, prior_gpu, rate_per_s, told_saving

IDLE_W = 30.0
CHEAP, DEAR = 0.1, 0.6
DEAR_HOURS = (1, 5)
"""From one to five o'clock."""
WORK_H, DEADLINE_H = 3.5, 9.0
READINGS_RATIO = 0.001
"""The meters are read every 5 s: at each change of limit a part of an interval counts as at the limit before."""
DEADLINE = (
    "signal.kind=price",
    "signal.zone=XX",
    'signal.provider=[{name="csv", path="prices.csv", zone="XX"}]',
    "plan.objective=deadline",
    f"plan.deadline={DEADLINE_H:g}h",
)


def prices() -> Signal:
    """Return prices of some days: dear in the same hours of each."""
    hours = np.arange(-40 * 24, 72)
    values = np.where((hours % 24 >= DEAR_HOURS[0]) & (hours % 24 < DEAR_HOURS[1]), DEAR, CHEAP)
    starts_s = MIDNIGHT_S + HOUR_S * hours.astype(np.float64)
    plain = flat_signal(CHEAP)
    return replace(
        plain,
        kind="price",
        unit="EUR/kWh",
        starts_s=starts_s,
        values=values,
        ends_s=float(starts_s[-1]) + HOUR_S,
        estimated=NOT_ESTIMATED,
    )


def training_of(site: Site) -> PausableTraining:
    total = round(WORK_H * HOUR_S * rate_per_s(PRIOR_W))
    return PausableTraining(site, total=total, idle_w=IDLE_W, max_pause_s=12 * HOUR_S, rate=rate_per_s)


def site_of(state_dir: Path, gpu: FakeGpu, *overrides: str) -> Site:
    return Site(state_dir, [gpu], *DEADLINE, *overrides, providers=[DayAheadPrices(prices())])


async def trained(site: Site, training: PausableTraining, *, until_h: float = DEADLINE_H) -> None:
    """Let it train, to its end or up to an hour of the day."""
    async with site.controlled():
        training.listen()
        await training.train_until(MIDNIGHT_S + until_h * HOUR_S)
        training.publish_status("finished")
        await asyncio.sleep(600)


async def test_it_waits_for_cheap_hours_and_the_saving_is_the_truth(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    gpu = prior_gpu()
    site = site_of(tmp_path, gpu, "plan.may_pause=true", FINE)
    training = training_of(site)
    await trained(site, training)
    assert training.n_iterations == training.total, "it is done by its deadline"
    (wait,) = training.waits
    assert [(time_s - MIDNIGHT_S) / HOUR_S for time_s in wait] == pytest.approx(DEAR_HOURS, abs=0.1)
    true_ratio = 1 - training.cost(prices()) / training.twin_cost(prices())
    lower, upper = told_saving(caplog.text)
    assert lower - READINGS_RATIO <= true_ratio <= upper + READINGS_RATIO
    assert true_ratio > 0.6
    final = site.energies()[-1]
    assert final.cost == pytest.approx(training.cost(prices()) / JOULES_PER_KWH, rel=0.002)
    assert final.paused_s == pytest.approx(wait[1] - wait[0], abs=10)
    assert final.slowdown_ratio == pytest.approx((training.end_s - FIRST_S) / (WORK_H * HOUR_S), rel=0.002)
    reasons = list(dict.fromkeys(change.reason for change in site.limits(gpu)))
    assert reasons.index("pause_asked") < reasons.index("paused_in_bad_hours")
    (paused,) = [change for change in site.limits(gpu) if change.reason == "paused_in_bad_hours"]
    assert paused.detail.startswith("paused until about 05:00 UTC: electricity is cheaper later; 0.6 EUR/kWh now")
    (asked,) = [change for change in site.limits(gpu) if change.reason == "pause_asked"]
    assert asked.detail.startswith("asked to pause until about 05:00 UTC: electricity is cheaper later; ")
    assert f"{KEY}: its plan asks for a pause: until about 05:00 UTC" in caplog.text


async def test_a_forecast_of_our_own_is_enough_where_it_has_proved_right(tmp_path: Path) -> None:
    gpu, known = prior_gpu(), prices()
    site = Site(tmp_path, [gpu], *DEADLINE, "plan.may_pause=true", providers=[FixedProvider(known)])
    training = training_of(site)
    await trained(site, training, until_h=DEAR_HOURS[1] + 0.5)
    ((begin_s, end_s),) = training.waits
    assert [(time_s - MIDNIGHT_S) / HOUR_S for time_s in (begin_s, end_s)] == pytest.approx(DEAR_HOURS, abs=0.3)


async def test_it_goes_on_when_the_signal_is_lost(tmp_path: Path) -> None:
    provider, lost_s = FixedProvider(prices()), MIDNIGHT_S + (DEAR_HOURS[0] + 0.9) * HOUR_S
    site = Site(tmp_path, [prior_gpu()], *DEADLINE, "plan.may_pause=true", providers=[provider])
    training = training_of(site)
    async with asyncio.TaskGroup() as tasks, site.controlled():
        training.listen()
        tasks.create_task(training.train_until(lost_s + 2.5 * HOUR_S))
        await site.clock.sleep_until(lost_s)
        assert training.is_waiting
        provider.error = TimeoutError("away")
        await site.clock.sleep_until(lost_s + 2 * HOUR_S)
        assert len(training.waits) == 1, "an old value is held, or replaced by a forecast: no reason to wait"
        await asyncio.sleep(2_000)


async def test_without_the_operators_leave_it_does_not_wait(tmp_path: Path) -> None:
    site = site_of(tmp_path, prior_gpu())
    training = training_of(site)
    await trained(site, training, until_h=DEAR_HOURS[0] + 0.5)
    assert training.waits == []
    assert site.bus.payloads(TOPICS.run(KEY, "command")) == []


async def test_a_training_that_does_not_wait_is_not_counted_as_paused(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = site_of(tmp_path, gpu, "plan.may_pause=true")
    training = training_of(site)
    training.obeys = False
    await trained(site, training, until_h=DEAR_HOURS[0] + 1.5)
    assert (training.waits, site.energies()[-1].paused_s) == ([], None)
    assert "paused_in_bad_hours" not in {change.reason for change in site.limits(gpu)}
    words = [decode(each, Command).command for each in site.bus.payloads(TOPICS.run(KEY, "command"))]
    assert words.count("resume") == 2, "once an hour, each withdrawn after ten minutes"


@pytest.mark.parametrize("is_killed", [False, True])
async def test_it_goes_on_when_its_controller_has_gone_and_waits_for_the_next_one(
    tmp_path: Path, is_killed: bool
) -> None:
    site = site_of(tmp_path, prior_gpu(), "plan.may_pause=true")
    training = training_of(site)
    gone_s = MIDNIGHT_S + (DEAR_HOURS[0] + 0.5) * HOUR_S
    async with asyncio.TaskGroup() as tasks:
        async with site.controlled():
            training.listen()
            tasks.create_task(training.train_until(gone_s + 1_200))
            await site.clock.sleep_until(gone_s)
            site.bus.is_dropping = is_killed  # then no word of it arrives
        site.bus.is_dropping = False
        await asyncio.sleep(60)
        assert [wait[1] <= gone_s + LEASE_S + LOOK_S for wait in training.waits] == [True]
        async with site.controlled():
            training.listen()
            await asyncio.sleep(600)
            assert training.is_waiting
