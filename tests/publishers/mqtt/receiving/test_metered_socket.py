"""The socket that drops what is too much: byte by byte, and 20,000 messages a second on virtual time."""

import socket
import ssl
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

import pytest

from publishers.messages.topics import RunKey, Topics
from publishers.mqtt.receiving.metered_socket import MeteredSocket
from publishers.mqtt.receiving.quotas import MessageQuotas
from tests.live.hostile.raw_client import packet, publication

TOPICS = Topics()
PINGRESP = packet(0xD0, b"")
HONEST = RunKey("alice", "bert", "r1")
FLOOD_PER_S = 20_000.0
READ_S = 70e-6
"""What paho, the dispatcher and the router take for a message, as measured [s]."""
DROPPED_S = 7e-6
"""What a message takes to be dropped: twice as long as measured [s]."""


class Pieces(socket.socket):
    """A socket that receives given pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        super().__init__()
        self._pieces = deque(pieces)

    def recv(self, n_bytes: int, flags: int = 0, /) -> bytes:
        """Return the next piece; b"" after the last."""
        del n_bytes, flags
        return self._pieces.popleft() if self._pieces else b""


def received(metered: MeteredSocket, n_bytes: int = 7) -> bytes:
    """Return all that comes until the end."""
    got = bytearray()
    while True:
        with suppress(BlockingIOError):
            data = metered.recv(n_bytes)
            if not data:
                return bytes(got)
            got += data


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 64, 100_000])
def test_dropped_messages_leave_no_trace_however_the_bytes_come(piece_bytes: int) -> None:
    kept = [
        *(publication("good", b"x" * 300, qos=1, number=7), PINGRESP, publication("good", b"")),
        *(publication("bad", b"", qos=2), packet(0x90, b"\0\1\0"), publication("good", b"y" * 20_000)),
    ]
    surplus = [
        *(publication("bad", b"z" * 200), publication("bad", b"", qos=1, number=1)),
        *(publication("bad", b"z" * 70_000, qos=1, number=258), publication("bad/" + "t" * 300, b"")),
    ]
    sent = b"".join(each for pair in zip(kept, [*surplus, b"", b""], strict=True) for each in pair)
    pieces = [sent[begin : begin + piece_bytes] for begin in range(0, len(sent), piece_bytes)]
    acknowledged = bytearray()
    with Pieces(pieces) as inner:
        metered = MeteredSocket(inner, lambda topic: not topic.startswith(b"bad"), acknowledged.extend)
        assert received(metered) == b"".join(kept)
    assert acknowledged == b"\x40\x02\x00\x02\x40\x02\x01\x03"


@pytest.mark.parametrize("malformed", [b"\x30\xff\xff\xff\xff\x7f", b"\x30\x01\x00" + PINGRESP, b"\x32\x03\x00\x01a"])
def test_malformed_packets_pass_for_paho_to_refuse(malformed: bytes) -> None:
    with Pieces([malformed + bytes(8)]) as inner:
        metered = MeteredSocket(inner, lambda _: False, lambda _: None)
        assert received(metered).startswith(malformed[:3])


def test_the_client_is_told_to_read_on_while_anything_is_left() -> None:
    with Pieces([PINGRESP * 3 + publication("good", b"")[:-2]]) as inner:
        metered = MeteredSocket(inner, lambda _: True, lambda _: None)
        assert (metered.pending(), metered.recv(2), metered.pending()) == (0, PINGRESP, 4)
        metered.recv(100)
        assert metered.pending() == 0, "half a head: the rest must come first"
        assert metered.fileno() == inner.fileno(), "all else is the socket's"


class Records(ssl.SSLSocket):
    """A TLS socket that has some records now and no more."""

    def __init__(self, records: Iterable[bytes]) -> None:
        socket.socket.__init__(self)
        self._records = deque(records)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return one record, as OpenSSL does."""
        del buflen, flags
        if not self._records:
            raise ssl.SSLWantReadError
        return self._records.popleft()

    def pending(self) -> int:
        """Return nothing: the next record is not decrypted yet."""
        return 0


def test_the_records_of_tls_are_read_in_one_turn() -> None:
    with Records([PINGRESP, publication("bad", b""), PINGRESP]) as inner:
        metered = MeteredSocket(inner, lambda _: False, lambda _: None)
        assert metered.recv(1) == PINGRESP[:1]
        assert metered.pending() == 3
        assert metered.recv(100) == (PINGRESP * 2)[1:]
        with pytest.raises(ssl.SSLWantReadError):
            metered.recv(1)


class Backlog(Pieces):
    """What a broker has for us at a virtual time: a flood, and a message of another user four times a second."""

    def __init__(self, duration_s: float) -> None:
        super().__init__(())
        self.now_s = 0.0
        self._due = deque(sorted(self._messages(duration_s)))

    @staticmethod
    def _messages(duration_s: float) -> Iterable[tuple[float, str, bytes]]:
        for k in range(round(FLOOD_PER_S * duration_s)):
            key = RunKey("mallory", f"j{k}", f"r{k}")
            yield k / FLOOD_PER_S, TOPICS.rank("boot", key, 0, "iterations"), b""
        for k in range(round(4 * duration_s)):
            yield k / 4, TOPICS.rank("boot", HONEST, 0, "iterations"), b"%012.6f" % (k / 4)

    def recv(self, n_bytes: int, flags: int = 0, /) -> bytes:
        """Return what was sent until now, whole messages; b"" once all was."""
        del flags
        if not self._due:
            return b""
        self.now_s = max(self.now_s, self._due[0][0])
        data = bytearray()
        while self._due and self._due[0][0] <= self.now_s and len(data) < n_bytes - 200:
            _, topic, payload = self._due.popleft()
            data += publication(topic, payload)
        return bytes(data)


def lateness_s(quotas: MessageQuotas | None, duration_s: float = 8.0) -> list[float]:
    """Return how late each honest message is read beside a flood [s], on virtual time."""
    late_s = list[float]()
    with Backlog(duration_s) as backlog:

        def allows(topic: bytes) -> bool:
            backlog.now_s += DROPPED_S if quotas is not None else 0.0
            return quotas is None or quotas.allows(topic, backlog.now_s)

        metered = MeteredSocket(backlog, allows, lambda _: None)
        while True:
            try:
                head = metered.recv(2)
            except BlockingIOError:
                continue
            if not head:
                return late_s
            assert not head[1] & 0x80, "lengths of one digit"
            body = metered.recv(head[1])
            backlog.now_s += READ_S
            if b"/user/alice/" in body:
                late_s.append(backlog.now_s - float(body[-12:]))


def test_beside_20_000_messages_a_second_of_one_user_anothers_arrive_in_time() -> None:
    without_s, with_s = lateness_s(None), lateness_s(MessageQuotas(TOPICS))
    assert max(without_s) > 3.0, "the flood takes longer to read than to send"
    assert len(with_s) == len(without_s) == 32
    assert max(with_s) < 0.5
