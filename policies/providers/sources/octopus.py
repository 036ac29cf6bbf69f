"""Octopus Energy's tariffs in Great Britain, above all Agile with a price for each half hour; needs no key.

Unit rates in p/kWh, with or without VAT, by product and region; Agile publishes the next day's in the late
afternoon. Documentation: https://docs.octopus.energy/rest/guides/endpoints
"""

import math
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import aiohttp
from msgspec import Meta, Struct, field

from policies.providers.base import PriceSettings, SignalDataError, Url, Zone
from policies.providers.http import HttpClient
from policies.providers.series import Point, format_iso
from policies.providers.zone_provider import RangeQueryProvider
from policies.vocabulary.units import price_pounds_per_kwh

STEP_S: Final = 1_800.0
PAGE_SIZE: Final = 1_500
"""The API's largest page: a month of half hours."""
MAX_PAGES: Final = 4
LOOK_AHEAD_S: Final = 3 * 86_400.0
"""A price without an end is extended this far ahead."""
REGIONS: Final = "ABCDEFGHJKLMNP"
"""The 14 regions of the former electricity boards (grid supply point groups): I and O are not used."""
SOURCE: Final = "Octopus Energy"


class OctopusSettings(PriceSettings, frozen=True, kw_only=True):
    """Prices of a tariff of Octopus Energy.

    Attributes:
        zone: the region's letter, `A` to `P` without `I` and `O`.
        product: the product's code, such as `AGILE-24-10-01`.
        vat: whether the prices include VAT: `include` or `exclude`.
        url: the address of the API.
    """

    zone: Zone
    product: Annotated[str, Meta(pattern=r"\A[A-Z0-9-]{1,64}\Z", description="1 to 64 characters of A-Z 0-9 -")]
    vat: Literal["include", "exclude"] = "include"
    url: Url = "https://api.octopus.energy"

    def faults(self) -> list[str]:
        """Return what is wrong with the zone."""
        if len(self.zone) == 1 and self.zone in REGIONS:
            return []
        return [f"zone = {self.zone!r}: must be a region's letter, one of {', '.join(REGIONS)}"]


class _Rate(Struct):
    """A price from `start` to `end`; None means without a beginning, or until further notice."""

    start: str | None = field(name="valid_from")
    end: str | None = field(name="valid_to", default=None)
    pence_with_vat_per_kwh: float | None = field(name="value_inc_vat", default=None)
    pence_without_vat_per_kwh: float | None = field(name="value_exc_vat", default=None)
    payment_method: str | None = None


class _Page(Struct):
    results: list[_Rate]
    next: str | None = None


class OctopusProvider(RangeQueryProvider):
    """Half-hourly prices from Octopus Energy; a price that holds for longer is repeated for each half hour."""

    def __init__(self, settings: OctopusSettings, session: aiohttp.ClientSession) -> None:
        zone, product = settings.zone, settings.product
        name = f"octopus {product} {zone}" + ("" if settings.vat == "include" else " without VAT")
        super().__init__(name=name, kind="price", zone=zone, source=SOURCE, unit="GBP/kWh", step_s=STEP_S)
        tariffs = f"{settings.url.rstrip('/')}/v1/products/{product}/electricity-tariffs"
        self._url = f"{tariffs}/E-1R-{product}-{zone}/standard-unit-rates/"
        self._has_vat = settings.vat == "include"
        self._http = HttpClient(session, name=name)

    async def _query_past(self, *, since_s: float, now_s: float) -> list[Point]:
        return await self._fetch(since_s, now_s + STEP_S, now_s=now_s)

    async def _query_future(self, *, now_s: float, until_s: float) -> list[Point]:
        return await self._fetch(now_s, min(until_s, now_s + LOOK_AHEAD_S) + STEP_S, now_s=now_s)

    async def _fetch(self, start_s: float, end_s: float, *, now_s: float) -> list[Point]:
        """Return the prices of the half hours between two times, rounded down."""
        start_s, end_s = start_s // STEP_S * STEP_S, end_s // STEP_S * STEP_S
        params = {"period_from": format_iso(start_s), "period_to": format_iso(end_s), "page_size": str(PAGE_SIZE)}
        points: list[Point] = []
        for number in range(1, MAX_PAGES + 1):
            # The URL of the next page names a host; it is not followed, so that it cannot redirect us.
            of_page = params | {"page": str(number)}
            page = await self._http.get_json(self._url, _Page, now_s=now_s, params=of_page)
            for rate in page.results:
                points += self._half_hours(rate, start_s, end_s)
            if page.next is None:
                return points
        raise SignalDataError(
            f"{self.name}: more than {MAX_PAGES} pages of {PAGE_SIZE} prices for {format_iso(start_s)} on"
        )

    def _half_hours(self, rate: _Rate, start_s: float, end_s: float) -> Iterator[Point]:
        """Yield a price as a point for each half hour between two times in which it holds."""
        if rate.payment_method == "NON_DIRECT_DEBIT":  # of two prices for one time, direct debit counts
            return
        pence_per_kwh = rate.pence_with_vat_per_kwh if self._has_vat else rate.pence_without_vat_per_kwh
        price = None if pence_per_kwh is None else price_pounds_per_kwh(pence_per_kwh)
        first_s = -math.inf if rate.start is None else self._time_s(rate.start)
        last_s = math.inf if rate.end is None else self._time_s(rate.end)
        first_s, last_s = max(first_s, start_s), min(last_s, end_s)
        for i in range(math.ceil((last_s - first_s) / STEP_S)):
            yield Point(first_s + i * STEP_S, price)
