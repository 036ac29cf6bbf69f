"""Training processes that publish to a real mosquitto: what arrives, and what happens when either of them is killed."""

import asyncio
import itertools
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiomqtt
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from publishers import Publisher
from publishers.connection import PahoConnection, Will
from publishers.environment import Broker
from publishers.iterations import PublishedIterable, PublishedSized
from publishers.topics import Topics
from publishers.wire import Iterations, Metric, RankStatus, decode
from tests.live.conftest import Mosquitto, SecureMosquitto, wait_until

pytestmark = pytest.mark.live

ENDLESS = """
import sys, time
from publishers import publish_iterations
def batches():
    while True:
        time.sleep(0.001)
        yield None
for _ in publish_iterations(batches(), job="toy", run="r1", broker=sys.argv[1], flush_s=0.02):
    pass
"""
SHORT = """
import sys
from publishers import publish_iterations
for epoch in range(3):
    for _ in publish_iterations(range(1000), job="toy", run="r1", broker=sys.argv[1]):
        pass
"""
FAILING = SHORT + "\nraise SystemError('the training is broken')\n"
FORKING = """
import os, sys, time
from publishers import publish_iterations
batches = publish_iterations(range(10**9), job="toy", run="r1", broker=sys.argv[1], flush_s=0.02)
for k, _ in enumerate(batches):
    time.sleep(0.001)
    if k == 300 and os.fork() == 0:
        assert batches.publisher.closed
        own = publish_iterations(range(3), job="toy", run="child", broker=sys.argv[1], flush_s=0.02)
        assert list(own) == [0, 1, 2]
        own.finish()
        time.sleep(60)
        os._exit(0)
"""


class Subscriber:
    """Somebody who listens to everything."""

    def __init__(self, port: int, root: str = "gridchase/v1") -> None:
        self.seen: list[tuple[str, bytes, bool]] = []
        self._subscribed = threading.Event()
        self._root = root
        self._client = Client(CallbackAPIVersion.VERSION2)
        self._client.reconnect_delay_set(min_delay=1, max_delay=1)
        self._client.on_connect = lambda client, *_: client.subscribe(f"{root}/#", qos=1) and None
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._note
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._subscribed.wait(5.0)

    def _note(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        self.seen.append((message.topic, bytes(message.payload), message.retain))

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def iterations(self, run: str = "r1") -> list[Iterations]:
        topic = Topics(self._root).rank("toy", run, 0, "iterations")
        return [decode(payload, Iterations) for seen, payload, _ in self.seen if seen == topic]

    def statuses(self, run: str = "r1") -> list[RankStatus]:
        topic = Topics(self._root).rank("toy", run, 0, "status")
        return [decode(payload, RankStatus) for seen, payload, _ in self.seen if seen == topic]

    def n_iterations(self) -> int:
        return sum(len(message.ends_ns()) for message in self.iterations())


@contextmanager
def listening(port: int) -> Iterator[Subscriber]:
    subscriber = Subscriber(port)
    try:
        yield subscriber
    finally:
        subscriber.close()


@contextmanager
def training(script: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a training script in a process of its own."""
    child = subprocess.Popen([sys.executable, "-c", script, url], stderr=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate(timeout=10.0)


def assert_complete(messages: list[Iterations], n_iterations: int) -> None:
    """Check that every iteration arrived once, in order, in messages without a gap."""
    assert [message.seq for message in messages] == list(range(len(messages)))
    numbers = [message.first + k for message in messages for k in range(len(message.ends_ns()))]
    assert numbers == list(range(n_iterations))
    assert {message.dropped for message in messages} == {0}
    for before, after in itertools.pairwise(messages):
        assert after.begin_ns >= before.ends_ns()[-1]


def test_every_iteration_arrives_exactly_once_and_the_end_is_said_at_exit(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(SHORT, broker.url) as child:
        _, stderr = child.communicate(timeout=20.0)
        wait_until(lambda: subscriber.statuses() and subscriber.statuses()[-1].state == "finished")
        assert (child.returncode, stderr) == (0, "")
        assert [status.state for status in subscriber.statuses()] == ["running", "finished"]
        assert subscriber.statuses()[-1].pid == child.pid
        assert_complete(subscriber.iterations(), 3_000)
        assert {message.epoch for message in subscriber.iterations()} == {0, 1, 2}


def test_the_status_is_retained_for_those_who_come_later(broker: Mosquitto) -> None:
    with training(SHORT, broker.url) as child:
        child.communicate(timeout=20.0)
    with listening(broker.port) as late:
        wait_until(late.statuses)
        assert [(status.state, status.reached) for status in late.statuses()] == [("finished", None)]
        assert late.seen[0][2], "it came as a retained message"
        assert late.iterations() == []


def test_a_training_that_fails_says_that_it_has_ended_and_prints_only_its_own_fault(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(FAILING, broker.url) as child:
        _, stderr = child.communicate(timeout=20.0)
        wait_until(lambda: subscriber.statuses() and subscriber.statuses()[-1].state == "finished")
        assert child.returncode == 1
        assert stderr.splitlines()[-1] == "SystemError: the training is broken"
        assert "gridchase" not in stderr
        assert subscriber.statuses()[-1].reached is None


def test_the_last_will_says_lost_when_the_training_is_killed(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(ENDLESS, broker.url) as child:
        wait_until(lambda: subscriber.n_iterations() > 50)
        child.kill()
        wait_until(lambda: subscriber.statuses()[-1].state == "lost", timeout_s=5.0)
        assert subscriber.statuses()[-1].pid == child.pid


def test_sigterm_ends_the_training_as_ever_because_no_handler_is_installed(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(ENDLESS, broker.url) as child:
        wait_until(lambda: subscriber.n_iterations() > 50)
        child.terminate()
        child.wait(10.0)
        assert child.returncode == -signal.SIGTERM
        wait_until(lambda: subscriber.statuses()[-1].state == "lost", timeout_s=5.0)


def test_the_will_comes_though_a_forked_worker_lives_on_and_the_worker_may_publish_itself(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(FORKING, broker.url) as child:
        wait_until(lambda: subscriber.statuses("child") and subscriber.statuses("child")[-1].state == "finished")
        worker_pid = subscriber.statuses("child")[-1].pid
        wait_until(lambda: subscriber.n_iterations() > 400)
        assert worker_pid != child.pid
        assert {status.pid for status in subscriber.statuses()} == {child.pid}
        child.send_signal(signal.SIGKILL)
        try:
            wait_until(lambda: subscriber.statuses()[-1].state == "lost", timeout_s=5.0)
        finally:
            os.kill(worker_pid, signal.SIGKILL)


def test_a_broker_that_is_killed_and_comes_back_costs_the_training_nothing_but_counted_iterations(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("publishers.connection.FIRST_DELAY_S", 3.0)  # the subscriber is back before, after 1 s
    with listening(broker.port) as subscriber:
        publisher = Publisher(job="toy", run="r1", rank=0, world_size=1, broker=broker.url, flush_s=0.01)
        list(PublishedSized(range(1_000), publisher))
        wait_until(lambda: subscriber.n_iterations() == 1_000)
        broker.kill()
        wait_until(lambda: "no broker" in caplog.text)
        assert sum(1 for _ in PublishedSized(range(100_000), publisher)) == 100_000
        broker.start()
        wait_until(lambda: _last_number(subscriber) == 100_999)
        list(PublishedSized(range(1_000), publisher))
        publisher.close()
        wait_until(lambda: _last_number(subscriber) == 101_999)
        messages = subscriber.iterations()
        assert subscriber.n_iterations() + messages[-1].dropped == 102_000
        assert messages[-1].dropped > 30_000
        assert [message.seq for message in messages] == list(range(len(messages)))
        assert [status.state for status in subscriber.statuses()][-2:] == ["running", "finished"]
    assert len(caplog.records) == 1


def test_iterations_that_go_on_while_the_broker_is_killed_leave_only_visible_gaps(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.connection.FIRST_DELAY_S", 3.0)
    with listening(broker.port) as subscriber:
        publisher = Publisher(job="toy", run="r1", rank=0, world_size=1, broker=broker.url, flush_s=0.01)
        pause, batch = threading.Event(), 0
        for batch in PublishedIterable(itertools.count(), publisher):
            pause.wait(0.001)
            if batch == 500:
                broker.kill()
                broker.start()
            if batch % 100 == 99 and max((m.first for m in subscriber.iterations()), default=0) > 1_000:
                break
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


def test_a_broker_that_hangs_blocks_neither_the_training_nor_its_end(broker: Mosquitto) -> None:
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
    assert loop_s < 2.0
    assert close_s < 2.5


async def _first_message(broker: SecureMosquitto, topic: str) -> bytes:
    """Return what the broker has kept under a topic, as any subscriber with its password would see it."""
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
            return message.payload
    raise AssertionError("the connection ended")


def test_password_and_tls_let_the_publisher_in(secure_broker: SecureMosquitto) -> None:
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
        list(PublishedSized(range(100), publisher))
        publisher.metric(0.5)
    assert publisher._sender is not None
    assert publisher._sender._connections == 1
    kept = asyncio.run(_first_message(secure_broker, "gridchase/v1/job/toy/#"))
    assert decode(kept, RankStatus).state == "finished"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"password": "wrong"}, "the broker refuses: not authorized"), ({"ca_file": None}, "certificate verify failed")],
    ids=["password", "certificate"],
)
def test_who_is_not_let_in_is_told_why_and_trains_on(
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


def test_a_metric_arrives(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber:
        with Publisher(job="toy", run="r1", rank=0, world_size=1, broker=broker.url) as publisher:
            publisher.metric(0.76, reached=True)
        topic = Topics().run("toy", "r1", "metric")
        wait_until(lambda: any(seen == topic for seen, _, _ in subscriber.seen))
        payload = next(payload for seen, payload, _ in subscriber.seen if seen == topic)
        assert decode(payload, Metric) == Metric(run="r1", epoch=0, value=0.76, reached=True)


def test_the_connection_sends_small_messages_at_once(broker: Mosquitto) -> None:
    connection = PahoConnection(Broker(host="127.0.0.1", port=broker.port), Will(topic="will", payload=b""))
    connection.work()
    assert connection.is_connected()
    sock = connection._client.socket()
    assert isinstance(sock, socket.socket)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection.close()


def test_a_process_with_more_than_1024_open_files_publishes_all_the_same(broker: Mosquitto) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    with listening(broker.port) as subscriber, ExitStack() as files:
        for _ in range(1_100):
            files.enter_context(Path("/dev/null").open())
        with Publisher(job="toy", run="r1", rank=0, world_size=1, broker=broker.url) as publisher:
            list(PublishedSized(range(100), publisher))
        wait_until(lambda: subscriber.n_iterations() == 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
