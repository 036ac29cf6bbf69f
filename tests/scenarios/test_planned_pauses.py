"""A run with a deadline waits for cheap hours, is done in time, and has saved what meter and clock say."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.pauses import LEASE_S
from policies.vocabulary.signal import NOT_ESTIMATED, Signal
from publishers.messages.codec import decode
from publishers.messages.reports import Command
from publishers.messages.topics import RunKey
from publishers.training.pausing.orders import PauseOrders
from tests.fakes import MIDNIGHT_S, USER, FakeGpu, FixedProvider, flat_signal
from tests.scenarios.site import (
    BOOT_ID,
    FINE,
    HOUR_S,
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

KEY = RunKey(USER, "resnet50", "run-1")
IDLE_W = 30.0
CHEAP, DEAR = 0.1, 0.6
DEAR_HOURS = (1, 5)
"""From one to five o'clock."""
WORK_H, DEADLINE_H = 3.5, 9.0
MAX_PAUSE_S = 12 * HOUR_S
FIRST_S = MIDNIGHT_S + 1.0
"""When the first iteration begins: a controller has a second to start."""
READINGS_RATIO = 0.001
"""The meters are read every 5 s: at each change of limit a part of an interval counts as at the limit before."""
DEADLINE = (
    "signal.kind=price",
    "signal.zone=XX",
    'signal.provider=[{name="csv", path="prices.csv", zone="XX"}]',
    "plan.objective=deadline",
    f"plan.deadline={DEADLINE_H:g}h",
)


class DayAheadPrices(FixedProvider):
    """Prices that are settled a day ahead."""

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        return None if self.series is None else self.series.between(now_s, until_s)


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


class PausableTraining(Training):
    """A training that waits between two steps while it is asked to, by the publisher's own rules.

    Attributes:
        waits: from when to when it has waited [Unix s].
        obeys: whether it does; one with a hanging rank does not.
        is_waiting: whether it waits now.
    """

    obeys = True
    is_waiting = False

    def __init__(self, site: Site, *, max_pause_s: float = MAX_PAUSE_S, **status: Any) -> None:  # noqa: ANN401
        total = round(WORK_H * HOUR_S * rate_per_s(PRIOR_W))
        super().__init__(site, pausable=True, max_pause_s=max_pause_s, total_iterations=total, **status)
        self.total, self.waits, self._max_pause_s = total, list[tuple[float, float]](), max_pause_s
        self._orders = PauseOrders(KEY, boot_id=BOOT_ID, clock_ns=site.clock.monotonic_ns)
        self._paused_s = 0.0

    def listen(self) -> None:
        """Subscribe to commands, at a controller's connection."""
        self._bus.subscribe(TOPICS.run(KEY, "command"), lambda _, payload: self._take(payload), qos=1)

    def _take(self, payload: bytes) -> None:
        self._orders.on_command(decode(payload, Command))

    async def train_until(self, until_s: float) -> None:
        """Do all iterations, or those up to a time [Unix s], and wait whenever that is asked for."""
        while self.n_iterations < self.total and self._clock.now_s() < until_s:
            await self.train_steps(1)
            if self.obeys and self._orders.present() is not None:
                await self._wait(until_s)

    async def _wait(self, until_s: float) -> None:
        self.is_waiting, until_s = True, min(until_s, self._clock.now_s() + self._max_pause_s)
        begin_s, gpu = self._clock.now_s(), self.gpus[0]
        draw_w, gpu.draw_w = gpu.draw_w, lambda _: IDLE_W
        self.say(paused_since_ns=self._clock.monotonic_ns())
        while self._orders.present() is not None and self._clock.now_s() < until_s:
            self.publish_status()
            await self._clock.sleep_until(self._clock.now_s() + 2.0)
        self._orders.end("it has lasted long enough")
        self.is_waiting = False
        gpu.draw_w = draw_w
        self.waits.append((begin_s, self._clock.now_s()))
        self._paused_s += self._clock.now_s() - begin_s
        self.say(paused_since_ns=None, paused_s=self._paused_s)

    def cost(self, signal: Signal) -> float:
        """Return what the GPU has cost from the first iteration to the last one, by its own limits [EUR]."""
        gpu, total = self.gpus[0], 0.0
        for value, start_s in zip(signal.values.tolist(), signal.starts_s.tolist(), strict=True):
            begin_s, end_s = max(start_s, FIRST_S), min(start_s + HOUR_S, self.end_s)
            if end_s <= begin_s:
                continue
            used_j = energy_j(gpu, begin_s, end_s)
            for wait_s, until_s in self.waits:
                if (lasts_s := min(until_s, end_s) - max(wait_s, begin_s)) > 0:
                    used_j += IDLE_W * lasts_s - energy_j(gpu, max(wait_s, begin_s), min(until_s, end_s))
            total += value * used_j / 3.6e6
        return total

    def twin_cost(self, signal: Signal) -> float:
        """Return what the same work at the prior limit would have cost, without waiting [EUR]."""
        ends_s, total = FIRST_S + self.n_iterations / rate_per_s(PRIOR_W), 0.0
        for value, start_s in zip(signal.values.tolist(), signal.starts_s.tolist(), strict=True):
            lasts_s = max(min(start_s + HOUR_S, ends_s) - max(start_s, FIRST_S), 0.0)
            total += value * POWER_RATIO * PRIOR_W * lasts_s / 3.6e6
        return total


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
    caplog.set_level("INFO")
    gpu = prior_gpu()
    site = site_of(tmp_path, gpu, "plan.may_pause=true", FINE)
    training = PausableTraining(site)
    await trained(site, training)
    assert training.n_iterations == training.total, "it is done by its deadline"
    (wait,) = training.waits
    assert [(time_s - MIDNIGHT_S) / HOUR_S for time_s in wait] == pytest.approx(DEAR_HOURS, abs=0.1)
    true_ratio = 1 - training.cost(prices()) / training.twin_cost(prices())
    lower, upper = told_saving(caplog.text)
    assert lower - READINGS_RATIO <= true_ratio <= upper + READINGS_RATIO
    assert true_ratio > 0.6
    final = site.energies()[-1]
    assert final.cost == pytest.approx(training.cost(prices()), rel=0.002)
    assert final.paused_s == pytest.approx(wait[1] - wait[0], abs=10)
    assert final.slowdown_ratio == pytest.approx((training.end_s - FIRST_S) / (WORK_H * HOUR_S), rel=0.002)
    reasons = list(dict.fromkeys(change.reason for change in site.limits(gpu)))
    assert reasons.index("pause_asked") < reasons.index("paused_in_bad_hours")
    (paused,) = [change for change in site.limits(gpu) if change.reason == "paused_in_bad_hours"]
    assert paused.detail.startswith("paused until about 05:00 UTC: the grid is dearer than it will be; 0.6 EUR/kWh now")
    assert f"{KEY}: its plan asks for a pause: until about 05:00 UTC" in caplog.text


async def test_a_forecast_of_our_own_is_enough_where_it_has_proved_right(tmp_path: Path) -> None:
    gpu, known = prior_gpu(), prices()
    site = Site(tmp_path, [gpu], *DEADLINE, "plan.may_pause=true", providers=[FixedProvider(known)])
    training = PausableTraining(site)
    await trained(site, training, until_h=DEAR_HOURS[1] + 0.5)
    ((begin_s, end_s),) = training.waits
    assert [(time_s - MIDNIGHT_S) / HOUR_S for time_s in (begin_s, end_s)] == pytest.approx(DEAR_HOURS, abs=0.3)


async def test_without_the_operators_leave_it_does_not_wait(tmp_path: Path) -> None:
    site = site_of(tmp_path, prior_gpu())
    training = PausableTraining(site)
    await trained(site, training, until_h=DEAR_HOURS[0] + 0.5)
    assert training.waits == []
    assert site.bus.payloads(TOPICS.run(KEY, "command")) == []


async def test_a_training_that_does_not_wait_is_not_counted_as_paused(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = site_of(tmp_path, gpu, "plan.may_pause=true")
    training = PausableTraining(site)
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
    training = PausableTraining(site)
    gone_s = MIDNIGHT_S + (DEAR_HOURS[0] + 0.5) * HOUR_S
    async with asyncio.TaskGroup() as tasks:
        async with site.controlled():
            training.listen()
            tasks.create_task(training.train_until(gone_s + 1_200))
            await site.clock.sleep_until(gone_s)
            site.bus.is_dropping = is_killed  # then no word of it arrives
        site.bus.is_dropping = False
        await asyncio.sleep(60)
        assert [wait[1] <= gone_s + LEASE_S + 3.0 for wait in training.waits] == [True]
        async with site.controlled():
            training.listen()
            await asyncio.sleep(600)
            assert training.is_waiting
