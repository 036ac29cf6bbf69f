"""Energinet's Energi Data Service: carbon intensity of Denmark's two zones, prices there and nearby; needs no key.

Data of Energinet (www.energidataservice.dk), CC BY 4.0. Carbon in steps of 5 minutes, measured (CO2Emis) and forecast
for 9 hours or more (CO2EmisProg), g/kWh; day-ahead prices (DayAheadPrices) in EUR or DKK per MWh. More than
40 requests in 10 seconds lead to a ban of 5 minutes.
Documentation: https://www.energidataservice.dk/guides/api-guides
"""

import json
from typing import Final, Literal

import aiohttp
from msgspec import Struct, field
from msgspec.structs import fields

from policies.providers.base import Lateness, PriceSettings, ProviderSettings, SignalDataError, Url, Zone
from policies.providers.http import HttpClient
from policies.providers.series import Point, check_clock, format_iso, parse_iso_s
from policies.providers.zone_provider import RangeQueryProvider
from policies.vocabulary.units import HOUR_S, price_per_kwh

CARBON_STEP_S: Final = 300.0
PRICE_STEP_S: Final = 900.0
URL: Final = "https://api.energidataservice.dk"
SOURCE: Final = "Energinet (www.energidataservice.dk)"
CARBON_AREAS: Final = ("DK1", "DK2")
PRICE_AREAS: Final = (*CARBON_AREAS, "DE", "NO2", "SE3", "SE4")
Currency = Literal["EUR", "DKK"]


class EnerginetSettings(ProviderSettings, frozen=True, kw_only=True):
    """Carbon intensity of Denmark.

    Attributes:
        zone: the price area, `DK1` (west of the Great Belt) or `DK2`.
        url: the address of the API.
        lag_s: a value appears one or two steps after its measurement [s].
    """

    lag_s: Lateness = CARBON_STEP_S
    zone: Zone
    url: Url = URL

    def faults(self) -> list[str]:
        """Return what is wrong with the zone."""
        return _zone_faults(self.zone, CARBON_AREAS)


class EnerginetPriceSettings(PriceSettings, frozen=True, kw_only=True):
    """Day-ahead prices of Denmark and its neighbours.

    Attributes:
        zone: the price area: `DK1`, `DK2`, `DE`, `NO2`, `SE3` or `SE4`.
        currency: `EUR`, or `DKK`, which Energinet converts from it.
        url: the address of the API.
    """

    zone: Zone
    currency: Currency = "EUR"
    url: Url = URL

    def faults(self) -> list[str]:
        """Return what is wrong with the zone."""
        return _zone_faults(self.zone, PRICE_AREAS)


class _Emission(Struct):
    time: str = field(name="Minutes5UTC")
    area: str = field(name="PriceArea")
    intensity_g_per_kwh: float | None = field(name="CO2Emission")


class _Emissions(Struct):
    records: list[_Emission]


class _Price(Struct):
    time: str = field(name="TimeUTC")
    area: str = field(name="PriceArea")
    eur_per_mwh: float | None = field(name="DayAheadPriceEUR", default=None)
    dkk_per_mwh: float | None = field(name="DayAheadPriceDKK", default=None)


class _Prices(Struct):
    records: list[_Price]


class EnerginetProvider(RangeQueryProvider):
    """Carbon intensities from Energinet."""

    def __init__(self, settings: EnerginetSettings, session: aiohttp.ClientSession) -> None:
        zone, name = settings.zone, f"energinet {settings.zone}"
        super().__init__(name=name, kind="average", zone=zone, source=SOURCE, unit="g/kWh", step_s=CARBON_STEP_S)
        self._url = f"{settings.url.rstrip('/')}/dataset"
        self._http = HttpClient(session, name=name)

    async def _query_past(self, *, since_s: float, now_s: float) -> list[Point]:
        points = await self._fetch("CO2Emis", since_s, now_s=now_s, estimated=False)
        check_clock(points, source=self.name, now_s=now_s)
        return points

    async def _query_future(self, *, now_s: float, until_s: float) -> list[Point]:
        del until_s
        return await self._fetch("CO2EmisProg", now_s, now_s=now_s, estimated=True)

    async def _fetch(self, dataset: str, start_s: float, *, now_s: float, estimated: bool) -> list[Point]:
        params = _params(_Emission, self._zone, start_s // CARBON_STEP_S * CARBON_STEP_S)
        answer = await self._http.get_json(f"{self._url}/{dataset}", _Emissions, now_s=now_s, params=params)
        return [
            Point(_starts_s(record, self._zone, self.name), record.intensity_g_per_kwh, estimated=estimated)
            for record in answer.records
        ]


class EnerginetPriceProvider(RangeQueryProvider):
    """Day-ahead prices from Energinet; the next day's are published in the afternoon."""

    def __init__(self, settings: EnerginetPriceSettings, session: aiohttp.ClientSession) -> None:
        zone, name, unit = settings.zone, f"energinet {settings.zone}", f"{settings.currency}/kWh"
        super().__init__(
            name=name, kind="price", zone=zone, source=SOURCE, unit=unit, step_s=PRICE_STEP_S, longest_step_s=HOUR_S
        )
        self._url = f"{settings.url.rstrip('/')}/dataset/DayAheadPrices"
        self._in_dkk = settings.currency == "DKK"
        self._http = HttpClient(session, name=name)

    async def _query_past(self, *, since_s: float, now_s: float) -> list[Point]:
        params = _params(_Price, self._zone, since_s // HOUR_S * HOUR_S)
        answer = await self._http.get_json(self._url, _Prices, now_s=now_s, params=params)
        return [Point(_starts_s(record, self._zone, self.name), self._price(record)) for record in answer.records]

    async def _query_future(self, *, now_s: float, until_s: float) -> list[Point]:
        del until_s
        return await self._query_past(since_s=now_s, now_s=now_s)

    def _price(self, record: _Price) -> float | None:
        price_per_mwh = record.dkk_per_mwh if self._in_dkk else record.eur_per_mwh
        return None if price_per_mwh is None else price_per_kwh(price_per_mwh)


def _zone_faults(zone: str, areas: tuple[str, ...]) -> list[str]:
    return [] if zone in areas else [f"zone = {zone!r}: must be one of {', '.join(areas)}"]


def _params(record: type[Struct], zone: str, start_s: float) -> dict[str, str]:
    """Return a query for everything from a time on [Unix s]; without `timezone` it would mean Danish time."""
    return {
        "start": format_iso(start_s).removesuffix("Z"),
        "timezone": "UTC",
        "filter": json.dumps({"PriceArea": [zone]}),
        "columns": ",".join(column.encode_name for column in fields(record)),
        "limit": "0",  # all
    }


def _starts_s(record: _Emission | _Price, zone: str, source: str) -> float:
    """Return when a record's value starts [Unix s]; its time is UTC without an offset.

    Raises:
        SignalDataError: the record is of another area, or has no valid time.
    """
    if record.area != zone:
        raise SignalDataError(f"{source}: a record of the answer is for {record.area!r}, not {zone!r}")
    return parse_iso_s(record.time if record.time.endswith("Z") else f"{record.time}Z", source=source)
