"""A fake of the EIA's API v2, `electricity/rto/fuel-type-data`: hours named by their end, values as text, pages."""

from datetime import datetime
from typing import Final

from aiohttp import web

from tests.policies.providers.fakes.api import FakeApi, iso, unix_s

KEY: Final = "k3y-0f-th3-3ia"
PERIOD: Final = "%Y-%m-%dT%H"
HOUR_S: Final = 3_600.0
COAL_G_PER_KWH: Final = 820.0
WIND_G_PER_KWH: Final = 11.0
GENERATED_MWH: Final = 10_000.0
MAX_ROWS: Final = 5_000


class FakeEia(FakeApi):
    """Coal and wind that make the intensities of the grid, and a battery and pumps that must not count.

    Attributes:
        generated: what fuels generated in an hour, by its start and by fuel [MWh], beside or instead of that.
        error: an error that comes with the status 200.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generated: dict[float, dict[str, object]] = {}
        self.error: dict[str, object] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return a page of rows, or the refusal of what the real one refuses."""
        query = request.query
        if query.get("api_key") != KEY:
            said = {"code": "API_KEY_INVALID", "message": "An invalid api_key was supplied. Get one at https://eia"}
            return web.json_response({"error": said}, status=403)
        if self.error is not None:
            return web.json_response(self.error)
        if fault := self._fault(request):
            return web.json_response({"error": fault, "code": 400}, status=400)
        rows = self._rows(query["facets[respondent][]"], unix_s(query["start"] + ":00"), unix_s(query["end"] + ":00"))
        rows.sort(key=lambda row: str(row["period"]), reverse=query.get("sort[0][direction]") == "desc")
        offset, length = int(query.get("offset", "0")), min(int(query.get("length", MAX_ROWS)), MAX_ROWS)
        page = {
            "total": str(len(rows)),
            "dateFormat": 'YYYY-MM-DD"T"HH24',
            "frequency": "hourly",
            "data": rows[offset : offset + length],
        }
        return web.json_response({"response": page, "request": {"command": request.path}, "apiVersion": "2.1.8"})

    def _fault(self, request: web.Request) -> str:
        query = request.query
        if request.path != "/v2/electricity/rto/fuel-type-data/data/":
            return f"no such route: {request.path}"
        if query.get("frequency") != "hourly" or query.get("data[0]") != "value":
            return "Invalid frequency or data: local-hourly times are no UTC times"
        if query.get("sort[0][column]") != "period" or query.get("sort[1][column]") != "fueltype":
            return "pages without an order"
        try:
            _ = [datetime.strptime(query[key], PERIOD) for key in ("start", "end")]  # noqa: DTZ007 — its form alone
        except (KeyError, ValueError) as error:
            return f"Invalid start or end: {error}"
        return ""

    def _rows(self, respondent: str, first_s: float, last_s: float) -> list[dict[str, object]]:
        starts_s = sorted({*self.grid.measured, *self.generated}, reverse=True)
        return [
            {
                "period": iso(starts_s + HOUR_S, PERIOD),
                "respondent": self.grid.zone or respondent,
                "respondent-name": "Somebody",
                "fueltype": fuel,
                "type-name": fuel.title(),
                "value": value,
                "value-units": "megawatthours",
            }
            for starts_s in starts_s
            if first_s <= starts_s + HOUR_S <= last_s
            for fuel, value in sorted(self._mix(starts_s).items())
        ]

    def _mix(self, starts_s: float) -> dict[str, object]:
        mix: dict[str, object] = {}
        if starts_s in self.grid.measured:
            mix = {"BAT": "-700", "PS": "800"} | _mix_of(self.grid.measured[starts_s])
        return mix | self.generated.get(starts_s, {})


def _mix_of(intensity_g_per_kwh: float | None) -> dict[str, object]:
    """Return how much of coal and wind makes an intensity: nothing for 0, less for less, null for None."""
    if intensity_g_per_kwh is None or intensity_g_per_kwh <= 0:
        value = None if intensity_g_per_kwh is None else str(intensity_g_per_kwh)
        return {"COL": value, "WND": value}
    coal_ratio = (intensity_g_per_kwh - WIND_G_PER_KWH) / (COAL_G_PER_KWH - WIND_G_PER_KWH)
    return {"COL": str(coal_ratio * GENERATED_MWH), "WND": (1.0 - coal_ratio) * GENERATED_MWH}
