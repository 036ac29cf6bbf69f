"""A fake of WattTime's API, v3: logins, tokens that expire, HTML pages for refusals."""

import base64
from typing import Any, Final

from aiohttp import web

from policies.vocabulary.units import intensity_g_per_kwh
from tests.policies.providers.fakes.api import NGINX_403, FakeApi, iso, unix_s

USERNAME: Final = "trainer"
PASSWORD: Final = "wt/pass:word+9"
STEP_S: Final = 300.0
MAX_RANGE_S: Final = 32 * 86_400.0
TIME: Final = "%Y-%m-%dT%H:%M:%S+00:00"
LB_PER_MWH: Final = 1.0 / intensity_g_per_kwh(1.0)


class FakeWattTime(FakeApi):
    """The API.

    Attributes:
        tokens: the tokens that are good.
        n_logins: how many were given.
        meta: what every answer says of itself, beside the usual.
        imputed: the starts of the values that rest on imputed data [Unix s].
        covered: the regions that the plan has.
        longest_h: the longest forecast that the plan has [h].
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens: set[str] = set()
        self.n_logins = 0
        self.meta: dict[str, Any] = {}
        self.imputed: set[float] = set()
        self.covered = {"CAISO_NORTH"}
        self.longest_h = 72

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return a token, or what it opens."""
        if request.path == "/login":
            return self._log_in(request.headers.get("Authorization", ""))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return web.Response(status=403, text=NGINX_403, content_type="text/html")
        if request.query["region"] not in self.covered:
            return invalid(403, f"Invalid scope. Access not authorized for {token}")
        endpoint = {"/v3/forecast": self._forecast, "/v3/historical": self._historical}.get(request.path)
        return endpoint(request.query) if endpoint else invalid(404, "Not found")

    def _log_in(self, authorization: str) -> web.Response:
        wanted = base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
        if authorization != f"Basic {wanted}":
            return web.Response(status=403, text=NGINX_403, content_type="text/html")
        self.n_logins += 1
        token = f"eyJ.token-{self.n_logins}.sig"
        self.tokens.add(token)
        return web.json_response({"token": token})

    def _forecast(self, query: Any) -> web.Response:  # noqa: ANN401 — a multidict of aiohttp's
        n_hours = int(query["horizon_hours"])
        if not 0 <= n_hours <= self.longest_h:
            return invalid(400, f"horizon_hours must be between 0 and {self.longest_h}")
        latest_s = max(self.grid.measured, default=0.0)
        known = self.grid.expected | ({latest_s: self.grid.measured[latest_s]} if self.grid.measured else {})
        rows = [point(s, v) for s, v in sorted(known.items()) if s <= latest_s + n_hours * 3_600.0]
        return self._data(query, rows, {"generated_at": iso(latest_s, TIME), "generated_at_period_seconds": 300})

    def _historical(self, query: Any) -> web.Response:  # noqa: ANN401 — a multidict of aiohttp's
        start_s, end_s = unix_s(query["start"]), unix_s(query["end"])
        if end_s - start_s > MAX_RANGE_S:
            return invalid(400, "The time between start and end must not exceed 32 days")
        rows = [point(s, v) for s, v in sorted(self.grid.measured.items()) if start_s <= s <= end_s]
        if query.get("include_imputed_marker") == "true":
            rows = [row | {"imputed_data_used": unix_s(row["point_time"]) in self.imputed} for row in rows]
        return self._data(query, rows, {"warnings": []})

    def _data(self, query: Any, rows: list[dict[str, Any]], more: dict[str, Any]) -> web.Response:  # noqa: ANN401
        meta = {
            "region": self.grid.zone or query["region"],
            "signal_type": query["signal_type"],
            "units": "lbs_co2_per_mwh",
            "data_point_period_seconds": 300,
            "model": {"date": "2023-03-01"},
        }
        return web.json_response({"data": rows, "meta": meta | more | self.meta})


def point(starts_s: float, value_g_per_kwh: float | None) -> dict[str, Any]:
    """Return a value in the unit of the API."""
    value = None if value_g_per_kwh is None else value_g_per_kwh * LB_PER_MWH
    return {"point_time": iso(starts_s, TIME), "value": value}


def invalid(status: int, message: str) -> web.Response:
    """Return an error as the API tells it."""
    return web.json_response({"error": "Invalid query parameters", "message": message}, status=status)
