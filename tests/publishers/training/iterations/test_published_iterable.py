"""What a training loop sees of a published loader, and which iterations arrive."""

import copy
import itertools
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from gridchase import Publisher, publish_iterations
from publishers.training.iterations.data_loader import batch_size_of
from publishers.training.iterations.published_loader import PublishedIterable, PublishedSized
from publishers.training.publish_iterations import publisher_of
from tests.publishers.training.fake_connection import (
    TICK_NS,
    FakeConnection,
    epochs,
    lengths,
    publisher_on,
    unused_broker,
    wait_until,
    worker_of,
)


def test_every_batch_is_passed_on_and_every_iteration_published() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    assert list(PublishedSized(range(1_000), publisher)) == list(range(1_000))
    publisher.close()
    messages = connection.messages()
    ends_ns = [end for message in messages for end in message.ends_ns()]
    received_ns = [time_ns for message in messages for time_ns in message.received_times_ns() or []]
    assert {message.counted_by for message in messages} == {"loader"}
    assert messages[0].begin_ns == received_ns[0] == 0
    assert ends_ns == [TICK_NS * (2 * k + 1) for k in range(1_000)]
    assert received_ns[1:] == [TICK_NS * 2 * k for k in range(1, 1_000)]


@pytest.mark.parametrize("n_batches", [0, 1, 2, 256, 257, 258, 513])
def test_a_pass_has_as_many_iterations_as_batches(n_batches: int) -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        assert len(list(PublishedIterable((batch for batch in range(n_batches)), publisher))) == n_batches
    assert connection.n_iterations() == n_batches


def test_messages_are_numbered_without_a_gap() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    for batch in PublishedSized(range(600), publisher):
        if batch == 300:
            wait_until(lambda: connection.n_iterations() == 300)
    publisher.close()
    messages = connection.messages()
    assert [message.seq for message in messages] == list(range(len(messages)))
    assert len(messages) >= 2
    for before, after in itertools.pairwise(messages):
        assert after.first == before.first + len(before.ends_ns())
        assert after.begin_ns == before.ends_ns()[-1]


def test_a_long_buffer_is_split_into_messages_of_4096() -> None:
    connection = FakeConnection(up=False)
    publisher = publisher_on(connection)
    for _ in PublishedSized(range(20_000), publisher):
        pass
    connection.up = True
    wait_until(lambda: connection.n_iterations() == 20_000)
    publisher.close()
    assert max(lengths(connection.messages())) <= 4_096
    assert len(connection.messages()) == 6


def test_each_pass_is_an_epoch() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    batches = PublishedSized(range(5), publisher)
    for _ in range(3):
        assert list(batches) == list(range(5))
    publisher.close()
    assert epochs(connection) == {0: 5, 1: 5, 2: 5}


def test_a_break_after_the_step_counts_the_iteration() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    for batch in PublishedSized(range(100), publisher):
        if batch == 9:
            break
    publisher.close()
    assert connection.n_iterations() == 10


def test_a_break_before_the_step_counts_none() -> None:
    now_ns = 0
    connection = FakeConnection()
    publisher = publisher_on(connection, clock_ns=lambda: now_ns)
    for batch in PublishedSized(range(100), publisher):
        if batch == 9:
            break
        now_ns += 1_000_000  # the step
    publisher.close()
    assert connection.n_iterations() == 9


def test_an_exception_of_the_training_step_passes_through() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    with pytest.raises(ZeroDivisionError):
        _train_on(PublishedSized(range(100), publisher))
    publisher.close()
    assert connection.statuses()[-1].state == "finished"


def _train_on(batches: PublishedIterable[int]) -> None:
    for batch in batches:
        _ = 1 / (batch - 5)


def test_an_exception_of_the_loader_passes_through() -> None:
    def broken() -> Iterator[int]:
        yield from (1, 2, 3)
        raise OSError("disk")

    connection = FakeConnection()
    publisher = publisher_on(connection)
    with pytest.raises(OSError, match="disk"):
        list(PublishedIterable(broken(), publisher))
    publisher.close()
    assert connection.n_iterations() == 3


class Once:
    """An iterator that must not be asked again once it has ended."""

    def __init__(self, n_batches: int) -> None:
        self._batches = iter(range(n_batches))
        self._has_ended = False

    def __iter__(self) -> "Once":
        return self

    def __next__(self) -> int:
        assert not self._has_ended
        try:
            return next(self._batches)
        except StopIteration:
            self._has_ended = True
            raise


def test_an_iterator_that_has_ended_is_not_asked_again() -> None:
    publisher = publisher_on(FakeConnection())
    assert len(list(PublishedIterable(Once(300), publisher))) == 300
    publisher.close()


def test_a_pause_of_the_publisher_does_not_ask_an_ended_iterator_again() -> None:
    publisher = publisher_on(FakeConnection())
    for batch in PublishedIterable(Once(250), publisher):
        if batch % 20 == 10:
            publisher.pause()
    publisher.close()


def test_fetching_one_batch_is_neither_an_iteration_nor_an_epoch() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    batches = PublishedSized(range(600), publisher)
    next(iter(batches))
    for batch in batches:
        if batch == 100:
            next(iter(batches))
    publisher.close()
    assert epochs(connection) == {0: 600}


def test_nested_passes_do_not_overlap() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    for batch in PublishedSized(range(1_000), publisher):
        if batch == 100:
            list(PublishedSized(range(10), publisher))
    publisher.close()
    messages = connection.messages()
    for before, after in itertools.pairwise(messages):
        assert after.first == before.first + len(before.ends_ns())
        assert after.begin_ns >= before.ends_ns()[-1]
    assert 700 <= connection.n_iterations() <= 1_010


def test_a_pause_ends_the_iteration_and_the_message() -> None:
    now_ns = 0
    connection = FakeConnection()
    publisher = publisher_on(connection, clock_ns=lambda: now_ns)
    batches = PublishedSized(range(600), publisher)
    for batch in batches:
        now_ns += 1_000
        if batch % 100 == 0:
            publisher.pause()
            now_ns += 1_000_000  # validation
    publisher.close()
    assert connection.n_iterations() == 600
    times_ns = {
        end - begin
        for message in connection.messages()
        for begin, end in itertools.pairwise([message.begin_ns, *message.ends_ns()])
    }
    assert times_ns == {1_000}


def test_the_first_call_of_iteration_begins_and_later_ones_end_one() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        step = publisher.iteration
        for _ in range(601):
            step()
    messages = connection.messages()
    assert messages[0].begin_ns == 0
    assert sum(lengths(messages)) == 600


def test_after_a_pause_the_first_call_begins_again() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for _ in range(3):
            publisher.iteration()
        publisher.pause()
        for _ in range(3):
            publisher.iteration()
    messages = connection.messages()
    assert sum(lengths(messages)) == 4
    assert [message.first for message in messages][-1] == 2
    assert messages[-1].begin_ns == 3 * TICK_NS


def test_begin_after_a_pause_loses_no_iteration() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        publisher.begin()
        for _ in range(3):
            publisher.iteration()
        publisher.pause()
        publisher.begin()
        for _ in range(3):
            publisher.iteration()
    assert connection.n_iterations() == 6


def test_epochs_without_an_iterable_are_counted() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for _ in range(3):
            publisher.epoch()
            publisher.begin()
            for _ in range(4):
                publisher.iteration()
    assert epochs(connection) == {0: 4, 1: 4, 2: 4}


class Loader:
    """A loader as PyTorch's looks from outside."""

    def __init__(self, n_batches: int) -> None:
        self.n_batches = n_batches
        self.batch_size = 32
        self.sampler = ["sampler"]

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n_batches))


def test_the_length_of_the_loader_is_kept() -> None:
    sized = publish_iterations(Loader(7), job="a job")
    unsized = publish_iterations(iter(range(7)), job="a job")
    assert len(sized) == 7
    assert not hasattr(unsized, "__len__")


def test_the_attributes_of_the_loader_stay_accessible() -> None:
    published = publish_iterations(Loader(1), job="a job")
    assert published.sampler == ["sampler"]
    with pytest.raises(AttributeError, match="collate"):
        _ = published.collate  # type: ignore[attr-defined]


def test_wrapping_a_loader_in_each_epoch_is_one_run() -> None:
    where = unused_broker()
    first = publisher_of(publish_iterations(Loader(2), job="anew", rank=0, world_size=1, broker=where))
    second = publisher_of(publish_iterations(Loader(2), job="anew", rank=0, world_size=1, broker=where))
    other = publisher_of(publish_iterations(Loader(2), job="another", rank=0, world_size=1, broker=where))
    assert first is second
    assert first is not other
    first.close()
    third = publisher_of(publish_iterations(Loader(2), job="anew", rank=0, world_size=1, broker=where))
    assert third.run != first.run
    third.close()
    other.close()


def test_a_copy_in_another_process_iterates_and_publishes_nothing() -> None:
    published = publisher_on(FakeConnection()).iterations(Loader(3))
    for twin in (pickle.loads(pickle.dumps(published)), copy.deepcopy(published)):  # noqa: S301 — our own bytes
        assert list(twin) == [0, 1, 2]
        assert len(twin) == 3
        assert type(twin) is Loader
    assert not publisher_of(published).closed
    publisher_of(published).close()


@pytest.mark.parametrize(("given", "expected"), [(None, 32), (48, 48)])
def test_the_batch_size_is_the_loaders_unless_given(given: int | None, expected: int) -> None:
    published = publish_iterations(Loader(1), job="own", rank=0, world_size=1, broker=unused_broker(), batch_size=given)
    worker = worker_of(publisher_of(published))
    publisher_of(published).close()
    assert worker._status.batch_size == expected


class BadLoader(Loader):
    """A loader whose batch size cannot be had."""

    @property
    def batch_size(self) -> int:
        raise RuntimeError("no batch size yet")

    @batch_size.setter
    def batch_size(self, _value: int) -> None:
        pass


@pytest.mark.parametrize(("own", "expected"), [(np.int64(48), 48), (0, None), (1 << 40, None), (None, None)], ids=str)
def test_an_invalid_batch_size_of_the_loader_is_ignored(own: object, expected: int | None) -> None:
    loader = Loader(1)
    loader.batch_size = own  # type: ignore[assignment]  # loaders may say anything
    assert batch_size_of(loader) == expected


def test_a_failing_batch_size_of_the_loader_is_ignored() -> None:
    assert batch_size_of(BadLoader(1)) is None


def test_a_new_batch_size_is_published_at_once() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, batch_size=32, heartbeat_s=1_000.0)
    wait_until(connection.statuses)
    publisher.set_batch_size(64)
    wait_until(lambda: connection.statuses()[-1].batch_size == 64)
    publisher.close()


def test_a_callback_shares_the_publisher_of_a_wrapped_loader() -> None:
    options = {"job": "shared", "rank": 0, "world_size": 1, "broker": unused_broker()}
    loader = publish_iterations(Loader(3), **options)  # type: ignore[arg-type]  # by name
    publisher = Publisher.for_callback(**options)  # type: ignore[arg-type]  # by name
    assert publisher is publisher_of(loader)
    publisher.begin()
    publisher.iteration()
    publisher.close()
    assert [segment.counted_by for segment in publisher.recorder.drain(10)] in (["callback"], [])


def test_what_a_callback_counts_says_so() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        publisher.recorder.count_by("callback")
        publisher.begin()
        for _ in range(5):
            publisher.iteration()
    assert [(message.counted_by, len(message.ends_ns())) for message in connection.messages()] == [("callback", 5)]
