"""Outage drills: days on which the data of the grid fail. Nothing too old is followed, and all of it is told."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policies.providers.base import SignalDataError, SignalUnavailableError
from policies.signal import Signal
from publishers.reports import GridSignal, LimitChange
from publishers.wire import decode
from tests.fakes import MIDNIGHT_S, FixedProvider
from tests.scenarios.site import ANY_PROVIDER, HOUR_S, TOPICS, Site, Training, prior_gpu, rate_per_s

DAY_S = 86_400.0
MAX_AGE_S = 7_200.0
N_DAYS = 30
QUICK = (
    "plan.max_slowdown=1.2",
    "profiler.window_s=200",
    "profiler.settle_s=60",
    "energy.period_s=60",
    "plan.period_s=300",
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
        told = await super().fetch_history(since_s=since_s, now_s=now_s + self._ahead_s)
        return None if told is None else self._falsify((now_s - MIDNIGHT_S) / HOUR_S, told)


class Drill:
    """A day of training under one or more sources."""

    def __init__(self, folder: Path, *sources: FixedProvider) -> None:
        self.gpu = prior_gpu()
        self.site = Site(folder / "state", [self.gpu], *QUICK, providers=sources)

    async def run(self) -> None:
        """Train from midnight to midnight."""
        training = Training(self.site, rate=lambda power_limit_w: rate_per_s(power_limit_w) / 10)
        async with self.site.controlled():
            await training.train(24 * HOUR_S, flush_s=60)
            training.tell("finished")
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


def outage(hour: float, told: Signal) -> Signal:
    """Fail from 6 to 18 o'clock."""
    if 6 <= hour < 18:
        raise SignalUnavailableError("fixed: HTTP 503")
    return told


async def test_a_provider_that_dies_at_6_and_returns_at_18_is_bridged_by_a_forecast(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "controller.signal_feed")
    drill = Drill(tmp_path, Source(outage))
    await drill.run()
    assert [state for _, state in drill.states] == ["fresh", "held", "forecast", "fresh"]
    hours = [hour for hour, _ in drill.states]
    assert hours[1:] == [pytest.approx(7.0, abs=0.2), pytest.approx(8.0, abs=0.2), pytest.approx(18.0, abs=0.5)]
    assert len([message for message in caplog.messages if message.startswith("signal: ")]) == 4, "each once"
    assert "signal_forecast" in drill.reasons(8.2, 18)
    assert drill.reasons(8.2, 18) <= {"signal_forecast"}
    assert all(_holds(change) for change in drill.limits if not 8 <= _hour(change) < 18.5)
    bridged = [change for change in drill.limits if 8.2 <= _hour(change) < 18]
    assert all(
        _value(change) == pytest.approx(intensity_g_per_kwh(math.floor(_hour(change))), rel=0.1) for change in bridged
    )
    assert all("HTTP 503" in change.detail and "forecast from its history" in change.detail for change in bridged)


async def test_without_enough_history_the_plan_ignores_the_grid_during_the_outage(tmp_path: Path) -> None:
    source = Source(outage)
    assert source.series is not None
    source.series = source.series.between(MIDNIGHT_S - 2 * DAY_S, math.inf)
    drill = Drill(tmp_path, source)
    await drill.run()
    assert [state for _, state in drill.states] == ["fresh", "held", "stale", "fresh"]
    blind = [change for change in drill.site.limits(drill.gpu) if 8.05 <= _hour(change) < 18]
    assert {(change.reason, change.signal) for change in blind} == {("signal_stale", None)}
    assert _hour(blind[0]) == pytest.approx(8.0, abs=0.2)
    assert all(_holds(change) for change in drill.limits)


async def test_another_provider_stands_in_and_the_first_is_followed_again(tmp_path: Path) -> None:
    second = FixedProvider(month())
    second.name = "second"
    drill = Drill(tmp_path, Source(outage), second)
    await drill.run()
    assert {state for _, state in drill.states} == {"fresh"}
    assert drill.reasons(7.2, 18) == {"signal_fallback"}
    assert "signal_fallback" not in drill.reasons(19.2, 24)
    assert all(_holds(change) for change in drill.limits)


async def test_values_of_another_zone_are_not_followed(tmp_path: Path) -> None:
    def wrong_zone(hour: float, told: Signal) -> Signal:
        if 6 <= hour < 18:
            raise SignalDataError("fixed: answers for YY, not for XX")
        return told

    drill = Drill(tmp_path, Source(wrong_zone))
    await drill.run()
    assert [state for _, state in drill.states] == ["fresh", "held", "forecast", "fresh"]
    assert any("answers for YY" in change.detail for change in drill.limits)


async def test_a_spike_of_ten_times_is_not_followed_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def spiked(_: float, told: Signal) -> Signal:
        at_noon = told.starts_s == MIDNIGHT_S + 12 * HOUR_S
        return replace(told, values=np.where(at_noon, 10 * told.values, told.values))

    drill = Drill(tmp_path, Source(spiked))
    await drill.run()
    assert max(_value(change) for change in drill.limits) < 460
    assert all(_holds(change) for change in drill.limits)
    told = [message for message in caplog.messages if "is not believed" in message]
    assert len(told) == 1
    assert "2023-11-15T12:00Z" in told[0]
    assert [state for _, state in drill.states] == ["fresh", "held", "fresh"]


async def test_a_clock_that_is_two_hours_ahead_is_found_out(tmp_path: Path) -> None:
    drill = Drill(tmp_path, Source(lambda _, told: told, ahead_s=2 * HOUR_S))
    await drill.run()
    assert drill.limits == []
    everything = drill.site.limits(drill.gpu)
    assert any(change.reason == "signal_absent" and "one clock is wrong" in change.detail for change in everything)


async def test_a_clock_that_is_two_hours_behind_makes_old_values_which_are_not_held_too_long(tmp_path: Path) -> None:
    drill = Drill(tmp_path, Source(lambda _, told: told, ahead_s=-2 * HOUR_S))
    await drill.run()
    assert {state for _, state in drill.states} <= {"held", "forecast"}
    held = [change for change in drill.limits if change.reason == "signal_held"]
    assert all(_holds(change) for change in held)
    assert {change.reason for change in drill.limits[:-1]} <= {"signal_held", "signal_forecast"}
