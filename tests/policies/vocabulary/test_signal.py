"""Signals: step functions of time with gaps, ends and ages."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.vocabulary.signal import ESTIMATED, Signal, constant_signal

NAN = math.nan


def signal(starts_s: list[float], values: list[float], ends_s: float, **changes: Any) -> Signal:  # noqa: ANN401 — any field
    fields: dict[str, Any] = {"kind": "average", "zone": "DE", "source": "typed", "unit": "g/kWh", "issued_at_s": 0.0}
    return Signal(starts_s=np.array(starts_s), values=np.array(values), ends_s=ends_s, **(fields | changes))


GAPPED = signal([0.0, 10.0, 20.0, 30.0], [100.0, NAN, 300.0, NAN], 40.0)


@st.composite
def signals(draw: st.DrawFn) -> Signal:
    steps = draw(st.lists(st.integers(1, 100), min_size=1, max_size=8))
    starts_s = np.cumsum([draw(st.integers(-50, 50)), *steps])
    values = [draw(st.one_of(st.just(NAN), st.integers(-100, 500).map(float))) for _ in steps]
    return signal([float(s) for s in starts_s[:-1]], values, float(starts_s[-1]))


@pytest.mark.parametrize(
    ("now_s", "value"),
    [(-1.0, None), (0.0, 100.0), (9.99, 100.0), (10.0, None), (20.0, 300.0), (30.0, None), (40.0, None)],
)
def test_a_value_holds_from_its_start_until_the_next(now_s: float, value: float | None) -> None:
    assert GAPPED.value_at(now_s) == value


@pytest.mark.parametrize(
    ("now_s", "age_s"), [(-1.0, math.inf), (5.0, 0.0), (12.0, 2.0), (25.0, 0.0), (35.0, 5.0), (100.0, 70.0)]
)
def test_the_age_counts_from_the_end_of_the_last_value(now_s: float, age_s: float) -> None:
    assert GAPPED.age_s(now_s) == age_s


def test_an_empty_signal_is_infinitely_old() -> None:
    assert signal([], [], 0.0).age_s(5.0) == math.inf


def test_the_mean_is_weighted_by_time_and_skips_gaps() -> None:
    assert GAPPED.mean(5.0, 25.0) == 200.0
    assert GAPPED.mean(8.0, 28.0) == pytest.approx((2 * 100 + 8 * 300) / 10)
    assert GAPPED.mean(10.0, 20.0) is None


def test_the_maximum_is_that_of_the_interval() -> None:
    assert GAPPED.maximum(0.0, 20.0) == 100.0
    assert GAPPED.maximum(0.0, 20.1) == 300.0
    assert GAPPED.maximum(30.0, 90.0) is None


def test_a_part_is_clipped_to_both_ends() -> None:
    part = GAPPED.between(5.0, 22.0)
    assert part.starts_s.tolist() == [5.0, 10.0, 20.0]
    assert part.ends_s == 22.0


@pytest.mark.parametrize(("start_s", "end_s"), [(-9.0, 0.0), (40.0, 50.0), (20.0, 20.0), (30.0, 10.0)])
def test_a_part_outside_is_empty(start_s: float, end_s: float) -> None:
    assert len(GAPPED.between(start_s, end_s)) == 0


def test_a_forecast_wins_from_its_start() -> None:
    joined = GAPPED.joined(signal([25.0, 35.0], [1.0, 2.0], 45.0, source="other", estimated=ESTIMATED))
    assert [joined.value_at(t) for t in (5.0, 24.0, 25.0, 36.0)] == [100.0, 300.0, 1.0, 2.0]
    assert (joined.source, joined.ends_s) == ("typed+other", 45.0)
    assert joined.estimated.tolist() == [s >= 25.0 for s in joined.starts_s]


def test_a_part_keeps_what_is_estimated() -> None:
    typed = signal([0.0, 10.0, 20.0], [1.0, 2.0, 3.0], 30.0, estimated=np.array([False, True, False]))
    assert typed.between(10.0, 30.0).estimated.tolist() == [True, False]


def test_flags_of_another_length_are_rejected() -> None:
    with pytest.raises(ValueError, match="estimated has shape"):
        signal([0.0, 10.0, 20.0], [1.0, 2.0, 3.0], 30.0, estimated=np.array([False, True]))


def test_a_gap_before_a_forecast_stays_missing() -> None:
    joined = GAPPED.joined(signal([50.0], [1.0], 60.0))
    assert joined.value_at(45.0) is None
    assert joined.value_at(50.0) == 1.0


def test_a_forecast_before_all_history_replaces_it() -> None:
    assert GAPPED.joined(signal([-5.0], [1.0], 0.0)).starts_s.tolist() == [-5.0]


def test_joining_an_empty_forecast_changes_nothing() -> None:
    assert GAPPED.joined(signal([], [], 0.0)) is GAPPED


@pytest.mark.parametrize("changes", [{"kind": "marginal"}, {"unit": "EUR/kWh"}])
def test_kinds_and_units_never_mix(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot join"):
        GAPPED.joined(signal([50.0], [1.0], 60.0, **changes))


def test_a_newer_fetch_wins_from_its_first_start() -> None:
    newer = signal([20.0, 30.0], [7.0, 8.0], 50.0, source="newer", issued_at_s=5.0)
    revised = signal([0.0, 10.0, 20.0, 25.0], [1.0, 2.0, 3.0, 4.0], 60.0).revised(newer)
    assert revised.starts_s.tolist() == [0.0, 10.0, 20.0, 30.0]
    assert revised.values.tolist() == [1.0, 2.0, 7.0, 8.0]
    assert (revised.ends_s, revised.source, revised.issued_at_s) == (50.0, "newer", 5.0)


def test_gaps_of_a_newer_fetch_keep_older_values() -> None:
    known = signal([0.0, 10.0, 20.0, 30.0], [1.0, 2.0, 3.0, 4.0], 40.0, estimated=np.array([False, True, True, False]))
    revised = known.revised(signal([10.0, 30.0, 40.0, 60.0], [NAN, 5.0, NAN, 6.0], 70.0))
    assert [revised.value_at(t) for t in (5.0, 15.0, 25.0, 35.0, 45.0, 65.0)] == [1.0, 2.0, 3.0, 5.0, None, 6.0]
    assert revised.estimated[:4].tolist() == [False, True, True, False]
    short = signal([0.0, 10.0], [1.0, 2.0], 20.0).revised(signal([10.0], [NAN], 50.0))
    assert [short.value_at(t) for t in (15.0, 20.0, 49.0)] == [2.0, None, None]


def test_an_older_value_does_not_extend_into_a_gap() -> None:
    revised = signal([0.0], [1.0], 40.0).revised(signal([0.0, 10.0, 20.0], [5.0, NAN, 6.0], 30.0))
    assert [revised.value_at(t) for t in (5.0, 15.0, 25.0, 35.0)] == [5.0, None, 6.0, None]


def test_a_shorter_newer_fetch_keeps_later_values() -> None:
    revised = signal([0.0, 10.0, 20.0, 30.0], [1.0, 2.0, 3.0, 4.0], 40.0).revised(signal([10.0], [7.0], 15.0))
    assert revised.starts_s.tolist() == [0.0, 10.0, 15.0, 20.0, 30.0]
    assert [revised.value_at(t) for t in (5.0, 12.0, 17.0, 25.0, 39.0, 40.0)] == [1.0, 7.0, None, 3.0, 4.0, None]


def test_time_between_two_fetches_is_missing() -> None:
    revised = GAPPED.revised(signal([50.0], [1.0], 60.0))
    assert [revised.value_at(t) for t in (25.0, 45.0, 55.0)] == [300.0, None, 1.0]


def test_revising_with_or_from_an_empty_signal() -> None:
    empty = signal([], [], 0.0)
    assert GAPPED.revised(empty) is GAPPED
    assert empty.revised(GAPPED) is GAPPED


@pytest.mark.parametrize("changes", [{"kind": "marginal"}, {"unit": "EUR/kWh"}, {"zone": "FR"}])
def test_kind_zone_and_unit_must_match_to_revise(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot revise"):
        GAPPED.revised(signal([50.0], [1.0], 60.0, **changes))


@pytest.mark.parametrize(
    ("starts_s", "values", "ends_s", "fault"),
    [
        ([0.0, 0.0], [1.0, 2.0], 5.0, "strictly increasing"),
        ([0.0, NAN], [1.0, 2.0], 5.0, "strictly increasing"),
        ([0.0], [1.0, 2.0], 5.0, "both must be"),
        ([0.0], [math.inf], 5.0, "values must be finite"),
        ([0.0], [1.0], 0.0, "after the last start"),
        ([0.0], [1.0], NAN, "after the last start"),
    ],
)
def test_an_invalid_step_function_is_rejected(
    starts_s: list[float], values: list[float], ends_s: float, fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        signal(starts_s, values, ends_s)


def test_a_signal_is_immutable() -> None:
    values = np.array([1.0])
    one = signal([0.0], [1.0], 5.0)
    other = Signal(
        kind="price",
        zone="",
        source="",
        unit="EUR/kWh",
        starts_s=np.array([0.0]),
        values=values,
        ends_s=1.0,
        issued_at_s=0,
    )
    values[0] = 9.0
    assert other.value_at(0.0) == 1.0
    with pytest.raises(ValueError, match="read-only"):
        one.values[0] = 2.0


def test_a_constant_holds_before_and_after_now() -> None:
    constant = constant_signal(-0.01, kind="price", unit="EUR/kWh", now_s=1_000.0)
    assert constant.value_at(1.0) == constant.value_at(1e10) == -0.01
    assert constant.mean(5.0, 6.0) == -0.01


@given(signals(), st.integers(-60, 700), st.integers(0, 300), st.integers(0, 300))
def test_steps_of_two_halves_add_up(one: Signal, start_s: int, first_s: int, second_s: int) -> None:
    def integral(from_s: float, until_s: float) -> float:
        durations_s, values = one.steps(from_s, until_s)
        return float(durations_s @ values)

    middle_s, end_s = start_s + first_s, start_s + first_s + second_s
    assert integral(start_s, middle_s) + integral(middle_s, end_s) == pytest.approx(integral(start_s, end_s), abs=1e-6)


@given(signals(), st.floats(-60, 700), st.floats(-60, 700), st.floats(-60, 700))
def test_a_part_equals_the_whole_within_its_range(one: Signal, start_s: float, end_s: float, now_s: float) -> None:
    inside = start_s <= now_s < end_s
    assert one.between(start_s, end_s).value_at(now_s) == (one.value_at(now_s) if inside else None)


@given(signals(), signals(), st.integers(-60, 700))
def test_revising_prefers_newer_values(older: Signal, newer: Signal, now_s: int) -> None:
    revised = older.revised(newer)
    values = (older.value_at(now_s), newer.value_at(now_s))
    if now_s < newer.starts_s[0]:
        assert revised.value_at(now_s) == values[0]
    elif values[1] is not None:
        assert revised.value_at(now_s) == values[1]
    else:
        assert revised.value_at(now_s) in {values[0], None}
    again = revised.revised(newer)
    assert (again.starts_s.tolist(), again.ends_s) == (revised.starts_s.tolist(), revised.ends_s)
    assert np.array_equal(again.values, revised.values, equal_nan=True)


def test_the_last_known_value_stands_in_for_a_missing_one() -> None:
    series = signal([0.0, 3_600.0, 7_200.0], [100.0, 200.0, NAN], 10_800.0)
    assert [series.last_value_at(time_s) for time_s in (-1.0, 0.0, 3_600.0, 7_200.0, 99_999.0)] == [
        None,
        100.0,
        200.0,
        200.0,
        200.0,
    ]


def test_time_without_a_measured_value_is_that_of_estimates_gaps_and_beyond_ends() -> None:
    flags = np.array([False, False, False, True])
    series = signal([0.0, 10.0, 20.0, 30.0], [1.0, NAN, 3.0, 4.0], 40.0, estimated=flags)
    assert series.unmeasured_s(0.0, 10.0) == 0.0
    assert series.unmeasured_s(-5.0, 45.0) == 5.0 + 10.0 + 10.0 + 5.0
    assert series.unmeasured_s(5.0, 25.0) == 10.0
    assert series.unmeasured_s(50.0, 50.0) == 0.0
