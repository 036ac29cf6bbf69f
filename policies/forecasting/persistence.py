"""Persistence: what is, stays. Hard to beat where little is known."""

from dataclasses import replace
from typing import Final

import numpy as np

from policies.vocabulary.signal import ESTIMATED, Signal

MAX_AGE_S: Final = 2 * 3600.0
"""A value that ceased to hold longer ago than this is no forecast: two hours of staleness cost a plan little."""


def persistence(
    history: Signal, *, now_s: float, horizon_s: float, step_s: float, max_age_s: float = MAX_AGE_S
) -> Signal | None:
    """Return the last known value, held for `horizon_s` from now on, or None where it is too old.

    Args:
        history: what is known; what starts after `now_s` is not looked at.
        now_s: Unix time [s].
        horizon_s: how far to look ahead [s].
        step_s: the length of a step of the forecast [s].
        max_age_s: how long ago the last known value may have ceased to hold [s].
    """
    known = ~np.isnan(history.values) & (history.starts_s <= now_s)
    if not known.any() or history.age_s(now_s) > max_age_s:
        return None
    starts_s = np.arange(now_s, now_s + horizon_s, step_s, dtype=np.float64)
    return replace(
        history,
        source="persistence",
        starts_s=starts_s,
        values=np.full(len(starts_s), history.values[known][-1]),
        ends_s=now_s + horizon_s,
        issued_at_s=now_s,
        estimated=ESTIMATED,
    )
