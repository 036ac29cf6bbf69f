"""A fake of the Energy-Charts API: parallel columns, errors as plain text, 404 without values."""

from typing import Final

from aiohttp import web

from tests.policies.providers.fakes.api import FakeApi

COUNTRIES: Final = ("de", "fr", "ch")
LICENCE: Final = "CC BY 4.0 (creativecommons.org/licenses/by/4.0) from Bundesnetzagentur | SMARD.de"


class FakeEnergyCharts(FakeApi):
    """The API.

    Attributes:
        n_lost: how many values the last column lacks.
        unit: what the prices are in.
        is_strict: whether a query without any value is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.n_lost = 0
        self.unit = "EUR / MWh"
        self.is_strict = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return the columns from `start` to `end`, both included."""
        start, end = request.query.get("start", ""), request.query.get("end", "")
        if not start.isdecimal() or not end.isdecimal() or int(start) > int(end):
            return web.Response(status=400, text="Invalid start or end")
        grid = self.grid
        times = [s for s in sorted({*grid.measured, *grid.expected}) if int(start) <= s <= int(end)]
        known = [grid.measured.get(s) is not None or grid.expected.get(s) is not None for s in times]
        if self.is_strict and not any(known):
            return web.json_response({"detail": "no content available"}, status=404)
        match request.path:
            case "/co2eq":
                if (country := request.query.get("country")) not in COUNTRIES:
                    text = f"'{country}' is not the code for an available country. Please refer to the API doc"
                    return web.Response(status=400, text=text)
                columns = {
                    "co2eq": [grid.measured.get(s) for s in times],
                    "co2eq_forecast": [grid.expected.get(s) for s in times],
                }
                rest: dict[str, object] = {}
            case "/price" if request.query.get("bzn") in {"DE-LU", "CH"}:
                prices = [grid.measured.get(s, grid.expected.get(s)) for s in times]
                columns = {"price": [None if price is None else price * 1_000 for price in prices]}
                rest = {"license_info": LICENCE, "unit": self.unit}
            case _:
                return web.json_response({"detail": "Not Found"}, status=404)
        *_, last = columns
        columns[last] = columns[last][: len(times) - self.n_lost]
        return web.json_response({**rest, "unix_seconds": [int(s) for s in times], **columns, "deprecated": False})
