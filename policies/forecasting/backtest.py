"""Backtest: the errors that models fitted to the first part of a history would have made in its last days.

So a forecaster that starts with weeks of history has weights and intervals at once.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from policies.forecasting.ensemble import Skill, member_weights, unknown_skill, weighted_mean
from policies.forecasting.models import N_MEMBERS, FittedModels, fit_models, hindcast
from policies.forecasting.past_errors import PastErrors, no_errors
from policies.forecasting.prediction_intervals import PredictionIntervals, intervals_of_errors, no_intervals
from policies.forecasting.series import Series, hour_of_day
from policies.vocabulary.units import HOUR_S

SHARE: Final = 3
"""One third of the history is forecast from the rest."""
MAX_DAYS: Final = 14
MAX_ROWS: Final = 500
"""A less precise fit suffices for errors."""


def backtest(series: Series, models: FittedModels, *, is_carbon: bool) -> tuple[Skill, PredictionIntervals, PastErrors]:
    """Return the errors of the models and of their mean, from a forecast an hour in the last third of a history.

    Args:
        series: the history.
        models: fitted to all of it; only the tier and the leads are used.
        is_carbon: as for the fit.
    """
    n, day = len(series.values), series.day
    n_leads = len(models.leads)
    n_days = min(MAX_DAYS, n // day // SHARE)
    if models.autoregression is None or n_days < 1:
        return unknown_skill(N_MEMBERS, n_leads), no_intervals(n_leads), no_errors(n_leads)
    cut = n - n_days * day
    before = fit_models(series.until(cut), tier=models.tier, is_carbon=is_carbon, max_rows=MAX_ROWS)
    origins = np.arange(cut - 1, n - 1, round(HOUR_S / series.step_s))
    targets = origins[:, None] + models.leads
    known = (targets < n) & series.known[np.minimum(targets, n - 1)]
    actual = np.where(known, series.values[np.minimum(targets, n - 1)], np.nan)
    members = hindcast(before, series, origins)
    counts = np.broadcast_to(known.sum(axis=0), (N_MEMBERS, n_leads)) * ~np.isnan(members[:, 0])
    misses = np.where(known, np.abs(np.nan_to_num(members - actual)), 0.0).sum(axis=1)
    skill = replace(
        unknown_skill(N_MEMBERS, n_leads),
        member_errors=np.where(counts > 0, misses / np.maximum(counts, 1), np.nan),
        n_members=counts,
    )
    weights = np.broadcast_to(member_weights(skill)[:, None], members.shape)
    errors = actual - weighted_mean(weights.reshape(N_MEMBERS, -1), members.reshape(N_MEMBERS, -1)).reshape(
        actual.shape
    )
    origins_s = np.rint(series.middles_s(origins) + series.step_s / 2)
    return skill, intervals_of_errors(errors, hour_of_day(series.middles_s(targets))), PastErrors(origins_s, errors)
