"""U.S. Energy Information Administration, API v2: carbon intensity of a balancing authority, from its hourly mix.

Public domain of the United States; the EIA asks to be named as the source. A free key is needed, from
https://www.eia.gov/opendata/register.php. Data: form EIA-930, https://www.eia.gov/electricity/gridmonitor/about, which
says that hours are named by their *end*; here a value holds from the beginning of its hour. Imports are not
counted. There is no forecast.
"""

import math
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Final

import aiohttp
from msgspec import Meta, Raw, Struct, field

from policies.providers.base import (
    Lateness,
    ProviderSettings,
    SignalDataError,
    SignalError,
    SignalRefusedError,
    SignalUnavailableError,
    Url,
    Variable,
)
from policies.providers.generation_mix import intensities_g_per_kwh
from policies.providers.http import HttpClient
from policies.providers.series import LOOK_BACK_S, Point, check_clock
from policies.providers.zone_provider import ZoneProvider
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, KWH_PER_MWH
from publishers.shared.files.secret_file import read_secret

STEP_S: Final = 3_600.0
CONTEXT_S: Final = DAY_S
"""Queries begin this much earlier: the hours before show which fuels an hour lacks."""
SETTLED_AFTER_S: Final = DAY_S
"""Balancing authorities correct their first figures on the next day: younger values are estimates."""
PAGE: Final = 5_000
"""The API's largest page [rows]."""
MAX_PAGES: Final = 8
_PERIOD: Final = "%Y-%m-%dT%H"

Respondent = Annotated[str, Meta(pattern=r"\A[A-Z0-9]{2,5}\Z", description="2 to 5 characters of A-Z 0-9")]


class EiaSettings(ProviderSettings, frozen=True, kw_only=True):
    """The EIA: hourly, for the balancing authorities of the United States.

    Attributes:
        zone: the code of the balancing authority at the EIA, such as MISO, ERCO, CISO or PJM.
        url: where the API is.
        token_file: a file with the API key.
        token_env: the environment variable with the API key, if no file is named.
        lag_s: the slowest balancing authorities send a day's figures the next morning [s].
    """

    lag_s: Lateness = DAY_S
    zone: Respondent
    url: Url = "https://api.eia.gov/v2"
    token_file: str = ""
    token_env: Variable = "EIA_API_KEY"  # noqa: S105 — the variable's name


class _Row(Struct, frozen=True):
    period: str
    respondent: str
    fueltype: str
    value: str | float | None = None
    units: str = field(name="value-units", default="megawatthours")


class _Page(Struct, frozen=True):
    data: list[_Row]
    total: str | int = 0


class _Answer(Struct, frozen=True):
    response: _Page | None = None
    error: Raw = Raw()
    code: str | int = 0


class EiaProvider(ZoneProvider):
    """The carbon intensity of what a balancing authority generates: Σ generation·factor / Σ generation.

    Raises:
        ValueError: there is no API key.
    """

    missing_because = "without the output of an important fuel"

    def __init__(self, settings: EiaSettings, session: aiohttp.ClientSession) -> None:
        super().__init__(name=f"eia {settings.zone}", kind="average", zone=settings.zone, step_s=STEP_S)
        self._url = f"{settings.url.rstrip('/')}/electricity/rto/fuel-type-data/data/"
        self._key = read_secret(key="token", file=settings.token_file, variable=settings.token_env)
        self._http = HttpClient(session, name=self.name, secrets=[self._key])

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the hours from the one at `since_s` on, of at most 60 days, or None if there are none."""
        first_s = max(since_s, now_s - LOOK_BACK_S) // STEP_S * STEP_S
        rows = await self._rows(since_s=first_s - CONTEXT_S, now_s=now_s)
        mixes: dict[float, dict[str, float | None]] = {}
        for row in rows:
            mixes.setdefault(self._starts_s(row), {})[row.fueltype] = self._energy_kwh(row)
        points = [
            Point(starts_s, value, estimated=starts_s + STEP_S > now_s - SETTLED_AFTER_S)
            for starts_s, value in intensities_g_per_kwh(mixes).items()
            if starts_s >= first_s
        ]
        check_clock(points, source=self.name, now_s=now_s)
        return self._history(points, since_s=first_s, now_s=now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return None: the EIA forecasts demand, not generation."""
        del now_s, until_s
        return None

    async def _rows(self, *, since_s: float, now_s: float) -> list[_Row]:
        """Return the generation by fuel, newest hour first, page by page.

        An hour that is added between two requests repeats rows, but loses none.
        """
        query = {
            "api_key": self._key.reveal(),
            "frequency": "hourly",
            "data[0]": "value",
            "facets[respondent][]": self._zone,
            "start": _period(since_s + STEP_S),
            "end": _period(now_s + DAY_S),  # so that a wrong clock is noticed
            "sort[0][column]": "period",
            "sort[0][direction]": "desc",
            "sort[1][column]": "fueltype",
            "sort[1][direction]": "asc",
            "length": str(PAGE),
        }
        rows: list[_Row] = []
        for page in range(MAX_PAGES):
            of_page = query | {"offset": str(page * PAGE)}
            answer = await self._http.get_json(self._url, _Answer, now_s=now_s, params=of_page)
            if answer.response is None:
                raise self._refusal(answer)
            rows += answer.response.data
            if len(answer.response.data) < PAGE:
                break
        return rows

    def _refusal(self, answer: _Answer) -> SignalError:
        """Return the error in an answer without data, which may come with status 200."""
        reason = self._key.masked(bytes(answer.error).decode("utf-8", "replace"))[:200] or "no data, and no error"
        code = str(answer.code)
        if not bytes(answer.error):
            return SignalDataError(f"{self.name}: {reason}")
        if code.isdecimal() and int(code) >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return SignalUnavailableError(f"{self.name}: error {code}: {reason}")
        return SignalRefusedError(f"{self.name}: error {code}: {reason}")

    def _starts_s(self, row: _Row) -> float:
        """Return when a row's hour starts [Unix s]; the EIA names it by its end, in UTC."""
        if row.respondent != self._zone:
            raise SignalDataError(f"{self.name}: answers for {row.respondent!r}, not for {self._zone!r}")
        try:
            return datetime.strptime(row.period, _PERIOD).replace(tzinfo=UTC).timestamp() - STEP_S
        except ValueError:
            raise SignalDataError(
                f"{self.name}: the period {row.period[:40]!r} is not an hour like 2025-01-31T23"
            ) from None

    def _energy_kwh(self, row: _Row) -> float | None:
        """Return the generation [kWh], or None if missing; numbers may come as text."""
        if row.units != "megawatthours":
            raise SignalDataError(f"{self.name}: generation in {row.units!r}: must be in 'megawatthours'")
        try:
            energy_kwh = math.nan if row.value is None else float(row.value) * KWH_PER_MWH
        except ValueError:
            energy_kwh = math.nan
        return energy_kwh if math.isfinite(energy_kwh) else None


def _period(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime(_PERIOD)
