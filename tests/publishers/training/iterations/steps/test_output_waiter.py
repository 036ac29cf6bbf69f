"""Iterations that end when the output of their step has been computed, in a thread of its own."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gridchase import Publisher
from publishers.training.iterations.steps.output_waiter import MAX_WAITING
from tests.publishers.training.fake_connection import TIMEOUT_S, FakeConnection, epochs, publisher_on, wait_until


class Output:
    """What a device computes: it is ready when the test says so."""

    def __init__(self, *, is_ready: bool = False) -> None:
        self.is_asked = threading.Event()
        self._is_ready = threading.Event()
        if is_ready:
            self._is_ready.set()

    def finish(self) -> None:
        self._is_ready.set()

    def block_until_ready(self) -> "Output":
        self.is_asked.set()
        self._is_ready.wait(TIMEOUT_S)
        return self


class Donated:
    """One that was given away."""

    def block_until_ready(self) -> None:
        raise RuntimeError("Array has been deleted")


class Time:
    """A clock that is set [ns]."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@contextmanager
def waiting(connection: FakeConnection, clock_ns: Callable[[], int]) -> Iterator[Publisher]:
    with publisher_on(connection, clock_ns=clock_ns) as publisher:
        yield publisher


def ends_ns(connection: FakeConnection) -> list[int]:
    return [end for message in connection.messages() for end in message.ends_ns()]


def test_an_iteration_ends_when_its_output_is_there_and_not_when_it_was_asked_for() -> None:
    connection, clock = FakeConnection(), Time()
    outputs = [Output() for _ in range(5)]
    with waiting(connection, clock) as publisher:
        publisher.begin()
        for output in outputs:  # the loop runs ahead
            publisher.wait_for(output)
        for k, output in enumerate(outputs, 1):
            assert output.is_asked.wait(TIMEOUT_S)
            clock.now_ns = 1_000 * k
            output.finish()
            wait_until(lambda: len(ends_ns(connection)) == clock.now_ns // 1_000)
    assert ends_ns(connection) == [1_000, 2_000, 3_000, 4_000, 5_000]
    assert {message.counted_by for message in connection.messages()} == {"waiter"}


def test_what_is_not_there_at_the_end_is_waited_for() -> None:
    connection = FakeConnection()
    output = Output()
    with waiting(connection, itertools.count().__next__) as publisher:
        publisher.begin()
        publisher.wait_for(Output(is_ready=True))
        publisher.wait_for(output)

        def finish() -> None:
            wait_until(lambda: publisher.closed)
            output.finish()

        threading.Thread(target=finish).start()
    assert connection.n_iterations() == 2


def test_every_iteration_is_counted_in_its_epoch() -> None:
    connection = FakeConnection()
    with waiting(connection, itertools.count().__next__) as publisher:
        loader = publisher.iterations(range(3_000))
        for _ in range(2):
            for _ in loader:
                publisher.wait_for(Output(is_ready=True))
    assert epochs(connection) == {0: 3_000, 1: 3_000}
    for before, after in itertools.pairwise(connection.messages()):
        assert after.first == before.first + len(before.ends_ns())
        assert after.begin_ns >= before.ends_ns()[-1]


def test_no_more_outputs_are_kept_than_are_waited_for() -> None:
    connection = FakeConnection()
    stuck = Output()
    with waiting(connection, itertools.count().__next__) as publisher:
        publisher.begin()
        publisher.wait_for(stuck)
        assert stuck.is_asked.wait(TIMEOUT_S)
        for _ in range(3 * MAX_WAITING):
            publisher.wait_for(Output(is_ready=True))
        assert publisher._waiter._outputs.qsize() == MAX_WAITING
        stuck.finish()
        wait_until(lambda: connection.n_iterations() == 1 + 3 * MAX_WAITING)


def test_an_output_that_cannot_be_waited_for_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    with waiting(connection, itertools.count().__next__) as publisher:
        publisher.begin()
        for output in (Donated(), Donated(), object(), None, 0.5):
            publisher.wait_for(output)
    assert connection.n_iterations() == 5
    assert ["RuntimeError: Array has been deleted" in record.message for record in caplog.records] == [True]


def test_a_pause_is_none_of_the_iterations() -> None:
    connection, clock = FakeConnection(), Time()
    with waiting(connection, clock) as publisher:
        for begin_ns in (0, 10_000):
            clock.now_ns = begin_ns
            publisher.begin()
            for k in range(1, 4):
                clock.now_ns = begin_ns + 1_000 * k
                publisher.wait_for(Output(is_ready=True))
                wait_until(lambda: not publisher.recorder.is_awaiting)
            publisher.pause()
    assert ends_ns(connection) == [1_000, 2_000, 3_000, 11_000, 12_000, 13_000]
    assert {message.begin_ns for message in connection.messages()} >= {0, 10_000}


def test_after_the_end_nothing_is_waited_for() -> None:
    publisher = publisher_on(FakeConnection())
    publisher.close()
    publisher.wait_for(Output())
    assert publisher._waiter._thread is None
