"""The EIA: hours named by their end, pages, missing fuels, errors with status 200."""

import math

import aiohttp
import numpy as np
import pytest
from msgspec import ValidationError, convert

from policies.providers.base import SignalDataError, SignalError, SignalRefusedError, SignalUnavailableError
from policies.providers.sources import eia
from policies.providers.sources.eia import EiaProvider, EiaSettings
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened
from tests.policies.providers.fakes.eia import KEY, FakeEia

LAST_S = NOW_S // HOUR_S * HOUR_S


class EiaBench:
    """The provider for MISO, with its key in the environment."""

    kind: SignalKind = "average"
    zone = "MISO"
    unit = "g/kWh"
    step_s = HOUR_S
    has_forecast = False
    names_zone = True
    secret = KEY

    def __init__(self) -> None:
        self.api = FakeEia()

    def provider(self, session: aiohttp.ClientSession) -> EiaProvider:
        return EiaProvider(EiaSettings(zone="MISO", url=f"{self.api.url}/v2"), session)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> EiaBench:
    monkeypatch.setenv("EIA_API_KEY", KEY)
    return EiaBench()


class TestEia(ProviderContract):
    """The contract."""


async def test_an_hour_is_named_by_its_end_and_holds_from_its_beginning(bench: EiaBench) -> None:
    bench.api.generated = {LAST_S - HOUR_S: {"COL": "1"}, LAST_S: {"WND": 5}}
    async with bench.api.running(), aiohttp.ClientSession() as session:
        history = await bench.provider(session).fetch_history(since_s=LAST_S, now_s=NOW_S)
        assert history is not None
        assert bench.api.requests[0].query["start"] == "2026-10-24T12"
    assert (history.starts_s.tolist(), history.ends_s) == ([LAST_S], LAST_S + HOUR_S)


async def test_sixty_days_come_in_pages_and_no_row_is_lost(bench: EiaBench) -> None:
    starts_s = [LAST_S - i * HOUR_S for i in range(90 * 24)]
    bench.api.generated = {s: {"COL": i, "NG": 500, "NUC": 80.0, "WAT": 70} for i, s in enumerate(starts_s)}
    async with bench.api.running(), aiohttp.ClientSession() as session:
        history = await bench.provider(session).fetch_history(since_s=NOW_S - 90 * DAY_S, now_s=NOW_S)
    assert history is not None
    assert len(history) == 60 * 24 + 1
    assert not np.isnan(history.values).any()
    assert len(set(history.values.tolist())) == len(history)
    assert [request.query["offset"] for request in bench.api.requests] == ["0", "5000"]


async def test_beyond_the_last_page_the_newest_hours_are_kept(bench: EiaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eia, "MAX_PAGES", 1)
    starts_s = [LAST_S - i * HOUR_S for i in range(60 * 24)]
    bench.api.generated = {s: {"COL": 9, "NG": 500, "NUC": 80.0, "WAT": 70} for s in starts_s}
    async with bench.api.running(), aiohttp.ClientSession() as session:
        history = await bench.provider(session).fetch_history(since_s=NOW_S - 60 * DAY_S, now_s=NOW_S)
    assert history is not None
    assert (history.starts_s[0], history.starts_s[-1]) == (LAST_S - 1_249 * HOUR_S, LAST_S)


async def test_an_hour_that_lacks_an_important_fuel_is_missing_and_not_wrong(bench: EiaBench) -> None:
    async with opened(bench) as case:
        for i in (3, 4, 5):
            starts_s = case.last_s - i * HOUR_S
            case.api.grid.measured.pop(starts_s)
            bench.api.generated[starts_s] = {"WND": 700, "COL": None if i == 4 else "n/a"}
        history = await case.history(since_s=case.last_s - 4 * HOUR_S)
    assert [math.isnan(value) for value in history.values] == [True, True, False, False, False]


async def test_all_but_the_last_day_is_settled(bench: EiaBench) -> None:
    async with opened(bench) as case:
        history = await case.history(since_s=NOW_S - 2 * DAY_S)
    settled_s = history.starts_s[~history.estimated]
    assert settled_s.max() + HOUR_S <= NOW_S - DAY_S < settled_s.max() + 2 * HOUR_S


async def test_a_wrong_clock_is_reported(bench: EiaBench) -> None:
    async with opened(bench) as case:
        case.api.now_s = NOW_S - 6 * HOUR_S
        with pytest.raises(SignalDataError, match=r"gives a measured value for .* one clock is wrong"):
            await case.history(since_s=NOW_S - DAY_S, now_s=NOW_S - 6 * HOUR_S)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"error": "Invalid frequency", "code": 400}, SignalRefusedError, "Invalid frequency"),
        ({"error": "The EIA database is busy", "code": "503"}, SignalUnavailableError, "is busy"),
        ({"error": "." * 190 + KEY, "code": 400}, SignalRefusedError, r"\.{190}…\"$"),
        ({"error": {"code": "API_KEY_DISABLED", "message": f"{KEY} is off"}}, SignalRefusedError, "… is off"),
        ({"request": {}}, SignalDataError, "no data, and no error"),
        ({"response": {"data": [{"period": "2026-10-25"}]}}, SignalDataError, "respondent"),
    ],
)
async def test_an_error_with_status_200_is_an_error(
    bench: EiaBench, answer: dict[str, object], error: type[SignalError], words: str
) -> None:
    bench.api.error = answer
    async with bench.api.running(), aiohttp.ClientSession() as session:
        with pytest.raises(error, match=words) as caught:
            await bench.provider(session).fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"period": "2026-10-25T11:00"}, "not an hour like"), ({"value-units": "megawatts"}, "in 'megawatts'")],
)
async def test_an_unexpected_row_is_refused(bench: EiaBench, change: dict[str, str], words: str) -> None:
    row = {"period": "2026-10-25T11", "respondent": "MISO", "fueltype": "COL", "value": "1"} | change
    bench.api.error = {"response": {"total": "1", "data": [row]}}
    async with bench.api.running(), aiohttp.ClientSession() as session:
        with pytest.raises(SignalDataError, match=words):
            await bench.provider(session).fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)


async def test_a_wrong_key_is_refused_and_not_shown(bench: EiaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EIA_API_KEY", "wr0ng-k3y")
    async with bench.api.running(), aiohttp.ClientSession() as session:
        with pytest.raises(SignalRefusedError, match="An invalid api_key was supplied") as caught:
            await bench.provider(session).fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
    assert "wr0ng-k3y" not in str(caught.value)


async def test_without_a_key_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EIA_API_KEY", raising=False)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ValueError, match=r"token_file is not set, and \$EIA_API_KEY: holds no token"):
            EiaProvider(EiaSettings(zone="MISO"), session)


@pytest.mark.parametrize("zone", ["", "US-MIDW-MISO", "miso", "MISO&x"])
def test_an_invalid_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValidationError):
        convert({"zone": zone}, EiaSettings)
