"""One connection through aiomqtt: what a probe says of a broker, and what must not reach the user's terminal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from publishers.bus import Bus, probe
from publishers.link import OPERATION_TIMEOUT_S
from tests.live.conftest import Mosquitto, SecureMosquitto, eventually

pytestmark = pytest.mark.live
# paho leaves the socket of a failed handshake to the garbage collector.
failed_handshake = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")


@asynccontextmanager
async def silence() -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Something that takes connections and never says a word."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", writers
    server.close()
    for writer in writers:
        writer.close()


async def test_a_probe_finds_nothing_wrong_where_nothing_is(broker: Mosquitto, secure_broker: SecureMosquitto) -> None:
    assert await probe(broker.url) is None
    password, ca_file = secure_broker.password, secure_broker.ca_file
    assert await probe(secure_broker.url, username="node", password=password, ca_file=ca_file) is None


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mqtt://127.0.0.1:1", "nothing listens at 127.0.0.1:1: start a broker"),
        ("mqtt://no-such-host.invalid", "the name 'no-such-host.invalid' cannot be resolved"),
        ("http://127.0.0.1", "must be mqtt://host[:port]"),
    ],
)
async def test_a_probe_says_why_nobody_answers(url: str, sentence: str) -> None:
    assert sentence in str(await probe(url))


@failed_handshake
async def test_a_probe_tells_what_a_broker_with_tls_and_passwords_misses(secure_broker: SecureMosquitto) -> None:
    url, ca_file = secure_broker.url, secure_broker.ca_file
    assert "asks for a user name and a password" in str(await probe(url, ca_file=ca_file))
    assert "is not trusted" in str(await probe(url))
    assert "bus.ca_file /no/such/file: No such file" in str(await probe(url, ca_file="/no/such/file"))
    plain = url.replace("mqtts://", "mqtt://")
    assert "a broker with TLS needs mqtts://" in str(await probe(plain, timeout_s=1.0))


@failed_handshake
async def test_a_probe_with_tls_of_a_plain_broker_says_so(broker: Mosquitto) -> None:
    assert "does it speak TLS at this port" in str(await probe(broker.url.replace("mqtt://", "mqtts://")))


async def test_a_probe_of_something_that_is_no_broker_ends_in_time() -> None:
    async with silence() as (url, _):
        assert "does not answer in time" in str(await probe(url, timeout_s=0.5))


async def test_leaving_in_the_middle_of_an_attempt_to_connect_takes_no_long_time() -> None:
    began_s = asyncio.get_running_loop().time()
    async with silence() as (url, writers), Bus(url=url) as bus:
        bus.publish("topic", b"never sent")
        await eventually(lambda: writers)
    assert asyncio.get_running_loop().time() - began_s < OPERATION_TIMEOUT_S - 1.0


async def test_a_late_call_to_watch_a_closed_socket_is_no_news_but_a_bug_is(broker: Mosquitto) -> None:
    reported: list[str] = []

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reported.append(repr(context["exception"]))

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report)
    async with Bus(url=broker.url) as bus:
        await eventually(lambda: bus.connected)
        loop.call_soon(loop.add_writer, 9_999, print)  # no such descriptor: as aiomqtt does when the broker dies
        loop.call_soon(lambda: 1 // 0)
        await eventually(lambda: reported)
    assert reported == ["ZeroDivisionError('integer division or modulo by zero')"]
