"""Issued forecasts until they are verified."""

import numpy as np
import pytest

from policies.forecasting.track_record import (
    N_ISSUED,
    IssuedForecast,
    TrackRecord,
    empty_track_record,
    is_issue_due,
    verify,
    with_issued,
)
from policies.vocabulary.units import HOUR_S
from tests.policies.forecasting.grids import START_S, grid

LEADS = np.array([1, 2, 4])
NAN = float("nan")


def issued_forecast(value: float) -> IssuedForecast:
    row = np.full(3, value)
    return IssuedForecast(
        members=np.array([row, row + 1]), provider=row + 2, issued=row + 3, interval=np.array([row - 5, row + 5])
    )


def record(n_hours: int = 1) -> TrackRecord:
    made = empty_track_record(LEADS, HOUR_S, 2)
    for hour in range(n_hours):
        made = with_issued(made, START_S + hour * HOUR_S, issued_forecast(float(hour)))
    return made


def test_a_value_is_verified_once() -> None:
    history = grid([10.0, 20.0, 30.0, 40.0, 50.0])  # what is not yet past is not looked at
    made, verified = verify(record(), history, START_S + 2 * HOUR_S)
    assert [(o.lead.tolist(), o.actual.tolist()) for o in verified] == [([0, 1], [10.0, 20.0])]
    assert verified[0].members.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert (verified[0].provider[0], verified[0].issued[0], verified[0].interval[:, 0].tolist()) == (
        2.0,
        3.0,
        [-5.0, 5.0],
    )
    _, again = verify(made, grid([99.0, 99.0, 99.0]), START_S + 3 * HOUR_S)
    assert again == []


def test_a_missing_value_stays_pending() -> None:
    made, verified = verify(record(), grid([NAN, 20.0]), START_S + 2 * HOUR_S)
    assert verified[0].lead.tolist() == [1]
    _, late = verify(made, grid([10.0, 20.0]), START_S + 2 * HOUR_S)
    assert (late[0].lead.tolist(), late[0].actual.tolist()) == ([0], [10.0])


def test_verified_forecasts_are_in_order_one_per_lead() -> None:
    _, verified = verify(record(3), grid([10.0, 20.0, 30.0, 40.0, 50.0]), START_S + 5 * HOUR_S)
    assert [forecasts.lead.tolist() for forecasts in verified] == [[0, 1, 2], [0, 1, 2], [0, 1]]
    assert [forecasts.actual[0] for forecasts in verified] == [10.0, 20.0, 30.0]


def test_one_forecast_an_hour_is_kept() -> None:
    assert is_issue_due(empty_track_record(LEADS, HOUR_S, 2), START_S)
    assert not is_issue_due(record(), START_S + 0.5 * HOUR_S)
    assert is_issue_due(record(), START_S + HOUR_S)


@pytest.mark.parametrize("n_hours", [1, N_ISSUED, 200])
def test_the_ring_does_not_grow(n_hours: int) -> None:
    made = record(n_hours)
    assert made.values.shape == (N_ISSUED, 6, 3)
    assert made.origins_s[-1] == START_S + (n_hours - 1) * HOUR_S
