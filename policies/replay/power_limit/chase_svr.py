"""Chase's own forecast: support vector regression with a linear kernel, by scikit-learn where that is installed.

It is fitted once, to the 24 h before a run, on the sine and cosine of the time of day and the previous value, and
then predicts one step ahead throughout the run (arXiv:2303.02508).
"""

from typing import Final

import numpy as np
from sklearn.svm import SVR

from policies.replay.power_limit.chase import last_known
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.vocabulary.units import DAY_S, Values

MIN_PAIRS: Final = 3


def expect_by_regression(scenario: Scenario, spec: RunSpec, n_periods: int) -> Values:
    """Expect for each period the prediction, shape (n_periods,); the last value where the history is too short."""
    known = last_known(scenario, spec.start_s + spec.period_s * np.arange(float(n_periods)))
    edges_s = spec.start_s - np.arange(0.0, DAY_S, spec.period_s)[::-1]
    past = last_known(scenario, edges_s)
    features, targets = _features(edges_s[:-1], past[:-1]), past[1:]
    is_known = ~np.isnan(features).any(axis=1)
    if is_known.sum() < MIN_PAIRS:
        return known
    fitted = SVR(kernel="linear").fit(features[is_known], targets[is_known])
    starts_s = spec.start_s + spec.period_s * np.arange(float(n_periods))
    expected = np.asarray(fitted.predict(_features(starts_s, np.nan_to_num(known))), dtype=np.float64)
    return np.where(np.isnan(known), np.nan, expected)


def _features(times_s: Values, before: Values) -> Values:
    """Return sine and cosine of the time of day, and the previous value, shape (n, 3)."""
    phase = 2 * np.pi * times_s / DAY_S
    return np.column_stack([np.sin(phase), np.cos(phase), before])
