"""A fake of the Carbon Aware SDK's WebAPI: newest first, 204 if nothing is known, problem reports for errors."""

from typing import Any, Final

from aiohttp import web

from tests.policies.providers.fakes.api import FakeApi, iso, unix_s

TIME: Final = "%Y-%m-%dT%H:%M:%S.0000000+00:00"
MAX_RANGE_S: Final = 10 * 86_400.0


class FakeCarbonAwareSdk(FakeApi):
    """The WebAPI, with Electricity Maps behind it.

    Attributes:
        locations: those that it knows.
        keeps_after_s: its data source's plan gives what it is asked for from later than this on [Unix s].
        refuses_with: the status by which it tells that its data source refuses.
        forecasts: whether its data source has forecasts.
        step_s: of the values [s].
    """

    def __init__(self) -> None:
        super().__init__()
        self.locations = {"eastus", "westus"}
        self.keeps_after_s = 0.0
        self.refuses_with = 401
        self.forecasts = True
        self.step_s = 3_600.0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return emissions or a forecast for a location that it knows."""
        location = request.query.get("location", "")
        if not location:
            errors = {"location": ["The location field is required."]}
            return problem(400, "One or more validation errors occurred.", errors=errors)
        if location.lower() not in self.locations:
            return problem(400, "LocationConversionException", f"Location: '{location}' is not known")
        if request.path == "/emissions/bylocation":
            return self._emissions(request.query)
        if request.path == "/emissions/forecasts/current":
            return self._forecast(location)
        return web.Response(status=404)

    def _emissions(self, query: Any) -> web.Response:  # noqa: ANN401 — a multidict of aiohttp's
        start_s, end_s = unix_s(query["time"]), unix_s(query["toTime"])
        if end_s - start_s > MAX_RANGE_S:
            return problem(400, "ElectricityMapsClientHttpException", "The time range is limited to 10 days")
        if start_s <= self.keeps_after_s:
            return problem(
                self.refuses_with,
                "ElectricityMapsClientHttpException",
                "Request unauthorized for requestType=past-range",
            )
        rows = [
            {"location": "US-MIDA-PJM", "time": iso(s, TIME), "rating": value, "duration": "01:00:00"}
            for s, value in sorted(self.grid.measured.items(), reverse=True)
            if start_s <= s <= end_s
        ]
        return web.json_response(rows) if rows else web.Response(status=204)

    def _forecast(self, location: str) -> web.Response:
        if not self.forecasts:
            return problem(501, "NotImplementedException", "The method or operation is not implemented.")
        rows = [
            {"location": "US-MIDA-PJM", "timestamp": iso(s, TIME), "duration": int(self.step_s // 60), "value": value}
            for s, value in sorted(self.grid.expected.items())
        ]
        forecast = {
            "generatedAt": iso(self.grid.updated_at_s, TIME),
            "requestedAt": iso(self.grid.updated_at_s, TIME),
            "location": self.grid.zone or location,
            "windowSize": int(self.step_s // 60),
            "optimalDataPoints": rows[:1],
            "forecastData": rows,
        }
        return web.json_response([forecast])


def problem(status: int, title: str, detail: str = "", **more: Any) -> web.Response:  # noqa: ANN401 — JSON
    """Return an error as ASP.NET writes it."""
    kind = "https://tools.ietf.org/html/rfc7231#section-6.5.1?of=the&very=long&kind=of&address=that&fills=the&line"
    said = {"type": kind, "title": title, "status": status, "traceId": "00-4bf92f3577b34da6a3ce929d0e0e4736-00"}
    body = said | ({"detail": detail} if detail else {}) | more
    return web.json_response(body, status=status, content_type="application/problem+json")
