"""Energinet: UTC times without an offset, local time in queries, two currencies."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import aiohttp
import numpy as np
import pytest

from policies.providers.base import Provider, SignalDataError, SignalRefusedError
from policies.providers.sources.energinet import (
    Currency,
    EnerginetPriceProvider,
    EnerginetPriceSettings,
    EnerginetProvider,
    EnerginetSettings,
)
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened, value_at
from tests.policies.providers.fakes.energinet import DKK_PER_EUR, FakeEnerginet


class CarbonBench:
    kind: SignalKind = "average"
    unit = "g/kWh"
    step_s = 300.0
    has_forecast = True
    names_zone = True
    secret = ""

    def __init__(self, zone: str = "DK1") -> None:
        self.api = FakeEnerginet()
        self.zone = zone

    def provider(self, session: aiohttp.ClientSession) -> Provider:
        return EnerginetProvider(EnerginetSettings(zone=self.zone, url=self.api.url), session)


class PriceBench(CarbonBench):
    kind: SignalKind = "price"
    unit = "EUR/kWh"
    step_s = 900.0
    currency: Currency = "EUR"

    def provider(self, session: aiohttp.ClientSession) -> Provider:
        settings = EnerginetPriceSettings(zone=self.zone, currency=self.currency, url=self.api.url)
        return EnerginetPriceProvider(settings, session)


class TestCarbon(ProviderContract):
    @pytest.fixture
    def bench(self) -> CarbonBench:
        return CarbonBench()


class TestPrice(ProviderContract):
    @pytest.fixture
    def bench(self) -> PriceBench:
        return PriceBench("SE4")


@pytest.mark.parametrize("bench", [CarbonBench("DK2"), PriceBench("DK2")], ids=["carbon", "price"])
async def test_the_repeated_hour_of_danish_time_has_two_values(bench: CarbonBench) -> None:
    turn_s = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()
    async with opened(bench) as case:
        history = await case.history(since_s=turn_s - HOUR_S)
    assert history.starts_s[0] == turn_s - HOUR_S
    assert np.diff(history.starts_s).tolist() == [bench.step_s] * (len(history) - 1)
    for starts_s in (turn_s - HOUR_S, turn_s):
        assert history.value_at(starts_s) == pytest.approx(value_at(bench, starts_s), rel=1e-6)


async def test_two_months_are_not_cut_to_the_default_of_a_hundred_records() -> None:
    bench = CarbonBench()
    async with opened(bench) as case:
        first_s = case.last_s - 61 * DAY_S
        case.api.grid.measured |= {first_s + i * 300.0: 100.0 for i in range(61 * 288)}
        history = await case.history(since_s=first_s)
    (request,) = case.api.requests
    assert (request.query["start"], request.query["timezone"]) == ("2026-08-26T11:50", "UTC")
    assert (len(history), history.starts_s[0]) == (60 * 288 + 1, case.last_s - 60 * DAY_S)


async def test_measured_values_from_the_future_are_refused() -> None:
    async with opened(CarbonBench()) as case:
        case.api.now_s = NOW_S - HOUR_S
        with pytest.raises(SignalDataError, match=r"gives a measured value for .* one clock is wrong"):
            await case.history(since_s=NOW_S - DAY_S, now_s=NOW_S - HOUR_S)


async def test_measured_values_are_not_estimates_and_late_ones_are_missing() -> None:
    async with opened(CarbonBench()) as case:
        case.api.grid.measured.pop(case.last_s)
        history = await case.history(since_s=NOW_S - HOUR_S + 60.0)
    assert history.starts_s[0] == NOW_S - HOUR_S
    assert not history.estimated.any()
    assert history.ends_s == case.last_s


@pytest.mark.parametrize("hours_ago", [(13, 6), range(20, 0, -2)])
async def test_values_far_apart_do_not_hold_until_the_next(hours_ago: Sequence[int]) -> None:
    async with opened(CarbonBench()) as case:
        case.api.grid.measured = {case.last_s - i * HOUR_S: 200.0 for i in hours_ago}
        history = await case.history()
    assert history.ends_s == case.last_s - hours_ago[-1] * HOUR_S + 300.0
    assert history.value_at(case.last_s - hours_ago[0] * HOUR_S + 300.0) is None


async def test_prices_in_kroner_have_their_unit() -> None:
    bench = PriceBench()
    bench.currency = "DKK"
    async with opened(bench) as case:
        history = await case.history()
    assert history.unit == "DKK/kWh"
    assert history.value_at(NOW_S) == pytest.approx(DKK_PER_EUR * value_at(bench, case.last_s))


async def test_future_prices_are_not_part_of_the_history() -> None:
    async with opened(PriceBench()) as case:
        history = await case.history()
        forecast = await case.forecast(until_s=math.inf)
    assert history.ends_s == forecast.starts_s[0] == case.last_s + 900.0
    assert not forecast.estimated.any()
    assert [request.query["start"] for request in case.api.requests] == ["2026-10-24T11:00", "2026-10-25T11:00"]


async def test_a_refusal_repeats_the_words_of_the_api() -> None:
    async with opened(CarbonBench()) as case, aiohttp.ClientSession() as session:
        provider = EnerginetProvider(EnerginetSettings(zone="DK1", url=f"{case.api.url}/v2"), session)
        with pytest.raises(SignalRefusedError, match="Dataset not found"):
            await provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)


@pytest.mark.parametrize("zone", ["DK1", "DK2", "SE4", "DK", "dk1"])
def test_an_unknown_zone_is_a_fault(zone: str) -> None:
    assert bool(EnerginetSettings(zone=zone).faults()) == (zone not in {"DK1", "DK2"})
    assert bool(EnerginetPriceSettings(zone=zone).faults()) == (zone not in {"DK1", "DK2", "SE4"})
