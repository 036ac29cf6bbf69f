"""A fake of aWATTar's API: hours in milliseconds, only the next day unless an end is named."""

from aiohttp import web

from tests.policies.providers.fakes.api import FakeApi

HOUR_S = 3_600.0


class FakeAwattar(FakeApi):
    """The API.

    Attributes:
        unit: what it says its prices are in.
        step_s: how long a price holds [s].
    """

    def __init__(self) -> None:
        super().__init__()
        self.unit = "Eur/MWh"
        self.step_s = HOUR_S

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return the prices that start from `start` on and before `end`, which are a day apart by default."""
        if request.path != "/v1/marketdata":
            return web.Response(status=404, text="Not Found")
        start = request.query.get("start", "")
        end = request.query.get("end", f"{start}86400000")
        if not (len(start) == len(end) == len("1792929000000")):
            return web.Response(status=400, text="start and end are in milliseconds")
        grid = self.grid.measured | self.grid.expected
        data = [
            {
                "start_timestamp": round(1_000 * s),
                "end_timestamp": round(1_000 * (s + self.step_s)),
                "marketprice": None if price is None else 1_000 * price,
                "unit": self.unit,
            }
            for s, price in sorted(grid.items())
            if int(start) <= 1_000 * s < int(end)
        ]
        return web.json_response({"object": "list", "data": data, "url": "/at/v1/marketdata"})
