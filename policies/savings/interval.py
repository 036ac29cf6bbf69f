"""How well it is known what a run has saved: the 90 % interval, and from when on there is anything to say.

The rule looks at the looks and at the width of the intervals alone, never at the estimate: one that did would publish
wrong zeros only.

Two things are not known. The ratios of the limits have errors; what the errors have in common counts. The saving is
nearly linear in them, but for kinks where the twin's work moves into another hour: under a strong signal the half
difference at plus and minus one error may be half of the standard deviation, or a third too large. So the saving is
computed at the points of a fixed design of the normal distribution, whose mean and covariance are exact: what is
linear comes out exactly, and the kinks nearly so. An error that all limits have in common, as that of how much the
twin's board would have warmed, is one of energies only, in which the saving is linear: it is computed by itself, and
curves have it in common, too. And the twin would have had luck of its own: speed and power wander at other moments than
those at which it does the work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from policies.savings.books import Books
from policies.savings.counterfactual import Counterfactual, Saving, Twins
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import Values

MIN_LOOKS: Final = 8
"""Looks before there is anything to say."""
MAX_CI90_RATIO: Final = 0.01
"""Nor is there while the half-width of an interval is more than one point."""
MOST_TIMES: Final = 100.0
"""What has used so many times its baseline has none: as pauses that were asked for, beside next to no work."""
ENOUGH_CI90_RATIO: Final = 0.005
"""Once energies are known to half a point, looks need not take longer for them."""
NORMAL_QUANTILE: Final = 1.645
"""Of the normal distribution, at 95 %: 5 % are beyond each end."""
LUCK_RATIO: Final = 0.0004
"""The standard deviation of the twin's own luck, as a share of the baseline (simulated: 0.0003 to 0.0005)."""

N_PAIRS: Final = 128
"""Points of the design, each with its mirror image; at least two for each error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The half-widths of the 90 % intervals of the parts of a saving, as shares of the baseline."""

    better_limit_ci90_ratio: float = 0.0
    following_ci90_ratio: float = 0.0
    measuring_ci90_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedCost:
    """What the work at pinned limits took beyond what the plan would have taken for it; less than 0 is a gain.

    Attributes:
        extra_s, extra_ci90_s: the time, and the half-width of its 90 % interval [s].
        extra_energy_j, extra_energy_ci90_j: the same of the energy of its GPUs [J].
    """

    extra_s: float
    extra_ci90_s: float
    extra_energy_j: float
    extra_energy_ci90_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSaving:
    """What a run has saved, with its 90 % intervals.

    Attributes:
        saving: the estimate.
        saved_ci90_ratio, saved_energy_ci90_ratio, slowdown_ci90_ratio: the half-widths of the intervals of its ratios.
        split: those of its parts; None: one of them is not known to a point.
        is_unchanged: whether the run did what it would have done without us: it has saved nothing, by construction.
        pinned: what pinned limits have cost; None: nothing was pinned, or it is not known to a point of what was used
            there.
    """

    saving: Saving
    saved_ci90_ratio: float = 0.0
    saved_energy_ci90_ratio: float = 0.0
    slowdown_ci90_ratio: float = 0.0
    split: Split | None = Split()
    is_unchanged: bool = False
    pinned: PinnedCost | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSaving:
    """Why nothing is said of what a run has saved.

    Attributes:
        code: `too_early`: there were not enough looks yet, or they scatter too much; `no_baseline`: the top limit
            would have cost nothing, or even have been paid for, or might have been, so that there is nothing to take a
            share of; or a code of whoever keeps the books.
        n_looks: how many looks there were.
    """

    code: str
    n_looks: int


def is_energy_known(found: KnownSaving | UnknownSaving | None) -> bool:
    """Return whether the energy that a run has saved is known well enough for longer looks to be in vain."""
    return isinstance(found, KnownSaving) and found.saved_energy_ci90_ratio <= ENOUGH_CI90_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The part of a run that was on one curve.

    Attributes:
        books: what it did.
        ratios: of the limits of the curve.
        top_power_limit_w: the top limit [W].
        n_again: how many of the looks are counted at two limits.
        correlation: of the errors of the ratios, in their order, shape (n_ratios, n_ratios): looks at one limit say
            something of its neighbours. It holds for rates and for energies. None: the errors are independent.
    """

    books: Books
    ratios: Sequence[LimitRatios]
    top_power_limit_w: float
    n_again: int = 0
    correlation: Values | None = None


def estimate_saving(
    segments: Sequence[Segment], *, signal: Signal | None, host_power_w: float = 0.0, pue: float = 1.0
) -> KnownSaving | UnknownSaving:
    """Return what a run has saved so far, or why that is not known.

    Args:
        segments: the parts of the run, one after the other; of each the twin is as far ahead as of those before.
        signal: the newest values, from the run's start on; this and the next ones are those of `Counterfactual`.
        host_power_w: what the rest of the machine draws all the time [W].
        pue: what the building draws per watt of the machine.
    """
    n_looks = sum(sum(each.n_looks for each in segment.ratios) - segment.n_again for segment in segments)
    parts: list[tuple[Segment, Counterfactual]] = []
    total: Saving | None = None
    for segment in segments:
        if not segment.books.slots:
            continue
        part = Counterfactual(
            segment.books,
            segment.ratios,
            top_power_limit_w=segment.top_power_limit_w,
            signal=signal,
            host_power_w=host_power_w,
            pue=pue,
            ahead_s=0.0 if total is None else max(total.duration_s - total.baseline_duration_s, 0.0),
        )
        parts.append((segment, part))
        total = part.saving() if total is None else total.plus(part.saving())
    if total is None:
        return UnknownSaving(code="too_early", n_looks=n_looks)
    if all(part.is_unchanged for _, part in parts):
        return KnownSaving(saving=total, is_unchanged=True)
    is_at_top = all(part.is_at_top for _, part in parts)
    if n_looks < MIN_LOOKS and not is_at_top:
        return UnknownSaving(code="too_early", n_looks=n_looks)
    found = [_under_errors(part, segment) for segment, part in parts]
    shared = [_under_shared_error(part) for _, part in parts]
    known = _with_intervals(total, [each.twins for each in found], [each.twins for each in shared], n_looks, is_at_top)
    if isinstance(known, UnknownSaving):
        return known
    pinned = _pinned_cost([part for _, part in parts], found, shared)
    return replace(known, split=_split(total, found, shared, is_at_top=is_at_top), pinned=pinned)


def _pinned_cost(
    parts: Sequence[Counterfactual], found: Sequence["_Outcomes"], shared: Sequence["_Outcomes"]
) -> PinnedCost | None:
    """Return what pinned limits have cost, where there were any, and it is known to a point of what was used there."""
    used = [sum(each) for each in zip(*(part.pinned_use for part in parts), strict=True)]
    spreads, shifts = ([each.pinned for each in outcomes] for outcomes in (found, shared))
    own = [part.pinned_extra(*part.known_ratios) for part in parts]
    extras = [each[0] for each in own if each is not None]
    if not min(used) > 0 or len(extras) < len(parts):
        return None
    halves = []
    for column, amount in enumerate(used):
        shift = sum(float(each[1, column] - each[0, column]) for each in shifts if each is not None)
        errors = [float(each[:, column].std()) for each in spreads if each is not None]
        halves.append(NORMAL_QUANTILE * math.hypot(*errors, shift, LUCK_RATIO * amount))
    if any(half > MAX_CI90_RATIO * amount for half, amount in zip(halves, used, strict=True)):
        return None
    extra_s, extra_j = (float(each) for each in sum(extras))
    return PinnedCost(extra_s=extra_s, extra_ci90_s=halves[0], extra_energy_j=extra_j, extra_energy_ci90_j=halves[1])


def _with_intervals(
    total: Saving, twins: Sequence[Twins], shared: Sequence[Twins], n_looks: int, is_at_top: bool
) -> KnownSaving | UnknownSaving:
    """Return a saving with its intervals: but for what they share, the errors of two curves have nothing in common."""
    half_ratios = []
    for own, baseline, spreads, shifts in (
        (
            total.signal_energy,
            total.baseline_signal_energy,
            [each.signal_energy for each in twins],
            [each.signal_energy for each in shared],
        ),
        (
            total.energy_j,
            total.baseline_energy_j,
            [each.energy_j for each in twins],
            [each.energy_j for each in shared],
        ),
        (total.duration_s, total.baseline_duration_s, [each.duration_s for each in twins], []),
    ):
        shift = sum(float(each[1] - each[0]) for each in shifts)
        if not (baseline > abs(own) / MOST_TIMES and sum(each.min() for each in spreads) > 0):
            return UnknownSaving(code="no_baseline", n_looks=n_looks)
        error_ratio = own / baseline * math.hypot(*(each.std() for each in spreads), shift) / baseline
        half_ratios.append(NORMAL_QUANTILE * math.hypot(error_ratio, 0.0 if is_at_top else LUCK_RATIO))
    if max(half_ratios) > MAX_CI90_RATIO:
        return UnknownSaving(code="too_early", n_looks=n_looks)
    saved, energy, slowdown = half_ratios
    return KnownSaving(
        saving=total, saved_ci90_ratio=saved, saved_energy_ci90_ratio=energy, slowdown_ci90_ratio=slowdown
    )


def correlation_of(covariance: Values) -> Values:
    """Return the correlation to a covariance, shape (n, n); what has no variance has none with anything."""
    sds = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
    scale = np.divide(1.0, sds, out=np.zeros_like(sds), where=sds > 0)
    return np.asarray(covariance * np.outer(scale, scale))


class _Outcomes(NamedTuple):
    """A part of a run under d sets of ratios: its twins, the parts of its saving (d, 3), what its pins cost (d, 2)."""

    twins: Twins
    parts: Values
    pinned: Values | None


def _under_ratios(counterfactual: Counterfactual, rate_ratios: Values, energy_ratios: Values) -> _Outcomes:
    ratios = rate_ratios, energy_ratios
    return _Outcomes(counterfactual.twins(*ratios), counterfactual.parts(*ratios), counterfactual.pinned_extra(*ratios))


def _split(total: Saving, found: Sequence[_Outcomes], shared: Sequence[_Outcomes], *, is_at_top: bool) -> Split | None:
    """Return the intervals of the parts of a saving: of each, in its own error and in that of the baseline."""
    halves = []
    for ratio, of_baseline, of_parts in (
        (total.better_limit_ratio, 1.0, (-1.0, -1.0, -1.0)),
        (total.following_ratio, 0.0, (1.0, 0.0, 0.0)),
        (total.measuring_ratio, 0.0, (0.0, 1.0, 1.0)),
    ):
        errors, shifts = (
            [(of_baseline - ratio) * each.twins.signal_energy + each.parts @ of_parts for each in each_part]
            for each_part in (found, shared)
        )
        shift = sum(float(each[1] - each[0]) for each in shifts)
        error_ratio = math.hypot(*(each.std() for each in errors), shift) / total.baseline_signal_energy
        halves.append(NORMAL_QUANTILE * math.hypot(error_ratio, 0.0 if is_at_top else LUCK_RATIO))
    if max(halves) > MAX_CI90_RATIO:
        return None
    return Split(better_limit_ci90_ratio=halves[0], following_ci90_ratio=halves[1], measuring_ci90_ratio=halves[2])


def _under_errors(counterfactual: Counterfactual, segment: Segment) -> _Outcomes:
    """Return twin and parts at each point of the design, under the errors of the ratios there."""
    known = counterfactual.known
    rates = np.array([each.rate_ratio for each in known])
    energies = np.array([each.energy_ratio for each in known])
    n_errors = len(known) - 1  # the last one is the top limit, which has none
    points = normal_design(2 * n_errors)
    rate_errors, energy_errors = np.zeros((2, len(points), len(known)))
    root = np.eye(n_errors)
    if segment.correlation is not None:
        numbers = [list(segment.ratios).index(each) for each in known[:-1]]
        root = _root_of(segment.correlation[np.ix_(numbers, numbers)])
    rate_errors[:, :-1] = points[:, :n_errors] @ root
    energy_errors[:, :-1] = points[:, n_errors:] @ root
    return _under_ratios(
        counterfactual,
        rates + rate_errors * [each.rate_error_ratio for each in known],
        energies + energy_errors * [each.energy_error_ratio for each in known],
    )


def _under_shared_error(counterfactual: Counterfactual) -> _Outcomes:
    """Return twin and parts without the error that all limits have in common, and with one standard deviation of it."""
    known = counterfactual.known
    rates = np.array([each.rate_ratio for each in known])
    energies = np.array([[each.energy_ratio, each.energy_ratio + each.shared_error_ratio] for each in known]).T
    return _under_ratios(counterfactual, np.tile(rates, (2, 1)), energies)


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
