"""How well it is known what a run has saved: the 90 % interval, and from when on there is anything to say.

Two things are not known. The ratios of the limits have errors; what the errors have in common counts. The saving is
nearly linear in them, but for kinks where the twin's work moves into another hour: under a strong signal the half
difference at plus and minus one error may be half of the standard deviation, or a third too large. So the saving is
computed at the points of a fixed design of the normal distribution, whose mean and covariance are exact: what is
linear comes out exactly, and the kinks nearly so. And the twin would have had luck of its own: speed and power wander
at other moments than those at which it does the work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
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

N_PAIRS: Final = 128
"""Points of the design, each with its mirror image; at least two for each error."""


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
            even have been paid for, or might have been, so that there is nothing to take a share of.
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
    error_ratio = _ratios_error_ratio(counterfactual, ratios, correlation)
    if error_ratio is None:
        return UnknownSaving(reason="no_baseline", n_looks=n_looks)
    half_ratio = NORMAL_QUANTILE * math.hypot(error_ratio, 0.0 if is_at_top else LUCK_RATIO)
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
) -> float | None:
    """Return the standard deviation that the errors of the ratios give the saving; None: there may be no baseline."""
    known = counterfactual.known
    rates = np.array([each.rate_ratio for each in known])
    energies = np.array([each.energy_ratio for each in known])
    n_errors = len(known) - 1  # the last one is the top limit, which has none
    points = normal_design(2 * n_errors)
    rate_errors, energy_errors = np.zeros((2, len(points), len(known)))
    root = np.eye(n_errors)
    if correlation is not None:
        numbers = [list(ratios).index(each) for each in known[:-1]]
        root = _root_of(correlation[np.ix_(numbers, numbers)])
    rate_errors[:, :-1] = points[:, :n_errors] @ root
    energy_errors[:, :-1] = points[:, n_errors:] @ root
    saved_ratios = counterfactual.saved_ratios(
        rates + rate_errors * [each.rate_error_ratio for each in known],
        energies + energy_errors * [each.energy_error_ratio for each in known],
    )
    return None if np.isnan(saved_ratios).any() else float(saved_ratios.std())


def _root_of(correlation: Values) -> Values:
    """Return the symmetric root of a correlation, shape (n, n)."""
    values, vectors = np.linalg.eigh(correlation)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T)


@cache
def normal_design(n_errors: int) -> Values:
    """Return points that stand for the standard normal distribution, shape (n, n_errors).

    Their mean is 0 and their covariance the identity, exactly. They are spread evenly by the sequence of the powers of
    the generalised golden ratio g, g^(n_errors + 1) = g + 1 (Roberts, The Unreasonable Effectiveness of Quasirandom
    Sequences, 2018), each point with its mirror image, and then made orthogonal.
    """
    n_pairs = max(N_PAIRS, 2 * n_errors)
    golden = 2.0
    for _ in range(64):
        golden = (1 + golden) ** (1 / (n_errors + 1))
    steps = golden ** -np.arange(1.0, n_errors + 1)
    evenly = (0.5 + np.outer(np.arange(1, n_pairs + 1), steps)) % 1.0
    half = np.vectorize(NormalDist().inv_cdf, otypes=[float])(evenly)
    orthogonal, triangular = np.linalg.qr(half)
    half = math.sqrt(n_pairs) * np.copysign(1.0, triangular.diagonal()) * orthogonal
    points = np.vstack((half, -half))
    points.flags.writeable = False
    return points
