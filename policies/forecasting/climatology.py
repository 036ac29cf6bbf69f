"""Climatologies: the usual value at the time of the day, and the anomaly, a value's deviation from it.

For each step it is a weighted mean of the values at the same time of the days before: of the last two weeks, of a
month, or of yesterday alone. A grid's habits change within weeks, the noise of a day does not: no window is best
everywhere. It is known a day ahead.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.series import Series
from policies.vocabulary.units import Values

N_DAYS: Final = np.array([14, 28, 1])
"""The window of each climatology, in days."""
HALF_LIVES_DAYS: Final = (5.0, float("inf"), 1.0)
"""The age at which a day counts half in it."""
N_CLIMATOLOGIES: Final = len(HALF_LIVES_DAYS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Climatologies:
    """The climatologies of a series of n steps.

    Attributes:
        first_steps: the first step whose climatology has its whole window, or half of the series, shape (u,).
        values: the usual value, shape (u, n + S): at each step, and on the day after them.
        anomaly: the deviation of each step from it, shape (u, n).
    """

    first_steps: NDArray[np.int_]
    values: Values
    anomaly: Values

    def ahead(self, n_leads: int) -> Values:
        """Return the usual value at each step after the series, shape (u, n_leads); after a day, it repeats."""
        n, m = self.anomaly.shape[1], self.values.shape[1]
        return np.asarray(self.values[:, n + np.arange(n_leads) % (m - n)], dtype=np.float64)


def fit_climatologies(series: Series, *, n_last_days: int | None = None) -> Climatologies:
    """Return the climatologies of a series; without a value on an earlier day, it is the step's own, or the last day's.

    Args:
        series: the history.
        n_last_days: the days to return, as if the series began there; None for all.
    """
    n, day = len(series.values), series.day
    n_days = -(-n // day)
    lead_in = n_days * day - n
    values, known = series.values, series.known
    if lead_in:
        values = np.concatenate((np.full(lead_in, values[0]), values))
        known = np.concatenate((np.zeros(lead_in, dtype=np.bool_), known))
    begin = 0 if n_last_days is None else max(0, n_days - n_last_days)
    usual = _means(values.reshape(n_days, day), known.reshape(n_days, day), begin)
    cut = lead_in if begin == 0 else 0
    usual, values_since = usual[:, cut:], values[begin * day + cut :]
    first_steps = np.minimum(np.maximum(2, np.minimum(N_DAYS, n_days // 2)) * day, n)
    return Climatologies(first_steps=first_steps, values=usual, anomaly=values_since - usual[:, : len(values_since)])


def _means(days: Values, known: NDArray[np.bool_], begin: int) -> Values:
    """Return the means over the days before each day from `begin` on, and before the day after all, shape (u, m S)."""
    weights = _weights(len(days), begin)
    if known.all():
        totals, sums = weights.sum(axis=2)[..., None], weights @ days
    else:
        totals, sums = weights @ known.astype(np.float64), weights @ (days * known)
    fallback = np.concatenate((days[begin:], days[-1:]))
    means = np.where(totals > 0, sums / np.where(totals > 0, totals, 1.0), fallback)
    return np.asarray(means.reshape(N_CLIMATOLOGIES, -1), dtype=np.float64)


@lru_cache(maxsize=64)
def _weights(n_days: int, begin: int) -> Values:
    """Return the weight of each of n days for the days from `begin` on and the next day, shape (u, m, n)."""
    ages = np.arange(begin, n_days + 1)[:, None] - np.arange(n_days)
    within = (ages >= 1) & (ages <= N_DAYS[:, None, None])
    weights = np.where(within, 0.5 ** (ages / np.array(HALF_LIVES_DAYS)[:, None, None]), 0.0)
    weights.flags.writeable = False
    return weights
