"""Rejects outliers of a carbon signal: single values that spike and are not confirmed by the next.

Sources do send such values (another unit for one hour, a moved decimal point). A step that lasts is real and is
accepted once confirmed. Prices may spike, and are never rejected.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary.signal import Signal

SPIKE_FACTOR: Final = 3.0
"""A step by less than this factor, up or down, is never a spike."""
SPIKE_MARGIN: Final = 1.5
"""A spike is this many times as large, as a logarithm, as 19 of 20 steps of the series."""
STEP_QUANTILE: Final = 0.95
SHORT_SERIES: Final = 48
SHORT_SERIES_QUANTILE: Final = 0.8
"""In a shorter series a single spike would itself be in the upper quantile, so a lower one is used."""
MIN_KNOWN: Final = 6
"""With fewer values the usual step is not known, and nothing is rejected."""
CONFIRMATION_S: Final = 1_800.0
"""A step is accepted when the following values stay near it for so long, and for one value at least. For a marginal
signal, whose power stations do take turns, one value suffices."""


def reject_spikes(signal: Signal) -> tuple[Signal, NDArray[np.float64]]:
    """Return the signal with rejected values missing, and the start times of those, shape (n_rejected,) [Unix s].

    A value is rejected if it differs from the last accepted one by more than a factor of 3, and by more than is usual
    in this series, until the values of the next half hour (of a marginal signal the next value) have stayed near it.
    The first value, and prices, are always accepted.
    """
    known = np.flatnonzero(np.isfinite(signal.values))
    if signal.kind not in {"average", "marginal"} or len(known) < MIN_KNOWN:
        return signal, np.empty(0)
    log_ratios = np.log(signal.values[known])
    quantile = STEP_QUANTILE if len(known) >= SHORT_SERIES else SHORT_SERIES_QUANTILE
    usual_ratio = float(np.quantile(np.abs(np.diff(log_ratios)), quantile))
    limit_ratio = max(math.log(SPIKE_FACTOR), SPIKE_MARGIN * usual_ratio)
    confirmation_s = CONFIRMATION_S if signal.kind == "average" else 0.0
    rejected = known[_are_spikes(signal.starts_s[known], log_ratios, limit_ratio, confirmation_s)]
    if not len(rejected):
        return signal, np.empty(0)
    values = signal.values.copy()
    values[rejected] = np.nan
    return replace(signal, values=values), signal.starts_s[rejected]


def _are_spikes(
    starts_s: NDArray[np.float64], log_ratios: NDArray[np.float64], limit_ratio: float, confirmation_s: float
) -> NDArray[np.bool_]:
    """Return which values differ from the last accepted one without being confirmed, shape (n,)."""
    spikes = np.zeros(len(log_ratios), dtype=np.bool_)

    def is_confirmed(i: int) -> bool:
        last = max(i + 1, int(np.searchsorted(starts_s, starts_s[i] + confirmation_s)))
        next_ratios = log_ratios[i + 1 : last + 1]
        return last < len(log_ratios) and bool((np.abs(next_ratios - log_ratios[i]) <= limit_ratio).all())

    at = 1
    # Values between two leaps are accepted, each after the one before: there is no loop over sixty days.
    for leap in (np.flatnonzero(np.abs(np.diff(log_ratios)) > limit_ratio) + 1).tolist():
        if leap < at:
            continue
        accepted, at = log_ratios[leap - 1], leap
        while at < len(spikes) and abs(log_ratios[at] - accepted) > limit_ratio and not is_confirmed(at):
            spikes[at] = True
            at += 1
        at += 1
    return spikes
