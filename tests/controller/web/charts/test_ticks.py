"""Ticks are where a person would put them."""

import math
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.web.charts.ticks import interval_text, log_ticks, name_ticks, number_text, number_ticks, time_ticks

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    """Return a local time of Berlin [Unix s]."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def texts(lower: float, upper: float) -> list[str]:
    """Return the ticks of an axis of times."""
    return [tick.text for tick in time_ticks(lower, upper, BERLIN)]


@pytest.mark.parametrize(
    ("lower", "upper", "shown"),
    [
        (0.0, 457.0, ["0", "100", "200", "300", "400"]),
        (-0.3, 0.31, ["-0.2", "0.0", "0.2"]),
        (1e6, 3.1e6, ["1,000,000", "1,500,000", "2,000,000", "2,500,000", "3,000,000"]),
    ],
)  # fmt: skip
def test_numbers_are_round(lower: float, upper: float, shown: list[str]) -> None:
    texts = [tick.text for tick in number_ticks(lower, upper)]
    assert texts == [text.replace("-", "\u2212").replace(",", "\u202f") for text in shown]


@given(lower=st.floats(-1e12, 1e12), span=st.floats(1e-6, 1e12))
@example(lower=360287970189.9375, span=6.103515625e-05)
def test_ticks_are_inside_evenly_spaced_and_few(lower: float, span: float) -> None:
    ticks = [tick.value for tick in number_ticks(lower, lower + span)]
    assert len(ticks) <= 11
    assert all(lower - 1e-6 * span <= tick <= lower + 1.000001 * span for tick in ticks)
    if span > 1e-9 * abs(lower):
        assert len(ticks) >= 2


@given(lower=st.floats(1e-9, 1e9), factor=st.floats(1.01, 1e12))
def test_ticks_of_a_logarithmic_axis_are_above_zero_and_few(lower: float, factor: float) -> None:
    ticks = [tick.value for tick in log_ticks(lower, lower * factor)]
    assert 1 <= len(ticks) <= 12
    assert all(0 < before < after for before, after in pairwise(ticks))


def test_hours_are_those_of_the_zone_and_midnight_is_the_name_of_the_day() -> None:
    assert texts(at("2021-06-11T02:20"), at("2021-06-12T14:20")) == ["06:00", "12:00", "18:00", "Sat", "06:00", "12:00"]
    assert texts(at("2021-06-11T09:59"), at("2021-06-11T10:32"))[:3] == ["10:00", "10:05", "10:10"]


def test_days_are_names_within_a_week_and_dates_beyond() -> None:
    assert texts(at("2021-06-07T00:00"), at("2021-06-13T12:00")) == ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    dates = texts(at("2021-05-28T00:00"), at("2021-06-20T00:00"))
    assert 3 <= len(dates) <= 8
    assert all(text.endswith(("May", "Jun")) for text in dates)
    assert all(
        text.endswith(("2019", "2020", "2021")) for text in texts(at("2019-01-01T00:00"), at("2021-06-20T00:00"))
    )


def test_a_change_of_clocks_moves_no_tick_off_its_hour() -> None:
    night = time_ticks(at("2021-03-28T00:00"), at("2021-03-28T07:00"), BERLIN)
    assert [tick.text for tick in night] == ["Sun", "01:00", "03:00", "04:00", "05:00", "06:00", "07:00"]
    for day in ("2021-03-28", "2021-10-31"):
        for tick in time_ticks(at(f"{day}T00:00"), at(f"{day}T23:59"), BERLIN):
            local = datetime.fromtimestamp(tick.value, BERLIN)
            assert tick.text in {f"{local:%H:%M}", f"{local:%a}"}


def test_forty_years_have_few_ticks() -> None:
    assert 1 <= len(time_ticks(0.0, 1.3e9, UTC)) <= 9


def test_names_that_have_no_room_are_left_out_evenly() -> None:
    names = [str(day) for day in range(1, 32)]
    assert [tick.text for tick in name_ticks(names, width_em=30.0)][:3] == ["1", "4", "7"]
    assert len(name_ticks(names[:5], width_em=30.0)) == 5
    assert name_ticks([], width_em=30.0) == []


@pytest.mark.parametrize(
    ("value", "n_decimals", "text"),
    [
        (-12_345.6, 1, "\u221212\u202f345.6"),
        (0.0, None, "0"),
        (-0.0001, 2, "0.00"),
        (1e20, None, "1e+20"),
        (math.inf, None, "not known"),
        (2.5, None, "2.5"),
        (1_234_567.0, None, "1\u202f234\u202f567"),
    ],
)
def test_numbers_are_as_people_write_them(value: float, n_decimals: int | None, text: str) -> None:
    assert number_text(value, n_decimals) == text


@pytest.mark.parametrize(
    ("lower", "upper", "text"),
    [
        (0.000123, 12.345, "0 to 12.3"),
        (-1e-9, 3.456, "0 to 3.46"),
        (1_234.5, 1_300.0, "1\u202f234 to 1\u202f300"),
        (0.0, 0.0, "0 to 0"),
    ],
)
def test_the_ends_of_an_interval_have_the_digits_of_the_larger(lower: float, upper: float, text: str) -> None:
    assert interval_text(lower, upper) == text


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"])
def test_ticks_are_at_full_hours_of_zones_that_are_parts_of_an_hour_apart(zone: str) -> None:
    begin = datetime(2026, 4, 4, 12, tzinfo=UTC).timestamp()  # Lord Howe sets its clocks back half an hour on the 5th
    ticks = time_ticks(begin, begin + 36 * 3_600, ZoneInfo(zone))
    assert len(ticks) > 4
    for tick in ticks:
        local = datetime.fromtimestamp(tick.value, ZoneInfo(zone))
        assert tick.text == (f"{local:%H:%M}" if local.hour else f"{local:%a}")
        assert local.minute == 0
