"""The time zone of this machine, with its changes of clocks."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final


class MachineZone(tzinfo):
    """The zone that `TZ` or /etc/localtime names; `datetime.astimezone()` knows its offset of one moment alone."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        """Return the offset of a moment."""
        return None if moment is None else _at(moment).utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:  # noqa: ARG002 — of the interface
        """Return that nothing is known of it."""
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        """Return the name of the zone at a moment."""
        return None if moment is None else _at(moment).tzname()

    def fromutc(self, moment: datetime) -> datetime:
        """Return a moment of UTC in this zone; `fold` tells the two hours of one name apart."""
        local = moment.replace(tzinfo=UTC).astimezone()
        is_second = local.replace(tzinfo=None).astimezone().utcoffset() != local.utcoffset()
        return local.replace(tzinfo=self, fold=int(is_second))


def _at(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None).astimezone()


MACHINE_ZONE: Final = MachineZone()
