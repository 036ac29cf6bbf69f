"""What every provider of signals offers, and how one fails."""

from pathlib import Path
from typing import Final, Protocol

from policies.signal import Signal

MAX_FAULTS_SHOWN: Final = 50


class Provider(Protocol):
    """A source of signals: what was, and what is expected."""

    @property
    def name(self) -> str:
        """Return who it is, for logs and dashboards."""
        ...

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the signal from `since_s` up to the value that holds at `now_s`, or None where nothing is known.

        Raises:
            SignalError: the source failed.
        """
        ...

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the forecast from `now_s` to `until_s`, or None where the source has none.

        Raises:
            SignalError: the source failed.
        """
        ...


class SignalError(Exception):
    """A source of signals failed."""


class SignalFileError(SignalError):
    """A signal file is wrong; `faults` lists every fault, each with its line number where it has one."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        self.path = path
        self.faults = faults
        shown = faults[:MAX_FAULTS_SHOWN]
        more = [f"{path}: and {len(faults) - len(shown)} more faults"] if len(faults) > len(shown) else []
        super().__init__("\n".join([*shown, *more]))
