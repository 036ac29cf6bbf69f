"""Batch sizes asked for over a real broker while it or the service is away: how long that is waited for."""

import logging
import threading
import time
from collections.abc import Callable

import pytest

from publishers.connection import PahoConnection, Will
from publishers.environment import Broker
from tests.live.conftest import Mosquitto, wait_until
from tests.live.trial_service import SIZES, answer, publisher_at, serving

pytestmark = pytest.mark.live


def test_without_a_service_the_default_comes_when_the_patience_has_ended(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(broker.port, lambda _: []) as service:
        with publisher_at(broker.url) as publisher:
            wait_until(lambda: publisher._sender and publisher._sender._connections)
            begin_s = time.monotonic()
            assert publisher.batch_size(SIZES, default=32, timeout_s=4.5) == 32
            waited_s = time.monotonic() - begin_s
        assert 4.5 <= waited_s < 20.0
        assert 2 <= len(service.payloads("/trial/request")) <= 1 + waited_s, "once a second, unless all stands still"
    assert [record.message.partition(":")[0] for record in caplog.records] == ["the batch size is the default, 32"]


def test_a_service_that_comes_late_is_heard(broker: Mosquitto) -> None:
    with publisher_at(broker.url) as publisher:
        asked = threading.Thread(target=publisher.batch_size, args=(SIZES,), kwargs={"default": 32, "timeout_s": 30.0})
        asked.start()
        assert publisher._sender is not None
        wait_until(lambda: publisher._sender and publisher._sender._connections)
        with serving(broker.port):
            asked.join(40.0)
        assert publisher.trial is not None


def test_a_broker_that_is_killed_meanwhile_and_comes_back_is_asked_again_at_once(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "publishers")
    is_mute = True
    with (
        serving(broker.port, lambda request: [] if is_mute else [answer(request)]) as service,
        publisher_at(broker.url) as publisher,
    ):
        asked = threading.Thread(target=publisher.batch_size, args=(SIZES,), kwargs={"default": 32, "timeout_s": 30.0})
        asked.start()
        wait_until(lambda: service.payloads("/trial/request"))
        broker.kill()
        wait_until(lambda: "no broker" in caplog.text)
        is_mute = False
        broker.start()
        asked.join(40.0)
        assert publisher.trial is not None
        assert len(service.payloads("/trial/request")) >= 2


def test_a_broker_that_dies_for_good_costs_no_more_than_the_patience(broker: Mosquitto) -> None:
    with publisher_at(broker.url) as publisher:
        wait_until(lambda: publisher._sender and publisher._sender._connections)
        broker.kill()
        begin_s = time.monotonic()
        assert publisher.batch_size(SIZES, default=32, timeout_s=1.0) == 32
        assert time.monotonic() - begin_s < 10.0, "without an end it would ask for ever"


def test_a_broker_that_starts_a_moment_after_the_training_is_found(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.connection.FIRST_DELAY_S", 4.0)  # that moment; a second is soon over
    broker.kill()
    with publisher_at(broker.url) as publisher:
        wait_until(lambda: publisher._sender and publisher._sender._is_hopeless)
        asked = threading.Thread(target=publisher.batch_size, args=(SIZES,), kwargs={"default": 32, "timeout_s": 30.0})
        asked.start()
        broker.start()
        with serving(broker.port):
            asked.join(40.0)
        assert publisher.trial is not None


def test_what_is_subscribed_to_is_heard_again_after_a_reconnection(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.connection.FIRST_DELAY_S", 0.05)
    heard: list[bytes] = []
    connection = PahoConnection(Broker(host="127.0.0.1", port=broker.port), Will(topic="will", payload=b""))
    connection.subscribe("early", heard.append)  # before there is a connection
    connection.work()
    connection.subscribe("late", heard.append)

    def work_until(condition: Callable[[], object]) -> None:
        def works() -> object:
            connection.work(0.01)
            return condition()

        wait_until(works)

    for n_heard in (2, 4):
        work_until(lambda: connection.is_connected() and connection.is_subscribed())
        sent = [connection.publish(topic, topic.encode(), qos=1) for topic in ("early", "late", "other")]
        # What is not acknowledged is sent again to the next broker.
        work_until(lambda: len(heard) >= n_heard and all(receipt.done for receipt in sent))  # noqa: B023 — at once
        broker.kill()
        work_until(lambda: connection.failure)
        broker.start()
        work_until(connection.is_connected)
    connection.close()
    assert heard == [b"early", b"late"] * 2
    assert connection.connections == 3
