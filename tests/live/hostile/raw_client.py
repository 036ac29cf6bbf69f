"""An MQTT client that keeps no rules: it writes bytes, in bulk where it floods, and says nothing it is not told to."""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where a broker listens, and how to check its certificate."""

    port: int
    ca_pem: str


def text(value: str | bytes) -> bytes:
    """Return a string as MQTT writes it; bytes pass as they are, however malformed."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(raw)) + raw


def packet(first: int, body: bytes) -> bytes:
    """Return a packet: type and flags, length, body."""
    length, digits = len(body), bytearray()
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (0x80 if length else 0))
        if not length:
            return bytes((first, *digits)) + body


def publication(topic: str | bytes, payload: bytes, *, qos: int = 0, retain: bool = False, number: int = 1) -> bytes:
    """Return a PUBLISH packet."""
    identifier = struct.pack(">H", number % 65_535 + 1) if qos else b""
    return packet(0x30 | qos << 1 | retain, text(topic) + identifier + payload)


class RawClient:
    """A connection to a door of the broker."""

    def __init__(self, door: Door) -> None:
        plain = socket.create_connection(("127.0.0.1", door.port), timeout=TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = ssl.create_default_context(cadata=door.ca_pem).wrap_socket(plain, server_hostname="127.0.0.1")
        self._buffer = bytearray()

    def log_in(
        self, user: str = "", password: str = "", *, client_id: str = "", will: tuple[str, bytes] | None = None
    ) -> int:
        """Return the broker's answer: 0 is welcome."""
        flags = 0x02 | (0xC0 if user else 0) | (0x2C if will else 0)
        body = text("MQTT") + bytes((4, flags)) + struct.pack(">H", 60) + text(client_id)
        if will:
            body += text(will[0]) + struct.pack(">H", len(will[1])) + will[1]
        if user:
            body += text(user) + text(password)
        self.socket.sendall(packet(0x10, body))
        answer = next(self.packets(TIMEOUT_S), None)
        return answer[1][1] if answer else 255

    def subscribe(self, *filters: str) -> None:
        """Subscribe, and do not wait for the answer."""
        self.socket.sendall(packet(0x82, b"\0\1" + b"".join(text(item) + b"\1" for item in filters)))

    def publish(self, *packets: bytes) -> None:
        """Send packets, and throw away what the broker says meanwhile."""
        self.socket.sendall(b"".join(packets))
        self.drain()

    def drain(self) -> None:
        """Throw away what the broker has said: who does not read, stops it from reading."""
        self.socket.settimeout(0.0)
        with contextlib.suppress(ssl.SSLWantReadError, BlockingIOError, TimeoutError):
            while self.socket.recv(65_536):
                pass
        self.socket.settimeout(TIMEOUT_S)

    def packets(self, wait_s: float) -> Iterator[tuple[int, bytes]]:
        """Yield the packets that arrive within a time: type and flags, body."""
        end_s = time.monotonic() + wait_s
        while (left_s := end_s - time.monotonic()) > 0:
            while (found := self._take()) is not None:
                yield found
            self.socket.settimeout(left_s)
            try:
                data = self.socket.recv(65_536)
            except TimeoutError:
                return
            if not data:
                return
            self._buffer += data

    def _take(self) -> tuple[int, bytes] | None:
        length = shift = 0
        for index, digit in enumerate(self._buffer[1:5], 2):
            length |= (digit & 0x7F) << shift
            shift += 7
            if not digit & 0x80:
                if len(self._buffer) < index + length:
                    return None
                found = self._buffer[0], bytes(self._buffer[index : index + length])
                del self._buffer[: index + length]
                return found
        return None

    def close(self) -> None:
        """End the connection without a word."""
        with contextlib.suppress(OSError):
            self.socket.close()
