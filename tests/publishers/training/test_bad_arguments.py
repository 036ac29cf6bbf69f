"""What a publisher makes of values of any kind: those of numpy are taken, nonsense costs no training its end."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from gridchase import Publisher, publish_iterations
from publishers.messages.codec import Message, Outgoing, encode
from publishers.messages.training import Metric
from publishers.mqtt.broker_address import BrokerAddress
from publishers.training.iterations.published_loader import PublishedSized
from tests.publishers.training.fake_connection import Failing, FakeConnection, publisher_on, wait_until


def test_wrong_settings_turn_publishing_off_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert list(publish_iterations(range(3), job="two words")) == [0, 1, 2]
    assert len(caplog.records) == 1
    assert "job = 'two words': must be" in caplog.text


@pytest.mark.parametrize("error", [FileNotFoundError("ca.crt"), RuntimeError("a bug")])
def test_a_connection_that_cannot_be_created_turns_publishing_off(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_broker: BrokerAddress, _will: Outgoing) -> FakeConnection:
        raise error

    publisher = Publisher(job="failing", connect=fail)
    wait_until(lambda: caplog.records)
    assert len(list(PublishedSized(range(1_000), publisher))) == 1_000
    publisher.close()


@pytest.mark.parametrize("call", [lambda **options: publish_iterations(range(3), **options), Publisher])
def test_an_argument_that_does_not_exist_is_a_type_error(call: Callable[..., object]) -> None:
    with pytest.raises(
        TypeError, match=r"(publish_iterations|Publisher)\(\) got an unexpected keyword argument 'brokr'"
    ):
        call(job="toy", brokr="mqtt://127.0.0.1")


def test_the_number_of_different_warnings_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with publisher_on(FakeConnection()) as publisher:
        for number in range(1_000):
            publisher.metric(1e20 + number * 1e17)
    assert len(caplog.records) == 256


@pytest.mark.parametrize(
    ("given", "said", "n_warnings"),
    [
        (np.bool_(True), True, 0),
        (np.array([False]), False, 0),
        (np.float64(0.5) > 0.1, True, 0),
        (1, True, 0),
        (None, None, 0),
        (np.array([True, False]), None, 1),
        (Failing(), None, 1),
    ],
    ids=["numpy", "array", "comparison", "int", "nothing", "two", "failing"],
)
def test_any_value_of_reached_still_ends_the_run(
    given: bool | None, said: bool | None, n_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    publisher.close(given)
    assert [(status.state, status.reached) for status in connection.statuses()] == [
        ("running", None),
        ("finished", said),
    ]
    assert len(caplog.records) == n_warnings


def test_numpy_metrics_are_published_and_non_numbers_are_not(caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        publisher.metric(np.float32(0.5), reached=np.bool_(True))  # type: ignore[arg-type]
        publisher.metric(np.array([0.25]).max(), reached=np.array([True, False]))  # type: ignore[arg-type]
        for wrong in (10**400, 1e19, Failing(), np.array([1.0, 2.0])):
            publisher.metric(wrong)  # type: ignore[arg-type]  # training code may pass anything
    assert [(metric.value, metric.reached) for metric in connection.metrics()] == [(0.5, True), (0.25, False)]
    assert connection.statuses()[-1].state == "finished"
    assert len(caplog.records) == 5


def test_numpy_arguments_and_clocks_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    clock_ns = itertools.count(0, 1_000).__next__
    publisher = publisher_on(
        connection,
        job=np.str_("toy"),
        rank=np.int64(0),
        world_size=np.int32(1),
        gpus=np.array([0, 3]),
        batch_size=np.int64(64),
        heartbeat_s=np.float64(100.0),
        clock_ns=lambda: np.int64(clock_ns()),
        clock_s=lambda: np.float64(1.5e9),
    )
    wait_until(connection.statuses)
    list(PublishedSized(range(10), publisher))
    publisher.set_batch_size(np.int64(32))  # type: ignore[arg-type]
    publisher.close()
    first, last = connection.statuses()[0], connection.statuses()[-1]
    assert (first.gpus, first.batch_size, first.heartbeat_s, first.started_at_s) == ([0, 3], 64, 100.0, 1.5e9)
    assert (last.state, last.batch_size, connection.n_iterations()) == ("finished", 32, 10)
    assert caplog.records == []


@pytest.mark.parametrize(
    "argument",
    ["job", "run", "broker", "rank", "world_size", "gpus", "batch_size", "username", "password", "root", "flush_s",
     "heartbeat_s", "boot_id"],
)  # fmt: skip
def test_an_unusable_argument_turns_publishing_off_with_one_warning(
    argument: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        publisher = publisher_on(FakeConnection(), **{argument: Failing()})
        assert list(PublishedSized(range(3), publisher)) == [0, 1, 2]
        assert publisher.closed
    assert [record.message.partition(":")[0] for record in caplog.records] == ["publishing is off"]


@pytest.mark.parametrize("time_s", [float("nan"), -1.0, "now", None], ids=str)
def test_an_invalid_time_of_day_turns_publishing_off(time_s: float, caplog: pytest.LogCaptureFixture) -> None:
    publisher = publisher_on(FakeConnection(), clock_s=lambda: time_s)
    assert list(PublishedSized(range(3), publisher)) == [0, 1, 2]
    assert publisher.closed
    assert len(caplog.records) == 1


def test_an_invalid_batch_size_is_not_published(caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, batch_size=32)
    publisher.set_batch_size(0)
    publisher.set_batch_size(Failing())  # type: ignore[arg-type]
    publisher.close()
    assert [(status.state, status.batch_size) for status in connection.statuses()] == [
        ("running", 32),
        ("finished", 32),
    ]
    assert len(caplog.records) == 1


def test_a_message_that_cannot_be_encoded_is_the_only_one_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def encode_all_but_metrics(message: Message) -> bytes:
        if isinstance(message, Metric):
            raise TypeError("of a strange type")
        return encode(message)

    monkeypatch.setattr("publishers.training.worker.encode", encode_all_but_metrics)
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        list(PublishedSized(range(10), publisher))
        publisher.metric(0.5)
        publisher.metric(0.6)
    assert connection.n_iterations() == 10
    assert connection.statuses()[-1].state == "finished"
    assert len(caplog.records) == 1
