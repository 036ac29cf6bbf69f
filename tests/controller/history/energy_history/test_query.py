"""Reports of one history by different lines: they add up, whatever was known when, and whatever clocks said."""

from datetime import UTC
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event

from controller.config import Retention
from controller.history.energy_history.query import Report, ReportQuery, make_report, period_of
from controller.history.energy_history.report import PARTS, Entry
from controller.history.energy_history.writing import tidy, write_messages
from policies.vocabulary.units import DAY_S
from publishers.messages.reports import RunEnergy
from tests.controller.history.energy_history.records import TOPICS, memory, run_message, run_record
from tests.fakes import MIDNIGHT_S

AMOUNTS = [name for name in Entry.__struct_fields__ if name.endswith(("_j", "_g", "_cost", "_s")) or name == "work"]
ADDING_UP = [name for name in AMOUNTS if "ci90" not in name and not name.startswith("energy_per")]
"""What days and runs have that is no ratio, and no interval."""
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["measured", "measured", "measured", "too_early"]),
        st.floats(0.1, 1.5),  # days since the record before
        st.floats(1e4, 4e7),  # used [J]
        st.floats(-0.2, 0.4),  # saved
        st.booleans(),  # trained, and has not waited
    ),
    min_size=1,
    max_size=6,
)


def record_of(run: str, evidence: str, sums: tuple[float, ...], after_s: float) -> RunEnergy:
    """Return a record of a run that has used, and would have used, so much [J]; 100 g/kWh, and a tenth by following."""
    used_j, baseline_j, trained_s = sums
    used = run_record(
        run=run,
        time_s=MIDNIGHT_S + after_s,
        duration_s=after_s,
        energy_j=used_j,
        carbon_g=used_j / 3.6e4,
        work=trained_s * 7.0,
        work_unit="tokens",
        evidence=evidence,
    )
    if evidence == "too_early":
        return used
    saved_ratio = 1 - used_j / baseline_j
    parts = dict(zip(PARTS, (saved_ratio * 0.9 + 0.01, saved_ratio * 0.1, -0.01), strict=True))
    ratios = {"saved": saved_ratio, "saved_energy": saved_ratio, **{f"saved_{name}": it for name, it in parts.items()}}
    fields = {f"{name}_ratio": it for name, it in ratios.items()} | {f"{name}_ci90_ratio": 0.004 for name in ratios}
    fields |= {"baseline_energy_j": baseline_j, "baseline_carbon_g": baseline_j / 3.6e4}
    fields |= {"baseline_duration_s": trained_s / 1.03, "slowdown_ratio": 1.03, "slowdown_ci90_ratio": 0.001}
    return run_record(**{name: getattr(used, name) for name in used.__struct_fields__} | fields)


def records_of(run: str, steps: list[tuple[str, float, float, float, bool]]) -> list[RunEnergy]:
    """Return the records of a run; while it waits, what it uses has no baseline."""
    after_s = list(accumulate(days * DAY_S for _, days, *_ in steps))
    used_j = list(accumulate(joules for *_, joules, _, _ in steps))
    baseline_j = list(accumulate(j / (1 - ratio) if trains else 0.0 for *_, j, ratio, trains in steps))
    trained_s = list(accumulate(days * DAY_S if trains else 0.0 for _, days, *_, trains in steps))
    evidences = [evidence if trained else "too_early" for (evidence, *_), trained in zip(steps, trained_s, strict=True)]
    sums = zip(used_j, baseline_j, trained_s, strict=True)
    return [record_of(run, *each) for each in zip(evidences, sums, after_s, strict=True)]


def report(connection: Connection, by: str, now_s: float, month: str | None = None) -> Report:
    """Return a report, of all there is or of a month."""
    faults: list[str] = []
    query = ReportQuery(by=by, month=month)  # type: ignore[arg-type]
    found = make_report(connection, query, period_of(query, now_s, faults, UTC), now_s, UTC)
    assert not faults
    return found


@settings(max_examples=30)
@given(STEPS, STEPS, st.booleans())
def test_days_add_up_to_months_and_to_runs(
    one: list[tuple[str, float, float, float, bool]], other: list[tuple[str, float, float, float, bool]], merged: bool
) -> None:
    records = sorted([*records_of("r1", one), *records_of("r2", other)], key=lambda it: it.time_s or 0.0)
    now_s = (records[-1].time_s or 0.0) + 1.0
    with memory() as connection:
        for record in records:
            write_messages(connection, [run_message(record)], topics=TOPICS, session_s=None, now_s=record.time_s or 0.0)
        if merged:
            tidy(connection, now_s=now_s + 60 * DAY_S, config=Retention(), zone=UTC)
        days, runs = report(connection, "day", now_s), report(connection, "run", now_s)
        months = [report(connection, "job", now_s, month).total for month in ("2023-11", "2023-12") if now_s > 1.7014e9]
    for name in ADDING_UP:
        total = getattr(runs.total, name)
        is_part = name.startswith(PARTS)  # of a day on which only the sum became known, parts are not known
        for rows in (days.rows, runs.rows, *([months] if months else [])):
            told = [getattr(row, name) for row in rows]
            if is_part and (total is None or any(each.saved_carbon_g and getattr(each, name) is None for each in rows)):
                continue
            assert sum(each or 0.0 for each in told) == pytest.approx(total or 0.0, rel=1e-6, abs=0.5), name


def test_what_a_run_saves_has_its_parts_on_each_day_of_a_month() -> None:
    steps = [("measured", 1.0, 1e7 * (1 + day % 5), 0.13 + 0.01 * (day % 3), True) for day in range(30)]
    now_s = MIDNIGHT_S + 31 * DAY_S
    with memory() as connection:
        for record in records_of("r1", steps):
            messages = [run_message(record)]
            write_messages(connection, messages, topics=TOPICS, session_s=None, now_s=record.time_s or 0.0)
        days = report(connection, "day", now_s)
    for day in days.rows:
        parts_g = [getattr(day, f"{name}_carbon_g") for name in PARTS]
        assert sum(parts_g) == pytest.approx(day.saved_carbon_g)
    assert len(days.rows) == len(steps)


def test_days_on_which_nothing_ran_are_not_asked_for() -> None:
    asked: list[str] = []
    with memory() as connection:
        for time_s, run in ((5_000.0, "r1"), (MIDNIGHT_S, "r2")):
            message = run_message(run_record(run=run, time_s=time_s, duration_s=60.0, energy_j=1e4))
            write_messages(connection, [message], topics=TOPICS, session_s=None, now_s=MIDNIGHT_S)
        event.listen(connection, "before_cursor_execute", lambda *call: asked.append(call[2]))
        days = report(connection, "day", MIDNIGHT_S + DAY_S)
    assert [row.name for row in days.rows] == ["1970-01-01", "2023-11-15"]
    assert len(asked) < 20
