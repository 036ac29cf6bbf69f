"""How far forecasts have been off of late, by how far they looked ahead."""

from typing import Final

import numpy as np

from policies.forecasting.forecaster import ForecasterState
from policies.vocabulary.units import HOUR_S, Values

N_HOURS: Final = 24


def rms_errors(state: ForecasterState) -> Values | None:
    """Return the root mean square errors of forecasts 1, 2, … 24 hours ahead, shape (24,), in the unit of the signal.

    They are those of the last four weeks, or of a backtest while there are fewer; None where there is none yet.
    """
    errors = state.intervals.errors.reshape(len(state.models.leads), -1)
    counts = (~np.isnan(errors)).sum(axis=1)
    if not counts.all():
        return None
    by_lead = np.sqrt(np.nansum(errors**2, axis=1) / counts)
    leads_s = state.models.leads.astype(np.float64) * state.step_s
    return np.asarray(np.interp(HOUR_S * np.arange(1, N_HOURS + 1), leads_s, by_lead), dtype=np.float64)
