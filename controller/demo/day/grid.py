"""The grids of the demo: real days of a zone each, from the files in `grids/`; the demo runs through the last one."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from policies.providers.sources.csv_file import CsvProvider
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S

_FOLDER: Final = Path(__file__).parent / "grids"
FIVE_WEEKS: Final = _FOLDER / "GB.csv"
"""The longest signal: forecasts have a band after some weeks, and replays go through all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A day of a zone, and what came before it.

    Attributes:
        zone: the name of the zone.
        path: the file.
        provider: the signal provider of the file.
        signal: the last two days, for the true carbon.
        starts_s: midnight at the start of the demo's day [Unix s].
        source: the source of the data, as a sentence.
        licence: the licence of the data.
    """

    zone: str
    path: Path
    provider: CsvProvider
    signal: Signal
    starts_s: float
    source: str
    licence: str

    @property
    def date(self) -> str:
        """Return the demo's day, as in 2023-06-04."""
        return datetime.fromtimestamp(self.starts_s, UTC).strftime("%Y-%m-%d")


def list_zones() -> list[str]:
    """Return the zones."""
    return sorted(path.stem for path in _FOLDER.glob("*.csv"))


async def load_grid(zone: str) -> Grid:
    """Return the grid of a zone.

    Raises:
        SignalFileError: there is no such zone.
    """
    path = _FOLDER / f"{zone}.csv"
    provider = CsvProvider(path, zone=zone, kind="average")
    ends_s = provider.trace.ends_s
    signal = await provider.fetch_history(since_s=ends_s - 2 * DAY_S, now_s=ends_s)
    if signal is None:
        raise ValueError(f"{path}: has no values")
    return Grid(
        zone=zone,
        path=path,
        provider=provider,
        signal=signal,
        starts_s=ends_s - DAY_S,
        source=_note(path, "Source"),
        licence=_note(path, "Licence"),
    )


def _note(path: Path, key: str) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = (line.removeprefix(f"# {key}: ") for line in lines if line.startswith(f"# {key}: "))
    return next(found, "").rstrip(".")
