"""A publisher on a fake connection, which can be down, lose messages, refuse to acknowledge; and a policy service."""

import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gridchase import Publisher
from publishers.messages.codec import Outgoing, decode, encode
from publishers.messages.reports import Command, Notice, RunEnergy
from publishers.messages.training import (
    Iterations,
    Metric,
    RankStatus,
    TrialAnswer,
    TrialFailure,
    TrialRequest,
    TrialTimes,
)
from publishers.mqtt.broker_address import BrokerAddress
from publishers.training.publish_iterations import publisher_of
from publishers.training.worker import PublisherWorker

TIMEOUT_S = 60.0
TICK_NS = 1_000


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail where it does not in time."""
    pause, deadline_s = threading.Event(), time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the condition did not hold in time")
        pause.wait(0.001)


@dataclass
class FakeReceipt:
    """The fate of a message."""

    done: bool = True
    lost: bool = False
    refused: bool = False


@dataclass
class FakeConnection:
    """A broker that is there while `up`; `lossy`, `refusing`: what has no acknowledgement is lost, or refused.

    What is published at `refused_topics` is refused until it is allowed.

    `answers` is the policy service: what it makes of a question is heard where that is subscribed to.
    """

    up: bool = True
    lossy: bool = False
    refusing: bool = False
    acknowledges: bool = True
    answers: "Callable[[TrialRequest], Iterable[TrialAnswer | bytes]]" = lambda _: ()
    connections: int = 0
    failures: int = 0
    n_retries: int = 0
    failure: str | None = None
    closed: bool = False
    will: Outgoing | None = None
    sent: list[tuple[str, bytes, int, bool]] = field(default_factory=list)
    refused_topics: set[str] = field(default_factory=set)
    subscriptions: dict[str, Callable[[bytes], None]] = field(default_factory=dict)
    _inbox: deque[tuple[str, bytes]] = field(default_factory=deque)
    _is_in: bool = False

    def connect(self, broker: BrokerAddress, will: Outgoing) -> "FakeConnection":
        """Be the factory of the sender's connection, too."""
        assert broker.port
        self.will = will
        return self

    def is_connected(self) -> bool:
        return self._is_in

    def is_subscribed(self) -> bool:
        return self.acknowledges

    def work(self, timeout_s: float = 0.0) -> None:
        assert timeout_s >= 0
        if timeout_s and not self._inbox:
            threading.Event().wait(min(timeout_s, 0.001))
        if self.up and not self._is_in:
            self.connections += 1
        if not self.up:
            self.failures += 1
        self._is_in = self.up
        self.failure = None if self.up else "refused"
        while self._is_in and self._inbox:
            topic, payload = self._inbox.popleft()
            if topic in self.subscriptions:
                self.subscriptions[topic](payload)

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> FakeReceipt:
        assert self._is_in, "nothing may be handed over while the broker is away"
        if topic in self.refused_topics:
            return FakeReceipt(refused=True)
        self.sent.append((topic, payload, qos, retain))
        if topic.endswith("/trial/request"):
            request = decode(payload, TrialRequest)
            assert request.reply_to in self.subscriptions, "the answer would not be heard"
            for answer in self.answers(request):
                self._inbox.append((request.reply_to, answer if isinstance(answer, bytes) else encode(answer)))
        if qos == 0:
            return FakeReceipt(lost=self.lossy, refused=self.refusing)
        return FakeReceipt(done=self.acknowledges)

    def allow(self, topic: str) -> None:
        self.refused_topics.discard(topic)

    def subscribe(self, topic: str, hear: Callable[[bytes], None]) -> None:
        assert topic not in self.subscriptions
        self.subscriptions[topic] = hear

    def retry_now(self) -> None:
        self.n_retries += 1

    def close(self) -> None:
        self.closed = True

    def command(self, command: Command | bytes) -> None:
        """Let the policy service say something to the run."""
        payload = command if isinstance(command, bytes) else encode(command)
        self._inbox.append(("gridchase/v1/user/alice/job/toy/run/r1/command", payload))

    def notice(self, notice: Notice | bytes) -> None:
        """Let a controller say something to the run."""
        payload = notice if isinstance(notice, bytes) else encode(notice)
        self._inbox.append(("gridchase/v1/user/alice/job/toy/run/r1/notice", payload))

    def energy(self, record: RunEnergy | bytes) -> None:
        """Let a controller say what the run has used."""
        payload = record if isinstance(record, bytes) else encode(record)
        self._inbox.append(("gridchase/v1/user/alice/job/toy/run/r1/energy", payload))

    def hear(self, topic: str, payload: bytes) -> None:
        """Let somebody say something at a topic."""
        self._inbox.append((topic, payload))

    def requests(self) -> list[TrialRequest]:
        """Return the questions for a batch size."""
        return [decode(payload, TrialRequest) for topic, payload, _, _ in self.sent if topic.endswith("/request")]

    def trial_failures(self) -> list[TrialFailure]:
        """Return the failures."""
        return [decode(payload, TrialFailure) for topic, payload, _, _ in self.sent if topic.endswith("/failure")]

    def times(self) -> list[TrialTimes]:
        """Return what was timed."""
        return [decode(payload, TrialTimes) for topic, payload, _, _ in self.sent if topic.endswith("/times")]

    def messages(self) -> list[Iterations]:
        """Return the messages of iterations."""
        return [decode(payload, Iterations) for topic, payload, _, _ in self.sent if topic.endswith("/iterations")]

    def statuses(self) -> list[RankStatus]:
        """Return the statuses."""
        return [decode(payload, RankStatus) for topic, payload, _, _ in self.sent if topic.endswith("/status")]

    def metrics(self) -> list[Metric]:
        """Return the metrics."""
        return [decode(payload, Metric) for topic, payload, _, _ in self.sent if topic.endswith("/metric")]

    def n_iterations(self) -> int:
        """Return how many iterations arrived."""
        return sum(len(message.ends_ns()) for message in self.messages())


def ticking(first_ns: int = 0) -> Callable[[], int]:
    """Return a clock that ticks once a reading."""
    return itertools.count(first_ns, TICK_NS).__next__


def publisher_on(connection: FakeConnection, **changes: object) -> Publisher:
    """Return a publisher on a fake connection."""
    arguments: dict[str, object] = {
        "job": "toy",
        "run": "r1",
        "rank": 0,
        "world_size": 1,
        "clock_ns": ticking(-TICK_NS),  # it is tried once before the training reads it
        "flush_s": 0.001,
    }
    return Publisher(**{**arguments, **changes}, connect=connection.connect)  # type: ignore[arg-type]  # by name


def worker_of(publisher: Publisher) -> PublisherWorker:
    """Return the worker of a publisher that is on."""
    worker = publisher._worker
    assert isinstance(worker, PublisherWorker)
    return worker


def lengths(messages: list[Iterations]) -> list[int]:
    """Return the number of iterations in each message."""
    return [len(message.ends_ns()) for message in messages]


def epochs(connection: FakeConnection) -> dict[int, int]:
    """Return the number of iterations that arrived in each epoch."""
    counts: dict[int, int] = {}
    for message in connection.messages():
        counts[message.epoch] = counts.get(message.epoch, 0) + len(message.ends_ns())
    return counts


def unused_broker() -> str:
    """Return the URL of a broker that is not there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"mqtt://127.0.0.1:{probe.getsockname()[1]}"


SIZES = [8, 16, 32, 64]


def answer(request: TrialRequest, **changes: object) -> TrialAnswer:
    """Return what a policy service would say."""
    fields: dict[str, object] = {
        "run": request.run,
        "correlation": request.correlation,
        "batch_size": 16,
        "reason": "explored",
        "detail": "little is known of 16",
        "recurrence": 3,
        "cost_bound": 5e5,
        "lease_s": 600.0,
    }
    return TrialAnswer(**{**fields, **changes})  # type: ignore[arg-type]  # by name


def answering(**changes: object) -> FakeConnection:
    """Return a connection to a policy service that always gives this answer."""
    return FakeConnection(answers=lambda request: [answer(request, **changes)])


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch's."""


class Failing:
    """What a tensor becomes when its device has failed: nothing can be read from it, not even a text."""

    def __bool__(self) -> bool:
        raise RuntimeError("device-side assert")

    __float__ = __index__ = __bool__
    __iter__ = __repr__ = __bool__  # type: ignore[assignment]


def aimed(connection: FakeConnection, target: float, mode: str = "max") -> Publisher:
    """Return a publisher with a target, whose batch size a policy service has chosen."""
    publisher = publisher_on(connection)
    publisher.batch_size(SIZES, default=32, target=target, target_mode=mode)  # type: ignore[arg-type]
    return publisher


def passes(loader: Iterable[int], *, left_after: int | None = None) -> None:
    """Go through a loader, or leave it after some batches, each trained."""
    for n, _ in enumerate(loader, 1):
        if n == left_after:
            publisher_of(loader).pause()
            break


def totals(connection: FakeConnection) -> list[int | None]:
    """Return what was published."""
    return [status.total_iterations for status in connection.statuses()]


def told(publisher: Publisher) -> int | None:
    """Return what is said now."""
    return publisher.progress.total_iterations
