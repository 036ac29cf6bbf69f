"""NESO: the country is measured, regions are only forecast, and one slot too many comes first."""

import aiohttp
import pytest

from policies.providers.base import Provider, SignalDataError, SignalRefusedError
from policies.providers.sources.neso import NesoProvider, NesoSettings
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened, value_at
from tests.policies.providers.fakes.neso import FakeNeso


class NesoBench:
    kind: SignalKind = "average"
    unit = "g/kWh"
    step_s = 1_800.0
    has_forecast = True
    secret = ""

    def __init__(self, zone: str) -> None:
        self.api = FakeNeso()
        self.zone = zone
        self.names_zone = zone != "GB"

    def provider(self, session: aiohttp.ClientSession) -> Provider:
        return NesoProvider(NesoSettings(zone=self.zone, url=self.api.url), session)


@pytest.fixture(params=["GB", "GB-RG10"])
def bench(request: pytest.FixtureRequest) -> NesoBench:
    return NesoBench(request.param)


class TestNeso(ProviderContract):
    pass


async def test_missing_measurements_are_replaced_by_the_forecast_as_estimates() -> None:
    bench = NesoBench("GB")
    async with opened(bench) as case:
        case.api.grid.measured |= {case.last_s: None, case.last_s - 1_800.0: 0.0}
        case.api.grid.expected |= {case.last_s - i * 1_800.0: 77.0 for i in range(4)}
        history = await case.history(since_s=NOW_S - HOUR_S)
    assert history.values.tolist() == [value_at(bench, case.last_s - 3_600.0), 77.0, 77.0]
    assert history.estimated.tolist() == [False, True, True]


async def test_a_region_is_never_measured() -> None:
    async with opened(NesoBench("GB-3")) as case:
        history = await case.history()
    assert history.estimated.all()
    assert [request.path.rpartition("/intensity/")[0] for request in case.api.requests] == ["/regional"]


async def test_the_values_of_another_region_are_refused() -> None:
    bench = NesoBench("GB-3")
    async with opened(bench) as case:
        bench.api.region = 13
        with pytest.raises(SignalDataError, match="regionid 13, not 3"):
            await case.history()


async def test_a_region_is_not_the_country() -> None:
    bench = NesoBench("GB")
    async with opened(bench) as case:
        bench.api.mixes_up = True
        with pytest.raises(SignalDataError, match="an unexpected structure"):
            await case.history()


async def test_two_months_take_requests_within_the_api_s_limit() -> None:
    bench = NesoBench("GB")
    async with opened(bench) as case:
        first_s = case.last_s - 61 * DAY_S
        starts_s = [first_s + i * 1_800.0 for i in range(61 * 48)]
        case.api.grid.measured |= {s: value_at(bench, s) for s in starts_s}
        history = await case.history(since_s=first_s)
    assert len(case.api.requests) == 5
    assert history.starts_s[0] == case.last_s - 60 * DAY_S
    assert len(history) == 60 * 48 + 1, "no slot is missing, and none is there twice"


async def test_a_refusal_repeats_the_words_of_the_api() -> None:
    async with opened(NesoBench("GB")) as case, aiohttp.ClientSession() as session:
        settings = NesoSettings(zone="GB", url=f"{case.api.url}/nowhere")
        with pytest.raises(SignalRefusedError, match="Please enter a valid path"):
            await NesoProvider(settings, session).fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)


async def test_measured_values_from_the_future_are_refused() -> None:
    async with opened(NesoBench("GB")) as case:
        case.api.now_s = NOW_S - DAY_S
        with pytest.raises(SignalDataError, match=r"gives a measured value for .* one clock is wrong"):
            await case.forecast(now_s=NOW_S - DAY_S, until_s=NOW_S)
        with pytest.raises(SignalDataError, match=r"gives a measured value for .* one clock is wrong"):
            await case.history(since_s=NOW_S - 2 * DAY_S, now_s=NOW_S - DAY_S)


@pytest.mark.parametrize("zone", ["GB", "GB-1", "GB-17", "GB-RG10", "GB-E1", "GB-EC1A"])
def test_the_country_its_regions_and_its_postcodes_are_zones(zone: str) -> None:
    assert NesoSettings(zone=zone).faults() == []


@pytest.mark.parametrize("zone", ["DE", "GB-0", "GB-18", "GB-RG10 1AA", "GB-rg10", "gb", "GB-", "GB-1/fw24h"])
async def test_an_unknown_zone_is_a_fault(zone: str) -> None:
    settings = NesoSettings(zone=zone)
    assert [fault.partition(":")[0] for fault in settings.faults()] == [f"zone = {zone!r}"]
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ValueError, match="must be GB"):
            NesoProvider(settings, session)
