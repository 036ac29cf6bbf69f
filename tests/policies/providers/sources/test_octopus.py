"""Octopus: pages of half hours, newest first; longer tariffs; with VAT or without."""

import math
from typing import Literal

import aiohttp
import msgspec
import numpy as np
import pytest

from policies.providers.base import Provider, SignalDataError, SignalRefusedError
from policies.providers.sources.octopus import OctopusProvider, OctopusSettings
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened, value_at
from tests.policies.providers.fakes.octopus import PRODUCT, STEP_S, VAT_RATIO, FakeOctopus, rate


class OctopusBench:
    kind: SignalKind = "price"
    unit = "GBP/kWh"
    step_s = STEP_S
    has_forecast = True
    names_zone = False
    secret = ""

    def __init__(self, *, zone: str = "H", vat: Literal["include", "exclude"] = "include") -> None:
        self.api = FakeOctopus()
        self.zone = zone
        self.vat = vat

    def provider(self, session: aiohttp.ClientSession) -> Provider:
        settings = OctopusSettings(zone=self.zone, product=PRODUCT, vat=self.vat, url=self.api.url)
        return OctopusProvider(settings, session)


class TestOctopus(ProviderContract):
    @pytest.fixture
    def bench(self) -> OctopusBench:
        return OctopusBench()


async def test_two_months_come_page_by_page_from_our_own_url() -> None:
    bench = OctopusBench()
    async with opened(bench) as case:
        first_s = case.last_s - 60 * DAY_S
        case.api.grid.measured |= {first_s + i * STEP_S: 0.2 for i in range(60 * 48)}
        history = await case.history(since_s=0.0)
    assert [request.query["page"] for request in case.api.requests] == ["1", "2"]
    assert (len(history), history.starts_s[0]) == (60 * 48 + 1, first_s)


async def test_endless_pages_are_refused() -> None:
    bench = OctopusBench()
    async with opened(bench) as case:
        bench.api.is_endless = True
        with pytest.raises(SignalDataError, match="more than 4 pages"):
            await case.history()
    assert len(case.api.requests) == 4


async def test_prices_without_vat_are_named_so() -> None:
    bench = OctopusBench(vat="exclude")
    async with opened(bench) as case:
        history = await case.history()
    assert history.value_at(NOW_S) == pytest.approx(value_at(bench, case.last_s) / VAT_RATIO)
    assert case.provider.name == f"octopus {PRODUCT} H without VAT"


async def test_a_price_until_further_notice_fills_the_range() -> None:
    bench = OctopusBench()
    async with opened(bench) as case:
        changed_s = NOW_S - 5 * HOUR_S
        bench.api.rates = [
            rate(changed_s, 0.30, valid_to=None),
            rate(0.0, 0.20, ends_s=changed_s, valid_from="2026-04-01T00:00:00+01:00"),
        ]
        history = await case.history()
        forecast = await case.forecast()
        longest = await case.forecast(until_s=math.inf)
    assert [history.value_at(s) for s in (NOW_S - DAY_S, changed_s - 1.0, changed_s, NOW_S)] == [0.2, 0.2, 0.3, 0.3]
    assert np.isfinite(history.values).all()
    assert forecast.ends_s >= NOW_S + DAY_S
    assert set(forecast.values.tolist()) == {0.3}
    assert longest.ends_s < NOW_S + 4 * DAY_S


async def test_a_price_without_a_beginning_fills_the_range() -> None:
    bench = OctopusBench()
    async with opened(bench) as case:
        bench.api.rates = [rate(0.0, 0.20, valid_from=None, valid_to=None)]
        history = await case.history()
    assert history.value_at(NOW_S - DAY_S) == pytest.approx(0.2)


async def test_of_two_prices_for_one_time_direct_debit_counts() -> None:
    bench = OctopusBench()
    async with opened(bench) as case:
        bench.api.rates = [
            rate(NOW_S - DAY_S, 0.20, valid_to=None, payment_method="DIRECT_DEBIT"),
            rate(NOW_S - DAY_S, 0.25, valid_to=None, payment_method="NON_DIRECT_DEBIT"),
        ]
        history = await case.history()
    assert set(history.values.tolist()) == {0.2}


async def test_an_unknown_product_is_refused_in_the_words_of_the_api() -> None:
    async with opened(OctopusBench()) as case, aiohttp.ClientSession() as session:
        settings = OctopusSettings(zone="H", product="AGILE-00-00-00", url=case.api.url)
        with pytest.raises(SignalRefusedError, match="Not found"):
            await OctopusProvider(settings, session).fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)


@pytest.mark.parametrize("zone", ["A", "P", "I", "O", "h", "Q", "HJ", "_H"])
def test_an_unknown_region_is_a_fault(zone: str) -> None:
    settings = OctopusSettings(zone=zone, product=PRODUCT)
    assert bool(settings.faults()) == (zone not in {"A", "P"})
    assert settings.signal_kind() == "price"


@pytest.mark.parametrize("product", ["", "agile", "../AGILE", "AGILE 24"])
def test_a_product_is_a_code(product: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="product"):
        msgspec.convert({"zone": "H", "product": product}, OctopusSettings)
