"""How far a signal is trusted: fresh, held, forecast, stale, absent; and the stand-in for the present in each."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.vocabulary.freshness import GRACE_S, Freshness, assess_signal
from policies.vocabulary.signal import ESTIMATED, Signal, constant_signal

HOUR_S = 3_600.0
MAX_AGE_S = 2 * HOUR_S
NAN = math.nan


def hourly(values: list[float], *, start_s: float = 0.0) -> Signal:
    """Return a signal of hours from `start_s` on."""
    return Signal(
        kind="average",
        zone="XX",
        source="typed",
        unit="g/kWh",
        starts_s=start_s + HOUR_S * np.arange(len(values), dtype=np.float64),
        values=np.array(values),
        ends_s=start_s + HOUR_S * len(values),
        issued_at_s=start_s,
    )


KNOWN = hourly([100.0, 200.0, 300.0])
FORECAST = replace(hourly([400.0] * 30, start_s=3 * HOUR_S), source="ridge", estimated=ESTIMATED)


def at(
    now_s: float, known: Signal | None = KNOWN, forecast: Signal | None = FORECAST, *, lag_s: float = 0.0
) -> tuple[str, float | None]:
    """Return the freshness at a time, and the present value."""
    present = assess_signal(known, forecast, now_s=now_s, max_age_s=MAX_AGE_S, grace_s=lag_s + GRACE_S, lasting_s=600.0)
    value = present.history.value_at(now_s) if present.history is not None else None
    return present.freshness.value, value


@pytest.mark.parametrize(
    ("hour", "wanted"),
    [
        (2.5, ("fresh", 300.0)),
        (3.0, ("fresh", 300.0)),
        (3.4, ("fresh", 300.0)),
        (3.6, ("held", 300.0)),
        (4.99, ("held", 300.0)),
        (5.0, ("forecast", 400.0)),
        (26.9, ("forecast", 400.0)),
        (33.0, ("stale", None)),
        (-0.1, ("absent", None)),
    ],
)
def test_a_silent_source_degrades_in_steps(hour: float, wanted: tuple[str, float | None]) -> None:
    assert at(hour * HOUR_S) == wanted


def test_without_a_forecast_it_goes_from_held_to_stale() -> None:
    assert at(4.99 * HOUR_S, forecast=None) == ("held", 300.0)
    assert at(5.1 * HOUR_S, forecast=None) == ("stale", None)


def test_persistence_is_no_forecast() -> None:
    assert at(6.0 * HOUR_S, forecast=replace(FORECAST, source="persistence")) == ("stale", None)


def test_nothing_known_is_absent() -> None:
    assert at(0.0, known=None) == ("absent", None)
    assert at(1.5 * HOUR_S, known=hourly([NAN, NAN, NAN])) == ("absent", None)


def test_a_gap_is_held_over() -> None:
    assert at(1.4 * HOUR_S, known=hourly([100.0, NAN, 300.0])) == ("fresh", 100.0)
    assert at(1.9 * HOUR_S, known=hourly([100.0, NAN, 300.0])) == ("held", 100.0)
    assert at(2.0 * HOUR_S, known=hourly([100.0, NAN, 300.0])) == ("fresh", 300.0)


def test_a_source_late_as_usual_is_fresh() -> None:
    lag_s = 6 * HOUR_S
    assert at(4.0 * HOUR_S, lag_s=lag_s) == ("fresh", 300.0)
    assert at(8.0 * HOUR_S, lag_s=lag_s) == ("fresh", 400.0)
    assert at(9.0 * HOUR_S + GRACE_S + 1, lag_s=lag_s) == ("forecast", 400.0)


def test_settled_prices_are_used_on_time() -> None:
    present = assess_signal(KNOWN, FORECAST, now_s=0.9 * HOUR_S, max_age_s=MAX_AGE_S, lasting_s=600.0)
    assert present.history is not None
    assert present.forecast is not None
    assert [present.history.value_at(h * HOUR_S) for h in (0.95, 1.05)] == [100.0, 200.0]
    assert [present.forecast.value_at(h * HOUR_S) for h in (1.5, 2.5, 3.5)] == [200.0, 300.0, 400.0]
    assert not present.forecast.estimated[present.forecast.starts_s < 3 * HOUR_S].any()


def test_the_stand_in_is_an_estimate_until_the_next_assessment() -> None:
    present = assess_signal(KNOWN, FORECAST, now_s=3.2 * HOUR_S, max_age_s=MAX_AGE_S, lasting_s=600.0)
    assert present.history is not None
    assert present.forecast is not None
    assert present.history.value_at(3.2 * HOUR_S + 599.0) == 300.0
    assert present.history.estimated.tolist() == [False, False, False, True]
    assert present.forecast.starts_s[0] == present.history.ends_s == 3.2 * HOUR_S + 600.0


def test_a_value_is_never_held_beyond_its_maximum_age() -> None:
    present = assess_signal(KNOWN, None, now_s=4.99 * HOUR_S, max_age_s=MAX_AGE_S, lasting_s=HOUR_S)
    assert present.history is not None
    assert present.history.ends_s == 5 * HOUR_S


def test_a_constant_is_always_fresh() -> None:
    constant = constant_signal(300.0, kind="average", unit="g/kWh", now_s=0.0)
    assert at(1e9, known=constant, forecast=None) == ("fresh", 300.0)


@given(
    values=st.lists(st.one_of(st.just(NAN), st.floats(1, 900)), min_size=1, max_size=30),
    hour=st.floats(-2, 60),
    max_age_s=st.floats(0, 10 * HOUR_S),
    lag_s=st.floats(0, 30 * HOUR_S),
    has_forecast=st.booleans(),
)
def test_a_present_value_exists_exactly_when_it_is_trusted(
    values: list[float], hour: float, max_age_s: float, lag_s: float, has_forecast: bool
) -> None:
    known, now_s = hourly(values), hour * HOUR_S
    ends_s = [i * HOUR_S + HOUR_S for i, v in enumerate(values) if not math.isnan(v) and i * HOUR_S <= now_s]
    forecast = replace(FORECAST, starts_s=FORECAST.starts_s - 3 * HOUR_S + (ends_s[-1] if ends_s else 0), ends_s=1e9)
    present = assess_signal(
        known,
        forecast if has_forecast else None,
        now_s=now_s,
        max_age_s=max_age_s,
        grace_s=lag_s + GRACE_S,
        lasting_s=300.0,
    )
    value = present.history.value_at(now_s) if present.history is not None else None
    assert (value is not None) == present.freshness.is_trusted
    if value is not None and value != 400.0:
        assert known.age_s(now_s) <= max_age_s
    if present.freshness is Freshness.HELD:
        assert present.age_s > lag_s + GRACE_S
    if present.history is not None and present.forecast is not None and len(present.forecast):
        assert present.forecast.starts_s[0] >= present.history.ends_s - 1e-6
