"""What is read of a history for pages: decisions, page by page, and runs that have ended."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from controller.history.energy_history.reading import decisions, ended_runs, past_run
from controller.history.energy_history.writing import write_messages
from publishers.messages.codec import encode
from publishers.messages.reports import LimitChange
from publishers.messages.topics import RunKey
from tests.controller.history.energy_history.records import TOPICS, limit_message, memory, run_message, run_record
from tests.fakes import MIDNIGHT_S


def write(connection: Connection, *messages: tuple[str, bytes]) -> None:
    write_messages(connection, messages=messages, topics=TOPICS, session_s=None, now_s=MIDNIGHT_S + 1e4)


def paged(connection: Connection, n_most: int) -> list[LimitChange]:
    """Return all decisions, asked for page by page."""
    found: list[LimitChange] = []
    before_s = MIDNIGHT_S + 1e5
    while page := decisions(connection, before_s=before_s, n_most=n_most):
        found += page
        before_s = page[-1].time_s
    return found


@given(moments=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), unique=True), n_most=st.integers(1, 6))
def test_page_by_page_each_decision_comes_once_newest_first(moments: list[tuple[int, int]], n_most: int) -> None:
    with memory() as connection:
        write(connection, *(limit_message(MIDNIGHT_S + second, gpu_uuid=f"GPU-{gpu}") for second, gpu in moments))
        found = paged(connection, n_most)
    assert sorted((it.time_s - MIDNIGHT_S, it.gpu_uuid) for it in found) == sorted(
        (second, f"GPU-{gpu}") for second, gpu in moments
    )
    times_s = [it.time_s for it in found]
    assert times_s == sorted(times_s, reverse=True)


def test_decisions_are_of_the_node_and_the_job_that_are_asked_for() -> None:
    with memory() as connection:
        write(connection, limit_message(MIDNIGHT_S, detail="numbers"))
        (change,) = decisions(connection, before_s=MIDNIGHT_S + 1, node="node-a", n_most=9)
        assert (change.detail, change.power_limit_w, change.gpu_uuid) == ("numbers", 200.0, "GPU-0")
        assert change.gpu_index == 0, "known by the change, also where its energy cannot be read"
        assert not decisions(connection, before_s=MIDNIGHT_S + 1, node="node-b", n_most=9)
        assert not decisions(connection, before_s=MIDNIGHT_S + 1, job="bert", n_most=9)
        assert not decisions(connection, before_s=MIDNIGHT_S, n_most=9)


def test_ended_runs_come_newest_first_and_those_that_go_on_do_not() -> None:
    with memory() as connection:
        for number, state in enumerate(("finished", "running", "lost")):
            record = run_record(run=f"r{number}", state=state, time_s=MIDNIGHT_S + number, final=state != "running")
            write(connection, run_message(record))
        found = ended_runs(connection, since_s=MIDNIGHT_S - 1, n_most=9)
        assert [it.key.run for it in found] == ["r2", "r0"]
        assert not ended_runs(connection, since_s=MIDNIGHT_S + 99, n_most=9)
        assert len(ended_runs(connection, since_s=0.0, n_most=1)) == 1
        known = past_run(connection, RunKey("alice", "resnet50", "r2"))
        assert known is not None
        assert msgspec.structs.asdict(known.record)["state"] == "lost"
        assert past_run(connection, RunKey("bob", "resnet50", "r2")) is None


def test_a_decision_comes_back_as_it_was_published() -> None:
    change = LimitChange(
        time_s=MIDNIGHT_S,
        node="node-a",
        gpu_uuid="GPU-0",
        gpu_index=3,
        reason="slowdown_signal",
        detail="numbers",
        power_limit_w=200.0,
        requested_power_limit_w=200.0,
        enforced_power_limit_w=200.0,
        previous_power_limit_w=280.0,
        job="bert",
        signal="267.3 g/kWh (source)",
        speed_ratio=0.985,
    )
    assert all(value is not None for value in msgspec.structs.astuple(change))
    with memory() as connection:
        write(connection, (TOPICS.gpu("node-a", "GPU-0", "limit"), encode(change)))
        (found,) = decisions(connection, before_s=MIDNIGHT_S + 1, n_most=9)
    assert msgspec.structs.replace(found, gpu_index=3) == change  # which comes with a GPU's energy
