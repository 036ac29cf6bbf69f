"""What a broker refuses: a message that it does not take costs that message alone, and is named once.

Some limits are stated (`BrokerLimits`). Otherwise MQTT 3.1.1 knows one refusal: the broker closes the connection. Then
each message that was sent and not acknowledged is suspect, and the next of its topic is sent alone, with QoS 1, to a
broker that has answered something else on this connection: one that crashes refuses nothing. A message that is
acknowledged is cleared; one that ends two connections in a row is refused, and others of its topic that are as long are
dropped for a minute, then twice as long, up to an hour: a broker whose memory is full refuses everything, and recovers.
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_limits import BrokerLimits
from publishers.shared.log_once import LogLimiter
from publishers.shared.recent_dict import RecentDict

MIN_REFUSAL_S: Final = 60.0
MAX_REFUSAL_S: Final = 3_600.0
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
        self._limiter = LogLimiter(clock_s, period_s=MAX_REFUSAL_S)
        self._has_answered = False
        self._n_sent = 0
        self._unproven: RecentDict[int, Outgoing] = RecentDict(_MAX_UNPROVEN)
        self._closes: RecentDict[str, int] = RecentDict(_MAX_TOPICS)  # of suspect topics
        self._refused: RecentDict[str, tuple[int, float]] = RecentDict(_MAX_TOPICS)  # from what length, until when
        self._refusal_s: RecentDict[str, float] = RecentDict(_MAX_TOPICS)  # how long the last one was

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

    @property
    def awaits_answer(self) -> bool:
        """Return whether the broker must answer something on this connection before messages are sent."""
        return bool(self._closes) and not self._has_answered

    def on_answered(self) -> None:
        """Remember that the broker works on this connection."""
        self._has_answered = True

    def on_sent(self, message: Outgoing) -> int:
        """Remember a message that is sent now; return its number."""
        self._n_sent += 1
        self._unproven[self._n_sent] = message
        return self._n_sent

    def on_acknowledged(self, number: int) -> None:
        """Clear a message, and what was sent before it at QoS 0: brokers take messages in their order."""
        self._has_answered = True
        proven = [n for n, each in self._unproven.items() if n == number or (n < number and not each.qos)]
        for each in proven:
            topic = self._unproven.pop(each).topic
            self._closes.pop(topic, None)
            if topic not in self._refused:  # else this one was shorter
                self._refusal_s.pop(topic, None)

    def pop_ended(self) -> bool:
        """Return whether a message may be tried again that was refused until now; once for each refusal."""
        now_s = self._clock_s()
        ended = [topic for topic, (_, until_s) in self._refused.items() if now_s >= until_s]
        for topic in ended:
            del self._refused[topic]
        return bool(ended)

    def on_connection_lost(self, *, by_broker: bool) -> None:
        """Find out who may have ended the connection; a network that fell silent says nothing about messages."""
        messages, has_answered = list(self._unproven.values()), self._has_answered
        self._unproven.clear()
        self._has_answered = False
        if not by_broker or not messages:
            return
        first = messages[0]
        if has_answered and first.qos and (len(messages) == 1 or self.is_suspect(first.topic)):
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
        refusal_s = min(2 * self._refusal_s.get(message.topic, MIN_REFUSAL_S / 2), MAX_REFUSAL_S)
        self._refusal_s[message.topic] = refusal_s
        self._refused[message.topic] = len(message.payload), self._clock_s() + refusal_s
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
