"""What a site has saved today, in seven days and in this month, read from its history now and then."""

from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from sqlalchemy import Connection

from controller.history.energy_history.growth import day_of
from controller.history.energy_history.reading import Period, RunFilter, run_parts
from controller.history.energy_history.report import Entry, entry_of
from controller.web.store import SiteStore
from policies.database.errors import DatabaseVersionError
from policies.vocabulary.units import DAY_S

READ_TIMEOUT_S: Final = 10.0
LONGER_S: Final = 900.0
"""A month takes half a second to read, a day a tenth of that: the longer times are read again after this time [s]."""


class Sums(NamedTuple):
    """What was used and saved since a midnight of this machine's zone, and in longer times.

    Attributes:
        since_s: the midnight [Unix s].
        longer_s: when the longer times were read [Unix s].
        today: the sum since then.
        week: of seven days.
        month: of this month.
    """

    since_s: float
    longer_s: float
    today: Entry
    week: Entry
    month: Entry


class SavedSums:
    """Keeps the sums, so that no page waits for a database.

    Args:
        store: the history.

    Attributes:
        fault: why they could not be read the last time, a sentence; "": they could.
    """

    def __init__(self, store: SiteStore) -> None:
        self.fault = ""
        self._store = store
        self._known: Sums | None = None

    def at(self, now_s: float) -> Sums | None:
        """Return the sums of the day of a moment [Unix s]; None: they are not known, or not yet."""
        is_of_today = self._known is not None and self._known.since_s == day_of(now_s, None)[0]
        return self._known if is_of_today else None

    async def refresh(self, now_s: float) -> None:
        """Read the sums until now; where that fails, the last ones stay."""
        try:
            self._known = await self._store.read(
                partial(_read, known=self.at(now_s), now_s=now_s), timeout_s=READ_TIMEOUT_S
            )
        except (DatabaseVersionError, OSError) as error:
            self.fault = str(error) or f"the history did not answer in {READ_TIMEOUT_S:.0f} s"
        else:
            self.fault = ""


def _read(connection: Connection, *, known: Sums | None, now_s: float) -> Sums:
    midnight_s = day_of(now_s, None)[0]
    periods = [Period(midnight_s, now_s)]
    if known is None or not 0 <= now_s - known.longer_s < LONGER_S:
        today = datetime.fromtimestamp(now_s).astimezone()
        month_s = day_of(today.replace(day=1, hour=12).timestamp(), None)[0]
        periods += [Period(since_s, now_s) for since_s in (now_s - 7 * DAY_S, month_s)]
        return Sums(midnight_s, now_s, *_entries(connection, periods))
    return known._replace(today=_entries(connection, periods)[0])


def _entries(connection: Connection, periods: list[Period]) -> list[Entry]:
    return [entry_of("", parts) for parts in run_parts(connection, periods, RunFilter())]
