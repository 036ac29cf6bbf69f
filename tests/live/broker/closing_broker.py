"""A broker that closes the connection when a message comes that it does not take, as MQTT 3.1.1 has it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from publishers.messages.codec import Outgoing

_CONNECT, _PUBLISH, _SUBSCRIBE, _UNSUBSCRIBE, _PINGREQ = 1, 3, 8, 10, 12
_MQTT_5: Final = 5
_WILL_RETAIN: Final = 0x20
_DENIED: Final = 0x80


@dataclass
class ClosingBroker:
    """What it takes, and what came.

    Attributes:
        refuses: whether it closes the connection at this message.
        stated: the properties of its CONNACK in MQTT 5; None: it speaks 3.1.1 alone.
        refuses_filters: whether it closes the connection at a subscription to these topic filters.
        denied: the topic filters to which it answers with a refusal.
        leaves_unanswered: whether it takes a subscription to these topic filters, and does not answer.
        answers_unsubscribe: whether it answers an UNSUBSCRIBE.
        is_silent: whether it says nothing after it has accepted a connection.
        n_crashes: how many connections more it closes at the first packet after CONNECT.
        refuses_retained_will: whether it closes the connection instead of answering a CONNECT with one.
        taken: the messages that it has taken.
        subscribed: the topic filters of each subscription that it has taken.
        n_connections: how many connections in MQTT 3.1.1 it has accepted.
        n_questions: how many connections in MQTT 5 came.
    """

    refuses: Callable[[Outgoing], bool] = lambda _: False
    stated: bytes | None = None
    refuses_filters: Callable[[list[str]], bool] = lambda _: False
    denied: frozenset[str] = frozenset()
    leaves_unanswered: Callable[[list[str]], bool] = lambda _: False
    answers_unsubscribe: bool = True
    is_silent: bool = False
    n_crashes: int = 0
    refuses_retained_will: bool = False
    taken: list[Outgoing] = field(default_factory=list)
    subscribed: list[list[str]] = field(default_factory=list)
    n_connections: int = 0
    n_questions: int = 0
    url: str = ""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, OSError):
            while (answer := self._answer(*await _read_packet(reader))) is not None:
                writer.write(answer)
        writer.close()

    async def end(self) -> None:
        """Close what is still open."""
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _answer(self, header: int, body: bytes) -> bytes | None:
        """Return the answer to a packet; None closes the connection."""
        kind, answer = header >> 4, None
        if self.n_crashes and kind != _CONNECT:
            self.n_crashes -= 1
        elif kind == _CONNECT:
            answer = self._accept(body)
        elif self.is_silent:
            answer = b""
        elif kind == _PUBLISH:
            answer = self._take(header, body)
        elif kind == _SUBSCRIBE:
            answer = self._subscribe(body)
        elif kind == _UNSUBSCRIBE:
            answer = b"\xb0\x02" + body[:2] if self.answers_unsubscribe else b""
        elif kind == _PINGREQ:
            answer = b"\xd0\x00"
        return answer

    def _accept(self, body: bytes) -> bytes | None:
        if body[6] == _MQTT_5:
            self.n_questions += 1
            stated = self.stated
            return None if stated is None else bytes([0x20, 3 + len(stated), 0, 0, len(stated)]) + stated
        if self.refuses_retained_will and body[7] & _WILL_RETAIN:
            return None
        self.n_connections += 1
        return b"\x20\x02\x00\x00"

    def _subscribe(self, body: bytes) -> bytes | None:
        topic_filters, rest = [], body[2:]
        while rest:
            end = 2 + int.from_bytes(rest[:2])
            topic_filters.append(rest[2:end].decode())
            rest = rest[end + 1 :]
        if self.refuses_filters(topic_filters):
            return None
        self.subscribed.append(topic_filters)
        if self.leaves_unanswered(topic_filters):
            return b""
        codes = bytes(_DENIED if each in self.denied else 0 for each in topic_filters)
        return bytes([0x90, 2 + len(codes)]) + body[:2] + codes

    def _take(self, header: int, body: bytes) -> bytes | None:
        qos, end = header >> 1 & 3, 2 + int.from_bytes(body[:2])
        payload = body[end + 2 * bool(qos) :]
        message = Outgoing(topic=body[2:end].decode(), payload=payload, qos=qos, retain=bool(header & 1))
        if self.refuses(message):
            return None
        self.taken.append(message)
        return b"\x40\x02" + body[end : end + 2] if qos else b""


async def _read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    header, n_bytes, shift = (await reader.readexactly(1))[0], 0, 0
    while True:
        digit = (await reader.readexactly(1))[0]
        n_bytes |= (digit & 0x7F) << shift
        shift += 7
        if digit < 0x80:
            return header, await reader.readexactly(n_bytes)


@asynccontextmanager
async def serving(broker: ClosingBroker, port: int = 0) -> AsyncIterator[ClosingBroker]:
    """Run it on a port; 0: on a free one."""
    server = await asyncio.start_server(broker.serve, "127.0.0.1", port)
    broker.url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield broker
    finally:
        server.close()
        await broker.end()
