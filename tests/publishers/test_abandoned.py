"""Runs that nobody closed, and nobody can go on with: of a notebook's cell that is run again, of a function."""

import gc
import logging
import sys
import threading

import pytest

from publishers import Publisher
from tests.publishers.fake_connection import FakeConnection, publisher_on, wait_until


def begun(connection: FakeConnection, **changes: object) -> Publisher:
    """Return a publisher of a run without a name, on a GPU."""
    return publisher_on(connection, **{"run": None, "gpus": [0], **changes})


def last_state(connection: FakeConnection) -> str | None:
    statuses = connection.statuses()
    return statuses[-1].state if statuses else None


@pytest.mark.parametrize("run", [None, "r1"])
def test_a_publisher_that_is_collected_ends_its_run(run: str | None) -> None:
    connection = FakeConnection()
    publisher = begun(connection, run=run)
    publisher.iteration()
    wait_until(lambda: last_state(connection) == "running")
    del publisher
    gc.collect()
    wait_until(lambda: connection.closed)
    assert last_state(connection) == "finished"


def test_what_still_publishes_keeps_its_publisher() -> None:
    connection = FakeConnection()
    loader = begun(connection).iterations(range(5))
    gc.collect()
    list(loader)
    wait_until(lambda: connection.n_iterations() == 5)
    assert last_state(connection) == "running"
    loader.publisher.close()


def test_another_run_of_the_job_ends_the_one_before_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first, second = FakeConnection(), FakeConnection()
    before, after = begun(first), begun(second)
    wait_until(lambda: first.closed)
    assert (before.closed, after.closed) == (True, False)
    assert last_state(first) == "finished"
    assert [record.getMessage() for record in caplog.records if "another one begins" in record.getMessage()] == [
        f"run {before.run} of job toy ends, since another one begins"
    ]
    after.close()


@pytest.mark.parametrize("changes", [{"run": "r2"}, {"job": "other"}, {"gpus": [1]}])
def test_a_run_that_may_be_beside_another_leaves_it_alone(changes: dict[str, object]) -> None:
    with begun(FakeConnection()) as before, begun(FakeConnection(), **changes) as after:
        assert (before.closed, after.closed) == (False, False)


def test_a_run_of_another_thread_is_left_alone() -> None:
    with begun(FakeConnection()) as before:
        thread = threading.Thread(target=lambda: begun(FakeConnection()).close())
        thread.start()
        thread.join()
        assert not before.closed


def test_a_thread_that_is_gone_is_not_the_next_one_though_it_may_have_its_number() -> None:
    made: list[Publisher] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: made.append(begun(FakeConnection())))
        thread.start()
        thread.join()
    assert [publisher.closed for publisher in made] == [False, False]
    for publisher in made:
        publisher.close()


def test_a_run_that_an_exception_at_the_prompt_broke_off_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("of long ago"), raising=False)
    for error, state in ((None, "finished"), (KeyboardInterrupt(), "lost")):
        connection = FakeConnection()
        publisher = begun(connection)
        if error is not None:
            monkeypatch.setattr(sys, "last_value", error)
        del publisher
        gc.collect()
        wait_until(lambda connection=connection: connection.closed)  # type: ignore[misc]
        assert last_state(connection) == state
