"""The grid and the plan: which power is planned, what is known of the signal, and what is forecast."""

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from controller.history.energy_history.reading import MeanPower
from controller.web.charts.figure import render_chart
from controller.web.charts.marks import Band, Line
from controller.web.pages.plan_chart import (
    AHEAD_S,
    STEP_S,
    plan_chart,
    planned_power,
    power_panel,
    signal_panel,
    signal_sentence,
    without_overhead,
)
from publishers.messages.reports import GridSignal, RunSchedule, ScheduleEntry, SignalValue
from tests.controller.history.energy_history.records import run_record
from tests.controller.web.pages.site import NOW_S, ZONE, grid_signal, price_signal

HOUR_S = 3_600.0


def plan(*powers_w: float, ends: bool = True, begins_s: float = NOW_S) -> RunSchedule:
    """Return a plan of an hour for each power, at whose end the run ends."""
    until_s = begins_s + HOUR_S * len(powers_w)
    return RunSchedule(
        objective="slowdown",
        until_s=until_s,
        expected_end_s=until_s if ends else None,
        entries=[
            ScheduleEntry(starts_s=begins_s + HOUR_S * hour, power_limit_w=200.0, power_w=power_w, speed_ratio=1.0)
            for hour, power_w in enumerate(powers_w)
        ],
    )


def test_the_powers_of_all_plans_add_up_and_one_that_has_ended_needs_nothing() -> None:
    times_s, powers_w = planned_power([plan(100, 200), plan(50)], now_s=NOW_S, until_s=NOW_S + 3 * HOUR_S)
    assert powers_w == [150, 200, 0]
    assert times_s[0] == NOW_S
    assert times_s[-1] == NOW_S + 3 * HOUR_S
    assert all(abs(at_s - NOW_S - HOUR_S * hour) <= STEP_S for hour, at_s in enumerate(times_s))


def test_where_a_plan_ends_and_its_run_does_not_nothing_is_known_any_more() -> None:
    times_s, powers_w = planned_power([plan(100, 200, ends=False), plan(50)], now_s=NOW_S, until_s=NOW_S + AHEAD_S)
    assert powers_w == [150, 200]
    assert times_s[-1] == NOW_S + 2 * HOUR_S
    assert planned_power([plan(100, begins_s=NOW_S - 2 * HOUR_S)], now_s=NOW_S, until_s=NOW_S + 1) == ([], [])


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 700), min_size=1, max_size=30), st.booleans(), st.integers(-20, 5)),
        min_size=1,
        max_size=5,
    )
)
def test_planned_power_is_the_sum_of_its_runs_at_each_moment(
    plans: list[tuple[list[int], bool, int]],
) -> None:
    schedules = [plan(*map(float, powers), ends=ends, begins_s=NOW_S + HOUR_S * hour) for powers, ends, hour in plans]
    times_s, powers_w = planned_power(schedules, now_s=NOW_S, until_s=NOW_S + AHEAD_S)
    assert len(times_s) == (len(powers_w) + 1 if powers_w else 0)
    assert times_s == sorted(times_s)
    for at_s, power_w in zip(times_s, powers_w, strict=False):
        expected_w = 0.0
        for schedule in schedules:
            if schedule.until_s > max(NOW_S, at_s):
                began = [entry for entry in schedule.entries if entry.starts_s <= at_s]
                expected_w += (began[-1] if began else schedule.entries[0]).power_w
        assert power_w == expected_w


def test_what_was_drawn_is_solid_with_gaps_and_what_is_planned_dashed() -> None:
    drawn = [MeanPower(NOW_S - 3_600.0, 1_200.0), MeanPower(NOW_S - 2_700.0, 900.0), MeanPower(NOW_S - 900.0, 800.0)]
    panel = power_panel(drawn, [NOW_S, NOW_S + HOUR_S], [700.0], whose="the runs", now_s=NOW_S, is_named=False)
    _, past, ahead = panel.marks
    assert isinstance(past, Line)
    assert isinstance(ahead, Line)
    assert (past.dash, ahead.dash, panel.axis.label) == ("solid", "dashed", "kW of the runs")
    assert [x - NOW_S for x in past.xs] == [-3_600, -2_700, -1_800, -900, 0]
    assert [repr(y) for y in past.ys] == ["1.2", "0.9", "nan", "0.8", "nan"]
    assert list(ahead.ys) == [0.7]


def test_a_plan_that_weighs_the_building_is_shown_by_its_gpus_alone() -> None:
    schedule = plan(600.0)
    assert without_overhead(schedule, run_record()) is schedule
    assert without_overhead(schedule, None) is schedule
    (entry,) = without_overhead(schedule, run_record(host_power_w=200.0, pue=1.5)).entries
    assert entry.power_w == 200.0


def panel_marks(signal: GridSignal) -> dict[str, Line | Band]:
    panel = signal_panel(signal, since_s=NOW_S - 12 * HOUR_S, until_s=NOW_S + AHEAD_S, now_s=NOW_S)
    return {mark.name: mark for mark in panel.marks if isinstance(mark, Line | Band)}


def test_the_forecast_goes_on_where_what_is_known_ends_within_its_band() -> None:
    marks = panel_marks(grid_signal(NOW_S))
    known, expected, band = marks["measured"], marks["forecast"], marks["90 % band"]
    assert isinstance(known, Line)
    assert isinstance(expected, Line)
    assert isinstance(band, Band)
    assert known.is_stepped
    assert known.xs[0] == NOW_S - 12 * HOUR_S
    assert expected.xs[0] == known.xs[-1]
    assert set(expected.ys) <= {value.value for value in grid_signal(NOW_S).values}
    assert expected.xs[-1] <= NOW_S + AHEAD_S
    assert expected.dash == "dashed"
    assert all(low < y < high for low, y, high in zip(band.lowers, expected.ys, band.uppers, strict=True))


def test_unknown_hours_are_gaps_and_estimates_of_the_past_no_measurement() -> None:
    signal = grid_signal(NOW_S)
    values = list(signal.values)
    del values[18:20]  # of the 24 before now
    values[15] = msgspec.structs.replace(values[15], estimated=True)
    marks = panel_marks(msgspec.structs.replace(signal, values=values))
    known, expected = marks["measured"], marks["forecast"]
    assert isinstance(known, Line)
    assert isinstance(expected, Line)
    gaps_s = [x for x, y in zip(known.xs, known.ys, strict=True) if math.isnan(y)]
    assert gaps_s == [signal.values[15].starts_s, signal.values[18].starts_s, signal.forecast_from_s]
    assert expected.ys[:2] == (values[15].value, values[15].value)
    assert math.isnan(expected.ys[2])


def test_prices_of_tomorrow_that_are_no_forecast_are_known() -> None:
    signal = price_signal(NOW_S)
    fixed = [msgspec.structs.replace(value, estimated=False, lower=None, upper=None) for value in signal.values]
    assert set(panel_marks(msgspec.structs.replace(signal, values=fixed))) == {"known"}


def test_a_forecast_of_the_provider_has_no_band_and_is_one_all_the_same() -> None:
    signal = grid_signal(NOW_S)
    told = [msgspec.structs.replace(value, estimated=False, lower=None, upper=None) for value in signal.values]
    assert set(panel_marks(msgspec.structs.replace(signal, values=told))) == {"measured", "forecast"}


def test_the_sentence_names_the_highest_and_lowest_hour_ahead_if_known() -> None:
    signal = grid_signal(NOW_S)
    assert signal_sentence(signal, now_s=NOW_S, zone=ZONE).startswith("Now 340\u00a0g/kWh. Dirtiest about 450")
    lone = msgspec.structs.replace(signal, values=[SignalValue(starts_s=NOW_S, value=340.0)], value=None)
    assert signal_sentence(lone, now_s=NOW_S, zone=ZONE) == "Not known now. What comes is not known."
    flat = [msgspec.structs.replace(value, value=340.0) for value in signal.values]
    flat_signal = msgspec.structs.replace(signal, values=flat)
    assert signal_sentence(flat_signal, now_s=NOW_S, zone=ZONE).endswith("The same for as long as is known.")


def test_a_chart_of_nothing_and_of_a_day_with_25_hours_is_drawn() -> None:
    nothing = plan_chart(None, [], drawn=[], n_running=0, now_s=NOW_S, zone=ZONE)
    assert "No signal of the grid is known." in render_chart(nothing)
    clocks_change_s = 1_792_890_000.0  # 2026-10-25 03:00 CEST, which becomes 02:00 CET
    signal = grid_signal(clocks_change_s - 6 * HOUR_S)
    chart = plan_chart(signal, [], drawn=[], n_running=1, now_s=clocks_change_s - 6 * HOUR_S, zone=ZONE)
    assert "0 of 1 runs have a plan." in render_chart(chart)
