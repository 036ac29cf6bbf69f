"""How well it is known what a run has saved: the 90 % interval, and from when on there is anything to say.

Two things are not known. The ratios of the limits have errors; the saving is nearly linear in each of them within its
error, so that the standard deviation is the root of the summed squares of the half differences at plus and minus one
error. (It needs no random draws, and is more precise than a hundred of them.) And the twin would have had luck of its
own: speed and power wander at other moments than those at which it does the work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.savings.books import Books
from policies.savings.counterfactual import Counterfactual, Saving
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.signal import Signal

MIN_LOOKS: Final = 8
"""Looks before there is anything to say."""
NORMAL_QUANTILE: Final = 1.645
"""Of the normal distribution, at 95 %: 5 % are beyond each end."""
LUCK_RATIO: Final = 0.0004
"""The standard deviation of the twin's own luck, as a share of the baseline (simulated: 0.0003 to 0.0005)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSaving:
    """What a run has saved, with its 90 % interval.

    Attributes:
        saving: the estimate.
        lower_ratio, upper_ratio: the ends of the interval, as shares of the baseline.
    """

    saving: Saving
    lower_ratio: float
    upper_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSaving:
    """Why nothing is said of what a run has saved.

    Attributes:
        reason: `too_early`: there were not enough looks yet; `no_baseline`: the top limit would have cost nothing, or
            even have been paid for, so that there is nothing to take a share of.
        n_looks: how many looks there were.
    """

    reason: str
    n_looks: int


def estimate_saving(
    books: Books,
    ratios: Sequence[LimitRatios],
    *,
    top_power_limit_w: float,
    signal: Signal | None,
    host_power_w: float = 0.0,
    pue: float = 1.0,
) -> KnownSaving | UnknownSaving:
    """Return what a run has saved so far, or why that is not known; the arguments are those of `Counterfactual`."""
    n_looks = sum(each.n_looks for each in ratios)
    if not books.slots:
        return UnknownSaving(reason="too_early", n_looks=n_looks)
    counterfactual = Counterfactual(
        books,
        ratios,
        top_power_limit_w=top_power_limit_w,
        signal=signal,
        host_power_w=host_power_w,
        pue=pue,
    )
    is_at_top = counterfactual.is_at_top
    if n_looks < MIN_LOOKS and not is_at_top:
        return UnknownSaving(reason="too_early", n_looks=n_looks)
    saving = counterfactual.saving()
    if saving is None:
        return UnknownSaving(reason="no_baseline", n_looks=n_looks)
    luck_ratio = 0.0 if is_at_top else LUCK_RATIO
    half_ratio = NORMAL_QUANTILE * math.hypot(_ratios_error_ratio(counterfactual), luck_ratio)
    return KnownSaving(
        saving=saving, lower_ratio=saving.saved_ratio - half_ratio, upper_ratio=saving.saved_ratio + half_ratio
    )


def _ratios_error_ratio(counterfactual: Counterfactual) -> float:
    """Return the standard deviation that the errors of the ratios give the saving."""
    rates = np.array([each.rate_ratio for each in counterfactual.known])
    energies = np.array([each.energy_ratio for each in counterfactual.known])
    rate_steps = np.diag([each.rate_error_ratio for each in counterfactual.known])
    energy_steps = np.diag([each.energy_error_ratio for each in counterfactual.known])
    none = np.zeros_like(rate_steps)
    steps = np.vstack((rate_steps, none)), np.vstack((none, energy_steps))
    upper, lower = (
        counterfactual.saved_ratios(rates + sign * steps[0], energies + sign * steps[1]) for sign in (1.0, -1.0)
    )
    return float(np.linalg.norm((upper - lower) / 2))
