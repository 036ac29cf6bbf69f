"""A socket to a broker from which the messages that are too many never come.

paho reads a message with four system calls and hands it through several layers: 20,000 messages a second keep a core
busy, and the broker drops everybody's when we are late. So bytes are read in large pieces here, and each message is
dropped, where it is to be, by its topic alone, at a tenth of that cost.
"""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

_READ_BYTES: Final = 65_536
_RECORD_BYTES: Final = 16_384
_MAX_RECORDS: Final = 256
"""Of TLS, in one turn of the event loop."""
_PUBLISH: Final = 0x30
_PUBACK: Final = b"\x40\x02"
_MAX_LENGTH_DIGITS: Final = 4


class _Packet(NamedTuple):
    """A packet: its bytes in all, and of a message also the topic and, at QoS 1, the identifier."""

    n_bytes: int
    topic: bytes | None = None
    identifier: bytes = b""


class MeteredSocket:
    """Wraps the socket of an MQTT client, plain or TLS; whatever is not about reading goes to it.

    Args:
        inner: the socket.
        allows: decides by its topic whether a message is let through.
        acknowledge: sends what the broker is owed for the messages that are not: PUBACK packets.
    """

    def __init__(
        self,
        inner: socket.socket | ssl.SSLSocket,
        allows: Callable[[bytes], bool],
        acknowledge: Callable[[bytes], None],
    ) -> None:
        self._inner = inner
        self._allows = allows
        self._acknowledge = acknowledge
        self._ahead = bytearray()
        """What was read and not decided yet: less than the head of a packet."""
        self._passed = bytearray()
        self._left_bytes = 0
        """Of the packet that was decided last."""
        self._is_passing = True

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 — whatever the socket has
        """Return what the socket has."""
        return getattr(self._inner, name)

    def pending(self) -> int:
        """Return how many bytes can be read although the operating system has none: the client reads on."""
        inner = self._inner
        return len(self._passed) + (inner.pending() if isinstance(inner, ssl.SSLSocket) else 0)

    def recv(self, n_bytes: int) -> bytes:
        """Return at most `n_bytes` of what is let through; b"" at the end.

        Raises:
            BlockingIOError: there is nothing now.
        """
        if not self._passed:
            data = self._read()
            if not data:
                return b""
            self._ahead += data
            self._decide()
            if not self._passed:
                raise BlockingIOError
        taken = bytes(self._passed[:n_bytes])
        del self._passed[:n_bytes]
        return taken

    def _read(self) -> bytes:
        """Return what there is; TLS gives a record at a time, and brokers write one for each message."""
        data = piece = self._inner.recv(_READ_BYTES)
        if isinstance(self._inner, ssl.SSLSocket):
            pieces = [piece]
            with suppress(OSError):  # nothing more now; where the connection is lost, the next call says so
                while piece and len(pieces) < _MAX_RECORDS:
                    pieces.append(piece := self._inner.recv(_RECORD_BYTES))
            data = b"".join(pieces)
        return data

    def _decide(self) -> None:
        """Let through, or drop, what has been read; the bytes of large packets as they come."""
        ahead, position, acknowledgements = self._ahead, 0, bytearray()
        while position < len(ahead):
            if not self._left_bytes:
                packet = _packet(ahead, position)
                if packet is None:
                    break
                self._left_bytes = packet.n_bytes
                self._is_passing = packet.topic is None or self._allows(packet.topic)
                if not self._is_passing and packet.identifier:
                    acknowledgements += _PUBACK + packet.identifier
            end = min(position + self._left_bytes, len(ahead))
            if self._is_passing:
                self._passed += ahead[position:end]
            self._left_bytes -= end - position
            position = end
        del ahead[:position]
        if acknowledgements:
            self._acknowledge(bytes(acknowledgements))


def _packet(data: bytearray, begin: int) -> _Packet | None:
    """Return the packet that begins there; None where its head is not all there. Malformed ones are paho's affair."""
    length = digit_count = 0
    for digit in data[begin + 1 : begin + 1 + _MAX_LENGTH_DIGITS]:
        length |= (digit & 0x7F) << 7 * digit_count
        digit_count += 1
        if not digit & 0x80:
            break
    else:
        return _Packet(len(data) - begin) if digit_count == _MAX_LENGTH_DIGITS else None
    body = begin + 1 + digit_count
    kind, qos = data[begin] & 0xF0, data[begin] >> 1 & 3
    if kind != _PUBLISH or qos > 1:
        return _Packet(body - begin + length)
    topic = body + 2
    topic_end = topic + (data[body] << 8 | data[body + 1]) if len(data) >= topic else topic
    head_end = topic_end + 2 * qos
    if head_end > body + length:
        return _Packet(body - begin + length)
    if len(data) < max(topic, head_end):
        return None
    return _Packet(body - begin + length, bytes(data[topic:topic_end]), bytes(data[topic_end:head_end]))
