"""Values that no grid can have: a single one that leaps away and is not confirmed by the next.

Sources do send such values (a unit of another scale for one hour, a decimal point that moved). A leap that stays is a
fact and is believed one step later; prices may leap as they like.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary.signal import Signal

LEAP_FACTOR: Final = 3.0
"""A step by less than this factor is never a fault, up or down."""
LEAP_MARGIN: Final = 1.5
"""How much greater, in logarithms, than 19 of 20 steps of this series a leap must be."""
ORDINARY_QUANTILE: Final = 0.95
SHORT: Final = 48
SHORT_QUANTILE: Final = 0.8
"""In a series shorter than that one leap would be among the ordinary steps by itself: 4 of 5 are counted then."""
MIN_KNOWN: Final = 6
"""With fewer values nobody knows what is ordinary here."""
CONFIRMED_S: Final = 1_800.0
"""A leap is believed when what follows stays near it for so long, and for one value at least; a marginal one, whose
power stations do take turns, when the next value does."""


def reject_spikes(signal: Signal) -> tuple[Signal, NDArray[np.float64]]:
    """Return the signal with the values that cannot be believed missing, and when those start, shape (n_leaps,).

    A value is not believed if it differs from the one before by more than a factor of 3, and by more than is ordinary
    in this series, until those of the next half an hour (of a marginal one the next) have stayed near it. What
    comes first, and prices, are always believed.
    """
    known = np.flatnonzero(np.isfinite(signal.values))
    if signal.kind not in {"average", "marginal"} or len(known) < MIN_KNOWN:
        return signal, np.empty(0)
    log_ratios = np.log(signal.values[known])
    quantile = ORDINARY_QUANTILE if len(known) >= SHORT else SHORT_QUANTILE
    ordinary_ratio = float(np.quantile(np.abs(np.diff(log_ratios)), quantile))
    limit_ratio = max(math.log(LEAP_FACTOR), LEAP_MARGIN * ordinary_ratio)
    confirmed_s = CONFIRMED_S if signal.kind == "average" else 0.0
    leaps = known[_leaps(signal.starts_s[known], log_ratios, limit_ratio, confirmed_s)]
    if not len(leaps):
        return signal, np.empty(0)
    values = signal.values.copy()
    values[leaps] = np.nan
    return replace(signal, values=values), signal.starts_s[leaps]


def _leaps(
    starts_s: NDArray[np.float64], log_ratios: NDArray[np.float64], limit_ratio: float, confirmed_s: float
) -> NDArray[np.bool_]:
    """Return which values leap away from the last one believed without being confirmed, shape (n,)."""
    found = np.zeros(len(log_ratios), dtype=np.bool_)
    if (np.abs(np.diff(log_ratios)) <= limit_ratio).all():  # nearly always: no loop over sixty days
        return found
    believed = log_ratios[0]
    for i in range(1, len(log_ratios)):
        if abs(log_ratios[i] - believed) > limit_ratio:
            last = max(i + 1, int(np.searchsorted(starts_s, starts_s[i] + confirmed_s)))
            next_ratios = log_ratios[i + 1 : last + 1]
            is_known_so_long = last < len(log_ratios)
            found[i] = not (is_known_so_long and (np.abs(next_ratios - log_ratios[i]) <= limit_ratio).all())
        if not found[i]:
            believed = log_ratios[i]
    return found
