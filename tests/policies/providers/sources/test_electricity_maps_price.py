"""Prices of Electricity Maps: past and published future ones, and their currency."""

import aiohttp
import pytest

from policies.providers.base import SignalDataError
from policies.providers.sources.electricity_maps import ElectricityMapsPriceProvider, ElectricityMapsPriceSettings
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened, value_at
from tests.policies.providers.fakes.api import iso
from tests.policies.providers.fakes.electricity_maps import TOKEN, FakeElectricityMaps


class PriceBench:
    kind: SignalKind = "price"
    zone = "DK-DK1"
    unit = "EUR/kWh"
    step_s = HOUR_S
    has_forecast = True
    names_zone = True
    secret = TOKEN

    def __init__(self) -> None:
        self.api = FakeElectricityMaps()

    def provider(self, session: aiohttp.ClientSession) -> ElectricityMapsPriceProvider:
        return ElectricityMapsPriceProvider(ElectricityMapsPriceSettings(zone=self.zone, url=self.api.url), session)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> PriceBench:
    monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", TOKEN)
    return PriceBench()


class TestElectricityMapsPrice(ProviderContract):
    """The contract."""


async def test_future_prices_are_settled_and_in_the_exchange_s_currency(bench: PriceBench) -> None:
    async with opened(bench) as case:
        bench.api.currency = "GBP"
        history = await case.history()
        forecast = await case.forecast()
    assert history.unit == forecast.unit == "GBP/kWh"
    assert not forecast.estimated.any()
    assert history.starts_s[-1] + HOUR_S == history.ends_s == forecast.starts_s[0], "no gap, and nothing twice"


async def test_sixty_days_take_requests_of_ten_days(bench: PriceBench) -> None:
    async with opened(bench) as case:
        case.api.grid.measured |= {case.last_s - i * HOUR_S: 0.1 for i in range(62 * 24)}
        history = await case.history(since_s=NOW_S - 90 * DAY_S)
    assert len(history) == 60 * 24 + 1
    assert len(case.api.requests) == 7


async def test_of_two_revisions_the_one_that_was_updated_later_wins(bench: PriceBench) -> None:
    async with opened(bench) as case:
        bench.api.extra = [
            {"datetime": iso(case.last_s), "value": 9.0, "unit": "EUR/MWh", "updatedAt": iso(case.last_s - 1.0)}
        ]
        history = await case.history()
    assert history.value_at(NOW_S) == pytest.approx(value_at(bench, case.last_s))


@pytest.mark.parametrize(
    ("unit", "words"),
    [("EUR/kWh", "must be money per MWh"), ("", "must be money per MWh"), ("GBP/MWh", "EUR/kWh and GBP/kWh at one")],
)
async def test_mixed_or_unknown_price_units_are_refused(bench: PriceBench, unit: str, words: str) -> None:
    async with opened(bench) as case:
        bench.api.extra = [{"datetime": iso(case.last_s), "value": 1.0, "unit": unit}]
        with pytest.raises(SignalDataError, match=words):
            await case.history()


async def test_a_change_of_currency_starts_another_series(bench: PriceBench) -> None:
    async with opened(bench) as case:
        bench.api.currencies = {case.last_s - 5 * HOUR_S: "BGN", case.last_s + 6 * HOUR_S: "CHF"}
        history = await case.history()
        forecast = await case.forecast()
    assert (history.unit, history.starts_s[0], history.starts_s[-1]) == (
        "BGN/kWh",
        case.last_s - 5 * HOUR_S,
        case.last_s,
    )
    assert (forecast.unit, forecast.ends_s) == ("BGN/kWh", case.last_s + 6 * HOUR_S), "what goes on from the history"
