"""The bus on the bench: either broker, a second client that listens, and a wire that can be cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

import pytest

from publishers.mqtt.client import MqttClient
from publishers.mqtt.embedded_broker import embedded_broker, find_mosquitto
from tests.live.conftest import eventually

Kind = Literal["mosquitto", "amqtt"]
both = pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])


class Inbox:
    """A handler that remembers what it was given."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []

    def __call__(self, topic: str, payload: bytes) -> None:
        self.messages.append((topic, payload))

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.messages]


class Proxy:
    """Stands between a client and its broker, and can cut the wire."""

    def __init__(self, upstream: str) -> None:
        self._host, _, port = upstream.removeprefix("mqtt://").partition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:  # the broker is gone already: a client that has left may have been connecting to the last
            writer.close()
            return
        ends = {writer, up_writer}
        self._writers |= ends
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(reader, up_writer))
            tasks.create_task(_copy(up_reader, writer))
        self._writers -= ends

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        proxy.cut()
        server.close()


@asynccontextmanager
async def running(kind: Kind) -> AsyncIterator[str]:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed: apt-get install mosquitto")
    async with embedded_broker(prefer=kind) as broker:
        yield broker.url


@asynccontextmanager
async def subscribed(url: str, topic_filter: str) -> AsyncIterator[Inbox]:
    """A second client, to see what the first one published."""
    inbox = Inbox()
    async with MqttClient(url=url) as bus:
        bus.subscribe(topic_filter, inbox, qos=1)
        await eventually(lambda: bus.connected)
        yield inbox
