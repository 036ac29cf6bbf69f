"""NESO's Carbon Intensity API: Great Britain, its regions and its postcodes, measured and forecast; needs no key.

Data of the National Energy System Operator, CC BY 4.0. Half hours, UTC, g/kWh; only the country as a whole is measured;
regions have forecasts only. Documentation: https://carbon-intensity.github.io/api-definitions/
"""

import re
from typing import Final

import aiohttp
from msgspec import Struct, field

from policies.providers.base import ProviderSettings, SignalDataError, Url, Zone
from policies.providers.http import HttpClient
from policies.providers.series import AHEAD_S, Point, check_clock, format_iso, split_range_s
from policies.providers.zone_provider import RangeQueryProvider

STEP_S: Final = 1_800.0
MAX_SPAN_S: Final = 13 * 86_400.0
"""A query may span 14 days; one day less is safe, whether the ends count or not."""
SOURCE: Final = "NESO Carbon Intensity API"
_ZONE: Final = re.compile(r"GB(?:-(?:[1-9]|1[0-7]|[A-Z]{1,2}[0-9][0-9A-Z]?))?")


class NesoSettings(ProviderSettings, frozen=True, kw_only=True):
    """Carbon intensity of Great Britain.

    Attributes:
        zone: `GB`, a region `GB-1` to `GB-17`, or an outward postcode such as `GB-RG10`.
        url: the address of the API.
    """

    zone: Zone
    url: Url = "https://api.carbonintensity.org.uk"

    def faults(self) -> list[str]:
        """Return what is wrong with the zone."""
        if _ZONE.fullmatch(self.zone):
            return []
        return [f"zone = {self.zone!r}: must be GB, a region GB-1 to GB-17, or an outward postcode such as GB-RG10"]


class _Intensity(Struct):
    actual_g_per_kwh: float | None = field(name="actual", default=None)
    forecast_g_per_kwh: float | None = field(name="forecast", default=None)


class _Slot(Struct):
    start: str = field(name="from")
    intensity: _Intensity


class _Region(Struct):
    data: list[_Slot]
    regionid: int | None = None
    postcode: str | None = None


class _Answer(Struct):
    """The slots of the country, or a region with its slots."""

    data: list[_Slot] | _Region


class NesoProvider(RangeQueryProvider):
    """Half-hourly intensities from NESO. Missing measurements are replaced by the forecast, as estimates.

    Raises:
        ValueError: there is no such zone.
    """

    def __init__(self, settings: NesoSettings, session: aiohttp.ClientSession) -> None:
        if faults := settings.faults():
            raise ValueError(faults[0])
        name = f"neso {settings.zone}"
        super().__init__(name=name, kind="average", zone=settings.zone, source=SOURCE, unit="g/kWh", step_s=STEP_S)
        self._url = settings.url.rstrip("/")
        self._region = _region(settings.zone)
        self._http = HttpClient(session, name=name)

    async def _query_past(self, *, since_s: float, now_s: float) -> list[Point]:
        points: list[Point] = []
        first_s, last_s = _slot_s(since_s), _slot_s(now_s + AHEAD_S) + STEP_S
        for start_s, end_s in split_range_s(first_s, last_s, longest_s=MAX_SPAN_S):
            points += await self._fetch(start_s, format_iso(end_s), now_s=now_s)
        self._check_clock(points, now_s)
        return points

    async def _query_future(self, *, now_s: float, until_s: float) -> list[Point]:
        del until_s
        points = await self._fetch(_slot_s(now_s), "fw48h", now_s=now_s)
        self._check_clock(points, now_s)
        return points

    def _check_clock(self, points: list[Point], now_s: float) -> None:
        check_clock((point for point in points if not point.estimated), source=self.name, now_s=now_s)

    async def _fetch(self, start_s: float, end: str, *, now_s: float) -> list[Point]:
        """Return the slots of a query. The first one ends at its start; `past_points` drops it."""
        where = "/intensity" if self._region is None else "/regional/intensity"
        region_path = "" if self._region is None else f"/{'/'.join(self._region)}"
        url = f"{self._url}{where}/{format_iso(start_s)}/{end}{region_path}"
        answer = await self._http.get_json(url, _Answer, now_s=now_s)
        return [self._point(slot) for slot in self._slots(answer)]

    def _slots(self, answer: _Answer) -> list[_Slot]:
        """Return the slots of an answer, checked to be of this zone.

        Raises:
            SignalDataError: they are of another zone.
        """
        region = answer.data if isinstance(answer.data, _Region) else None
        if (region is None) != (self._region is None):
            raise SignalDataError(f"{self.name}: the answer has an unexpected structure for this zone")
        if region is None or self._region is None:
            return answer.data if isinstance(answer.data, list) else []
        what, wanted = self._region
        answered = str(region.regionid if what == "regionid" else region.postcode).upper()
        if answered != wanted:
            raise SignalDataError(f"{self.name}: the answer is for {what} {answered}, not {wanted}")
        return region.data

    def _point(self, slot: _Slot) -> Point:
        actual_g_per_kwh = slot.intensity.actual_g_per_kwh
        starts_s = self._time_s(slot.start)
        if actual_g_per_kwh is not None and actual_g_per_kwh > 0:  # on some days of 2023, 0 meant "unknown"
            return Point(starts_s, actual_g_per_kwh)
        return Point(starts_s, slot.intensity.forecast_g_per_kwh, estimated=True)


def _region(zone: str) -> tuple[str, str] | None:
    """Return the part of the country that a zone is, in the API's terms, or None for the whole."""
    part = zone.removeprefix("GB").removeprefix("-")
    return ("regionid" if part.isdecimal() else "postcode", part) if part else None


def _slot_s(time_s: float) -> float:
    return time_s // STEP_S * STEP_S
