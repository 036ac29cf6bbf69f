"""Chase's own regression: support vectors with a linear kernel, by scikit-learn where that is installed.

It is fitted once, to the 24 h before a run, on sine and cosine of the time of the day and the value before, and then
looks one step ahead all through the run (arXiv:2303.02508).
"""

from typing import Final

import numpy as np
from sklearn.svm import SVR

from policies.replay.power_limit.chase import DAY_S, last_known
from policies.replay.power_limit.scenario import RunSpec, Scenario, Values

MIN_PAIRS: Final = 3


def by_support_vectors(world: Scenario, job: RunSpec, n_periods: int) -> Values:
    """Expect of each period what the regression says, shape (n_periods,); the last value where it has no history."""
    known = last_known(world, job.start_s + job.period_s * np.arange(float(n_periods)))
    edges_s = job.start_s - np.arange(0.0, DAY_S, job.period_s)[::-1]
    past = last_known(world, edges_s)
    features, targets = _features(edges_s[:-1], past[:-1]), past[1:]
    is_known = ~np.isnan(features).any(axis=1)
    if is_known.sum() < MIN_PAIRS:
        return known
    fitted = SVR(kernel="linear").fit(features[is_known], targets[is_known])
    starts_s = job.start_s + job.period_s * np.arange(float(n_periods))
    expected = np.asarray(fitted.predict(_features(starts_s, np.nan_to_num(known))), dtype=np.float64)
    return np.where(np.isnan(known), np.nan, expected)


def _features(times_s: Values, before: Values) -> Values:
    """Return sine and cosine of the time of the day at which a value begins to hold, and the one before, (n, 3)."""
    phase = 2 * np.pi * times_s / DAY_S
    return np.column_stack([np.sin(phase), np.cos(phase), before])
