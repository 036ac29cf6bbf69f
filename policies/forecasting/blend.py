"""How much each model counts, and the provider's own forecast beside them: by their errors, for each lead.

The weight of a model is its mean absolute error to the power of -6: models that are about as good share the weight, one
that is a third worse has a sixth of it. Optimal weights would need the covariances of the errors, whose own errors cost
more than they bring (Bates and Granger 1969, "The Combination of Forecasts"; Stock and Watson 2004, "Combination
Forecasts of Output Growth in a Seven-Country Data Set"). Absolute errors, not squares: where a signal jumps between
regimes, few errors are all of the squares.

Where the provider's forecast has not been seen to come true, it counts alone from three hours on, where weather
forecasts win, and not at all below, where nothing beats the last values.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.forecast import Values
from policies.forecasting.record import Outcome
from policies.forecasting.series import HOUR_S

HALF_LIFE_SAMPLES: Final = 14 * 24.0
"""Errors are taken once an hour: two weeks."""
SHARPNESS: Final = 6.0
"""The power of the inverse mean absolute error."""
GIVEN_LEAD_S: Final = 3 * HOUR_S
TINY: Final = 1e-12
"""Added to errors: a model may never be wrong, as of a constant."""
PRIOR_SAMPLES: Final = 24.0
"""What was assumed of the provider's forecast weighs as much as a day of errors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Skill:
    """Mean absolute errors at each of c leads: of the models (m, c), and where one was given, of it and of ours (2, c).

    `n_members` and `n_given` count the errors behind each, shapes (m, c) and (c,).
    """

    members: Values
    n_members: NDArray[np.int_]
    rivals: Values
    n_given: NDArray[np.int_]


def unknown_skill(n_members: int, n_leads: int) -> Skill:
    """Return what is known before any error."""
    return Skill(
        members=np.full((n_members, n_leads), np.nan),
        n_members=np.zeros((n_members, n_leads), dtype=np.int_),
        rivals=np.full((2, n_leads), np.nan),
        n_given=np.zeros(n_leads, dtype=np.int_),
    )


def learned(skill: Skill, outcome: Outcome) -> Skill:
    """Return the skill after errors of at most one value a lead; one of every model, and of the given where it was."""
    members, n_members = skill.members.copy(), skill.n_members.copy()
    misses = np.abs(outcome.members - outcome.actual)
    rows, columns = np.nonzero(~np.isnan(misses))
    leads = outcome.lead[columns]
    n_members[rows, leads] += 1
    members[rows, leads] = _mean(members[rows, leads], misses[rows, columns], n_members[rows, leads])
    ours = np.abs(combined(weights_of(skill), outcome) - outcome.actual)
    both = np.vstack([np.abs(outcome.given - outcome.actual), ours])
    columns = np.flatnonzero(~np.isnan(both).any(axis=0))
    leads = outcome.lead[columns]
    rivals, n_given = skill.rivals.copy(), skill.n_given.copy()
    n_given[leads] += 1
    rivals[:, leads] = _mean(rivals[:, leads], both[:, columns], n_given[leads])
    return replace(skill, members=members, n_members=n_members, rivals=rivals, n_given=n_given)


def combined(weights: Values, outcome: Outcome) -> Values:
    """Return what the models together had forecast, shape (k,)."""
    return mixed(weights[:, outcome.lead], outcome.members)


def mixed(weights: Values, members: Values) -> Values:
    """Return the weighted mean of the models that have a value, both of shape (m, k)."""
    counted = np.where(np.isnan(members), 0.0, weights)
    counted = np.where(counted.sum(axis=0) > 0, counted, ~np.isnan(members))
    total = counted.sum(axis=0)
    mean = (counted * np.where(np.isnan(members), 0.0, members)).sum(axis=0) / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(total > 0, mean, np.nan), dtype=np.float64)


def weights_of(skill: Skill) -> Values:
    """Return the weight of each model at each lead, shape (m, c); 0 where its errors are not known."""
    known = skill.n_members > 0
    errors = np.where(known, skill.members + TINY, np.inf)
    least = errors.min(axis=0)
    weights = (np.where(np.isinf(least), 1.0, least) / errors) ** SHARPNESS
    total = weights.sum(axis=0)
    return np.asarray(weights / np.where(total > 0, total, 1.0), dtype=np.float64)


def given_weights(skill: Skill, leads_s: NDArray[np.float64]) -> Values:
    """Return the weight of the provider's forecast against ours at each lead, 0 to 1, shape (c,)."""
    prior = (leads_s > GIVEN_LEAD_S).astype(np.float64)
    theirs, ours = np.where(skill.n_given > 0, skill.rivals, 1.0) + TINY
    measured = 1 / (1 + (theirs / ours) ** SHARPNESS)
    n = np.minimum(skill.n_given, HALF_LIFE_SAMPLES)
    return np.asarray((PRIOR_SAMPLES * prior + n * measured) / (PRIOR_SAMPLES + n), dtype=np.float64)


def _mean(mean: Values, miss: Values, n: NDArray[np.int_]) -> Values:
    """Return a mean with one more value: plain at first, later with a half-life."""
    share = np.maximum(1 / n, 1 - 0.5 ** (1 / HALF_LIFE_SAMPLES))
    return np.asarray(np.where(n > 1, mean + share * (miss - mean), miss), dtype=np.float64)
