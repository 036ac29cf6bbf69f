"""Somebody who listens to everything that trainings say to a real broker."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from publishers.messages.codec import decode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import Iterations, RankStatus
from publishers.shared.boot_id import read_boot_id
from tests.fakes import USER
from tests.live.conftest import TIMEOUT_S


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
        self.wait_subscribed()

    def _note(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        self.seen.append((message.topic, bytes(message.payload), message.retain))

    def wait_subscribed(self) -> None:
        """Wait until it is; after `expect_loss`: until it is again."""
        assert self._subscribed.wait(TIMEOUT_S)

    def expect_loss(self) -> None:
        """The broker is about to go."""
        self._subscribed.clear()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def iterations(self, run: str = "r1") -> list[Iterations]:
        topic = Topics(self._root).rank(read_boot_id(), RunKey(USER, "toy", run), 0, "iterations")
        return [decode(payload, Iterations) for seen, payload, _ in self.seen if seen == topic]

    def statuses(self, run: str = "r1") -> list[RankStatus]:
        topic = Topics(self._root).rank(read_boot_id(), RunKey(USER, "toy", run), 0, "status")
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
