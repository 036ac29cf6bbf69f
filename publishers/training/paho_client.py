"""The training side's connection to the broker: paho, driven by the worker's thread, never by the training loop.

paho's own loop thread waits in `select`, which fails above file descriptor 1023 (data loaders with many workers reach
it), sleeps uninterruptibly, and cannot be joined with a timeout. So `work` runs paho's loop, with `poll`.
"""

import encodings.idna  # noqa: F401 — resolving a name needs it; our thread imports nothing, see `_connect_by_paho`
import math
import os
import select
import socket
import ssl
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage, MQTTMessageInfo, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress
from publishers.mqtt.broker_limits import fetch_limits
from publishers.mqtt.sending.refusals import Refusals
from publishers.shared.fork_guard import hold_forks
from publishers.training.settings import BROKER_SETTINGS

CONNECT_TIMEOUT_S: Final = 3.0
KEEPALIVE_S: Final = 60
"""Long, because a training step may hold the interpreter's lock for a while; the heartbeat is quicker anyway."""
FIRST_RETRY_DELAY_S: Final = 1.0
MAX_RETRY_DELAY_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 10.0
"""How long messages and subscriptions wait for the answer to another subscription."""
_MAX_QUEUED: Final = 512
"""More than the worker hands over at once after an absence of the broker: 256 events and 64 messages of iterations."""
_MAX_IN_FLIGHT: Final = 20
_MAX_READ: Final = 64
"""Messages read in one turn: many may have arrived since the last flush, and a client may flood us."""


class _ClosingSocket(ssl.SSLSocket):
    """A TLS socket that closes itself after a failed handshake: paho would leave it to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


class PahoReceipt:
    """The fate of a message; `info` is paho's part of it, once it has it."""

    def __init__(self) -> None:
        self.info: MQTTMessageInfo | None = None
        self.refused = self.is_lost = False

    @property
    def done(self) -> bool:
        """Return whether it has left (QoS 0), was acknowledged (QoS 1), is refused, or is lost."""
        return self.refused or self.lost or (self.info is not None and self.info.is_published())

    @property
    def lost(self) -> bool:
        """Return whether it is known to be lost."""
        return self.is_lost or (self.info is not None and self.info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS)


class PahoConnection:
    """A connection to an MQTT 3.1.1 broker that reconnects by itself, after 1, 2, 4 … 30 s.

    What the broker refuses costs that message alone, see `Refusals`.
    """

    def __init__(self, broker: BrokerAddress, will: Outgoing) -> None:
        """Prepare it; the first `work` connects.

        Raises:
            OSError: the file of certificate authorities cannot be read, or is none.
        """
        self._broker = broker
        self.connections = self.failures = 0
        self.failure: str | None = None
        self._topics: list[str] = []
        self._unsubscribed: deque[list[str]] = deque()
        """Topics that this connection has not subscribed to yet, in their packets."""
        self._subscribing: dict[int | None, dict[int, str]] = {}
        """Topics whose subscription has no answer yet, by message id."""
        self._refusal: ReasonCode | None = None
        self._refusals = Refusals(time.monotonic)
        self._is_open = self._asks_limits = self._was_silent = self._is_ending = False
        self._waiting: deque[tuple[PahoReceipt, Outgoing]] = deque()  # at QoS 1
        self._in_flight: dict[int, tuple[int, PahoReceipt, Outgoing]] = {}  # the same, by message id
        self._will, self._client_id = will, f"gc{os.urandom(10).hex()}"
        self._answer_due_s, self._retry_at_s = math.inf, 0.0
        self._retry_delay_s = FIRST_RETRY_DELAY_S
        # 23 characters: what every broker must accept. Random: of two clients with one id the broker ends one.
        self._client = client = Client(CallbackAPIVersion.VERSION2, client_id=self._client_id, protocol=MQTTv311)
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.max_inflight_messages_set(_MAX_IN_FLIGHT)
        client.will_set(will.topic, will.payload, qos=will.qos, retain=will.retain)
        if broker.username:
            client.username_pw_set(broker.username, broker.password or None)
        with hold_forks():
            context = broker.tls_context()
        if context is not None:
            context.sslsocket_class = _ClosingSocket
            client.tls_set_context(context)
        client.on_socket_open = _set_no_delay
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect
        self._drop()
        _OPEN.add(self)

    def is_connected(self) -> bool:
        """Return whether the broker is connected now."""
        return self._client.is_connected() and self._client.socket() is not None

    def is_subscribed(self) -> bool:
        """Return whether the broker has answered every subscription on this connection."""
        return not self._unsubscribed and not self._subscribing

    def work(self, timeout_s: float = 0.0) -> None:
        """Do what is due; wait for the network for at most `timeout_s`."""
        if self._client.socket() is not None:
            self._turn(timeout_s)
        elif not self._is_open and time.monotonic() >= self._retry_at_s:
            self._connect()
        if self._client.socket() is None and self._is_open:  # perhaps since the last `publish`
            self._retry_later("the connection was lost", asks_limits=True)
        if self.is_connected():
            if time.monotonic() >= self._answer_due_s:
                self._await_no_longer()
            self._subscribe_to(self._refusals.pop_ended_filters())

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> PahoReceipt:
        """Send a message, or as much of it as the network takes now."""
        receipt, message = PahoReceipt(), Outgoing(topic=topic, payload=payload, qos=qos, retain=retain)
        if not qos and not self._refusals.is_suspect(topic):
            self._transmit(receipt, message)
        elif len(self._waiting) + len(self._in_flight) < _MAX_QUEUED:
            self._waiting.append((receipt, message))
            self._send_waiting()
        else:
            receipt.is_lost = True
        return receipt

    def allow(self, topic: str) -> None:
        """Try the next message at a topic, whatever was refused; from now on, messages go before subscriptions."""
        self._refusals.allow(topic)
        self._is_ending = True

    def _send_waiting(self) -> None:
        """Send what waits, as far as messages may be under way; what is suspect goes alone."""
        packets = (*self._unsubscribed, *(sent.values() for sent in self._subscribing.values()))
        is_held = any(self._refusals.is_suspect_filter(topic) for packet in packets for topic in packet)
        if (is_held and not self._is_ending) or self._refusals.awaits_answer or not self.is_connected():
            return
        while self._waiting and len(self._in_flight) < _MAX_IN_FLIGHT:
            topics = (self._waiting[0][1].topic, *(message.topic for _, _, message in self._in_flight.values()))
            if self._in_flight and any(map(self._refusals.is_suspect, topics)):
                return
            self._transmit(*self._waiting.popleft())

    def _transmit(self, receipt: PahoReceipt, message: Outgoing) -> None:
        admitted = self._refusals.admit(message)
        if admitted is None:
            receipt.refused = True
            return
        qos, retain = admitted.qos, admitted.retain
        info = self._client.publish(message.topic, message.payload, qos=qos, retain=retain)
        number = self._refusals.on_sent(admitted)
        if not qos or info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS:  # else it is not lost, but sent again
            receipt.info = info
        if qos:
            self._in_flight[info.mid] = number, receipt, message

    def subscribe(self, topic: str, handler: Callable[[bytes], None]) -> None:
        """Call `handler(payload)` for each message at `topic`, on this connection and every later one."""

        def on_message(_client: Client, _userdata: object, message: MQTTMessage) -> None:
            handler(bytes(message.payload))

        self._client.message_callback_add(topic, on_message)
        self._topics.append(topic)
        if self.is_connected():
            self._subscribe_to([topic])

    def _subscribe_to(self, topics: Iterable[str]) -> None:
        """Subscribe, to one packet of topics after another's answer: a broker may close the connection on one."""
        self._unsubscribed.extend(self._refusals.admit_filters(topics))
        self._subscribe_to_next()

    def _subscribe_to_next(self) -> None:
        if self._is_ending and (self._waiting or self._in_flight):
            return
        if self._unsubscribed and not self._subscribing and not self._refusals.awaits_answer:
            packet = self._unsubscribed.popleft()
            message_id = self._client.subscribe([(topic, 1) for topic in packet])[1]
            self._subscribing[message_id] = self._refusals.on_subscribing(packet)
            self._answer_due_s = time.monotonic() + _ANSWER_TIMEOUT_S

    def _await_no_longer(self) -> None:
        """Go on without the answer that is due: a broker may owe it for ever."""
        self._answer_due_s = math.inf
        self._refusals.on_answered()  # the connection stands
        for sent in self._subscribing.values():
            self._refusals.on_unanswered(sent)
        self._subscribing.clear()
        self._subscribe_to_next()
        self._send_waiting()

    def retry_now(self) -> None:
        """Let the next `work` try to connect at once if the broker is away, and then retry with short delays."""
        self._retry_at_s, self._retry_delay_s = 0.0, FIRST_RETRY_DELAY_S

    def close(self) -> None:
        """Disconnect, so that the broker does not publish the last will."""
        self._client.disconnect()
        if self._client.socket() is not None:
            self._turn(0.0)
        self._drop()

    def _connect(self) -> None:
        """Try once, and wait for the broker's answer."""
        if self._asks_limits:
            self._ask_limits()
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        try:
            with hold_forks():
                self._client.reconnect()
            while self._client.socket() is not None and not self.is_connected() and time.monotonic() < deadline_s:
                self._turn(deadline_s - time.monotonic())
        except (OSError, ValueError) as error:  # refused, no such host, no route, TLS
            fault, asks_limits = self._broker.explain(error), False
        else:
            if self.is_connected():
                return
            refusal, broker = self._refusal, self._broker
            unanswered = broker.explain_silence() if self._client.socket() is not None else broker.explain_close()
            fault = unanswered if refusal is None else broker.explain_refusal(refusal)
            asks_limits = refusal is None
        self._retry_later(fault.sentence(BROKER_SETTINGS), asks_limits=asks_limits)
        if fault.is_absence:
            self._refusals.on_away()

    def _take_back_in_flight(self) -> None:
        """Let what was not acknowledged wait again, before everything else; paho would send it again by itself."""
        self._refusals.on_connection_lost(by_broker=not self._was_silent)
        self._waiting.extendleft((receipt, message) for _, receipt, message in reversed(self._in_flight.values()))
        self._in_flight.clear()
        getattr(self._client, "_out_messages", {}).clear()  # paho has no call that takes a message back

    def _ask_limits(self) -> None:
        """Ask for the broker's limits after it has closed a connection, until it answers."""
        limits = fetch_limits(self._broker, identifier=self._client_id)
        if limits is None:
            return
        self._asks_limits = False
        self._refusals.set_limits(limits)
        self._client.will_clear()
        if will := self._refusals.admit(self._will):
            self._client.will_set(will.topic, will.payload, qos=will.qos, retain=will.retain)

    def _turn(self, timeout_s: float) -> None:
        """Read what there is, write and ping once; an error closes the socket."""
        client = self._client
        sock: Any = client.socket()
        poll = select.poll()
        poll.register(sock, select.POLLIN | (select.POLLOUT if client.want_write() else 0))
        for n_read in range(_MAX_READ):
            pending = getattr(sock, "pending", int)()  # TLS may hold bytes that poll does not see
            events = poll.poll(0 if pending or n_read else max(0.0, timeout_s) * 1e3)
            if not pending and not any(event & ~select.POLLOUT for _, event in events):
                break
            with hold_forks():
                client.loop_read()
            if client.socket() is not sock:
                break
        if client.want_write():
            client.loop_write()
        client.loop_misc()

    def _on_connect(
        self, _client: Client, _userdata: object, _flags: object, reason: ReasonCode, _properties: object
    ) -> None:
        if reason.is_failure:
            self._refusal = reason
            return
        self.connections += 1
        self._is_open, self._was_silent = True, False
        self.failure = None
        self._retry_delay_s = FIRST_RETRY_DELAY_S
        self._unsubscribed.clear()
        self._subscribing.clear()
        self._answer_due_s = math.inf
        if self._refusals.awaits_answer:
            self._client.unsubscribe(self._client_id)
            self._answer_due_s = time.monotonic() + _ANSWER_TIMEOUT_S
        self._subscribe_to(self._topics)
        self._send_waiting()

    def _on_unsubscribe(
        self, _client: Client, _userdata: object, _mid: int, _reasons: object, _properties: object
    ) -> None:
        self._refusals.on_answered()
        self._subscribe_to_next()
        self._send_waiting()

    def _on_publish(self, _client: Client, _userdata: object, mid: int, _reason: object, _properties: object) -> None:
        sent = self._in_flight.pop(mid, None)
        if sent is not None:
            self._refusals.on_acknowledged(sent[0])
            self._send_waiting()
            self._subscribe_to_next()

    def _on_disconnect(
        self, _client: Client, _userdata: object, _flags: object, reason: ReasonCode, _properties: object
    ) -> None:
        self._was_silent = reason.getName() == "Keep alive timeout"

    def _on_subscribe(
        self, _client: Client, _userdata: object, mid: int, reasons: list[ReasonCode], _properties: object
    ) -> None:
        self._refusals.on_subscribed(self._subscribing.pop(mid, {}), [reason.value for reason in reasons])
        self._subscribe_to_next()
        self._send_waiting()

    def _retry_later(self, reason: str, *, asks_limits: bool = False) -> None:
        self._drop()
        self._is_open = False
        self._take_back_in_flight()
        self._asks_limits |= asks_limits
        self.failures += 1
        self.failure, self._refusal = reason, None
        self._retry_at_s = time.monotonic() + self._retry_delay_s
        self._retry_delay_s = min(2 * self._retry_delay_s, MAX_RETRY_DELAY_S)

    def _drop(self) -> None:
        """Close the socket, if there is one, without a DISCONNECT; paho remembers where to connect next."""
        self._client.connect_async(self._broker.host, self._broker.port, keepalive=KEEPALIVE_S)

    def close_inherited(self) -> None:
        """Close a forked child's copy of the socket; the parent's connection stays as it is."""
        sock = self._client.socket()
        if sock is not None:
            sock.close()


_OPEN: "weakref.WeakSet[PahoConnection]" = weakref.WeakSet()


def _close_inherited() -> None:
    """While a forked child held the socket open, the broker would not notice that the parent was killed."""
    for connection in list(_OPEN):
        connection.close_inherited()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_inherited)


def _set_no_delay(_client: Client, _userdata: object, sock: Any) -> None:  # noqa: ANN401 — paho's signature
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
