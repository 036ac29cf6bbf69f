"""What a publisher says of itself, and what it does when the broker or its clock fails it."""

import itertools
import logging
import threading
import time
from dataclasses import dataclass

import pytest

from gridchase import Publisher
from publishers.messages.codec import decode
from publishers.messages.training import Iterations, RankStatus
from publishers.training.iterations.published_loader import PublishedSized
from publishers.training.iterations.recorder import CHUNK, MAX_BUFFERED, Recorder
from publishers.training.worker import IterationQueue
from tests.publishers.training.conftest import CLOSE_TIMEOUT_S
from tests.publishers.training.fake_connection import (
    TIMEOUT_S,
    FakeConnection,
    FakeReceipt,
    publisher_on,
    ticking,
    unused_broker,
    wait_until,
)


def test_iterations_beyond_the_buffer_are_dropped_and_counted() -> None:
    connection = FakeConnection(up=False)
    publisher = publisher_on(connection)
    n = 5 * MAX_BUFFERED
    assert sum(1 for _ in PublishedSized(range(n), publisher)) == n
    connection.up = True
    wait_until(lambda: connection.messages() and sum(_span(connection)) == n)
    publisher.close()
    assert connection.n_iterations() + connection.messages()[-1].dropped == n
    in_the_worker = 65 * CHUNK  # at most: what it had taken, and waits in it
    assert MAX_BUFFERED - CHUNK <= connection.n_iterations() <= MAX_BUFFERED + in_the_worker
    dropped = 0
    for before, after in itertools.pairwise(connection.messages()):
        dropped += after.first - before.first - len(before.ends_ns())
    assert connection.messages()[0].first + dropped == connection.messages()[-1].dropped


def _span(connection: FakeConnection) -> tuple[int, int]:
    last = connection.messages()[-1]
    return last.first, len(last.ends_ns())


def test_lost_messages_are_sent_again_in_order() -> None:
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


def test_what_the_broker_refuses_is_not_sent_again_and_counted() -> None:
    connection = FakeConnection(refusing=True)
    publisher = publisher_on(connection)
    list(PublishedSized(range(10), publisher))
    wait_until(connection.messages)
    connection.refusing = False
    list(PublishedSized(range(10), publisher))
    publisher.close()
    n_refused = sum(len(message.ends_ns()) for message in connection.messages() if message.first < 10)
    assert n_refused == 10
    assert connection.messages()[-1].dropped == 10


def test_the_queue_sends_lost_messages_again_before_newer_ones() -> None:
    connection = FakeConnection(lossy=True)
    connection.work()
    recorder = Recorder(ticking())
    queue = IterationQueue(recorder)
    queue.begin(run="r1", topic="iterations")

    def record() -> None:
        """Record two messages' worth: a pause ends the first one."""
        for _ in range(2):
            recorder.begin()
            recorder.chunk.marks.append(recorder.clock_ns())
            recorder.pause()

    record()
    assert queue.flush(connection)
    queue.collect_receipts()
    connection.lossy = False
    record()
    while queue.flush(connection):
        queue.collect_receipts()
    sent = [decode(payload, Iterations) for _, payload, *_ in connection.sent]
    assert [message.first for message in sent] == [0, 1, 0, 1, 2, 3]
    assert [message.seq for message in sent] == [0, 1, 2, 3, 4, 5]
    assert not queue.has_unacknowledged


def test_a_clock_that_goes_backwards_drops_iterations_and_does_not_raise() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, clock_ns=itertools.count(1_000_000, -1).__next__)
    list(PublishedSized(range(100), publisher))
    publisher.close()
    assert connection.n_iterations() == 0
    assert connection.statuses()[-1].state == "finished"


def test_the_status_is_running_then_finished_and_the_will_lost() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, batch_size=64, gpus=["GPU-1"], clock_s=lambda: 1.5e9, boot_id="boot")
    list(PublishedSized(range(3), publisher))
    publisher.close(reached=True)
    assert [status.state for status in connection.statuses()] == ["running", "finished"]
    assert [(topic, qos, retain) for topic, _, qos, retain in connection.sent if topic.endswith("status")] == [
        ("gridchase/v1/host/boot/user/alice/job/toy/run/r1/rank/0/status", 1, True)
    ] * 2
    last = connection.statuses()[-1]
    assert (last.reached, last.batch_size, last.gpus) == (True, 64, ["GPU-1"])
    assert (last.started_at_s, last.boot_id) == (1.5e9, "boot")
    assert connection.will is not None
    assert decode(connection.will.payload, RankStatus).state == "lost"
    assert (connection.will.qos, connection.will.retain) == (1, True)
    assert connection.closed


def test_a_broker_that_returns_at_the_end_gets_the_last_status() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    wait_until(connection.statuses)
    connection.up = False
    wait_until(lambda: connection.failure)
    closing = threading.Thread(target=publisher.close)
    closing.start()
    wait_until(lambda: connection.n_retries)
    connection.up = True
    closing.join(TIMEOUT_S)
    assert connection.statuses()[-1].state == "finished"


@dataclass
class Interrupted(FakeConnection):
    """A connection that is lost with some messages of iterations, by their numbers, and opens when it is tried."""

    lost: frozenset[int] = frozenset()
    n_published: int = 0

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> FakeReceipt:
        if topic.endswith("/iterations"):
            self.n_published += 1
            if self.n_published in self.lost:
                self.up = self._is_in = False
                return FakeReceipt(lost=True)
        return super().publish(topic, payload, qos=qos, retain=retain)

    def retry_now(self) -> None:
        super().retry_now()
        self.up = True


@pytest.mark.parametrize("lost", [{1}, {1, 2}, {70}], ids=str)
def test_a_loss_while_the_rest_is_published_costs_nothing(lost: set[int]) -> None:
    connection, n_messages = Interrupted(lost=frozenset(lost)), 80  # more than one flush publishes
    publisher = publisher_on(connection, flush_s=TIMEOUT_S)
    wait_until(connection.statuses)
    for _ in range(n_messages):
        list(PublishedSized(range(3), publisher))
    publisher.close()
    assert [status.state for status in connection.statuses()] == ["running", "finished"]
    assert connection.n_iterations() == 3 * n_messages
    assert connection.n_published == n_messages + len(lost)


def test_the_last_status_is_tried_whatever_was_refused_before() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    list(PublishedSized(range(10), publisher))
    wait_until(connection.statuses)
    connection.refused_topics.add(connection.sent[0][0])
    publisher.close()
    assert connection.statuses()[-1].state == "finished"


@pytest.mark.usefixtures("short_close")
def test_closing_waits_for_a_broker_that_is_away_no_longer_than_allowed() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    wait_until(connection.statuses)
    connection.up = False
    wait_until(lambda: connection.failure)
    begin_s = time.monotonic()
    publisher.close()
    assert 0.09 < time.monotonic() - begin_s < TIMEOUT_S
    wait_until(lambda: connection.closed)


def test_the_status_is_repeated_every_heartbeat_and_reconnection() -> None:
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


def test_a_metric_is_published_with_its_epoch() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        list(PublishedSized(range(3), publisher))
        list(PublishedSized(range(3), publisher))
        publisher.metric(0.76, reached=True)
        publisher.metric(float("nan"))
        publisher.metric("good")  # type: ignore[arg-type]  # training code may pass anything
    assert [(metric.epoch, metric.value, metric.reached) for metric in connection.metrics()] == [(1, 0.76, True)]


@pytest.mark.usefixtures("short_close")
def test_closing_waits_a_bounded_time_for_an_acknowledgement() -> None:
    connection = FakeConnection(acknowledges=False)
    publisher = publisher_on(connection)
    begin_s = time.monotonic()
    publisher.close()
    assert 0.09 < time.monotonic() - begin_s < TIMEOUT_S


def test_without_a_broker_the_training_goes_on_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "publishers")
    publisher = Publisher(job="alone", broker=unused_broker(), flush_s=0.01)
    wait_until(lambda: caplog.records)
    assert sum(1 for _ in PublishedSized(range(100_000), publisher)) == 100_000
    begin_s = time.monotonic()
    publisher.close()
    assert time.monotonic() - begin_s < CLOSE_TIMEOUT_S / 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "nothing listens at" in caplog.text


def test_a_status_tells_of_a_pause_until_the_next_iteration() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, heartbeat_s=0.001)

    def says(in_pause: bool) -> None:
        n_before = len(connection.statuses())
        wait_until(lambda: any(status.in_pause is in_pause for status in connection.statuses()[n_before:]))

    publisher.begin()
    publisher.iteration()
    wait_until(lambda: connection.n_iterations() == 1)
    says(False)
    publisher.pause()
    says(True)
    publisher.begin()
    publisher.iteration()
    wait_until(lambda: connection.n_iterations() == 2)
    says(False)
    publisher.close()


def test_a_validation_is_a_pause_as_long_as_it_asks_for_batches() -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, heartbeat_s=0.001)
    training, validation = (iter(publisher.iterations([0] * 100)) for _ in range(2))
    for batches in (training, validation):  # one within an iteration of the other
        for _ in range(3):
            next(batches)
    n_before = len(connection.statuses())
    next(validation)
    wait_until(lambda: any(status.in_pause for status in connection.statuses()[n_before:]))
    wait_until(lambda: not connection.statuses()[-1].in_pause)
    publisher.close()
