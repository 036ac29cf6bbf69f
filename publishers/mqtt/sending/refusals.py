"""What a broker refuses: a message or subscription that it does not take costs itself alone, and is named once.

Some limits are stated (`BrokerLimits`), and the answer to a subscription may be a refusal. Otherwise MQTT 3.1.1 knows
one: the broker closes the connection. Then each message that was sent and not acknowledged is suspect, and the next of
its topic is sent alone, with QoS 1, to a broker that has answered something else on this connection: one that crashes
refuses nothing. A message that is acknowledged is cleared; one that ends two connections in a row is refused, and
others of its topic that are as long are dropped for a minute, then twice as long, up to an hour: a broker whose memory
is full refuses everything, and recovers. Topic filters are treated the same, and one that the broker leaves unanswered
is left out, too. A broker that was away may be another one now, so what it seemed to refuse is tried once more.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_limits import BrokerLimits, packet_bytes, subscribe_bytes
from publishers.shared.fork_guard import guarded_logger
from publishers.shared.log_once import LogLimiter
from publishers.shared.recent_dict import RecentDict

MIN_REFUSAL_S: Final = 60.0
MAX_REFUSAL_S: Final = 3_600.0
_MAX_CLOSES: Final = 2
_MAX_UNPROVEN: Final = 128
"""The messages that are remembered; more than are ever sent without an acknowledgement at QoS 1."""
_MAX_TOPICS: Final = 1_024
_SUBSCRIPTION_FAILED: Final = 128
"""Codes from here on in a SUBACK packet are refusals."""
_LOGGER = guarded_logger(__name__)


class _Key(NamedTuple):
    """A topic on which is published, or a topic filter to which is subscribed."""

    topic: str
    is_filter: bool = False


class _Sent(NamedTuple):
    """What is under way: a message, or a subscription to one topic filter."""

    key: _Key
    n_bytes: int = 0
    qos: int = 1
    retain: bool = False


class Refusals:
    """What one broker refuses; a client asks before it sends, and tells what became of each message.

    Args:
        clock_s: any clock that never goes back [s].

    Attributes:
        limits: what the broker has stated so far.
        filter_faults: why a topic filter that is asked for is not subscribed to, a sentence each.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.limits = BrokerLimits()
        self.filter_faults: dict[str, str] = {}
        self._clock_s = clock_s
        self._limiter = LogLimiter(clock_s, period_s=MAX_REFUSAL_S)
        self._has_answered = False
        self._n_sent = 0
        self._unproven: RecentDict[int, _Sent] = RecentDict(_MAX_UNPROVEN)
        self._closes: RecentDict[_Key, int] = RecentDict(_MAX_TOPICS)  # of suspects
        self._refused: RecentDict[_Key, tuple[int, float]] = RecentDict(_MAX_TOPICS)  # from what length, until when
        self._refusal_s: RecentDict[_Key, float] = RecentDict(_MAX_TOPICS)  # how long the last one was
        self._pardoned: RecentDict[_Key, None] = RecentDict(_MAX_TOPICS)
        self._sends_filters_alone = False

    def set_limits(self, limits: BrokerLimits) -> None:
        """Use the limits that the broker states, and log those that cost something."""
        for fault in limits.faults:
            if fault not in self.limits.faults:
                _LOGGER.warning("%s", fault)
        self.limits = limits

    def admit(self, message: Outgoing) -> Outgoing | None:
        """Return a message as it may be sent; None: it is dropped, because the broker does not take it."""
        fitted = self.limits.fit(message)
        if excess := self.limits.excess(packet_bytes(fitted)):
            if self._limiter.allows(message.topic):
                _LOGGER.warning("%s: message dropped: %s", message.topic, excess)
        elif not self._is_refused(_Key(message.topic), len(message.payload)):
            if self.is_suspect(message.topic) and self.limits.max_qos:
                return msgspec.structs.replace(fitted, qos=1)  # so that its fate is known
            return fitted
        return None

    def admit_filters(self, topic_filters: Iterable[str]) -> list[list[str]]:
        """Return topic filters in the packets in which they may be sent; what the broker does not take is left out.

        They go in one packet unless that is too long, or the broker closed the connection on such a packet, or did not
        answer one.
        """
        admitted = [each for each in topic_filters if self._admits_filter(each)]
        if self._sends_filters_alone or any(map(self.is_suspect_filter, admitted)):
            return [[each] for each in admitted]
        return self.limits.subscribe_packets(admitted)

    def is_suspect(self, topic: str) -> bool:
        """Return whether the next message of a topic must be sent alone."""
        return _Key(topic) in self._closes

    def is_suspect_filter(self, topic_filter: str) -> bool:
        """Return whether a topic filter must be sent alone."""
        return _Key(topic_filter, is_filter=True) in self._closes

    def allow(self, topic: str) -> None:
        """Let the next message of a topic be tried, whatever was refused before."""
        self._refused.pop(_Key(topic), None)

    def forget_filters(self, topic_filters: Iterable[str]) -> None:
        """Forget topic filters that are not asked for any more."""
        for topic_filter in topic_filters:
            self.filter_faults.pop(topic_filter, None)
            for known in (self._closes, self._refused, self._refusal_s):
                known.pop(_Key(topic_filter, is_filter=True), None)

    @property
    def awaits_answer(self) -> bool:
        """Return whether the broker must answer something on this connection before messages are sent."""
        return bool(self._closes) and not self._has_answered

    def on_answered(self) -> None:
        """Remember that the broker works on this connection."""
        self._has_answered = True

    def on_sent(self, message: Outgoing) -> int:
        """Remember a message that is sent now; return its number."""
        return self._remember(_Sent(_Key(message.topic), len(message.payload), message.qos, message.retain))

    def on_subscribing(self, topic_filters: Iterable[str]) -> dict[int, str]:
        """Remember topic filters that are sent now; return them by their numbers."""
        return {self._remember(_Sent(_Key(each, is_filter=True))): each for each in topic_filters}

    def on_subscribed(self, sent: Mapping[int, str], codes: Iterable[int]) -> None:
        """Take the broker's answer to topic filters; one that it refuses may be asked for again in a minute."""
        for number in sent:
            self.on_acknowledged(number)
        for topic_filter, code in zip(sent.values(), codes, strict=False):  # of a broker that answers too little
            if code >= _SUBSCRIPTION_FAILED:
                self._refused[_Key(topic_filter, is_filter=True)] = 0, self._clock_s() + MIN_REFUSAL_S
                self._leave_out(
                    topic_filter, f"the broker refuses the subscription to {topic_filter}: check its access rules"
                )
            else:
                self.filter_faults.pop(topic_filter, None)

    def on_unanswered(self, sent: Mapping[int, str]) -> None:
        """Leave out a topic filter that the broker does not answer, for a minute; of several, let each be asked alone.

        As the connection stands, no topic filter is suspect any more: nothing is to wait for an answer again.
        """
        for number in sent:
            self._unproven.pop(number, None)
        for key in [key for key in self._closes if key.is_filter]:
            del self._closes[key]
        is_alone = len(sent) == 1
        self._sends_filters_alone |= not is_alone
        for topic_filter in sent.values():
            until_s = self._clock_s() + MIN_REFUSAL_S * is_alone
            self._refused[_Key(topic_filter, is_filter=True)] = 0, until_s
            if is_alone:
                why = f"the broker does not answer the subscription to {topic_filter}"
                self._leave_out(topic_filter, f"{why}: check its log and its access rules")

    def on_acknowledged(self, number: int) -> None:
        """Clear a message, and what was sent before it at QoS 0: brokers take messages in their order."""
        self._has_answered = True
        proven = [n for n, each in self._unproven.items() if n == number or (n < number and not each.qos)]
        for each in proven:
            key = self._unproven.pop(each).key
            self._closes.pop(key, None)
            self._pardoned.pop(key, None)
            if key not in self._refused:  # else this one was shorter
                self._refusal_s.pop(key, None)

    def pop_ended(self) -> bool:
        """Return whether a message may be tried again that was refused until now; once for each refusal."""
        return bool(self._pop_ended(are_filters=False))

    def pop_ended_filters(self) -> list[str]:
        """Return the topic filters that may be tried again and were refused until now; once for each refusal."""
        return self._pop_ended(are_filters=True)

    def on_connection_lost(self, *, by_broker: bool) -> None:
        """Find out who may have ended the connection; a network that fell silent says nothing about messages."""
        messages, has_answered = list(self._unproven.values()), self._has_answered
        self._unproven.clear()
        self._has_answered = False
        if not by_broker or not messages:
            return
        self._sends_filters_alone |= sum(each.key.is_filter for each in messages) > 1
        first = messages[0]
        is_alone = len(messages) == 1 or (first.key in self._closes and not first.key.is_filter)
        if has_answered and first.qos and is_alone:
            self._blame(first)
        else:
            for each in messages:
                self._closes.setdefault(each.key, 0)

    def on_away(self) -> None:
        """Let what is blamed be tried once more: the broker may be another one now, or have crashed by itself.

        Each once until it is acknowledged: one at which the broker does crash is left out in the end, however long it
        takes to come back.
        """
        for key in {**self._closes, **self._refused}:
            if key in self._pardoned:
                continue
            if self._refused.pop(key, None) is None:
                if not self._closes[key]:
                    continue
                self._closes[key] = 0
            self._pardoned[key] = None

    def _remember(self, sent: _Sent) -> int:
        self._n_sent += 1
        self._unproven[self._n_sent] = sent
        return self._n_sent

    def _pop_ended(self, *, are_filters: bool) -> list[str]:
        now_s = self._clock_s()
        ended = [
            key for key, (_, until_s) in self._refused.items() if key.is_filter == are_filters and now_s >= until_s
        ]
        for key in ended:
            del self._refused[key]
        return [key.topic for key in ended]

    def _blame(self, sent: _Sent) -> None:
        """Count a connection that ended while this message, or topic filter, alone was on its way."""
        key = sent.key
        n_closes = self._closes.get(key, 0) + 1
        self._closes[key] = min(n_closes, _MAX_CLOSES - 1)
        if n_closes < _MAX_CLOSES:
            return
        refusal_s = min(2 * self._refusal_s.get(key, MIN_REFUSAL_S / 2), MAX_REFUSAL_S)
        self._refusal_s[key] = refusal_s
        self._refused[key] = sent.n_bytes, self._clock_s() + refusal_s
        check = "check its log, its limits and its access rules"
        if key.is_filter:
            why = f"the broker closes the connection when {key.topic} is subscribed to, so it is skipped: {check}"
            self._leave_out(key.topic, why)
        elif self._limiter.allows(key.topic):
            _LOGGER.warning(
                "%s: message of %d bytes%s dropped: the broker closes the connection when it is published: %s",
                *(key.topic, sent.n_bytes, " (retained)" if sent.retain else "", check),
            )

    def _admits_filter(self, topic_filter: str) -> bool:
        if excess := self.limits.excess(subscribe_bytes([topic_filter])):
            self._leave_out(topic_filter, f"the subscription to {topic_filter} is skipped: {excess}")
            return False
        return not self._is_refused(_Key(topic_filter, is_filter=True), 0)

    def _leave_out(self, topic_filter: str, why: str) -> None:
        self.filter_faults[topic_filter] = why
        if self._limiter.allows(_Key(topic_filter, is_filter=True)):
            _LOGGER.error("%s", why)

    def _is_refused(self, key: _Key, n_bytes: int) -> bool:
        refused_bytes, until_s = self._refused.get(key, (0, 0.0))
        return self._clock_s() < until_s and n_bytes >= refused_bytes
