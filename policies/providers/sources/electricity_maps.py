"""Electricity Maps: carbon intensity (API v3 or v4) and day-ahead prices (v4); a token is needed.

Data: under the terms of the token's plan; not to be passed on. A free token gives the last 24 hours of carbon intensity
and may give forecasts; older values (`past-range`) need a commercial plan. Of the prices only published ones are used
(`price-day-ahead/actual`): the `combined` ones contain modelled prices. The API would replace an unknown zone by that
of the caller's IP address; a parameter of each version switches this off.
API: https://app.electricitymaps.com/docs
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeVar

import aiohttp
from msgspec import UNSET, Struct, UnsetType, field

from policies.providers.base import (
    ProviderSettings,
    SignalDataError,
    SignalError,
    SignalRefusedError,
    SignalUnavailableError,
    Url,
    Variable,
    Zone,
)
from policies.providers.http import HttpClient
from policies.providers.series import (
    LOOK_BACK_S,
    Point,
    check_clock,
    format_iso,
    future_points,
    single_unit,
    split_range_s,
)
from policies.providers.zone_provider import ZoneProvider
from policies.vocabulary.signal import Signal, SignalKind
from policies.vocabulary.units import DAY_S, price_per_kwh
from publishers.shared.files.secret_file import read_secret

RANGE_S: Final = 10 * DAY_S
"""The longest range of one request, at hourly granularity."""
SOURCE: Final = "Electricity Maps"
STEP_S: Final = {"hourly": 3_600.0, "15_minutes": 900.0, "5_minutes": 300.0}
HORIZONS_H: Final = (6, 24, 48, 72)
"""How far a forecast may reach [h]."""
_PRICE_UNIT: Final = re.compile(r"[A-Z]{3}/MWh")
_NO_CALLER_LOOKUP: Final = {"v3": ("shouldUseFallbackCallerLookup", "false"), "v4": ("disableCallerLookup", "true")}


class ElectricityMapsAccess(ProviderSettings, frozen=True, kw_only=True):
    """Access to Electricity Maps.

    Attributes:
        zone: the zone as Electricity Maps names it, such as DE, DK-DK1 or US-CAL-CISO.
        url: the address of the API.
        token_file: a file that holds nothing but the token.
        token_env: the environment variable that holds it, if no file is named.
    """

    zone: Zone
    url: Url = "https://api.electricitymaps.com"
    token_file: str = ""
    token_env: Variable = "ELECTRICITY_MAPS_TOKEN"  # noqa: S105 — a name


class Envelope(Struct, rename="camel"):
    """Fields of every answer."""

    zone: str = ""
    error: str = ""
    temporal_granularity: str = ""


AnyEnvelope = TypeVar("AnyEnvelope", bound=Envelope)


class ElectricityMapsApi:
    """The API in one version, for one zone.

    Raises:
        ValueError: there is no token.
    """

    def __init__(
        self,
        access: ElectricityMapsAccess,
        session: aiohttp.ClientSession,
        *,
        name: str,
        version: Literal["v3", "v4"],
        granularity: str,
    ) -> None:
        token = read_secret(key="token", file=access.token_file, variable=access.token_env)
        self._http = HttpClient(session, name=name, secrets=[token])
        self._headers = {"auth-token": token.reveal()}
        self._root = f"{access.url.rstrip('/')}/{version}"
        self._common = dict([("zone", access.zone), ("temporalGranularity", granularity), _NO_CALLER_LOOKUP[version]])

    async def get(self, path: str, shape: type[AnyEnvelope], params: Mapping[str, str], *, now_s: float) -> AnyEnvelope:
        """Return an endpoint's answer, checked to be for the zone and granularity asked for.

        Raises:
            SignalError: the source failed, or answered for something else.
        """
        answer = await self._http.get_json(
            f"{self._root}/{path}", shape, now_s=now_s, params=self._common | dict(params), headers=self._headers
        )
        if answer.error:
            raise SignalUnavailableError(f"{self._http.name}: {answer.error}")
        self._check("zone", answer.zone)
        if answer.temporal_granularity:
            self._check("temporalGranularity", answer.temporal_granularity)
        return answer

    def _check(self, key: str, answered: str) -> None:
        if answered != self._common[key]:
            raise SignalDataError(f"{self._http.name}: answers for {key} {answered!r}, asked for {self._common[key]!r}")


class ElectricityMapsSettings(ElectricityMapsAccess, frozen=True, kw_only=True):
    """Carbon intensity from Electricity Maps.

    Attributes:
        version: the version of the API.
        emission_factor_type: lifecycle emissions, with those of building plants and supplying fuel, or direct ones.
        granularity: how long a value holds.
        disable_estimations: leave out values that were not measured.
    """

    version: Literal["v3", "v4"] = "v4"
    emission_factor_type: Literal["lifecycle", "direct"] = "lifecycle"
    granularity: Literal["hourly", "15_minutes", "5_minutes"] = "hourly"
    disable_estimations: bool = False


class _Value(Struct, rename="camel"):
    datetime: str
    carbon_intensity_g_per_kwh: float | None = field(name="carbonIntensity", default=None)
    updated_at: str | None = None
    is_estimated: bool | None = None
    emission_factor_type: str | None = None


class _Answer(Envelope, rename="camel"):
    """The values have one of three names, depending on version and endpoint."""

    updated_at: str | None = None
    history: list[_Value] | UnsetType = UNSET
    data: list[_Value] | UnsetType = UNSET
    forecast: list[_Value] | UnsetType = UNSET


class ElectricityMapsProvider(ZoneProvider):
    """The last 24 hours, older values if the plan includes them, and a forecast.

    Raises:
        ValueError: there is no token.
    """

    def __init__(self, settings: ElectricityMapsSettings, session: aiohttp.ClientSession) -> None:
        name, step_s = f"electricity-maps {settings.zone}", STEP_S[settings.granularity]
        super().__init__(name=name, kind="average", zone=settings.zone, step_s=step_s, source=SOURCE)
        self._factors = settings.emission_factor_type
        self._estimations = {"disableEstimations": "true"} if settings.disable_estimations else {}
        self._has_past = True
        self._api = ElectricityMapsApi(
            settings, session, name=name, version=settings.version, granularity=settings.granularity
        )

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values since then, or since 24 hours ago if the plan has no more."""
        since_s = max(since_s, now_s - LOOK_BACK_S)
        recent = self._points(await self._ask("history", self._estimations, now_s=now_s))
        first_s = min((point.starts_s for point in recent), default=now_s)
        older = (
            await self._fetch_older(since_s, first_s, now_s=now_s) if since_s < now_s - DAY_S and self._has_past else []
        )
        points = older + recent
        check_clock(points, source=self.name, now_s=now_s)
        return self._history(points, since_s=since_s, now_s=now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the forecast, 72 hours at most.

        Raises:
            SignalRefusedError: the plan has no forecasts, or none that reach so far; the history works without.
            SignalError: the source failed.
        """
        n_hours = math.ceil((until_s - now_s) / STEP_S["hourly"])
        horizon_h = next((hours for hours in HORIZONS_H if hours >= n_hours), HORIZONS_H[-1])
        try:
            answer = await self._ask("forecast", {"horizonHours": str(horizon_h)}, now_s=now_s)
        except SignalError as error:
            if not error.is_refusal:
                raise
            why = f"the history works without; the plan has no forecast of {horizon_h} h if the token is valid: {error}"
            raise SignalRefusedError(why, retry_after_s=error.retry_after_s, status=error.status) from error
        points = [point._replace(estimated=True) for point in self._points(answer)]
        return self._signal(
            future_points(points, now_s=now_s, until_s=until_s),
            now_s=now_s,
            issued_at_s=self._time_s(answer.updated_at) if answer.updated_at else None,
        )

    async def _fetch_older(self, since_s: float, until_s: float, *, now_s: float) -> list[Point]:
        """Return older values than the history has; after one refusal none, and they are not asked for again."""
        points: list[Point] = []
        start_s = since_s // self.step_s * self.step_s
        for part_start_s, part_end_s in split_range_s(start_s, until_s, longest_s=RANGE_S):
            params = {"start": format_iso(part_start_s), "end": format_iso(part_end_s), **self._estimations}
            try:
                points += self._points(await self._ask("past-range", params, now_s=now_s))
            except SignalError as error:
                if not error.is_refusal:
                    raise
                self._has_past = False
                break
        return points

    async def _ask(self, endpoint: str, params: dict[str, str], *, now_s: float) -> _Answer:
        return await self._api.get(
            f"carbon-intensity/{endpoint}", _Answer, {"emissionFactorType": self._factors, **params}, now_s=now_s
        )

    def _points(self, answer: _Answer) -> list[Point]:
        lists = [values for values in (answer.history, answer.data, answer.forecast) if values is not UNSET]
        if not lists:
            raise SignalDataError(f"{self.name}: the answer has no history, no data and no forecast")
        return list(self._points_of(value for values in lists for value in values))

    def _points_of(self, values: Iterable[_Value]) -> Iterable[Point]:
        for value in values:
            if value.emission_factor_type not in {None, self._factors}:
                raise SignalDataError(
                    f"{self.name}: answers with {value.emission_factor_type} emissions, asked for {self._factors}"
                )
            yield Point(
                self._time_s(value.datetime),
                value.carbon_intensity_g_per_kwh,
                estimated=bool(value.is_estimated),
                updated_at_s=self._time_s(value.updated_at) if value.updated_at else 0.0,
            )


class ElectricityMapsPriceSettings(ElectricityMapsAccess, frozen=True, kw_only=True):
    """Day-ahead prices from Electricity Maps.

    Attributes:
        granularity: how long a price holds; where quarters of an hour are traded, an hourly price is their mean.
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


class ElectricityMapsPriceProvider(ZoneProvider):
    """The prices that the exchange has published, past and future.

    Raises:
        ValueError: there is no token.
    """

    def __init__(self, settings: ElectricityMapsPriceSettings, session: aiohttp.ClientSession) -> None:
        name, step_s = f"electricity-maps {settings.zone}", STEP_S[settings.granularity]
        super().__init__(name=name, kind="price", zone=settings.zone, step_s=step_s, source=SOURCE)
        self._api = ElectricityMapsApi(settings, session, name=name, version="v4", granularity=settings.granularity)

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the prices since then; after a change of currency, those in the new one."""
        since_s = max(since_s, now_s - LOOK_BACK_S)
        start_s = since_s // self.step_s * self.step_s
        prices, unit = await self._fetch(start_s, self._next_s(now_s), now_s=now_s, latest=True)
        return self._history(prices, since_s=since_s, unit=unit, now_s=now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the future prices that are published: settled, not estimated.

        Before a change of currency, those in the old one.
        """
        prices, unit = await self._fetch(self._next_s(now_s), until_s, now_s=now_s, latest=False)
        return self._signal(future_points(prices, now_s=now_s, until_s=until_s), unit=unit, now_s=now_s)

    def _next_s(self, now_s: float) -> float:
        return (now_s // self.step_s + 1) * self.step_s

    async def _fetch(self, start_s: float, end_s: float, *, now_s: float, latest: bool) -> tuple[list[Point], str]:
        """Return the prices from `start_s` to before `end_s` in one unit, and that unit; "" if there are none."""
        prices: list[_Price] = []
        for part_start_s, part_end_s in split_range_s(start_s, end_s, longest_s=RANGE_S):
            params = {"start": format_iso(part_start_s), "end": format_iso(part_end_s)}
            prices += (await self._api.get("price-day-ahead/actual", _Prices, params, now_s=now_s)).data
        by_start = [(self._point(price), self._unit_per_kwh(price.unit)) for price in prices]
        if not by_start:
            return [], ""
        unit = single_unit(((point.starts_s, unit) for point, unit in by_start), source=self.name, latest=latest)
        return [point for point, its_unit in by_start if its_unit == unit], unit

    def _point(self, price: _Price) -> Point:
        return Point(
            self._time_s(price.datetime),
            None if price.value is None else price_per_kwh(price.value),
            updated_at_s=self._time_s(price.updated_at) if price.updated_at else 0.0,
        )

    def _unit_per_kwh(self, unit: str) -> str:
        if not _PRICE_UNIT.fullmatch(unit):
            raise SignalDataError(f"{self.name}: returns prices in {unit!r}; must be money per MWh, such as EUR/MWh")
        return unit.replace("/MWh", "/kWh")
