"""Sends a message on each topic that a program writes, and finds out which of its readers receive it.

Brokers drop what their rules forbid without notifying the sender, and some rename topics, forget retained messages or
deliver them twice. So a probe publishes with one party's credentials and receives with those of the others. MQTT 5 is
used where the broker speaks it: it tells a writer that it has been refused. Needs no event loop and no thread.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BAD_CREDENTIALS, BrokerAddress, SettingNames
from publishers.mqtt.broker_limits import BrokerLimits, packet_bytes, subscribe_bytes

_TURN_S: Final = 0.01
_SETTLE_S: Final = 0.1
"""How long a copy of a message that was delivered already may still be under way."""
_REFUSED: Final = 128
"""MQTT 5: reason codes from here on are failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """A client of the broker, as one of ours would log in; `names` are what its user calls the settings."""

    name: str
    address: BrokerAddress
    names: SettingNames = field(default_factory=SettingNames)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A topic on its way from its writer to its readers.

    Attributes:
        topic: the topic; it contains a name that no other probe has.
        writer: the party that publishes.
        readers: the parties that must receive it, and the filter by which each subscribes.
        payload: the message: it is known by that, too, since others may publish there.
        qos: the quality of service that the topic has.
        retain: whether it must still be delivered to whoever subscribes later.
    """

    topic: str
    writer: str
    readers: Mapping[str, str]
    payload: bytes
    qos: int = 1
    retain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteResult:
    """What became of a message.

    Attributes:
        route: its way.
        refusal: why the broker did not take it, or "".
        unseen_by: the readers that did not receive it.
        forgotten_for: the readers that did not receive it when they subscribed later, although it was retained.
        is_proven: whether a reader has received it, or the broker has told that it was taken.
        remarks: what else was wrong on the way: another topic, or several copies.
    """

    route: Route
    refusal: str = ""
    unseen_by: tuple[str, ...] = ()
    forgotten_for: tuple[str, ...] = ()
    is_proven: bool = True
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What was found.

    Attributes:
        results: the result of each route.
        faults: why a party could not connect, by its name; its routes have no result then.
        limits: what the broker states that it does not take, in a sentence each.
    """

    results: Sequence[RouteResult]
    faults: Mapping[str, str]
    limits: Sequence[str] = ()


def probe_routes(parties: Iterable[Party], routes: Sequence[Route], *, timeout_s: float = 3.0) -> ProbeReport:
    """Send one message on each route between parties that can connect; what was retained is cleared in the end.

    Args:
        parties: who takes part.
        routes: what to send.
        timeout_s: the longest wait for a connection, and for messages [s].
    """
    connected: dict[str, _Probe] = {}
    faults: dict[str, str] = {}
    try:
        for party in parties:
            probe = _Probe(party.address, timeout_s=timeout_s)
            connected[party.name] = probe
            if fault := probe.connect(party.names):
                faults[party.name] = fault
        usable = [route for route in routes if route.writer in connected and route.writer not in faults]
        ready = {name: probe for name, probe in connected.items() if name not in faults}
        results = _send(ready, usable, timeout_s=timeout_s)
        limits = dict.fromkeys(
            fault for probe in ready.values() for fault in (*probe.limits.faults, *sorted(probe.left_out))
        )
        return ProbeReport(results=results, faults=faults, limits=tuple(limits))
    finally:
        for probe in connected.values():
            probe.close()


def _send(ready: Mapping[str, "_Probe"], routes: Sequence[Route], *, timeout_s: float) -> list[RouteResult]:
    readers = [(route, name) for route in routes for name in route.readers if name in ready]
    for name, probe in ready.items():
        probe.subscribe({route.readers[name] for route, reader in readers if reader == name})
    refusals = {route.topic: ready[route.writer].publish(route, ready.values()) for route in routes}

    def has_arrived(route: Route, name: str) -> bool:
        return bool(refusals[route.topic]) or bool(ready[name].copies_of(route))

    _run(ready.values(), until=lambda: all(has_arrived(*pair) for pair in readers), timeout_s=timeout_s)
    _run(ready.values(), until=lambda: False, timeout_s=_SETTLE_S)
    retained = [pair for pair in readers if pair[0].retain and ready[pair[0].writer].limits.retain_available]
    late = _late_readers(ready, retained, timeout_s=timeout_s)
    results = [_result(route, ready, refusals[route.topic], late) for route in routes]
    for route in routes:
        if route.retain:
            ready[route.writer].send(Outgoing(topic=route.topic, payload=b"", qos=1, retain=True))
    return results


def _late_readers(
    ready: Mapping[str, "_Probe"], pairs: Sequence[tuple[Route, str]], *, timeout_s: float
) -> dict[str, "_Probe"]:
    """Subscribe anew, as who comes later, and wait for what was retained; return the closed subscribers."""
    late: dict[str, _Probe] = {}
    try:
        for name in {name for _, name in pairs}:
            late[name] = _Probe(ready[name].address, timeout_s=timeout_s)
            late[name].connect(SettingNames())
            late[name].subscribe({route.readers[name] for route, reader in pairs if reader == name})
        _run(
            late.values(),
            until=lambda: all(late[name].copies_of(route) for route, name in pairs),
            timeout_s=timeout_s,
        )
        _run(late.values(), until=lambda: False, timeout_s=_SETTLE_S)
    finally:
        for probe in late.values():
            probe.close()
    return late


def _result(route: Route, ready: Mapping[str, "_Probe"], refusal: str, late: Mapping[str, "_Probe"]) -> RouteResult:
    names = [name for name in route.readers if name in ready]
    seen = [name for name in names if ready[name].copies_of(route)]
    is_retained = route.retain and not refusal and ready[route.writer].limits.retain_available
    forgotten = [name for name in seen if not late[name].copies_of(route)] if is_retained else []
    remarks = []
    for name in seen:
        topics = {message.topic for message in ready[name].copies_of(route)}
        if topics != {route.topic}:
            remarks.append(f"it arrives as {min(topics - {route.topic})}")
        copies = max(len(probe.copies_of(route)) for probe in (ready[name], late.get(name, ready[name])))
        if copies > 1:
            remarks.append(f"it is delivered {copies} times")
    return RouteResult(
        route=route,
        refusal=refusal,
        unseen_by=() if refusal else tuple(name for name in names if name not in seen),
        forgotten_for=tuple(forgotten),
        is_proven=bool(seen) or bool(refusal) or ready[route.writer].tells_refusals,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _run(probes: Iterable["_Probe"], *, until: Callable[[], bool], timeout_s: float) -> bool:
    """Let the connections work until a condition holds, or for `timeout_s`; return whether it does."""
    probes = list(probes)
    deadline_s = time.monotonic() + timeout_s
    while not until():
        if time.monotonic() >= deadline_s:
            return False
        for probe in probes:
            probe.turn(_TURN_S / max(1, len(probes)))
    return True


class _Probe:
    """One connection: MQTT 5, else 3.1.1. Its methods never raise because of the network."""

    def __init__(self, address: BrokerAddress, *, timeout_s: float) -> None:
        self.address = address
        self.tells_refusals = True
        self.limits = BrokerLimits()
        self.left_out: frozenset[str] = frozenset()
        self._timeout_s = timeout_s
        self._filters: set[str] = set()
        self._received: list[MQTTMessage] = []
        self._answers: dict[int | None, ReasonCode] = {}
        self._reasons: list[ReasonCode] = []
        self._client: Client | None = None

    def connect(self, names: SettingNames) -> str:
        """Connect; return why that fails, or ""."""
        fault = self._connect_as(MQTTv5, names)
        if fault and not any(reason.value in BAD_CREDENTIALS for reason in self._reasons):
            self.tells_refusals = False
            fault = self._connect_as(MQTTv311, names)
        return fault

    def subscribe(self, filters: Iterable[str]) -> None:
        """Subscribe to filters at QoS 1, and wait for the broker's answer."""
        self._filters = set(filters)
        for packet in self.limits.subscribe_packets(sorted(self._filters)):
            if excess := self.limits.excess(subscribe_bytes(packet)):
                self.left_out |= {f"the subscription to {packet[0]} is skipped: {excess}"}
            elif self._client is not None:
                _, mid = self._client.subscribe([(each, 1) for each in packet])
                _run([self], until=partial(self._answers.__contains__, mid), timeout_s=self._timeout_s)

    def publish(self, route: Route, all_probes: Iterable["_Probe"]) -> str:
        """Publish a message, and wait until the broker has taken it; return why it has not, or ""."""
        message = self.limits.fit(
            Outgoing(topic=route.topic, payload=route.payload, qos=route.qos, retain=route.retain)
        )
        if excess := self.limits.excess(packet_bytes(message)):
            return excess
        mid = self._publish(message)
        if message.qos == 0:
            return ""
        is_answered = _run(
            all_probes, until=lambda: mid in self._answers or not self._is_connected(), timeout_s=self._timeout_s
        )
        reason = self._answers.get(mid)
        if reason is not None and reason.value >= _REFUSED:
            return f"the broker refuses it: {reason}"
        if reason is None and not self._is_connected():
            self.connect(SettingNames())
            self.subscribe(self._filters)
            if message.retain and not self.publish(replace(route, retain=False), all_probes):
                return "the broker closes the connection; without retain it takes it: allow retained messages"
            return "the broker closes the connection when it is published"
        return "" if is_answered else "the broker does not acknowledge it"

    def copies_of(self, route: Route) -> list[MQTTMessage]:
        """Return what was received of a probe: on its topic, or on one that the broker has made of it."""
        key = _comparable(route.topic)
        return [m for m in self._received if _comparable(m.topic) == key and m.payload == route.payload]

    def send(self, message: Outgoing) -> None:
        """Publish a message, and wait until the broker has acknowledged it, where it does."""
        message = self.limits.fit(message)
        mid = self._publish(message)
        if message.qos:
            _run([self], until=lambda: mid in self._answers or not self._is_connected(), timeout_s=self._timeout_s)

    def payloads_of(self, topic: str) -> list[bytes]:
        """Return the payloads that were received on a topic."""
        return [bytes(message.payload) for message in self._received if message.topic == topic]

    def turn(self, timeout_s: float) -> None:
        """Read and write what is due."""
        if self._client is not None:
            self._client.loop(timeout_s)

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.disconnect()
            self._client.loop(_TURN_S)
            self._client = None

    def _connect_as(self, protocol: MQTTProtocolVersion, names: SettingNames) -> str:
        self.close()
        self._reasons.clear()
        client = Client(CallbackAPIVersion.VERSION2, client_id=f"gc{os.urandom(10).hex()}", protocol=protocol)
        client.connect_timeout = self._timeout_s
        if self.address.username:
            client.username_pw_set(self.address.username, self.address.password or None)
        client.on_connect = self._on_connect
        client.on_message = lambda _client, _userdata, message: self._received.append(message)
        client.on_publish = lambda _client, _userdata, mid, reason, _properties: self._on_answer(mid, reason)
        client.on_subscribe = lambda _client, _userdata, mid, reasons, _properties: self._on_answer(mid, reasons[0])
        try:
            context = self.address.tls_context()
            if context is not None:
                client.tls_set_context(context)
            client.connect(self.address.host, self.address.port, keepalive=60)
        except (OSError, ValueError) as error:
            return self.address.explain(error).sentence(names)
        self._client = client
        _run([self], until=lambda: bool(self._reasons) or client.socket() is None, timeout_s=self._timeout_s)
        refusals = [reason for reason in self._reasons if reason.is_failure]
        if self._reasons and not refusals:
            return ""
        self._client = None
        address = self.address
        unanswered = address.explain_silence() if client.socket() is not None else address.explain_close()
        return (address.explain_refusal(refusals[0]) if refusals else unanswered).sentence(names)

    def _publish(self, message: Outgoing) -> int | None:
        if self._client is None:
            return None
        info = self._client.publish(message.topic, message.payload, qos=message.qos, retain=message.retain)
        return info.mid if info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS else None

    def _is_connected(self) -> bool:
        return self._client is not None and self._client.is_connected()

    def _on_connect(self, _client: Client, _data: object, _flags: object, reason: ReasonCode, stated: Any) -> None:  # noqa: ANN401
        self._reasons.append(reason)
        self.limits = BrokerLimits.of(stated)

    def _on_answer(self, mid: int, reason: ReasonCode) -> None:
        self._answers[mid] = reason


def _comparable(topic: str) -> str:
    """Return a topic without the characters that brokers translate into each other."""
    return topic.replace(".", "/").replace(" ", "/")


def publish_and_wait(
    party: Party,
    message: Outgoing,
    *,
    replies: str,
    until: Callable[[bytes], bool],
    afterwards: Sequence[Outgoing] = (),
    timeout_s: float,
) -> list[bytes]:
    """Publish a message, and return what arrives on a topic, up to a payload that satisfies `until` or a timeout.

    Nothing is returned where the party cannot connect.

    Args:
        party: who publishes and receives.
        message: what to publish.
        replies: the topic of the replies.
        until: whether a payload is the last that is waited for.
        afterwards: what to publish in the end.
        timeout_s: the longest wait for the connection, and for the replies [s].
    """
    probe = _Probe(party.address, timeout_s=timeout_s)
    try:
        if probe.connect(party.names):
            return []
        probe.subscribe([replies])
        probe.send(message)
        _run([probe], until=lambda: any(until(payload) for payload in probe.payloads_of(replies)), timeout_s=timeout_s)
        for last in afterwards:
            probe.send(last)
        return probe.payloads_of(replies)
    finally:
        probe.close()
