"""The orders that were sent from here, and what the nodes have answered: bounded, and forgotten at the end."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from controller.ports import Bus
from controller.runtime.clock import Clock
from controller.web.live.site_state import GpuKey, Subject
from publishers.messages.codec import DecodeError, decode, encode
from publishers.messages.reports import Order, OrderResult
from publishers.messages.topics import ParsedTopic, Topics
from publishers.shared.printable import printable
from publishers.shared.recent_dict import RecentDict

ANSWER_S: Final = 90.0
"""A node reads back within a minute; what has not been answered after this was not heard [s]."""
PAUSE_ANSWER_S: Final = 660.0
"""A training may be within an iteration for ten minutes before it pauses [s]."""
MAX_SENT: Final = 256
MAX_RESULT_BYTES: Final = 8 << 10

_LOGGER = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SentOrder:
    """An order, about which run or GPU, and what has become of it."""

    key: Subject
    order: Order
    result: OrderResult | None = None
    is_answered: asyncio.Event = field(default_factory=asyncio.Event)


class SentOrders:
    """Sends orders to the nodes of runs.

    Args:
        bus: where the nodes hear.
        topics: those below the configured root.
        clock: the time.
    """

    def __init__(self, bus: Bus, topics: Topics, clock: Clock) -> None:
        self._bus = bus
        self._topics = topics
        self._clock = clock
        self._sent: RecentDict[str, SentOrder] = RecentDict(MAX_SENT)

    def subscribe(self) -> None:
        """Subscribe to the answers."""
        for topic_filter in (self._topics.run_filter("set/result"), self._topics.gpu(None, None, "set/result")):
            self._bus.subscribe(topic_filter, self.take, qos=1, on_retained=_ignore)

    def send(self, key: Subject, order: Order, *, address: str) -> bool:
        """Send an order, once, and return whether.

        While the broker is away it is not sent: it would be too old when the broker is back.
        """
        if order.correlation in self._sent:
            return True
        if not self._bus.connected:
            return False
        self._sent[order.correlation] = SentOrder(key=key, order=order)
        topic = self._topics.gpu(*key, "set") if isinstance(key, GpuKey) else self._topics.run(key, "set")
        self._bus.publish(topic, encode(order), qos=1)
        who, why = printable(order.by), printable(order.why)
        _LOGGER.info("%s: %s, from %s, orders: %s: %s", key, who, address, order.action, why)
        return True

    def find(self, correlation: str) -> SentOrder | None:
        """Return an order; None: none of these was sent from here lately."""
        return self._sent.get(correlation)

    def is_overdue(self, sent: SentOrder) -> bool:
        """Return whether no answer is awaited any more."""
        answer_s = PAUSE_ANSWER_S if sent.order.action == "pause" else ANSWER_S
        return sent.result is None and self._clock.now_s() - sent.order.time_s > answer_s

    def take(self, topic: str, payload: bytes) -> None:
        """Take an answer, the first to each order."""
        parsed = self._topics.parse(topic)
        if parsed is None or len(payload) > MAX_RESULT_BYTES:
            return
        try:
            result = decode(payload, OrderResult)
        except DecodeError:
            return
        sent = self._sent.get(result.correlation)
        if (
            sent is None
            or sent.key != _subject_of(parsed)
            or sent.order.action != result.action
            or sent.result is not None
        ):
            return
        sent.result = result
        sent.is_answered.set()
        said = printable(result.detail)
        _LOGGER.info("%s: %s ordered by %s: %s: %s", sent.key, result.action, sent.order.by, result.state, said)


def _subject_of(topic: ParsedTopic) -> Subject | None:
    if topic.node is not None and topic.gpu_uuid is not None:
        return GpuKey(topic.node, topic.gpu_uuid)
    return topic.run


def _ignore(_topic: str, _payload: bytes) -> None:
    """An answer that a broker has kept is to an order of before."""
