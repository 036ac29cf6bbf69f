"""How much slower a run has been since its start, and will have been: with evidence alone."""

from typing import Any

import msgspec
import pytest

from controller.history.energy_history.reading import RunQuarter
from controller.history.energy_history.report import Entry
from controller.web.charts.marks import Band, Chart, Line, Rule
from controller.web.pages.runs.slowdown import slowdown_chart, slowdowns
from controller.web.pages.savings import run_entry
from publishers.messages.reports import RunSchedule, ScheduleEntry
from publishers.messages.topics import RunKey
from tests.controller.history.energy_history.records import measured, run_record
from tests.controller.web.pages.site import NOW_S, ZONE

BEGIN_S = int(NOW_S // 900 * 900) - 3_600
HEARD_S = BEGIN_S + 3_600.0 + 60.0
KEY = RunKey("ada", "bert", "1")
PLAN = RunSchedule(
    objective="slowdown",
    max_slowdown_ratio=1.05,
    until_s=HEARD_S + 7_320.0,
    expected_end_s=HEARD_S + 7_320.0,
    entries=[
        ScheduleEntry(starts_s=HEARD_S - 60.0, power_limit_w=200.0, power_w=180.0, speed_ratio=0.8),
        ScheduleEntry(starts_s=HEARD_S + 3_660.0, power_limit_w=250.0, power_w=220.0, speed_ratio=1.0),
    ],
)


def quarters(*amounts: tuple[float | None, float | None]) -> list[RunQuarter]:
    return [
        RunQuarter(BEGIN_S + 900 * place, 900, 1e5, 900.0, compared_s, baseline_s)
        for place, (compared_s, baseline_s) in enumerate(amounts)
    ]


def entry(**changes: Any) -> Entry:  # noqa: ANN401 — the record checks them
    record = measured(run_record(n_gpus=1, duration_s=3_660.0, energy_j=1e6, time_s=HEARD_S), saved_ratio=0.1)
    record = msgspec.structs.replace(record, baseline_duration_s=3_660.0 / 1.02, slowdown_ratio=1.02, **changes)
    return run_entry(KEY, record)


def chart(
    known: list[RunQuarter] | None = None, of: Entry | None = None, schedule: RunSchedule | None = PLAN
) -> Chart | None:
    found = quarters((None, None), (1_800.0, 1_700.0), (900.0, 900.0), (900.0, 890.0)) if known is None else known
    now_s = None if schedule is None else HEARD_S + 5.0
    return slowdown_chart(found, of or entry(), schedule, heard_s=HEARD_S, now_s=now_s, zone=ZONE)


def marks(found: Chart | None) -> dict[str, Any]:
    assert found is not None
    (panel,) = found.panels
    return {mark.name: mark for mark in panel.marks}


def test_the_course_is_of_all_that_was_compared_until_then() -> None:
    found = list(slowdowns(quarters((None, None), (1_800.0, 1_700.0), (900.0, 900.0))))
    assert [it.time_s - BEGIN_S for it in found] == [1_800, 2_700]
    assert [it.ratio for it in found] == pytest.approx([1_800 / 1_700, 2_700 / 2_600])


def test_past_is_solid_with_its_interval_expected_and_allowed_are_dashed() -> None:
    found = marks(chart())
    past, band, ahead = found["so far"], found["90 % interval"], found["expected"]
    assert isinstance(past, Line)
    assert isinstance(band, Band)
    assert (past.dash, ahead.dash) == ("solid", "dashed")
    assert past.ys[-1] == pytest.approx(2.0)
    assert past.xs[-1] == HEARD_S == ahead.xs[0]
    half = 100 * 0.004
    assert [band.lowers[-1], band.uppers[-1]] == pytest.approx([2.0 - half, 2.0 + half])
    assert all(low < y < high for low, y, high in zip(band.lowers, past.ys, band.uppers, strict=True))
    allowed = found["allowed"]
    assert isinstance(allowed, Rule)
    assert (allowed.axis, allowed.dash, round(allowed.value, 6)) == ("y", "dashed", 5.0)


def test_what_is_expected_follows_the_plans_speeds() -> None:
    ahead = marks(chart(schedule=msgspec.structs.replace(PLAN, expected_end_s=None)))["expected"]
    base_s = 3_660 / 1.02
    assert max(ahead.ys) == pytest.approx(100 * (7_320 / (base_s + 0.8 * 3_660) - 1))
    assert ahead.ys[-1] == pytest.approx(100 * (10_980 / (base_s + 1.8 * 3_660) - 1))
    assert ahead.xs[-1] == PLAN.until_s
    assert max(b - a for a, b in zip(ahead.xs, ahead.xs[1:], strict=False)) <= 900


def test_at_its_end_a_run_is_as_slow_as_the_plan_says() -> None:
    told = {"expected_slowdown_ratio": 1.05, "expected_slowdown_ci90_ratio": 0.003}
    ahead = marks(chart(schedule=msgspec.structs.replace(PLAN, **told)))["expected"]
    assert [ahead.ys[0], ahead.ys[-1]] == pytest.approx([2.0, 5.0])


@pytest.mark.parametrize("changes", [{"evidence": "too_early"}, {"slowdown_ci90_ratio": None}])
def test_without_evidence_there_is_no_course(changes: dict[str, Any]) -> None:
    assert chart(of=entry(**changes)) is None


def test_one_moment_is_no_course_and_an_ended_run_expects_nothing() -> None:
    assert chart([], schedule=None) is None
    found = marks(chart(schedule=None))
    assert not {"now", "expected", "allowed"} & set(found)
