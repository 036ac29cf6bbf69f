"""What carbon intensity and price of Electricity Maps share: the token, the parameters, the checks of an answer.

API: https://app.electricitymaps.com/docs. A zone that it does not know would be replaced by that of the caller's IP
address; that is switched off here, by the parameter of each version.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeVar

import aiohttp
from msgspec import Struct

from policies.providers.base import ProviderSettings, SignalDataError, SignalUnavailableError, Url, Variable, Zone
from policies.providers.http import HttpSource
from policies.providers.secret import read_secret

DAY_S: Final = 86_400.0
RANGE_S: Final = 10 * DAY_S
"""The longest time that one request may span, at an hourly granularity."""
SOURCE: Final = "Electricity Maps"
STEP_S: Final = {"hourly": 3_600.0, "15_minutes": 900.0, "5_minutes": 300.0}
_NO_CALLER_LOOKUP: Final = {"v3": ("shouldUseFallbackCallerLookup", "false"), "v4": ("disableCallerLookup", "true")}


class ElectricityMapsAccess(ProviderSettings, frozen=True, kw_only=True):
    """How Electricity Maps is asked.

    Attributes:
        zone: the zone as Electricity Maps names it, such as DE, DK-DK1 or US-CAL-CISO.
        url: the address of the API.
        token_file: a file that holds nothing but the token.
        token_env: the environment variable that holds it where no file is named.
    """

    zone: Zone
    url: Url = "https://api.electricitymaps.com"
    token_file: str = ""
    token_env: Variable = "ELECTRICITY_MAPS_TOKEN"  # noqa: S105 — a name


class Envelope(Struct, rename="camel"):
    """What every answer says of itself."""

    zone: str = ""
    error: str = ""
    temporal_granularity: str = ""


AnyEnvelope = TypeVar("AnyEnvelope", bound=Envelope)


class ElectricityMapsApi:
    """Asks one version of the API for one zone.

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
        self._http = HttpSource(session, name=name, secrets=[token])
        self._headers = {"auth-token": token.reveal()}
        self._root = f"{access.url.rstrip('/')}/{version}"
        self._common = dict([("zone", access.zone), ("temporalGranularity", granularity), _NO_CALLER_LOOKUP[version]])

    async def get(self, path: str, shape: type[AnyEnvelope], params: Mapping[str, str], *, now_s: float) -> AnyEnvelope:
        """Return the answer of an endpoint, which is for the zone and at the granularity that were asked for.

        Raises:
            SignalError: the source failed, or its answer is for something else.
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

    def _check(self, key: str, said: str) -> None:
        if said != self._common[key]:
            raise SignalDataError(f"{self._http.name}: answers for {key} {said!r}, asked for {self._common[key]!r}")
