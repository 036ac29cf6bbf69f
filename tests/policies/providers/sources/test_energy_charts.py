"""Energy-Charts: measured, then forecast, in columns; prices of any step."""

import aiohttp
import numpy as np
import pytest

from policies.providers.base import Provider, SignalDataError, SignalRefusedError
from policies.providers.sources.energy_charts import (
    EnergyChartsPriceProvider,
    EnergyChartsPriceSettings,
    EnergyChartsProvider,
    EnergyChartsSettings,
)
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened, value_at
from tests.policies.providers.fakes.energy_charts import FakeEnergyCharts


class CarbonBench:
    kind: SignalKind = "average"
    unit = "g/kWh"
    step_s = 900.0
    has_forecast = True
    names_zone = False
    secret = ""

    def __init__(self, zone: str = "DE") -> None:
        self.api = FakeEnergyCharts()
        self.zone = zone

    def provider(self, session: aiohttp.ClientSession) -> Provider:
        return EnergyChartsProvider(EnergyChartsSettings(zone=self.zone, url=self.api.url), session)


class PriceBench(CarbonBench):
    kind: SignalKind = "price"
    unit = "EUR/kWh"

    def __init__(self, zone: str = "DE-LU", *, step_s: float = 900.0) -> None:
        super().__init__(zone)
        self.step_s = step_s

    def provider(self, session: aiohttp.ClientSession) -> Provider:
        return EnergyChartsPriceProvider(EnergyChartsPriceSettings(zone=self.zone, url=self.api.url), session)


class TestCarbon(ProviderContract):
    @pytest.fixture
    def bench(self) -> CarbonBench:
        return CarbonBench()


class TestPrice(ProviderContract):
    @pytest.fixture(params=["DE-LU", "CH"])
    def bench(self, request: pytest.FixtureRequest) -> PriceBench:
        return PriceBench(request.param, step_s={"DE-LU": 900.0, "CH": HOUR_S}[request.param])


async def test_missing_measurements_are_replaced_by_the_forecast_as_estimates() -> None:
    bench = CarbonBench()
    async with opened(bench) as case:
        late_s = [case.last_s - i * 900.0 for i in range(3)]
        case.api.grid.measured |= dict.fromkeys(late_s)
        case.api.grid.expected |= dict.fromkeys(late_s, 77.0)
        history = await case.history(since_s=NOW_S - HOUR_S)
    assert history.values.tolist() == [value_at(bench, case.last_s - i * 900.0) for i in (4, 3)] + [77.0] * 3
    assert history.estimated.tolist() == [False, False, True, True, True]


async def test_measured_values_from_the_future_are_refused() -> None:
    async with opened(CarbonBench()) as case:
        case.api.now_s = NOW_S - DAY_S
        with pytest.raises(SignalDataError, match=r"gives a measured value for .* one clock is wrong"):
            await case.forecast(now_s=NOW_S - DAY_S, until_s=NOW_S)


@pytest.mark.parametrize("bench", [CarbonBench(), PriceBench()], ids=["carbon", "price"])
async def test_a_missing_forecast_is_not_an_error(bench: CarbonBench) -> None:
    async with opened(bench) as case:
        bench.api.is_strict = True
        case.api.grid.expected.clear()
        case.api.grid.measured = {s: v for s, v in case.api.grid.measured.items() if s < NOW_S - 3 * HOUR_S}
        assert await case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + DAY_S) is None


async def test_a_forecast_ends_with_the_last_known_value() -> None:
    bench = CarbonBench()
    async with opened(bench) as case:
        case.api.grid.expected |= {s: None for s in case.api.grid.expected if s > NOW_S + 6 * HOUR_S}
        forecast = await case.forecast()
    assert forecast.ends_s == NOW_S + 6 * HOUR_S + 600.0
    assert np.isfinite(forecast.values).all()


@pytest.mark.parametrize("bench", [CarbonBench(), PriceBench()], ids=["carbon", "price"])
async def test_columns_of_different_lengths_are_refused(bench: CarbonBench) -> None:
    async with opened(bench) as case:
        bench.api.n_lost = 1
        with pytest.raises(SignalDataError, match="must have equal lengths"):
            await case.history()


async def test_an_unknown_country_is_refused_in_the_words_of_the_api() -> None:
    async with opened(CarbonBench("GB")) as case:
        with pytest.raises(SignalRefusedError, match="'gb' is not the code for an available country"):
            await case.history()


async def test_prices_in_another_unit_are_refused() -> None:
    bench = PriceBench()
    async with opened(bench) as case:
        bench.api.unit = "GBP / MWh"
        with pytest.raises(SignalDataError, match="in 'GBP / MWh', not in EUR/MWh"):
            await case.history()


async def test_one_request_covers_two_months_and_no_more() -> None:
    async with opened(CarbonBench()) as case:
        await case.provider.fetch_history(since_s=0.0, now_s=NOW_S)
    (request,) = case.api.requests
    assert float(request.query["start"]) == (NOW_S - 60 * DAY_S) // HOUR_S * HOUR_S


@pytest.mark.parametrize("zone", ["DE-LU", "DE", "de", "GBR", "DE&start=0"])
def test_a_zone_must_be_a_country(zone: str) -> None:
    assert bool(EnergyChartsSettings(zone=zone).faults()) == (zone != "DE")


@pytest.mark.parametrize("zone", ["DE", "dk1", "-", "DE LU"])
def test_a_zone_must_be_a_bidding_zone(zone: str) -> None:
    assert [fault.partition(":")[0] for fault in EnergyChartsPriceSettings(zone=zone).faults()] == [f"zone = {zone!r}"]


@pytest.mark.parametrize("zone", ["DE-LU", "FR", "DK1", "IT-Centre-North"])
def test_bidding_zones_are_spelled_as_in_the_api(zone: str) -> None:
    settings = EnergyChartsPriceSettings(zone=zone)
    assert (settings.faults(), settings.signal_kind()) == ([], "price")
