"""A publisher and its real broker: one that dies, hangs or refuses costs the training nothing but what is counted."""

import asyncio
import itertools
import logging
import signal
import socket
import threading
import time

import aiomqtt
import pytest

from gridchase import Publisher
from publishers.messages.codec import Outgoing, decode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import RankStatus
from publishers.mqtt.broker_address import BrokerAddress
from publishers.shared.boot_id import read_boot_id
from publishers.training.iterations.published_loader import PublishedIterable, PublishedSized
from publishers.training.paho_client import PahoConnection
from tests.live.conftest import Mosquitto, SecureMosquitto, wait_until
from tests.live.subscriber import Subscriber, listening
from tests.publishers.training.fake_connection import worker_of

pytestmark = pytest.mark.live


class Connections:
    """The connections of publishers, which come back when the test says so: not before the subscriber is back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("publishers.training.paho_client.FIRST_RETRY_DELAY_S", 3_600.0)
        self._opened: list[PahoConnection] = []

    def open(self, broker: BrokerAddress, will: Outgoing) -> PahoConnection:
        """Open one."""
        self._opened.append(PahoConnection(broker, will))
        return self._opened[-1]

    def retry_now(self) -> None:
        """Let them come back."""
        for connection in self._opened:
            connection.retry_now()


def test_a_restart_of_the_broker_costs_only_counted_iterations(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connections = Connections(monkeypatch)
    with listening(broker.port) as subscriber:
        publisher = Publisher(
            job="toy", run="r1", rank=0, world_size=1, broker=broker.url, flush_s=0.01, connect=connections.open
        )
        list(PublishedSized(range(1_000), publisher))
        wait_until(lambda: subscriber.n_iterations() == 1_000)
        subscriber.expect_loss()
        broker.kill()
        wait_until(lambda: "no connection to" in caplog.text)
        assert sum(1 for _ in PublishedSized(range(100_000), publisher)) == 100_000
        broker.start()
        subscriber.wait_subscribed()
        connections.retry_now()
        wait_until(lambda: _last_number(subscriber) == 100_999)
        list(PublishedSized(range(1_000), publisher))
        publisher.close()
        wait_until(lambda: subscriber.statuses()[-1].state == "finished")
        assert _last_number(subscriber) == 101_999
        messages = subscriber.iterations()
        assert subscriber.n_iterations() + messages[-1].dropped == 102_000
        assert messages[-1].dropped > 30_000
        assert [message.seq for message in messages] == list(range(len(messages)))
        assert [status.state for status in subscriber.statuses()][-2:] == ["running", "finished"]
    assert len(caplog.records) == 1


def test_iterations_during_a_restart_of_the_broker_leave_only_visible_gaps(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connections = Connections(monkeypatch)
    with listening(broker.port) as subscriber:
        publisher = Publisher(
            job="toy", run="r1", rank=0, world_size=1, broker=broker.url, flush_s=0.01, connect=connections.open
        )
        pause, enough, batch = threading.Event(), threading.Event(), 0
        # Not left by `break`: only its time tells whether such a last iteration counts.
        for batch in PublishedIterable(itertools.takewhile(lambda _: not enough.is_set(), range(30_000)), publisher):
            pause.wait(0.001)
            if batch == 500:
                wait_until(lambda: subscriber.n_iterations() > 400)  # what is on its way dies with the broker
                subscriber.expect_loss()
                broker.kill()
                wait_until(lambda: "no connection to" in caplog.text)
                broker.start()
                subscriber.wait_subscribed()
                connections.retry_now()
            if batch % 100 == 99 and max((m.first for m in subscriber.iterations()), default=0) > 1_000:
                enough.set()
        publisher.close()
        wait_until(lambda: subscriber.statuses()[-1].state == "finished")
        messages = subscriber.iterations()
        numbers = [message.first + k for message in messages for k in range(len(message.ends_ns()))]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == batch
        assert len(numbers) >= batch - 300


def _last_number(subscriber: Subscriber) -> int:
    last = subscriber.iterations()[-1]
    return last.first + len(last.ends_ns()) - 1


def test_a_hanging_broker_blocks_neither_the_training_nor_its_end(broker: Mosquitto) -> None:
    publisher = Publisher(job="toy", run="r1", rank=0, world_size=1, broker=broker.url, flush_s=0.01)
    with listening(broker.port) as subscriber:
        list(PublishedSized(range(10), publisher))
        wait_until(lambda: subscriber.n_iterations() == 10)
    assert broker._child is not None
    broker._child.send_signal(signal.SIGSTOP)
    try:
        begin_s = time.monotonic()
        assert sum(1 for _ in PublishedSized(range(200_000), publisher)) == 200_000
        loop_s = time.monotonic() - begin_s
        publisher.close()
        close_s = time.monotonic() - begin_s - loop_s
    finally:
        broker._child.send_signal(signal.SIGCONT)
    assert loop_s < 10.0  # else it would be as long as the broker hangs
    assert close_s < 10.0


async def _last_status(broker: SecureMosquitto, topic: str) -> RankStatus:
    """Return the end that a run has told, as any subscriber with its password would see it."""
    tls = aiomqtt.TLSParameters(ca_certs=broker.ca_file)
    async with (
        asyncio.timeout(10),
        aiomqtt.Client(
            "127.0.0.1", broker.port, username=broker.username, password=broker.password, tls_params=tls
        ) as client,
    ):
        await client.subscribe(topic)
        async for message in client.messages:
            assert isinstance(message.payload, bytes)
            status = decode(message.payload, RankStatus)
            if status.state != "running":
                return status
    raise AssertionError("the connection ended")


def test_the_publisher_connects_with_password_and_tls(secure_broker: SecureMosquitto) -> None:
    with Publisher(
        job="toy",
        run="r1",
        rank=0,
        world_size=1,
        broker=secure_broker.url,
        ca_file=secure_broker.ca_file,
        username=secure_broker.username,
        password=secure_broker.password,
    ) as publisher:
        wait_until(lambda: worker_of(publisher)._connections == 1)
        list(PublishedSized(range(100), publisher))
        publisher.metric(0.5)
    assert (
        asyncio.run(
            _last_status(secure_broker, Topics().rank(read_boot_id(), RunKey("node", "toy", "r1"), 0, "status"))
        ).state
        == "finished"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"password": "wrong"}, "does not accept user 'node' with this password"),
        ({"ca_file": None}, "is not trusted: self-signed certificate"),
    ],
    ids=["password", "certificate"],
)
def test_a_refused_connection_is_explained_and_the_training_goes_on(
    secure_broker: SecureMosquitto, changes: dict[str, str | None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "publishers")
    known = {"password": secure_broker.password, "ca_file": secure_broker.ca_file} | changes
    publisher = Publisher(
        job="toy",
        rank=0,
        world_size=1,
        broker=secure_broker.url,
        username=secure_broker.username,
        password=known["password"],
        ca_file=known["ca_file"],
        flush_s=0.01,
    )
    wait_until(lambda: caplog.records)
    assert len(list(PublishedSized(range(1_000), publisher))) == 1_000
    publisher.close()
    assert reason in caplog.text.lower()
    assert len(caplog.records) == 1


def test_the_connection_sends_small_messages_at_once(broker: Mosquitto) -> None:
    connection = PahoConnection(
        BrokerAddress(url=f"mqtt://127.0.0.1:{broker.port}"), Outgoing(topic="will", payload=b"", qos=1, retain=True)
    )

    def works() -> bool:
        connection.work()
        return connection.is_connected()

    wait_until(works)
    sock = connection._client.socket()
    assert isinstance(sock, socket.socket)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection.close()
