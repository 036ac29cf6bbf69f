"""A fake of the API of Electricity Maps, v3 and v4: its paths, parameters, plans, envelopes and errors."""

from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web

from tests.policies.providers.fakes.api import FakeApi, iso, unix_s

TOKEN: Final = "em+token/7f3a"
STEP_S: Final = {"hourly": 3_600.0, "15_minutes": 900.0, "5_minutes": 300.0}
DAY_S: Final = 86_400.0
MAX_RANGE_S: Final = 10 * DAY_S
CALLER: Final = "DK-DK2"
"""The zone of the caller's IP address, which replaces an unknown zone."""
UNKNOWN: Final = "XY"


class FakeElectricityMaps(FakeApi):
    """The API.

    Attributes:
        plan: the endpoints that the token may use.
        longest_h: the longest forecast that the plan has [h].
        estimated: the starts of the values that were not measured [Unix s].
        extra: further values, as in the answer.
        row: fields of every value.
        envelope: fields of every answer.
        key: the name of the values of a history; "" for the API's own.
        currency: of the prices.
        currencies: later currencies, by the time of the change [Unix s].
    """

    def __init__(self) -> None:
        super().__init__()
        self.plan = {"history", "past-range", "forecast", "actual"}
        self.longest_h = 72
        self.estimated: set[float] = set()
        self.extra: list[dict[str, Any]] = []
        self.row: dict[str, Any] = {}
        self.envelope: dict[str, Any] = {}
        self.key = ""
        self.currency = "EUR"
        self.currencies: dict[float, str] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return the endpoint's answer, newest first."""
        _, version, signal, endpoint = request.path.split("/")
        query = request.query
        if refusal := self._refusal(request, version=version, signal=signal, endpoint=endpoint):
            return refusal
        zone = self.grid.zone or (CALLER if query["zone"] == UNKNOWN else query["zone"])
        envelope = {"zone": zone, "temporalGranularity": query["temporalGranularity"]} | self.envelope
        if signal == "price-day-ahead":
            return self._prices(request, envelope)
        if endpoint == "forecast":
            return self._forecast(request, envelope, STEP_S[query["temporalGranularity"]])
        values = list(self._values(request, endpoint))
        key = self.key or ("data" if endpoint == "past-range" or version == "v4" else "history")
        return web.json_response(envelope | {key: [*reversed(values), *self.extra]})

    def _refusal(self, request: web.Request, *, version: str, signal: str, endpoint: str) -> web.Response | None:
        """Return a refusal, or None."""
        query = request.query
        switch = ("shouldUseFallbackCallerLookup", "false") if version == "v3" else ("disableCallerLookup", "true")
        kinds = f"zoneKey={query['zone']},requestType={endpoint},dataType={signal}"
        spans_s = unix_s(query["end"]) - unix_s(query["start"]) if "start" in query else 0.0
        reasons = {
            (401, "Invalid auth-token"): request.headers.get("auth-token") != TOKEN,
            (404, "Endpoint not available"): (version, signal)
            not in {("v3", "carbon-intensity"), ("v4", "carbon-intensity"), ("v4", "price-day-ahead")},
            (401, f"Request unauthorized for {kinds}."): endpoint not in self.plan,
            (404, "No data for zone"): query["zone"] == UNKNOWN and query.get(switch[0]) == switch[1],
            (400, "The time range is limited to 10 days"): spans_s > MAX_RANGE_S,
            (403, f"Your plan has forecasts of up to {self.longest_h} h"): int(query.get("horizonHours", "0"))
            > self.longest_h,
        }
        return next((refused(status, error) for (status, error), is_so in reasons.items() if is_so), None)

    def _values(self, request: web.Request, endpoint: str) -> Iterable[dict[str, Any]]:
        latest_s = max(self.grid.measured, default=0.0)
        start_s, end_s = latest_s - DAY_S + 1.0, latest_s
        if endpoint == "past-range":
            start_s, end_s = unix_s(request.query["start"]), unix_s(request.query["end"])
        for starts_s, value in sorted(self.grid.measured.items()):
            measured = starts_s not in self.estimated
            if start_s <= starts_s <= end_s and (measured or request.query.get("disableEstimations") != "true"):
                yield {
                    "zone": request.query["zone"],
                    "carbonIntensity": value,
                    "datetime": iso(starts_s),
                    "updatedAt": iso(self.grid.updated_at_s),
                    "createdAt": iso(starts_s),
                    "emissionFactorType": request.query.get("emissionFactorType", "lifecycle"),
                    "isEstimated": not measured,
                    "estimationMethod": None if measured else "TIME_SLICER_AVERAGE",
                } | self.row

    def _forecast(self, request: web.Request, envelope: dict[str, Any], step_s: float) -> web.Response:
        n_hours = int(request.query["horizonHours"])
        if n_hours not in {6, 24, 48, 72}:
            return refused(400, "horizonHours must be one of 6, 24, 48, 72")
        first_s = min(self.grid.expected, default=0.0)
        last_s = first_s + n_hours * 3_600.0  # the end is included: 25 values for 24 hours
        now = [{"carbonIntensity": 1.0, "datetime": iso(first_s - step_s)}] if self.grid.expected else []
        rows = [{"carbonIntensity": v, "datetime": iso(s)} for s, v in self.grid.expected.items() if s <= last_s]
        return web.json_response(envelope | {"forecast": now + rows, "updatedAt": iso(self.grid.updated_at_s)})

    def _prices(self, request: web.Request, envelope: dict[str, Any]) -> web.Response:
        start_s, end_s = unix_s(request.query["start"]), unix_s(request.query["end"])
        rows = [
            {
                "zone": request.query["zone"],
                "datetime": iso(s),
                "updatedAt": iso(self.grid.updated_at_s),
                "createdAt": iso(self.grid.updated_at_s),
                "value": None if value is None else 1_000.0 * value,
                "unit": f"{self._currency_at(s)}/MWh",
                "source": "nordpool.com",
            }
            for s, value in sorted((self.grid.measured | self.grid.expected).items())
            if start_s <= s < end_s
        ]
        return web.json_response(envelope | {"data": rows + self.extra})

    def _currency_at(self, starts_s: float) -> str:
        by_then = [change_s for change_s in self.currencies if change_s <= starts_s]
        return self.currencies[max(by_then)] if by_then else self.currency


def refused(status: int, error: str) -> web.Response:
    """Return an error as the API writes it."""
    message = "You do not have access to this specific endpoint for this specific zone."
    return web.json_response({"error": error, "message": message if status == 401 else ""}, status=status)
