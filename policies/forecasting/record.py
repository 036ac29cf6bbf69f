"""What was forecast, until it has come true, and the errors of it: everything that is learned from.

One snapshot an hour is kept, for a day, however often a forecast is made: a ring of fixed size. When the value that a
snapshot speaks of becomes known, its errors are taken, once: a later revision of the value does not take them again.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.forecasting.forecast import Values
from policies.forecasting.series import HOUR_S, SAME_S, sample
from policies.vocabulary.signal import Signal

N_SNAPSHOTS: Final = 30
"""A day of hours, and some in which a value may come late."""
PERIOD_S: Final = HOUR_S


class Snapshot(NamedTuple):
    """A forecast at the leads (c,): of each model (m, c), given (c,), issued (c,), with its band (2, c)."""

    members: Values
    given: Values
    issued: Values
    band: Values


class Outcome(NamedTuple):
    """Forecast values that have come true, k of them: the index of the lead of each, and what was said and came.

    `members` has the shape (m, k), `given`, `issued` and `actual` (k,), `band` (2, k).
    """

    lead: NDArray[np.int_]
    members: Values
    given: Values
    issued: Values
    band: Values
    actual: Values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Record:
    """The ring of snapshots.

    Attributes:
        leads: the leads [steps], shape (c,).
        step_s: the step [s].
        origins_s: from where each snapshot looks ahead, the oldest first, shape (r,); NaN where there is none [Unix s].
        pending: which of its values have not come true, shape (r, c).
        values: members, given, issued and band of each, shape (r, m + 4, c).
    """

    leads: NDArray[np.int_]
    step_s: float
    origins_s: NDArray[np.float64]
    pending: NDArray[np.bool_]
    values: Values


def empty_record(leads: NDArray[np.int_], step_s: float, n_members: int) -> Record:
    """Return a record without snapshots."""
    shape = (N_SNAPSHOTS, len(leads))
    return Record(
        leads=leads,
        step_s=step_s,
        origins_s=np.full(N_SNAPSHOTS, np.nan),
        pending=np.zeros(shape, dtype=np.bool_),
        values=np.full((N_SNAPSHOTS, n_members + 4, len(leads)), np.nan),
    )


def wants_snapshot(record: Record, end_s: float) -> bool:
    """Return whether the last snapshot is an hour old, or there is none."""
    last_s = record.origins_s[-1]
    return bool(np.isnan(last_s) or end_s >= last_s + PERIOD_S - SAME_S)


def with_snapshot(record: Record, end_s: float, snapshot: Snapshot) -> Record:
    """Return the record with a snapshot that looks ahead from `end_s`; the oldest one is forgotten."""
    newest = np.vstack([snapshot.members, snapshot.given, snapshot.issued, snapshot.band])
    return replace(
        record,
        origins_s=np.append(record.origins_s[1:], end_s),
        pending=np.vstack([record.pending[1:], np.ones((1, len(record.leads)), dtype=np.bool_)]),
        values=np.concatenate((record.values[1:], newest[None])),
    )


def settle(record: Record, history: Signal, end_s: float) -> tuple[Record, list[Outcome]]:
    """Return the record without what has come true by `end_s`, and that, in the order of time.

    A value counts at the middle of its step. No outcome has two values of one lead.
    """
    stops_s = record.origins_s[:, None] + record.leads * record.step_s
    row, lead = np.nonzero(record.pending & (stops_s <= end_s + SAME_S))
    if not len(row):
        return record, []
    actual = sample(history, stops_s[row, lead] - record.step_s / 2)
    known = ~np.isnan(actual)
    row, lead, actual = row[known], lead[known], actual[known]
    pending = record.pending.copy()
    pending[row, lead] = False
    values = record.values[row, :, lead].T
    outcomes = []
    left = np.arange(len(lead))
    while len(left):
        _, first = np.unique(lead[left], return_index=True)
        now = left[first]
        chosen = values[:, now]
        outcomes.append(Outcome(lead[now], chosen[:-4], chosen[-4], chosen[-3], chosen[-2:], actual[now]))
        left = np.delete(left, first)
    return replace(record, pending=pending), outcomes
