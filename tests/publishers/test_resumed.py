"""A run that goes on in another process numbers its epochs on."""

import pytest

from publishers import Publisher
from publishers.iterations import PublishedSized
from tests.publishers.aims import aimed, service
from tests.publishers.fake_connection import FakeConnection, epochs, publisher_on


class OutOfMemoryError(RuntimeError):
    """As PyTorch's."""


def test_epochs_go_on_where_another_process_was_broken_off() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    numbers = []
    for epoch in publisher.epochs(10, first=8):
        list(publisher.iterations(range(5)))
        publisher.metric(0.1)
        numbers.append(epoch)
    publisher.close()
    assert numbers == [8, 9]
    assert epochs(connection) == {8: 5, 9: 5}
    assert [metric.epoch for metric in connection.metrics()] == [8, 9]
    assert connection.messages()[0].first == 0


@pytest.mark.parametrize("first", [10, 11])
def test_a_run_that_has_trained_all_its_epochs_has_none_left(first: int) -> None:
    assert list(publisher_on(FakeConnection()).epochs(10, first=first)) == []


def test_loops_of_another_form_go_on_at_their_first_epoch() -> None:
    connection = FakeConnection()
    with publisher_on(connection, first_epoch=8) as publisher:
        for _ in range(2):
            list(PublishedSized(range(5), publisher))
        for _ in range(3):
            publisher.iteration()
        publisher.epoch()
        for _ in range(3):
            publisher.iteration()
    assert epochs(connection) == {8: 5, 9: 7, 10: 2}


def test_a_first_epoch_that_lies_behind_changes_nothing() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for _ in publisher.epochs(3):
            list(publisher.iterations(range(5)))
        for _ in publisher.epochs(4, first=3):
            list(publisher.iterations(range(5)))
    assert epochs(connection) == {0: 5, 1: 5, 2: 5, 3: 5}


@pytest.mark.parametrize("first", [-1, 1.5, "eight", None])
def test_a_first_epoch_that_is_none_is_said_and_not_used(first: int, caplog: pytest.LogCaptureFixture) -> None:
    assert list(publisher_on(FakeConnection()).epochs(2, first=first)) == [0, 1]
    assert "must be a whole number from 0" in caplog.text


def test_epochs_of_another_process_do_not_show_that_the_batch_size_fits_this_ones_memory() -> None:
    def train(publisher: Publisher) -> None:
        for _ in publisher.epochs(10, first=8):
            for _ in publisher.iterations(range(3)):
                raise OutOfMemoryError("CUDA out of memory")

    connection = service()
    with pytest.raises(OutOfMemoryError), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert len(connection.trial_failures()) == 1
