"""Reads of a history: each run once, in a period as in all its days."""

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from sqlalchemy import event, select, update

from controller.config import HistoryConfig
from controller.history.energy_history.history_file import HistoryFile, read_history
from controller.history.energy_history.reading import (
    Period,
    RunFilter,
    RunQuarter,
    gpu_entries,
    mean_powers,
    past_run,
    quarter_powers,
    run_parts,
    run_quarters,
)
from controller.history.energy_history.report import entry_of
from controller.history.energy_history.schema import RUNS
from controller.history.energy_history.writing import tidy, write_messages
from policies.vocabulary.units import DAY_S
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import RunKey
from tests.controller.history.energy_history.records import (
    TOPICS,
    gpu_message,
    measured,
    memory,
    run_message,
    run_record,
)
from tests.fakes import MIDNIGHT_S

ALL = Period(MIDNIGHT_S, MIDNIGHT_S + 3 * DAY_S)
DAYS = [Period(MIDNIGHT_S + number * DAY_S, MIDNIGHT_S + (number + 1) * DAY_S) for number in range(3)]


def record(days: float, energy_j: float, *, run: str = "r1") -> RunEnergy:
    """Return a record of a run so many days after its begin."""
    return run_record(run=run, time_s=MIDNIGHT_S + days * DAY_S, duration_s=days * DAY_S, energy_j=energy_j)


@pytest.mark.parametrize(
    ("wholes", "parts"),
    [
        ([(0.9, 2e6), (1.9, 1.5e6), (2.9, 2.5e6)], [(0.9, 1e6), (1.9, 1.5e6), (2.9, 2.5e6)]),
        ([(0.9, 2e6)], [(0.9, 1e6), (1.9, 3e6)]),
        ([], [(0.9, 1e6), (1.9, 3e6)]),
    ],
    ids=["the leader has not heard the other node again", "another node leads", "another node has always led"],
)
def test_days_add_up_to_the_period(wholes: list[tuple[float, float]], parts: list[tuple[float, float]]) -> None:
    with memory() as connection:
        messages = [run_message(record(*whole)) for whole in wholes]
        messages += [run_message(record(*part), node="node-a") for part in parts]
        write_messages(connection, messages, topics=TOPICS, session_s=None)
        of_all, *of_days = (
            sum(part.amounts["energy_j"] or 0.0 for part in parts)
            for parts in run_parts(connection, [ALL, *DAYS], RunFilter())
        )
    assert of_all == (wholes or parts)[-1][1]
    assert sum(of_days) == of_all


def test_a_run_counts_once_as_a_whole_or_by_the_parts_that_are_known() -> None:
    with memory() as connection:
        messages = [run_message(record(0.5, 2e6, run="led"), node=node) for node in (None, "node-a", "node-b")]
        messages += [run_message(record(0.5, 1e6, run="followed"), node=node) for node in ("node-a", "node-b")]
        write_messages(connection, messages, topics=TOPICS, session_s=None)
        (found,) = run_parts(connection, [ALL], RunFilter(job="resnet50"))
        assert [(part.run, part.amounts["energy_j"]) for part in found] == [
            ("led", 2e6),
            ("followed", 1e6),
            ("followed", 1e6),
        ]
        assert run_parts(connection, [ALL], RunFilter(user="nobody")) == [[]]


def test_what_all_runs_drew_is_by_whole_quarter_hours_and_each_counts_once() -> None:
    with memory() as connection:
        for run in ("r1", "r2"):  # first heard of after 3 hours at 100 W, then 200 W
            told = [(3.0, 1.08e6), (3.25, 1.26e6), (3.5, 1.44e6), (3.75, 1.62e6)]
            for hours, energy_j in told:
                record = run_record(
                    run=run,
                    n_gpus=1,
                    time_s=MIDNIGHT_S + 3_600.0 * hours,
                    duration_s=3_600.0 * hours,
                    energy_j=energy_j,
                )
                messages = [run_message(record, node=node) for node in (None, "node-a")]
                write_messages(connection, messages, topics=TOPICS, session_s=None)
        found = mean_powers(connection, Period(MIDNIGHT_S + 3 * 3_600.0, MIDNIGHT_S + 3.75 * 3_600.0 + 60.0))
        assert [(power.starts_s - MIDNIGHT_S, power.power_w) for power in found] == [
            (10_800.0, 200.0),
            (11_700.0, 400.0),
            (12_600.0, 400.0),
        ]
        before = mean_powers(connection, Period(MIDNIGHT_S + 3_600.0, MIDNIGHT_S + 4 * 3_600.0))
        assert [power.power_w for power in before] == [200.0] * 9 + [400.0] * 3
        quarters = run_quarters(connection, RunKey("alice", "resnet50", "r2"))
        assert [(it.starts_s - MIDNIGHT_S, it.energy_j, it.duration_s) for it in quarters] == [
            (10_800, 1.08e6, 10_800.0),
            (11_700, 1.8e5, 900.0),
            (12_600, 1.8e5, 900.0),
            (13_500, 1.8e5, 900.0),
        ]
        assert run_quarters(connection, RunKey("alice", "resnet50", "r3")) == []


def test_quarters_in_which_a_run_was_not_heard_of_are_of_the_next_one() -> None:
    rows = [(0, 9e4, 900.0), (1_800, 3.6e5, 1_780.0), (2_700, 9e4, 940.0), (3_600, 4.5e4, 450.0), (4_500, None, None)]
    quarters = [RunQuarter(at_s, 900, energy_j, used_s, None, None) for at_s, energy_j, used_s in rows]
    found = list(quarter_powers([*quarters, RunQuarter(86_400, 86_400, 1e6, 86_400.0, None, None)]))
    assert [power.starts_s for power in found] == [0, 900, 1_800, 2_700, 3_600]
    assert [round(power.power_w) for power in found] == [100, 202, 202, 96, 100]
    assert [power.present_ratio for power in found] == [1, 1, 1, 1, 0.5]


def test_days_cost_one_read_of_the_runs() -> None:
    with memory() as connection:
        write_messages(connection, [run_message(record(2.9, 1e6))], topics=TOPICS, session_s=None)
        statements: list[str] = []
        event.listen(connection, "before_cursor_execute", lambda *call: statements.append(call[2]))
        run_parts(connection, [ALL, *DAYS], RunFilter())
    assert sum("FROM runs" in statement for statement in statements) == 1


def test_a_closed_history_is_read_without_a_file_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = HistoryFile(path, topics=TOPICS, config=HistoryConfig(), session_s=MIDNIGHT_S)
    for n_runs in (1, 2):  # an open one first: the second run is only in the log
        history.write([run_message(record(0.5, 1e6, run=f"r{n_runs}"))], now_s=MIDNIGHT_S)
        found = read_history(path, lambda connection: connection.execute(select(RUNS.c.run)).scalars().all())
        assert len(found) == n_runs
    history.close()
    assert len(read_history(path, lambda connection: connection.execute(select(RUNS.c.run)).scalars().all())) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_cannot_be_read_knows_nothing_and_its_amounts_are_counted() -> None:
    with memory() as connection:
        write_messages(connection, [run_message(record(0.5, 2e6))], topics=TOPICS, session_s=None)
        connection.execute(update(RUNS).values(record='{"run": 1}'))
        ((part,),) = run_parts(connection, [ALL], RunFilter())
    assert part.amounts["energy_j"] == 2e6
    assert part.record.saved_energy_ci90_ratio is None


@pytest.mark.parametrize(
    ("currencies", "cost", "currency"),
    [(("EUR", "EUR"), 3.0, "EUR"), (("EUR", None), 3.0, "EUR"), (("EUR", "USD"), None, None)],
)
def test_costs_of_a_gpu_add_up_in_one_currency(
    currencies: tuple[str | None, str | None], cost: float | None, currency: str | None
) -> None:
    with memory() as connection:
        for number, name in enumerate(currencies, 1):
            counter = gpu_message(
                MIDNIGHT_S + 60 * number, 1e6 * number, cost=3.0 if name is None else 1.5 * number, currency=name
            )
            write_messages(connection, [counter], topics=TOPICS, session_s=MIDNIGHT_S)
        (entry,) = gpu_entries(connection, ALL)
    assert (entry.cost, entry.currency) == (cost, currency)


def test_a_gpu_whose_currency_changed_has_costs_before_and_after() -> None:
    with memory() as connection:
        for day, name in enumerate(["EUR", "EUR", "USD", "USD"]):
            session_s = MIDNIGHT_S + day * DAY_S
            counter = gpu_message(session_s + 60, 1e6, cost=1.5, currency=name)
            write_messages(connection, [counter], topics=TOPICS, session_s=session_s)
        config = HistoryConfig(quarter_days=1)
        for _ in range(2):
            found = [
                gpu_entries(connection, Period(MIDNIGHT_S + first * DAY_S, MIDNIGHT_S + last * DAY_S))
                for first, last in ((0, 2), (2, 4), (1, 3))
            ]
            assert [(entry.cost, entry.currency) for (entry,) in found] == [(3.0, "EUR"), (3.0, "USD"), (None, None)]
            tidy(connection, now_s=MIDNIGHT_S + 9 * DAY_S, config=config, zone=UTC)


@pytest.mark.parametrize("is_one_write", [True, False])
@pytest.mark.parametrize(
    ("currencies", "cost", "currency"),
    [
        (("EUR", "EUR"), 3.0, "EUR"),
        ((None, "EUR"), 3.0, "EUR"),
        (("EUR", None), 3.0, "EUR"),
        (("EUR", "USD"), None, None),
    ],
)
def test_a_run_whose_currency_changed_has_no_cost(
    currencies: tuple[str | None, ...], cost: float | None, currency: str | None, *, is_one_write: bool
) -> None:
    priced = [
        replace(record(number, 1e6 * number), carbon_g=None, cost=1.5 * number, currency=name)
        for number, name in enumerate(currencies, 1)
    ]
    messages = [run_message(each) for each in priced]
    with memory() as connection:
        for some in [messages] if is_one_write else [[each] for each in messages]:
            write_messages(connection, some, topics=TOPICS, session_s=None)
        (parts,) = run_parts(connection, [ALL], RunFilter())
    entry = entry_of("r1", parts)
    assert (entry.energy_j, entry.cost, entry.currency) == (2e6, cost, currency)
    assert parts[0].record.cost == cost
    others = [*parts, parts[0]._replace(run="r2", record=priced[0])]
    assert entry_of("total", others).cost == (None if cost is None else 2 * cost)


def test_a_cost_keeps_its_currency_where_the_run_has_no_price_any_more() -> None:
    priced = replace(record(1, 1e6), carbon_g=None, cost=1.5, currency="EUR")
    messages = [run_message(priced), run_message(replace(record(2, 2e6), carbon_g=1.0))]
    messages.append(run_message(replace(priced, run="r2", currency="USD")))
    with memory() as connection:
        write_messages(connection, messages, topics=TOPICS, session_s=None)
        (parts,) = run_parts(connection, [ALL], RunFilter())
    assert [(entry_of("", [part]).cost, entry_of("", [part]).currency) for part in parts] == [
        (1.5, "EUR"),
        (1.5, "USD"),
    ]
    assert entry_of("total", parts).cost is None


MEASURED = measured(record(0.5, 1e6), saved_ratio=0.1)
SAVED = {
    name
    for name, value in structs.asdict(MEASURED).items()
    if name.startswith(("baseline_", "saved_", "slowdown_")) and value is not None
}


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({}, set()),
        ({"evidence": "too_early"}, SAVED),
        ({"evidence": None}, SAVED),
        ({"saved_ci90_ratio": None}, {"saved_ratio", "saved_ci90_ratio", "baseline_carbon_g"}),
        ({"slowdown_ci90_ratio": None}, {"slowdown_ratio", "slowdown_ci90_ratio", "baseline_duration_s"}),
        ({"saved_following_ratio": 0.1}, {"saved_following_ratio"}),
        ({"ab_saved_energy_ratio": 0.1, "ab_saved_energy_lower_ratio": 0.0}, {"ab_saved_energy_ratio"}),
        ({"would_save_ratio": 0.1}, {"would_save_ratio"}),
    ],
)
def test_a_record_tells_no_number_without_its_evidence(changes: dict[str, Any], lacking: set[str]) -> None:
    published = replace(MEASURED, **changes)
    with memory() as connection:
        write_messages(connection, [run_message(published)], topics=TOPICS, session_s=None)
        ((part,),) = run_parts(connection, [ALL], RunFilter())
        past = past_run(connection, RunKey("alice", "resnet50", "r1"))
    told = structs.asdict(part.record)
    assert {name for name in lacking if told[name] is not None} == set()
    assert {name for name in SAVED - lacking if told[name] is None} == set()
    assert past is not None
    assert past.record == part.record


def test_the_currency_of_a_row_of_an_earlier_version_is_that_of_its_record() -> None:
    with memory() as connection:
        for number, name in enumerate(("EUR", "USD"), 1):
            priced = replace(record(number, 1e6 * number), carbon_g=None, cost=1.5 * number, currency=name)
            write_messages(connection, [run_message(priced)], topics=TOPICS, session_s=None)
            if number == 1:
                connection.execute(update(RUNS).values(currency=None))
        assert connection.execute(select(RUNS.c.currency)).scalar() == "EUR, USD"
