"""Electricity Maps: both versions, plans without an endpoint, estimates, unknown zones."""

import aiohttp
import pytest

from policies.providers.base import (
    SignalDataError,
    SignalLimitedError,
    SignalRefusedError,
    SignalUnavailableError,
)
from policies.providers.sources.electricity_maps import ElectricityMapsProvider, ElectricityMapsSettings
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened, value_at
from tests.policies.providers.fakes.api import Fault, iso
from tests.policies.providers.fakes.electricity_maps import TOKEN, UNKNOWN, FakeElectricityMaps


class ElectricityMapsBench:
    kind: SignalKind = "average"
    unit = "g/kWh"
    has_forecast = True
    names_zone = True
    secret = TOKEN

    def __init__(self, **settings: object) -> None:
        self.api = FakeElectricityMaps()
        self.settings: dict[str, object] = {"zone": "DE"} | settings
        self.zone = str(self.settings["zone"])
        self.step_s = {"15_minutes": 900.0, "5_minutes": 300.0}.get(str(settings.get("granularity")), HOUR_S)

    def provider(self, session: aiohttp.ClientSession) -> ElectricityMapsProvider:
        settings = ElectricityMapsSettings(**self.settings | {"url": f"{self.api.url}/"})  # type: ignore[arg-type]
        return ElectricityMapsProvider(settings, session)


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", TOKEN)


@pytest.fixture(params=[("v3", "hourly"), ("v4", "15_minutes")], ids="-".join)
def bench(request: pytest.FixtureRequest) -> ElectricityMapsBench:
    version, granularity = request.param
    return ElectricityMapsBench(version=version, granularity=granularity)


class TestElectricityMaps(ProviderContract):
    """The contract, for both versions."""


async def test_a_missing_token_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELECTRICITY_MAPS_TOKEN")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ValueError, match=r"token_file is not set, and \$ELECTRICITY_MAPS_TOKEN"):
            ElectricityMapsBench().provider(session)


async def test_each_api_version_is_asked_not_to_guess_the_zone(bench: ElectricityMapsBench) -> None:
    bench.settings["zone"] = UNKNOWN
    async with opened(bench) as case:
        with pytest.raises(SignalRefusedError, match="No data for zone"):
            await case.history()
        assert case.api.requests[0].path == f"/{bench.settings['version']}/carbon-intensity/history"


async def test_direct_emissions_are_requested_if_configured() -> None:
    async with opened(ElectricityMapsBench(emission_factor_type="direct")) as case:
        assert await case.provider.fetch_history(since_s=NOW_S - 2 * DAY_S, now_s=NOW_S)
        assert await case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + DAY_S)
    assert [request.query["emissionFactorType"] for request in case.api.requests] == ["direct"] * 3


async def test_one_day_needs_only_the_recent_history() -> None:
    async with opened(ElectricityMapsBench()) as case:
        await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
    assert len(case.api.requests) == 1


async def test_older_values_come_in_ranges_of_ten_days() -> None:
    bench = ElectricityMapsBench()
    async with opened(bench) as case:
        case.api.grid.measured |= {s: value_at(bench, s) for s in (case.last_s - i * HOUR_S for i in range(62 * 24))}
        history = await case.history(since_s=NOW_S - 90 * DAY_S)
    assert [request.path.rpartition("/")[2] for request in case.api.requests] == ["history", *["past-range"] * 6]
    assert len(history) == 60 * 24 + 1, "sixty days, and the hour that held when they began"
    assert history.values.tolist() == [value_at(bench, s) for s in history.starts_s]


async def test_a_plan_without_a_past_is_not_asked_for_more_again() -> None:
    bench = ElectricityMapsBench()
    bench.api.plan.remove("past-range")
    async with opened(bench) as case:
        for _ in range(2):
            history = await case.history(since_s=NOW_S - 2 * DAY_S)
            assert len(history) == 24
    assert [request.path.rpartition("/")[2] for request in case.api.requests] == ["history", "past-range", "history"]


async def test_a_plan_without_forecasts_says_so_and_its_history_goes_on() -> None:
    bench = ElectricityMapsBench()
    async with opened(bench) as case:
        bench.api.plan.remove("forecast")
        await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
        with pytest.raises(SignalRefusedError, match=r"the history works without.*requestType=forecast"):
            await case.forecast()
        assert await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)


async def test_other_forecast_failures_do_not_mean_a_plan_without_forecasts() -> None:
    async with opened(ElectricityMapsBench()) as case:
        case.api.fault = Fault.TOO_MANY
        with pytest.raises(SignalLimitedError):
            await case.forecast()


async def test_a_401_after_accepted_requests_may_be_a_rate_limit() -> None:
    async with opened(ElectricityMapsBench()) as case:
        await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
        case.api.fault = Fault.UNAUTHORIZED
        with pytest.raises(SignalLimitedError, match="too many requests, or it was revoked"):
            await case.history()


@pytest.mark.parametrize(("n_hours", "horizon"), [(3, "6"), (6, "6"), (6.5, "24"), (30, "48"), (72, "72"), (99, "72")])
async def test_the_smallest_sufficient_horizon_is_requested(n_hours: float, horizon: str) -> None:
    async with opened(ElectricityMapsBench()) as case:
        await case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + n_hours * HOUR_S)
    assert [request.query["horizonHours"] for request in case.api.requests] == [horizon]


async def test_a_forecast_starts_after_now_and_has_the_source_s_issue_time() -> None:
    async with opened(ElectricityMapsBench()) as case:
        forecast = await case.forecast(until_s=NOW_S + 12 * HOUR_S)
    assert forecast.starts_s[0] == case.last_s + HOUR_S
    assert forecast.issued_at_s == case.last_s


@pytest.mark.parametrize("disabled", [False, True])
async def test_estimates_are_marked_and_can_be_left_out(*, disabled: bool) -> None:
    bench = ElectricityMapsBench(disable_estimations=disabled)
    async with opened(bench) as case:
        bench.api.estimated = {case.last_s, case.last_s - HOUR_S}
        bench.api.estimated.add(case.last_s - 30 * HOUR_S)
        history = await case.history(since_s=case.last_s - 31 * HOUR_S)
    assert history.starts_s[history.estimated].tolist() == ([] if disabled else sorted(bench.api.estimated))
    assert (history.value_at(case.last_s - 30 * HOUR_S) is None) is disabled


async def test_of_two_revisions_the_one_that_was_updated_later_wins() -> None:
    bench = ElectricityMapsBench()
    async with opened(bench) as case:
        bench.api.extra = [
            {"datetime": iso(case.last_s), "carbonIntensity": 11.0, "updatedAt": iso(case.last_s - 1.0)},
            {"datetime": iso(case.last_s - HOUR_S), "carbonIntensity": 22.0, "updatedAt": iso(case.last_s + 1.0)},
        ]
        history = await case.history()
    assert history.value_at(NOW_S) == value_at(bench, case.last_s)
    assert history.value_at(NOW_S - HOUR_S) == 22.0
    assert history.issued_at_s == case.last_s + 1.0


@pytest.mark.parametrize(
    ("row", "envelope", "words"),
    [
        ({"emissionFactorType": "direct"}, {}, "direct emissions, asked for lifecycle"),
        ({}, {"temporalGranularity": "15_minutes"}, "'15_minutes', asked for 'hourly'"),
        ({"datetime": "2026-10-25T11:00:00"}, {}, "no offset from UTC"),
        ({"datetime": "2026-10-26T11:00:00Z"}, {}, "one clock is wrong"),
    ],
)
async def test_an_answer_to_another_request_is_refused(
    row: dict[str, str], envelope: dict[str, str], words: str
) -> None:
    bench = ElectricityMapsBench()
    bench.api.row, bench.api.envelope = row, envelope
    async with opened(bench) as case:
        with pytest.raises(SignalDataError, match=words):
            await case.history()


async def test_an_answer_without_a_list_of_values_is_refused() -> None:
    bench = ElectricityMapsBench()
    bench.api.key = "results"
    async with opened(bench) as case:
        with pytest.raises(SignalDataError, match="has no history, no data and no forecast"):
            await case.history()


async def test_an_error_with_status_200_is_reported() -> None:
    bench = ElectricityMapsBench()
    bench.api.envelope = {"error": 'No recent data for zone "DE"'}
    async with opened(bench) as case:
        with pytest.raises(SignalUnavailableError, match='No recent data for zone "DE"'):
            await case.history()
