"""ENTSO-E's Transparency Platform: day-ahead prices of Europe's bidding zones.

A free token is needed: register at https://transparency.entsoe.eu, ask transparency@entsoe.eu for access to the
"Restful API", and create a token in the account's settings. Source to name: ENTSO-E Transparency Platform. Prices are
known until the end of the day, by the zone's own clock, and from about 13:00 CET until the end of the next one.

>>> eic_code("DE-LU"), eic_code("10YFR-RTE------C"), eic_code("10YFR-RTE------D")
('10Y1001A1001A82H', '10YFR-RTE------C', None)
"""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import aiohttp

from policies.providers.base import (
    PriceSettings,
    SignalDataError,
    SignalError,
    SignalLimitedError,
    Url,
    Variable,
    Zone,
)
from policies.providers.http import HttpClient
from policies.providers.series import LOOK_BACK_S, Point, single_unit, split_range_s
from policies.providers.sources.entsoe_document import DayAhead, PricePeriod, parse_day_ahead
from policies.providers.zone_provider import ZoneProvider
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, price_per_kwh
from publishers.shared.files.secret_file import read_secret

EIC: Final[Mapping[str, str]] = {
    "AT": "10YAT-APG------L",
    "BE": "10YBE----------2",
    "BG": "10YCA-BULGARIA-R",
    "CH": "10YCH-SWISSGRIDZ",
    "CZ": "10YCZ-CEPS-----N",
    "DE-LU": "10Y1001A1001A82H",
    "DK1": "10YDK-1--------W",
    "DK2": "10YDK-2--------M",
    "EE": "10Y1001A1001A39I",
    "ES": "10YES-REE------0",
    "FI": "10YFI-1--------U",
    "FR": "10YFR-RTE------C",
    "GR": "10YGR-HTSO-----Y",
    "HR": "10YHR-HEP------M",
    "HU": "10YHU-MAVIR----U",
    "IE-SEM": "10Y1001A1001A59C",
    "IT-CALA": "10Y1001C--00096J",
    "IT-CNOR": "10Y1001A1001A70O",
    "IT-CSUD": "10Y1001A1001A71M",
    "IT-NORD": "10Y1001A1001A73I",
    "IT-SARD": "10Y1001A1001A74G",
    "IT-SICI": "10Y1001A1001A75E",
    "IT-SUD": "10Y1001A1001A788",
    "LT": "10YLT-1001A0008Q",
    "LV": "10YLV-1001A00074",
    "ME": "10YCS-CG-TSO---S",
    "MK": "10YMK-MEPSO----8",
    "NL": "10YNL----------L",
    "NO1": "10YNO-1--------2",
    "NO2": "10YNO-2--------T",
    "NO3": "10YNO-3--------J",
    "NO4": "10YNO-4--------9",
    "NO5": "10Y1001A1001A48H",
    "PL": "10YPL-AREA-----S",
    "PT": "10YPT-REN------W",
    "RO": "10YRO-TEL------P",
    "RS": "10YCS-SERBIATSOV",
    "SE1": "10Y1001A1001A44P",
    "SE2": "10Y1001A1001A45N",
    "SE3": "10Y1001A1001A46L",
    "SE4": "10Y1001A1001A47J",
    "SI": "10YSI-ELES-----O",
    "SK": "10YSK-SEPS-----K",
}
"""Bidding zones by name, from ENTSO-E's list of areas in the guide to its API,
https://transparencyplatform.zendesk.com, and its register of codes,
https://www.entsoe.eu/data/energy-identification-codes-eic/."""
_FORM: Final = re.compile(r"[0-9A-Z-]{15}[0-9A-Z]")
_CHARACTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-"


def eic_code(zone: str) -> str | None:
    """Return the EIC code of a zone given by name or by code; None if it is neither."""
    code = EIC.get(zone, zone)
    return code if _FORM.fullmatch(code) and code[-1] == _check_character(code) else None


def _check_character(code: str) -> str:
    """Return the check character of a code (ENTSO-E's EIC reference manual), which detects any single misprint."""
    weighed = sum((16 - i) * _CHARACTERS.index(character) for i, character in enumerate(code[:15]))
    return _CHARACTERS[36 - (weighed - 1) % 37]


STEP_S: Final = 3_600.0
"""New prices come once a day, at times late: polling once an hour is enough."""
CHUNK_S: Final = 30 * DAY_S
"""An answer holds at most 100 series: one a day, and another if there is a second auction."""
MARKET_SEQUENCE: Final = 1
"""The coupled market of Europe; further auctions of a zone belong to other exchanges, with other prices."""
BAN_S: Final = 600.0
"""More than 400 requests a minute are answered by a ban of ten minutes."""


class EntsoeSettings(PriceSettings, frozen=True, kw_only=True):
    """ENTSO-E: day-ahead prices.

    Attributes:
        zone: a bidding zone, such as DE-LU, FR or NO2, or its EIC code.
        url: the address of the API.
        token_file: a file with the security token.
        token_env: the environment variable with the token, if no file is named.
    """

    zone: Zone
    url: Url = "https://web-api.tp.entsoe.eu/api"
    token_file: str = ""
    token_env: Variable = "ENTSOE_TOKEN"  # noqa: S105 — the variable's name

    def faults(self) -> list[str]:
        """Return a fault if the zone is neither a known name nor a valid EIC code."""
        if eic_code(self.zone) is not None:
            return []
        return [f"zone = {self.zone!r}: must be an EIC code of 16 characters, or one of {', '.join(EIC)}"]


class _MarketPrices(NamedTuple):
    points: list[Point]
    step_s: float
    unit: str


class EntsoeProvider(ZoneProvider):
    """The day-ahead prices of a bidding zone.

    Raises:
        ValueError: there is no token, or no such zone.
    """

    def __init__(self, settings: EntsoeSettings, session: aiohttp.ClientSession) -> None:
        eic = eic_code(settings.zone)
        if eic is None:
            raise ValueError("; ".join(settings.faults()))
        super().__init__(name=f"entsoe {settings.zone}", kind="price", zone=settings.zone, step_s=STEP_S)
        self._eic = eic
        self._url = settings.url
        self._token = read_secret(key="token", file=settings.token_file, variable=settings.token_env)
        self._http = HttpClient(session, name=self.name, secrets=[self._token])

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the prices from the one that holds at `since_s` to the one that holds now, of at most 60 days."""
        since_s = max(since_s, now_s - LOOK_BACK_S)
        ranges_s = split_range_s(since_s, now_s, longest_s=CHUNK_S)
        answers = [await self._prices(start_s, end_s, now_s=now_s) for start_s, end_s in ranges_s]
        periods = [period for answer in answers for period in answer.periods]
        others = {
            "series of intraday auctions": sum(answer.n_other_series for answer in answers),
            f"of auctions other than sequence {MARKET_SEQUENCE}, the coupled market": sum(
                len(period.by_position) for period in periods if period.sequence != MARKET_SEQUENCE
            ),
        }
        until_s = math.nextafter(now_s, math.inf)
        prices = self._market_prices(periods, since_s=since_s, until_s=until_s, latest=True)
        return self._history(
            prices.points, since_s=since_s, now_s=now_s, step_s=prices.step_s, unit=prices.unit, others=others
        )

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the published prices from the current one up to `until_s`."""
        answer = await self._prices(now_s, until_s, now_s=now_s)
        prices = self._market_prices(answer.periods, since_s=now_s, until_s=until_s, latest=False)
        return self._signal(prices.points, unit=prices.unit, step_s=prices.step_s, now_s=now_s)

    async def _prices(self, start_s: float, end_s: float, *, now_s: float) -> DayAhead:
        """Return the prices of all days that a time range touches: the API returns whole days."""
        query = {
            "documentType": "A44",
            "contract_MarketAgreement.type": "A01",
            "in_Domain": self._eic,
            "out_Domain": self._eic,
            "periodStart": _hour(start_s // STEP_S * STEP_S),
            "periodEnd": _hour((end_s // STEP_S + 1) * STEP_S),
            "securityToken": self._token.reveal(),
        }
        try:
            body = await self._http.get(self._url, now_s=now_s, params=query)
        except SignalLimitedError as error:
            raise SignalLimitedError(str(error), retry_after_s=error.retry_after_s or BAN_S) from error
        try:
            return parse_day_ahead(body, eic=self._eic, source=self.name)
        except SignalError:  # again with the token masked before the text is cut: half a token is a secret, too
            masked = self._token.masked(body.decode("utf-8", "replace"))
            return parse_day_ahead(masked.encode(), eic=self._eic, source=self.name)

    def _market_prices(
        self, periods: list[PricePeriod], *, since_s: float, until_s: float, latest: bool
    ) -> _MarketPrices:
        """Return the prices that hold after `since_s` and start before `until_s`, which may be none.

        Only the first auction counts; days that lack it are missing: in Germany and Austria the second one is that of
        another exchange, earlier, at other prices. Of two currencies in succession the latest counts, or the first.
        The step is the finest of all periods: hourly prices are repeated for each quarter where some periods have
        quarters, so that a zone that changes to quarters keeps one series.
        """
        periods = [
            period
            for period in periods
            if period.sequence == MARKET_SEQUENCE and period.ends_s > since_s and period.starts_s < until_s
        ]
        if not periods:
            return _MarketPrices([], STEP_S, "")
        currency = single_unit(
            ((period.starts_s, period.currency) for period in periods), source=self.name, latest=latest
        )
        if not currency:
            raise SignalDataError(f"{self.name}: the prices have no currency")
        periods = [period for period in periods if period.currency == currency]
        step_s = min(period.step_s for period in periods)
        # Of two prices for one time, the later one wins: the finer one.
        coarse_first = sorted(periods, key=lambda period: -period.step_s)
        points = [
            point
            for period in coarse_first
            for point in _points(period, step_s)
            if point.starts_s + step_s > since_s and point.starts_s < until_s
        ]
        return _MarketPrices(points, step_s, f"{currency}/kWh")


def _points(prices: PricePeriod, step_s: float) -> Iterator[Point]:
    """Yield the known prices of a period, in steps that may be finer than its own."""
    for position, price in enumerate(prices.by_position):
        if price is not None:
            starts_s = prices.starts_s + position * prices.step_s
            for part in range(round(prices.step_s / step_s)):
                yield Point(starts_s + part * step_s, price_per_kwh(price))


def _hour(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y%m%d%H%M")
