"""The limits that a broker states in MQTT 5 when it accepts a connection, and how messages are made to fit them.

Our clients speak MQTT 3.1.1, which every broker does, and in which a broker that refuses a message just closes the
connection. So once a connection has been closed, the next begins with one question in MQTT 5.
"""

import select
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress
from publishers.shared.fork_guard import hold_forks

KEEPALIVE_S: Final = 60
_SEVEN_BITS: Final = 7


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker takes; by default everything.

    Attributes:
        max_packet_bytes: the longest packet, None without a limit.
        retain_available: whether it takes retained messages.
        max_qos: the highest quality of service.
    """

    max_packet_bytes: int | None = None
    retain_available: bool = True
    max_qos: int = 2

    @classmethod
    def of(cls, properties: Properties | None) -> "BrokerLimits":
        """Return the limits that a CONNACK states."""
        return cls(
            max_packet_bytes=getattr(properties, "MaximumPacketSize", None),
            retain_available=bool(getattr(properties, "RetainAvailable", 1)),
            max_qos=getattr(properties, "MaximumQoS", 2),
        )

    def fit(self, message: Outgoing) -> Outgoing:
        """Return a message as the broker takes it: with a lower QoS, or not retained."""
        qos, retain = min(message.qos, self.max_qos), message.retain and self.retain_available
        return msgspec.structs.replace(message, qos=qos, retain=retain)

    def excess(self, n_bytes: int) -> str:
        """Return in what a packet of a length [bytes] exceeds the longest one, or ""."""
        if self.max_packet_bytes is None or n_bytes <= self.max_packet_bytes:
            return ""
        return (
            f"a packet of {n_bytes} bytes; the broker takes at most {self.max_packet_bytes}: raise its "
            "maximum packet size (mosquitto: max_packet_size)"
        )

    def subscribe_packets(self, topic_filters: Sequence[str]) -> list[list[str]]:
        """Return topic filters in one packet where that is not too long, else each in its own."""
        if self.excess(subscribe_bytes(topic_filters)):
            return [[each] for each in topic_filters]
        return [list(topic_filters)] if topic_filters else []

    @property
    def faults(self) -> list[str]:
        """Return what the broker must be allowed for everything to work, in a sentence each."""
        faults = []
        if not self.retain_available:
            faults.append(
                "the broker refuses retained messages (Retain Available is 0): who subscribes later misses the current"
                " state, and no last will is retained; allow them (mosquitto: retain_available true)"
            )
        if self.max_qos < 1:
            faults.append(
                "the broker takes QoS 0 alone (Maximum QoS is 0): what is lost is not sent again; allow QoS 1"
                " (mosquitto: max_qos 1)"
            )
        return faults


def packet_bytes(message: Outgoing) -> int:
    """Return the length of the PUBLISH packet of a message [bytes], as MQTT 3.1.1 has it."""
    return _with_header(2 + len(message.topic.encode()) + (2 if message.qos else 0) + len(message.payload))


def subscribe_bytes(topic_filters: Sequence[str]) -> int:
    """Return the length of a SUBSCRIBE packet [bytes], as MQTT 3.1.1 has it; an UNSUBSCRIBE packet is shorter."""
    return _with_header(2 + sum(2 + len(topic_filter.encode()) + 1 for topic_filter in topic_filters))


def _with_header(n_bytes: int) -> int:
    return 1 + max(1, -(-n_bytes.bit_length() // _SEVEN_BITS)) + n_bytes


def fetch_limits(address: BrokerAddress, *, identifier: str, timeout_s: float = 3.0) -> BrokerLimits | None:
    """Connect in MQTT 5 and return what the broker states; None where it is not there, or speaks 3.1.1 alone.

    Args:
        address: the broker.
        identifier: the client id; a connection that still uses it is ended.
        timeout_s: the longest wait for the connection, and for the answer [s].
    """
    answers: list[tuple[Any, Properties | None]] = []
    client = Client(CallbackAPIVersion.VERSION2, client_id=identifier, protocol=MQTTv5)
    client.on_connect = lambda _client, _data, _flags, reason, properties: answers.append((reason, properties))
    client.connect_timeout = timeout_s
    if address.username:
        client.username_pw_set(address.username, address.password or None)
    try:
        with hold_forks():
            if context := address.tls_context():
                client.tls_set_context(context)
            client.connect(address.host, address.port, keepalive=KEEPALIVE_S)
        _read_answer(client, answers, deadline_s=time.monotonic() + timeout_s)
    except (OSError, ValueError):
        return None
    finally:
        with suppress(OSError):
            client.disconnect()
            client.loop_write()
        if (sock := client.socket()) is not None:
            sock.close()
    accepted = [properties for reason, properties in answers if not reason.is_failure]
    return BrokerLimits.of(accepted[0]) if accepted else None


def _read_answer(client: Client, answers: list[Any], *, deadline_s: float) -> None:
    """Read until there is an answer or the connection ends; by `poll`: `select` takes no descriptor above 1023."""
    while not answers and (sock := client.socket()) is not None:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if not getattr(sock, "pending", int)():  # TLS may hold bytes that poll does not see
            poll.poll(left_s * 1e3)
        with hold_forks():
            client.loop_read()
