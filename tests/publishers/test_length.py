"""How long a run says it is: the training's word, or its epochs; a wrong word is corrected or forgotten, never felt."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from publishers.length import Length
from tests.publishers.fake_connection import FakeConnection, publisher_on, wait_until
from tests.publishers.run_lengths import passes, told, totals


def test_what_the_training_says_is_published_from_the_first_status_on() -> None:
    connection = FakeConnection()
    publisher_on(connection, total_iterations=np.int64(450_000)).close()
    assert set(totals(connection)) == {450_000}


def test_what_nobody_knows_is_not_published() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        passes(publisher.iterations(range(10)))
    assert set(totals(connection)) == {None}


def test_the_epochs_and_the_loaders_length_tell_at_once() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        wait_until(connection.statuses)
        loader = publisher.iterations(range(10))
        for _ in publisher.epochs(90):
            batches = iter(loader)
            next(batches)
            next(batches)
            wait_until(lambda: 900 in totals(connection))  # not only with the next heartbeat
            break


def test_a_run_is_exactly_as_long_as_it_said() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for _ in publisher.epochs(3):
            passes(publisher.iterations(range(10)))  # wrapped anew each time
    assert connection.n_iterations() == totals(connection)[-1] == 30


def test_a_validation_that_is_published_counts_from_when_it_was_seen() -> None:
    publisher = publisher_on(FakeConnection())
    seen = []
    for _ in publisher.epochs(4):
        passes(publisher.iterations(range(10)))
        seen.append(told(publisher))
        passes(publisher.iterations(range(2)))
        seen.append(told(publisher))
    assert seen == [40, *[48] * 7]
    publisher.close()


def test_an_epoch_that_is_always_left_early_is_counted_as_it_is_after_two() -> None:
    publisher = publisher_on(FakeConnection())
    seen = []
    for _ in publisher.epochs(10):
        passes(publisher.iterations(range(100)), left_after=20)
        seen.append(told(publisher))
    assert seen == [1000, 20 + 900, *[200] * 8]
    assert publisher.recorder.n_ended == 200
    publisher.close()


def test_a_run_resumed_between_epochs_counts_only_what_is_left() -> None:
    publisher = publisher_on(FakeConnection())
    for epoch in publisher.epochs(90):
        if epoch < 30:
            continue
        passes(publisher.iterations(range(10)))
        assert told(publisher) == 600
    publisher.close()


def test_a_run_resumed_within_an_epoch_does_not_take_the_rest_of_it_for_a_whole_one() -> None:
    publisher = publisher_on(FakeConnection())
    seen = []
    for epoch in publisher.epochs(5):
        passes(publisher.iterations(range(100)), left_after=30 if epoch == 0 else None)
        seen.append(told(publisher))
    assert seen == [500, *[430] * 4]
    publisher.close()


@pytest.mark.parametrize("iterations", [iter, lambda batches: (batch for batch in batches)])
def test_a_loader_without_a_length_is_known_from_the_second_epoch_on(
    iterations: Callable[[range], Iterator[int]],
) -> None:
    publisher = publisher_on(FakeConnection())
    seen = []
    for _ in publisher.epochs(4):
        passes(publisher.iterations(iterations(range(10))))
        seen.append(told(publisher))
    assert seen == [None, 40, 40, 40]
    publisher.close()


def test_a_loop_that_is_no_loader_is_known_from_the_second_epoch_on() -> None:
    publisher = publisher_on(FakeConnection())
    seen = []
    for _ in publisher.epochs(3):
        publisher.begin()
        for _ in range(10):
            publisher.iteration()
        seen.append(told(publisher))
    assert seen == [None, 30, 30]
    publisher.close()


@pytest.mark.parametrize("n_epochs", [None, float("inf"), "many"])
def test_epochs_without_an_end_tell_nothing(n_epochs: float | None) -> None:
    publisher = publisher_on(FakeConnection())
    for _ in itertools.islice(publisher.epochs(n_epochs), 3):
        passes(publisher.iterations(range(10)))
        assert told(publisher) is None
    publisher.close()


def test_what_came_before_the_epochs_is_added() -> None:
    publisher = publisher_on(FakeConnection())
    passes(publisher.iterations(range(7)))
    for _ in publisher.epochs(2):
        passes(publisher.iterations(range(10)))
        assert told(publisher) == 27
    for _ in publisher.epochs(3):
        passes(publisher.iterations(range(5)))
        assert told(publisher) == 42
    publisher.close()


def test_the_trainings_own_word_counts_more_than_the_epochs() -> None:
    connection = FakeConnection()
    with publisher_on(connection, total_iterations=25) as publisher:
        for _ in publisher.epochs(2):
            passes(publisher.iterations(range(10)))
    assert totals(connection)[-1] == 25


def test_a_length_that_the_run_has_gone_beyond_is_forgotten() -> None:
    connection = FakeConnection()
    with publisher_on(connection, total_iterations=9) as publisher:
        wait_until(connection.statuses)
        passes(publisher.iterations(range(10)))
    assert totals(connection) == [9, None]


def test_a_correction_waits_for_the_heartbeat_however_short_the_epochs_are() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for epoch in publisher.epochs(50):
            passes(publisher.iterations(range(2 + epoch)))
            if epoch == 0:
                wait_until(lambda: 100 in totals(connection))
    assert [status.state for status in connection.statuses()].count("running") <= 2


@pytest.mark.parametrize("total", [0, -1, 1.5, float("nan"), "many", 1 << 60, object(), np.zeros(2)])
def test_a_length_that_is_none_is_warned_of_once_and_publishing_goes_on(
    total: object, caplog: pytest.LogCaptureFixture
) -> None:
    connection = FakeConnection()
    for _ in range(2):
        publisher_on(connection, total_iterations=total).close()
    assert set(totals(connection)) == {None}
    assert [record.levelname for record in caplog.records if "total_iterations" in record.message] == ["WARNING"]


def test_a_length_beyond_what_the_bus_takes_is_not_published() -> None:
    publisher = publisher_on(FakeConnection())
    for _ in publisher.epochs(1 << 52):
        passes(publisher.iterations(range(10)))
        assert told(publisher) is None
        break
    publisher.close()


counts = st.integers(0, 50)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("epoch"), st.none() | counts),
            st.tuples(st.just("pass"), st.none() | counts, st.none() | counts),
            st.tuples(st.just("train"), counts),
            st.tuples(st.just("end")),
        )
    )
)
def test_whatever_a_loop_does_its_length_is_unknown_or_a_count_of_the_bus(calls: list[tuple[str, int]]) -> None:
    n_ended = 0
    length = Length(None, lambda: n_ended)
    for what, *numbers in calls:
        match what:
            case "epoch":
                length.begin_epoch(numbers[0])
            case "pass":
                length.begin_pass(numbers[0], numbers[1])
            case "train":
                n_ended += numbers[0]
            case _:
                length.end_epochs()
        total = length.total_iterations
        assert total is None or 1 <= total <= 1 << 53


@given(st.integers(0, 20), st.lists(st.integers(1, 50), min_size=1), st.integers(1, 50))
def test_two_epochs_alike_are_enough_to_know_the_rest(begun: int, before: list[int], each: int) -> None:
    n_ended, n_left = begun, 5
    length = Length(None, lambda: n_ended)
    for n in [*before, each, each]:
        length.begin_epoch(n_left)
        n_ended += n
    length.begin_epoch(n_left)
    assert length.total_iterations == n_ended + each * (1 + n_left)
