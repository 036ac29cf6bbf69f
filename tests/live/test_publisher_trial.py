"""A training that asks for its batch size through a real broker, and how long it waits for an answer."""

import logging
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable

import pytest

from gridchase import Publisher
from publishers.messages.codec import MAX_MESSAGE_BYTES, Outgoing, decode, encode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import TrialFailure, TrialRequest
from publishers.mqtt.broker_address import BrokerAddress
from publishers.training.paho_client import PahoConnection
from tests.fakes import USER
from tests.live.conftest import Mosquitto, wait_until
from tests.live.trial_service import SIZES, answer, publisher_at, serving
from tests.publishers.training.fake_connection import worker_of

pytestmark = pytest.mark.live
AMQTT = """
import asyncio
from publishers.mqtt.embedded_broker import embedded_broker
async def main():
    async with embedded_broker(prefer="amqtt") as broker:
        print(broker.port, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
OUT_OF_MEMORY = """
import sys
from gridchase import Publisher
class OutOfMemoryError(RuntimeError):
    pass
publisher = Publisher(job="toy", run="r1", broker=sys.argv[1])
publisher.batch_size([8, 16, 32, 64], default=32)
{how}
"""


def test_a_training_asks_for_a_batch_size_and_obeys_a_stop(broker: Mosquitto) -> None:
    with serving(broker.port) as service:
        with publisher_at(broker.url) as publisher:
            begin_s = time.monotonic()
            assert publisher.batch_size(SIZES, default=32, target=0.84) == 16
            asked_s = time.monotonic() - begin_s
            for epoch in publisher.epochs(1_000):
                assert sum(1 for _ in publisher.iterations(range(100))) == 100
                publisher.metric(0.5)
                if epoch == 1:
                    service.stop()
                    wait_until(lambda: publisher.should_stop)
            assert publisher.stop_reason == "it costs more than 5e5 J"
        wait_until(lambda: service.statuses() and service.statuses()[-1].state == "finished")
        assert epoch == 1
        assert (service.statuses()[-1].batch_size, service.statuses()[-1].reached) == (16, False)
        assert 1 <= len(service.payloads("/trial/request")) <= 1 + asked_s, "not again once it is answered"


def test_the_embedded_broker_delivers_answers_and_commands() -> None:
    with subprocess.Popen([sys.executable, "-c", AMQTT], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            port = int(child.stdout.readline())
            with serving(port) as service, publisher_at(f"mqtt://127.0.0.1:{port}") as publisher:
                assert publisher.batch_size(SIZES, default=32) == 16
                assert not publisher.should_stop
                service.stop()
                wait_until(lambda: publisher.should_stop)
        finally:
            child.kill()


def test_a_run_gets_only_its_own_answers_and_commands(broker: Mosquitto) -> None:
    sizes = {"r1": 16, "r2": 64}
    with (
        serving(broker.port, lambda request: [answer(request, batch_size=sizes[request.run])]) as service,
        publisher_at(broker.url, run="r1") as first,
        publisher_at(broker.url, run="r2") as second,
    ):
        assert (first.batch_size(SIZES, default=32), second.batch_size(SIZES, default=32)) == (16, 64)
        service.stop("r2")
        wait_until(lambda: second.should_stop)
        assert not first.should_stop


def test_every_rank_gets_the_answer_to_its_own_question(broker: Mosquitto) -> None:
    with serving(broker.port) as service:
        ranks = [publisher_at(broker.url, rank=rank, world_size=4, gpus=[]) for rank in range(4)]
        assert [rank.batch_size(SIZES, default=32) for rank in ranks] == [16] * 4
        requests = [decode(payload, TrialRequest) for payload in service.payloads("/trial/request")]
        assert len({request.correlation for request in requests}) == len(requests) >= 4
        for rank in ranks:
            rank.close()


def hostile(request: TrialRequest) -> Iterable[bytes]:
    """Return everything that should be passed over, and last the answer."""
    yield from (b"", b"\xc1", b"\x91" * 100_000, b"x" * (MAX_MESSAGE_BYTES + 1), b"\0" * (8 << 20))
    for changes in ({"run": "r2"}, {"correlation": "another"}, {"batch_size": 48}, {"batch_size": -1}):
        yield answer(request, **changes)
    yield from (answer(request, detail="x" * 100_000), answer(request, batch_size="16"), encode(request))
    yield answer(request, batch_size=64)


def test_hostile_answers_are_ignored(broker: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    with serving(broker.port, hostile), publisher_at(broker.url) as publisher:
        assert publisher.batch_size(SIZES, default=32, timeout_s=30.0) == 64
    assert caplog.records == []


def test_a_flood_does_not_delay_the_right_answers_and_commands(broker: Mosquitto) -> None:
    with serving(broker.port, lambda request: [*[b"x" * 100] * 1_000, answer(request)]) as service:
        with publisher_at(broker.url, flush_s=0.02) as publisher:
            assert publisher.batch_size(SIZES, default=32) == 16
            for _ in range(500):
                service._client.publish(Topics().run(RunKey(USER, "toy", "r1"), "command"), b"{}", qos=1)
            service.stop()
            wait_until(lambda: publisher.should_stop)
        wait_until(lambda: service.statuses()[-1].state == "finished")


@pytest.mark.parametrize(
    "how",
    [
        "raise OutOfMemoryError('CUDA out of memory')",
        "with publisher: raise OutOfMemoryError('CUDA out of memory')",
        "publisher.fail(detail='CUDA out of memory'); import os, time; publisher.close(); os._exit(1)",
    ],
    ids=["uncaught", "context", "by hand"],
)
def test_out_of_memory_is_published_before_the_end(broker: Mosquitto, how: str) -> None:
    with serving(broker.port) as service:
        result = subprocess.run(
            [sys.executable, "-c", OUT_OF_MEMORY.format(how=how), broker.url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        wait_until(lambda: service.statuses() and service.statuses()[-1].state == "finished")
        assert result.returncode == 1
        leaves = [topic.rpartition("/")[2] for topic, _ in service.heard]
        failure = decode(service.payloads("/trial/failure")[0], TrialFailure)
    assert leaves.count("failure") == 1
    assert leaves[-1] == "status"
    assert (failure.batch_size, failure.reason, failure.detail) == (16, "out_of_memory", "CUDA out of memory")
    assert "gridchase" not in result.stderr


def test_the_publishers_side_of_a_request_takes_less_than_60_ms(broker: Mosquitto) -> None:
    times_s = []
    with serving(broker.port), publisher_at(broker.url) as publisher:
        for _ in range(200):
            begin_s = time.perf_counter()
            assert publisher.batch_size(SIZES, default=32) == 16
            times_s.append(time.perf_counter() - begin_s)
    assert statistics.median(times_s) < 0.06  # a machine that others use now and then takes its time


def asking(publisher: Publisher) -> threading.Thread:
    """Return a thread that asks for a batch size and waits for the answer."""
    thread = threading.Thread(target=publisher.batch_size, args=(SIZES,), kwargs={"default": 32, "timeout_s": 30.0})
    thread.start()
    return thread


def test_without_a_service_the_default_is_used_after_the_timeout(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(broker.port, lambda _: []) as service:
        with publisher_at(broker.url) as publisher:
            wait_until(lambda: worker_of(publisher)._connections)
            begin_s = time.monotonic()
            assert publisher.batch_size(SIZES, default=32, timeout_s=4.5) == 32
            waited_s = time.monotonic() - begin_s
        assert 4.5 <= waited_s < 20.0
        assert 2 <= len(service.payloads("/trial/request")) <= 1 + waited_s, "once a second, unless all stands still"
    assert [record.message.partition(":")[0] for record in caplog.records] == ["the batch size is the default, 32"]


def test_a_service_that_starts_late_is_asked(broker: Mosquitto) -> None:
    with publisher_at(broker.url) as publisher:
        asked = asking(publisher)
        wait_until(lambda: worker_of(publisher)._connections)
        with serving(broker.port):
            asked.join(40.0)
        assert publisher.trial is not None


def test_a_restarted_broker_gets_the_request_again_at_once(broker: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "publishers")
    is_mute = True
    with (
        serving(broker.port, lambda request: [] if is_mute else [answer(request)]) as service,
        publisher_at(broker.url) as publisher,
    ):
        asked = asking(publisher)
        wait_until(lambda: service.payloads("/trial/request"))
        broker.kill()
        wait_until(lambda: "no connection to" in caplog.text)
        is_mute = False
        broker.start()
        asked.join(40.0)
        assert publisher.trial is not None
        assert len(service.payloads("/trial/request")) >= 2


def test_a_broker_that_dies_costs_no_more_than_the_timeout(broker: Mosquitto) -> None:
    with publisher_at(broker.url) as publisher:
        wait_until(lambda: worker_of(publisher)._connections)
        broker.kill()
        begin_s = time.monotonic()
        assert publisher.batch_size(SIZES, default=32, timeout_s=1.0) == 32
        assert time.monotonic() - begin_s < 10.0, "without an end it would ask for ever"


def test_a_broker_that_starts_just_after_the_training_is_found(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "publishers.training.paho_client.FIRST_RETRY_DELAY_S", 4.0
    )  # that moment; a second is soon over
    broker.kill()
    with publisher_at(broker.url) as publisher:
        wait_until(lambda: worker_of(publisher)._never_connected)
        asked = asking(publisher)
        broker.start()
        with serving(broker.port):
            asked.join(40.0)
        assert publisher.trial is not None


def test_subscriptions_are_renewed_at_a_reconnection(broker: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("publishers.training.paho_client.FIRST_RETRY_DELAY_S", 0.05)
    heard: list[bytes] = []
    connection = PahoConnection(
        BrokerAddress(url=f"mqtt://127.0.0.1:{broker.port}"), Outgoing(topic="will", payload=b"", qos=1, retain=True)
    )
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
