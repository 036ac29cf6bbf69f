"""A fake of NESO's Carbon Intensity API: the paths, checks, quirks and errors of the real one."""

import re
from datetime import timedelta
from typing import Any, Final

from aiohttp import web

from tests.policies.providers.fakes.api import FakeApi, iso, unix_s

STEP_S: Final = 1_800.0
MINUTE: Final = "%Y-%m-%dT%H:%MZ"
TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\dZ"
PATH: Final = re.compile(
    rf"(?P<regional>/regional)?/intensity/(?P<start>{TIME})/(?P<end>{TIME}|fw24h|fw48h|pt24h)"
    r"(?:/regionid/(?P<region>[1-9]|1[0-7])|/postcode/(?P<postcode>[A-Z]{1,2}\d[0-9A-Z]?))?"
)
MAX_SPAN_S: Final = timedelta(days=14).total_seconds()
SPANS_S: Final = {"fw24h": 86_400.0, "fw48h": 172_800.0, "pt24h": -86_400.0}


class FakeNeso(FakeApi):
    """The API.

    Attributes:
        region: the region that its answers name; None for the one that was asked for.
        mixes_up: whether it answers for a region where the country was asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.region: int | None = None
        self.mixes_up = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return the slots that were asked for, and the one that ends at the start."""
        asked = PATH.fullmatch(request.path)
        if asked is None or bool(asked["regional"]) != bool(asked["region"] or asked["postcode"]):
            return refused("Please enter a valid path e.g. /intensity/")
        start_s, end_s = span_s(asked["start"], asked["end"])
        if end_s - start_s > MAX_SPAN_S:
            return refused("The date range must not exceed 14 days.")
        slots = self._slots(start_s, end_s, measures=not asked["regional"])
        if not asked["regional"] and not self.mixes_up:
            return web.json_response({"data": slots})
        region = {"regionid": 3, "dnoregion": "Electricity North West", "shortname": "North West England"}
        if asked["postcode"]:
            region["postcode"] = self.grid.zone or asked["postcode"]
        else:
            region["regionid"] = self.region or int(asked["region"] or 18)
        return web.json_response({"data": region | {"data": slots}})

    def _slots(self, start_s: float, end_s: float, *, measures: bool) -> list[dict[str, Any]]:
        """Return the slots that end from `start_s` to `end_s`, both included; twice the first one of them."""
        known = sorted({*self.grid.measured, *self.grid.expected})
        slots = [self._slot(s, measures=measures) for s in known if start_s <= s + STEP_S <= end_s]
        return [*slots[:1], *slots]

    def _slot(self, starts_s: float, *, measures: bool) -> dict[str, Any]:
        actual, forecast = self.grid.measured.get(starts_s), self.grid.expected.get(starts_s)
        if not measures:  # the forecast of the past is the last one that was made, which here came true
            return slot(starts_s, {"forecast": actual if forecast is None else forecast, "index": "low"}) | {
                "generationmix": [{"fuel": "gas", "perc": 43.6}]
            }
        return slot(starts_s, {"forecast": forecast, "actual": actual, "index": "low"})


def slot(starts_s: float, intensity: dict[str, Any]) -> dict[str, Any]:
    return {"from": iso(starts_s, MINUTE), "to": iso(starts_s + STEP_S, MINUTE), "intensity": intensity}


def span_s(start: str, end: str) -> tuple[float, float]:
    start_s = unix_s(start)
    if end in SPANS_S:
        other_s = start_s + SPANS_S[end]
        return min(start_s, other_s), max(start_s, other_s)
    return start_s, unix_s(end)


def refused(message: str) -> web.Response:
    return web.json_response({"error": {"code": "400 Bad Request", "message": message}}, status=400)
