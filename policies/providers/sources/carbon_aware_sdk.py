"""A WebAPI of the Green Software Foundation's Carbon Aware SDK that you run yourself; needs no key on this side.

API: https://carbon-aware-sdk.greensoftware.foundation. Data: from the source that the WebAPI is configured
with (WattTime, Electricity Maps, files), under that source's terms; the answers do not say what kind they are.
"""

from http import HTTPStatus
from itertools import pairwise
from typing import Final, Literal

import aiohttp
from msgspec import Struct, field

from policies.providers.base import ProviderSettings, SignalDataError, SignalError, UrlOrNone, Zone
from policies.providers.http import HttpClient
from policies.providers.series import (
    AHEAD_S,
    CLOCK_TOLERANCE_S,
    LOOK_BACK_S,
    Point,
    check_clock,
    format_iso,
    future_points,
    infer_step_s,
    split_range_s,
)
from policies.providers.zone_provider import ZoneProvider
from policies.vocabulary.signal import Signal, SignalKind
from policies.vocabulary.units import DAY_S, HOUR_S

RANGE_S: Final = 10 * DAY_S
"""The longest range that every one of its sources accepts."""


class CarbonAwareSdkSettings(ProviderSettings, frozen=True, kw_only=True):
    """Carbon intensity from a WebAPI of the Carbon Aware SDK.

    Attributes:
        url: the address of the WebAPI; there is no public one.
        zone: the location, by a name that the WebAPI knows, such as eastus.
        kind: what its data source gives; the answers do not say.
    """

    zone: Zone
    kind: Literal["average", "marginal"]
    url: UrlOrNone = ""

    def signal_kind(self) -> SignalKind:
        """Return the configured kind."""
        return self.kind

    def faults(self) -> list[str]:
        """Return a fault if the address is missing."""
        return [] if self.url else ['url = "": must be the address of your WebAPI, as in http://localhost:5073']


class _Emission(Struct):
    location: str
    time: str
    rating_g_per_kwh: float | None = field(name="rating", default=None)


class _Expected(Struct):
    timestamp: str
    value: float | None = None


class _Forecast(Struct, rename="camel"):
    location: str
    forecast_data: list[_Expected]
    generated_at: str | None = None


class CarbonAwareSdkProvider(ZoneProvider):
    """The emissions of a location and its current forecast."""

    def __init__(self, settings: CarbonAwareSdkSettings, session: aiohttp.ClientSession) -> None:
        name, zone = f"carbon-aware-sdk {settings.zone}", settings.zone
        super().__init__(name=name, kind=settings.kind, zone=zone, step_s=HOUR_S, source="Carbon Aware SDK")
        self._root = f"{settings.url.rstrip('/')}/emissions"
        self._keeps_s = LOOK_BACK_S
        self._http = HttpClient(session, name=name)

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values since then, or since 24 hours ago if the data source has no more."""
        since_s = max(since_s, now_s - self._keeps_s)
        # With Electricity Maps behind it, values older than 24 hours need another endpoint and another plan.
        first_s = max(since_s - HOUR_S, now_s - DAY_S + CLOCK_TOLERANCE_S)
        points = await self._emissions(first_s, now_s + AHEAD_S, now_s=now_s)
        if since_s < now_s - DAY_S:
            points += await self._older(since_s - HOUR_S, first_s, now_s=now_s)
        self.step_s = infer_step_s(points, otherwise_s=_finest_step_s(points), longest_s=HOUR_S)
        check_clock(points, source=self.name, now_s=now_s)
        return self._history(points, since_s=since_s, now_s=now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the forecast, as far as the data source has it; None if it has none."""
        # No bounds are given: the WebAPI refuses those beyond its forecast.
        try:
            forecasts = await self._http.get_json(
                f"{self._root}/forecasts/current", list[_Forecast], now_s=now_s, params={"location": self._zone}
            )
        except SignalError as error:
            if error.status == HTTPStatus.NOT_IMPLEMENTED:
                return None
            raise
        others = {forecast.location for forecast in forecasts if forecast.location.casefold() != self._zone.casefold()}
        if others:
            raise SignalDataError(f"{self.name}: answers for {', '.join(sorted(others))}, asked for {self._zone}")
        issued_s = [self._time_s(forecast.generated_at) for forecast in forecasts if forecast.generated_at]
        points = [
            Point(self._time_s(expected.timestamp), expected.value, estimated=True)
            for forecast in forecasts
            for expected in forecast.forecast_data
        ]
        return self._signal(
            future_points(points, now_s=now_s, until_s=until_s), now_s=now_s, issued_at_s=max(issued_s, default=None)
        )

    async def _older(self, start_s: float, end_s: float, *, now_s: float) -> list[Point]:
        """Return values from before the last 24 hours; after one refusal none, and they are not asked for again."""
        try:
            return await self._emissions(start_s, end_s, now_s=now_s)
        except SignalError as error:
            if not error.is_refusal:
                raise
            self._keeps_s = DAY_S
            return []

    async def _emissions(self, since_s: float, until_s: float, *, now_s: float) -> list[Point]:
        points: list[Point] = []
        for start_s, end_s in split_range_s(since_s, until_s, longest_s=RANGE_S):
            params = {"location": self._zone, "time": format_iso(start_s), "toTime": format_iso(end_s)}
            emissions = await self._http.get_json(
                f"{self._root}/bylocation", list[_Emission], now_s=now_s, params=params
            )
            points += [Point(self._time_s(emission.time), emission.rating_g_per_kwh) for emission in emissions]
        return points


def _finest_step_s(points: list[Point]) -> float:
    """Return the smallest distance between two starts [s], at most an hour."""
    starts_s = sorted({point.starts_s for point in points})
    return min([HOUR_S, *(after_s - before_s for before_s, after_s in pairwise(starts_s))])
