"""The signal feed: the best that the chain knows, each transition told once."""

import asyncio
import logging
from dataclasses import replace

import pytest

from policies.freshness import Freshness
from policies.providers.base import SignalUnavailableError
from policies.signal import Signal
from tests.controller.feed_bench import HOUR_S, Bench, failing, hours, until
from tests.fakes import MIDNIGHT_S, FixedProvider, flat_signal


async def test_a_signal_that_is_there_is_fresh_and_forecast() -> None:
    bench = Bench(FixedProvider(flat_signal(300.0)))
    async with bench.working():
        forecast = bench.feed.forecast()
        assert (bench.feed.freshness, bench.feed.provenance().doubt) == (Freshness.FRESH, "")
        assert bench.feed.provenance().source == "fixed"
        assert forecast is not None
        assert forecast.value_at(MIDNIGHT_S + 23 * HOUR_S) == pytest.approx(300.0)


async def test_without_any_signal_it_is_absent() -> None:
    bench = Bench(FixedProvider(None))
    async with bench.working():
        assert (bench.feed.freshness, bench.feed.history(), bench.feed.forecast()) == (Freshness.ABSENT, None, None)
        assert bench.feed.provenance().doubt == "signal_absent"
    assert bench.published == []


async def test_a_short_history_that_nobody_continues_is_held_for_two_hours_and_each_change_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "controller.signal_feed")
    provider = FixedProvider(until(1))
    bench = Bench(provider)
    async with bench.working():
        await hours(1.9)
        assert (bench.feed.freshness, bench.value()) == (Freshness.FRESH, 300.0), "sources are late at times"
        await hours(0.4)
        assert (bench.feed.freshness, bench.value()) == (Freshness.HELD, 300.0)
        assert bench.feed.provenance().source.startswith("fixed, held for 1.")
        await hours(0.6)
        assert (bench.feed.freshness, bench.value()) == (Freshness.HELD, 300.0)
        await hours(0.3)
        assert (bench.feed.freshness, bench.value(), bench.feed.forecast()) == (Freshness.STALE, None, None)
        assert bench.feed.history() is not None, "it may still be shown, with its age"
        await hours(6)
        provider.series = flat_signal(200.0)
        await hours(0.4)
        assert (bench.feed.freshness, bench.value()) == (Freshness.FRESH, 200.0)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING", "INFO"]
    assert [message.state for message in bench.published if message.detail] == ["held", "stale"]


async def test_days_of_history_bridge_an_outage_by_a_forecast_for_a_day() -> None:
    series = flat_signal(300.0, start_s=MIDNIGHT_S - 20 * 86_400, hours=20 * 24 + 1)
    bench = Bench(FixedProvider(series))
    async with bench.working():
        await hours(6)
        assert bench.feed.freshness is Freshness.FORECAST
        assert bench.value() == pytest.approx(300.0)
        assert bench.feed.provenance().source.startswith("forecast from fixed, last known 4.9")
        await hours(20)
        assert (bench.feed.freshness, bench.value()) == (Freshness.STALE, None)


async def test_a_provider_that_fails_leaves_what_is_known_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    provider = FixedProvider(until(1))
    bench = Bench(provider)
    async with bench.working():
        provider.error = SignalUnavailableError("fixed: HTTP 503")
        await hours(1.5)
        assert (bench.feed.freshness, bench.value()) == (Freshness.HELD, 300.0)
    assert caplog.messages[-1] == ("signal: fixed: HTTP 503; the last value of fixed is held, which ended 1.1 h ago")


class HangingProvider(FixedProvider):
    """A provider that never answers."""

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        del since_s, now_s
        await asyncio.Event().wait()
        return None


async def test_a_provider_that_hangs_is_given_up_after_a_while() -> None:
    bench = Bench(HangingProvider(None))
    async with bench.working():
        await asyncio.sleep(60)
        assert bench.feed.freshness is Freshness.ABSENT
        assert bench.feed.lanes[0].fault == "fixed: no answer in 45 s"


async def test_the_next_of_the_chain_stands_in_while_the_first_fails(caplog: pytest.LogCaptureFixture) -> None:
    first, second = failing(name="first"), FixedProvider(flat_signal(200.0))
    second.name = "second"
    bench = Bench(first, second)
    async with bench.working():
        assert (bench.feed.freshness, bench.value()) == (Freshness.FRESH, 200.0)
        assert bench.feed.provenance().doubt == "signal_fallback"
        assert bench.feed.provenance().source == "second"
        first.error, first.series = None, flat_signal(100.0)
        await hours(1)
        assert (bench.value(), bench.feed.provenance().doubt) == (100.0, "")
        asked = second.n_asked
        await hours(3)
        assert second.n_asked == asked, "who is not needed is not asked"
    assert "signal: first: HTTP 503; second stands in" in caplog.messages


async def test_a_value_of_the_first_that_is_held_yields_to_a_fresh_one_of_the_second() -> None:
    first, second = FixedProvider(until(1, 100.0)), FixedProvider(flat_signal(200.0))
    bench = Bench(first, second)
    async with bench.working():
        assert bench.value() == 100.0
        await hours(2.5)
        assert (bench.value(), bench.feed.provenance().doubt) == (200.0, "signal_fallback")


async def test_a_provider_that_was_away_is_followed_again_when_it_has_been_back_for_a_while() -> None:
    first, second = failing(name="first"), FixedProvider(flat_signal(200.0))
    bench = Bench(first, second)
    async with bench.working():
        first.error, first.series = None, flat_signal(100.0)
        await hours(0.3)
        assert bench.value() == 200.0
        await hours(0.6)
        assert bench.value() == 100.0


async def test_sources_that_are_late_do_not_take_turns(caplog: pytest.LogCaptureFixture) -> None:
    class Late(FixedProvider):
        async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
            return await super().fetch_history(since_s=since_s, now_s=now_s - 0.75 * HOUR_S)

    second = FixedProvider(flat_signal(200.0, hours=480))
    bench = Bench(Late(flat_signal(100.0, hours=480)), second)
    async with bench.working():
        await hours(24)
    assert len([message for message in caplog.messages if "stands in" in message]) <= 2


async def test_a_provider_in_another_currency_does_not_stand_in(caplog: pytest.LogCaptureFixture) -> None:
    first = FixedProvider(replace(until(1, 0.1), kind="price", unit="EUR/kWh"))
    second = FixedProvider(replace(flat_signal(0.7), kind="price", unit="DKK/kWh"))
    second.name = "second"
    bench = Bench(first, second, kind="price")
    async with bench.working():
        await hours(3.5)
        assert bench.feed.freshness is Freshness.STALE
    assert "second is not used: its values are in DKK/kWh, the others in EUR/kWh" in caplog.messages


async def test_the_first_look_is_at_once_and_the_next_ones_at_moments_of_the_nodes_own() -> None:
    provider = FixedProvider(flat_signal(300.0))
    provider.step_s = 0.001  # it is asked at every look
    asked_s: list[float] = []
    fetch = provider.fetch_history

    async def noted(*, since_s: float, now_s: float) -> Signal | None:
        if since_s > now_s - 3 * 24 * HOUR_S:
            asked_s.append(round(now_s - MIDNIGHT_S))
        return await fetch(since_s=since_s, now_s=now_s)

    provider.fetch_history = noted  # type: ignore[method-assign]
    bench = Bench(provider, jitter_ratio=0.25)
    async with bench.working():
        assert bench.feed.freshness is Freshness.FRESH
        await hours(0.2)
    assert asked_s == [0, 75, 375, 675]


async def test_a_provider_that_was_never_asked_says_so() -> None:
    bench = Bench(FixedProvider(flat_signal(300.0)), failing(name="second"))
    async with bench.working():
        assert [lane.was_asked for lane in bench.feed.lanes] == [True, False]
