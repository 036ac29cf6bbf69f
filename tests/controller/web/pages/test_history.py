"""The page of a month: the numbers of the report, other months and other lines one link away."""

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, event

from controller.config import Retention
from controller.history.energy_history.history_file import HistoryFile, read_history
from controller.history.energy_history.writing import tidy, write_messages
from controller.web.pages.history import MAX_ROWS, History, HistoryQuery, read_month, render_history
from policies.vocabulary.units import DAY_S
from tests.controller.history.energy_history.records import (
    TOPICS,
    gpu_message,
    measured,
    memory,
    run_message,
    run_record,
)
from tests.controller.web.pages.site import Found
from tests.fakes import MIDNIGHT_S

JOB = "<script>alert(1)</script>"
NOW_S = MIDNIGHT_S + 40 * DAY_S
"""In the month after the records' own, or the one after that."""


def written(path: Path) -> Path:
    """Return a history with one run that has ended, and what a GPU used beside it."""
    history = HistoryFile(path / "history.sqlite", topics=TOPICS, config=Retention(), session_s=None)
    final = replace(
        measured(run_record(duration_s=3600.0, energy_j=1e6, carbon_g=80.0), saved_ratio=0.1),
        final=True,
        state="finished",
    )
    messages = [run_message(final), gpu_message(MIDNIGHT_S, 1e6), gpu_message(MIDNIGHT_S + 3600.0, 3e6)]
    for message in messages:
        history.write([message], now_s=MIDNIGHT_S + 3600.0)
    history.close()
    return path / "history.sqlite"


def month_of(path: Path, query: HistoryQuery, *, now_s: float = NOW_S) -> tuple[History | None, list[str]]:
    """Return a month of a history, and what is wrong with the query."""
    faults: list[str] = []
    return read_history(path, lambda connection: read_month(connection, query, now_s, UTC, faults)), faults


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a written history."""
    return written(tmp_path)


def test_a_month_reads_each_run_once(path: Path) -> None:
    statements: list[str] = []

    def read(connection: Connection) -> None:
        event.listen(connection, "before_cursor_execute", lambda *call: statements.append(call[2]))
        read_month(connection, HistoryQuery(), NOW_S, UTC, [])

    read_history(path, read)
    assert sum("FROM runs" in statement for statement in statements) == 1


def test_a_month_shows_the_numbers_of_its_report(path: Path) -> None:
    month = f"{datetime.fromtimestamp(MIDNIGHT_S, UTC):%Y-%m}"
    history, faults = month_of(path, HistoryQuery(month=month))
    assert history is not None
    found = Found(render_history(history, now_s=NOW_S, zone=UTC))
    assert history.found.headline.replace("CO2e", "CO₂e") in found.text.replace("CO2e", "CO₂e")
    assert "278 Wh" in found.text
    assert "10.0 %" in found.text
    assert history.found.counted
    assert all(sentence in found.text for sentence in history.found.counted)
    assert faults == []
    links = [link["href"] for link in found.all("a")]
    assert {f"/v1/report?month={month}&by=job{form}" for form in ("", "&format=csv")} < set(links)
    assert f"/history?month={month}&by=gpu" in links


def test_gpus_are_shown_with_what_they_used_without_a_run(path: Path) -> None:
    history, _ = month_of(path, HistoryQuery(month=f"{datetime.fromtimestamp(MIDNIGHT_S, UTC):%Y-%m}", by="gpu"))
    assert history is not None
    text = Found(render_history(history, now_s=NOW_S, zone=UTC)).text
    assert "556 Wh" in text
    many = replace(history.found, rows=[replace(history.found.rows[0], name=f"gpu-{n}") for n in range(MAX_ROWS + 2)])
    assert "2 more" in Found(render_history(history._replace(found=many), now_s=NOW_S, zone=UTC)).text


def test_a_month_leads_to_those_beside_it_that_have_a_history(path: Path) -> None:
    history, _ = month_of(path, HistoryQuery())
    assert history is not None
    months = {
        str(link["href"]).partition("month=")[2][:7]
        for link in Found(render_history(history, now_s=NOW_S, zone=UTC)).all("a")
        if "month=" in str(link["href"])
    }
    present = datetime.fromtimestamp(NOW_S, UTC)
    before = datetime(present.year - (present.month == 1), (present.month - 2) % 12 + 1, 1, tzinfo=UTC)
    assert months == {f"{present:%Y-%m}", f"{before:%Y-%m}"}


@pytest.mark.parametrize("month", ["2026-13", "2999-01", "yesterday", JOB])
def test_what_is_no_month_is_told(path: Path, month: str) -> None:
    history, faults = month_of(path, HistoryQuery(month=month))
    assert history is None
    assert len(faults) == 1


def test_an_empty_history_has_no_run(tmp_path: Path) -> None:
    HistoryFile(tmp_path / "h.sqlite", topics=TOPICS, config=Retention(), session_s=None).write([], now_s=MIDNIGHT_S)
    for by in ("job", "day", "node"):
        history, _ = month_of(tmp_path / "h.sqlite", HistoryQuery(by=by))
        assert history is not None
        assert "no run" in Found(render_history(history, now_s=NOW_S, zone=UTC)).text or by == "node"


@pytest.mark.parametrize(
    ("zone", "dates"),
    [("UTC", ["15 Nov"]), ("Asia/Kathmandu", ["15 Nov"]), ("Pacific/Kiritimati", ["15 Nov", "16 Nov"])],
)
def test_days_and_sentence_are_of_the_zone_that_is_asked_for(path: Path, zone: str, dates: list[str]) -> None:
    faults: list[str] = []
    query, later_s, there = HistoryQuery(month="2023-11", by="day"), MIDNIGHT_S + 11 * 3_600.0, ZoneInfo(zone)
    history_file = HistoryFile(path, topics=TOPICS, config=Retention(), session_s=None)
    history_file.write([run_message(run_record(run="r2", time_s=later_s, energy_j=1e5))], now_s=later_s)
    history_file.close()
    history = read_history(path, lambda connection: read_month(connection, query, NOW_S, there, faults))
    assert history is not None
    assert [f"{int(row.name[-2:])} Nov" for row in history.found.rows] == dates
    assert history.found.headline.startswith("From 2023-11-01 00:00 to 2023-12-01 00:00, 2 runs used")
    assert sum(row.energy_j or 0.0 for row in history.found.rows) == history.found.total.energy_j


@pytest.mark.parametrize(("date", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_a_day_on_which_clocks_change_is_whole(tmp_path: Path, date: str, hours: int) -> None:
    berlin, faults = ZoneInfo("Europe/Berlin"), list[str]()
    midnight_s = datetime.fromisoformat(date).replace(tzinfo=berlin).timestamp()
    history_file = HistoryFile(tmp_path / "h.sqlite", topics=TOPICS, config=Retention(), session_s=None)
    ends_s = [
        midnight_s - 60.0,
        midnight_s + 60.0,
        midnight_s + 3_600.0 * hours - 60.0,
        midnight_s + 3_600.0 * hours + 60.0,
    ]
    for place, time_s in enumerate(ends_s, 1):
        record = run_record(time_s=time_s, energy_j=1e5 * place, duration_s=60.0 * place)
        history_file.write([run_message(record)], now_s=time_s)
    history_file.close()
    query = HistoryQuery(month=date[:7], by="day")
    history = read_history(
        tmp_path / "h.sqlite", lambda connection: read_month(connection, query, ends_s[-1] + 60.0, berlin, faults)
    )
    assert history is not None
    assert [row.energy_j for row in history.found.rows] == pytest.approx([1e5, 2e5, 1e5])


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Asia/Kathmandu", "Asia/Tokyo"])
def test_a_day_that_is_kept_whole_keeps_its_name_in_other_zones(zone: str) -> None:
    faults: list[str] = []
    now_s = MIDNIGHT_S + 90 * DAY_S
    with memory() as connection:
        for day in range(3):
            time_s = MIDNIGHT_S + day * DAY_S + 12 * 3_600.0
            message = run_message(run_record(time_s=time_s, energy_j=1e5 * (day + 1), duration_s=60.0 * (day + 1)))
            write_messages(connection, messages=[message], topics=TOPICS, session_s=None, now_s=time_s)
        tidy(connection, now_s=now_s, config=Retention(), zone=UTC)
        found = read_month(connection, HistoryQuery(month="2023-11", by="day"), now_s, ZoneInfo(zone), faults)
    assert found is not None
    assert [row.name for row in found.found.rows] == ["2023-11-15", "2023-11-16", "2023-11-17"]
    assert found.found.total.energy_j == 3e5
