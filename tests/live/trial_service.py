"""A policy service on a real broker that answers as a test says, and the publishers that ask it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from gridchase import Publisher
from publishers.messages.codec import decode, encode
from publishers.messages.reports import Command
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import RankStatus, TrialAnswer, TrialRequest
from publishers.training.paho_client import _set_no_delay
from tests.fakes import USER
from tests.live.conftest import TIMEOUT_S

SIZES = [8, 16, 32, 64]
Answers = Callable[[TrialRequest], Iterable[bytes]]


def answer(request: TrialRequest, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "run": request.run,
        "correlation": request.correlation,
        "batch_size": 16,
        "reason": "explored",
        "detail": "little is known of 16",
        "recurrence": 1,
        "lease_s": 600.0,
    }
    return encode(TrialAnswer(**{**fields, **changes}))  # type: ignore[arg-type]  # by name


class Service:
    """A policy service that answers at once, and remembers what runs say."""

    def __init__(self, port: int, answers: Answers) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._answers = answers
        self._subscribed = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2)
        self._client.reconnect_delay_set(min_delay=1, max_delay=1)
        self._client.on_socket_open = _set_no_delay
        self._client.on_connect = lambda client, *_: client.subscribe("gridchase/v1/#", qos=1) and None
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._hear
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._subscribed.wait(TIMEOUT_S)

    def _hear(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        payload = bytes(message.payload)
        self.heard.append((message.topic, payload))
        if message.topic.endswith("/trial/request"):
            request = decode(payload, TrialRequest)
            for said in self._answers(request):
                self._client.publish(request.reply_to, said, qos=1)

    def stop(self, run: str = "r1") -> None:
        """Tell a run to stop."""
        command = Command(command="stop", reason="it costs more than 5e5 J")
        self._client.publish(Topics().run(RunKey(USER, "toy", run), "command"), encode(command), qos=1)

    def payloads(self, leaf: str) -> list[bytes]:
        return [payload for topic, payload in self.heard if topic.endswith(leaf)]

    def statuses(self) -> list[RankStatus]:
        return [decode(payload, RankStatus) for payload in self.payloads("/rank/0/status")]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def serving(port: int, answers: Answers = lambda request: [answer(request)]) -> Iterator[Service]:
    service = Service(port, answers)
    try:
        yield service
    finally:
        service.close()


def publisher_at(url: str, **changes: object) -> Publisher:
    arguments: dict[str, object] = {"job": "toy", "run": "r1", "rank": 0, "world_size": 1, "broker": url}
    return Publisher(**{**arguments, **changes})  # type: ignore[arg-type]  # by name
