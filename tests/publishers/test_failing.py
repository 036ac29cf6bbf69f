"""When a run cannot run at its batch size: what it says by itself, what by hand, and what is no such failure."""

import sys

import pytest

from publishers import Publisher
from publishers.farewell import _last_exception
from tests.publishers.aims import aimed, service
from tests.publishers.fake_connection import FakeConnection, publisher_on


class OutOfMemoryError(RuntimeError):
    """As PyTorch's."""


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
def test_want_of_memory_is_reported_with_the_batch_size_and_the_exception_goes_on(
    error: Exception, detail: str
) -> None:
    connection = service()
    with pytest.raises(type(error)), aimed(connection, 0.84):
        raise error
    (failure,) = connection.trial_failures()
    assert (failure.run, failure.batch_size, failure.reason, failure.detail) == ("r1", 16, "out_of_memory", detail)
    assert [topic.rpartition("/")[2] for topic, *_ in connection.sent][-2:] == ["failure", "status"]


@pytest.mark.parametrize("error", [ValueError("bad"), MemoryError("of the host")], ids=repr)
def test_other_exceptions_are_no_failure_of_the_batch_size(error: Exception) -> None:
    connection = service()
    with pytest.raises(type(error)), aimed(connection, 0.84):
        raise error
    assert connection.trial_failures() == []


@pytest.mark.parametrize(("batch_size", "n_failures"), [(None, 0), (16, 0), (64, 1)])
def test_a_size_at_which_an_epoch_was_trained_fits_the_memory_and_another_may_not(
    batch_size: int | None, n_failures: int
) -> None:
    def train(publisher: Publisher) -> None:
        for epoch in publisher.epochs(2):
            list(publisher.iterations(range(3)))
            if epoch and batch_size is not None:
                publisher.set_batch_size(batch_size)
            if epoch:
                raise OutOfMemoryError("fragments")

    connection = service()
    with pytest.raises(OutOfMemoryError), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert [failure.batch_size for failure in connection.trial_failures()] == [64] * n_failures


def test_want_of_memory_within_the_first_epoch_is_reported() -> None:
    def train(publisher: Publisher) -> None:
        for _ in publisher.epochs(2):
            for _ in publisher.iterations(range(3)):
                raise OutOfMemoryError("CUDA out of memory")

    connection = service()
    with pytest.raises(OutOfMemoryError), aimed(connection, 0.84) as publisher:
        train(publisher)
    assert len(connection.trial_failures()) == 1


def test_by_hand_a_failure_is_published_whatever_was_trained() -> None:
    connection = service()
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
def test_whatever_the_reason_of_a_failure_is_it_is_published(reason: str, code: str, detail: str) -> None:
    connection = FakeConnection()
    with publisher_on(connection, batch_size=64) as publisher:
        publisher.fail(reason, "why")
    (failure,) = connection.trial_failures()
    assert (failure.batch_size, failure.reason, failure.detail) == (64, code, detail)


def test_a_failure_of_a_batch_size_that_nobody_knows_is_not_published(caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        publisher.fail()
    assert connection.trial_failures() == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("last", "is_prompt"),
    [(OutOfMemoryError(), False), (OutOfMemoryError(), True), (ValueError(), False), (None, False)],
)
def test_only_what_ends_the_interpreter_is_taken_for_its_end(
    last: BaseException | None, is_prompt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", last, raising=False)
    if is_prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert _last_exception() is (None if is_prompt else last)
