"""What a site has saved today, in seven days and in this month, read from its history now and then."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from functools import partial
from typing import Final, NamedTuple, TypeVar

from sqlalchemy import Connection

from controller.history.energy_history.growth import day_of
from controller.history.energy_history.reading import MeanPower, Period, RunFilter, mean_powers, run_parts
from controller.history.energy_history.report import Entry, entry_of
from controller.runtime.machine_zone import MACHINE_ZONE
from controller.web.store import SiteStore
from policies.database.errors import DatabaseVersionError
from policies.vocabulary.units import DAY_S, HOUR_S

READ_TIMEOUT_S: Final = 10.0
LONGER_S: Final = 900.0
"""A month takes half a second to read, a day a tenth of that: the longer times are read again after this time [s]."""
POWERS_S: Final = 12 * HOUR_S
"""Powers are of so long ago at most [s]."""
WAIT_S: Final = 2.0
"""So long a page waits for the sums of a day that nobody has asked for yet [s]."""
ASKED_S: Final = 600.0
"""The sums of a zone that nobody has asked for so long are not read any more [s]."""
Result = TypeVar("Result")
MAX_ZONES: Final = 8
"""Beside the machine's own, those that were asked for last."""


class Sums(NamedTuple):
    """What was used and saved since a midnight, and in longer times.

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


class _Since(NamedTuple):
    """The midnights at which a day and its month begin [Unix s]: the same in many time zones."""

    day_s: float
    month_s: float


def _since_of(now_s: float, zone: tzinfo) -> _Since:
    first = datetime.fromtimestamp(now_s, zone).replace(day=1, hour=12)
    return _Since(day_of(now_s, zone)[0], day_of(first.timestamp(), zone)[0])


class SavedSums:
    """Keeps the sums of the zones that are asked for, so that pages do not wait for a database.

    Args:
        store: the history.

    Attributes:
        fault: why they could not be read the last time, a sentence; "": they could.
        powers: what all runs drew together in the last hours, by quarter-hours.
    """

    def __init__(self, store: SiteStore) -> None:
        self.fault = ""
        self.powers: Sequence[MeanPower] = ()
        self._store = store
        self._known: dict[_Since, Sums] = {}
        self._asked_s: dict[tzinfo, float] = {}
        self._reading = asyncio.Lock()

    def at(self, now_s: float, zone: tzinfo) -> Sums | None:
        """Return the sums of the day of a moment [Unix s] in a zone; None: they are not known, or not yet."""
        return self._known.get(_since_of(now_s, zone))

    async def asked(self, now_s: float, zone: tzinfo) -> Sums | None:
        """Return the same, and keep them from now on; those of a new day or zone are waited for, but not for long."""
        self._asked_s.pop(zone, None)
        self._asked_s[zone] = now_s  # the newest is the last
        for other in list(self._asked_s)[:-MAX_ZONES]:
            del self._asked_s[other]
        if self.at(now_s, zone) is None and not self.fault:
            try:
                async with asyncio.timeout(WAIT_S), self._reading:
                    if self.at(now_s, zone) is None:
                        await self._read(_since_of(now_s, zone), now_s)
            except TimeoutError:
                pass  # it is read with the others
        return self.at(now_s, zone)

    async def refresh(self, now_s: float) -> None:
        """Read the sums until now; where that fails, the last ones stay."""
        wanted = dict.fromkeys(_since_of(now_s, zone) for zone in self._zones(now_s))
        self._known = {since: sums for since, sums in self._known.items() if since in wanted}
        for since in wanted:
            async with self._reading:
                await self._read(since, now_s)
            if self.fault:
                return
        powers = partial(mean_powers, period=Period(now_s - POWERS_S, now_s))
        found = await self._found(powers)
        self.powers = self.powers if found is None else found

    def _zones(self, now_s: float) -> Iterator[tzinfo]:
        yield MACHINE_ZONE
        yield from (zone for zone, asked_s in self._asked_s.items() if now_s - asked_s <= ASKED_S)

    async def _read(self, since: _Since, now_s: float) -> None:
        work = partial(_sums, since=since, known=self._known.get(since), now_s=now_s)
        found = await self._found(work)
        if found is not None:
            self._known[since] = found

    async def _found(self, work: Callable[[Connection], Result]) -> Result | None:
        """Return what is read; None: that failed, and why is said."""
        try:
            found = await self._store.read(work, timeout_s=READ_TIMEOUT_S)
        except (DatabaseVersionError, OSError) as error:
            self.fault = str(error) or f"the history did not answer in {READ_TIMEOUT_S:.0f} s"
            return None
        self.fault = ""
        return found


def _sums(connection: Connection, *, since: _Since, known: Sums | None, now_s: float) -> Sums:
    periods = [Period(since.day_s, now_s)]
    has_longer = known is not None and 0 <= now_s - known.longer_s < LONGER_S
    if not has_longer:
        periods += [Period(since_s, now_s) for since_s in (now_s - 7 * DAY_S, since.month_s)]
    of_today, *longer = run_parts(connection, periods, RunFilter())
    today = entry_of("", of_today)
    if known is not None and has_longer:
        return known._replace(today=today)
    week, month = (entry_of("", of_period) for of_period in longer)
    return Sums(since.day_s, now_s, today, week, month)
