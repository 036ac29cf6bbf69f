"""Persistence: the last known value, while it is young enough."""

import numpy as np
import pytest

from policies.forecasting import persistence
from policies.vocabulary.signal import Signal

HOUR_S = 3600.0


def history(values: list[float]) -> Signal:
    return Signal(
        kind="marginal",
        zone="GB",
        source="typed",
        unit="g/kWh",
        starts_s=np.arange(len(values), dtype=np.float64) * HOUR_S,
        values=np.array(values),
        ends_s=len(values) * HOUR_S,
        issued_at_s=0.0,
    )


def forecast(values: list[float], now_s: float, max_age_s: float = HOUR_S) -> Signal | None:
    return persistence(history(values), now_s=now_s, horizon_s=6 * HOUR_S, step_s=HOUR_S, max_age_s=max_age_s)


def test_the_last_value_is_held_over_the_whole_horizon() -> None:
    given = forecast([100.0, 200.0], now_s=1.5 * HOUR_S)
    assert given is not None
    assert given.values.tolist() == [200.0] * 6
    assert (given.starts_s[0], given.ends_s) == (1.5 * HOUR_S, 7.5 * HOUR_S)


def test_it_says_what_it_is() -> None:
    given = forecast([100.0], now_s=60.0)
    assert given is not None
    assert (given.source, bool(given.estimated.all()), given.issued_at_s) == ("persistence", True, 60.0)
    assert (given.kind, given.zone, given.unit) == ("marginal", "GB", "g/kWh")


def test_what_starts_later_is_not_looked_at() -> None:
    given = forecast([100.0, 999.0], now_s=0.5 * HOUR_S)
    assert given is not None
    assert set(given.values) == {100.0}


def test_a_missing_value_is_bridged_while_the_last_one_is_young() -> None:
    given = forecast([100.0, float("nan")], now_s=1.5 * HOUR_S)
    assert given is not None
    assert given.values[0] == 100.0


@pytest.mark.parametrize("values", [[100.0, 200.0], [float("nan")]])
def test_an_old_value_or_none_is_no_forecast(values: list[float]) -> None:
    assert forecast(values, now_s=3.5 * HOUR_S) is None
