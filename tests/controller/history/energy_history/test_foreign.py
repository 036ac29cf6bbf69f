"""What a site believes of many controllers: nothing counts twice, and nothing that boards cannot have used."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, event, func, select

from controller.config import Retention
from controller.history.energy_history import writing
from controller.history.energy_history.plausibility import FUTURE_S
from controller.history.energy_history.report import PARTS
from controller.history.energy_history.schema import GPU_QUARTERS, GPUS, GRID_QUARTERS, RUN_QUARTERS, RUNS
from controller.history.energy_history.writing import tidy, write_messages
from policies.vocabulary.units import DAY_S
from publishers.messages.codec import encode
from publishers.messages.reports import GridSignal
from tests.controller.history.energy_history.records import TOPICS, gpu_message, memory, run_message, run_record
from tests.fakes import MIDNIGHT_S


def write(connection: Connection, *messages: tuple[str, bytes], now_s: float = MIDNIGHT_S) -> int:
    """Write messages of other machines; return how many were not believed."""
    return write_messages(connection, messages, topics=TOPICS, session_s=None, now_s=now_s)


def gpu_j(connection: Connection) -> float:
    """Return what all GPUs have used [J]."""
    return float(connection.execute(select(func.sum(GPU_QUARTERS.c.energy_j))).scalar() or 0.0)


def run_j(connection: Connection) -> float:
    """Return what all runs have used [J]."""
    return float(connection.execute(select(func.sum(RUN_QUARTERS.c.energy_j))).scalar() or 0.0)


HUGE_PARTS = {
    **{f"saved_{part}_ci90_ratio": 1e9 for part in PARTS},
    **{f"saved_{part}_ratio": ratio for part, ratio in zip(PARTS, (1e9, -1e9, 1.0), strict=True)},
}
"""They add up to what was saved of 1 g."""


def counters(*readings: tuple[float, float]) -> list[tuple[str, bytes]]:
    """Return messages of a GPU: seconds after midnight, energy [J]."""
    return [gpu_message(MIDNIGHT_S + after_s, energy_j) for after_s, energy_j in readings]


def test_an_older_message_that_the_broker_had_retained_counts_nothing() -> None:
    with memory() as connection:
        assert write(connection, *counters((0, 1e5), (10, 1.1e5), (5, 1.05e5), (10, 1.1e5), (20, 1.2e5))) == 0
        assert gpu_j(connection) == pytest.approx(2e4)


def test_a_restarted_controller_counts_from_nothing() -> None:
    with memory() as connection:
        assert write(connection, *counters((0, 1e5), (60, 1.2e5), (120, 1e4))) == 0
        assert gpu_j(connection) == pytest.approx(3e4)


@pytest.mark.parametrize(("started_after_s", "used_j"), [(3_000.0, 3e6), (-60.0, 2e6), (None, 2e6), (9_000.0, 2e6)])
def test_a_controller_that_began_in_an_outage_has_used_all_that_it_counts(
    started_after_s: float | None, used_j: float
) -> None:
    started_at_s = None if started_after_s is None else MIDNIGHT_S + started_after_s
    with memory() as connection:
        write(connection, gpu_message(MIDNIGHT_S, 1e6, started_at_s=MIDNIGHT_S - 1e4))
        assert write(connection, gpu_message(MIDNIGHT_S + 7_200, 3e6, started_at_s=started_at_s)) == 0
        assert gpu_j(connection) == pytest.approx(used_j)
        later = gpu_message(MIDNIGHT_S + 7_210, 3.01e6, started_at_s=started_at_s)
        write(connection, later, now_s=MIDNIGHT_S + 7_210)
        assert gpu_j(connection) == pytest.approx(used_j + 1e4)


def test_carbon_of_a_controller_that_began_in_an_outage_counts_from_nothing() -> None:
    readings = [(0.0, 1e5, 100.0, -60.0), (3_600.0, 2e5, None, 60.0), (3_660.0, 3e5, 7.0, 60.0)]
    with memory() as connection:
        for after_s, energy_j, carbon_g, started_after_s in readings:
            at_s, started_at_s = MIDNIGHT_S + after_s, MIDNIGHT_S + started_after_s
            message = gpu_message(at_s, energy_j, carbon_g=carbon_g, started_at_s=started_at_s)
            write(connection, message, now_s=at_s)
        assert connection.execute(select(func.sum(GPU_QUARTERS.c.carbon_g))).scalar() == pytest.approx(7.0)


def test_carbon_that_is_not_known_for_a_while_counts_once() -> None:
    readings = [(0.0, 1e5, 100.0), (60.0, 1.1e5, None), (120.0, 1.2e5, 110.0), (180.0, 1e3, None), (240.0, 2e5, 7.0)]
    with memory() as connection:
        for after_s, energy_j, carbon_g in readings:
            write(connection, gpu_message(MIDNIGHT_S + after_s, energy_j, carbon_g=carbon_g))
        total_g = connection.execute(select(func.sum(GPU_QUARTERS.c.carbon_g))).scalar()
    assert total_g == pytest.approx(10.0 + 7.0)


def test_two_controllers_of_one_node_and_gpu_count_as_one() -> None:
    with memory() as connection:
        for step in range(100):
            first, second = (20.0 * step, 1e6 + 4e3 * step), (20.0 * step + 10, 5e5 + 4e3 * step)
            write(connection, *counters(first, second))
        assert gpu_j(connection) == pytest.approx(4e3 * 99)


@pytest.mark.parametrize("energy_j", [1e18, 1e12, 2e6])
def test_a_counter_that_grows_beyond_physics_is_not_believed(energy_j: float) -> None:
    with memory() as connection:
        assert write(connection, *counters((0, 1e5), (10, energy_j), (20, 1.2e5))) == 1
        assert gpu_j(connection) == pytest.approx(2e4)


def test_after_a_clock_that_was_far_ahead_counting_goes_on() -> None:
    ahead_s = 400 * DAY_S
    with memory() as connection:
        write(connection, *counters((ahead_s, 1e5), (ahead_s + 10, 1.1e5)), now_s=MIDNIGHT_S + ahead_s)
        write(connection, *counters((0, 1.2e5), (10, 1.3e5)), now_s=MIDNIGHT_S)
        assert gpu_j(connection) == pytest.approx(2e4)


def test_a_clock_that_was_set_back_counts_once_it_has_caught_up() -> None:
    with memory() as connection:
        write(connection, *counters((FUTURE_S, 1e5), (0, 1.5e5), (1800, 2e5), (FUTURE_S + 60, 3e5)))
        assert gpu_j(connection) == pytest.approx(2e5)


CLOCKS = {
    "ahead": lambda _: 600.0,
    "behind": lambda _: -600.0,
    "steps forward": lambda after_s: 1_200.0 * (after_s > 7_200),
    "steps back": lambda after_s: -1_200.0 * (after_s > 7_200),
    "ahead until it is set": lambda after_s: 3_000.0 * (after_s <= 7_200),
    "behind by days until it is set": lambda after_s: -9 * DAY_S * (after_s <= 7_200),
}
"""By how much the clock of a node is ahead of that of the site [s], so long after its run began [s]."""


@pytest.mark.parametrize("is_own", [True, False], ids=["the node's own", "the site's"])
@pytest.mark.parametrize("ahead_s", CLOCKS.values(), ids=CLOCKS.keys())
def test_no_quarter_hour_is_lost_or_counted_twice_where_clocks_differ_or_step(
    ahead_s: Callable[[float], float], is_own: bool
) -> None:
    hours, power_w = 4, 300.0
    started_at_s = MIDNIGHT_S + ahead_s(0.0)
    with memory() as connection:
        for after_s in range(0, hours * 3_600 + 1, 100):
            now_s, used_j = MIDNIGHT_S + after_s, power_w * after_s
            time_s = now_s + ahead_s(after_s)
            record = run_record(time_s=time_s, duration_s=after_s, energy_j=used_j)
            messages = [run_message(record), gpu_message(time_s, used_j, started_at_s=started_at_s)]
            session_s = started_at_s if is_own else None
            write_messages(connection, messages, topics=TOPICS, session_s=session_s, now_s=now_s)
            newest_s = connection.execute(select(func.max(RUN_QUARTERS.c.starts_s))).scalar()
            assert newest_s is None or newest_s <= now_s, "a report until now has all that is known"
        used_j = hours * 3_600 * power_w
        assert [run_j(connection), gpu_j(connection)] == pytest.approx([used_j, used_j])
        quarters_j = connection.execute(select(RUN_QUARTERS.c.energy_j)).scalars().all()
    assert max(quarters_j) <= (900 + 3_000) * power_w + 1.0, "at most what a clock that was set back has waited"


def test_runs_go_on_where_the_clock_of_site_and_node_was_days_ahead() -> None:
    ahead_s = 9 * DAY_S
    with memory() as connection:
        for after_s, ahead in ((0.0, ahead_s), (60.0, ahead_s), (120.0, 0.0), (180.0, 0.0)):
            message = run_at(ahead + after_s, after_s, 300.0 * after_s)
            assert write(connection, message, now_s=MIDNIGHT_S + ahead + after_s) == 0
        assert run_j(connection) == pytest.approx(300.0 * 180)


def test_counters_of_a_clock_that_was_ahead_count_once_it_is_as_late_as_they_began() -> None:
    ahead_s = 9 * DAY_S
    started_at_s = MIDNIGHT_S + ahead_s
    readings = ((ahead_s + 10, 1e5), (0.0, 1.2e5), (60.0, 1.3e5), (ahead_s + 60, 1.5e5), (ahead_s + 120, 1.6e5))
    with memory() as connection:
        for after_s, energy_j in readings:
            message = gpu_message(MIDNIGHT_S + after_s, energy_j, started_at_s=started_at_s)
            write(connection, message, now_s=MIDNIGHT_S + after_s)
        assert gpu_j(connection) == pytest.approx(4e4)


def test_boards_are_known_by_node_and_uuid_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_GPUS", 3)
    with memory() as connection:
        twins = [(TOPICS.gpu(node, "GPU-0", "energy"), gpu_message(MIDNIGHT_S, 1e3)[1]) for node in ("a", "b")]
        assert write(connection, *twins, *(gpu_message(MIDNIGHT_S, 1e3, gpu_uuid=f"GPU-{n}") for n in range(3))) == 2
        assert connection.execute(select(func.count()).select_from(GPUS)).scalar() == 3
        tidy(connection, now_s=MIDNIGHT_S + 36 * DAY_S, config=Retention())
        assert connection.execute(select(func.count()).select_from(GPUS)).scalar() == 0, "none of them used anything"


def test_a_final_record_that_comes_with_each_connection_counts_once() -> None:
    final = run_message(run_record(duration_s=3600.0, energy_j=1e6, final=True, state="finished"))
    with memory() as connection:
        for _ in range(5):
            assert write(connection, final) == 0
        assert run_j(connection) == 1e6
        assert connection.execute(select(RUNS.c.final)).scalars().all() == [True]


def run_at(after_s: float, duration_s: float, energy_j: float, *, final: bool = False) -> tuple[str, bytes]:
    """Return a record of a run so many seconds after midnight."""
    state = "finished" if final else "running"
    record = run_record(time_s=MIDNIGHT_S + after_s, duration_s=duration_s, energy_j=energy_j, final=final, state=state)
    return run_message(record)


@pytest.mark.parametrize(
    ("live", "used_j"),
    [
        ([(2_000.0, 60.0, 1e5), (2_100.0, 160.0, 2e5), (2_500.0, 560.0, 5e5)], 1.5e6),
        ([(2_000.0, 3_000.0, 1.2e6), (2_100.0, 3_100.0, 1.3e6)], 1.3e6),
        ([(2 * DAY_S, 2 * DAY_S, 1e7), (4 * DAY_S, 4 * DAY_S, 2e7)], 2e7),
        ([(2 * DAY_S, 60.0, 1e5), (2 * DAY_S + 100.0, 160.0, 2e5)], 1.2e6),
    ],
    ids=["requeued", "goes on", "goes on for days", "requeued after days"],
)
def test_a_live_run_goes_on_where_an_old_final_record_comes_again(
    live: list[tuple[float, float, float]], used_j: float
) -> None:
    final = run_at(0.0, 1_000.0, 1e6, final=True)
    with memory() as connection:
        write(connection, final)
        for record in live:
            write(connection, run_at(*record), final)
            write(connection, final)
        row = connection.execute(select(RUNS)).mappings().one()
        assert [row["energy_j"], run_j(connection)] == pytest.approx([used_j, used_j])
        assert (row["final"], row["heard_s"]) == (False, MIDNIGHT_S + live[-1][0])
        write(connection, run_at(live[-1][0] + 60.0, live[-1][1] + 60.0, live[-1][2] + 1e5, final=True), final)
        assert run_j(connection) == pytest.approx(used_j + 1e5)


def test_a_final_record_of_a_clock_that_was_set_back_counts_where_it_has_used_more() -> None:
    with memory() as connection:
        write(connection, run_at(3_600.0, 3_600.0, 1e6), run_at(0.0, 3_700.0, 1.1e6, final=True))
        assert run_j(connection) == pytest.approx(1.1e6)
        assert connection.execute(select(RUNS.c.final)).scalar()


def test_what_a_final_record_takes_back_is_sought_since_the_run_began() -> None:
    statements: list[tuple[str, tuple[float, ...]]] = []
    with memory() as connection:
        write(connection, run_at(0.0, 1_000.0, 2e6))
        event.listen(connection, "before_cursor_execute", lambda *call: statements.append((call[2], call[3])))
        write(connection, run_at(60.0, 1_060.0, 1.5e6, final=True))
        assert run_j(connection) == pytest.approx(1.5e6)
        (sought,) = [each for each in statements if each[0].startswith("SELECT run_quarters.starts_s")]
        ((*_, plan),) = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sought[0]}", sought[1]).all()
    assert plan == "SEARCH run_quarters USING PRIMARY KEY (starts_s>?)"


def test_many_new_runs_are_inserted_by_one_statement() -> None:
    statements: list[str] = []
    with memory() as connection:
        event.listen(connection, "before_cursor_execute", lambda *call: statements.append(call[2]))
        names = [(f"r{number}", node) for number in range(100) for node in (None, "a", "b")]
        assert (
            write(connection, *(run_message(run_record(run=run, energy_j=1e3), node=node) for run, node in names)) == 0
        )
        assert sum(statement.startswith("INSERT INTO runs") for statement in statements) == 1
        assert run_j(connection) == 3e5


def test_an_old_record_that_a_broker_brings_back_changes_nothing() -> None:
    old = run_message(run_record(duration_s=3000.0, energy_j=9e5))
    final = run_message(
        run_record(time_s=MIDNIGHT_S + 600, duration_s=3600.0, energy_j=1e6, final=True, state="finished")
    )
    with memory() as connection:
        assert write(connection, old, final, old) + write(connection, old) == 0
        row = connection.execute(select(RUNS)).mappings().one()
        assert (row["final"], row["state"], row["energy_j"], run_j(connection)) == (True, "finished", 1e6, 1e6)


def test_two_runs_of_one_name_do_not_add_up_again_and_again() -> None:
    with memory() as connection:
        for step in range(200):
            at_s = MIDNIGHT_S + 20.0 * step
            old = run_record(time_s=at_s, duration_s=9e4 + 20 * step, energy_j=2.7e7 + 6e3 * step)
            young = run_record(time_s=at_s + 10, duration_s=20.0 * step, energy_j=6e3 * step)
            write(connection, run_message(old), *([run_message(young)] if step > 20 else ()))
        assert run_j(connection) <= 2.7e7 + 6e3 * 200


@pytest.mark.parametrize(
    "changes",
    [
        {"energy_j": 1e18},
        {"n_gpus": 1 << 50, "energy_j": 1e15},
        {"duration_s": 1e17, "energy_j": 1.0},
        {"baseline_energy_j": 1e12},
        {"carbon_g": 1e9},
        {"cost": -1e15},
        {"evidence": "measured", "cost": 1.0, "baseline_cost": 1e15},
        {"evidence": "measured", "cost": 1e5, "carbon_g": None, "saved_ratio": 0.9},
        {"evidence": "measured", **HUGE_PARTS, "baseline_carbon_g": 1.0},
        {"saved_energy_ratio": 1.0},
        {"saved_energy_ratio": -100.0},
        {"saved_energy_ci90_ratio": 5.0},
        {"saved_ci90_ratio": 5.0},
        {"slowdown_ci90_ratio": 5.0},
        {"slowdown_ratio": 1e-3},
        {"slowdown_ratio": 1e3},
    ],
)
def test_a_run_beyond_physics_leaves_no_row(changes: dict[str, float | str | None]) -> None:
    with memory() as connection:
        assert write(connection, run_message(run_record(**{"duration_s": 60.0, "energy_j": 1e4, **changes}))) == 1
        assert connection.execute(select(func.count()).select_from(RUNS)).scalar() == 0


def test_the_number_of_runs_is_bounded_until_old_ones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_RUNS", 2)
    with memory() as connection:
        records = [run_message(run_record(run=f"r{n}", time_s=MIDNIGHT_S + n, energy_j=1e3)) for n in range(10)]
        assert write(connection, *records) == 6
        tidy(connection, now_s=MIDNIGHT_S + 20, config=Retention())
        assert connection.execute(select(RUNS.c.run)).scalars().all() == ["r2", "r3"]


def test_of_the_grid_the_newest_value_of_each_quarter_hour_is_kept() -> None:
    with memory() as connection:
        for after_s, value in ((0.0, 100.0), (300.0, 120.0), (900.0, 90.0), (900.0, 90.0)):
            at_s = MIDNIGHT_S + after_s
            signal = GridSignal(
                time_s=at_s,
                source="s",
                zone="GB",
                kind="average",
                unit="g/kWh",
                issued_at_s=at_s,
                state="fresh",
                age_s=0.0,
                value=value,
                values=[],
            )
            write(connection, (TOPICS.grid("GB", "carbon"), encode(signal)))
        kept = connection.execute(select(GRID_QUARTERS.c.value).order_by(GRID_QUARTERS.c.starts_s)).scalars().all()
    assert kept == [120.0, 90.0]
