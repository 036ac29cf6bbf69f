"""How a run ends that an exception has ended: broken off it is lost, unless it had come to its end before."""

import sys

import pytest

from publishers import Publisher
from publishers.farewell import _say_finished
from publishers.reports import Command
from tests.publishers.aims import aimed, service
from tests.publishers.fake_connection import FakeConnection, publisher_on, wait_until


class OutOfMemoryError(RuntimeError):
    """As PyTorch's."""


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
def test_an_exception_breaks_a_run_off_unless_it_is_a_way_to_end(error: BaseException, state: str) -> None:
    def train(publisher: Publisher) -> None:
        publisher.metric(0.2)
        raise error

    connection = service()
    with pytest.raises(type(error)), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert last_states(connection) == (state, False if state == "finished" else None)
    assert connection.closed


def test_a_run_that_has_reached_its_target_is_finished_whatever_comes_then() -> None:
    def train(publisher: Publisher) -> None:
        publisher.metric(0.9)
        raise ValueError("plot")

    connection = service()
    with pytest.raises(ValueError, match="plot"), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert last_states(connection) == ("finished", True)


def test_a_run_that_was_told_to_stop_is_finished_though_it_stops_by_an_exception() -> None:
    def train(publisher: Publisher) -> None:
        assert not publisher.should_stop
        connection.command(Command(command="stop", reason="too dear"))
        wait_until(lambda: publisher.should_stop)
        raise StopIteration

    connection = service()
    with pytest.raises(StopIteration), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert last_states(connection) == ("finished", None)


@pytest.mark.parametrize(("error", "state"), [(KeyboardInterrupt(), "lost"), (None, "finished")])
def test_an_interpreter_that_an_exception_ends_breaks_its_runs_off(
    error: BaseException | None, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    connection = FakeConnection()
    publisher = publisher_on(connection)
    _say_finished()
    assert publisher.closed
    assert last_states(connection) == (state, None)


def test_a_run_that_was_closed_before_the_exception_stays_finished() -> None:
    def train(publisher: Publisher) -> None:
        publisher.close()
        raise ValueError("bad")

    connection = service()
    with pytest.raises(ValueError, match="bad"), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert [status.state for status in connection.statuses()][-1] == "finished"
    assert "lost" not in {status.state for status in connection.statuses()}
