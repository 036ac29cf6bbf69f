"""How a run ends: closed, collected, replaced, broken off by an exception, or failed at its batch size."""

import gc
import logging
import sys
import threading

import pytest

from gridchase import Publisher
from publishers.messages.reports import Command
from publishers.training.publish_iterations import publisher_of
from publishers.training.run.run_end import _end_all_runs, _error_at_exit, end_former_run
from tests.publishers.training.fake_connection import (
    TIMEOUT_S,
    FakeConnection,
    OutOfMemoryError,
    aimed,
    answering,
    publisher_on,
    wait_until,
    worker_of,
)


def begun(connection: FakeConnection, **changes: object) -> Publisher:
    """Return a publisher of a run without a name, on a GPU."""
    return publisher_on(connection, **{"run": None, "gpus": [0], **changes})


def last_state(connection: FakeConnection) -> str | None:
    statuses = connection.statuses()
    return statuses[-1].state if statuses else None


@pytest.mark.parametrize("run", [None, "r1"])
def test_a_garbage_collected_publisher_ends_its_run(run: str | None) -> None:
    connection = FakeConnection()
    publisher = begun(connection, run=run)
    publisher.iteration()
    wait_until(lambda: last_state(connection) == "running")
    del publisher
    gc.collect()
    wait_until(lambda: connection.closed)
    assert last_state(connection) == "finished"


def test_a_published_iterable_keeps_its_publisher_alive() -> None:
    connection = FakeConnection()
    loader = begun(connection).iterations(range(5))
    gc.collect()
    list(loader)
    wait_until(lambda: connection.n_iterations() == 5)
    assert last_state(connection) == "running"
    publisher_of(loader).close()


def test_another_run_of_the_job_replaces_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first, second = FakeConnection(), FakeConnection()
    before = begun(first)
    wait_until(lambda: before.run)
    after = begun(second)
    wait_until(lambda: first.closed)
    assert (before.closed, after.closed) == (True, False)
    assert last_state(first) == "finished"
    assert [record.getMessage() for record in caplog.records if "another run begins" in record.getMessage()] == [
        f"run {before.run} of job toy has ended: another run begins"
    ]
    after.close()


@pytest.mark.parametrize("changes", [{"run": "r2"}, {"job": "other"}, {"gpus": [1]}])
def test_a_run_that_may_run_beside_another_does_not_end_it(changes: dict[str, object]) -> None:
    with begun(FakeConnection()) as before, begun(FakeConnection(), **changes) as after:
        assert (before.closed, after.closed) == (False, False)


def test_a_run_of_another_thread_is_not_ended() -> None:
    with begun(FakeConnection()) as before:
        thread = threading.Thread(target=lambda: begun(FakeConnection()).close())
        thread.start()
        thread.join()
        assert not before.closed


def test_a_reused_thread_id_is_not_the_same_thread() -> None:
    made: list[Publisher] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: made.append(begun(FakeConnection())))
        thread.start()
        thread.join()
    assert [publisher.closed for publisher in made] == [False, False]
    for publisher in made:
        publisher.close()


def test_a_run_ended_by_an_exception_at_the_prompt_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
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


def last_states(connection: FakeConnection) -> tuple[str, bool | None]:
    last = connection.statuses()[-1]
    return last.state, last.reached


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError("bad"), "lost"),
        (KeyboardInterrupt(), "lost"),
        (MemoryError("of the host"), "lost"),
        (SystemExit(1), "lost"),
        (SystemExit("a message"), "lost"),
        (SystemExit(143), "lost"),
        (SystemExit(0), "finished"),
        (SystemExit(None), "finished"),
        (GeneratorExit(), "finished"),
        (OutOfMemoryError("CUDA out of memory"), "finished"),
    ],
    ids=repr,
)
def test_a_run_ended_by_an_exception_is_lost_unless_it_is_orderly(error: BaseException, state: str) -> None:
    def train(publisher: Publisher) -> None:
        publisher.metric(0.2)
        raise error

    connection = answering()
    with pytest.raises(type(error)), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert last_states(connection) == (state, False if state == "finished" else None)
    assert connection.closed


def test_a_run_that_reached_its_target_is_finished_despite_an_exception() -> None:
    def train(publisher: Publisher) -> None:
        publisher.metric(0.9)
        raise ValueError("plot")

    connection = answering()
    with pytest.raises(ValueError, match="plot"), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert last_states(connection) == ("finished", True)


def test_a_run_that_was_told_to_stop_is_finished_despite_an_exception() -> None:
    def train(publisher: Publisher) -> None:
        assert not publisher.should_stop
        connection.command(Command(command="stop", reason="too dear"))
        wait_until(lambda: publisher.should_stop)
        raise StopIteration

    connection = answering()
    with pytest.raises(StopIteration), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert last_states(connection) == ("finished", None)


@pytest.mark.parametrize(("error", "state"), [(KeyboardInterrupt(), "lost"), (None, "finished")])
def test_runs_of_an_interpreter_ended_by_an_exception_are_lost(
    error: BaseException | None, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    connection = FakeConnection()
    publisher = publisher_on(connection)
    _end_all_runs()
    assert publisher.closed
    assert last_states(connection) == (state, None)


def test_a_run_closed_before_an_exception_stays_finished() -> None:
    def train(publisher: Publisher) -> None:
        publisher.close()
        raise ValueError("bad")

    connection = answering()
    with pytest.raises(ValueError, match="bad"), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert [status.state for status in connection.statuses()][-1] == "finished"
    assert "lost" not in {status.state for status in connection.statuses()}


class DeviceOutOfMemoryError(OutOfMemoryError):
    """As one derived from it."""

    def __str__(self) -> str:
        raise RuntimeError("device-side assert")


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (OutOfMemoryError("CUDA out of memory." + "x" * 5_000), "CUDA out of memory." + "x" * 1_005),
        (DeviceOutOfMemoryError(), "a DeviceOutOfMemoryError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_out_of_memory_is_published_and_the_exception_passes_through(error: Exception, detail: str) -> None:
    connection = answering()
    with pytest.raises(type(error)), aimed(connection, 0.84):
        raise error
    (failure,) = connection.trial_failures()
    assert (failure.run, failure.batch_size, failure.reason, failure.detail) == ("r1", 16, "out_of_memory", detail)
    assert [topic.rpartition("/")[2] for topic, *_ in connection.sent][-2:] == ["failure", "status"]


@pytest.mark.parametrize("error", [ValueError("bad"), MemoryError("of the host")], ids=repr)
def test_other_exceptions_are_not_a_failure_of_the_batch_size(error: Exception) -> None:
    connection = answering()
    with pytest.raises(type(error)), aimed(connection, 0.84):
        raise error
    assert connection.trial_failures() == []


@pytest.mark.parametrize(("batch_size", "n_failures"), [(None, 0), (16, 0), (64, 1)])
def test_a_batch_size_fits_the_memory_after_a_whole_epoch(batch_size: int | None, n_failures: int) -> None:
    def train(publisher: Publisher) -> None:
        for epoch in publisher.epochs(2):
            list(publisher.iterations(range(3)))
            if epoch and batch_size is not None:
                publisher.set_batch_size(batch_size)
            if epoch:
                raise OutOfMemoryError("fragments")

    connection = answering()
    with pytest.raises(OutOfMemoryError), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert [failure.batch_size for failure in connection.trial_failures()] == [64] * n_failures


def test_out_of_memory_within_the_first_epoch_is_published() -> None:
    def train(publisher: Publisher) -> None:
        for _ in publisher.epochs(2):
            for _ in publisher.iterations(range(3)):
                raise OutOfMemoryError("CUDA out of memory")

    connection = answering()
    with pytest.raises(OutOfMemoryError), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert len(connection.trial_failures()) == 1


def test_fail_publishes_a_failure_at_any_time() -> None:
    connection = answering()
    with aimed(connection, 0.84) as publisher:
        list(publisher.epochs(2))
        publisher.fail()
    assert len(connection.trial_failures()) == 1


@pytest.mark.parametrize(
    ("reason", "code", "detail"),
    [
        ("too_slow", "too_slow", "why"),
        ("too slow", "failed", "too slow: why"),
        ("", "failed", ": why"),
        (None, "None", "why"),
        (DeviceOutOfMemoryError(), "failed", "a DeviceOutOfMemoryError: why"),
    ],
    ids=range(5),
)
def test_any_reason_of_a_failure_is_published(reason: str, code: str, detail: str) -> None:
    connection = FakeConnection()
    with publisher_on(connection, batch_size=64) as publisher:
        publisher.fail(reason, "why")
    (failure,) = connection.trial_failures()
    assert (failure.batch_size, failure.reason, failure.detail) == (64, code, detail)


def test_a_failure_of_an_unknown_batch_size_is_not_published(caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        publisher.fail()
    assert connection.trial_failures() == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("last", "is_prompt"),
    [(OutOfMemoryError(), False), (OutOfMemoryError(), True), (ValueError(), False), (None, False)],
)
def test_only_the_error_that_ends_the_interpreter_counts(
    last: BaseException | None, is_prompt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", last, raising=False)
    if is_prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert _error_at_exit(id(last)) is (None if is_prompt else last)


@pytest.mark.parametrize("next_one", ["the next training", "the end of the kernel"])
def test_a_run_that_an_error_in_a_cell_has_broken_off_is_lost(next_one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    connection = FakeConnection()
    publisher = publisher_on(connection)
    former = worker_of(publisher)
    publisher.iteration()
    monkeypatch.setattr(sys, "last_value", ValueError("broken"), raising=False)
    if next_one == "the next training":
        end_former_run(former)
        former.wait_closed(TIMEOUT_S)
    else:
        _end_all_runs()
    assert last_states(connection)[0] == "lost"
