"""aWATTar's market data: hourly day-ahead prices of Germany and Austria; needs no key.

EPEX Spot prices in EUR/MWh, without taxes and fees; the next day's are published at about 14:00 local time. Fair
use: 100 requests a day and address. Documentation: https://www.awattar.at/services/api
"""

from typing import Final, Literal

import aiohttp
from msgspec import Struct, field

from policies.providers.base import PriceSettings, SignalDataError, UrlOrNone
from policies.providers.http import HttpClient
from policies.providers.series import Point
from policies.providers.zone_provider import RangeQueryProvider
from policies.vocabulary.units import price_per_kwh

STEP_S: Final = 3_600.0
"""It is polled once an hour, for past and future: 48 requests a day."""
MS_PER_S: Final = 1_000.0
URLS: Final = {"DE": "https://api.awattar.de", "AT": "https://api.awattar.at"}
SOURCE: Final = "aWATTar"


class AwattarSettings(PriceSettings, frozen=True, kw_only=True):
    """Day-ahead prices of Germany or Austria.

    Attributes:
        zone: `DE` or `AT`.
        url: the address of the API; by default the zone's own, because the answers do not name the zone.
    """

    zone: Literal["DE", "AT"]
    url: UrlOrNone = ""


class _Price(Struct):
    start_ms: int = field(name="start_timestamp")
    price_per_mwh: float | None = field(name="marketprice")
    unit: str


class _Prices(Struct):
    data: list[_Price]


class AwattarProvider(RangeQueryProvider):
    """Hourly prices from aWATTar."""

    def __init__(self, settings: AwattarSettings, session: aiohttp.ClientSession) -> None:
        zone, name = settings.zone, f"awattar {settings.zone}"
        super().__init__(name=name, kind="price", zone=zone, source=SOURCE, unit="EUR/kWh", step_s=STEP_S)
        self._url = f"{(settings.url or URLS[zone]).rstrip('/')}/v1/marketdata"
        self._http = HttpClient(session, name=name)

    async def _query_past(self, *, since_s: float, now_s: float) -> list[Point]:
        return await self._fetch(since_s, now_s, now_s=now_s)

    async def _query_future(self, *, now_s: float, until_s: float) -> list[Point]:
        return await self._fetch(now_s, until_s, now_s=now_s)

    async def _fetch(self, start_s: float, end_s: float, *, now_s: float) -> list[Point]:
        """Return the prices from the hour of `start_s` to that of `end_s`."""
        start_ms, end_ms = (t_s // STEP_S * STEP_S * MS_PER_S for t_s in (start_s, end_s + STEP_S))
        params = {"start": f"{start_ms:.0f}", "end": f"{end_ms:.0f}"}
        answer = await self._http.get_json(self._url, _Prices, now_s=now_s, params=params)
        if units := {price.unit for price in answer.data if price.unit.lower() != "eur/mwh"}:
            raise SignalDataError(f"{self.name}: the prices are in {', '.join(sorted(units))}, not in EUR/MWh")
        return [
            Point(
                price.start_ms / MS_PER_S,
                None if price.price_per_mwh is None else price_per_kwh(price.price_per_mwh),
            )
            for price in answer.data
        ]
