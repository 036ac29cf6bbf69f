"""The asyncio MQTT client: one connection to the broker that comes back by itself.

From the bus to the handlers: each message goes to every subscription that it matches, and to no other.

Brokers differ: amqtt also delivers retained messages that nobody asked for, and two of four deliver a message once for
each overlapping subscription. So the filters are matched again here, and handlers must bear a message twice.

One connection through aiomqtt, with what its use demands: no Nagle, a synchronous sink, quiet where it is noisy.

The asyncio side of the bus: one connection to the broker that comes back by itself.

Nothing here waits for the broker: messages are taken into a bounded outbox and subscriptions are remembered, whether
the broker is there or not. At each connection come first the birth messages, then the subscriptions, then what waits in
the outbox; after a loss also the latest retained state, in case the broker has forgotten it. Handlers run
synchronously, in the order of the messages. All of it belongs to one event loop and is not thread-safe.
"""

import asyncio
import errno
import logging
import random
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiomqtt
from aiomqtt import Wildcard
from paho.mqtt.client import topic_matches_sub

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress, Fault, Trouble
from publishers.mqtt.outbox import Outbox

Handler = Callable[[str, bytes], None]
MAX_PAYLOAD_BYTES: Final = 1 << 20
_COMPLAINT_PERIOD_S: Final = 60.0
_MAX_ROUTES: Final = 4_096
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic filter, and who wants its messages; retained ones go to `on_retained` where that is not None."""

    topic_filter: str
    handler: Handler
    on_retained: Handler | None
    qos: int

    def handler_of(self, *, retained: bool) -> Handler:
        """Return who wants a message."""
        return self.on_retained if retained and self.on_retained is not None else self.handler


class Dispatcher:
    """The subscriptions, in the order in which they were made.

    Attributes:
        handler_errors: exceptions that handlers have raised so far.
        oversized: messages of more than 1 MiB that were dropped so far.
    """

    def __init__(self) -> None:
        self.handler_errors = 0
        self.oversized = 0
        self._subscriptions: list[Subscription] = []
        # A topic's subscriptions: matching costs microseconds, and the same topics come again and again.
        self._routes: dict[str, tuple[Subscription, ...]] = {}
        self._complained_s: dict[str, float] = {}

    def __len__(self) -> int:
        """Return how many subscriptions there are."""
        return len(self._subscriptions)

    def add(self, topic_filter: str, handler: Handler, *, qos: int, on_retained: Handler | None = None) -> None:
        """Add a subscription."""
        Wildcard(topic_filter)  # raises ValueError where MQTT forbids it
        self._subscriptions.append(
            Subscription(topic_filter=topic_filter, handler=handler, on_retained=on_retained, qos=qos)
        )
        self._routes.clear()

    def filters(self, *, since: int = 0) -> dict[str, int]:
        """Return the QoS to ask for with each topic filter that was added from number `since` on."""
        qos: dict[str, int] = {}
        for subscription in self._subscriptions:
            qos[subscription.topic_filter] = max(subscription.qos, qos.get(subscription.topic_filter, 0))
        return {added.topic_filter: qos[added.topic_filter] for added in self._subscriptions[since:]}

    def deliver(self, topic: str, payload: bytes, retained: bool = False) -> None:
        """Hand a message to the handlers that want it; what they raise is counted and logged, and ends nothing."""
        for subscription in self._route(topic):
            if len(payload) > MAX_PAYLOAD_BYTES:
                self.oversized += 1
                if self._may_complain(subscription):
                    _LOGGER.warning("dropped a message of %d bytes on %s: too long", len(payload), topic)
                continue
            try:
                subscription.handler_of(retained=retained)(topic, payload)
            except Exception:  # a handler's bug on one message must not cut everybody off the bus
                self.handler_errors += 1
                if self._may_complain(subscription):
                    _LOGGER.exception("the handler of %s failed on %s", subscription.topic_filter, topic)

    def _route(self, topic: str) -> tuple[Subscription, ...]:
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            route = tuple(wanted for wanted in self._subscriptions if topic_matches_sub(wanted.topic_filter, topic))
            self._routes[topic] = route
        return route

    def _may_complain(self, subscription: Subscription) -> bool:
        """Return whether a filter's last complaint is a minute old."""
        now_s, last_s = time.monotonic(), self._complained_s.get(subscription.topic_filter)
        if last_s is not None and now_s - last_s < _COMPLAINT_PERIOD_S:
            return False
        self._complained_s[subscription.topic_filter] = now_s
        return True


KEEPALIVE_S: Final = 15
OPERATION_TIMEOUT_S: Final = 10.0
WINDOW: Final = 64
"""Messages that may be on their way without an acknowledgement."""
_NO_DELAY: Final = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
"""Without it a round trip at QoS 1 takes 44 ms longer: Nagle's algorithm waits for a delayed acknowledgement."""
_CLIENT_LOGGER = logging.getLogger(f"{__name__}.client")
_CLIENT_LOGGER.setLevel(logging.CRITICAL)  # what the client meets, the bus says, once a transition


def open_client(
    endpoint: BrokerAddress,
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
        endpoint = BrokerAddress(url=url, username=username, password=password, ca_file=ca_file)
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


__all__ = ["MqttClient", "Outgoing", "Will", "probe"]

OUTBOX_SIZE: Final = 4_096
LEAVE_TIMEOUT_S: Final = 2.0
LONGEST_PAUSE_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.25
_STEADY_S: Final = 5.0
"""A connection that lasted this long was a good one: the next attempts begin quickly again."""
_FAILED_SUBSCRIPTION: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """What the broker publishes for us when we vanish without taking leave."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


class MqttClient:
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
        self._endpoint = BrokerAddress(url=url, username=username, password=password, ca_file=ca_file)
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
