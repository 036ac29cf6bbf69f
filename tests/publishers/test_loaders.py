"""What stays of a loader that is published: its length, its attributes, its batch size, and copies of it."""

import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from publishers import publish_iterations
from publishers.iterations import PublishedSized
from publishers.passes import own_batch_size
from tests.publishers.fake_connection import FakeConnection, publisher_on, unused_broker, wait_until


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


def test_the_length_is_kept_where_there_is_one() -> None:
    sized = publish_iterations(Loader(7), job="a job")
    unsized = publish_iterations(iter(range(7)), job="a job")
    assert len(sized) == 7
    assert not hasattr(unsized, "__len__")


def test_the_attributes_of_the_loader_stay_reachable() -> None:
    published = publish_iterations(Loader(1), job="a job")
    assert published.sampler == ["sampler"]
    with pytest.raises(AttributeError, match="collate"):
        _ = published.collate


def test_wrapping_a_loader_anew_in_each_epoch_is_one_run() -> None:
    where = unused_broker()
    first = publish_iterations(Loader(2), job="anew", rank=0, world_size=1, broker=where).publisher
    second = publish_iterations(Loader(2), job="anew", rank=0, world_size=1, broker=where).publisher
    other = publish_iterations(Loader(2), job="another", rank=0, world_size=1, broker=where).publisher
    assert first is second
    assert first is not other
    first.close()
    third = publish_iterations(Loader(2), job="anew", rank=0, world_size=1, broker=where).publisher
    assert third.run != first.run
    third.close()
    other.close()


def test_a_copy_in_another_process_iterates_and_publishes_nothing() -> None:
    published = PublishedSized(Loader(3), publisher_on(FakeConnection()))
    for twin in (pickle.loads(pickle.dumps(published)), copy.deepcopy(published)):  # noqa: S301 — our own bytes
        assert list(twin) == [0, 1, 2]
        assert len(twin) == 3
        assert twin.publisher.closed
    assert not published.publisher.closed
    published.finish()


@pytest.mark.parametrize(("given", "expected"), [(None, 32), (48, 48)])
def test_the_batch_size_is_the_loaders_own_unless_it_is_given(given: int | None, expected: int) -> None:
    published = publish_iterations(Loader(1), job="own", rank=0, world_size=1, broker=unused_broker(), batch_size=given)
    sender = published.publisher._sender
    published.finish()
    assert sender is not None
    assert sender._status.batch_size == expected


class BadLoader(Loader):
    """A loader whose batch size cannot be had."""

    @property
    def batch_size(self) -> int:
        raise RuntimeError("no batch size yet")

    @batch_size.setter
    def batch_size(self, _value: int) -> None:
        pass


@pytest.mark.parametrize(("own", "expected"), [(np.int64(48), 48), (0, None), (1 << 40, None), (None, None)], ids=str)
def test_a_batch_size_of_the_loader_that_cannot_be_used_is_left_out(own: object, expected: int | None) -> None:
    loader = Loader(1)
    loader.batch_size = own  # type: ignore[assignment]  # loaders may say anything
    assert own_batch_size(loader) == expected


def test_a_loader_that_fails_to_say_its_batch_size_is_published_without() -> None:
    assert own_batch_size(BadLoader(1)) is None


def test_a_new_batch_size_is_said_at_once() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, batch_size=32, heartbeat_s=1_000.0)
    wait_until(connection.statuses)
    publisher.set_batch_size(64)
    wait_until(lambda: connection.statuses()[-1].batch_size == 64)
    publisher.close()
