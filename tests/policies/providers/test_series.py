"""From points to a signal: any order, revisions, gaps, missing values; and times as text."""

import math
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.providers.base import SignalDataError
from policies.providers.series import (
    CLOCK_TOLERANCE_S,
    Point,
    build_signal,
    check_clock,
    format_iso,
    future_points,
    infer_step_s,
    parse_iso_s,
    past_points,
    single_unit,
    split_range_s,
)
from policies.vocabulary.signal import Signal

NAN = math.nan
HOUR_S = 3_600.0
NOW_S = 1_792_929_000.0
slots = st.integers(0, 60)
values = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(1.0, 900.0))
points = st.lists(st.builds(lambda slot, value: Point(slot * HOUR_S, value), slots, values), max_size=30)


def signal(of: list[Point], **changes: Any) -> Signal | None:  # noqa: ANN401 — any argument
    arguments: dict[str, Any] = {
        "kind": "average",
        "zone": "DE",
        "source": "typed",
        "unit": "g/kWh",
        "step_s": HOUR_S,
        "now_s": NOW_S,
    }
    return build_signal(of, **(arguments | changes))


def built(of: list[Point], **changes: Any) -> Signal:  # noqa: ANN401 — any argument
    made = signal(of, **changes)
    assert made is not None
    return made


def test_no_points_are_no_signal() -> None:
    assert signal([]) is None


def test_the_order_of_the_points_does_not_matter() -> None:
    made = built([Point(7_200.0, 3.0), Point(0.0, 1.0), Point(3_600.0, 2.0)])
    assert made.starts_s.tolist() == [0.0, 3_600.0, 7_200.0]
    assert made.values.tolist() == [1.0, 2.0, 3.0]
    assert made.ends_s == 10_800.0
    assert (made.kind, made.zone, made.source, made.unit) == ("average", "DE", "typed", "g/kWh")


@pytest.mark.parametrize(
    ("first_s", "second_s", "kept"), [(1.0, 2.0, 20.0), (2.0, 1.0, 10.0), (1.0, 1.0, 20.0), (0.0, 0.0, 20.0)]
)
def test_of_two_revisions_the_newer_wins_and_then_the_later_one(first_s: float, second_s: float, kept: float) -> None:
    revisions = [Point(0.0, 10.0, updated_at_s=first_s), Point(0.0, 20.0, updated_at_s=second_s)]
    assert built(revisions).values.tolist() == [kept]


def test_a_revision_can_withdraw_a_value() -> None:
    assert built([Point(0.0, 10.0), Point(0.0, None, updated_at_s=5.0)]).value_at(0.0) is None


def test_a_gap_stays_open_and_is_not_an_estimate() -> None:
    made = built([Point(0.0, 1.0, estimated=True), Point(4 * HOUR_S, 2.0, estimated=True)])
    assert made.starts_s.tolist() == [0.0, HOUR_S, 4 * HOUR_S]
    assert [math.isnan(value) for value in made.values] == [False, True, False]
    assert made.estimated.tolist() == [True, False, True]


@pytest.mark.parametrize(("distance_s", "n_values"), [(1.5 * HOUR_S, 2), (1.5 * HOUR_S + 1.0, 3)])
def test_a_value_half_a_step_late_leaves_no_gap(distance_s: float, n_values: int) -> None:
    assert len(built([Point(0.0, 1.0), Point(distance_s, 2.0)])) == n_values


@pytest.mark.parametrize("value", [None, NAN, math.inf, -math.inf, 0.0, -0.1])
def test_impossible_carbon_intensities_are_missing(value: float | None) -> None:
    assert built([Point(0.0, value)]).value_at(0.0) is None
    assert built([Point(0.0, value)], kind="marginal").value_at(0.0) is None


@pytest.mark.parametrize(("value", "wanted"), [(0.0, 0.0), (-0.3, -0.3), (None, None), (NAN, None), (math.inf, None)])
def test_a_price_may_be_any_number(value: float | None, wanted: float | None) -> None:
    assert built([Point(0.0, value)], kind="price", unit="EUR/kWh").value_at(0.0) == wanted


def test_the_issue_time_is_explicit_or_the_latest_update_or_now() -> None:
    updated = [Point(0.0, 1.0, updated_at_s=50.0), Point(HOUR_S, 1.0, updated_at_s=40.0)]
    assert built(updated).issued_at_s == 50.0
    assert built([Point(0.0, 1.0)]).issued_at_s == NOW_S
    assert built(updated, issued_at_s=7.0).issued_at_s == 7.0


@given(points)
def test_each_hour_has_the_value_of_its_newest_point(of: list[Point]) -> None:
    made = signal(of)
    newest = {point.starts_s: point.value for point in of}
    for slot in range(62):
        value = newest.get(slot * HOUR_S)
        known = value is not None and math.isfinite(value) and value > 0
        assert (made.value_at(slot * HOUR_S + 1.0) if made else None) == (value if known else None)


def test_past_points_hold_after_the_start_and_start_by_now() -> None:
    of = [Point(slot * HOUR_S, 1.0) for slot in range(10)]
    kept = past_points(of, since_s=2 * HOUR_S, now_s=5 * HOUR_S, step_s=HOUR_S)
    assert [point.starts_s / HOUR_S for point in kept] == [2, 3, 4, 5]
    kept = past_points(of, since_s=2 * HOUR_S - 1.0, now_s=5 * HOUR_S - 1.0, step_s=HOUR_S)
    assert [point.starts_s / HOUR_S for point in kept] == [1, 2, 3, 4]


def test_future_points_are_known_and_start_after_now() -> None:
    of = [Point(slot * HOUR_S, None if slot == 4 else 1.0) for slot in range(10)]
    kept = future_points(of, now_s=2 * HOUR_S, until_s=6 * HOUR_S)
    assert [point.starts_s / HOUR_S for point in kept] == [3, 5]


def test_the_step_is_the_median_whatever_the_order_and_the_gaps() -> None:
    starts_s = [5.0, 0.0, 15.0, 10.0, 10.0, 60.0, 20.0]
    assert infer_step_s([Point(s, 1.0) for s in starts_s], otherwise_s=7.0, longest_s=9.0) == 5.0


@pytest.mark.parametrize("n_points", [0, 1, 2, 5])
def test_few_values_do_not_define_the_step(n_points: int) -> None:
    points = [Point(i * 7 * HOUR_S, 1.0) for i in range(n_points)] * 2
    assert infer_step_s(points, otherwise_s=300.0, longest_s=HOUR_S) == 300.0


def test_values_far_apart_are_gaps() -> None:
    points = [Point(i * 7 * HOUR_S, 1.0) for i in range(20)]
    assert infer_step_s(points, otherwise_s=300.0, longest_s=HOUR_S) == HOUR_S


def test_of_units_that_follow_one_another_the_latest_or_the_first_counts() -> None:
    units = [(3.0, "EUR"), (0.0, "BGN"), (1.0, "BGN"), (2.0, "EUR")]
    assert single_unit(units, source="x", latest=True) == "EUR"
    assert single_unit(units, source="x", latest=False) == "BGN"
    assert single_unit([(0.0, "GBP"), (0.0, "GBP")], source="x", latest=True) == "GBP"


@pytest.mark.parametrize("units", [["EUR", "GBP", "EUR"], ["EUR", "EUR", "GBP", "EUR", "EUR"]])
def test_units_that_alternate_are_refused(units: list[str]) -> None:
    with pytest.raises(SignalDataError, match="x: returns values in EUR and GBP at one time"):
        single_unit(enumerate(units), source="x", latest=True)
    with pytest.raises(SignalDataError, match="at one time"):
        single_unit([(0.0, unit) for unit in units], source="x", latest=True)


@given(st.floats(0.0, 4e9), st.floats(0.0, 6e6), st.floats(3_600.0, 3e6))
def test_the_parts_of_a_range_cover_it_and_none_is_too_long(start_s: float, length_s: float, longest_s: float) -> None:
    end_s = start_s + length_s
    parts = split_range_s(start_s, end_s, longest_s=longest_s)
    assert parts[0][0] == start_s
    assert parts[-1][1] == end_s
    assert all(one[1] == other[0] for one, other in pairwise(parts))
    assert all(begin_s <= stop_s <= begin_s + longest_s + 1e-3 for begin_s, stop_s in parts)
    assert len(parts) == max(1, math.ceil((end_s - start_s) / longest_s))


def test_an_empty_range_is_one_part() -> None:
    assert split_range_s(5.0, 5.0, longest_s=10.0) == [(5.0, 5.0)]


def test_a_measured_value_from_the_future_shows_a_wrong_clock() -> None:
    check_clock([], source="x", now_s=NOW_S)
    check_clock([Point(NOW_S + CLOCK_TOLERANCE_S, 1.0)], source="x", now_s=NOW_S)
    check_clock([Point(NOW_S + HOUR_S, None)], source="x", now_s=NOW_S)
    with pytest.raises(SignalDataError, match=r"x: .* 2026-10-25T13:50Z, and here it is 2026-10-25T11:50Z.* 2\.0 h"):
        check_clock([Point(NOW_S, 1.0), Point(NOW_S + 2 * HOUR_S, 1.0)], source="x", now_s=NOW_S)


def test_times_in_milliseconds_are_refused_with_their_number() -> None:
    with pytest.raises(SignalDataError, match="s after 1970"):
        check_clock([Point(NOW_S * 1_000.0, 1.0)], source="x", now_s=NOW_S)


@pytest.mark.parametrize(
    "text",
    [
        "2026-10-25T11:50:00Z",
        "2026-10-25T11:50Z",
        "2026-10-25T11:50:00.000Z",
        "2026-10-25T11:50:00.0000000+00:00",
        "2026-10-25T12:50:00+01:00",
        "20261025T115000Z",
    ],
)
def test_a_time_is_read_in_every_form_of_the_standard(text: str) -> None:
    assert parse_iso_s(text, source="x") == NOW_S


def test_the_repeated_hour_is_told_apart_by_its_offset() -> None:
    summer, winter = (parse_iso_s(f"2026-10-25T02:30:00+0{hours}:00", source="x") for hours in (2, 1))
    assert winter - summer == HOUR_S


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-10-25T11:50:00", "no offset from UTC"),
        ("2026-10-25", "no offset from UTC"),
        ("yesterday", "is not a time in ISO 8601"),
        ("2026-02-30T00:00Z", "is not a time in ISO 8601"),
        ("", "is not a time"),
        ("9" * 900, "x: '9{40}' is not a time"),
    ],
)
def test_an_invalid_time_is_refused(text: str, why: str) -> None:
    with pytest.raises(SignalDataError, match=why):
        parse_iso_s(text, source="x")


@given(
    st.datetimes(min_value=datetime(1970, 1, 3), max_value=datetime(2999, 1, 1)),  # noqa: DTZ001 — the zone comes next
    st.integers(-23 * 60, 23 * 60),
)
def test_a_time_survives_formatting_to_the_minute(time: datetime, offset: int) -> None:
    minute = time.replace(second=0, microsecond=0, tzinfo=timezone(timedelta(minutes=offset)))
    seconds_s = parse_iso_s(minute.isoformat(), source="x")
    assert seconds_s == (minute - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    assert parse_iso_s(format_iso(seconds_s), source="x") == seconds_s


def test_values_and_flags_keep_together() -> None:
    rng = np.random.default_rng(5)
    of = [Point(float(slot) * HOUR_S, float(slot + 1), estimated=slot % 3 == 0) for slot in rng.permutation(50)]
    made = built(of)
    assert made.values.tolist() == [float(slot + 1) for slot in range(50)]
    assert made.estimated.tolist() == [slot % 3 == 0 for slot in range(50)]
