"""WattTime, API v3: marginal or average carbon intensity; a user and a password are needed.

API: https://docs.watttime.org. Data: WattTime, under the terms of the plan; without a plan only the region
CAISO_NORTH is open. Its signal index is a percentile, and not used.
"""

import base64
import math
from typing import Annotated, Final, Literal, TypeVar

import aiohttp
from msgspec import Meta, Struct, field

from policies.providers.base import (
    ProviderSettings,
    SignalDataError,
    SignalError,
    SignalRefusedError,
    Url,
    Variable,
    Zone,
)
from policies.providers.http import HttpClient
from policies.providers.series import (
    AHEAD_S,
    LOOK_BACK_S,
    Point,
    check_clock,
    format_iso,
    future_points,
    split_range_s,
)
from policies.providers.zone_provider import ZoneProvider
from policies.vocabulary.signal import Signal, SignalKind
from policies.vocabulary.units import intensity_g_per_kwh
from publishers.shared.files.secret_file import Secret, read_secret

TOKEN_LASTS_S: Final = 1_500.0
"""A token is valid for 30 minutes; it is renewed 5 minutes earlier."""
RANGE_S: Final = 30 * 86_400.0
"""The longest range of one history request."""
MAX_HORIZON_H: Final = 72
UNITS: Final = "lbs_co2_per_mwh"
KINDS: Final[dict[str, SignalKind]] = {"co2_moer": "marginal", "co2_aoer": "average"}
_TOKEN_REFUSED: Final = frozenset({401, 403})


class WattTimeSettings(ProviderSettings, frozen=True, kw_only=True):
    """Carbon intensity from WattTime.

    Attributes:
        zone: the region as WattTime names it, such as CAISO_NORTH.
        username: the user.
        signal_type: the marginal (co2_moer) or the average (co2_aoer) carbon intensity.
        url: the address of the API.
        password_file: a file that holds nothing but the password.
        password_env: the environment variable that holds it, if no file is named.
    """

    zone: Zone
    username: Annotated[str, Meta(pattern=r"\A[^:]+\Z", description="at least 1 character, with no : among them")]
    signal_type: Literal["co2_moer", "co2_aoer"] = "co2_moer"
    url: Url = "https://api.watttime.org"
    password_file: str = ""
    password_env: Variable = "WATTTIME_PASSWORD"  # noqa: S105 — a name

    def signal_kind(self) -> SignalKind:
        """Return the kind of the signal type."""
        return KINDS[self.signal_type]


class _Login(Struct):
    token: str


class _Value(Struct):
    point_time: str
    value: float | None = None
    imputed_data_used: bool | None = None
    last_updated: str | None = None


class _Meta(Struct):
    region: str
    signal_type: str
    units: str
    step_s: Annotated[float, Meta(ge=60, le=86_400)] = field(name="data_point_period_seconds", default=300.0)
    generated_at: str | None = None


class _Answer(Struct):
    data: list[_Value]
    meta: _Meta


Shape = TypeVar("Shape")


class WattTimeProvider(ZoneProvider):
    """Carbon intensity of a region from WattTime.

    Raises:
        ValueError: there is no password.
    """

    def __init__(self, settings: WattTimeSettings, session: aiohttp.ClientSession) -> None:
        name, kind = f"watttime {settings.zone}", settings.signal_kind()
        super().__init__(name=name, kind=kind, zone=settings.zone, step_s=300.0, source="WattTime")
        self._settings = settings
        self._session = session
        self._root = settings.url.rstrip("/")
        self._password = read_secret(key="password", file=settings.password_file, variable=settings.password_env)
        self._client: HttpClient | None = None
        self._bearer = ""
        self._renew_at_s = -math.inf

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values since then."""
        since_s = max(since_s, now_s - LOOK_BACK_S)
        points: list[Point] = []
        # The value that holds at `since_s` started up to a step earlier, and the longest step is an hour.
        for start_s, end_s in split_range_s(since_s - 3_600.0, now_s + AHEAD_S, longest_s=RANGE_S):
            params = {"start": format_iso(start_s), "end": format_iso(end_s), "include_imputed_marker": "true"}
            points += self._points(await self._ask("historical", params, now_s=now_s))
        check_clock(points, source=self.name, now_s=now_s)
        return self._history(points, since_s=since_s, now_s=now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the forecast, 72 hours at most."""
        horizon_h = min(math.ceil((until_s - now_s) / 3_600.0), MAX_HORIZON_H)
        answer = await self._ask("forecast", {"horizon_hours": str(horizon_h)}, now_s=now_s)
        points = [point._replace(estimated=True) for point in self._points(answer)]
        issued_at = answer.meta.generated_at
        return self._signal(
            future_points(points, now_s=now_s, until_s=until_s),
            now_s=now_s,
            issued_at_s=self._time_s(issued_at) if issued_at else None,
        )

    async def _ask(self, endpoint: str, params: dict[str, str], *, now_s: float) -> _Answer:
        """Return an answer, checked to be for the region, signal and unit asked for."""
        wanted = {"region": self._settings.zone, "signal_type": self._settings.signal_type}
        answer = await self._get(f"{self._root}/v3/{endpoint}", _Answer, wanted | params, now_s=now_s)
        for key, answered in (("region", answer.meta.region), ("signal_type", answer.meta.signal_type)):
            if answered != wanted[key]:
                raise SignalDataError(f"{self.name}: answers for {key} {answered!r}, asked for {wanted[key]!r}")
        if answer.meta.units != UNITS:
            raise SignalDataError(f"{self.name}: returns values in {answer.meta.units!r}; must be {UNITS!r}")
        self.step_s = answer.meta.step_s
        return answer

    async def _get(self, url: str, shape: type[Shape], params: dict[str, str], *, now_s: float) -> Shape:
        """Return an answer; an older token that is refused is renewed once."""
        if self._client is None or now_s >= self._renew_at_s:
            client = await self._log_in(now_s)
        else:
            try:
                return await self._client.get_json(url, shape, now_s=now_s, params=params, headers=self._headers())
            except SignalError as error:
                if error.status not in _TOKEN_REFUSED:
                    raise
            client = await self._log_in(now_s)
        return await client.get_json(url, shape, now_s=now_s, params=params, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._bearer}"}

    async def _log_in(self, now_s: float) -> HttpClient:
        """Get a token, and return an HTTP client that masks it."""
        self._client = None
        user = f"{self._settings.username}:{self._password.reveal()}"
        basic = Secret(base64.b64encode(user.encode()).decode("ascii"))
        login_client = HttpClient(self._session, name=self.name, secrets=[self._password, basic])
        try:
            login = await login_client.get_json(
                f"{self._root}/login", _Login, now_s=now_s, headers={"Authorization": f"Basic {basic.reveal()}"}
            )
        except SignalError as error:
            if error.status not in _TOKEN_REFUSED:
                raise
            why = f"{error}: the user {self._settings.username!r} or the password is wrong"
            raise SignalRefusedError(why, status=error.status) from error
        self._bearer = login.token
        self._renew_at_s = now_s + TOKEN_LASTS_S
        self._client = HttpClient(self._session, name=self.name, secrets=[self._password, Secret(login.token)])
        return self._client

    def _points(self, answer: _Answer) -> list[Point]:
        return [
            Point(
                self._time_s(value.point_time),
                None if value.value is None else intensity_g_per_kwh(value.value),
                estimated=bool(value.imputed_data_used),
                updated_at_s=self._time_s(value.last_updated) if value.last_updated else 0.0,
            )
            for value in answer.data
        ]
