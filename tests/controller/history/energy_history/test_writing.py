"""What is written of messages: sums that add up, old quarter-hours that become days, and bounds."""

from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select

from controller.config import HistoryConfig
from controller.history.energy_history import writing
from controller.history.energy_history.growth import ONLY_GROWING, RUN_AMOUNTS
from controller.history.energy_history.schema import DECISIONS, GPU_QUARTERS, GPUS, RUN_QUARTERS, RUNS
from controller.history.energy_history.writing import tidy, write_messages
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.controller.history.energy_history.records import (
    TOPICS,
    gpu_message,
    limit_message,
    machine_zone,
    measured,
    memory,
    run_message,
    run_record,
)
from tests.controller.history.energy_history.test_growth import STEPS, records
from tests.fakes import MIDNIGHT_S

SESSION_S = MIDNIGHT_S - 100.0


def write(connection: Connection, *messages: tuple[str, bytes], session_s: float | None = SESSION_S) -> None:
    """Write messages, as a recorder does."""
    write_messages(connection, messages, topics=TOPICS, session_s=session_s)


def sums(connection: Connection) -> dict[str, float]:
    """Return the sum of all quarter-hours of runs."""
    row = connection.execute(select(*(func.sum(RUN_QUARTERS.c[name]).label(name) for name in RUN_AMOUNTS)))
    return {name: value or 0.0 for name, value in row.mappings().one().items()}


@settings(max_examples=30)
@given(STEPS, st.booleans(), st.sets(st.integers(0, 12)))
def test_quarter_hours_add_up_to_the_run_also_where_a_write_is_repeated(
    steps: list[tuple[str, float, float, bool]], is_known_at_last: bool, repeated: set[int]
) -> None:
    made = records(steps, is_known_at_last=is_known_at_last)
    with memory() as connection:
        for number, record in enumerate(made):
            for _ in range(2 if number in repeated else 1):
                write(connection, run_message(record))
        row = connection.execute(select(RUNS)).mappings().one()
        assert sums(connection) == pytest.approx({name: row[name] or 0.0 for name in RUN_AMOUNTS}, abs=1e-3)
        lowest = [func.min(RUN_QUARTERS.c[name]) for name in ONLY_GROWING]
        assert all((value or 0.0) >= -1e-6 for value in connection.execute(select(*lowest)).one())
        assert row["final"]


def test_a_clock_that_is_ahead_for_hours_and_set_back_blocks_and_doubles_nothing() -> None:
    """At 600 s the clock is five hours ahead until it is set back at 1,200 s."""
    with memory() as connection:
        for at_s in range(0, 2_400, 60):
            time_s = MIDNIGHT_S + at_s + (5 * HOUR_S if 600 <= at_s < 1_200 else 0.0)
            record = run_record(time_s=time_s, duration_s=float(at_s), energy_j=100.0 * at_s)
            write(connection, run_message(record), gpu_message(time_s, 100.0 * at_s))
        for table in (RUN_QUARTERS, GPU_QUARTERS):
            rows = connection.execute(select(table.c.starts_s, table.c.energy_j).order_by(table.c.starts_s)).all()
            used_j = {round((starts_s - MIDNIGHT_S) / 900): energy_j for starts_s, energy_j in rows}
            assert used_j == pytest.approx({0: 54e3, 20: 30e3, 21: 30e3, 1: 60e3, 2: 60e3})


def test_a_batch_over_several_quarter_hours_counts_once_however_often_it_is_written() -> None:
    runs = [(890.0, 400.0, 1e4), (905.0, 415.0, 2e4), (920.0, 5.0, 1e3)]  # its books were lost in between
    batch = [
        gpu_message(MIDNIGHT_S + 890, 2e6),
        gpu_message(MIDNIGHT_S + 910, 2.01e6),
        *(run_message(run_record(time_s=MIDNIGHT_S + at, duration_s=s, energy_j=j)) for at, s, j in runs),
    ]
    with memory() as connection:
        write(connection, gpu_message(MIDNIGHT_S + 100, 1e6))
        write(connection, *batch)
        of_runs = sums(connection)
        assert of_runs["energy_j"] == 21e3
        write(connection, *batch)
        write(connection, *batch)
        assert sums(connection) == of_runs
        assert connection.execute(select(func.sum(GPU_QUARTERS.c.energy_j))).scalar() == 2.01e6


@settings(max_examples=30)
@given(STEPS, st.integers(1, 5))
def test_merged_days_add_up_to_the_same(steps: list[tuple[str, float, float, bool]], n_written: int) -> None:
    made = records(steps, is_known_at_last=True)
    config = HistoryConfig(quarter_days=1)
    with memory() as connection:
        for record in made[:n_written]:
            write(connection, run_message(record))
        before = sums(connection)
        tidy(connection, now_s=MIDNIGHT_S + 7 * DAY_S, config=config)
        assert sums(connection) == pytest.approx(before, abs=1e-3)
        for record in made[n_written:]:
            write(connection, run_message(record))
        tidy(connection, now_s=MIDNIGHT_S + 7 * DAY_S, config=config)
        row = connection.execute(select(RUNS)).mappings().one()
        assert sums(connection) == pytest.approx({name: row[name] or 0.0 for name in RUN_AMOUNTS}, abs=1e-3)


def test_a_day_takes_the_place_of_its_quarter_hours() -> None:
    with memory() as connection:
        for number in range(8):
            at_s = MIDNIGHT_S + number * HOUR_S
            write(connection, run_message(run_record(time_s=at_s, duration_s=at_s, energy_j=1e3 * (number + 1))))
            write(connection, gpu_message(at_s, 2e3 * (number + 1)))
        tidy(connection, now_s=MIDNIGHT_S + 3 * DAY_S, config=HistoryConfig(quarter_days=1))
        for table, energy_j in ((RUN_QUARTERS, 8e3), (GPU_QUARTERS, 16e3)):
            row = connection.execute(select(table)).mappings().one()
            assert (row["length_s"], row["energy_j"]) == (DAY_S, energy_j)


def test_days_are_merged_also_where_the_clock_skips_midnight() -> None:
    late_s = datetime(2026, 4, 23, 23, 30, tzinfo=ZoneInfo("Africa/Cairo")).timestamp()
    with machine_zone("Africa/Cairo"), memory() as connection:
        for number in range(5):
            write(connection, gpu_message(late_s + number * HOUR_S, 1e3 * (number + 1)))
        tidy(connection, now_s=late_s + 3 * DAY_S, config=HistoryConfig(quarter_days=1))
        days = connection.execute(select(GPU_QUARTERS.c.length_s, GPU_QUARTERS.c.energy_j)).all()
    assert [tuple(day) for day in days] == [(DAY_S, 1e3), (23 * HOUR_S, 4e3)]


def test_a_whole_run_and_its_parts_are_kept_apart() -> None:
    with memory() as connection:
        for node in (None, "node-a", "node-b"):
            write(connection, run_message(run_record(energy_j=1e3), node=node))
        nodes = connection.execute(select(RUNS.c.node).order_by(RUNS.c.node)).scalars().all()
    assert nodes == ["", "node-a", "node-b"]


def test_two_jobs_of_one_run_name_are_two_runs() -> None:
    with memory() as connection:
        write(connection, *(run_message(run_record(energy_j=1e3), job=job, user=user) for job in "ab" for user in "cd"))
        assert connection.execute(select(func.count()).select_from(RUNS)).scalar() == 4


def test_counters_of_a_new_controller_count_from_nothing() -> None:
    with memory() as connection:
        write(connection, gpu_message(MIDNIGHT_S, 100.0))
        write(connection, gpu_message(MIDNIGHT_S + 10, 150.0), session_s=SESSION_S + 50)
        row = connection.execute(select(GPU_QUARTERS.c.energy_j)).scalars().one()
    assert row == 250.0


def test_of_a_foreign_controller_what_it_had_counted_before_is_not_of_now() -> None:
    with memory() as connection:
        for number, energy_j in enumerate((1e9, 1e9 + 5.0, 3.0)):
            write(connection, gpu_message(MIDNIGHT_S + number, energy_j), session_s=None)
        assert connection.execute(select(GPU_QUARTERS.c.energy_j)).scalars().one() == 8.0


def test_what_is_not_measured_changes_nothing() -> None:
    with memory() as connection:
        write(connection, gpu_message(MIDNIGHT_S, 100.0), gpu_message(MIDNIGHT_S + 5, None))
        assert connection.execute(select(GPUS.c.energy_j)).scalars().one() == 100.0
        write(connection, run_message(run_record(n_gpus=0)), ("gridchase/v1/node/a/gpu/b/energy", b"{"), ("x", b"{}"))
        assert connection.execute(select(func.count()).select_from(RUNS)).scalar() == 0


def test_a_decision_is_kept_once_and_as_long_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_DECISIONS", 5)
    with memory() as connection:
        for number in range(10):
            for _ in range(2):
                write(connection, limit_message(MIDNIGHT_S + number))
        assert connection.execute(select(func.count()).select_from(DECISIONS)).scalar() == 10
        tidy(connection, now_s=MIDNIGHT_S + 10, config=HistoryConfig())
        kept = connection.execute(select(DECISIONS.c.time_s).order_by(DECISIONS.c.time_s)).scalars().all()
        assert kept == [MIDNIGHT_S + number for number in range(5, 10)]
        tidy(connection, now_s=MIDNIGHT_S + 2 * DAY_S, config=HistoryConfig(decision_days=1))
        assert connection.execute(select(func.count()).select_from(DECISIONS)).scalar() == 0


def test_runs_are_dropped_with_their_days() -> None:
    with memory() as connection:
        write(connection, run_message(run_record(energy_j=1e3, final=True)))
        write(connection, run_message(run_record(run="r2", time_s=MIDNIGHT_S + 2 * DAY_S, energy_j=1e3)))
        tidy(connection, now_s=MIDNIGHT_S + 3 * DAY_S, config=HistoryConfig(run_days=2))
        assert connection.execute(select(RUNS.c.run)).scalars().all() == ["r2"]
        assert connection.execute(select(func.count()).select_from(RUN_QUARTERS)).scalar() == 1


def test_one_call_drops_the_oldest_days_alone() -> None:
    with memory() as connection:
        for day in (0, 3, 30):
            at_s = MIDNIGHT_S + day * DAY_S
            write(connection, run_message(run_record(run=f"r{day}", time_s=at_s, energy_j=1e3)), limit_message(at_s))
        tidy(connection, now_s=MIDNIGHT_S + 73 * 365 * DAY_S, config=HistoryConfig())
        assert connection.execute(select(RUNS.c.run)).scalars().all() == ["r30"]
        assert connection.execute(select(func.count()).select_from(RUN_QUARTERS)).scalar() == 1
        assert connection.execute(select(func.count()).select_from(DECISIONS)).scalar() == 1


def test_the_newest_record_is_kept_as_it_was_published() -> None:
    final = msgspec.structs.replace(
        measured(run_record(duration_s=900.0, energy_j=1e6, carbon_g=100.0), saved_ratio=0.2), final=True
    )
    topic, payload = run_message(final)
    with memory() as connection:
        write(connection, (topic, payload))
        assert connection.execute(select(RUNS.c.record)).scalars().one() == payload.decode()
