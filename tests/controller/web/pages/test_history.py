"""The page of a month: the same numbers as the report, by day and by anything."""

import pytest

from controller.history.energy_history.query import Report, ReportQuery, period_of
from controller.history.energy_history.report import TOO_EARLY, Entry
from controller.web.pages.history import month_of, render_history
from tests.controller.history.energy_history.records import machine_zone
from tests.controller.web.charts.test_markup import HOSTILE
from tests.controller.web.pages.site import NOW_S, ZONE, Found
from tests.controller.web.test_report_page import entry


def report(by: str, total: Entry, rows: list[Entry]) -> Report:
    return Report(since_s=0.0, until_s=1.0, by=by, headline="", combined="How.", total=total, rows=rows, records=[])


def found(total: Entry, rows: list[Entry], *, by: str = "job", rows_total: Entry | None = None) -> Found:
    days = report("day", total, [entry("2023-11-14"), entry("2023-11-15", saved_ratio=None)] if total.runs else [])
    lines = report(by, rows_total or total, rows)
    return Found(render_history("2023-11", days, lines, now_s=NOW_S, zone=ZONE))


def test_a_month_has_its_sum_its_days_and_its_lines() -> None:
    page = found(entry("total"), [entry("ada/bert"), entry("bob/llama", saved_ratio=None)])
    for part in (
        "November 2023: 67.3 kg CO₂e saved, 14.4 % (90 %: 63.3 to 71.3 kg CO₂e)",
        "Day by day",
        "saved, with its 90 % interval",
        "By job",
        "ada/bert 11 10 h 00 min 1 MWh, 400 kg CO₂e 67.3 kg CO₂e, 14.4 % (63.3 to 71.3 kg CO₂e)",
        f"bob/llama 11 10 h 00 min 1 MWh, 400 kg CO₂e {TOO_EARLY}",
    ):
        assert part in page.text


def test_lines_of_gpus_say_what_they_used_and_nothing_of_savings() -> None:
    gpu = Entry(name="atlas/GPU-0", energy_j=3.6e6, carbon_g=300.0)
    page = found(entry("total"), [gpu], by="gpu", rows_total=gpu)
    assert "gpu used atlas/GPU-0 1 kWh, 300 g CO₂e all 1 kWh, 300 g CO₂e" in page.text


def test_an_empty_month_says_so_and_leads_on() -> None:
    page = found(Entry(name="total", runs=0, measured_runs=0), [])
    assert "November 2023: no run" in page.text
    links = [it.get("href") for it in page.all("a")]
    assert "/history?month=2023-10&by=job" in links
    assert "/history?month=2023-12&by=job" not in links, "it has not begun"
    assert "/history?month=2023-11&by=gpu" in links
    assert "/v1/report?month=2023-11&by=job" in links


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str) -> None:
    page = found(entry("total"), [entry(name)])
    assert not {"img", "b"} & {tag for tag, attributes in page.elements if tag == "img" or attributes}
    assert len(page.all("script")) == 1


def test_the_month_is_that_of_the_machine() -> None:
    with machine_zone("Europe/Berlin"):
        faults: list[str] = []
        period = period_of(ReportQuery(month="2023-11"), NOW_S, faults)
        assert not faults
        assert period is not None
        assert month_of(period.since_s, ZONE) == "2023-11"
