"""The asyncio side of the bus: one connection to the broker that comes back by itself.

Nothing here waits for the broker: messages are taken into a bounded outbox and subscriptions are remembered, whether
the broker is there or not. At each connection come first the birth messages, then the subscriptions, then what waits in
the outbox; after a loss also the latest retained state, in case the broker has forgotten it. Handlers run
synchronously, in the order of the messages. All of it belongs to one event loop and is not thread-safe.
"""

import asyncio
import logging
import random
import secrets
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import aiomqtt

from publishers.dispatch import Dispatcher, Handler
from publishers.endpoint import Endpoint, Fault, Trouble
from publishers.link import WINDOW, listen, open_client, probe, quieten
from publishers.outbox import Outbox, Outgoing

__all__ = ["Bus", "Outgoing", "Will", "probe"]

OUTBOX_SIZE: Final = 4_096
LEAVE_TIMEOUT_S: Final = 2.0
LONGEST_PAUSE_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.25
_STEADY_S: Final = 5.0
"""A connection that lasted this long was a good one: the next attempts begin quickly again."""
_FAILED_SUBSCRIPTION: Final = 128
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """What the broker publishes for us when we vanish without taking leave."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


class Bus:
    """A connection to the broker, held while `async with bus:` runs; leaving it sends what waits, then takes leave.

    Attributes:
        connected: whether the broker is there and knows our subscriptions.
        last_error: why it is not, or what it refused, in a sentence; None while all is well.
    """

    def __init__(
        self,
        *,
        url: str,
        username: str = "",
        password: str = "",
        ca_file: str = "",
        identifier: str | None = None,
        will: Will | None = None,
        birth: Callable[[], Iterable[Outgoing]] | None = None,
    ) -> None:
        self.connected = False
        self.last_error: str | None = None
        self._endpoint = Endpoint(url=url, username=username, password=password, ca_file=ca_file)
        # One name for life: when we come back, the broker ends what is left of our former connection, with its will,
        # before our birth. Under a new name the old will would come after it, and stay.
        self._identifier = identifier or f"gridchase-{secrets.token_hex(6)}"
        self._will = will
        self._birth = birth
        self._dispatcher = Dispatcher()
        self._outbox = Outbox(OUTBOX_SIZE)
        self._subscribed = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._leaving = False
        self._told: set[Trouble] = set()

    @property
    def dropped(self) -> int:
        """Return how many messages a full outbox has lost so far."""
        return self._outbox.dropped

    @property
    def handler_errors(self) -> int:
        """Return how many exceptions handlers have raised so far."""
        return self._dispatcher.handler_errors

    @property
    def oversized(self) -> int:
        """Return how many messages were dropped because they were longer than 1 MiB."""
        return self._dispatcher.oversized

    def set_birth(self, birth: Callable[[], Iterable[Outgoing]]) -> None:
        """Publish what `birth()` returns first thing at every connection."""
        self._birth = birth

    def subscribe(
        self, topic_filter: str, handler: Handler, *, qos: int = 0, on_retained: Handler | None = None
    ) -> None:
        """Call `handler(topic, payload)` for each message under `topic_filter`, now and after every reconnection.

        What the broker has retained comes at every connection, however old it is; it goes to `on_retained` where that
        is given.
        Handlers must not wait, and must bear a message twice. What they raise is counted and logged.
        """
        self._dispatcher.add(topic_filter, handler, qos=qos, on_retained=on_retained)
        self._subscribed.set()

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Send a message, or keep it until the broker is back; never waits. A full outbox drops its oldest.

        Raises:
            ValueError: MQTT forbids this topic or QoS.
        """
        aiomqtt.Topic(topic)
        if qos not in {0, 1}:
            raise ValueError(f"qos = {qos}: must be 0 or 1")
        message = Outgoing(topic=topic, payload=payload, qos=qos, retain=retain)
        self._outbox.put(message, latest_only=not self.connected)

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything is sent and, at QoS 1, acknowledged; return whether it was, within `timeout_s` [s]."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._outbox.settled.wait()
        except TimeoutError:
            return False
        return True

    async def __aenter__(self) -> Self:
        """Begin to connect; does not wait for the broker."""
        quieten(asyncio.get_running_loop())
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._running = self._tasks.create_task(self._run(), name=f"bus[{self._endpoint.address}]")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what waits, within a bounded time, and take leave, so that no will is published."""
        try:
            if not self._running.done() and not await self.flush(LEAVE_TIMEOUT_S):
                why = self.last_error or "no time left"
                _LOGGER.warning("left the bus with %d messages unsent: %s", len(self._outbox), why)
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._at_rest.wait()
        except TimeoutError:
            _LOGGER.debug("left the bus in the middle of an attempt to connect")
        finally:
            self._leaving = True
            self._running.cancel()
            # A task group wraps whatever its body raises; this one is our own affair, so only a cancellation, which
            # may be its own way to report a bug in our task, is passed to it.
            cancelled = isinstance(error, asyncio.CancelledError)
            await self._tasks.__aexit__(*((kind, error, trace) if cancelled else (None, None, None)))

    async def _run(self) -> None:
        loop, attempt = asyncio.get_running_loop(), 0
        while True:
            began_s, fault = loop.time(), None
            try:
                await self._session()
            except* (aiomqtt.MqttError, OSError) as errors:
                fault = self._endpoint.explain(_first(errors))
            if fault is not None:
                self._tell(fault)
            if self._leaving:  # a failure to take leave must not undo that we are leaving
                return
            attempt = 0 if loop.time() - began_s > _STEADY_S else attempt + 1
            await asyncio.sleep(_pause_s(attempt, fault))

    async def _session(self) -> None:
        """Connect, greet, and serve until the connection ends, which raises."""
        try:
            async with AsyncExitStack() as stack:
                with self._connecting():
                    tls = await asyncio.to_thread(self._endpoint.tls_context)
                    client = await stack.enter_async_context(self._client(tls))
                n_subscribed = await self._greet(client)
                if self._leaving:  # Python 3.11 loses a cancellation that comes together with an acknowledgement
                    return
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(listen(client), name="bus: listen")
                    tasks.create_task(self._send(client, tasks), name="bus: send")
                    tasks.create_task(self._keep_subscribed(client, n_subscribed), name="bus: subscribe")
        finally:
            self.connected = False
            self._outbox.recover()

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Mark the time in which a thread of the client opens the connection: it cannot be called back."""
        self._at_rest.clear()
        try:
            yield
        finally:
            self._at_rest.set()

    def _client(self, tls: ssl.SSLContext | None) -> aiomqtt.Client:
        will = None
        if self._will is not None:
            will = aiomqtt.Will(self._will.topic, self._will.payload, self._will.qos, self._will.retain)
        return open_client(self._endpoint, tls, self._dispatcher.deliver, identifier=self._identifier, will=will)

    async def _greet(self, client: aiomqtt.Client) -> int:
        """Publish the birth messages, queue the latest state again and subscribe; return how many subscriptions."""
        births = list(self._birth()) if self._birth else []
        for message in births:
            await client.publish(message.topic, message.payload, message.qos, message.retain)
        self._outbox.repeat_state(but={message.topic for message in births})
        self.last_error = None
        self._told.clear()
        n_subscribed = await self._subscribe(client, since=0)
        self.connected = True
        _LOGGER.info("connected to the broker at %s", self._endpoint.url)
        return n_subscribed

    async def _keep_subscribed(self, client: aiomqtt.Client, n_subscribed: int) -> None:
        while True:
            await self._subscribed.wait()
            n_subscribed = await self._subscribe(client, since=n_subscribed)

    async def _subscribe(self, client: aiomqtt.Client, *, since: int) -> int:
        self._subscribed.clear()
        n_subscribed, filters = len(self._dispatcher), self._dispatcher.filters(since=since)
        for topic_filter, qos in filters.items():
            for code in await client.subscribe(topic_filter, qos):
                if (code if isinstance(code, int) else code.value) >= _FAILED_SUBSCRIPTION:
                    self.last_error = f"the broker refuses the subscription to {topic_filter}: check its access rules"
                    _LOGGER.error("%s", self.last_error)
        return n_subscribed

    async def _send(self, client: aiomqtt.Client, tasks: asyncio.TaskGroup) -> None:
        window = asyncio.Semaphore(WINDOW)
        while True:
            await window.acquire()
            number, message = await self._outbox.get()
            tasks.create_task(self._transmit(client, number, message, window), name="bus: transmit")
            await asyncio.sleep(0)  # so that messages are on the wire in their order, and others get their turn

    async def _transmit(
        self, client: aiomqtt.Client, number: int, message: Outgoing, window: asyncio.Semaphore
    ) -> None:
        """Publish a message and wait until it is acknowledged, or at QoS 0 written."""
        await client.publish(message.topic, message.payload, message.qos, message.retain)
        self._outbox.confirm(number)
        window.release()

    def _tell(self, fault: Fault) -> None:
        """Log a fault once between two connections."""
        self.last_error = fault.sentence
        if fault.trouble not in self._told:
            self._told.add(fault.trouble)
            _LOGGER.warning("%s; trying again", fault.sentence)


def _pause_s(attempt: int, fault: Fault | None) -> float:
    """Return how long to wait before the next attempt: longer each time, and at random, lest all come at once [s]."""
    longest_s = min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 16))
    if fault is not None and fault.trouble is Trouble.PASSWORD:
        longest_s = LONGEST_PAUSE_S  # a wrong password stays wrong; brokers ban those who try too often
    return random.uniform(0.5, 1.0) * longest_s  # noqa: S311 — jitter is no secret


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first single error in a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
