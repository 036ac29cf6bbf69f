"""The Carbon Aware SDK: required URL and kind, and the limits of the data source behind it."""

import aiohttp
import pytest
from msgspec import ValidationError, convert

from policies.providers.base import SignalDataError, SignalRefusedError
from policies.providers.sources.carbon_aware_sdk import CarbonAwareSdkProvider, CarbonAwareSdkSettings
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened, value_at
from tests.policies.providers.fakes.carbon_aware_sdk import FakeCarbonAwareSdk


class SdkBench:
    kind: SignalKind = "marginal"
    unit = "g/kWh"
    has_forecast = True
    names_zone = False  # the emissions name a zone of the data source, not the location
    secret = ""

    def __init__(self, zone: str = "eastus", step_s: float = HOUR_S) -> None:
        self.api = FakeCarbonAwareSdk()
        self.api.step_s = self.step_s = step_s
        self.zone = zone

    def provider(self, session: aiohttp.ClientSession) -> CarbonAwareSdkProvider:
        settings = CarbonAwareSdkSettings(zone=self.zone, kind="marginal", url=self.api.url)
        assert settings.faults() == []
        assert settings.signal_kind() == "marginal"
        return CarbonAwareSdkProvider(settings, session)


@pytest.fixture(params=[300.0, HOUR_S])
def bench(request: pytest.FixtureRequest) -> SdkBench:
    return SdkBench(step_s=request.param)


class TestCarbonAwareSdk(ProviderContract):
    """The contract, with a data source of 5 minutes and of an hour."""


def test_there_is_no_default_url() -> None:
    settings = convert({"zone": "eastus", "kind": "average"}, CarbonAwareSdkSettings)
    assert settings.faults() == ['url = "": must be the address of your WebAPI, as in http://localhost:5073']


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"zone": "eastus", "url": "http://localhost"}, "kind"),
        ({"zone": "eastus", "kind": "price"}, "kind"),
        ({"kind": "average"}, "zone"),
        ({"zone": "eastus", "kind": "average", "url": "localhost:5073"}, "url"),
        ({"zone": "eastus", "kind": "average", "url": "http://me:secret@localhost"}, "url"),
    ],
)
def test_zone_and_kind_are_required(table: dict[str, str], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        convert(table, CarbonAwareSdkSettings)


async def test_the_step_is_inferred_from_the_data(bench: SdkBench) -> None:
    async with opened(bench) as case:
        await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
    assert case.provider.step_s == bench.step_s


@pytest.mark.parametrize(("hours", "step_s"), [([22, 2], HOUR_S), ([3], HOUR_S), ([4, 3.5, 3], 1_800.0)])
async def test_the_step_of_a_sparse_answer_is_that_of_its_closest_values(hours: list[float], step_s: float) -> None:
    async with opened(SdkBench()) as case:
        case.api.grid.measured = {case.last_s - i * HOUR_S: 200.0 for i in hours}
        history = await case.history()
    assert (case.provider.step_s, history.ends_s) == (step_s, case.last_s - hours[-1] * HOUR_S + step_s)


async def test_a_problem_report_is_quoted_without_its_url() -> None:
    async with opened(SdkBench("atlantis")) as case:
        with pytest.raises(SignalRefusedError, match="LocationConversionException: Location: 'atlantis' is not known"):
            await case.history()


async def test_negative_values_are_missing() -> None:
    async with opened(SdkBench()) as case:
        case.api.grid.measured[case.last_s] = -1.0
        history = await case.history()
    assert history.value_at(NOW_S) is None


async def test_a_data_source_without_forecasts_has_none() -> None:
    bench = SdkBench()
    bench.api.forecasts = False
    async with opened(bench) as case:
        assert await case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + DAY_S) is None


async def test_a_forecast_for_another_location_is_refused_whatever_its_case() -> None:
    bench = SdkBench("EastUS")
    async with opened(bench) as case:
        case.api.grid.zone = "eastus"
        forecast = await case.forecast()
        assert forecast.issued_at_s == case.last_s
        case.api.grid.zone = "westus"
        with pytest.raises(SignalDataError, match="answers for westus, asked for EastUS"):
            await case.forecast()


async def test_sixty_days_take_requests_of_ten_days() -> None:
    bench = SdkBench()
    async with opened(bench) as case:
        case.api.grid.measured |= {s: value_at(bench, s) for s in (case.last_s - i * HOUR_S for i in range(62 * 24))}
        history = await case.history(since_s=NOW_S - 90 * DAY_S)
    assert len(history) == 60 * 24 + 1
    assert len(case.api.requests) == 7


@pytest.mark.parametrize("status", [400, 401])
@pytest.mark.parametrize("answered_before", [False, True])
async def test_a_data_source_with_one_day_is_not_asked_for_more_again(status: int, *, answered_before: bool) -> None:
    bench = SdkBench()
    bench.api.keeps_after_s, bench.api.refuses_with = NOW_S - DAY_S, status
    async with opened(bench) as case:
        if answered_before:  # then a 401 could also be a rate limit
            await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
            bench.api.requests.clear()
        for n_requests in (2, 3):
            history = await case.history(since_s=NOW_S - 2 * DAY_S)
            assert len(history) == 24
            assert len(case.api.requests) == n_requests


async def test_a_refusal_of_the_last_day_raises_and_the_next_poll_is_complete() -> None:
    bench = SdkBench()
    bench.api.keeps_after_s = NOW_S
    async with opened(bench) as case:
        with pytest.raises(SignalRefusedError, match="unauthorized"):
            await case.history(since_s=NOW_S - 2 * DAY_S)
        bench.api.requests.clear()
        with pytest.raises(SignalRefusedError, match="unauthorized"):
            await case.history(since_s=NOW_S - HOUR_S)
        assert len(bench.api.requests) == 1, "there is nothing less to ask for"
        bench.api.keeps_after_s = 0.0
        history = await case.history(since_s=NOW_S - 2 * DAY_S)
    assert len(history) == 49


async def test_a_wrong_clock_is_reported() -> None:
    bench = SdkBench()
    async with opened(bench) as case:
        case.api.grid.measured[case.last_s + 2 * HOUR_S] = 9.0
        with pytest.raises(SignalDataError, match=r"gives a measured value for .* one clock is wrong"):
            await case.history()
