"""One connection of aiomqtt, as our client needs it: dispatched at once, metered, and quiet about what is handled."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import aiomqtt
from aiomqtt.exceptions import MqttCodeError, MqttConnectError
from paho.mqtt import client as paho
from paho.mqtt.enums import MessageType

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress, ConnectionFault
from publishers.mqtt.receiving.metered_socket import MeteredSocket

KEEPALIVE_S: Final = 15
OPERATION_TIMEOUT_S: Final = 10.0
"""How long a broker that owes an answer may say nothing at all."""
MAX_IN_FLIGHT: Final = 64
"""Messages that may be on their way without an acknowledgement."""
_NO_DELAY: Final = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
"""Without it a round trip at QoS 1 takes 44 ms longer: Nagle's algorithm waits for a delayed acknowledgement."""
_LOGGER = logging.getLogger(f"{__name__}.aiomqtt")
_LOGGER.setLevel(logging.CRITICAL)  # `MqttClient` logs each change of the connection itself


def open_client(
    address: BrokerAddress,
    tls: ssl.SSLContext | None,
    dispatch: Callable[[str, bytes, bool], None],
    *,
    identifier: str | None = None,
    will: Outgoing | None = None,
    timeout_s: float = OPERATION_TIMEOUT_S,
    allows: Callable[[bytes], bool] | None = None,
) -> aiomqtt.Client:
    """Return a client that is not entered yet, for one connection: used again it would resend what the outbox resends.

    `dispatch` is called at once with the topic, the payload and the retain flag of each message that `allows` lets
    through by its topic.
    """

    class DispatchQueue(asyncio.Queue[aiomqtt.Message]):
        """The client's queue, without the queue: no task for each message, and nothing that grows."""

        def put_nowait(self, item: aiomqtt.Message) -> None:
            dispatch(item.topic.value, item.payload, item.retain)

    client = _Client(
        address.host,
        address.port,
        username=address.username or None,
        password=address.password or None,
        logger=_LOGGER,
        identifier=identifier,
        queue_type=DispatchQueue,
        will=None if will is None else aiomqtt.Will(will.topic, will.payload, will.qos, will.retain),
        timeout=timeout_s,
        keepalive=KEEPALIVE_S,
        max_inflight_messages=MAX_IN_FLIGHT,
        tls_context=tls,
        socket_options=_NO_DELAY,
    )
    client.pending_calls_threshold = MAX_IN_FLIGHT
    client.allows = allows
    return client


class _Client(aiomqtt.Client):
    """Reads through a socket that drops what is too much; does not wait for CONNACK on a connection that is closed."""

    allows: Callable[[bytes], bool] | None = None
    """Whether a message of a topic is to be read; None: every one is."""

    def _on_socket_open(self, client: paho.Client, userdata: Any, sock: Any) -> None:  # noqa: ANN401 — paho's own
        if self.allows is not None:
            acknowledge = partial(_acknowledge, client)
            sock = client._sock = MeteredSocket(sock, self.allows, acknowledge)  # noqa: SLF001 — paho takes no socket
        super()._on_socket_open(client, userdata, sock)

    def _on_disconnect(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 — paho's callback
        if not self._connected.done():
            self._connected.set_exception(ConnectionAbortedError())
        super()._on_disconnect(*arguments, **options)


def _acknowledge(client: paho.Client, packets: bytes) -> None:
    """Send acknowledgements behind what paho is writing; it never looks into them."""
    client._packet_queue(MessageType.PUBACK, packets, 0, 0)  # noqa: SLF001 — `ack` costs as much as reading the message


async def receive(client: aiomqtt.Client) -> None:
    """Never return: raise MqttError when the connection ends. The messages themselves go to the dispatch queue."""
    async for _ in client.messages:
        pass


def explain(address: BrokerAddress, error: BaseException) -> ConnectionFault:
    """Return what an error of aiomqtt, or one beneath it, means."""
    if isinstance(error, MqttConnectError):
        return address.explain_refusal(error.rc)
    beneath = error.__cause__ or error.__context__
    if isinstance(error, aiomqtt.MqttError) and not isinstance(error, MqttCodeError):
        if beneath is not None:  # aiomqtt turns every OSError into an MqttError with the same words
            return explain(address, beneath)
        if "timed out" in str(error):
            return address.explain_silence()
    return address.explain(error)


class _QuietExceptionHandler:
    """An exception handler of the loop that leaves out what aiomqtt reports although it is handled.

    When a connection breaks, a call to watch its socket may still be in the loop's queue: a bad file descriptor,
    harmless. A connection may end with an error that no task awaits any more. And one that was given up while it
    opened finds its future cancelled when the broker closes it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = loop.get_exception_handler()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, message = context.get("exception"), str(context.get("message"))
        late_watch = isinstance(error, OSError) and error.errno == errno.EBADF and "_writer" in message
        unawaited_end = isinstance(error, aiomqtt.MqttError) and "never retrieved" in message
        given_up = isinstance(error, asyncio.CancelledError) and "in callback" in message
        if late_watch or unawaited_end or given_up:
            return
        if self._inner is None:
            loop.default_exception_handler(context)
        else:
            self._inner(loop, context)


def install_quiet_handler(loop: asyncio.AbstractEventLoop) -> None:
    """Keep aiomqtt's harmless noise from the loop's exception handler; once is enough for a loop."""
    if not isinstance(loop.get_exception_handler(), _QuietExceptionHandler):
        loop.set_exception_handler(_QuietExceptionHandler(loop))
