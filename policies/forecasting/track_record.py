"""Issued forecasts, kept until they can be verified, and their verification against what came.

One forecast an hour is kept, for a day, however often one is made: a ring of fixed size. When the value of a lead
becomes known, its errors are taken once; a later revision of the value does not take them again.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.series import SAME_S, sample
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import HOUR_S, Values

N_ISSUED: Final = 30
"""A day of hours, and some for values that come late."""
PERIOD_S: Final = HOUR_S


class IssuedForecast(NamedTuple):
    """A forecast at c leads.

    Attributes:
        members: of each model, shape (m, c).
        provider: of the provider, shape (c,).
        issued: the combined estimate, shape (c,).
        interval: its prediction interval, shape (2, c).
    """

    members: Values
    provider: Values
    issued: Values
    interval: Values


class VerifiedForecasts(NamedTuple):
    """Forecasts of k values that have come, at most one for each lead.

    Attributes:
        lead: the index of the lead of each, shape (k,).
        members: as in `IssuedForecast`, shape (m, k).
        provider: shape (k,).
        issued: shape (k,).
        interval: shape (2, k).
        actual: the values that have come, shape (k,).
        times_s: the middles of their steps, shape (k,) [Unix s].
    """

    lead: NDArray[np.int_]
    members: Values
    provider: Values
    issued: Values
    interval: Values
    actual: Values
    times_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrackRecord:
    """The ring of issued forecasts.

    Attributes:
        leads: the leads [steps], shape (c,).
        step_s: the step [s].
        origins_s: the origin of each forecast, the oldest first, shape (r,); NaN where there is none [Unix s].
        pending: which of its values are not verified yet, shape (r, c).
        values: members, provider, issued and interval of each, shape (r, m + 4, c).
    """

    leads: NDArray[np.int_]
    step_s: float
    origins_s: NDArray[np.float64]
    pending: NDArray[np.bool_]
    values: Values


def empty_track_record(leads: NDArray[np.int_], step_s: float, n_members: int) -> TrackRecord:
    """Return a track record without forecasts."""
    shape = (N_ISSUED, len(leads))
    return TrackRecord(
        leads=leads,
        step_s=step_s,
        origins_s=np.full(N_ISSUED, np.nan),
        pending=np.zeros(shape, dtype=np.bool_),
        values=np.full((N_ISSUED, n_members + 4, len(leads)), np.nan),
    )


def is_issue_due(record: TrackRecord, end_s: float) -> bool:
    """Return whether the last forecast is an hour old, or there is none."""
    last_s = record.origins_s[-1]
    return bool(np.isnan(last_s) or end_s >= last_s + PERIOD_S - SAME_S)


def with_issued(record: TrackRecord, end_s: float, forecast: IssuedForecast) -> TrackRecord:
    """Return the record with a forecast made at `end_s`; the oldest one is dropped."""
    newest = np.vstack([forecast.members, forecast.provider, forecast.issued, forecast.interval])
    return replace(
        record,
        origins_s=np.append(record.origins_s[1:], end_s),
        pending=np.vstack([record.pending[1:], np.ones((1, len(record.leads)), dtype=np.bool_)]),
        values=np.concatenate((record.values[1:], newest[None])),
    )


def verify(record: TrackRecord, history: Signal, end_s: float) -> tuple[TrackRecord, list[VerifiedForecasts]]:
    """Return the record without the forecasts that can be verified by `end_s`, and those, in the order of time.

    A value counts at the middle of its step.
    """
    stops_s = record.origins_s[:, None] + record.leads * record.step_s
    row, lead = np.nonzero(record.pending & (stops_s <= end_s + SAME_S))
    if not len(row):
        return record, []
    times_s = stops_s[row, lead] - record.step_s / 2
    actual = sample(history, times_s)
    known = ~np.isnan(actual)
    row, lead, actual, times_s = row[known], lead[known], actual[known], times_s[known]
    pending = record.pending.copy()
    pending[row, lead] = False
    values = record.values[row, :, lead].T
    verified = []
    left = np.arange(len(lead))
    while len(left):
        _, first = np.unique(lead[left], return_index=True)
        now = left[first]
        chosen = values[:, now]
        verified.append(
            VerifiedForecasts(
                lead=lead[now],
                members=chosen[:-4],
                provider=chosen[-4],
                issued=chosen[-3],
                interval=chosen[-2:],
                actual=actual[now],
                times_s=times_s[now],
            )
        )
        left = np.delete(left, first)
    return replace(record, pending=pending), verified
