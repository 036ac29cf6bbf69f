"""A fake of Octopus Energy's API: rates by tariff, newest first, page by page."""

import re
from typing import Any, Final

from aiohttp import web

from tests.policies.providers.fakes.api import FakeApi, iso, unix_s

PRODUCT: Final = "AGILE-24-10-01"
STEP_S: Final = 1_800.0
SECOND: Final = "%Y-%m-%dT%H:%M:%SZ"
PATH: Final = re.compile(
    rf"/v1/products/{PRODUCT}/electricity-tariffs/E-1R-{PRODUCT}-(?P<region>[A-HJ-NP])/standard-unit-rates/"
)
MAX_PAGE_SIZE: Final = 1_500
VAT_RATIO: Final = 1.05
Rate = dict[str, Any]


class FakeOctopus(FakeApi):
    """The API. The grid's values include VAT.

    Attributes:
        rates: what it gives instead of the grid's values, or None.
        is_endless: whether there is always a next page.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[Rate] | None = None
        self.is_endless = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return a page of the rates that hold between `period_from` and `period_to`."""
        if not PATH.fullmatch(request.path):
            return web.json_response({"detail": "Not found."}, status=404)
        query = request.query
        try:
            start_s, end_s = unix_s(query["period_from"]), unix_s(query["period_to"])
        except ValueError:
            return web.json_response({"period_from": ["Enter a valid date/time."]}, status=400)
        # Without an offset it would be London's time, and an hour off in summer.
        assert query["period_from"].endswith("Z")
        assert query["period_to"].endswith("Z")
        grid = self.grid.measured | self.grid.expected
        rates = [rate(s, grid[s]) for s in sorted(grid, reverse=True) if start_s < s + STEP_S and s < end_s]
        rates = rates if self.rates is None else self.rates
        size, page = min(int(query.get("page_size", 100)), MAX_PAGE_SIZE), int(query.get("page", 1))
        is_last = page * size >= len(rates) and not self.is_endless
        following = f"https://api.octopus.energy{request.path}?page={page + 1}"
        return web.json_response(
            {
                "count": len(rates),
                "next": None if is_last else following,
                "previous": None,
                "results": rates[(page - 1) * size : page * size],
            }
        )


def rate(starts_s: float, pounds_per_kwh: float | None, *, ends_s: float | None = None, **changes: object) -> Rate:
    pence = None if pounds_per_kwh is None else 100 * pounds_per_kwh
    return {
        "value_exc_vat": None if pence is None else pence / VAT_RATIO,
        "value_inc_vat": pence,
        "valid_from": iso(starts_s, SECOND),
        "valid_to": iso(starts_s + STEP_S if ends_s is None else ends_s, SECOND),
        "payment_method": None,
        **changes,
    }
