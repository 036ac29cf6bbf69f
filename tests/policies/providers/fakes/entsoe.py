"""A fake of ENTSO-E's Transparency Platform: whole days in UTC periods, prices left out where they repeat."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from aiohttp import web

from tests.policies.providers.fakes.api import FakeApi, iso

TOKEN: Final = "t0k3n-0f-3nts03"
PERIOD: Final = "%Y%m%d%H%M"
MAX_SERIES: Final = 100
STEPS_S: Final = {"PT15M": 900.0, "PT60M": 3_600.0}
_ZONE: Final = ZoneInfo("Europe/Berlin")
_NAMESPACE: Final = "urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3"
_ACKNOWLEDGEMENT: Final = """<?xml version="1.0" encoding="UTF-8"?>
<Acknowledgement_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-1:acknowledgementdocument:7:0">
  <mRID>0985f391-49af-4</mRID><createdDateTime>2026-03-11T06:29:10Z</createdDateTime>
  <Reason><code>999</code><text>{text}</text></Reason>
</Acknowledgement_MarketDocument>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Auction:
    """One of a zone's auctions: what its prices are, times those of the grid, from which day on it was held, and how.

    `is_held` is whether it has prices for the last day that the grid knows.
    """

    sequence: int = 1
    contract: str = "A01"
    factor: float = 1.0
    resolution: str = "PT15M"
    is_held: bool = True


class FakeEntsoe(FakeApi):
    """Days of prices, each a series of its own for each auction.

    Attributes:
        auctions: in the order of the document, which is not that of their numbers.
        currency, measure, curve: how prices are given.
        currencies: those of single days.
        text: an acknowledgement to give instead of prices.
        body: an answer to give instead of all that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.auctions: tuple[Auction, ...] = (Auction(),)
        self.currency, self.measure, self.curve = "EUR", "MWH", "A03"
        self.currencies: dict[date, str] = {}
        self.text = ""
        self.body = b""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return a document, or the refusal of what the real one refuses."""
        query = request.query
        if query.get("securityToken") != TOKEN:
            return web.Response(status=401, text="Unauthorized", content_type="text/html")
        if self.body:
            return web.Response(body=self.body, content_type="application/xml")
        text, status = self._document(request)
        return web.Response(text=text, status=status, content_type="application/xml")

    def _document(self, request: web.Request) -> tuple[str, int]:
        """Return a document and its status."""
        query = request.query
        first_s, last_s = (_unix_s(query[key]) for key in ("periodStart", "periodEnd"))
        series = list(self._series(first_s, last_s, self.grid.zone or query["in_Domain"]))
        fault = ""
        if query.get("documentType") != "A44" or query["in_Domain"] != query["out_Domain"]:
            fault = "The combination is not valid"
        elif not 0 < last_s - first_s <= 366 * 86_400:
            fault = "Delivered time interval is not valid"
        elif len(series) > MAX_SERIES:
            fault = "Amount of requested data exceeds allowed limit"
        if fault:
            return _ACKNOWLEDGEMENT.format(text=fault), 400
        if self.text or not series:
            text = self.text or "No matching data found for Data item ENERGY_PRICES [12.1.D]."
            return _ACKNOWLEDGEMENT.format(text=text), 200
        head = (
            f'<?xml version="1.0" encoding="utf-8"?><Publication_MarketDocument xmlns="{_NAMESPACE}"><type>A44</type>'
        )
        return f"{head}{''.join(series)}</Publication_MarketDocument>", 200

    def _series(self, first_s: float, last_s: float, domain: str) -> Iterator[str]:
        prices = {s: price for s, price in {**self.grid.measured, **self.grid.expected}.items() if price is not None}
        days = sorted({datetime.fromtimestamp(s, _ZONE).date() for s in prices})
        for day, auction in itertools.product(days, self.auctions):
            start_s, end_s = _midnight_s(day), _midnight_s(day + timedelta(days=1))
            if start_s >= last_s or end_s <= first_s or not (auction.is_held or day < days[-1]):
                continue
            of_day = {s: 1e3 * auction.factor * price for s, price in prices.items() if start_s <= s < end_s}
            periods = "".join(self._period(run, auction.resolution) for run in _runs(of_day, auction.resolution))
            yield (
                f"<TimeSeries><mRID>1</mRID><auction.type>A01</auction.type>"
                f'<in_Domain.mRID codingScheme="A01">{domain}</in_Domain.mRID>'
                f'<out_Domain.mRID codingScheme="A01">{domain}</out_Domain.mRID>'
                f"<contract_MarketAgreement.type>{auction.contract}</contract_MarketAgreement.type>"
                f"<currency_Unit.name>{self.currencies.get(day, self.currency)}</currency_Unit.name>"
                f"<price_Measure_Unit.name>{self.measure}</price_Measure_Unit.name>"
                f"<classificationSequence_AttributeInstanceComponent.position>{auction.sequence}"
                f"</classificationSequence_AttributeInstanceComponent.position>"
                f"<curveType>{self.curve}</curveType>{periods}</TimeSeries>"
            )

    def _period(self, run: list[tuple[float, float]], resolution: str) -> str:
        step_s = STEPS_S[resolution]
        points, before = [], None
        for position, (_, price) in enumerate(run, start=1):
            if price != before or self.curve != "A03":
                points.append(f"<Point><position>{position}</position><price.amount>{price}</price.amount></Point>")
            before = price
        start, end = (iso(s, "%Y-%m-%dT%H:%MZ") for s in (run[0][0], run[-1][0] + step_s))
        interval = f"<timeInterval><start>{start}</start><end>{end}</end></timeInterval>"
        return f"<Period>{interval}<resolution>{resolution}</resolution>{''.join(points)}</Period>"


def _runs(prices: dict[float, float], resolution: str) -> list[list[tuple[float, float]]]:
    """Return the prices that start with a step, cut where one is missing."""
    step_s = STEPS_S[resolution]
    runs: list[list[tuple[float, float]]] = []
    for starts_s, price in sorted(prices.items()):
        if starts_s % step_s:
            continue
        if not runs or runs[-1][-1][0] + step_s != starts_s:
            runs.append([])
        runs[-1].append((starts_s, price))
    return runs


def _midnight_s(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=_ZONE).timestamp()


def _unix_s(text: str) -> float:
    return datetime.strptime(text, PERIOD).replace(tzinfo=UTC).timestamp()
