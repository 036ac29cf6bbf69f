"""The contract that every HTTP provider keeps.

A test class of a provider inherits `ProviderContract` and has a fixture `bench` that returns a `ProviderBench`. Server
and client are real; the connection between them is one in memory, on virtual time.
"""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import numpy as np
import pytest

from policies.providers.base import (
    Provider,
    SignalDataError,
    SignalError,
    SignalLimitedError,
    SignalRefusedError,
    SignalUnavailableError,
)
from policies.vocabulary.signal import Signal, SignalKind
from tests.policies.providers.fakes.api import CASE_NOW_S, FakeApi, Fault

NOW_S = CASE_NOW_S
HOUR_S = 3_600.0
DAY_S = 86_400.0


class ProviderBench(Protocol):
    """A provider, its fake API, and the properties that the contract needs."""

    kind: SignalKind
    zone: str
    unit: str
    step_s: float
    has_forecast: bool
    names_zone: bool
    """Whether its answers name the zone."""
    secret: str
    """Its token, or ""."""

    @property
    def api(self) -> FakeApi:
        """Return the fake API."""
        ...

    def provider(self, session: aiohttp.ClientSession) -> Provider:
        """Return the provider, configured for the fake API."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    provider: Provider
    api: FakeApi
    bench: ProviderBench
    last_s: float
    """Start of the current value [Unix s]."""

    async def history(self, *, since_s: float = NOW_S - DAY_S, now_s: float = NOW_S) -> Signal:
        """Fetch the history, of the last day by default; there is one."""
        history = await self.provider.fetch_history(since_s=since_s, now_s=now_s)
        assert history is not None
        return history

    async def forecast(self, *, now_s: float = NOW_S, until_s: float = NOW_S + DAY_S) -> Signal:
        """Fetch the forecast, of the next day by default; there is one."""
        forecast = await self.provider.fetch_forecast(now_s=now_s, until_s=until_s)
        assert forecast is not None
        return forecast


@asynccontextmanager
async def opened(bench: ProviderBench) -> AsyncIterator[_Open]:
    """Start the fake API with three days of values and, if it forecasts, the next day."""
    last_s = NOW_S // bench.step_s * bench.step_s
    n_days = round(DAY_S / bench.step_s)
    starts_s = [last_s - i * bench.step_s for i in range(3 * n_days)]
    async with bench.api.running(), aiohttp.ClientSession() as session:
        bench.api.grid.measured |= {s: value_at(bench, s) for s in starts_s}
        if bench.has_forecast:
            coming_s = [last_s + (i + 1) * bench.step_s for i in range(n_days)]
            bench.api.grid.expected |= {s: value_at(bench, s) for s in coming_s}
        bench.api.grid.updated_at_s = last_s
        yield _Open(provider=bench.provider(session), api=bench.api, bench=bench, last_s=last_s)


def value_at(bench: ProviderBench, starts_s: float) -> float:
    """Return the value of the fake grid that starts then, which differs for each step of three days."""
    number = round(starts_s / bench.step_s) % 997
    return 0.05 + number / 1e4 if bench.kind == "price" else 100.0 + number / 2


class ProviderContract:
    """The contract, a test each."""

    async def test_its_history_is_what_was_measured(self, bench: ProviderBench) -> None:
        async with opened(bench) as case:
            history = await case.history()
        assert (history.kind, history.zone, history.unit) == (bench.kind, bench.zone, bench.unit)
        assert history.source
        assert history.starts_s[-1] == case.last_s
        assert np.diff(history.starts_s).tolist() == [bench.step_s] * (len(history) - 1)
        wanted = [value_at(bench, s) for s in history.starts_s]
        assert history.values.tolist() == pytest.approx(wanted, rel=1e-6)
        assert case.last_s <= history.ends_s - bench.step_s + 1e-6

    async def test_its_history_begins_with_the_value_that_holds_at_the_time_asked_for(
        self, bench: ProviderBench
    ) -> None:
        async with opened(bench) as case:
            history = await case.history(since_s=NOW_S - 6 * HOUR_S)
        assert history.starts_s[0] == (NOW_S - 6 * HOUR_S) // bench.step_s * bench.step_s

    async def test_a_missing_slot_stays_a_gap(self, bench: ProviderBench) -> None:
        async with opened(bench) as case:
            gone_s = case.last_s - 3 * bench.step_s
            case.api.grid.measured.pop(gone_s)
            history = await case.history()
        assert history.value_at(gone_s) is None
        assert history.value_at(gone_s - 1.0) == pytest.approx(value_at(bench, gone_s - bench.step_s), rel=1e-6)

    @pytest.mark.parametrize("said", [None, 0.0, -5.0])
    async def test_null_zero_and_negative_values_are_missing_except_in_prices(
        self, bench: ProviderBench, said: float | None
    ) -> None:
        async with opened(bench) as case:
            starts_s = case.last_s - 2 * bench.step_s
            case.api.grid.measured[starts_s] = said
            history = await case.history()
        assert history.value_at(starts_s) == (
            pytest.approx(said) if bench.kind == "price" and said is not None else None
        )

    async def test_a_revised_value_replaces_the_old_one(self, bench: ProviderBench) -> None:
        async with opened(bench) as case:
            await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
            revised = 1.5 * value_at(bench, case.last_s)
            case.api.grid.measured[case.last_s] = revised
            case.api.grid.updated_at_s += 60.0
            history = await case.history()
        assert history.value_at(NOW_S) == pytest.approx(revised, rel=1e-6)

    async def test_its_forecast_starts_after_now(self, bench: ProviderBench) -> None:
        async with opened(bench) as case:
            if not bench.has_forecast:
                assert await case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + DAY_S) is None
                return
            forecast = await case.forecast(until_s=NOW_S + 12 * HOUR_S)
        assert (forecast.kind, forecast.zone, forecast.unit) == (bench.kind, bench.zone, bench.unit)
        assert forecast.starts_s[0] in {case.last_s, case.last_s + bench.step_s}
        assert forecast.starts_s[-1] < NOW_S + 12 * HOUR_S <= forecast.ends_s
        assert forecast.values[1:].tolist() == pytest.approx(
            [value_at(bench, s) for s in forecast.starts_s[1:]], rel=1e-6
        )
        if bench.kind == "price":  # a published price is settled, a carbon intensity to come never is
            assert not forecast.estimated.any()
        else:
            assert forecast.estimated.all()

    async def test_an_answer_for_another_zone_is_refused(self, bench: ProviderBench) -> None:
        if not bench.names_zone:
            return
        async with opened(bench) as case:
            case.api.grid.zone = "XX"
            with pytest.raises(SignalDataError, match="XX"):
                await case.history()

    async def test_a_source_without_values_gives_no_signal(self, bench: ProviderBench) -> None:
        async with opened(bench) as case:
            case.api.grid.measured.clear()
            case.api.grid.expected.clear()
            history = await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
            forecast = await case.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + DAY_S)
        assert history is None or np.isnan(history.values).all()
        assert forecast is None or np.isnan(forecast.values).all()

    async def test_a_history_without_a_known_value_has_a_reason(self, bench: ProviderBench) -> None:
        async with opened(bench) as case:
            await case.history()
            assert not case.provider.losses
            said = None if bench.kind == "price" else 0.0
            case.api.grid.measured |= dict.fromkeys(case.api.grid.measured, said)
            case.api.grid.expected.clear()
            await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
            of_nothing = case.provider.losses
            case.api.grid.measured.clear()
            await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
        counted = rf"left out: \d+ (not above 0|without .*)|the answer has no values of zone {bench.zone}, .*"
        assert re.fullmatch(counted, of_nothing)
        assert re.search(
            f"no values of zone {bench.zone}, which may have another name|left out: ", case.provider.losses
        )

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            (Fault.UNAUTHORIZED, SignalRefusedError),
            (Fault.FORBIDDEN, SignalRefusedError),
            (Fault.TOO_MANY, SignalLimitedError),
            (Fault.BROKEN, SignalUnavailableError),
            (Fault.TRUNCATED, SignalDataError),
            (Fault.NOT_DATA, SignalDataError),
        ],
    )
    async def test_each_fault_raises_its_own_error(
        self, bench: ProviderBench, fault: Fault, error: type[SignalError], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        async with opened(bench) as case:
            case.api.fault = fault
            with pytest.raises(error) as caught:
                await case.history()
            case.api.fault = None
            assert await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S), "it works again"
        assert caught.value.retry_after_s == (120.0 if fault is Fault.TOO_MANY else None)
        if bench.secret:
            assert bench.secret not in f"{caught.value}{caught.value!r}{caplog.text}"

    @pytest.mark.parametrize("wrong_by_s", [-2 * HOUR_S, 2 * HOUR_S])
    async def test_an_answer_with_a_wrong_clock_is_refused(self, bench: ProviderBench, wrong_by_s: float) -> None:
        async with opened(bench) as case:
            case.api.now_s = NOW_S + wrong_by_s
            with pytest.raises(SignalDataError, match=r"its clock says .*Z: one clock is wrong by 2\.0 h"):
                await case.history(since_s=NOW_S - 3 * DAY_S)
            case.api.now_s = NOW_S + wrong_by_s / 4
            assert await case.provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
            if bench.has_forecast:
                case.api.now_s = NOW_S + wrong_by_s
                with pytest.raises(SignalDataError, match="its clock says"):
                    await case.forecast()

    async def test_an_unreachable_server_is_unavailable(self, bench: ProviderBench) -> None:
        async with bench.api.running(), aiohttp.ClientSession() as session:
            provider = bench.provider(session)
        async with aiohttp.ClientSession() as session:
            provider = bench.provider(session)
            with pytest.raises(SignalUnavailableError):
                await provider.fetch_history(since_s=NOW_S - DAY_S, now_s=NOW_S)
