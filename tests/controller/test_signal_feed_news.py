"""The signal feed on the bus: history and forecast are published when there is something new, and only then."""

from dataclasses import replace

import numpy as np

from controller.signal_news import MAX_PUBLISHED
from policies.freshness import Freshness
from policies.providers.constant import ConstantProvider
from policies.signal import Signal
from publishers.reports import GridSignal
from publishers.wire import decode, encode
from tests.controller.feed_bench import HOUR_S, Bench, hours
from tests.fakes import MIDNIGHT_S, FixedProvider, flat_signal


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
    assert decode(encode(first), GridSignal) == first


async def test_the_forecast_is_published_with_its_band_from_where_the_present_ends() -> None:
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


async def test_a_long_history_is_published_in_part_and_without_what_is_missing() -> None:
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


async def test_what_holds_for_ever_is_not_known_until_any_time() -> None:
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
