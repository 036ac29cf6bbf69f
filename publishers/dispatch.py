"""From the bus to the handlers: each message goes to every subscription that it matches, and to no other.

Brokers differ: amqtt also delivers retained messages that nobody asked for, and two of four deliver a message once for
each overlapping subscription. So the filters are matched again here, and handlers must bear a message twice.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiomqtt import Wildcard
from paho.mqtt.client import topic_matches_sub

Handler = Callable[[str, bytes], None]
MAX_PAYLOAD_BYTES: Final = 1 << 20
_COMPLAINT_PERIOD_S: Final = 60.0
_MAX_ROUTES: Final = 4_096
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic filter, and who wants its messages; retained ones go to `on_retained` where that is not None."""

    topic_filter: str
    handler: Handler
    on_retained: Handler | None
    qos: int

    def handler_of(self, *, retained: bool) -> Handler:
        """Return who wants a message."""
        return self.on_retained if retained and self.on_retained is not None else self.handler


class Dispatcher:
    """The subscriptions, in the order in which they were made.

    Attributes:
        handler_errors: exceptions that handlers have raised so far.
        oversized: messages of more than 1 MiB that were dropped so far.
    """

    def __init__(self) -> None:
        self.handler_errors = 0
        self.oversized = 0
        self._subscriptions: list[Subscription] = []
        # A topic's subscriptions: matching costs microseconds, and the same topics come again and again.
        self._routes: dict[str, tuple[Subscription, ...]] = {}
        self._complained_s: dict[str, float] = {}

    def __len__(self) -> int:
        """Return how many subscriptions there are."""
        return len(self._subscriptions)

    def add(self, topic_filter: str, handler: Handler, *, qos: int, on_retained: Handler | None = None) -> None:
        """Add a subscription."""
        Wildcard(topic_filter)  # raises ValueError where MQTT forbids it
        self._subscriptions.append(
            Subscription(topic_filter=topic_filter, handler=handler, on_retained=on_retained, qos=qos)
        )
        self._routes.clear()

    def filters(self, *, since: int = 0) -> dict[str, int]:
        """Return the QoS to ask for with each topic filter that was added from number `since` on."""
        qos: dict[str, int] = {}
        for subscription in self._subscriptions:
            qos[subscription.topic_filter] = max(subscription.qos, qos.get(subscription.topic_filter, 0))
        return {added.topic_filter: qos[added.topic_filter] for added in self._subscriptions[since:]}

    def deliver(self, topic: str, payload: bytes, retained: bool = False) -> None:
        """Hand a message to the handlers that want it; what they raise is counted and logged, and ends nothing."""
        for subscription in self._route(topic):
            if len(payload) > MAX_PAYLOAD_BYTES:
                self.oversized += 1
                if self._may_complain(subscription):
                    _LOGGER.warning("dropped a message of %d bytes on %s: too long", len(payload), topic)
                continue
            try:
                subscription.handler_of(retained=retained)(topic, payload)
            except Exception:  # a handler's bug on one message must not cut everybody off the bus
                self.handler_errors += 1
                if self._may_complain(subscription):
                    _LOGGER.exception("the handler of %s failed on %s", subscription.topic_filter, topic)

    def _route(self, topic: str) -> tuple[Subscription, ...]:
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            route = tuple(wanted for wanted in self._subscriptions if topic_matches_sub(wanted.topic_filter, topic))
            self._routes[topic] = route
        return route

    def _may_complain(self, subscription: Subscription) -> bool:
        """Return whether a filter's last complaint is a minute old."""
        now_s, last_s = time.monotonic(), self._complained_s.get(subscription.topic_filter)
        if last_s is not None and now_s - last_s < _COMPLAINT_PERIOD_S:
            return False
        self._complained_s[subscription.topic_filter] = now_s
        return True
