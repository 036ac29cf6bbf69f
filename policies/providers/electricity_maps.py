"""Average carbon intensity from Electricity Maps, API v3 or v4: many zones of the world; a token is needed.

Data: Electricity Maps, under the terms of the token's plan; not to be passed on. A free token gives the last 24 hours,
and may give forecasts; what is older (past-range) takes a commercial plan.
"""

import math
from collections.abc import Iterable
from typing import Final, Literal

import aiohttp
from msgspec import UNSET, Struct, UnsetType, field

from policies.providers.base import SignalDataError, SignalError, SignalRefusedError
from policies.providers.electricity_maps_api import (
    DAY_S,
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
    check_clock,
    iso,
    read_iso_s,
    signal_of,
    to_come,
    told,
    windows_s,
)
from policies.signal import Signal, SignalKind

HORIZONS_H: Final = (6, 24, 48, 72)
"""How far a forecast may reach [h]."""
_UNAUTHORIZED: Final = 401


class ElectricityMapsSettings(ElectricityMapsAccess, frozen=True, kw_only=True):
    """Carbon intensity from Electricity Maps.

    Attributes:
        version: the version of the API.
        emission_factor_type: count the emissions of building the plants and of their fuel (lifecycle), or direct ones.
        granularity: how long a value holds.
        disable_estimations: have what was not measured left out.
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
    """The values stand under the one name or the other, by version and endpoint."""

    updated_at: str | None = None
    history: list[_Value] | UnsetType = UNSET
    data: list[_Value] | UnsetType = UNSET
    forecast: list[_Value] | UnsetType = UNSET


class ElectricityMapsProvider:
    """Asks for the last 24 hours, for what came before where the plan has it, and for a forecast.

    Raises:
        ValueError: there is no token.
    """

    def __init__(self, settings: ElectricityMapsSettings, session: aiohttp.ClientSession) -> None:
        self.name = f"electricity-maps {settings.zone}"
        self.kind: SignalKind = "average"
        self.step_s = STEP_S[settings.granularity]
        self._zone = settings.zone
        self._factors = settings.emission_factor_type
        self._estimations = {"disableEstimations": "true"} if settings.disable_estimations else {}
        self._has_past = True
        self._api = ElectricityMapsApi(
            settings, session, name=self.name, version=settings.version, granularity=settings.granularity
        )

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values since then, or since 24 hours ago where the plan has no more."""
        since_s = max(since_s, now_s - LOOK_BACK_S)
        recent = self._points(await self._ask("history", self._estimations, now_s=now_s))
        first_s = min((point.starts_s for point in recent), default=now_s)
        older = (
            await self._fetch_older(since_s, first_s, now_s=now_s) if since_s < now_s - DAY_S and self._has_past else []
        )
        points = older + recent
        check_clock(points, source=self.name, now_s=now_s)
        return self._signal(told(points, since_s=since_s, now_s=now_s, step_s=self.step_s), now_s=now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return what is expected, 72 hours at most.

        Raises:
            SignalRefusedError: the plan has no forecasts, which is no fault of the history.
            SignalError: the source failed.
        """
        n_hours = math.ceil((until_s - now_s) / STEP_S["hourly"])
        horizon_h = next((hours for hours in HORIZONS_H if hours >= n_hours), HORIZONS_H[-1])
        try:
            answer = await self._ask("forecast", {"horizonHours": str(horizon_h)}, now_s=now_s)
        except SignalError as error:
            if not _is_refused(error):
                raise
            why = f"the history works without a forecast, which the plan has not where the token is good: {error}"
            raise SignalRefusedError(why, status=error.status) from error
        points = [point._replace(estimated=True) for point in self._points(answer)]
        return self._signal(
            to_come(points, now_s=now_s, until_s=until_s), now_s=now_s, issued_at_s=self._time_s(answer.updated_at)
        )

    async def _fetch_older(self, since_s: float, until_s: float, *, now_s: float) -> list[Point]:
        """Return what the history lacks; from the first refusal on nothing, and nobody asks again."""
        points: list[Point] = []
        start_s = since_s // self.step_s * self.step_s
        for part_start_s, part_end_s in windows_s(start_s, until_s, longest_s=RANGE_S):
            params = {"start": iso(part_start_s), "end": iso(part_end_s), **self._estimations}
            try:
                points += self._points(await self._ask("past-range", params, now_s=now_s))
            except SignalError as error:
                if not _is_refused(error):
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
                read_iso_s(value.datetime, source=self.name),
                value.carbon_intensity_g_per_kwh,
                estimated=bool(value.is_estimated),
                updated_at_s=self._time_s(value.updated_at) or 0.0,
            )

    def _time_s(self, text: str | None) -> float | None:
        return read_iso_s(text, source=self.name) if text else None

    def _signal(self, points: list[Point], *, now_s: float, issued_at_s: float | None = None) -> Signal | None:
        return signal_of(
            points,
            kind=self.kind,
            zone=self._zone,
            source=SOURCE,
            unit="g/kWh",
            step_s=self.step_s,
            now_s=now_s,
            issued_at_s=issued_at_s,
        )


def _is_refused(error: SignalError) -> bool:
    """Return whether the plan lacks an endpoint: that is told by 401 to a token that is good for others."""
    return isinstance(error, SignalRefusedError) or error.status == _UNAUTHORIZED
