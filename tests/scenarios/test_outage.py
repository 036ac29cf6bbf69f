"""What fails for a while: the broker, the signal, a GPU, a training process."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policies.providers.base import SignalDataError, SignalError, SignalUnavailableError
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import energy_kwh
from publishers.messages.codec import Message, decode
from publishers.messages.reports import GridSignal, LimitChange, RunEnergy
from tests.fakes import MIDNIGHT_S, FakeGpu, FixedProvider
from tests.scenarios.site import (
    ANY_PROVIDER,
    FINE,
    HOUR_S,
    PRIOR_W,
    TOPICS,
    Site,
    Training,
    energy_j,
    prior_gpu,
    rate_per_s,
)

DAY_S = 86_400.0
MAX_AGE_S = 7_200.0
N_DAYS = 30
PERIOD_S = 300.0
QUICK = (
    "plan.max_slowdown=1.2",
    "profiler.window_s=200",
    "profiler.settle_s=60",
    "energy.period_s=60",
    f"plan.period_s={PERIOD_S:g}",
    "signal.kind=carbon",
    "signal.zone=XX",
    "job.lease_s=600",
    ANY_PROVIDER,
)


def intensity_g_per_kwh(hour: float) -> float:
    """Return a month of days that are clean at noon, each a little dirtier than the one before."""
    return 300.0 + 120.0 * math.cos(hour / 24 * 2 * math.pi) + hour / 24


def month() -> Signal:
    """Return the hours of a month, of which today is the 29th day."""
    hours = np.arange(24 * N_DAYS, dtype=np.float64) - 28 * 24
    return Signal(
        kind="average",
        zone="XX",
        source="test",
        unit="g/kWh",
        starts_s=MIDNIGHT_S + HOUR_S * hours,
        values=np.array([intensity_g_per_kwh(hour) for hour in hours]),
        ends_s=MIDNIGHT_S + 2 * DAY_S,
        issued_at_s=MIDNIGHT_S,
    )


class Source(FixedProvider):
    """A provider that `falsify` makes fail: it gets the time and the honest answer, and returns another, or raises."""

    def __init__(self, falsify: Callable[[float, Signal], Signal], *, ahead_s: float = 0.0) -> None:
        super().__init__(month())
        self._falsify = falsify
        self._ahead_s = ahead_s

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        series = await super().fetch_history(since_s=since_s, now_s=now_s + self._ahead_s)
        return None if series is None else self._falsify((now_s - MIDNIGHT_S) / HOUR_S, series)


class Drill:
    """Training from midnight on, under one or more sources."""

    def __init__(self, folder: Path, *sources: FixedProvider) -> None:
        self.gpu = prior_gpu()
        self.site = Site(folder / "state", [self.gpu], *QUICK, providers=sources)

    async def run(self, hours: float) -> None:
        """Train for so long."""
        training = Training(self.site, rate=lambda power_limit_w: rate_per_s(power_limit_w) / 10)
        async with self.site.controlled():
            await training.train(hours * HOUR_S, flush_s=60)
            training.publish_status("finished")
            await asyncio.sleep(120)

    @property
    def limits(self) -> list[LimitChange]:
        """Return the changes that were decided on a signal."""
        return [change for change in self.site.limits(self.gpu) if change.signal is not None]

    @property
    def states(self) -> list[tuple[float, str]]:
        """Return (hour, state) of each transition that was published."""
        messages = [decode(payload, GridSignal) for payload in self.site.bus.payloads(TOPICS.grid("XX", "carbon"))]
        stood = [(round((message.time_s - MIDNIGHT_S) / HOUR_S, 1), message.state) for message in messages]
        return [now for before, now in zip([(0.0, ""), *stood], stood, strict=False) if now[1] != before[1]]

    def reasons(self, first_hour: float, last_hour: float) -> set[str]:
        """Return the reasons of what was decided between two hours."""
        return {change.reason for change in self.limits if first_hour <= _hour(change) < last_hour}


def _hour(change: LimitChange) -> float:
    return (change.time_s - MIDNIGHT_S) / HOUR_S


def _value(change: LimitChange) -> float:
    assert change.signal is not None
    return float(change.signal.split()[0])


def _holds(change: LimitChange) -> bool:
    """Return whether the value that a limit was set from is true, or was so no longer ago than it may be held."""
    hour = _hour(change)
    recent = [intensity_g_per_kwh(math.floor(hour) - back) for back in range(int(MAX_AGE_S / HOUR_S) + 2)]
    return any(abs(_value(change) - value) < 0.5 for value in recent)


BROKEN = SignalUnavailableError("fixed: HTTP 503")


def outage(first_hour: float, last_hour: float, why: SignalError = BROKEN) -> Callable[[float, Signal], Signal]:
    """Fail between two hours."""

    def fail(hour: float, series: Signal) -> Signal:
        if first_hour <= hour < last_hour:
            raise why
        return series

    return fail


async def test_an_outage_from_3_to_11_is_bridged_by_a_forecast(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "controller.signal.feed")
    drill = Drill(tmp_path, Source(outage(3, 11)))
    await drill.run(13)
    assert [state for _, state in drill.states] == ["fresh", "held", "forecast", "fresh"]
    hours = [hour for hour, _ in drill.states]
    assert hours[1:] == [pytest.approx(4.0, abs=0.2), pytest.approx(5.0, abs=0.2), pytest.approx(11.0, abs=0.5)]
    assert len([message for message in caplog.messages if message.startswith("signal: ")]) == 4, "each once"
    assert "signal_forecast" in drill.reasons(5.2, 11)
    assert drill.reasons(5.2, 11) <= {"signal_forecast"}
    assert all(_holds(change) for change in drill.limits if not 5 <= _hour(change) < 11.5)
    bridged = [change for change in drill.limits if 5.2 <= _hour(change) < 11]
    for change in bridged:  # until the plan is made anew, a change may rest on the value of the hour before
        true = {intensity_g_per_kwh(math.floor(_hour(change) - late)) for late in (0.0, PERIOD_S / HOUR_S)}
        assert any(_value(change) == pytest.approx(one, rel=0.1) for one in true)
    assert any(_hour(change) % 1 > PERIOD_S / HOUR_S for change in bridged), "by the value of its own hour alone"
    assert all("HTTP 503" in change.detail and "a forecast from the history" in change.detail for change in bridged)


async def test_without_enough_history_the_plan_ignores_the_grid_during_the_outage(tmp_path: Path) -> None:
    source = Source(outage(2, 6))
    assert source.series is not None
    source.series = source.series.between(MIDNIGHT_S - 2 * DAY_S, math.inf)
    drill = Drill(tmp_path, source)
    await drill.run(7)
    assert [state for _, state in drill.states] == ["fresh", "held", "stale", "fresh"]
    all_changes = drill.site.limits(drill.gpu)
    first = next(change for change in all_changes if change.reason == "signal_stale")
    assert _hour(first) == pytest.approx(4.0, abs=0.1)
    changes = [change for change in all_changes if 4.05 <= _hour(change) < 6]
    blind = [change for change in changes if change.reason != "refining"]  # looks at the top know no grid at all
    assert {(change.reason, change.signal) for change in blind} == {("signal_stale", None)}
    assert all(_holds(change) for change in drill.limits)


async def test_another_provider_is_used_until_the_first_is_back(tmp_path: Path) -> None:
    second = FixedProvider(month())
    second.name = "second"
    drill = Drill(tmp_path, Source(outage(2, 5)), second)
    await drill.run(8)
    assert {state for _, state in drill.states} == {"fresh"}
    assert drill.reasons(3.2, 5) == {"signal_fallback"}
    assert "signal_fallback" not in drill.reasons(6.2, 8)
    assert all(_holds(change) for change in drill.limits)


async def test_values_of_another_zone_are_not_followed(tmp_path: Path) -> None:
    drill = Drill(tmp_path, Source(outage(2, 5, SignalDataError("fixed: answers for YY, not for XX"))))
    await drill.run(6)
    assert [state for _, state in drill.states] == ["fresh", "held", "forecast", "fresh"]
    assert any("answers for YY" in change.detail for change in drill.limits)


async def test_a_tenfold_spike_is_not_followed_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def spiked(_: float, series: Signal) -> Signal:
        at_three = series.starts_s == MIDNIGHT_S + 3 * HOUR_S
        return replace(series, values=np.where(at_three, 10 * series.values, series.values))

    drill = Drill(tmp_path, Source(spiked))
    await drill.run(6)
    assert max(_value(change) for change in drill.limits) < 460
    assert all(_holds(change) for change in drill.limits)
    series = [message for message in caplog.messages if "as a spike" in message]
    assert len(series) == 1
    assert "2023-11-15T03:00Z" in series[0]
    assert [state for _, state in drill.states] == ["fresh", "held", "fresh"]


async def test_a_clock_two_hours_ahead_is_detected(tmp_path: Path) -> None:
    drill = Drill(tmp_path, Source(lambda _, series: series, ahead_s=2 * HOUR_S))
    await drill.run(3)
    assert drill.limits == []
    everything = drill.site.limits(drill.gpu)
    assert any(change.reason == "signal_absent" and "one clock is wrong" in change.detail for change in everything)


async def test_values_by_a_clock_two_hours_behind_are_not_held_too_long(tmp_path: Path) -> None:
    drill = Drill(tmp_path, Source(lambda _, series: series, ahead_s=-2 * HOUR_S))
    await drill.run(6)
    assert {state for _, state in drill.states} <= {"held", "forecast"}
    held = [change for change in drill.limits if change.reason == "signal_held"]
    assert all(_holds(change) for change in held)
    assert {change.reason for change in drill.limits[:-1]} <= {"signal_held", "signal_forecast"}


LEASE_S = 60.0


@contextmanager
def cut_off(training: Training, *, has_heart: bool = True) -> Iterator[None]:
    """Keep what a process publishes, and publish it afterwards; without a heart it has no statuses meanwhile."""
    publish, waiting = training._publish, list[tuple[str, Message, bool]]()
    training._publish = lambda leaf, message, *, retain: waiting.append((leaf, message, retain))  # type: ignore[method-assign]
    yield
    training._publish = publish  # type: ignore[method-assign]
    training.publish_status("running")
    for leaf, message, retain in waiting:
        if has_heart or leaf != "status":
            publish(leaf, message, retain=retain)


async def finals(site: Site, training: Training) -> list[RunEnergy]:
    """Let a run finish; return its final accounts."""
    training.publish_status("finished")
    await asyncio.sleep(60)
    return [energy for energy in site.energies() if energy.final]


def check(final: RunEnergy, training: Training, gpu: FakeGpu) -> None:
    """Check that a record is of all that a process did."""
    assert training.begin_s is not None
    assert (final.state, final.iterations) == ("finished", training.n_iterations)
    assert final.duration_s == pytest.approx(training.end_s - training.begin_s, abs=5)
    assert final.energy_j == pytest.approx(energy_j(gpu, training.begin_s, training.end_s), rel=0.005)


async def test_a_broker_outage_beyond_the_lease_loses_nothing_of_the_account(
    tmp_path: Path,
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    training = Training(site)
    async with site.controlled():
        await training.train(HOUR_S)
        with cut_off(training):
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
        with cut_off(training, has_heart=False):
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
        planned = site.limits(gpu)[-1]
        left = float(planned.detail.partition(" of 0.3 left")[0].split()[-1])
    assert training.begin_s is not None
    spent = energy_kwh(energy_j(gpu, training.begin_s, planned.time_s))
    assert 0.3 - left == pytest.approx(spent, rel=0.02)


@pytest.mark.parametrize("duration_s", [600.0, 1800.0])
async def test_a_silent_run_is_not_charged_for_another_run_on_its_gpu(tmp_path: Path, duration_s: float) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE)
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
                other.publish_status("finished")
                await asyncio.sleep(LEASE_S / 2)
        final = (await finals(site, suspended))[-1]
    assert final.iterations == pytest.approx(suspended.n_iterations, abs=30)
    assert final.energy_j == pytest.approx(own_j, rel=0.01)
    assert gpu.requested_power_limit_w == PRIOR_W
