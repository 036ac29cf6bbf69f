"""What a real broker has heard of trainings: one record for each rank of each run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from publishers.messages.codec import decode
from publishers.messages.topics import Topics
from publishers.messages.training import Iterations, RankStatus

_TIMEOUT_S: Final = 10.0


@dataclass(slots=True)
class Record:
    """What one rank of one run has published."""

    job: str
    run: str
    rank: int
    statuses: list[RankStatus] = field(default_factory=list)
    messages: list[Iterations] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Return whether it has said how it ended, or the broker has said so."""
        return bool(self.statuses) and self.statuses[-1].state != "running"

    @property
    def states(self) -> list[str]:
        """Return its states, each once in a row."""
        states = [status.state for status in self.statuses]
        return [state for k, state in enumerate(states) if k == 0 or state != states[k - 1]]

    @property
    def n_iterations(self) -> int:
        """Return how many iterations it has published: every one once, in order."""
        assert [message.seq for message in self.messages] == list(range(len(self.messages)))
        numbers = [message.first + k for message in self.messages for k in range(len(message.ends_ns()))]
        assert numbers == list(range(len(numbers)))
        assert {message.dropped for message in self.messages} <= {0}
        for before, after in pairwise(self.messages):
            assert after.begin_ns >= before.ends_ns()[-1]
        return len(numbers)

    @property
    def counted_by(self) -> set[str]:
        """Return how they were counted."""
        return {message.counted_by for message in self.messages}

    @property
    def epochs(self) -> dict[int, int]:
        """Return how many iterations each epoch had."""
        epochs: dict[int, int] = {}
        for message in self.messages:
            epochs[message.epoch] = epochs.get(message.epoch, 0) + len(message.ends_ns())
        return epochs


class Bus:
    """Everything that trainings say to a broker."""

    def __init__(self, port: int) -> None:
        self._topics = Topics()
        self._records: dict[tuple[str, str, int], Record] = {}
        self._heard = threading.Condition()
        self._subscribed = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2)
        self._client.on_connect = lambda client, *_: client.subscribe(f"{self._topics.root}/#", qos=1) and None
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._note
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._subscribed.wait(_TIMEOUT_S)

    def close(self) -> None:
        """Leave the broker."""
        self._client.disconnect()
        self._client.loop_stop()

    @property
    def heard(self) -> int:
        """Return of how many ranks of runs something was heard."""
        return len(self._records)

    def records(self, n: int) -> list[Record]:
        """Wait until `n` records have ended; return all there are, by run in the order of their begin, and rank."""
        with self._heard:
            self._heard.wait_for(lambda: sum(record.has_ended for record in self._records.values()) >= n, _TIMEOUT_S)
            return sorted(self._records.values(), key=lambda record: (self._begin_s(record.run), record.rank))

    def _begin_s(self, run: str) -> float:
        begins = [r.statuses[0].started_at_s for r in self._records.values() if r.run == run and r.statuses]
        return min(begins, default=0.0)

    def _note(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        topic = self._topics.parse(message.topic)
        if topic is None or topic.run is None or topic.rank is None:
            return
        with self._heard:
            key = (topic.run.job, topic.run.run, topic.rank)
            record = self._records.setdefault(key, Record(*key))
            if topic.leaf == "status":
                record.statuses.append(decode(bytes(message.payload), RankStatus))
            else:
                record.messages.append(decode(bytes(message.payload), Iterations))
            self._heard.notify_all()


@contextmanager
def listening(port: int) -> Iterator[Bus]:
    """Listen to a broker."""
    bus = Bus(port)
    try:
        yield bus
    finally:
        bus.close()
