"""A fake of Energinet's Energi Data Service: newest first, Danish time by default, no offsets."""

import json
import re
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from aiohttp import web

from tests.policies.providers.fakes.api import FakeApi, iso

TIME: Final = "%Y-%m-%dT%H:%M:%S"
DENMARK: Final = ZoneInfo("Europe/Copenhagen")
DKK_PER_EUR: Final = 7.46
AREAS: Final = ("DK1", "DK2", "SE4")
Record = dict[str, Any]


class FakeEnerginet(FakeApi):
    """The API."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return the records from `start` on, newest first: 100 of them, unless `limit` says otherwise."""
        dataset = request.path.removeprefix("/dataset/")
        if dataset not in {"CO2Emis", "CO2EmisProg", "DayAheadPrices"}:
            return refused(404, "Dataset not found")
        query = request.query
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d", query.get("start", "")):
            return refused(400, "start: must be yyyy-MM-ddTHH:mm")
        zone = ZoneInfo("UTC") if query.get("timezone") == "UTC" else DENMARK
        start_s = datetime.fromisoformat(query["start"]).replace(tzinfo=zone).timestamp()
        records = self._records(dataset, start_s, json.loads(query["filter"])["PriceArea"])
        columns = query["columns"].split(",")
        if records and (unknown := set(columns) - set(records[0])):
            return refused(400, f"columns: {unknown} not found")
        limit = int(query.get("limit", 100)) or len(records)
        records_shown = [{column: one[column] for column in columns} for one in records[:limit]]
        return web.json_response({"total": len(records), "limit": limit, "dataset": dataset, "records": records_shown})

    def _records(self, dataset: str, start_s: float, areas: list[str]) -> list[Record]:
        values = self.grid.measured
        if dataset == "DayAheadPrices":
            values = self.grid.measured | self.grid.expected
        elif dataset == "CO2EmisProg":  # what was forecast of the past stays there; here it was no good
            values = {**dict.fromkeys(self.grid.measured, 1.0), **self.grid.expected}
        record = price if dataset == "DayAheadPrices" else emission
        return [
            record(s, values[s]) | {"PriceArea": self.grid.zone or area}
            for s in sorted(values, reverse=True)
            if s >= start_s
            for area in areas
            if area in AREAS
        ]


def emission(starts_s: float, value: float | None) -> Record:
    return times(starts_s, "Minutes5") | {"CO2Emission": value}


def price(starts_s: float, value: float | None) -> Record:
    eur_per_mwh = None if value is None else 1_000.0 * value
    dkk_per_mwh = None if value is None else DKK_PER_EUR * 1_000.0 * value
    return times(starts_s, "Time") | {"DayAheadPriceEUR": eur_per_mwh, "DayAheadPriceDKK": dkk_per_mwh}


def times(starts_s: float, name: str) -> Record:
    here = datetime.fromtimestamp(starts_s, DENMARK).strftime(TIME)
    return {f"{name}UTC": iso(starts_s, TIME), f"{name}DK": here}


def refused(status: int, message: str) -> web.Response:
    return web.json_response({"statusCode": status, "message": message}, status=status)
