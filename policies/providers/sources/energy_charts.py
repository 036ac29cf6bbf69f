"""Energy-Charts of Fraunhofer ISE: carbon intensity by country, day-ahead prices by bidding zone; needs no key.

Carbon: measured, and forecast for the day, in g/kWh. Prices: EUR/MWh; those of AT, BE, CH, CZ, DE-LU, DK1, DK2, FR, HU,
NL, NO2, PL, SE4 and SI come from Bundesnetzagentur | SMARD.de, CC BY 4.0; the others are licensed for private and
internal use alone, as `license_info` of each answer says. Documentation: https://api.energy-charts.info
"""

import re
from collections.abc import Sequence
from typing import Final

import aiohttp
from msgspec import Struct, field

from policies.providers.base import PriceSettings, ProviderSettings, SignalDataError, Url, Zone
from policies.providers.http import HttpClient
from policies.providers.series import Point, check_clock
from policies.providers.zone_provider import RangeQueryProvider
from policies.vocabulary.units import HOUR_S, price_per_kwh

STEP_S: Final = 900.0
"""The usual step. Swiss prices are hourly, as all were until 2025-09-30, so the step is inferred from the data."""
MARGIN_S: Final = 86_400.0
"""A query without any value is answered by 404, so each query includes one more day."""
URL: Final = "https://api.energy-charts.info"
SOURCE: Final = "Energy-Charts (Fraunhofer ISE)"
_COUNTRY: Final = re.compile(r"[A-Z]{2}")
_BIDDING_ZONE: Final = re.compile(r"(?!DE\Z)[A-Z]{2}[A-Za-z0-9-]*")


class EnergyChartsSettings(ProviderSettings, frozen=True, kw_only=True):
    """Carbon intensity of a country in Europe.

    Attributes:
        zone: the country, such as `DE`.
        url: the address of the API.
    """

    zone: Zone
    url: Url = URL

    def faults(self) -> list[str]:
        """Return what is wrong with the zone."""
        if _COUNTRY.fullmatch(self.zone):
            return []
        return [f"zone = {self.zone!r}: must be a country of two letters, such as DE"]


class EnergyChartsPriceSettings(PriceSettings, frozen=True, kw_only=True):
    """Day-ahead prices of a bidding zone in Europe.

    Attributes:
        zone: the bidding zone, such as `DE-LU`.
        url: the address of the API.
    """

    zone: Zone
    url: Url = URL

    def faults(self) -> list[str]:
        """Return what is wrong with the zone."""
        if _BIDDING_ZONE.fullmatch(self.zone):
            return []
        return [f"zone = {self.zone!r}: must be a bidding zone, such as DE-LU (Germany's), FR or DK1"]


class _Carbon(Struct):
    """At each time at most one value is present: measured or forecast."""

    starts_s: list[float] = field(name="unix_seconds")
    measured_g_per_kwh: list[float | None] = field(name="co2eq")
    forecast_g_per_kwh: list[float | None] = field(name="co2eq_forecast")


class _Prices(Struct):
    starts_s: list[float] = field(name="unix_seconds")
    prices_per_mwh: list[float | None] = field(name="price")
    unit: str


class EnergyChartsProvider(RangeQueryProvider):
    """Carbon intensities from Energy-Charts. Values not measured yet are forecasts, marked as estimates."""

    def __init__(self, settings: EnergyChartsSettings, session: aiohttp.ClientSession) -> None:
        name = f"energy-charts {settings.zone}"
        super().__init__(name=name, kind="average", zone=settings.zone, source=SOURCE, unit="g/kWh", step_s=STEP_S)
        self._url = f"{settings.url.rstrip('/')}/co2eq"
        self._country = settings.zone.lower()
        self._http = HttpClient(session, name=name)

    async def _query_past(self, *, since_s: float, now_s: float) -> list[Point]:
        return await self._fetch(since_s, now_s, now_s=now_s)

    async def _query_future(self, *, now_s: float, until_s: float) -> list[Point]:
        return await self._fetch(now_s - MARGIN_S, until_s, now_s=now_s)

    async def _fetch(self, start_s: float, end_s: float, *, now_s: float) -> list[Point]:
        params = {"country": self._country, **_span(start_s, end_s)}
        answer = await self._http.get_json(self._url, _Carbon, now_s=now_s, params=params)
        _check_lengths(self.name, answer.starts_s, answer.measured_g_per_kwh, answer.forecast_g_per_kwh)
        measured = [Point(*pair) for pair in zip(answer.starts_s, answer.measured_g_per_kwh, strict=True)]
        check_clock(measured, source=self.name, now_s=now_s)
        return [
            point if point.value is not None else Point(point.starts_s, forecast, estimated=True)
            for point, forecast in zip(measured, answer.forecast_g_per_kwh, strict=True)
        ]


class EnergyChartsPriceProvider(RangeQueryProvider):
    """Day-ahead prices from Energy-Charts; the next day's are published in the afternoon."""

    def __init__(self, settings: EnergyChartsPriceSettings, session: aiohttp.ClientSession) -> None:
        name = f"energy-charts {settings.zone}"
        super().__init__(
            name=name,
            kind="price",
            zone=settings.zone,
            source=SOURCE,
            unit="EUR/kWh",
            step_s=STEP_S,
            longest_step_s=HOUR_S,
        )
        self._url = f"{settings.url.rstrip('/')}/price"
        self._bidding_zone = settings.zone
        self._http = HttpClient(session, name=name)

    async def _query_past(self, *, since_s: float, now_s: float) -> list[Point]:
        return await self._fetch(since_s, now_s, now_s=now_s)

    async def _query_future(self, *, now_s: float, until_s: float) -> list[Point]:
        return await self._fetch(now_s - MARGIN_S, until_s, now_s=now_s)

    async def _fetch(self, start_s: float, end_s: float, *, now_s: float) -> list[Point]:
        params = {"bzn": self._bidding_zone, **_span(start_s, end_s)}
        answer = await self._http.get_json(self._url, _Prices, now_s=now_s, params=params)
        _check_lengths(self.name, answer.starts_s, answer.prices_per_mwh)
        if answer.unit.replace(" ", "") != "EUR/MWh":
            raise SignalDataError(f"{self.name}: the prices are in {answer.unit!r}, not in EUR/MWh")
        return [
            Point(starts_s, None if price is None else price_per_kwh(price))
            for starts_s, price in zip(answer.starts_s, answer.prices_per_mwh, strict=True)
        ]


def _span(start_s: float, end_s: float) -> dict[str, str]:
    """Return a query's period rounded out to full hours [Unix s]."""
    return {"start": f"{start_s // HOUR_S * HOUR_S:.0f}", "end": f"{-(-end_s // HOUR_S) * HOUR_S:.0f}"}


def _check_lengths(source: str, *columns: Sequence[float | None]) -> None:
    """Refuse an answer whose columns differ in length.

    Raises:
        SignalDataError: they differ in length.
    """
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(str(len(column)) for column in columns)
        raise SignalDataError(f"{source}: the columns of the answer have {lengths} values: must have equal lengths")
