"""Words and amounts of pages."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.runtime.machine_zone import MACHINE_ZONE
from controller.web.pages.layout import moment_text, render_time
from controller.web.pages.words import (
    decision_text,
    limit_text,
    range_text,
    reason_text,
    run_path,
    typeset,
    without_number_text,
)
from publishers.messages.reasons import SHORT_REASONS, short_reason
from publishers.messages.reports import LimitChange
from publishers.messages.topics import RunKey
from publishers.training.reporting.amounts import carbon_text, interval_texts, power_text
from tests.controller.history.energy_history.records import machine_zone, run_record
from tests.controller.web.pages.site import NOW_S, ZONE

NB = "\u00a0"


def change(before_w: float | None, after_w: float | None, reason: str = "slowdown_signal") -> LimitChange:
    return LimitChange(time_s=NOW_S, reason=reason, detail="", power_limit_w=after_w, previous_power_limit_w=before_w)


@pytest.mark.parametrize(
    ("before_w", "after_w", "text"),
    [
        (250.0, 200.0, f"250{NB}→{NB}200{NB}W"),
        (200.0, 200.3, f"200{NB}W"),
        (None, 200.0, f"200{NB}W"),
        (200.0, None, "limit not known"),
        (800.0, 1_200.0, f"800{NB}W{NB}→{NB}1.2{NB}kW"),
    ],
)
def test_a_limit_is_said_with_the_one_before(before_w: float | None, after_w: float | None, text: str) -> None:
    assert limit_text(change(before_w, after_w)) == text


def test_a_plan_that_follows_the_grid_says_which_way_and_others_their_reason() -> None:
    assert reason_text(change(250.0, 200.0)) == "following the grid in the allowed time: slower for now"
    assert reason_text(change(200.0, 250.0, "deadline_signal")).endswith("until the deadline: faster for now")
    assert reason_text(change(200.0, 200.0)) == short_reason("slowdown_signal")
    for code in SHORT_REASONS:
        assert reason_text(change(200.0, 200.0, code)) == short_reason(code)
        assert "_" not in decision_text(change(100.0, 200.0, code))


def test_an_interval_has_its_unit_once_where_it_is_the_same() -> None:
    assert range_text("1.2 kg CO2e", "3 kg CO2e") == f"1.2 to 3{NB}kg{NB}CO₂e"
    assert range_text("900 g CO2e", "1.1 kg CO2e") == f"900{NB}g{NB}CO₂e to 1.1{NB}kg{NB}CO₂e"
    assert range_text("0 g CO2e", "1.1 kg CO2e") == f"0 to 1.1{NB}kg{NB}CO₂e"
    assert range_text("-1.1 kg CO2e", "0 g CO2e") == f"\u22121.1 to 0{NB}kg{NB}CO₂e"
    assert range_text("0", "3") == "0 to 3"
    assert typeset("-1,234.5 EUR") == f"\u22121\u202f234.5{NB}EUR"


def test_each_code_of_evidence_without_numbers_has_its_words() -> None:
    for evidence in (None, "too_early", "incomplete", "other_nodes", "a_code_of_tomorrow"):
        text = without_number_text(run_record(evidence=evidence))
        assert text.startswith("not known")
        assert "_" not in text
    assert without_number_text(None) == "not known yet"


@pytest.mark.parametrize(
    ("power_w", "text"), [(0.0, "0 W"), (61.27, "61 W"), (999.6, "1 kW"), (1_234.0, "1.23 kW"), (2e6, "2 MW")]
)
def test_a_power_is_told_in_watts_below_a_kilowatt(power_w: float, text: str) -> None:
    assert power_text(power_w) == text


@pytest.mark.parametrize(
    ("amount", "half", "texts"),
    [
        (123.0, 122.9877, ["0 g", "123 g", "246 g"]),
        (123.0, 123.7, ["-1 g", "123 g", "247 g"]),
        (124.0, 121.53, ["2.47 g", "124 g", "246 g"]),
        (-2_000.0, 1_999.6, ["-4 kg", "-2 kg", "0 g"]),
        (0.0, 0.0, ["0 g", "0 g", "0 g"]),
    ],
)
def test_an_end_of_an_interval_near_zero_has_no_more_digits(amount: float, half: float, texts: list[str]) -> None:
    assert [text.removesuffix(" CO2e") for text in interval_texts(amount, half, carbon_text)] == texts


def test_a_moment_is_as_short_as_it_may_be() -> None:
    def said(**ago: float) -> str:
        return moment_text(NOW_S - timedelta(**ago).total_seconds(), NOW_S, ZONE).replace(NB, " ")

    assert said(hours=2) == "13:20"
    assert said(days=1) == "Tue 15:20"
    assert said(days=-1) == "Thu 15:20"
    assert said(days=8) == "7 Nov 15:20"
    assert said(days=400) == "11 Oct 2022 16:20"
    assert render_time(NOW_S, NOW_S, ZONE) == '<time datetime="2023-11-15T14:20:00Z">15:20</time>'


def test_the_path_of_a_run_has_its_names_percent_encoded() -> None:
    assert run_path(RunKey("a/b?é", "job-1.0", "r")) == "/run/a%2Fb%3F%C3%A9/job-1.0/r"


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)))  # noqa: DTZ001 — of UTC
def test_the_zone_of_the_machine_is_the_one_that_it_names(moment: datetime) -> None:
    with machine_zone("Europe/Berlin"):
        local = moment.replace(tzinfo=UTC).astimezone(MACHINE_ZONE)
        named = moment.replace(tzinfo=UTC).astimezone(ZoneInfo("Europe/Berlin"))
        assert (local.replace(tzinfo=None), local.fold, local.utcoffset(), local.tzname()) == (
            named.replace(tzinfo=None), named.fold, named.utcoffset(), named.tzname(),
        )  # fmt: skip
        assert local.timestamp() == named.timestamp()
