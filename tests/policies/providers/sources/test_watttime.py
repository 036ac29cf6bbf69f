"""WattTime: logins, tokens that expire, pounds per megawatt hour, and percentiles, which are refused."""

import logging

import aiohttp
import pytest
from msgspec import ValidationError, convert

from policies.providers.base import SignalDataError, SignalRefusedError
from policies.providers.sources.watttime import TOKEN_LASTS_S, WattTimeProvider, WattTimeSettings
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened, value_at
from tests.policies.providers.fakes.api import Fault
from tests.policies.providers.fakes.watttime import PASSWORD, USERNAME, FakeWattTime


def kind_of(signal_type: str) -> SignalKind:
    return "average" if signal_type == "co2_aoer" else "marginal"


class WattTimeBench:
    unit = "g/kWh"
    step_s = 300.0
    has_forecast = True
    names_zone = True
    secret = PASSWORD

    def __init__(self, zone: str = "CAISO_NORTH", **settings: object) -> None:
        self.api = FakeWattTime()
        self.zone = zone
        self.settings: dict[str, object] = {"username": USERNAME, "signal_type": "co2_moer"} | settings
        self.kind = kind_of(str(self.settings["signal_type"]))

    def provider(self, session: aiohttp.ClientSession) -> WattTimeProvider:
        settings = convert(self.settings | {"zone": self.zone, "url": self.api.url}, WattTimeSettings)
        assert settings.signal_kind() == self.kind
        return WattTimeProvider(settings, session)


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTTIME_PASSWORD", PASSWORD)


@pytest.fixture(params=["co2_moer", "co2_aoer"])
def bench(request: pytest.FixtureRequest) -> WattTimeBench:
    return WattTimeBench(signal_type=request.param)


class TestWattTime(ProviderContract):
    """The contract, for the marginal and the average carbon intensity."""


def paths(bench: WattTimeBench) -> list[str]:
    return [request.path for request in bench.api.requests]


async def test_one_login_lasts_until_shortly_before_the_token_expires() -> None:
    bench = WattTimeBench()
    async with opened(bench) as case:
        for later_s in (0.0, TOKEN_LASTS_S - 1.0, TOKEN_LASTS_S):
            await case.provider.fetch_forecast(now_s=NOW_S + later_s, until_s=NOW_S + DAY_S)
    assert paths(bench) == ["/login", "/v3/forecast", "/v3/forecast", "/login", "/v3/forecast"]


async def test_a_token_that_is_refused_early_is_renewed_once() -> None:
    bench = WattTimeBench()
    async with opened(bench) as case:
        await case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + DAY_S)
        bench.api.tokens.clear()
        assert await case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + DAY_S)
    assert paths(bench) == ["/login", "/v3/forecast", "/v3/forecast", "/login", "/v3/forecast"]


async def test_a_wrong_password_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTTIME_PASSWORD", "another")
    bench = WattTimeBench()
    async with opened(bench) as case:
        with pytest.raises(SignalRefusedError, match="HTTP 403: '403 Forbidden nginx': the user 'trainer' or"):
            await case.history()
    assert paths(bench) == ["/login"]


async def test_a_region_beyond_the_plan_costs_one_login() -> None:
    bench = WattTimeBench("PJM_DC")
    async with opened(bench) as case:
        with pytest.raises(SignalRefusedError, match=r"Invalid scope\. Access not authorized for …"):
            await case.history()
    assert paths(bench) == ["/login", "/v3/historical"]


async def test_neither_the_token_nor_the_password_in_any_form_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bench = WattTimeBench()
    messages = []
    async with opened(bench) as case:
        for n_requests in (1, 2):
            case.api.fault = Fault.UNAUTHORIZED
            with pytest.raises(SignalRefusedError) as caught:
                await case.history()
            messages.append(str(caught.value))
            case.api.fault = None
            await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S + n_requests)
    sent = {request.headers["Authorization"].split()[1] for request in case.api.requests}
    assert len(sent) >= 2
    assert not [secret for secret in sent if secret[:12] in f"{messages}{caplog.text}"]


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"units": "percentile"}, "in 'percentile'; must be 'lbs_co2_per_mwh'"),
        ({"signal_type": "co2_aoer"}, "signal_type 'co2_aoer', asked for 'co2_moer'"),
        ({"data_point_period_seconds": 0}, "data_point_period_seconds"),
    ],
)
async def test_an_answer_of_another_kind_is_refused(meta: dict[str, object], words: str) -> None:
    bench = WattTimeBench()
    bench.api.meta = meta
    async with opened(bench) as case:
        for fetch in (
            case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S),
            case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + DAY_S),
        ):
            with pytest.raises(SignalDataError, match=words):
                await fetch


async def test_two_months_take_requests_of_thirty_days() -> None:
    bench = WattTimeBench()
    async with opened(bench) as case:
        starts_s = [case.last_s - i * 300.0 for i in range(61 * 288)]
        case.api.grid.measured |= {s: value_at(bench, s) for s in starts_s}
        history = await case.history(since_s=NOW_S - 90 * DAY_S)
    assert len(history) == 60 * 288 + 1
    assert paths(bench) == ["/login", *["/v3/historical"] * 3]


@pytest.mark.parametrize(("n_hours", "horizon"), [(0.1, "1"), (1, "1"), (1.5, "2"), (72, "72"), (100, "72")])
async def test_the_horizon_covers_the_time_and_is_one_that_the_api_has(n_hours: float, horizon: str) -> None:
    bench = WattTimeBench()
    async with opened(bench) as case:
        await case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + n_hours * HOUR_S)
    assert bench.api.requests[-1].query["horizon_hours"] == horizon


async def test_imputed_values_are_estimates_and_a_forecast_is_as_old_as_it_says() -> None:
    bench = WattTimeBench()
    async with opened(bench) as case:
        bench.api.imputed = {case.last_s - 300.0}
        history = await case.history(since_s=case.last_s - 600.0, now_s=NOW_S + 60.0)
        forecast = await case.forecast(now_s=NOW_S + 60.0, until_s=NOW_S + HOUR_S)
    assert history.estimated.tolist() == [False, True, False]
    assert (forecast.issued_at_s, forecast.starts_s[0]) == (case.last_s, case.last_s + 300.0)


async def test_the_step_comes_from_the_answer() -> None:
    bench = WattTimeBench()
    bench.api.meta = {"data_point_period_seconds": 3_600}
    async with opened(bench) as case:
        case.api.grid.measured = {NOW_S // HOUR_S * HOUR_S - i * HOUR_S: 100.0 for i in range(24)}
        history = await case.history(since_s=NOW_S - 5 * HOUR_S)
    assert case.provider.step_s == HOUR_S
    assert len(history) == 6
    assert history.value_at(NOW_S) == pytest.approx(100.0)


async def test_a_wrong_clock_is_reported() -> None:
    bench = WattTimeBench()
    async with opened(bench) as case:
        case.api.grid.measured[case.last_s + HOUR_S] = 100.0
        with pytest.raises(SignalDataError, match=r"gives a measured value for .* one clock is wrong"):
            await case.history()


@pytest.mark.parametrize("username", ["", "with:colon"])
def test_a_username_with_a_colon_is_refused(username: str) -> None:
    with pytest.raises(ValidationError, match="username"):
        convert({"zone": "CAISO_NORTH", "username": username}, WattTimeSettings)
