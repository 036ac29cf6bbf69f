"""Day-ahead prices from Electricity Maps, API v4: mostly Europe; a token is needed.

Data: Electricity Maps, from the power exchanges, under the terms of the token's plan; not to be passed on. Only
published prices are asked for (`price-day-ahead/actual`); the `combined` ones have modelled prices among them.
"""

import re
from typing import Final, Literal

import aiohttp
from msgspec import Struct

from policies.providers.base import SignalDataError
from policies.providers.electricity_maps_api import (
    RANGE_S,
    SOURCE,
    STEP_S,
    ElectricityMapsAccess,
    ElectricityMapsApi,
    Envelope,
)
from policies.providers.series import (
    LOOK_BACK_S,
    Point,
    iso,
    one_unit,
    read_iso_s,
    signal_of,
    to_come,
    told,
    windows_s,
)
from policies.signal import Signal, SignalKind
from policies.units import price_per_kwh

_UNIT: Final = re.compile(r"[A-Z]{3}/MWh")


class ElectricityMapsPriceSettings(ElectricityMapsAccess, frozen=True, kw_only=True):
    """Day-ahead prices from Electricity Maps.

    Attributes:
        granularity: how long a price holds; where quarters of an hour are traded an hourly price is their mean.
    """

    granularity: Literal["hourly", "15_minutes"] = "hourly"

    def signal_kind(self) -> SignalKind:
        """Return `price`."""
        return "price"


class _Price(Struct, rename="camel"):
    datetime: str
    unit: str
    value: float | None = None
    updated_at: str | None = None


class _Prices(Envelope, rename="camel", kw_only=True):
    data: list[_Price]


class ElectricityMapsPriceProvider:
    """Asks for the prices that the exchange has published, of the past and of the hours to come.

    Raises:
        ValueError: there is no token.
    """

    def __init__(self, settings: ElectricityMapsPriceSettings, session: aiohttp.ClientSession) -> None:
        self.name = f"electricity-maps {settings.zone}"
        self.kind: SignalKind = "price"
        self.step_s = STEP_S[settings.granularity]
        self._zone = settings.zone
        self._api = ElectricityMapsApi(
            settings, session, name=self.name, version="v4", granularity=settings.granularity
        )

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the prices since then that hold by now; after a change of the currency those since that."""
        since_s = max(since_s, now_s - LOOK_BACK_S)
        start_s = since_s // self.step_s * self.step_s
        prices, unit = await self._fetch(start_s, self._next_s(now_s), now_s=now_s, latest=True)
        points = told(prices, since_s=since_s, now_s=now_s, step_s=self.step_s)
        return self._signal(points, unit=unit, now_s=now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the prices to come that are published; they are settled, and no estimates.

        Before a change of the currency those until that.
        """
        prices, unit = await self._fetch(self._next_s(now_s), until_s, now_s=now_s, latest=False)
        return self._signal(to_come(prices, now_s=now_s, until_s=until_s), unit=unit, now_s=now_s)

    def _next_s(self, now_s: float) -> float:
        return (now_s // self.step_s + 1) * self.step_s

    async def _fetch(self, start_s: float, end_s: float, *, now_s: float, latest: bool) -> tuple[list[Point], str]:
        """Return the prices from `start_s` to before `end_s` that are in one unit, and it; "" where there are none."""
        prices: list[_Price] = []
        for part_start_s, part_end_s in windows_s(start_s, end_s, longest_s=RANGE_S):
            params = {"start": iso(part_start_s), "end": iso(part_end_s)}
            prices += (await self._api.get("price-day-ahead/actual", _Prices, params, now_s=now_s)).data
        by_start = [(self._point(price), self._unit(price.unit)) for price in prices]
        if not by_start:
            return [], ""
        unit = one_unit(((point.starts_s, unit) for point, unit in by_start), source=self.name, latest=latest)
        return [point for point, its_unit in by_start if its_unit == unit], unit

    def _point(self, price: _Price) -> Point:
        return Point(
            read_iso_s(price.datetime, source=self.name),
            None if price.value is None else price_per_kwh(price.value),
            updated_at_s=read_iso_s(price.updated_at, source=self.name) if price.updated_at else 0.0,
        )

    def _unit(self, said: str) -> str:
        """Return the unit that prices have once they are per kWh, from the one that they have here."""
        if not _UNIT.fullmatch(said):
            raise SignalDataError(f"{self.name}: gives prices in {said!r}; must be money per MWh, such as EUR/MWh")
        return said.replace("/MWh", "/kWh")

    def _signal(self, points: list[Point], *, unit: str, now_s: float) -> Signal | None:
        return signal_of(
            points, kind=self.kind, zone=self._zone, source=SOURCE, unit=unit, step_s=self.step_s, now_s=now_s
        )
