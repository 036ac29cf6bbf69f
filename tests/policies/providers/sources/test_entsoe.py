"""ENTSO-E: days of 25 hours, left-out prices, two auctions, acknowledgements, untrusted XML."""

from datetime import date

import aiohttp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.providers.base import SignalDataError, SignalError, SignalLimitedError, SignalRefusedError
from policies.providers.sources.entsoe import EIC, EntsoeProvider, EntsoeSettings, eic_code
from policies.vocabulary.signal import SignalKind
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, ProviderContract, opened, value_at
from tests.policies.providers.fakes.api import Fault
from tests.policies.providers.fakes.entsoe import TOKEN, Auction, FakeEntsoe

MIDNIGHT_S = 1_792_879_200.0
"""2026-10-24T22:00Z: midnight in Berlin, of the day with 25 hours."""


class EntsoeBench:
    """The provider for Germany, with its token in the environment."""

    kind: SignalKind = "price"
    zone = "DE-LU"
    unit = "EUR/kWh"
    step_s = 900.0
    has_forecast = True
    names_zone = True
    secret = TOKEN

    def __init__(self) -> None:
        self.api = FakeEntsoe()

    def provider(self, session: aiohttp.ClientSession) -> EntsoeProvider:
        return EntsoeProvider(EntsoeSettings(zone="DE-LU", url=f"{self.api.url}/api"), session)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> EntsoeBench:
    monkeypatch.setenv("ENTSOE_TOKEN", TOKEN)
    return EntsoeBench()


class TestEntsoe(ProviderContract):
    """The contract."""


async def test_a_day_of_25_hours_has_100_quarters(bench: EntsoeBench) -> None:
    bench.api.now_s = MIDNIGHT_S + 25 * HOUR_S
    starts_s = MIDNIGHT_S + 900.0 * np.arange(-96, 196)
    bench.api.grid.measured = {s: 0.1 + i / 1e4 for i, s in enumerate(starts_s.tolist())}
    async with bench.api.running(), aiohttp.ClientSession() as session:
        history = await bench.provider(session).fetch_history(since_s=MIDNIGHT_S, now_s=MIDNIGHT_S + 25 * HOUR_S - 1.0)
    assert history is not None
    assert (history.starts_s[0], len(history), history.ends_s) == (MIDNIGHT_S, 100, MIDNIGHT_S + 25 * HOUR_S)
    assert np.diff(history.values).tolist() == pytest.approx([1e-4] * 99)


async def test_a_repeated_price_that_is_left_out_is_filled_in(bench: EntsoeBench) -> None:
    async with opened(bench) as case:
        for i in range(3, 9):
            bench.api.grid.measured[case.last_s - 900.0 * i] = 0.25
        history = await case.history(since_s=case.last_s - 10 * 900.0)
    assert history.values[2:8].tolist() == pytest.approx([0.25] * 6)
    assert history.value_at(case.last_s - 900.0) == pytest.approx(value_at(bench, case.last_s - 900.0))


async def test_a_price_that_fixed_blocks_leave_out_is_missing(bench: EntsoeBench) -> None:
    series = """<Publication_MarketDocument><TimeSeries><in_Domain.mRID>10Y1001A1001A82H</in_Domain.mRID>
      <out_Domain.mRID>10Y1001A1001A82H</out_Domain.mRID><currency_Unit.name>EUR</currency_Unit.name>
      <price_Measure_Unit.name>MWH</price_Measure_Unit.name><curveType>A01</curveType><Period>
      <timeInterval><start>2026-10-24T22:00Z</start><end>2026-10-25T01:00Z</end></timeInterval>
      <resolution>PT60M</resolution><Point><position>1</position><price.amount>-7</price.amount></Point>
      <Point><position>3</position><price.amount>50.5</price.amount></Point></Period></TimeSeries>
      </Publication_MarketDocument>"""
    bench.api.body = series.encode()
    async with bench.api.running(), aiohttp.ClientSession() as session:
        history = await bench.provider(session).fetch_history(since_s=MIDNIGHT_S, now_s=NOW_S)
    assert history is not None
    assert history.starts_s.tolist() == [MIDNIGHT_S, MIDNIGHT_S + HOUR_S, MIDNIGHT_S + 2 * HOUR_S]
    assert [history.value_at(MIDNIGHT_S + HOUR_S * (i + 0.5)) for i in range(3)] == [-0.007, None, 0.0505]


async def test_of_two_auctions_only_the_first_counts(bench: EntsoeBench) -> None:
    other = Auction(sequence=2, factor=2.0)
    intraday = Auction(contract="A07", factor=3.0)
    async with opened(bench) as case:
        bench.api.auctions = (other, Auction(is_held=False), intraday)
        history = await case.history()
        forecast = await case.forecast()
        bench.api.auctions = (other, intraday)
        alone = await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
        losses = case.provider.losses
    assert history.value_at(NOW_S) == pytest.approx(value_at(bench, case.last_s))
    assert forecast.ends_s == MIDNIGHT_S + 25 * HOUR_S, "the price of tomorrow is not known yet"
    assert alone is None, "prices of another exchange are not those of this market"
    assert losses == (
        "left out: 2 series of intraday auctions, 196 of auctions other than sequence 1, the coupled market"
    )


async def test_hours_and_quarters_in_one_document_become_one_series_of_quarters(bench: EntsoeBench) -> None:
    async with opened(bench) as case:
        bench.api.auctions = (Auction(is_held=False), Auction(resolution="PT60M"))
        forecast = await case.forecast(until_s=NOW_S + DAY_S - HOUR_S)
    assert np.diff(forecast.starts_s).tolist() == [900.0] * (len(forecast) - 1)
    today_s, tomorrow_s = MIDNIGHT_S + 20 * HOUR_S, MIDNIGHT_S + 30 * HOUR_S
    assert forecast.value_at(today_s + 900.0) == pytest.approx(value_at(bench, today_s + 900.0))
    assert forecast.value_at(tomorrow_s + 900.0) == pytest.approx(value_at(bench, tomorrow_s))


async def test_a_change_of_currency_starts_another_series(bench: EntsoeBench) -> None:
    async with opened(bench) as case:
        bench.api.currencies = {date(2026, 10, 25): "BGN", date(2026, 10, 26): "CHF"}
        history = await case.history(since_s=NOW_S - 2 * DAY_S)
        forecast = await case.forecast()
        bench.api.now_s = MIDNIGHT_S
        before = await case.history(since_s=NOW_S - 2 * DAY_S, now_s=MIDNIGHT_S - 60.0)
    assert (history.unit, history.starts_s[0]) == ("BGN/kWh", MIDNIGHT_S)
    assert (forecast.unit, forecast.ends_s) == ("BGN/kWh", MIDNIGHT_S + 25 * HOUR_S), "what goes on from the history"
    assert before.unit == "EUR/kWh", "what is not there yet does not count"


async def test_sixty_days_with_two_auctions_take_several_requests(bench: EntsoeBench) -> None:
    last_s = NOW_S // HOUR_S * HOUR_S
    bench.api.auctions = (Auction(resolution="PT60M"), Auction(sequence=2, resolution="PT60M"))
    bench.api.grid.measured = {last_s - i * HOUR_S: 0.1 + i / 1e5 for i in range(90 * 24)}
    async with bench.api.running(), aiohttp.ClientSession() as session:
        history = await bench.provider(session).fetch_history(since_s=NOW_S - 90 * DAY_S, now_s=NOW_S)
    assert history is not None
    assert len(bench.api.requests) <= 3
    assert history.starts_s.tolist() == [last_s - i * HOUR_S for i in range(60 * 24, -1, -1)]
    assert not np.isnan(history.values).any()


async def test_the_currency_is_that_of_the_document(bench: EntsoeBench) -> None:
    async with opened(bench) as case:
        bench.api.currency = "PLN"
        history = await case.history(since_s=NOW_S - HOUR_S)
    assert history.unit == "PLN/kWh"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"measure": "KWT"}, SignalDataError, "a price for one 'KWT'"),
        ({"currency": ""}, SignalDataError, "prices have no currency"),
        ({"text": f"Token {TOKEN} may not"}, SignalRefusedError, "999: Token … may not"),
        ({"text": "." * 190 + TOKEN}, SignalRefusedError, r"999: \.{190}…$"),
        ({"body": b"<!DOCTYPE d [<!ENTITY e 'x'>]><d>&e;</d>"}, SignalDataError, "declares a document type"),
        ({"body": "<!DOCTYPE d><d/>".encode("utf-16")}, SignalDataError, "no XML"),
        ({"body": b'<?xml version="1.0" encoding="x-none"?><d/>'}, SignalDataError, "sends a 'd'"),
        ({"body": b'<?xml version="1.0" encoding="shift_jis"?><d/>'}, SignalDataError, "sends a 'd'"),
        ({"body": b"no prices today"}, SignalDataError, "no XML: .*; the answer begins"),
        ({"body": b"<GL_MarketDocument/>"}, SignalDataError, "sends a 'GL_MarketDocument'"),
    ],
)
async def test_other_documents_raise_the_right_error(
    bench: EntsoeBench, change: dict[str, object], error: type[SignalError], words: str
) -> None:
    async with opened(bench) as case:
        for name, value in change.items():
            setattr(bench.api, name, value)
        with pytest.raises(error, match=words) as caught:
            await case.history()
    assert TOKEN not in str(caught.value)


async def test_a_rate_limit_waits_out_the_ban(bench: EntsoeBench) -> None:
    async with opened(bench) as case:
        await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
        bench.api.fault = Fault.UNAUTHORIZED
        with pytest.raises(SignalLimitedError) as caught:
            await case.history()
    assert caught.value.retry_after_s == 600.0


@pytest.mark.parametrize("code", ["DE", "10YFR-RTE------D", "10YRF-RTE------C", "10yfr-rte------c", "", "FR-RTE"])
def test_an_unknown_zone_is_a_fault_that_lists_the_known_ones(code: str) -> None:
    assert eic_code(code) is None
    (fault,) = EntsoeSettings(zone=code).faults()
    assert fault.startswith(f"zone = {code!r}: must be an EIC code")
    assert "DE-LU, DK1" in fault


def test_every_zone_of_the_table_has_a_valid_code() -> None:
    assert [zone for zone, code in EIC.items() if eic_code(zone) != code] == []
    assert EntsoeSettings(zone="10YNL----------L").faults() == []


@given(
    st.sampled_from(sorted(EIC.values())), st.integers(0, 14), st.sampled_from("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
)
def test_a_code_with_one_wrong_character_is_invalid(code: str, place: int, character: str) -> None:
    misprint = code[:place] + character + code[place + 1 :]
    assert (eic_code(misprint) is None) == (misprint != code)
