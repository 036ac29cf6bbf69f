"""What a publisher says of itself, and what it does when the broker, the settings or the clock are bad."""

import itertools
import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from publishers import Publisher, publish_iterations
from publishers.connection import Will
from publishers.environment import Broker
from publishers.iterations import PublishedSized
from publishers.sender import CLOSE_TIMEOUT_S
from publishers.wire import Message, Metric, RankStatus, decode, encode
from tests.publishers.fake_connection import TIMEOUT_S, FakeConnection, publisher_on, unused_broker, wait_until


@pytest.fixture(autouse=True)
def _nothing_was_warned_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("publishers.caution._warned", set())


def test_what_does_not_fit_is_dropped_counted_and_published_later() -> None:
    connection = FakeConnection(up=False)
    publisher = publisher_on(connection)
    assert sum(1 for _ in PublishedSized(range(100_000), publisher)) == 100_000
    connection.up = True
    wait_until(lambda: connection.messages() and sum(_span(connection)) == 100_000)
    publisher.close()
    assert connection.n_iterations() + connection.messages()[-1].dropped == 100_000
    assert 65_000 <= connection.n_iterations() <= 66_000
    dropped = 0
    for before, after in itertools.pairwise(connection.messages()):
        dropped += after.first - before.first - len(before.ends_ns())
    assert connection.messages()[0].first + dropped == connection.messages()[-1].dropped


def _span(connection: FakeConnection) -> tuple[int, int]:
    last = connection.messages()[-1]
    return last.first, len(last.ends_ns())


def test_messages_that_did_not_leave_go_again_in_their_order() -> None:
    connection = FakeConnection(lossy=True)
    publisher = publisher_on(connection)
    list(PublishedSized(range(10), publisher))
    wait_until(connection.messages)
    list(PublishedSized(range(10), publisher))
    connection.lossy = False
    n_lost = len(connection.messages())
    publisher.close()
    arrived = connection.messages()[n_lost:]
    assert {(message.first, len(message.ends_ns()), message.dropped) for message in arrived} >= {
        (0, 10, 0),
        (10, 10, 0),
    }
    assert [message.seq for message in connection.messages()] == list(range(len(connection.messages())))


def test_a_clock_that_goes_backwards_drops_and_does_not_raise() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, clock_ns=itertools.count(1_000_000, -1).__next__)
    list(PublishedSized(range(100), publisher))
    publisher.close()
    assert connection.n_iterations() == 0
    assert connection.statuses()[-1].state == "finished"


def test_the_status_runs_then_is_finished_and_the_will_says_lost() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, batch_size=64, gpus=["GPU-1"], clock_s=lambda: 1.5e9, boot_id="boot")
    list(PublishedSized(range(3), publisher))
    publisher.close(reached=True)
    assert [status.state for status in connection.statuses()] == ["running", "finished"]
    assert [(topic, qos, retain) for topic, _, qos, retain in connection.sent if topic.endswith("status")] == [
        ("gridchase/v1/job/toy/run/r1/rank/0/status", 1, True)
    ] * 2
    last = connection.statuses()[-1]
    assert (last.reached, last.batch_size, last.gpus) == (True, 64, ["GPU-1"])
    assert (last.started_at_s, last.boot_id) == (1.5e9, "boot")
    assert connection.will is not None
    assert decode(connection.will.payload, RankStatus).state == "lost"
    assert connection.closed


def test_a_broker_that_is_away_at_the_end_and_comes_back_hears_of_it() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    wait_until(connection.statuses)
    connection.up = False
    wait_until(lambda: connection.failure)
    closing = threading.Thread(target=publisher.close)
    closing.start()
    wait_until(lambda: connection.hurries)
    connection.up = True
    closing.join(TIMEOUT_S)
    assert connection.statuses()[-1].state == "finished"


def test_a_broker_that_is_away_at_the_end_is_waited_for_as_long_as_a_close_may_take() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    wait_until(connection.statuses)
    connection.up = False
    wait_until(lambda: connection.failure)
    begin_s = time.monotonic()
    publisher.close()
    assert time.monotonic() - begin_s < CLOSE_TIMEOUT_S + 0.5
    wait_until(lambda: connection.closed)


def test_the_status_comes_again_every_heartbeat_and_after_every_reconnection() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, heartbeat_s=0.01)
    wait_until(lambda: len(connection.statuses()) >= 3)
    publisher.close()
    connection = FakeConnection()
    publisher = publisher_on(connection, heartbeat_s=1_000.0)
    wait_until(lambda: len(connection.statuses()) == 1)
    connection.up = False
    wait_until(lambda: connection.failure)
    connection.up = True
    wait_until(lambda: len(connection.statuses()) == 2)
    publisher.close()


def test_a_metric_is_published_with_its_epoch_and_nonsense_is_not() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        list(PublishedSized(range(3), publisher))
        list(PublishedSized(range(3), publisher))
        publisher.metric(0.76, reached=True)
        publisher.metric(float("nan"))
        publisher.metric("good")  # type: ignore[arg-type]  # training code may pass anything
    assert [(metric.epoch, metric.value, metric.reached) for metric in connection.metrics()] == [(1, 0.76, True)]


def test_closing_waits_for_a_broker_that_does_not_acknowledge_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("publishers.sender", "publishers.publisher"):
        monkeypatch.setattr(f"{module}.CLOSE_TIMEOUT_S", 0.1)
    connection = FakeConnection(acknowledges=False)
    publisher = publisher_on(connection)
    begin_s = time.monotonic()
    publisher.close()
    assert 0.09 < time.monotonic() - begin_s < 1.0


def test_without_a_broker_training_goes_on_one_warning_is_logged_and_the_end_comes_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "publishers")
    publisher = Publisher(job="alone", broker=unused_broker(), flush_s=0.01)
    wait_until(lambda: caplog.records)
    assert sum(1 for _ in PublishedSized(range(100_000), publisher)) == 100_000
    begin_s = time.monotonic()
    publisher.close()
    assert time.monotonic() - begin_s < 0.5
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "refused" in caplog.text


def test_wrong_settings_turn_publishing_off_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert list(publish_iterations(range(3), job="two words")) == [0, 1, 2]
    assert len(caplog.records) == 1
    assert "job = 'two words': must be" in caplog.text


@pytest.mark.parametrize("error", [FileNotFoundError("ca.crt"), RuntimeError("a bug")])
def test_a_connection_that_cannot_be_made_turns_publishing_off(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_broker: Broker, _will: Will) -> FakeConnection:
        raise error

    publisher = Publisher(job="failing", connect=fail)
    wait_until(lambda: caplog.records)
    assert len(list(PublishedSized(range(1_000), publisher))) == 1_000
    publisher.close()


class Failing:
    """What a tensor becomes when its device has failed: nothing can be had from it, not even a text."""

    def __bool__(self) -> bool:
        raise RuntimeError("device-side assert")

    __float__ = __index__ = __bool__
    __repr__ = __bool__  # type: ignore[assignment]


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
def test_whatever_says_that_the_target_was_reached_the_end_is_finished(
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


def test_metrics_of_numpy_are_published_and_what_is_no_number_is_not(caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        publisher.metric(np.float32(0.5), reached=np.bool_(True))  # type: ignore[arg-type]
        publisher.metric(np.array([0.25]).max(), reached=np.array([True, False]))  # type: ignore[arg-type]
        for wrong in (10**400, 1e19, Failing(), np.array([1.0, 2.0])):
            publisher.metric(wrong)  # type: ignore[arg-type]  # training code may pass anything
    assert [(metric.value, metric.reached) for metric in connection.metrics()] == [(0.5, True), (0.25, False)]
    assert connection.statuses()[-1].state == "finished"
    assert len(caplog.records) == 5


def test_arguments_and_clocks_of_numpy_are_published_like_plain_ones(caplog: pytest.LogCaptureFixture) -> None:
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
def test_what_cannot_be_used_at_all_turns_publishing_off_with_one_warning(
    argument: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        publisher = publisher_on(FakeConnection(), **{argument: Failing()})
        assert list(PublishedSized(range(3), publisher)) == [0, 1, 2]
        assert publisher.closed
    assert [record.message.partition(":")[0] for record in caplog.records] == ["publishing is off"]


@pytest.mark.parametrize("time_s", [float("nan"), -1.0, "now", None], ids=str)
def test_a_time_of_day_that_is_none_turns_publishing_off(time_s: float, caplog: pytest.LogCaptureFixture) -> None:
    publisher = publisher_on(FakeConnection(), clock_s=lambda: time_s)
    assert list(PublishedSized(range(3), publisher)) == [0, 1, 2]
    assert publisher.closed
    assert len(caplog.records) == 1


def test_a_batch_size_that_is_none_is_not_said_and_the_end_is_finished(caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_message_that_cannot_be_encoded_costs_itself_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def encode_all_but_metrics(message: Message) -> bytes:
        if isinstance(message, Metric):
            raise TypeError("of a strange type")
        return encode(message)

    monkeypatch.setattr("publishers.sender.encode", encode_all_but_metrics)
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        list(PublishedSized(range(10), publisher))
        publisher.metric(0.5)
        publisher.metric(0.6)
    assert connection.n_iterations() == 10
    assert connection.statuses()[-1].state == "finished"
    assert len(caplog.records) == 1


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the memory map of a process that nobody has told its GPUs, without CUDA so far."""
    for variable in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    file = tmp_path / "maps"
    file.write_text("7f3a10000000-7f3a10021000 r--p 00000000 08:01 1311 /opt/torch/lib/libtorch_cuda.so\n")
    monkeypatch.setattr("publishers.sender.MAPS", file)
    monkeypatch.setattr("publishers.sender._SEEK_S", 0.001)
    return file


LIBCUDA = "7f3a30000000-7f3a30021000 r--p 00000000 08:01 1313 /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15\n"


def test_a_process_that_names_no_gpu_claims_the_first_one_as_soon_as_it_has_loaded_cuda(maps: Path) -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, heartbeat_s=1_000.0)
    wait_until(connection.statuses)
    maps.write_text(LIBCUDA)
    wait_until(lambda: len(connection.statuses()) == 2)
    maps.write_text("")  # a claim is kept
    publisher.close()
    assert [(status.state, status.gpus) for status in connection.statuses()] == [
        ("running", []),
        ("running", [0]),
        ("finished", [0]),
    ]


def test_a_process_without_cuda_claims_nothing_to_its_end(maps: Path) -> None:
    connection = FakeConnection()
    with publisher_on(connection, heartbeat_s=0.001):
        wait_until(lambda: len(connection.statuses()) >= 20)
    assert maps.exists()
    assert all(status.gpus == [] for status in connection.statuses())


@pytest.mark.parametrize("content", [LIBCUDA, None], ids=["with CUDA", "unreadable"])
def test_a_process_that_has_loaded_cuda_or_cannot_tell_claims_its_gpu_from_the_first_status(
    content: str | None, maps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    maps.unlink() if content is None else maps.write_text(content)
    connection = FakeConnection()
    publisher_on(connection).close()
    assert [status.gpus for status in connection.statuses()] == [[3], [3]]
    assert connection.will is not None
    assert decode(connection.will.payload, RankStatus).gpus == [3]


def test_gpus_that_are_named_are_claimed_whatever_is_loaded(maps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    for changes, gpus in (({}, [2]), ({"gpus": [0]}, [0]), ({"gpus": []}, [])):
        connection = FakeConnection()
        publisher_on(connection, **changes).close()
        assert connection.statuses()[0].gpus == gpus
    assert maps.exists()


def test_after_a_minute_a_process_without_cuda_is_looked_at_once_a_heartbeat(
    maps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.sender._OFTEN_S", 0.0)
    connection = FakeConnection()
    publisher = publisher_on(connection, heartbeat_s=1_000.0)
    wait_until(connection.statuses)
    maps.write_text(LIBCUDA)
    list(PublishedSized(range(10), publisher))
    wait_until(lambda: connection.n_iterations() == 10)
    publisher.close()
    assert [status.gpus for status in connection.statuses()] == [[], []]
