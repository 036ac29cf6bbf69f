"""The asyncio MQTT client: one connection to the broker, with automatic reconnection.

Callers never wait for the broker: messages go to a bounded outbox and subscriptions are stored, connected or not. Each
connection begins with the birth messages, then all subscriptions, then the outbox; after a reconnection also the latest
retained messages, in case the broker has lost them. What the broker refuses costs that message or subscription alone,
see `Refusals`. Handlers run synchronously, in the order of the messages. The client belongs to one event loop and is
not thread-safe. With quotas, the messages of who sends too many are dropped unread: one sender's flood delays nobody
else's.

A broker sends its answers behind whatever it sent before. So a connection is given up when an answer is due and
*nothing* has come for ten seconds: however long a backlog is, it only delays the answers behind it.
"""

import asyncio
import logging
import math
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import aiomqtt

from publishers.messages.codec import Outgoing
from publishers.mqtt.aiomqtt_client import (
    MAX_IN_FLIGHT,
    OPERATION_TIMEOUT_S,
    explain,
    install_quiet_handler,
    open_client,
    receive,
)
from publishers.mqtt.broker_address import BrokerAddress, BrokerAddressError, ConnectionFault, FaultKind, SettingNames
from publishers.mqtt.broker_limits import fetch_limits
from publishers.mqtt.client_id import new_client_id
from publishers.mqtt.receiving.dispatcher import Dispatcher, Handler
from publishers.mqtt.receiving.quotas import MessageQuotas
from publishers.mqtt.sending.outbox import Outbox
from publishers.mqtt.sending.refusals import Refusals

__all__ = ["Handler", "MqttClient", "Outgoing", "probe_broker"]

OUTBOX_SIZE: Final = 4_096
DISCONNECT_TIMEOUT_S: Final = 2.0
MAX_RETRY_DELAY_S: Final = 30.0
_FIRST_RETRY_DELAY_S: Final = 0.25
_STABLE_S: Final = 5.0
"""After a connection that lasted this long the retries begin with short delays again."""
_WATCH_PERIOD_S: Final = 0.5
_LOGGER = logging.getLogger(__name__)


class MqttClient:
    """A connection to the broker, held while `async with client:` runs; leaving it sends the outbox and disconnects.

    Args:
        url: the broker, see `BrokerAddress`.
        username: our user name; "": none.
        password: its password.
        ca_file: the certificate authorities that the broker is checked against; "": those of the system.
        identifier: the client id; by default a random one.
        will: what the broker publishes when this client vanishes without disconnecting.
        birth: returns the messages to publish first at each connection.
        quotas: how many messages of each sender are read; None: all.
        setting_names: what the program calls the settings above, for its error messages.

    Attributes:
        connected: whether the broker is connected and has our subscriptions, apart from those that it refuses.

    Raises:
        BrokerAddressError: the URL is malformed.
    """

    def __init__(
        self,
        *,
        url: str,
        username: str = "",
        password: str = "",
        ca_file: str = "",
        identifier: str | None = None,
        will: Outgoing | None = None,
        birth: Callable[[], Iterable[Outgoing]] | None = None,
        quotas: MessageQuotas | None = None,
        setting_names: SettingNames | None = None,
    ) -> None:
        self.quotas = quotas
        self.connected = False
        self._fault: str | None = None
        self._address = BrokerAddress(url=url, username=username, password=password, ca_file=ca_file)
        self._names = setting_names or SettingNames()
        # One id for life: at a reconnection the broker ends what is left of our former connection, with its will,
        # before our birth. Under a new id the old will would come after it, and stay.
        self._identifier = identifier or new_client_id()
        self._will = will
        self._birth: Callable[[], Iterable[Outgoing]] = birth or tuple
        self._dispatcher = Dispatcher()
        self._outbox = Outbox(OUTBOX_SIZE)
        self._refusals, self._asks_limits = Refusals(time.monotonic), False
        self._subscriptions_changed = asyncio.Event()
        self._n_unanswered = 0
        self._heard_s = 0.0
        self._not_connecting = asyncio.Event()
        self._not_connecting.set()
        self._is_leaving = False
        self._logged_faults: set[FaultKind] = set()

    @property
    def last_error(self) -> str | None:
        """Return why the broker is not connected, or which subscriptions it refuses; None while all is well."""
        refused = list(self._refusals.filter_faults.values())
        if self._fault or not refused:
            return self._fault
        return refused[0] + (f" (and {len(refused) - 1} more)" if refused[1:] else "")

    @property
    def dropped(self) -> int:
        """Return how many messages a full outbox has dropped so far."""
        return self._outbox.dropped

    @property
    def handler_errors(self) -> int:
        """Return how many exceptions handlers have raised so far."""
        return self._dispatcher.handler_errors

    @property
    def oversized(self) -> int:
        """Return how many messages were dropped because they were longer than 1 MiB."""
        return self._dispatcher.oversized

    def subscribe(
        self, topic_filter: str, handler: Handler, *, qos: int = 0, on_retained: Handler | None = None
    ) -> None:
        """Call `handler(topic, payload)` for each message under `topic_filter`, now and after every reconnection.

        The broker sends what it has retained at every connection, however old that is; it goes to `on_retained` if
        given. Handlers must not wait, and must tolerate duplicates. What they raise is counted and logged.

        Raises:
            ValueError: MQTT forbids this topic filter.
        """
        self._dispatcher.add(topic_filter, handler, qos=qos, on_retained=on_retained)
        self._subscriptions_changed.set()

    def unsubscribe(self, topic_filter: str, handler: Handler) -> None:
        """Undo one `subscribe`; a message that is on its way may still come to the other handlers of the filter."""
        self._dispatcher.remove(topic_filter, handler)
        self._subscriptions_changed.set()

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Send a message, or keep it until the broker is back; never waits. A full outbox drops its oldest message.

        Raises:
            ValueError: MQTT forbids this topic, or the QoS is not 0 or 1.
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
        install_quiet_handler(asyncio.get_running_loop())
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._running = self._tasks.create_task(self._run(), name=f"mqtt[{self._address.host_and_port}]")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send the outbox, within a bounded time, and disconnect, so that the will is not published."""
        try:
            if not self._running.done() and not await self.flush(DISCONNECT_TIMEOUT_S):
                why = self.last_error or "no time left"
                _LOGGER.warning("disconnecting with %d messages unsent: %s", len(self._outbox), why)
            async with asyncio.timeout(DISCONNECT_TIMEOUT_S):
                await self._not_connecting.wait()
        except TimeoutError:
            _LOGGER.debug("gave up an attempt to connect")
        finally:
            self._is_leaving = True
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
                await self._run_session()
            except* (aiomqtt.MqttError, OSError) as errors:
                fault = explain(self._address, _first(errors))
            closed = fault is not None and fault.kind is FaultKind.OTHER
            self._refusals.on_connection_lost(by_broker=closed)
            if fault is not None:
                self._report(fault)
                if fault.is_absence:
                    self._refusals.on_away()
                self._asks_limits |= closed or fault.kind is FaultKind.TIMEOUT
            if self._is_leaving:  # a failure to disconnect must not undo that we are leaving
                return
            attempt = 0 if loop.time() - began_s > _STABLE_S else attempt + 1
            await asyncio.sleep(_retry_delay_s(attempt, fault))

    async def _run_session(self) -> None:
        """Connect, and serve until the connection ends, which raises."""
        try:
            async with AsyncExitStack() as stack:
                with self._connecting():
                    await self._ask_limits()
                    tls = await asyncio.to_thread(self._address.tls_context)
                    will = self._will and self._refusals.admit(self._will)
                    client = await stack.enter_async_context(
                        open_client(
                            self._address,
                            tls,
                            self._on_message,
                            identifier=self._identifier,
                            will=will,
                            allows=None if self.quotas is None else partial(self._allows, self.quotas),
                        )
                    )
                async with asyncio.TaskGroup() as tasks:
                    watches = [tasks.create_task(each, name="mqtt: watch") for each in (self._watch(), receive(client))]
                    await self._announce(client, tasks)
                    if self._is_leaving:  # a cancellation may get lost that comes together with an acknowledgement
                        for watch in watches:
                            watch.cancel()
                        return
                    tasks.create_task(self._send(client, tasks), name="mqtt: send")
                    tasks.create_task(self._keep_subscribed(client, tasks), name="mqtt: subscribe")
        finally:
            self.connected = False
            self._n_unanswered = 0
            self._outbox.requeue_unacknowledged()

    def _allows(self, quotas: MessageQuotas, topic: bytes) -> bool:
        """Return whether a message is to be read; one that is not is a sign of life all the same."""
        self._heard_s = asyncio.get_running_loop().time()
        return quotas.allows(topic, self._heard_s)

    async def _ask_limits(self) -> None:
        """Ask for the broker's limits after it has closed a connection, until it answers."""
        if self._asks_limits:
            limits = await asyncio.to_thread(fetch_limits, self._address, identifier=self._identifier)
            if limits is not None:
                self._refusals.set_limits(limits)
                self._asks_limits = False

    def _on_message(self, topic: str, payload: bytes, retained: bool) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        self._dispatcher.dispatch(topic, payload, retained)

    async def _answered(self, call: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 — whatever the call returns
        """Await what the broker answers, for as long as it says anything: `_watch` ends the connection if not."""
        loop = asyncio.get_running_loop()
        if not self._n_unanswered:
            self._heard_s = loop.time()
        self._n_unanswered += 1
        answer = await call
        self._n_unanswered -= 1
        self._heard_s = loop.time()
        return answer

    async def _watch(self) -> None:
        """Raise where an answer is due and nothing but pings (paho's affair) has come; try again what was refused."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_PERIOD_S)
            if self._n_unanswered and loop.time() - self._heard_s >= OPERATION_TIMEOUT_S:
                raise aiomqtt.MqttError("Operation timed out")
            if self._refusals.pop_ended():
                self._outbox.requeue_retained(except_topics=())
                for message in self._birth():
                    self._outbox.put(message, latest_only=True)
            if ended := self._refusals.pop_ended_filters():
                self._dispatcher.renew(ended)
                self._subscriptions_changed.set()

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Mark the time in which a thread of the client opens the connection: it cannot be called back."""
        self._not_connecting.clear()
        try:
            yield
        finally:
            self._not_connecting.set()

    async def _announce(self, client: aiomqtt.Client, tasks: asyncio.TaskGroup) -> None:
        """Publish the birth messages, queue the retained ones again and subscribe."""
        if self._refusals.awaits_answer:
            await self._answered(client.unsubscribe(self._identifier, timeout=math.inf))
            self._refusals.on_answered()
        births = list(self._birth())
        for message in births:
            await self._publish(client, message)
        self._outbox.requeue_retained(except_topics={message.topic for message in births})
        self._fault = None
        self._logged_faults.clear()
        filters = self._dispatcher.filters()
        self._refusals.forget_filters(each for each in self._dispatcher.take_changes() if each not in filters)
        await self._subscribe(client, tasks, filters)
        self.connected = True
        _LOGGER.info("connected to the broker at %s", self._address.url)

    async def _keep_subscribed(self, client: aiomqtt.Client, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._subscriptions_changed.wait()
            self._subscriptions_changed.clear()
            changed, filters = self._dispatcher.take_changes(), self._dispatcher.filters()
            gone = [topic_filter for topic_filter in changed if topic_filter not in filters]
            for packet in self._refusals.admit_filters(gone):
                await self._answered(client.unsubscribe(packet, timeout=math.inf))
            self._refusals.forget_filters(gone)
            await self._subscribe(client, tasks, {each: filters[each] for each in changed if each in filters})

    async def _subscribe(self, client: aiomqtt.Client, tasks: asyncio.TaskGroup, filters: Mapping[str, int]) -> None:
        for packet in self._refusals.admit_filters(filters):
            sent = self._refusals.on_subscribing(packet)
            pairs = [(topic_filter, filters[topic_filter]) for topic_filter in packet]
            codes = await self._answered(self._ask(client, tasks, pairs))
            if codes is None:
                self._refusals.on_unanswered(sent)
            else:
                self._refusals.on_subscribed(sent, codes)

    async def _ask(
        self, client: aiomqtt.Client, tasks: asyncio.TaskGroup, filters: list[tuple[str, int]]
    ) -> list[int] | None:
        """Subscribe; return the broker's codes, None where it answers what was asked later: it answers in order."""

        async def ask_later() -> None:
            await asyncio.sleep(OPERATION_TIMEOUT_S / 2)  # before silence ends the connection
            await client.unsubscribe(self._identifier, timeout=math.inf)
            answer.reschedule(asyncio.get_running_loop().time())

        later = tasks.create_task(ask_later(), name="mqtt: ask later")
        try:
            async with asyncio.timeout(None) as answer:
                codes = await client.subscribe(filters, timeout=math.inf)
        except TimeoutError:
            return None
        finally:
            later.cancel()
        return [code if isinstance(code, int) else code.value for code in codes]

    async def _send(self, client: aiomqtt.Client, tasks: asyncio.TaskGroup) -> None:
        in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        while True:
            await in_flight.acquire()
            number, message = await self._outbox.get()
            if self._refusals.is_suspect(message.topic):
                for _ in range(MAX_IN_FLIGHT - 1):  # it goes alone
                    await in_flight.acquire()
                await self._transmit(client, number, message, in_flight)
                in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
                continue
            tasks.create_task(self._transmit(client, number, message, in_flight), name="mqtt: transmit")
            await asyncio.sleep(0)  # so that messages are on the wire in their order, and others get their turn

    async def _transmit(
        self, client: aiomqtt.Client, number: int, message: Outgoing, in_flight: asyncio.Semaphore
    ) -> None:
        """Publish a message and wait until it is acknowledged, or at QoS 0 written."""
        await self._publish(client, message)
        self._outbox.acknowledge(number)
        in_flight.release()

    async def _publish(self, client: aiomqtt.Client, message: Outgoing) -> None:
        """Publish a message, unless the broker does not take it."""
        sent = self._refusals.admit(message)
        if sent is None:
            return
        number = self._refusals.on_sent(sent)
        await self._answered(client.publish(sent.topic, sent.payload, sent.qos, sent.retain, timeout=math.inf))
        if sent.qos:
            self._refusals.on_acknowledged(number)

    def _report(self, fault: ConnectionFault) -> None:
        """Log each kind of fault once between two connections."""
        self._fault = fault.sentence(self._names)
        if fault.kind not in self._logged_faults:
            self._logged_faults.add(fault.kind)
            _LOGGER.warning("%s; trying again", self._fault)


def _retry_delay_s(attempt: int, fault: ConnectionFault | None) -> float:
    """Return how long to wait before the next attempt: exponential backoff with jitter [s]."""
    longest_s = min(MAX_RETRY_DELAY_S, _FIRST_RETRY_DELAY_S * 2.0 ** min(attempt, 16))
    if fault is not None and fault.kind is FaultKind.CREDENTIALS:
        longest_s = MAX_RETRY_DELAY_S  # a wrong password stays wrong; brokers ban those who try too often
    return random.uniform(0.5, 1.0) * longest_s  # noqa: S311 — jitter is no secret


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def probe_broker(
    url: str,
    *,
    username: str = "",
    password: str = "",
    ca_file: str = "",
    root: str = "gridchase/v1",
    timeout_s: float = 5.0,
    setting_names: SettingNames | None = None,
) -> str | None:
    """Send a message through the broker and back; return None, or what is wrong and what to do about it."""
    try:
        address = BrokerAddress(url=url, username=username, password=password, ca_file=ca_file)
    except BrokerAddressError as error:
        return error.sentence(setting_names or SettingNames())
    topic, returned = f"{root}/probe/{secrets.token_hex(8)}", asyncio.Event()
    install_quiet_handler(asyncio.get_running_loop())
    try:
        tls = await asyncio.to_thread(address.tls_context)
        client = open_client(address, tls, lambda *_: returned.set(), timeout_s=timeout_s)
        async with client, asyncio.timeout(timeout_s):
            await client.subscribe(topic, 1)
            await client.publish(topic, b"probe", 1)
            await returned.wait()
    except TimeoutError:
        return f"{address.host_and_port}: a message on {topic} does not come back: check the broker's access rules"
    except (aiomqtt.MqttError, OSError) as error:
        return explain(address, error).sentence(setting_names or SettingNames())
    return None
