"""One connection through aiomqtt, with what its use demands: no Nagle, a synchronous sink, quiet where it is noisy."""

import asyncio
import errno
import logging
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import aiomqtt

from publishers.endpoint import Endpoint

KEEPALIVE_S: Final = 15
OPERATION_TIMEOUT_S: Final = 10.0
WINDOW: Final = 64
"""Messages that may be on their way without an acknowledgement."""
_NO_DELAY: Final = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
"""Without it a round trip at QoS 1 takes 44 ms longer: Nagle's algorithm waits for a delayed acknowledgement."""
_CLIENT_LOGGER = logging.getLogger(f"{__name__}.client")
_CLIENT_LOGGER.setLevel(logging.CRITICAL)  # what the client meets, the bus says, once a transition


def open_client(
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
    deliver: Callable[[str, bytes, bool], None],
    *,
    identifier: str | None = None,
    will: aiomqtt.Will | None = None,
    timeout_s: float = OPERATION_TIMEOUT_S,
) -> aiomqtt.Client:
    """Return a client that is still to be entered; `deliver` gets topic and payload of each message that comes at once.

    Third, it gets whether the message was retained: kept by the broker from before, for nobody knows how long.

    A client serves for one connection: used again it would send by itself what the outbox sends again, too.
    """

    class Sink(asyncio.Queue[aiomqtt.Message]):
        """The client's queue, without the queue: no task for each message, and nothing that grows."""

        def put_nowait(self, item: aiomqtt.Message) -> None:
            deliver(item.topic.value, item.payload, item.retain)

    client = aiomqtt.Client(
        endpoint.host,
        endpoint.port,
        username=endpoint.username or None,
        password=endpoint.password or None,
        logger=_CLIENT_LOGGER,
        identifier=identifier,
        queue_type=Sink,
        will=will,
        timeout=timeout_s,
        keepalive=KEEPALIVE_S,
        max_inflight_messages=WINDOW,
        tls_context=tls,
        socket_options=_NO_DELAY,
    )
    client.pending_calls_threshold = WINDOW
    return client


async def listen(client: aiomqtt.Client) -> None:
    """Return never: raise MqttError when the connection ends. The messages themselves go to the client's sink."""
    async for _ in client.messages:
        pass


async def probe(
    url: str,
    *,
    username: str = "",
    password: str = "",
    ca_file: str = "",
    root: str = "gridchase/v1",
    timeout_s: float = 5.0,
) -> str | None:
    """Send a message through the broker and back; return None, or what is wrong, in a sentence that says what to do."""
    try:
        endpoint = Endpoint(url=url, username=username, password=password, ca_file=ca_file)
    except ValueError as error:
        return str(error)
    topic, came_back = f"{root}/probe/{secrets.token_hex(8)}", asyncio.Event()
    quieten(asyncio.get_running_loop())
    try:
        tls = await asyncio.to_thread(endpoint.tls_context)
        client = open_client(endpoint, tls, lambda *_: came_back.set(), timeout_s=timeout_s)
        async with client, asyncio.timeout(timeout_s):
            await client.subscribe(topic, 1)
            await client.publish(topic, b"probe", 1)
            await came_back.wait()
    except TimeoutError:
        return f"{endpoint.address}: a message on {topic} does not come back: check the broker's access rules"
    except (aiomqtt.MqttError, OSError) as error:
        return endpoint.explain(error).sentence
    return None


class _QuietHandler:
    """An exception handler for the loop that leaves out what aiomqtt reports although it is handled.

    When a connection breaks, a call to watch its socket may still be in the loop's queue: a bad file descriptor,
    harmless. A connection may end with an error that nobody waited for any more. And one that was given up while it
    opened finds its future cancelled when the broker closes it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = loop.get_exception_handler()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, message = context.get("exception"), str(context.get("message"))
        late_watch = isinstance(error, OSError) and error.errno == errno.EBADF and "_writer" in message
        forgotten_end = isinstance(error, aiomqtt.MqttError) and "never retrieved" in message
        given_up = isinstance(error, asyncio.CancelledError) and "in callback" in message
        if late_watch or forgotten_end or given_up:
            return
        if self._inner is None:
            loop.default_exception_handler(context)
        else:
            self._inner(loop, context)


def quieten(loop: asyncio.AbstractEventLoop) -> None:
    """Keep aiomqtt's harmless noise from the loop's exception handler; once is enough for a loop."""
    if not isinstance(loop.get_exception_handler(), _QuietHandler):
        loop.set_exception_handler(_QuietHandler(loop))
