"""Combines the models, and the provider's own forecast, weighted by their errors at each lead.

The weight of a model is its mean absolute error to the power of -6: models that are about as good share the weight, one
that is a third worse has a sixth of it. Optimal weights would need the covariances of the errors, whose own errors cost
more than they bring (Bates and Granger 1969, "The Combination of Forecasts"; Stock and Watson 2004, "Combination
Forecasts of Output Growth in a Seven-Country Data Set"). Absolute errors, not squares: where a signal jumps between
regimes, few errors are all of the squares.

Until the provider's forecast has been verified, it counts alone from three hours on, where weather forecasts win, and
not at all below, where nothing beats the last values.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.track_record import VerifiedForecasts
from policies.vocabulary.units import HOUR_S, Values

HALF_LIFE_SAMPLES: Final = 14 * 24.0
"""Errors are taken once an hour: two weeks."""
SHARPNESS: Final = 6.0
"""The power of the inverse mean absolute error."""
PROVIDER_LEAD_S: Final = 3 * HOUR_S
TINY: Final = 1e-12
"""Added to errors: a model may have none, as on a constant."""
PRIOR_SAMPLES: Final = 24.0
"""The prior of the provider's forecast weighs as much as a day of errors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Skill:
    """Mean absolute errors at each of c leads.

    Attributes:
        member_errors: of the models, shape (m, c).
        n_members: the number of errors behind each, shape (m, c).
        paired_errors: of the provider's forecast and of ours at the same times, shape (2, c).
        n_paired: the number of errors behind each pair, shape (c,).
    """

    member_errors: Values
    n_members: NDArray[np.int_]
    paired_errors: Values
    n_paired: NDArray[np.int_]


def unknown_skill(n_members: int, n_leads: int) -> Skill:
    """Return the skill before any error."""
    return Skill(
        member_errors=np.full((n_members, n_leads), np.nan),
        n_members=np.zeros((n_members, n_leads), dtype=np.int_),
        paired_errors=np.full((2, n_leads), np.nan),
        n_paired=np.zeros(n_leads, dtype=np.int_),
    )


def update_skill(skill: Skill, verified: VerifiedForecasts) -> Skill:
    """Return the skill after the errors of verified forecasts."""
    members, n_members = skill.member_errors.copy(), skill.n_members.copy()
    misses = np.abs(verified.members - verified.actual)
    rows, columns = np.nonzero(~np.isnan(misses))
    leads = verified.lead[columns]
    n_members[rows, leads] += 1
    members[rows, leads] = _running_mean(members[rows, leads], misses[rows, columns], n_members[rows, leads])
    own = weighted_mean(member_weights(skill)[:, verified.lead], verified.members)
    both = np.abs(np.vstack([verified.provider, own]) - verified.actual)
    columns = np.flatnonzero(~np.isnan(both).any(axis=0))
    leads = verified.lead[columns]
    paired_errors, n_paired = skill.paired_errors.copy(), skill.n_paired.copy()
    n_paired[leads] += 1
    paired_errors[:, leads] = _running_mean(paired_errors[:, leads], both[:, columns], n_paired[leads])
    return replace(skill, member_errors=members, n_members=n_members, paired_errors=paired_errors, n_paired=n_paired)


def weighted_mean(weights: Values, members: Values) -> Values:
    """Return the weighted mean of the models that have a value, weights and values both of shape (m, k)."""
    counted = np.where(np.isnan(members), 0.0, weights)
    counted = np.where(counted.sum(axis=0) > 0, counted, ~np.isnan(members))
    total = counted.sum(axis=0)
    mean = (counted * np.where(np.isnan(members), 0.0, members)).sum(axis=0) / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(total > 0, mean, np.nan), dtype=np.float64)


def member_weights(skill: Skill) -> Values:
    """Return the weight of each model at each lead, shape (m, c); 0 where its errors are not known."""
    known = skill.n_members > 0
    errors = np.where(known, skill.member_errors + TINY, np.inf)
    least = errors.min(axis=0)
    weights = (np.where(np.isinf(least), 1.0, least) / errors) ** SHARPNESS
    total = weights.sum(axis=0)
    return np.asarray(weights / np.where(total > 0, total, 1.0), dtype=np.float64)


def provider_weights(skill: Skill, leads_s: NDArray[np.float64]) -> Values:
    """Return the weight of the provider's forecast against ours at each lead, 0 to 1, shape (c,)."""
    prior = (leads_s > PROVIDER_LEAD_S).astype(np.float64)
    theirs, ours = np.where(skill.n_paired > 0, skill.paired_errors, 1.0) + TINY
    measured = 1 / (1 + (theirs / ours) ** SHARPNESS)
    n = np.minimum(skill.n_paired, HALF_LIFE_SAMPLES)
    return np.asarray((PRIOR_SAMPLES * prior + n * measured) / (PRIOR_SAMPLES + n), dtype=np.float64)


def _running_mean(mean: Values, miss: Values, n: NDArray[np.int_]) -> Values:
    """Return a mean with one more value: arithmetic at first, later exponential with a half-life."""
    share = np.maximum(1 / n, 1 - 0.5 ** (1 / HALF_LIFE_SAMPLES))
    return np.asarray(np.where(n > 1, mean + share * (miss - mean), miss), dtype=np.float64)
