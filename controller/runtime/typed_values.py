"""Times and powers as people write them: `18:00`, `+2h`, `2026-11-29T18:00`; `205W`, `0.2kW`."""

import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

_SPAN: Final = re.compile(r"\+(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?\Z")
_POWER: Final = re.compile(r"(\d+(?:\.\d+)?) ?(W|kW|)\Z")
_TIME_OF_DAY: Final = re.compile(r"(\d{1,2}):(\d{2})\Z")


def time_s(text: str, *, now_s: float, zone: tzinfo) -> float:
    """Return a time [Unix s]: a span from now on, a time of day, which is the next one, or a date with a time.

    >>> [time_s(text, now_s=0.0, zone=UTC) for text in ("+1h30m", "18:00", "00:00")]
    [5400.0, 64800.0, 86400.0]
    >>> time_s("1970-01-02T00:00", now_s=0.0, zone=UTC), time_s("1970-01-02T00:00+01:00", now_s=0.0, zone=UTC)
    (86400.0, 82800.0)

    Args:
        text: as a person writes it.
        now_s: now [Unix s].
        zone: of times that do not name theirs.

    Raises:
        ValueError: it is none.
    """
    span = _SPAN.match(text)
    if span is not None and any(span.groups()):
        days, hours, minutes = (int(part or 0) for part in span.groups())
        return now_s + timedelta(days=days, hours=hours, minutes=minutes).total_seconds()
    now = datetime.fromtimestamp(now_s, UTC).astimezone(zone)
    if (of_day := _TIME_OF_DAY.match(text)) is not None:
        today = now.replace(tzinfo=None, hour=int(of_day[1]), minute=int(of_day[2]), second=0, microsecond=0)
        moments = [(today + timedelta(days=n)).replace(tzinfo=zone).timestamp() for n in (0, 1)]
        return next(moment for moment in moments if moment > now_s)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)).timestamp()


def power_w(text: str) -> float:
    """Return a power [W].

    >>> power_w("205W"), power_w("205"), power_w("0.2 kW")
    (205.0, 205.0, 200.0)

    Raises:
        ValueError: it is none.
    """
    found = _POWER.match(text)
    power_w = float(found[1]) * (1_000.0 if found[2] == "kW" else 1.0) if found is not None else 0.0
    if not 0 < power_w < math.inf:
        raise ValueError("must be a power above 0, as 205W or 0.2kW")
    return power_w
