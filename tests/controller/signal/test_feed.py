"""The signal feed: the best of the chain, each transition logged once, new values published once."""

import asyncio
import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from controller.signal.grid_message import MAX_PUBLISHED
from policies.providers.base import SignalUnavailableError
from policies.providers.sources.constant import ConstantProvider
from policies.vocabulary.freshness import Freshness
from policies.vocabulary.signal import Signal
from tests.controller.signal.feed_bench import HOUR_S, Bench, failing, hours, until
from tests.fakes import MIDNIGHT_S, FixedProvider, flat_signal


async def test_a_current_signal_is_fresh_and_forecast() -> None:
    bench = Bench(FixedProvider(flat_signal(300.0)))
    async with bench.working():
        forecast = bench.feed.forecast()
        assert (bench.feed.freshness, bench.feed.provenance().reason) == (Freshness.FRESH, "")
        assert bench.feed.provenance().source == "fixed"
        assert forecast is not None
        assert forecast.value_at(MIDNIGHT_S + 23 * HOUR_S) == pytest.approx(300.0)


async def test_without_any_signal_it_is_absent() -> None:
    bench = Bench(FixedProvider(None))
    async with bench.working():
        assert (bench.feed.freshness, bench.feed.history(), bench.feed.forecast()) == (Freshness.ABSENT, None, None)
        assert bench.feed.provenance().reason == "signal_absent"
    assert bench.published == []


async def test_a_source_with_nothing_to_use_says_why_and_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "controller.signal")
    provider = FixedProvider(replace(flat_signal(300.0), values=np.full(240, math.nan)))
    provider.losses = "left out: 24 not above 0"
    bench = Bench(provider)
    async with bench.working():
        assert bench.feed.freshness is Freshness.ABSENT
        assert bench.feed.provenance().detail.startswith("fixed: left out: 24 not above 0; ignoring the grid")
        assert bench.feed.sources[0].lack == "fixed: left out: 24 not above 0"
        await hours(5)
        provider.series, provider.losses = flat_signal(300.0), ""
        await hours(1)
        assert (bench.feed.freshness, bench.feed.sources[0].lack) == (Freshness.FRESH, "")
    assert caplog.messages == [
        "no history: fixed: left out: 24 not above 0",
        "signal: fixed: left out: 24 not above 0; ignoring the grid: no signal is known",
        "fixed: the history is available again",
        "signal: fresh from fixed",
    ]


async def test_a_short_history_is_held_for_two_hours_and_each_transition_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "controller.signal.feed")
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


async def test_a_failing_provider_leaves_what_is_known_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    provider = FixedProvider(until(1))
    bench = Bench(provider)
    async with bench.working():
        provider.error = SignalUnavailableError("fixed: HTTP 503")
        await hours(1.5)
        assert (bench.feed.freshness, bench.value()) == (Freshness.HELD, 300.0)
    assert caplog.messages[-1] == ("signal: fixed: HTTP 503; holding the last value of fixed, which ended 1.1 h ago")


async def test_the_last_value_stands_in_for_a_missing_one_once_one_was_in_force() -> None:
    provider = FixedProvider(until(-10.0, 500.0))
    bench = Bench(provider)
    async with bench.working():
        assert (bench.feed.freshness, bench.feed.value_at(MIDNIGHT_S)) == (Freshness.STALE, None)
        provider.series = until(1.0, 200.0)
        await hours(1.5)
        assert bench.feed.value_at(MIDNIGHT_S + 0.5 * HOUR_S) == 200.0
        await hours(8)
        assert (bench.feed.freshness, bench.feed.value_at(MIDNIGHT_S + 9 * HOUR_S)) == (Freshness.STALE, 200.0)


class PushedProvider(FixedProvider):
    """A provider whose source sends by itself."""

    def __init__(self) -> None:
        super().__init__(None)
        self.news = asyncio.Event()

    def send(self, series: Signal) -> None:
        self.series = series
        self.news.set()

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        self.news.clear()
        return await super().fetch_history(since_s=since_s, now_s=now_s)


async def test_the_first_value_that_a_source_sends_counts_at_once() -> None:
    provider = PushedProvider()
    bench = Bench(provider)
    async with bench.working():
        await hours(1.51)
        assert not bench.published
        provider.send(until(4))
        await asyncio.sleep(1.0)
        assert (bench.feed.freshness, bench.value()) == (Freshness.FRESH, 300.0)
        assert len(bench.published) == 1
        asked = provider.n_asked
        for _ in range(1_000):
            provider.send(until(4))
            await asyncio.sleep(0.01)
        assert provider.n_asked == asked, "what is current is polled as usual"
        await hours(6)
        assert bench.value() is None
        provider.send(until(9, 200.0))
        await asyncio.sleep(1.0)
        assert (bench.feed.freshness, bench.value()) == (Freshness.FRESH, 200.0)


async def test_messages_without_a_current_value_cause_one_poll_a_period() -> None:
    provider = PushedProvider()
    bench = Bench(provider)
    async with bench.working():
        await hours(1)
        asked = provider.n_asked
        for _ in range(1_000):
            provider.news.set()
            await asyncio.sleep(0.1)
        assert provider.n_asked <= asked + 2


class HangingProvider(FixedProvider):
    """A provider that never answers."""

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        del since_s, now_s
        await asyncio.Event().wait()
        return None


async def test_a_hanging_provider_times_out() -> None:
    bench = Bench(HangingProvider(None))
    async with bench.working():
        await asyncio.sleep(60)
        assert bench.feed.freshness is Freshness.ABSENT
        assert bench.feed.sources[0].fault == "fixed: no answer in 45 s"


async def test_the_next_provider_is_used_while_the_first_fails(caplog: pytest.LogCaptureFixture) -> None:
    first, second = failing(name="first"), FixedProvider(flat_signal(200.0))
    second.name = "second"
    bench = Bench(first, second)
    async with bench.working():
        assert (bench.feed.freshness, bench.value()) == (Freshness.FRESH, 200.0)
        assert bench.feed.provenance().reason == "signal_fallback"
        assert bench.feed.provenance().source == "second"
        first.error, first.series = None, flat_signal(100.0)
        await hours(1)
        assert (bench.value(), bench.feed.provenance().reason) == (100.0, "")
        asked = second.n_asked
        await hours(3)
        assert second.n_asked == asked, "who is not needed is not asked"
    assert "signal: first: HTTP 503; using second instead" in caplog.messages


async def test_a_held_value_of_the_first_yields_to_a_fresh_one_of_the_second() -> None:
    first, second = FixedProvider(until(1, 100.0)), FixedProvider(flat_signal(200.0))
    bench = Bench(first, second)
    async with bench.working():
        assert bench.value() == 100.0
        await hours(2.5)
        assert (bench.value(), bench.feed.provenance().reason) == (200.0, "signal_fallback")


async def test_a_provider_that_returns_is_followed_again_after_a_while() -> None:
    first, second = failing(name="first"), FixedProvider(flat_signal(200.0))
    bench = Bench(first, second)
    async with bench.working():
        first.error, first.series = None, flat_signal(100.0)
        await hours(0.3)
        assert bench.value() == 200.0
        await hours(0.6)
        assert bench.value() == 100.0


async def test_late_sources_do_not_take_turns(caplog: pytest.LogCaptureFixture) -> None:
    class Late(FixedProvider):
        async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
            return await super().fetch_history(since_s=since_s, now_s=now_s - 0.75 * HOUR_S)

    second = FixedProvider(flat_signal(200.0, hours=480))
    bench = Bench(Late(flat_signal(100.0, hours=480)), second)
    async with bench.working():
        await hours(24)
    assert len([message for message in caplog.messages if "instead" in message]) <= 2


async def test_a_provider_in_another_currency_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    first = FixedProvider(replace(until(1, 0.1), kind="price", unit="EUR/kWh"))
    second = FixedProvider(replace(flat_signal(0.7), kind="price", unit="DKK/kWh"))
    second.name = "second"
    bench = Bench(first, second, kind="price")
    async with bench.working():
        await hours(3.5)
        assert bench.feed.freshness is Freshness.STALE
    assert "ignoring second: its values are in DKK/kWh, those of other providers in EUR/kWh" in caplog.messages


async def test_the_first_poll_is_at_once_and_the_next_ones_are_jittered() -> None:
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


async def test_a_provider_that_was_never_polled_says_so() -> None:
    bench = Bench(FixedProvider(flat_signal(300.0)), failing(name="second"))
    async with bench.working():
        assert [state.was_polled for state in bench.feed.sources] == [True, False]


async def test_history_and_forecast_are_published_when_there_is_a_new_value() -> None:
    bench = Bench(FixedProvider(flat_signal(300.0)))
    async with bench.working():
        await hours(3)
    assert len(bench.published) == 4
    times_s = [message.time_s for message in bench.published]
    assert times_s == sorted(set(times_s))
    first = bench.published[0]
    assert (first.kind, first.unit, first.source, first.zone) == ("average", "g/kWh", "test", "XX")
    assert (first.state, first.age_s, first.detail) == ("fresh", 0.0, None)
    assert [message.known_until_s for message in bench.published[:2]] == [MIDNIGHT_S, MIDNIGHT_S + HOUR_S]
    assert first.forecast_from_s is not None
    assert all(entry.estimated for entry in first.values if entry.starts_s >= first.forecast_from_s)
    assert not any(entry.estimated for entry in first.values if entry.starts_s < MIDNIGHT_S)


async def test_the_forecast_is_published_with_its_band() -> None:
    hours_before = 24 * 20
    series = flat_signal(300.0, start_s=MIDNIGHT_S - hours_before * HOUR_S, hours=hours_before + 24)
    dice = np.random.default_rng(1)
    bench = Bench(FixedProvider(replace(series, values=series.values + dice.normal(0, 20, len(series)))))
    async with bench.working():
        await hours(1.5)
    message = bench.published[-1]
    assert message.issued_at_s == series.issued_at_s
    assert message.known_until_s == message.forecast_from_s == MIDNIGHT_S + 2 * HOUR_S
    ahead = [entry for entry in message.values if entry.starts_s >= message.forecast_from_s]
    assert len(ahead) >= 23
    assert all(entry.estimated for entry in ahead)
    assert all(entry.lower is not None and entry.upper is not None for entry in ahead)
    assert all((entry.lower or 0) < entry.value < (entry.upper or 0) for entry in ahead)
    assert all(entry.lower is None for entry in message.values if entry.starts_s < message.forecast_from_s)


async def test_a_long_history_is_published_in_part_and_without_gaps() -> None:
    n = 12 * 24 * 13
    fine = Signal(
        kind="average",
        zone="XX",
        source="test",
        unit="g/kWh",
        starts_s=MIDNIGHT_S - 13 * 86_400 + 300.0 * np.arange(n, dtype=np.float64),
        values=np.where(np.arange(n) % 2, 300.0, np.nan),
        ends_s=MIDNIGHT_S + 86_400,
        issued_at_s=MIDNIGHT_S,
    )
    bench = Bench(FixedProvider(fine))
    async with bench.working():
        pass
    assert len(bench.published[0].values) == MAX_PUBLISHED
    assert all(entry.value > 0 for entry in bench.published[0].values)


async def test_a_constant_has_no_known_until() -> None:
    bench = Bench(ConstantProvider(300.0, kind="average", unit="g/kWh"))
    async with bench.working():
        pass
    assert bench.published[0].known_until_s is None


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
