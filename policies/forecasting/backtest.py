"""Errors at once: what the models would have forecast in the last days, fitted to what was known before them.

A forecaster that starts with weeks of history need not wait a day to know how wrong it is.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from policies.forecasting.bands import N_ERRORS, Bands, no_bands
from policies.forecasting.blend import Skill, mixed, unknown_skill, weights_of
from policies.forecasting.models import N_MEMBERS, Models, fit, hindcast
from policies.forecasting.series import HOUR_S, Series

SHARE: Final = 3
"""One third of the history is forecast from the rest."""
MAX_DAYS: Final = 14
MAX_ROWS: Final = 500
"""Errors need no fit of the last precision."""


def backtest(series: Series, models: Models, *, is_carbon: bool) -> tuple[Skill, Bands]:
    """Return the errors of the models and of their mean, from a forecast an hour in the last third of a history.

    Args:
        series: the past.
        models: what was fitted to it, of which only the rung and the leads are used.
        is_carbon: as for the fit.
    """
    n, day = len(series.values), series.day
    n_leads = len(models.leads)
    n_days = min(MAX_DAYS, n // day // SHARE)
    if models.recursion is None or n_days < 1:
        return unknown_skill(N_MEMBERS, n_leads), no_bands(n_leads)
    cut = n - n_days * day
    before = fit(series.until(cut), rung=models.name, is_carbon=is_carbon, max_rows=MAX_ROWS)
    origins = np.arange(cut - 1, n - 1, round(HOUR_S / series.step_s))
    targets = origins[:, None] + models.leads
    known = (targets < n) & series.known[np.minimum(targets, n - 1)]
    actual = np.where(known, series.values[np.minimum(targets, n - 1)], np.nan)
    members = hindcast(before, series, origins)
    counts = np.broadcast_to(known.sum(axis=0), (N_MEMBERS, n_leads)) * ~np.isnan(members[:, 0])
    misses = np.where(known, np.abs(np.nan_to_num(members - actual)), 0.0).sum(axis=1)
    skill = replace(
        unknown_skill(N_MEMBERS, n_leads),
        members=np.where(counts > 0, misses / np.maximum(counts, 1), np.nan),
        n_members=counts,
    )
    weights = np.broadcast_to(weights_of(skill)[:, None], members.shape)
    errors = actual - mixed(weights.reshape(N_MEMBERS, -1), members.reshape(N_MEMBERS, -1)).reshape(actual.shape)
    first = np.argsort(np.isnan(errors), axis=0, kind="stable")
    ring = np.full((n_leads, N_ERRORS), np.nan)
    ring[:, : len(origins)] = np.take_along_axis(errors, first, axis=0).T
    return skill, replace(no_bands(n_leads), errors=ring, n_errors=known.sum(axis=0))
