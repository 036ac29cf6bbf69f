"""The errors of the forecasts of the last four weeks, each forecast whole: which of its hours were off together."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.track_record import VerifiedForecasts
from policies.vocabulary.units import HOUR_S, Values

N_HOURS: Final = 24
N_FORECASTS: Final = 28 * N_HOURS
"""One an hour is kept."""


class PastErrors(NamedTuple):
    """The errors of n forecasts at c leads.

    Attributes:
        origins_s: when each was made, ascending, in whole seconds, shape (n,) [Unix s].
        errors: actual minus estimate, shape (n, c); NaN where it is not known, or not yet.
    """

    origins_s: NDArray[np.float64]
    errors: Values

    def with_verified(self, verified: Iterable[VerifiedForecasts], leads_s: NDArray[np.float64]) -> "PastErrors":
        """Return them with those of verified forecasts.

        Args:
            verified: the forecasts.
            leads_s: how far ahead the end of the step is that each lead forecasts, shape (c,) [s].
        """
        origins_s, errors, step_s = self.origins_s, self.errors, leads_s[0]
        for each in verified:
            made_s = np.rint(each.times_s - leads_s[each.lead] + step_s / 2)
            kept_s = np.union1d(origins_s, made_s)[-N_FORECASTS:]
            rows, is_kept = np.searchsorted(kept_s, origins_s), origins_s >= kept_s[0]
            grown = np.full((len(kept_s), len(leads_s)), np.nan)
            grown[rows[is_kept]] = errors[is_kept]
            is_kept = made_s >= kept_s[0]
            grown[np.searchsorted(kept_s, made_s[is_kept]), each.lead[is_kept]] = (each.actual - each.issued)[is_kept]
            origins_s, errors = kept_s, grown
        return PastErrors(origins_s, errors)

    def by_hour(self, leads_s: NDArray[np.float64]) -> Values | None:
        """Return the errors 1, 2, … 24 hours ahead, shape (n, 24); None where there is none of an hour yet."""
        errors = self.errors[:, np.searchsorted(leads_s, HOUR_S * np.arange(1, N_HOURS + 1) - 1)]
        return None if np.isnan(errors).all(axis=0).any() else errors


def no_errors(n_leads: int) -> PastErrors:
    """Return no errors at some leads."""
    return PastErrors(np.empty(0), np.empty((0, n_leads)))


def rms_errors(errors: Values) -> Values:
    """Return the root mean square error of each hour, shape (24,), of errors of shape (n, 24)."""
    return np.asarray(np.sqrt(np.nanmean(errors**2, axis=0)))
