"""The training side's connection to the broker: paho, driven by the worker's thread, never by the training loop.

paho's own loop thread waits in `select`, which fails above file descriptor 1023 (data loaders with many workers reach
it), sleeps uninterruptibly, and cannot be joined with a timeout. So `work` runs paho's loop, with `poll`.
"""

import encodings.idna  # noqa: F401 — resolving a name needs it; our thread imports nothing, see `_connect_by_paho`
import os
import select
import socket
import ssl
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage, MQTTMessageInfo, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress
from publishers.training.settings import BROKER_SETTINGS

CONNECT_TIMEOUT_S: Final = 3.0
KEEPALIVE_S: Final = 60
"""Long, because a training step may hold the interpreter's lock for a while; the heartbeat is quicker anyway."""
FIRST_RETRY_DELAY_S: Final = 1.0
MAX_RETRY_DELAY_S: Final = 30.0
_MAX_QUEUED: Final = 64
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
    """The fate of a message handed to paho."""

    def __init__(self, info: MQTTMessageInfo) -> None:
        self._info = info

    @property
    def done(self) -> bool:
        """Return whether it has left (QoS 0), was acknowledged (QoS 1), or is lost."""
        return self.lost or self._info.is_published()

    @property
    def lost(self) -> bool:
        """Return whether it is known to be lost."""
        return self._info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS


class PahoConnection:
    """A connection to an MQTT 3.1.1 broker that reconnects by itself, after 1, 2, 4 … 30 s."""

    def __init__(self, broker: BrokerAddress, will: Outgoing) -> None:
        """Prepare it; the first `work` connects.

        Raises:
            OSError: the file of certificate authorities cannot be read, or is none.
        """
        self._broker = broker
        self.connections = self.failures = 0
        self.failure: str | None = None
        self._topics: list[str] = []
        self._unacknowledged_subscriptions: set[int | None] = set()
        self._refusal: ReasonCode | None = None
        self._retry_at_s = 0.0
        self._retry_delay_s = FIRST_RETRY_DELAY_S
        # 23 characters: what every broker must accept. Random: of two clients with one id the broker ends one.
        self._client = client = Client(
            CallbackAPIVersion.VERSION2, client_id=f"gc{os.urandom(10).hex()}", protocol=MQTTv311
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.max_queued_messages_set(_MAX_QUEUED)
        client.will_set(will.topic, will.payload, qos=will.qos, retain=will.retain)
        if broker.username:
            client.username_pw_set(broker.username, broker.password or None)
        context = broker.tls_context()
        if context is not None:
            context.sslsocket_class = _ClosingSocket
            client.tls_set_context(context)
        client.on_socket_open = _set_no_delay
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        self._drop()
        _OPEN.add(self)

    def is_connected(self) -> bool:
        """Return whether the broker is connected now."""
        return self._client.is_connected() and self._client.socket() is not None

    def is_subscribed(self) -> bool:
        """Return whether the broker has answered every subscription on this connection."""
        return not self._unacknowledged_subscriptions

    def work(self, timeout_s: float = 0.0) -> None:
        """Do what is due; wait for the network for at most `timeout_s`."""
        if self._client.socket() is not None:
            self._turn(timeout_s)
            if self._client.socket() is None:
                self._retry_later("the connection was lost")
        elif time.monotonic() >= self._retry_at_s:
            self._connect()

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> PahoReceipt:
        """Send a message, or as much of it as the network takes now."""
        return PahoReceipt(self._client.publish(topic, payload, qos=qos, retain=retain))

    def subscribe(self, topic: str, handler: Callable[[bytes], None]) -> None:
        """Call `handler(payload)` for each message at `topic`, on this connection and every later one."""

        def on_message(_client: Client, _userdata: object, message: MQTTMessage) -> None:
            handler(bytes(message.payload))

        self._client.message_callback_add(topic, on_message)
        self._topics.append(topic)
        if self.is_connected():
            self._unacknowledged_subscriptions.add(self._client.subscribe(topic, qos=1)[1])

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
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        try:
            self._client.reconnect()
            while self._client.socket() is not None and not self.is_connected() and time.monotonic() < deadline_s:
                self._turn(deadline_s - time.monotonic())
        except (OSError, ValueError) as error:  # refused, no such host, no route, TLS
            self._retry_later(self._broker.explain(error).sentence(BROKER_SETTINGS))
            return
        if not self.is_connected():
            refusal, broker = self._refusal, self._broker
            fault = broker.explain_silence() if refusal is None else broker.explain_refusal(refusal)
            self._retry_later(fault.sentence(BROKER_SETTINGS))

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
        self.failure = None
        self._retry_delay_s = FIRST_RETRY_DELAY_S
        self._unacknowledged_subscriptions = {self._client.subscribe(topic, qos=1)[1] for topic in self._topics}

    def _on_subscribe(
        self, _client: Client, _userdata: object, mid: int, _reasons: object, _properties: object
    ) -> None:
        self._unacknowledged_subscriptions.discard(mid)

    def _retry_later(self, reason: str) -> None:
        self._drop()
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
