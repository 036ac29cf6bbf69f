"""How well it is known what a run has saved: the 90 % interval, and from when on there is anything to say.

Two things are not known. The ratios of the limits have errors; the saving is nearly linear in each of them within its
error, so that the standard deviation is the root of the summed squares of the half differences at plus and minus one
error; what the errors have in common counts. (It needs no random draws, and is more precise than a hundred of them.)
And the twin would have had luck of its own: speed and power wander at other moments than those at which it does the
work.
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
from policies.vocabulary.units import Values

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
    correlation: Values | None = None,
) -> KnownSaving | UnknownSaving:
    """Return what a run has saved so far, or why that is not known.

    Args:
        books: of the run; this and the next ones are those of `Counterfactual`.
        ratios: of the limits of the curve.
        top_power_limit_w: the top limit [W].
        signal: the newest values, from the run's start on.
        host_power_w: what the rest of the machine draws all the time [W].
        pue: what the building draws per watt of the machine.
        correlation: of the errors of the ratios, in their order, shape (n_ratios, n_ratios): looks at one limit say
            something of its neighbours. It holds for rates and for energies. None: the errors are independent.
    """
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
    half_ratio = NORMAL_QUANTILE * math.hypot(_ratios_error_ratio(counterfactual, ratios, correlation), luck_ratio)
    return KnownSaving(
        saving=saving, lower_ratio=saving.saved_ratio - half_ratio, upper_ratio=saving.saved_ratio + half_ratio
    )


def correlation_of(covariance: Values) -> Values:
    """Return the correlation to a covariance, shape (n, n); what has no variance has none with anything."""
    sds = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
    scale = np.divide(1.0, sds, out=np.zeros_like(sds), where=sds > 0)
    return np.asarray(covariance * np.outer(scale, scale))


def _ratios_error_ratio(
    counterfactual: Counterfactual, ratios: Sequence[LimitRatios], correlation: Values | None
) -> float:
    """Return the standard deviation that the errors of the ratios give the saving."""
    known = counterfactual.known
    rates = np.array([each.rate_ratio for each in known])
    energies = np.array([each.energy_ratio for each in known])
    rate_steps = np.diag([each.rate_error_ratio for each in known])
    energy_steps = np.diag([each.energy_error_ratio for each in known])
    none = np.zeros_like(rate_steps)
    steps = np.vstack((rate_steps, none)), np.vstack((none, energy_steps))
    upper, lower = (
        counterfactual.saved_ratios(rates + sign * steps[0], energies + sign * steps[1]) for sign in (1.0, -1.0)
    )
    shared = np.eye(len(known))
    if correlation is not None:
        numbers = [list(ratios).index(each) for each in known[:-1]]
        shared[:-1, :-1] = correlation[np.ix_(numbers, numbers)]
    halves = ((upper - lower) / 2).reshape(2, -1)
    return math.sqrt(max(float(np.einsum("ki,ij,kj->", halves, shared, halves)), 0.0))
