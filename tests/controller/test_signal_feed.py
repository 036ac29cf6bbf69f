"""The signal feed: fresh, stale or absent, each transition told once, and published when there is something new."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from controller.signal_feed import FETCH_TIMEOUT_S, MAX_AGE_S, MAX_PUBLISHED, Freshness, SignalFeed
from policies.providers.base import Provider, SignalError
from policies.providers.constant import ConstantProvider
from policies.signal import ESTIMATED, Signal
from publishers.reports import GridSignal
from publishers.wire import decode, encode
from tests.fakes import MIDNIGHT_S, FixedProvider, LoopClock, flat_signal

HOUR_S = 3_600.0
PERIOD_S = 300.0


class Bench:
    """A feed with its surroundings."""

    def __init__(self, provider: Provider, *, kind: str = "carbon") -> None:
        self.published: list[GridSignal] = []
        self.feed = SignalFeed(provider, kind=kind, clock=LoopClock(), period_s=PERIOD_S, publish=self.published.append)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the feed."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.feed.run())
            await asyncio.sleep(0)
            yield
            task.cancel()


async def hours(count: float) -> None:
    """Let hours pass."""
    for _ in range(round(count * 60)):
        await asyncio.sleep(60)


def until(hour: float) -> Signal:
    """Return a signal that nobody continues after an hour of the day."""
    return flat_signal(300.0).between(0, MIDNIGHT_S + hour * HOUR_S)


async def test_a_signal_that_is_there_is_fresh_and_forecast_by_persistence() -> None:
    bench = Bench(FixedProvider(flat_signal(300.0)))
    async with bench.working():
        forecast = bench.feed.forecast()
        assert bench.feed.freshness is Freshness.FRESH
        assert forecast is not None
        assert (forecast.source, forecast.value_at(MIDNIGHT_S + 23 * HOUR_S)) == ("persistence", 300.0)


async def test_without_any_signal_it_is_absent() -> None:
    bench = Bench(FixedProvider(None))
    async with bench.working():
        assert (bench.feed.freshness, bench.feed.history(), bench.feed.forecast()) == (Freshness.ABSENT, None, None)
    assert bench.published == []


async def test_a_signal_nobody_continues_is_trusted_for_two_hours_and_each_change_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "controller.signal_feed")
    provider = FixedProvider(until(1))
    bench = Bench(provider)
    async with bench.working():
        await hours(1 + MAX_AGE_S / HOUR_S)
        assert bench.feed.freshness is Freshness.FRESH
        await hours(0.2)
        assert (bench.feed.freshness, bench.feed.forecast()) == (Freshness.STALE, None)
        assert bench.feed.history() is not None, "it may still be shown, with its age"
        await hours(6)
        provider.series = flat_signal(200.0)
        await hours(0.2)
        assert bench.feed.freshness is Freshness.FRESH
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]


async def test_a_provider_that_fails_leaves_what_is_known_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    provider = FixedProvider(until(48))
    bench = Bench(provider)
    async with bench.working():
        provider.error = SignalError("the operator's server answers 503")
        await hours(1)
        assert (bench.feed.freshness, bench.feed.fault) == (Freshness.FRESH, "the operator's server answers 503")
        await hours(2)
        assert bench.feed.freshness is Freshness.STALE
        provider.error = None
        await hours(0.2)
        assert (bench.feed.freshness, bench.feed.fault) == (Freshness.FRESH, "")
    assert "stale: the operator's server answers 503" in caplog.text


class HangingProvider(FixedProvider):
    """A provider that never answers."""

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        del since_s, now_s
        await asyncio.Event().wait()
        return None


async def test_a_provider_that_hangs_is_given_up_after_a_while() -> None:
    bench = Bench(HangingProvider(None))
    async with bench.working():
        await asyncio.sleep(FETCH_TIMEOUT_S + 1)
        assert (bench.feed.freshness, bench.feed.fault) == (Freshness.ABSENT, "no answer in 30 s")


class Forecaster(FixedProvider):
    """A provider that has a forecast of its own."""

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        return replace(flat_signal(111.0), source="forecaster", estimated=ESTIMATED).between(now_s, until_s)


async def test_the_forecast_of_the_provider_wins_over_persistence() -> None:
    bench = Bench(Forecaster(flat_signal(300.0)))
    async with bench.working():
        forecast = bench.feed.forecast()
        assert forecast is not None
        assert (forecast.source, forecast.value_at(MIDNIGHT_S + 60)) == ("forecaster", 111.0)
    assert bench.published[0].forecast_from_s == MIDNIGHT_S


async def test_an_old_forecast_is_not_trusted_once_the_history_is_stale() -> None:
    provider = Forecaster(until(1))
    bench = Bench(provider)
    async with bench.working():
        await hours(4)
        assert bench.feed.forecast() is None


async def test_history_and_forecast_are_published_when_there_is_a_new_value() -> None:
    bench = Bench(FixedProvider(flat_signal(300.0)))
    async with bench.working():
        await hours(3)
    # The fixed provider tells a value only after its hour has begun: at the next look.
    issued = [message.values[-25].starts_s for message in bench.published]
    assert len(bench.published) == 4
    assert issued == sorted(issued)
    first = bench.published[0]
    assert (first.kind, first.unit, first.source) == ("average", "g/kWh", "test")
    assert first.forecast_from_s == MIDNIGHT_S
    assert decode(encode(first), GridSignal) == first


async def test_a_long_history_is_published_in_part_and_without_what_is_missing() -> None:
    series = flat_signal(300.0, start_s=MIDNIGHT_S - 13 * 86_400)
    fine = Signal(
        kind="average",
        zone="XX",
        source="test",
        unit="g/kWh",
        starts_s=series.starts_s[0] + 300.0 * np.arange(12 * 24 * 13, dtype=np.float64),
        values=np.where(np.arange(12 * 24 * 13) % 2, 300.0, np.nan),
        ends_s=MIDNIGHT_S + 86_400,
        issued_at_s=MIDNIGHT_S,
    )
    bench = Bench(FixedProvider(fine))
    async with bench.working():
        pass
    assert len(bench.published[0].values) == MAX_PUBLISHED
    assert decode(encode(bench.published[0]), GridSignal).values[-1].value == 300.0


async def test_plain_energy_publishes_nothing() -> None:
    bench = Bench(ConstantProvider(1.0, kind="energy", unit="1"), kind="energy")
    async with bench.working():
        await hours(2)
        assert bench.feed.freshness is Freshness.FRESH
    assert bench.published == []


async def test_a_constant_is_published_once() -> None:
    bench = Bench(ConstantProvider(300.0, kind="average", unit="g/kWh"))
    async with bench.working():
        await hours(2)
    assert len(bench.published) == 1
