"""A signal from a CSV file, replayed as time goes by.

    # comments may stand before the header: the source, the licence
    timestamp,gco2_per_kwh
    2021-01-01T00:00Z,421.8

Times are the starts of the values, ISO 8601 with their offset from UTC; the name of the value column is its unit. The
step is the median difference of two times; gaps are never bridged, and the last value holds for one step.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from policies.providers.base import PriceSettings, ProviderSettings, SignalFileError, Zone
from policies.providers.series import format_iso, insert_gaps
from policies.vocabulary.signal import Signal, SignalKind
from policies.vocabulary.units import intensity_g_per_kwh, price_per_kwh

CARBON_UNIT: Final = "g/kWh"
_CURRENCIES: Final = ("eur", "gbp", "usd", "dkk", "sek", "nok", "pln", "chf", "aud")
_FACTORS: Final[dict[str, tuple[str, float]]] = {
    "gco2_per_kwh": (CARBON_UNIT, 1.0),
    "kgco2_per_mwh": (CARBON_UNIT, 1.0),
    "lbco2_per_mwh": (CARBON_UNIT, intensity_g_per_kwh(1.0)),
    **{f"{currency}_per_kwh": (f"{currency.upper()}/kWh", 1.0) for currency in _CURRENCIES},
    **{f"{currency}_per_mwh": (f"{currency.upper()}/kWh", price_per_kwh(1.0)) for currency in _CURRENCIES},
}
"""The unit and the conversion factor of each known column name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """A whole file: starts [s] and values of shape (n,), NaN if missing, until `ends_s`.

    `n_missing` counts the rows without a value (empty, or a carbon intensity that is not above 0), `n_gaps` the gaps.
    """

    unit: str
    starts_s: NDArray[np.float64]
    values: NDArray[np.float64]
    ends_s: float
    step_s: float
    n_missing: int
    n_gaps: int

    @property
    def losses(self) -> str:
        """Return how much is missing, in words; "" if nothing is."""
        counts = ((self.n_gaps, "gap"), (self.n_missing, "missing value"))
        return ", ".join(f"{n} {what}{'s' if n > 1 else ''}" for n, what in counts if n)

    def as_signal(self, path: Path) -> Signal:
        """Return it as a signal named after its file; carbon intensity counts as average."""
        return Signal(
            kind="average" if self.unit == CARBON_UNIT else "price",
            zone=path.stem,
            source=path.name,
            unit=self.unit,
            starts_s=self.starts_s,
            values=self.values,
            ends_s=self.ends_s,
            issued_at_s=self.ends_s,
        )


def read_trace(path: Path) -> Trace:
    """Return the trace in a file.

    Raises:
        SignalFileError: lists all faults, each with its line.
    """
    faults: list[str] = []
    rows = _read_rows(path, faults)
    unit, factor = _read_header(path, rows.pop(0) if rows else None, faults)
    starts_s: list[float] = []
    values: list[float] = []
    for line, row in rows:
        try:
            start_s, value = _read_row(row, starts_s)
        except ValueError as error:
            faults.append(f"{path}:{line}: {error}")
        else:
            starts_s.append(start_s)
            values.append(math.nan if unit == CARBON_UNIT and value <= 0 else value * factor)
    if not faults and len(starts_s) < 2:  # noqa: PLR2004 — a step lies between two
        faults.append(f"{path}: {len(starts_s)} values: must be at least 2, or the step is not known")
    if faults:
        raise SignalFileError(path, faults)
    return _with_gaps(unit, np.array(starts_s), np.array(values))


class CsvSettings(ProviderSettings, frozen=True, kw_only=True):
    """A CSV file of carbon intensities.

    Attributes:
        path: the file.
        zone: the zone of the grid.
        kind: what the values are; a file does not say.
    """

    path: Annotated[str, Meta(min_length=1)]
    zone: Zone
    kind: Literal["average", "marginal"] = "average"

    def signal_kind(self) -> SignalKind:
        """Return the configured kind."""
        return self.kind


class CsvPriceSettings(PriceSettings, frozen=True, kw_only=True):
    """A CSV file of prices.

    Attributes:
        path: the file; its column names the currency.
        zone: the zone of the grid.
    """

    path: Annotated[str, Meta(min_length=1)]
    zone: Zone


class CsvProvider:
    """Replays a file: never returns values that start after now.

    After its last value the history ages, until it is no longer trusted.

    Args:
        path: the CSV file; it is read at once.
        zone: the zone of the grid.
        kind: what the values are.

    Raises:
        SignalFileError: the file is wrong, or its unit is not that of the kind.
    """

    def __init__(self, path: Path, *, zone: str, kind: SignalKind) -> None:
        trace = read_trace(path)
        if (trace.unit == CARBON_UNIT) != (kind in {"average", "marginal"}):
            raise SignalFileError(path, [f"{path}: values in {trace.unit} cannot be a signal of kind {kind!r}"])
        self.name = path.name
        self.kind: SignalKind = kind
        self.step_s = trace.step_s
        self.trace = trace
        self.losses = trace.losses
        self._signal = replace(trace.as_signal(path), kind=kind, zone=zone)

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values that hold after `since_s` and start by `now_s`, or None if the file has none."""
        whole = self._signal
        n_known = int(np.searchsorted(whole.starts_s, now_s, side="right"))
        n_before = max(int(np.searchsorted(whole.starts_s, since_s, side="right")) - 1, 0)
        self.losses = self.trace.losses
        if not n_known:
            self.losses = f"its first value starts at {format_iso(float(whole.starts_s[0]))}"
        elif now_s >= whole.ends_s:
            self.losses = f"its last value ended at {format_iso(whole.ends_s)}"
        if not n_known or since_s >= whole.ends_s:
            return None
        ends_s = float(whole.starts_s[n_known]) if n_known < len(whole) else whole.ends_s
        return replace(whole.between(float(whole.starts_s[n_before]), ends_s), issued_at_s=now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return None: a file has no forecast."""
        del now_s, until_s
        return None


def _read_rows(path: Path, faults: list[str]) -> list[tuple[int, list[str]]]:
    """Return (line number, cells) of the header and each row, without leading comments and empty lines."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        faults.append(f"{path}: {error.strerror}")
        return []
    except UnicodeDecodeError as error:
        faults.append(f"{path}: is not UTF-8 text: {error}")
        return []
    rows = list(_split(path, lines, faults))
    if not rows and not faults:
        faults.append(f"{path}: is empty")
    return rows


def _split(path: Path, lines: list[str], faults: list[str]) -> Iterator[tuple[int, list[str]]]:
    in_comments = True
    for number, line in enumerate(lines, start=1):
        in_comments = in_comments and (not line.strip() or line.startswith("#"))
        if in_comments or not line.strip():
            continue
        try:
            cells = next(csv.reader([line]))
        except csv.Error as error:  # a cell beyond the module's limit of 131,072 characters
            faults.append(f"{path}:{number}: {error}")
        else:
            yield number, [cell.strip() for cell in cells]


def _read_header(path: Path, row: tuple[int, list[str]] | None, faults: list[str]) -> tuple[str, float]:
    """Return the unit and the conversion factor of the value column."""
    if row is None:
        return "", 1.0
    line, header = row
    if len(header) != 2 or header[0] != "timestamp":  # noqa: PLR2004 — a time and a value
        faults.append(f"{path}:{line}: the header is {','.join(header)!r}: must be timestamp,<unit>")
    elif header[1] not in _FACTORS:
        faults.append(f"{path}:{line}: the unit {header[1]!r} is not known; known are {', '.join(_FACTORS)}")
    return _FACTORS.get(header[-1], ("", 1.0))


def _read_row(row: list[str], starts_s: list[float]) -> tuple[float, float]:
    """Return the start and the value of a row; raise `ValueError` with what is wrong."""
    if len(row) != 2:  # noqa: PLR2004 — a time and a value
        raise ValueError(f"{len(row)} cells: must be 2")
    start_s = _read_time_s(row[0])
    if starts_s and start_s == starts_s[-1]:
        raise ValueError(f"{row[0]} occurs twice")
    if starts_s and start_s < starts_s[-1]:
        raise ValueError(f"{row[0]} goes backwards in time")
    value = float(row[1]) if row[1] else math.nan
    if row[1] and not math.isfinite(value):
        raise ValueError(f"the value is {row[1]}: must be finite; leave it empty if it is missing")
    return start_s, value


def _read_time_s(text: str) -> float:
    """Return the Unix time of an ISO 8601 time with an offset [s]."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time in ISO 8601, such as 2021-01-01T00:00Z") from None
    if time.utcoffset() is None:
        raise ValueError(f"{text} has no offset from UTC: append Z or +00:00")
    return time.timestamp()


def _with_gaps(unit: str, starts_s: NDArray[np.float64], values: NDArray[np.float64]) -> Trace:
    """Return the trace, with gaps as missing values."""
    step_s = float(np.median(np.diff(starts_s)))
    whole_s, whole, _ = insert_gaps(starts_s, values, np.zeros(len(values), dtype=np.bool_), step_s=step_s)
    return Trace(
        unit=unit,
        starts_s=whole_s,
        values=whole,
        ends_s=float(starts_s[-1]) + step_s,
        step_s=step_s,
        n_missing=int(np.isnan(values).sum()),
        n_gaps=len(whole) - len(values),
    )
