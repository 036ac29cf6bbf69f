"""The freshness of a signal, and the substitute for its present value when it is too old.

fresh ──► held ──► forecast ──► stale          absent: nothing was ever known
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from policies.vocabulary.signal import ESTIMATED, Signal

GRACE_S: Final = 1_800.0
"""A value counts as fresh for at least this long after its end, because sources publish late."""
PERSISTENCE: Final = "persistence"
"""The source of a forecast that only repeats the last value: where that value is too old, so is the forecast."""


class Freshness(StrEnum):
    """How far the signal can be trusted, best first."""

    FRESH = "fresh"
    """The source delivers as it usually does."""
    HELD = "held"
    """The last value has ended a while ago, and is held."""
    FORECAST = "forecast"
    """The last value is too old to be held; a forecast from the history replaces it."""
    STALE = "stale"
    """All that is known is too old to use."""
    ABSENT = "absent"
    """Nothing is known."""

    @property
    def is_trusted(self) -> bool:
        """Return whether a limit may be set from it."""
        return self in {Freshness.FRESH, Freshness.HELD, Freshness.FORECAST}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CurrentSignal:
    """A signal as it is known at one moment.

    Attributes:
        freshness: how far it can be trusted.
        age_s: the time since the last known value ended [s]; infinite if there is none.
        history: the known past, and the substitute for the present value, as an estimate; None if nothing is known.
        forecast: what is expected after that, or None.
        known_until_s: when the last value from the source ends, or ended [Unix s]; later values of the history are
            estimates. None if nothing is known.
    """

    freshness: Freshness
    age_s: float
    history: Signal | None
    forecast: Signal | None
    known_until_s: float | None


def assess_signal(
    known: Signal | None,
    forecast: Signal | None,
    *,
    now_s: float,
    max_age_s: float,
    grace_s: float = GRACE_S,
    lasting_s: float = 0.0,
) -> CurrentSignal:
    """Return a signal as it is known now, and how far it can be trusted.

    Args:
        known: the values from the source; future ones (day-ahead prices) are settled.
        forecast: what is expected after them, or None.
        now_s: Unix time [s].
        max_age_s: how long the last value may be held after its end [s].
        grace_s: how late the source may be, beyond one step, and still count as fresh [s].
        lasting_s: how far the stand-in for the present reaches: until the next assessment [s].
    """
    past = known.between(-np.inf, np.nextafter(now_s, np.inf)) if known is not None else None
    if known is None or past is None or not np.isfinite(past.values).any():
        return CurrentSignal(
            freshness=Freshness.ABSENT, age_s=float("inf"), history=None, forecast=None, known_until_s=None
        )
    age_s, ends_s = known.age_s(now_s), _ends_s(known, now_s)
    is_usual = age_s <= grace_s
    history = _held(known, now_s=now_s, ends_s=ends_s, max_age_s=max_age_s, until_s=now_s + lasting_s)
    if history.value_at(now_s) is not None:
        return CurrentSignal(
            freshness=Freshness.FRESH if is_usual else Freshness.HELD,
            age_s=age_s,
            history=history,
            forecast=_ahead(known, forecast, after_s=history.ends_s),
            known_until_s=ends_s,
        )
    if forecast is not None and forecast.source != PERSISTENCE and forecast.value_at(now_s) is not None:
        return CurrentSignal(
            freshness=Freshness.FRESH if is_usual else Freshness.FORECAST,
            age_s=age_s,
            history=past.joined(forecast.between(ends_s, now_s + lasting_s)),
            forecast=forecast.between(now_s + lasting_s, np.inf),
            known_until_s=ends_s,
        )
    return CurrentSignal(freshness=Freshness.STALE, age_s=age_s, history=past, forecast=None, known_until_s=ends_s)


def _ends_s(known: Signal, now_s: float) -> float:
    """Return when the last value that is known by now ends [Unix s]."""
    stops_s = np.append(known.starts_s[1:], known.ends_s)
    return float(stops_s[(known.starts_s <= now_s) & np.isfinite(known.values)][-1])


def _held(known: Signal, *, now_s: float, ends_s: float, max_age_s: float, until_s: float) -> Signal:
    """Return the history until `until_s`; where nothing is settled, the last value is held as an estimate.

    It is held for `max_age_s` at most.
    """
    until_s = min(until_s, ends_s + max_age_s)
    if until_s <= ends_s or known.value_at(ends_s) is not None:
        return known.between(-np.inf, max(until_s, ends_s))
    whole = known.between(-np.inf, ends_s)
    held = replace(
        whole,
        starts_s=np.array([ends_s]),
        values=whole.values[-1:],
        estimated=ESTIMATED,
        ends_s=until_s,
        issued_at_s=now_s,
    )
    return whole.joined(held)


def _ahead(known: Signal, forecast: Signal | None, *, after_s: float) -> Signal | None:
    """Return the future: settled values first, then the forecast."""
    settled = known.between(after_s, np.inf)
    expected = forecast.between(after_s, np.inf) if forecast is not None else None
    if not len(settled):
        return expected if expected is not None and len(expected) else None
    if expected is None or expected.ends_s <= settled.ends_s:
        return settled
    return settled.joined(expected.between(settled.ends_s, np.inf))
