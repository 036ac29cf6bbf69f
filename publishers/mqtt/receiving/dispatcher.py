"""Which handlers get a message: those whose topic filters match.

Brokers differ: amqtt also delivers retained messages without a subscription, and two of four deliver a message once for
each overlapping subscription. So the topic filters are matched again here, and handlers must tolerate duplicates.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import aiomqtt
from paho.mqtt.client import topic_matches_sub

from publishers.messages.codec import MAX_MESSAGE_BYTES
from publishers.messages.topics import MAX_TOPIC_LENGTH
from publishers.shared.log_once import LogLimiter

Handler = Callable[[str, bytes], None]
_MAX_CACHED_TOPICS: Final = 4_096
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic filter and its handler; retained messages go to `on_retained` where that is not None."""

    topic_filter: str
    handler: Handler
    on_retained: Handler | None
    qos: int


class Dispatcher:
    """Calls the handlers of the subscriptions that match a message, in the order of subscribing.

    Attributes:
        handler_errors: exceptions that handlers have raised so far.
        oversized: messages of more than 1 MiB that were dropped so far.
    """

    def __init__(self) -> None:
        self.handler_errors = 0
        self.oversized = 0
        self._subscriptions: list[Subscription] = []
        # By topic: matching costs microseconds, and the same topics come again and again.
        self._matches: dict[str, tuple[Subscription, ...]] = {}
        self._changed: dict[str, None] = {}
        self._limiter = LogLimiter(time.monotonic)

    def add(self, topic_filter: str, handler: Handler, *, qos: int, on_retained: Handler | None = None) -> None:
        """Add a subscription.

        Raises:
            ValueError: MQTT forbids this topic filter.
        """
        aiomqtt.Wildcard(topic_filter)
        self._subscriptions.append(
            Subscription(topic_filter=topic_filter, handler=handler, on_retained=on_retained, qos=qos)
        )
        self._changed[topic_filter] = None
        self._matches.clear()

    def remove(self, topic_filter: str, handler: Handler) -> None:
        """Remove one subscription; nothing happens where there is none."""
        for number, subscription in enumerate(self._subscriptions):
            if subscription.topic_filter == topic_filter and subscription.handler == handler:
                del self._subscriptions[number]
                self._changed[topic_filter] = None
                self._matches.clear()
                return

    def filters(self) -> dict[str, int]:
        """Return the topic filters, each with the QoS to ask for."""
        qos: dict[str, int] = {}
        for subscription in self._subscriptions:
            qos[subscription.topic_filter] = max(subscription.qos, qos.get(subscription.topic_filter, 0))
        return qos

    def renew(self, topic_filters: Iterable[str]) -> None:
        """Let topic filters be asked for once more."""
        self._changed.update(dict.fromkeys(topic_filters))

    def take_changes(self) -> list[str]:
        """Return the topic filters with a subscription added, removed or renewed since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed

    def dispatch(self, topic: str, payload: bytes, retained: bool = False) -> None:
        """Pass a message to every matching handler; count and log what a handler raises."""
        for subscription in self._matching(topic):
            if len(payload) > MAX_MESSAGE_BYTES:
                self.oversized += 1
                if self._limiter.allows(subscription.topic_filter):
                    _LOGGER.warning("dropped a message of %d bytes on %s: too long", len(payload), topic)
                continue
            handler = subscription.on_retained if retained else None
            try:
                (handler or subscription.handler)(topic, payload)
            except Exception:  # a handler's bug on one message must not end the connection
                self.handler_errors += 1
                if self._limiter.allows(subscription.topic_filter):
                    _LOGGER.exception("the handler of %s failed on %s", subscription.topic_filter, topic)

    def _matching(self, topic: str) -> tuple[Subscription, ...]:
        matching = self._matches.get(topic)
        if matching is None:
            matching = tuple(item for item in self._subscriptions if topic_matches_sub(item.topic_filter, topic))
            if len(self._matches) >= _MAX_CACHED_TOPICS:
                self._matches.clear()
            if len(topic) <= MAX_TOPIC_LENGTH:  # a topic may have 64 KiB
                self._matches[topic] = matching
        return matching
