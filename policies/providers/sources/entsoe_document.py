"""ENTSO-E's document of day-ahead prices (A44): untrusted XML, parsed into periods of prices.

Document type declarations are rejected, which prevents entity expansion attacks without another dependency.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Never
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from policies.providers.base import SignalDataError, SignalRefusedError
from policies.providers.series import parse_iso_s

NO_DATA: Final = "No matching data"
DAY_AHEAD: Final = "A01"
"""The contract type; A07 means intraday auctions, whose prices come in documents of the same type."""
VARIABLE_BLOCKS: Final = "A03"
"""The curve type that leaves out prices equal to the one before."""
MAX_POSITIONS: Final = 10_000
_RESOLUTION_S: Final = {"PT15M": 900.0, "PT30M": 1_800.0, "PT60M": 3_600.0, "PT1H": 3_600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PricePeriod:
    """The prices of a period, mostly a day: `by_position`, per MWh, for `step_s` [s] each, None if missing.

    A zone may have several auctions: `sequence` 1 is the coupled market of Europe.
    """

    currency: str
    sequence: int
    starts_s: float
    step_s: float
    by_position: tuple[float | None, ...]

    @property
    def ends_s(self) -> float:
        """Return the end of the last price [Unix s]."""
        return self.starts_s + len(self.by_position) * self.step_s


class DayAhead(NamedTuple):
    """The day-ahead prices of a document, and how many series of other contracts (intraday auctions) it has."""

    periods: list[PricePeriod]
    n_other_series: int


def parse_day_ahead(body: bytes, *, eic: str, source: str) -> DayAhead:
    """Return the day-ahead prices in a document, which may say that there are none.

    Args:
        body: the document.
        eic: the code of the requested bidding zone.
        source: the sender, for messages.

    Raises:
        SignalRefusedError: it gives another reason for having no prices.
        SignalDataError: it has another form, or is about another zone.
    """
    root = _read_xml(body, source)
    if root.tag == "Acknowledgement_MarketDocument":
        reason = " ".join((root.findtext("Reason/text") or "gives no reason").split())[:200]
        if NO_DATA in reason:
            return DayAhead([], 0)
        raise SignalRefusedError(f"{source}: {root.findtext('Reason/code')}: {reason}")
    if root.tag != "Publication_MarketDocument":
        raise SignalDataError(f"{source}: sends a {root.tag[:60]!r} instead of prices")
    all_series = root.findall("TimeSeries")
    day_ahead = [
        series for series in all_series if series.findtext("contract_MarketAgreement.type", DAY_AHEAD) == DAY_AHEAD
    ]
    periods = [prices for series in day_ahead for prices in _read_series(series, eic, source)]
    return DayAhead(periods, len(all_series) - len(day_ahead))


def _read_xml(body: bytes, source: str) -> Element:
    """Return the root of a document, with names stripped of their namespaces."""

    def refuse(*_: object) -> Never:
        raise SignalDataError(f"{source}: its XML declares a document type; that is not trusted")

    builder = TreeBuilder()
    parser = expat.ParserCreate("utf-8", " ")  # whatever it declares, or Python would look for codecs of other names
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda name, _: builder.start(name.rpartition(" ")[2], {})
    parser.EndElementHandler = lambda name: builder.end(name.rpartition(" ")[2])
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise SignalDataError(f"{source}: no XML: {error}; the answer begins {body[:60]!r}") from error
    root: Element = builder.close()
    return root


def _read_series(series: Element, eic: str, source: str) -> list[PricePeriod]:
    for direction in ("in", "out"):
        domain = series.findtext(f"{direction}_Domain.mRID", "")
        if domain != eic:
            raise SignalDataError(f"{source}: answers for {domain!r}, not for {eic!r}")
    measure = series.findtext("price_Measure_Unit.name", "")
    if measure != "MWH":
        raise SignalDataError(f"{source}: a price for one {measure!r}: must be for one 'MWH'")
    try:
        return [_read_period(series, period, source) for period in series.iterfind("Period")]
    except ValueError as error:
        raise SignalDataError(f"{source}: {error}") from error


def _read_period(series: Element, period: Element, source: str) -> PricePeriod:
    starts_s = parse_iso_s(period.findtext("timeInterval/start", ""), source=source)
    ends_s = parse_iso_s(period.findtext("timeInterval/end", ""), source=source)
    resolution = period.findtext("resolution", "")
    step_s = _RESOLUTION_S.get(resolution)
    if step_s is None:
        raise ValueError(f"resolution {resolution[:20]!r}: must be one of {', '.join(_RESOLUTION_S)}")
    n_positions = round((ends_s - starts_s) / step_s)
    if not 0 < n_positions <= MAX_POSITIONS:
        raise ValueError(f"a period of {n_positions} prices")
    known = dict(_read_points(period, n_positions))
    is_filled = series.findtext("curveType") == VARIABLE_BLOCKS
    by_position: list[float | None] = []
    for position in range(n_positions):
        before = by_position[-1] if is_filled and by_position else None
        by_position.append(known.get(position, before))
    return PricePeriod(
        currency=series.findtext("currency_Unit.name", ""),
        sequence=int(series.findtext("classificationSequence_AttributeInstanceComponent.position", "1")),
        starts_s=starts_s,
        step_s=step_s,
        by_position=tuple(by_position),
    )


def _read_points(period: Element, n_positions: int) -> Iterator[tuple[int, float]]:
    """Yield (position from 0, price) of a period."""
    for point in period.iterfind("Point"):
        position = int(point.findtext("position", ""))
        if not 1 <= position <= n_positions:
            raise ValueError(f"position {position} in a period of {n_positions} prices")
        yield position - 1, float(point.findtext("price.amount", ""))
