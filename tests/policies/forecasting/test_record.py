"""What was forecast until it has come true."""

import numpy as np
import pytest

from policies.forecasting.record import (
    N_SNAPSHOTS,
    Record,
    Snapshot,
    empty_record,
    settle,
    wants_snapshot,
    with_snapshot,
)
from tests.policies.forecasting.grids import HOUR_S, START_S, grid

LEADS = np.array([1, 2, 4])
NAN = float("nan")


def snapshot(value: float) -> Snapshot:
    row = np.full(3, value)
    return Snapshot(members=np.array([row, row + 1]), given=row + 2, issued=row + 3, band=np.array([row - 5, row + 5]))


def record(n_hours: int = 1) -> Record:
    made = empty_record(LEADS, HOUR_S, 2)
    for hour in range(n_hours):
        made = with_snapshot(made, START_S + hour * HOUR_S, snapshot(float(hour)))
    return made


def test_what_has_come_true_is_taken_once() -> None:
    history = grid([10.0, 20.0, 30.0, 40.0, 50.0])  # what is not yet past is not looked at
    made, outcomes = settle(record(), history, START_S + 2 * HOUR_S)
    assert [(o.lead.tolist(), o.actual.tolist()) for o in outcomes] == [([0, 1], [10.0, 20.0])]
    assert outcomes[0].members.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert (outcomes[0].given[0], outcomes[0].issued[0], outcomes[0].band[:, 0].tolist()) == (2.0, 3.0, [-5.0, 5.0])
    _, again = settle(made, grid([99.0, 99.0, 99.0]), START_S + 3 * HOUR_S)
    assert again == []


def test_a_missing_value_is_waited_for() -> None:
    made, outcomes = settle(record(), grid([NAN, 20.0]), START_S + 2 * HOUR_S)
    assert outcomes[0].lead.tolist() == [1]
    _, late = settle(made, grid([10.0, 20.0]), START_S + 2 * HOUR_S)
    assert (late[0].lead.tolist(), late[0].actual.tolist()) == ([0], [10.0])


def test_no_outcome_has_two_values_of_one_lead_and_the_oldest_comes_first() -> None:
    _, outcomes = settle(record(3), grid([10.0, 20.0, 30.0, 40.0, 50.0]), START_S + 5 * HOUR_S)
    assert [outcome.lead.tolist() for outcome in outcomes] == [[0, 1, 2], [0, 1, 2], [0, 1]]
    assert [outcome.actual[0] for outcome in outcomes] == [10.0, 20.0, 30.0]


def test_one_snapshot_an_hour_is_wanted() -> None:
    assert wants_snapshot(empty_record(LEADS, HOUR_S, 2), START_S)
    assert not wants_snapshot(record(), START_S + 0.5 * HOUR_S)
    assert wants_snapshot(record(), START_S + HOUR_S)


@pytest.mark.parametrize("n_hours", [1, N_SNAPSHOTS, 200])
def test_the_ring_does_not_grow(n_hours: int) -> None:
    made = record(n_hours)
    assert made.values.shape == (N_SNAPSHOTS, 6, 3)
    assert made.origins_s[-1] == START_S + (n_hours - 1) * HOUR_S
