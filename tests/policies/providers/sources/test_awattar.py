"""aWATTar: two hosts, milliseconds, hours."""

from typing import Literal

import aiohttp
import msgspec
import numpy as np
import pytest

from policies.providers.base import Provider, SignalDataError, SignalRefusedError
from policies.providers.sources.awattar import AwattarProvider, AwattarSettings
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened
from tests.policies.providers.fakes.awattar import FakeAwattar


class AwattarBench:
    kind: SignalKind = "price"
    unit = "EUR/kWh"
    has_forecast = True
    names_zone = False
    secret = ""

    def __init__(self, zone: Literal["DE", "AT"] = "DE", *, step_s: float = HOUR_S) -> None:
        self.api = FakeAwattar()
        self.api.step_s = step_s
        self.zone: str = zone
        self.step_s = step_s
        self.settings = AwattarSettings(zone=zone)

    def provider(self, session: aiohttp.ClientSession) -> Provider:
        return AwattarProvider(msgspec.structs.replace(self.settings, url=self.api.url), session)


class TestAwattar(ProviderContract):
    @pytest.fixture(params=[HOUR_S, 900.0], ids=["hours", "quarters"])
    def bench(self, request: pytest.FixtureRequest) -> AwattarBench:
        return AwattarBench(step_s=request.param)


async def test_one_request_covers_two_months_and_no_more() -> None:
    async with opened(AwattarBench()) as case:
        first_s = case.last_s - 61 * DAY_S
        case.api.grid.measured |= {first_s + i * HOUR_S: 0.1 for i in range(61 * 24)}
        history = await case.history(since_s=first_s)
    assert len(case.api.requests) == 1
    assert (len(history), history.starts_s[0]) == (60 * 24 + 1, case.last_s - 60 * DAY_S)
    assert np.diff(history.starts_s).tolist() == [HOUR_S] * (60 * 24)


async def test_prices_in_another_unit_are_refused() -> None:
    bench = AwattarBench()
    async with opened(bench) as case:
        bench.api.unit = "Cent/kWh"
        with pytest.raises(SignalDataError, match="in Cent/kWh, not in EUR/MWh"):
            await case.history()


async def test_a_refusal_repeats_the_words_of_the_api() -> None:
    async with opened(AwattarBench()) as case, aiohttp.ClientSession() as session:
        provider = AwattarProvider(AwattarSettings(zone="AT", url=f"{case.api.url}/at"), session)
        with pytest.raises(SignalRefusedError, match="Not Found"):
            await provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)


@pytest.mark.parametrize(("zone", "host"), [("DE", "api.awattar.de"), ("AT", "api.awattar.at")])
async def test_the_zone_chooses_the_host(zone: Literal["DE", "AT"], host: str) -> None:
    async with aiohttp.ClientSession() as session:
        provider = AwattarProvider(AwattarSettings(zone=zone), session)
    assert provider._url == f"https://{host}/v1/marketdata"


@pytest.mark.parametrize("settings", [{"zone": "CH"}, {}, {"zone": "DE", "url": "https://me:secret@example.org"}])
def test_invalid_settings_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(settings, AwattarSettings)
