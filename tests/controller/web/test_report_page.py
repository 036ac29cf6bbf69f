"""The page of a report: the same numbers as its lines, each with its interval; hostile names are text."""

import re
from datetime import date, timedelta
from html import unescape

import pytest
from msgspec.structs import replace

from controller.history.energy_history.report import PARTS, TOO_EARLY, Entry
from controller.web.report_page import MAX_BARS, MAX_DAYS, MAX_PRINTED_ROWS, MAX_SPLIT_ROWS, ReportPage, render_report
from tests.controller.runtime.test_markup import HOSTILE, Reader


def entry(name: str, *, energy_j: float = 3.6e9, saved_ratio: float | None = 0.144, runs: int = 11) -> Entry:
    """Return a line; without a ratio there is no evidence."""
    used = Entry(name=name, runs=runs, measured_runs=0, duration_s=36_000.0, energy_j=energy_j, carbon_g=energy_j / 9e3)
    if saved_ratio is None:
        return used
    baselines = {
        key: amount / (1 - saved_ratio) for key, amount in (("energy_j", energy_j), ("carbon_g", energy_j / 9e3))
    }
    return Entry(
        name=name,
        runs=runs,
        measured_runs=runs,
        duration_s=36_000.0,
        energy_j=energy_j,
        carbon_g=energy_j / 9e3,
        baseline_energy_j=baselines["energy_j"],
        baseline_carbon_g=baselines["carbon_g"],
        baseline_duration_s=36_000.0 / 1.03,
        saved_energy_j=saved_ratio * baselines["energy_j"],
        saved_carbon_g=saved_ratio * baselines["carbon_g"],
        saved_energy_ci90_j=0.01 * energy_j,
        saved_carbon_ci90_g=0.01 * energy_j / 9e3,
        saved_energy_ratio=saved_ratio,
        saved_carbon_ratio=saved_ratio,
        slowdown_ratio=1.03,
        slowdown_ci90_ratio=0.004,
    )


def page_of(total: Entry, rows: list[Entry] | None = None, days: list[Entry] | None = None, by: str = "job") -> str:
    """Return the page of a month."""
    return render_report(
        ReportPage(
            period="May 2021",
            headline="A sentence.",
            by=by,
            total=total,
            rows=[total] if rows is None else rows,
            days=days or [],
            without_run_j=1.476e8,
            counted=["Carbon is location-based.", "A <b>source</b>."],
        ),
        command="gridchase report --month 2021-05 --html may.html",
        fingerprint="0123456789abcdef",
        version="0.1.0",
    )


def text_of(page: str) -> str:
    """Return what a reader sees, with plain spaces."""
    return re.sub(r"[\u00a0\u202f]", " ", unescape(Reader(page).text))


def n_drawn(page: str, kind: str) -> int:
    """Return how many bars or whiskers of a kind are in the chart of a page."""
    (drawn,) = re.findall(rf'<g class="{kind}">(.*?)</g>', page)
    return len(re.findall("<(?:rect|line) ", drawn))


def month() -> list[Entry]:
    """Return 31 days, of which one has no evidence and one a negative saving."""
    days = [entry(f"2021-05-{day:02d}", energy_j=1e8 * (1 + day % 7)) for day in range(1, 32)]
    days[4], days[9] = entry("2021-05-05", saved_ratio=None), entry("2021-05-10", saved_ratio=-0.05)
    return days


def test_each_column_has_a_heading() -> None:
    headings = re.findall(r"<th[^>]*>([^<]*)</th>", page_of(entry("total")))
    assert headings
    assert all(headings)


def test_the_page_has_with_without_saved_and_interval() -> None:
    text = text_of(page_of(entry("total")))
    assert "May 2021: 67.3 kg CO₂e saved, 14.4 % (90 %: 63.3 to 71.3 kg CO₂e)" in text
    for cell in ("1 MWh", "1.17 MWh", "168 kWh, 14.4 %", "158 to 178 kWh", "3.0 % more time", "2.6 to 3.4 %"):
        assert cell in text
    assert "41 kWh that GPUs used outside runs" in text
    assert "gridchase report --month 2021-05 --html may.html" in text
    how = text.split("How this was counted")[1]
    assert "Carbon is location-based.A <b>source</b>.Not counted: 41 kWh" in how


def test_without_evidence_no_number_is_said_to_be_saved() -> None:
    text = text_of(page_of(entry("total", saved_ratio=None)))
    assert f"May 2021: {TOO_EARLY} what was saved" in text
    assert "with gridchase" not in text
    assert "saved," not in text.split("How this was counted")[0]


@pytest.mark.parametrize(
    ("measured", "runs", "words"),
    [
        (0, 1, "Use is that of 1 run; savings and slowdown are not known yet."),
        (0, 11, "Use is that of all 11 runs; savings and slowdown are not known yet."),
        (1, 11, "of all 11 runs; savings and slowdown are known for 1 of them, and told of that one alone."),
        (4, 11, "of all 11 runs; savings and slowdown are known for 4 of them, and told of those alone."),
    ],
)
def test_it_says_of_how_many_runs_a_saving_is_known(measured: int, runs: int, words: str) -> None:
    total = replace(entry("total", saved_ratio=0.1 if measured else None, runs=runs), measured_runs=measured)
    assert words in text_of(page_of(total))


def test_more_than_at_the_prior_limits_is_said_as_such() -> None:
    assert "May 2021: 19 kg CO₂e more used, 5.0 % (90 %:" in text_of(page_of(entry("total", saved_ratio=-0.05)))


def test_a_month_has_a_bar_a_day_and_a_whisker_where_there_is_evidence() -> None:
    page = page_of(entry("total"), days=month())
    assert [n_drawn(page, kind) for kind in ("bar c-power tinted", "bar c-saved", "whisker c-text")] == [31, 30, 30]
    assert "<figure" not in page_of(entry("total"), days=month()[:1]), "one bar says no more than the table"


def test_more_than_a_hundred_days_are_shown_by_month_and_sum_up() -> None:
    first = date(2021, 5, 1)
    days = [entry(f"{first + timedelta(days=day)}", energy_j=9e7 * (1 + day % 3)) for day in range(MAX_BARS + 1)]
    assert n_drawn(page_of(entry("total"), days=days[:-1]), "bar c-power tinted") == MAX_BARS
    page = page_of(entry("total"), days=days)
    text = text_of(page)
    assert n_drawn(page, "bar c-power tinted") == n_drawn(page, "whisker c-text") == 4
    assert "Month by month" in text
    assert "kg CO₂e a month" in text
    assert all(f"{month} 2021" in text for month in ("May", "Jun", "Jul", "Aug"))
    assert f"{sum(day.energy_j or 0.0 for day in days[:31]) / 3.6e9:.3g} MWh" in text
    assert "103 kg CO₂e, 14.4 %" in text


def test_work_in_several_units_has_no_sum_and_no_line_takes_its_place() -> None:
    rows = [replace(entry(unit), work=1e6, work_unit=unit, energy_per_work_j=1.0) for unit in ("tokens", "images")]
    table = page_of(entry("total"), rows=rows).split("Work as the training programs report it")[1].split("</table>")[0]
    (of_sum,) = table.split('class="sum"')[1:]
    assert ("all" in of_sum, "images" in of_sum) == (True, False)


def test_no_run_is_no_number() -> None:
    assert "May 2021: no run" in text_of(page_of(Entry(name="total", runs=0, measured_runs=0), rows=[]))


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_outside_are_text(name: str) -> None:
    def kinds(name: str) -> list[str]:
        return [kind for kind, _ in Reader(page_of(entry("total"), rows=[entry(name)])).elements]

    assert kinds(name) == kinds("plain")
    assert page_of(entry(name)).encode()


def test_many_jobs_and_a_month_stay_below_35_kb_and_need_no_script() -> None:
    rows = [entry(f"user/job-{number}", energy_j=1e9 + number) for number in range(500)]
    page = page_of(entry("total"), rows=rows, days=month())
    assert len(page.encode()) < 32_000
    assert "<script" not in page
    text = text_of(page)
    assert "user/job-499" in text
    assert "user/job-0 " not in text
    assert f"{500 - MAX_PRINTED_ROWS} more, which used less, are in the sum." in text


def test_what_a_saving_is_made_of_and_work_are_shown_of_the_lines_that_know_them() -> None:
    split = {
        f"{part}_carbon{end}_g": amount
        for part in PARTS
        for end, amount in (("", 1e3 if part != "measuring" else -50.0), ("_ci90", 30.0))
    }
    worked = {"work": 2e9, "work_unit": "tokens", "worked_energy_j": 9e6, "energy_per_work_j": 4.5e-3}
    known, plain = replace(entry("a/known"), **split, **worked), entry("a/plain")
    text = text_of(page_of(known, rows=[known, plain]))
    made_of, work = text.split("What the saving is made of")[1].split("Work as the training programs report it")
    assert "1 kg CO₂e (970 g CO₂e to 1.03 kg CO₂e)" in made_of
    assert "\u221250 g CO₂e (\u221280 to \u221220 g CO₂e)" in made_of
    assert made_of.partition("a/plain")[2].startswith("not known" * len(PARTS))
    assert work.count("2 billion tokens at 1.25 Wh per million") == 2, "the line and the sum"
    assert "a/plain" not in work.partition("How this was counted")[0]
    assert "made of" not in text_of(page_of(plain))
    few, many = ([replace(known, name=f"line-{number}") for number in range(n)] for n in (MAX_SPLIT_ROWS, 9))
    split_texts = [text_of(page_of(known, rows=rows)).split("made of")[1].split("Work as")[0] for rows in (few, many)]
    assert ["line-0" in split_text for split_text in split_texts] == [True, False], "of many lines the sum alone"
    lines = [replace(known, name=f"user/job-{number}") for number in range(500)]
    assert len(page_of(known, rows=lines, days=month()).encode()) < 35_000


def test_days_keep_their_order_and_a_month_is_whole() -> None:
    text = text_of(page_of(entry("total"), rows=month(), by="day"))
    assert re.findall(r"2021-05-\d\d", text) == [day.name for day in month()]
    assert "in the sum" not in text
    names = [f"2021-{number:03d}" for number in range(40)]
    text = text_of(page_of(entry("total"), rows=[entry(name) for name in names], by="day"))
    assert re.findall(r"2021-\d{3}", text) == names[-MAX_DAYS:]
    assert f"{40 - MAX_DAYS} earlier ones are in the sum." in text


def test_what_was_saved_without_an_interval_is_too_early_to_tell() -> None:
    known = entry("total")
    carbon = replace(known, saved_carbon_ci90_g=None)
    text = text_of(page_of(carbon))
    assert "May 2021: 168 kWh saved" in text
    assert "CO₂e saved" not in text
    assert TOO_EARLY in text_of(page_of(replace(carbon, saved_energy_ci90_j=None)))


def test_a_faster_run_took_less_time() -> None:
    assert "0.5 % less time" in text_of(page_of(replace(entry("total"), slowdown_ratio=0.995)))
