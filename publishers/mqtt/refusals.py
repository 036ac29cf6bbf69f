"""What a broker refuses: a message that it does not take costs that message alone, and is named once.

Some limits are stated (`BrokerLimits`). Otherwise MQTT 3.1.1 knows one refusal: the broker closes the connection. Then
each message that was sent and not acknowledged is suspect, and the next of its topic is sent alone, with QoS 1. One
that is acknowledged is cleared; one that ends two connections in a row is refused, and others of its topic that are as
long are dropped for an hour.
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_limits import BrokerLimits
from publishers.shared.log_once import LogLimiter
from publishers.shared.recent_dict import RecentDict

REFUSED_FOR_S: Final = 3_600.0
"""After that a message of the topic is tried again: somebody may have corrected the broker."""
_MAX_CLOSES: Final = 2
_MAX_UNPROVEN: Final = 128
"""The messages that are remembered; more than are ever sent without an acknowledgement at QoS 1."""
_MAX_TOPICS: Final = 1_024
_LOGGER = logging.getLogger(__name__)


class Refusals:
    """What one broker refuses; a client asks before it sends, and tells what became of each message.

    Args:
        clock_s: any clock that never goes back [s].

    Attributes:
        limits: what the broker has stated so far.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.limits = BrokerLimits()
        self._clock_s = clock_s
        self._limiter = LogLimiter(clock_s, period_s=REFUSED_FOR_S)
        self._n_sent = 0
        self._unproven: RecentDict[int, Outgoing] = RecentDict(_MAX_UNPROVEN)
        self._closes: RecentDict[str, int] = RecentDict(_MAX_TOPICS)  # of suspect topics
        self._refused: RecentDict[str, tuple[int, float]] = RecentDict(_MAX_TOPICS)  # from what length, until when

    def set_limits(self, limits: BrokerLimits) -> None:
        """Use the limits that the broker states, and log those that cost something."""
        for fault in limits.faults:
            if fault not in self.limits.faults:
                _LOGGER.warning("%s", fault)
        self.limits = limits

    def admit(self, message: Outgoing) -> Outgoing | None:
        """Return a message as it may be sent; None: it is dropped, because the broker does not take it."""
        fitted = self.limits.fit(message)
        if excess := self.limits.excess(fitted):
            if self._limiter.allows(message.topic):
                _LOGGER.warning("%s: message dropped: %s", message.topic, excess)
        elif not self._is_refused(fitted):
            if self.is_suspect(message.topic) and self.limits.max_qos:
                return msgspec.structs.replace(fitted, qos=1)  # so that its fate is known
            return fitted
        return None

    def is_suspect(self, topic: str) -> bool:
        """Return whether the next message of a topic must be sent alone."""
        return topic in self._closes

    def on_sent(self, message: Outgoing) -> int:
        """Remember a message that is sent now; return its number."""
        self._n_sent += 1
        self._unproven[self._n_sent] = message
        return self._n_sent

    def on_acknowledged(self, number: int) -> None:
        """Clear a message, and what was sent before it at QoS 0: brokers take messages in their order."""
        proven = [n for n, each in self._unproven.items() if n == number or (n < number and not each.qos)]
        for each in proven:
            self._closes.pop(self._unproven.pop(each).topic, None)

    def on_connection_lost(self, *, by_broker: bool) -> None:
        """Find out who may have ended the connection; a network that fell silent says nothing about messages."""
        messages = list(self._unproven.values())
        self._unproven.clear()
        if not by_broker or not messages:
            return
        first = messages[0]
        if first.qos and (len(messages) == 1 or self.is_suspect(first.topic)):
            self._blame(first)
        else:
            for message in messages:
                self._closes.setdefault(message.topic, 0)

    def _blame(self, message: Outgoing) -> None:
        """Count a connection that ended while this message alone was on its way."""
        n_closes = self._closes.get(message.topic, 0) + 1
        self._closes[message.topic] = min(n_closes, _MAX_CLOSES - 1)
        if n_closes < _MAX_CLOSES:
            return
        self._refused[message.topic] = len(message.payload), self._clock_s() + REFUSED_FOR_S
        if self._limiter.allows(message.topic):
            _LOGGER.warning(
                "%s: message of %d bytes%s dropped: the broker closes the connection when it is published: check its "
                "log, its limits and its access rules",
                message.topic,
                len(message.payload),
                " (retained)" if message.retain else "",
            )

    def _is_refused(self, message: Outgoing) -> bool:
        n_bytes, until_s = self._refused.get(message.topic, (0, 0.0))
        return self._clock_s() < until_s and len(message.payload) >= n_bytes
