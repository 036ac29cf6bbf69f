"""A topic on an MQTT broker: a site's own meter or forecast, or the signal of another gridchase controller.

No key; the terms of the data are between you and their publisher.

>>> readings = ReadingBuffer(step_s=300.0, keep_s=3600.0)
>>> for time_s, value in ((0.0, 1.0), (299.0, 2.0), (100.0, 3.0)):
...     readings.add(time_s, value, now_s=300.0)
>>> [(point.starts_s, point.value) for point in readings.holding_from(0.0)]
[(0.0, 3.0), (299.0, 2.0)]
"""

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Annotated, Final, Literal, Self

import aiomqtt
from msgspec import Meta

from policies.providers.base import ProviderSettings, SignalDataError, SignalUnavailableError, Zone
from policies.providers.series import CLOCK_TOLERANCE_S, Point, describe_losses, format_iso
from policies.providers.sources.mqtt_payload import (
    PayloadError,
    Reading,
    grid_fault,
    grid_forecast,
    grid_history,
    read_payload,
)
from policies.providers.zone_provider import ZoneProvider
from policies.vocabulary.signal import Signal, SignalKind
from policies.vocabulary.units import intensity_g_per_kwh, price_per_kwh
from publishers.messages.reports import GridSignal
from publishers.mqtt.broker_address import BrokerAddress, BrokerAddressError, SettingNames
from publishers.mqtt.client import MqttClient
from publishers.shared.files.lookup import file_fault
from publishers.shared.files.secret_file import read_secret
from publishers.shared.log_once import FaultLog

SAME_STEPS: Final = 0.9
"""Two values closer than this belong to one step, and the later one counts: messages may come a little early."""


class ReadingBuffer:
    """Values in order of time, one for each step of `step_s` [s], for the last `keep_s` [s]."""

    def __init__(self, *, step_s: float, keep_s: float) -> None:
        self._step_s = step_s
        self._keep_s = keep_s
        self._points: list[Point] = []

    def add(self, time_s: float, value: float, *, now_s: float) -> None:
        """Add a value that starts at a time [Unix s], or replace the one of the same step."""
        place = bisect_right(self._points, time_s, key=_starts_s)
        if place and time_s - self._points[place - 1].starts_s < SAME_STEPS * self._step_s:
            self._points[place - 1] = Point(self._points[place - 1].starts_s, value)
        else:
            self._points.insert(place, Point(time_s, value))
        del self._points[: bisect_right(self._points, now_s - self._keep_s, key=_starts_s)]

    def holding_from(self, since_s: float) -> Iterator[Point]:
        """Return the values that hold after a time [Unix s], in order."""
        first = max(0, bisect_right(self._points, since_s, key=_starts_s) - 1)
        return iter(self._points[first:])


def _starts_s(point: Point) -> float:
    return point.starts_s


FIRST_WAIT_S: Final = 3.0
"""How long the first poll waits for the broker and its retained message."""
KEEP_S: Final = 60 * 86_400.0
MAX_SOURCE: Final = 200
"""The longest name of a source in a message [characters]."""
_CARBON_FACTORS: Final = {"g/kWh": 1.0, "kg/MWh": 1.0, "lb/MWh": intensity_g_per_kwh(1.0)}
_LOGGER = logging.getLogger(__name__)

MqttUrl = Annotated[
    str,
    Meta(
        pattern=r"\Amqtts?://[^\s@]+\Z", description="a URL, mqtt:// or mqtts://, with no blank, user or password in it"
    ),
]
Unit = Annotated[
    str,
    Meta(
        pattern=r"\A(g/kWh|kg/MWh|lb/MWh|[A-Z]{3}/[kM]Wh)\Z",
        description="g/kWh, kg/MWh, lb/MWh, or a currency's three capitals and /kWh or /MWh, as EUR/MWh",
    ),
]


class MqttSettings(ProviderSettings, frozen=True, kw_only=True):
    """A topic on an MQTT broker.

    Attributes:
        topic: the topic, without wildcards.
        zone: its zone.
        kind: what its values are; the numbers do not show it.
        unit: the unit of its values: g/kWh, kg/MWh, lb/MWh, or a currency such as EUR/kWh or EUR/MWh.
        url: the broker.
        username: our user there.
        password_file: a file with the password.
        password_env: the environment variable with the password, if no file is named.
        ca_file: the certificate authority of the broker, if the system does not trust it.
        step_s: how often it has a new value [s].
        value_key: the path of the value in a JSON object; "" if the payload is the number alone.
        time_key: the path of its time; "" for the time of arrival.
    """

    topic: Annotated[str, Meta(min_length=1, max_length=512)]
    zone: Zone
    kind: Literal["average", "marginal", "price"]
    unit: Unit
    url: MqttUrl = "mqtt://127.0.0.1:1883"
    username: str = ""
    password_file: str = ""
    password_env: Annotated[
        str,
        Meta(
            pattern=r"\A([A-Z_][A-Z0-9_]*)?\Z",
            description='the name of an environment variable (A-Z 0-9 _, and no digit first), or ""',
        ),
    ] = ""
    ca_file: str = ""
    step_s: Annotated[float, Meta(ge=30, le=86_400)] = 300.0
    value_key: Annotated[str, Meta(max_length=128)] = ""
    time_key: Annotated[str, Meta(max_length=128)] = ""

    def signal_kind(self) -> SignalKind:
        """Return the configured kind."""
        return self.kind

    def faults(self) -> list[str]:
        """Return faults of the topic, the unit, and the broker's address."""
        faults = []
        try:
            aiomqtt.Topic(self.topic)
        except ValueError as error:
            faults.append(f"topic = {self.topic!r}: must be one topic, without wildcards ({error})")
        try:
            BrokerAddress(url=self.url)
        except BrokerAddressError as error:
            faults.append(f"url: {error.sentence(SettingNames.of_table())}")
        if (self.kind == "price") == (self.unit in _CARBON_FACTORS):
            faults.append(f"unit = {self.unit!r}: must be that of kind = {self.kind!r}")
        if (self.password_file or self.password_env) and not self.username:
            faults.append('username = "": must be set, because a password is')
        if self.ca_file and not self.url.startswith("mqtts://"):
            faults.append(f"url = {self.url!r}: must start with mqtts:// where ca_file is set")
        if self.ca_file and (fault := file_fault(self.ca_file)):
            faults.append(f"ca_file = {self.ca_file!r}: {fault}")
        return faults


class MqttProvider(ZoneProvider):
    """The values that arrive on a topic, as history; also forecasts, if another controller publishes them.

    Connected while used as an async context manager. A retained message without a time of its own is not used: its age
    is unknown. Invalid messages are dropped, counted in `n_invalid`, and logged once.

    Args:
        settings: its settings.
        bus: the connection; by default one to the broker of the settings.
        clock: returns the time of arrival [Unix s].

    Attributes:
        news: set when a value has come that no poll has returned yet.

    Raises:
        ValueError: the password is missing.
    """

    def __init__(
        self, settings: MqttSettings, *, bus: MqttClient | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        name, (unit, self._factor) = f"mqtt {settings.zone} {settings.topic}", _unit_and_factor(settings.unit)
        source = name if len(name) <= MAX_SOURCE else f"{name[: MAX_SOURCE - 1]}…"
        super().__init__(
            name=name, kind=settings.kind, zone=settings.zone, step_s=settings.step_s, source=source, unit=unit
        )
        self.empty_because = f"no message has come on {settings.topic} yet"
        self.n_invalid = self._n_ageless = 0
        self._last_fault = ""
        self._settings = settings
        self._clock = clock
        self._bus = bus or _bus_of(settings)
        self._bus.subscribe(settings.topic, self._receive, qos=1, on_retained=self._receive_retained)
        self._readings = ReadingBuffer(step_s=settings.step_s, keep_s=KEEP_S)
        self._grid: GridSignal | None = None
        self._arrived = asyncio.Event()
        self._has_waited = False
        self.news = asyncio.Event()
        self._message_log = FaultLog(_LOGGER, recovered=f"{self.name}: messages are valid again", log_changes=False)

    @property
    def has_received(self) -> bool:
        """Return whether any message has come, be it invalid."""
        return self._arrived.is_set()

    async def __aenter__(self) -> Self:
        """Start connecting, without waiting for the broker."""
        await self._bus.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        await self._bus.__aexit__(kind, error, trace)

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values received that hold after `since_s`; the first poll waits a moment for the broker.

        Raises:
            SignalUnavailableError: the broker is away, or refuses the subscription, and nothing new arrived before.
            SignalDataError: the last message was invalid, and no other arrived since the last poll.
        """
        await self._wait_once()
        if not self.news.is_set():
            self._raise_fault()
        self.news.clear()
        others = {
            f"invalid (the last: {self._last_fault})": self.n_invalid,
            "retained without a timestamp": self._n_ageless,
        }
        grid = self._grid
        if grid is None:
            points = list(self._readings.holding_from(since_s))
            return self._history(points, since_s=since_s, now_s=now_s, others=others)
        history = grid_history(grid, source=self._source, step_s=self.step_s, since_s=since_s, now_s=now_s)
        self.losses = describe_losses((), kind=self.kind, missing="", others=others)
        if history is None:
            self.losses = f"the other controller's signal is {grid.state}, without known values of this time"
        return history

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return another controller's forecast up to `until_s`, or None if the topic has none."""
        if self._grid is None:
            return None
        return grid_forecast(self._grid, source=self._source, step_s=self.step_s, now_s=now_s, until_s=until_s)

    async def _wait_once(self) -> None:
        """Wait for the first message, once: a retained message arrives at once."""
        if not self._has_waited:
            self._has_waited = True
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WAIT_S):
                    await self._arrived.wait()

    def _raise_fault(self) -> None:
        if self._bus.last_error or not self._bus.connected:
            raise SignalUnavailableError(f"{self.name}: {self._bus.last_error or 'not connected yet'}")
        if self._message_log.fault:
            raise SignalDataError(self._message_log.fault)

    def _receive_retained(self, topic: str, payload: bytes) -> None:
        self._receive(topic, payload, is_retained=True)

    def _receive(self, _: str, payload: bytes, *, is_retained: bool = False) -> None:
        if not payload:  # an empty payload clears a retained message
            return
        try:
            content = read_payload(payload, value_key=self._settings.value_key, time_key=self._settings.time_key)
            if isinstance(content, GridSignal):
                self._add_grid(content)
            elif is_retained and content.time_s is None:
                self._log_retained()
            else:
                self._add_reading(content)
        except PayloadError as error:
            self.n_invalid, self._last_fault = self.n_invalid + 1, str(error)
            self._message_log.report(f"{self.name}: dropped a message: {error}")
        self._arrived.set()

    def _add_reading(self, reading: Reading) -> None:
        now_s = self._clock()
        starts_s = now_s if reading.time_s is None else self._checked_s(reading.time_s, now_s)
        self._readings.add(starts_s, reading.value * self._factor, now_s=now_s)
        self._set_grid(None)

    def _add_grid(self, grid: GridSignal) -> None:
        settings = self._settings
        content, wanted = (grid.kind, grid.zone, grid.unit), (settings.kind, settings.zone, self._unit)
        if content != wanted:
            raise PayloadError(f"is for {' '.join(content)}, not {' '.join(wanted)}")
        self._checked_s(grid.time_s, self._clock())
        if fault := grid_fault(grid):
            raise PayloadError(fault)
        self._set_grid(grid)

    def _set_grid(self, grid: GridSignal | None) -> None:
        self._grid = grid
        self._message_log.clear()
        self.news.set()

    def _log_retained(self) -> None:
        self._n_ageless += 1
        if self._n_ageless == 1:
            _LOGGER.info("%s: ignoring a retained message without a timestamp", self.name)

    def _checked_s(self, time_s: float, now_s: float) -> float:
        """Return the time of a message, checked not to be in the future [Unix s]."""
        if time_s > now_s + CLOCK_TOLERANCE_S:
            raise PayloadError(f"is of {format_iso(time_s)}, and here it is {format_iso(now_s)}: one clock is wrong")
        return time_s


def _bus_of(settings: MqttSettings) -> MqttClient:
    password = ""
    if settings.password_file or settings.password_env:
        secret = read_secret(key="password", file=settings.password_file, variable=settings.password_env)
        password = secret.reveal()
    return MqttClient(
        url=settings.url,
        username=settings.username,
        password=password,
        ca_file=settings.ca_file,
        setting_names=SettingNames.of_table(),
    )


def _unit_and_factor(unit: str) -> tuple[str, float]:
    if unit in _CARBON_FACTORS:
        return "g/kWh", _CARBON_FACTORS[unit]
    currency, _, energy = unit.partition("/")
    return f"{currency}/kWh", price_per_kwh(1.0) if energy == "MWh" else 1.0
