"""The process of a site's history: builds its parts, runs one task for each, and stops them in reverse order.

bus → intake → recorder's queue → history ← reports over HTTP
             → what is known now ← pages over HTTP
orders → bus ← forms over HTTP, of whoever has signed in
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import tzinfo
from pathlib import Path
from ssl import Purpose, SSLContext, SSLError, create_default_context
from typing import Final

from controller.errors import ConfigError
from controller.history.energy_history.reading import decisions
from controller.history.energy_history.recorder import HistoryRecorder
from controller.ports import Bus
from controller.runtime.clock import Clock, SystemClock, next_tick_s
from controller.web.config import WebConfig, WebSettings
from controller.web.hands.routes import Hands
from controller.web.hands.sent_orders import SentOrders
from controller.web.live.intake import SiteIntake
from controller.web.live.saved_sums import READ_TIMEOUT_S, SavedSums
from controller.web.live.site_state import MAX_DECISIONS, SiteState
from controller.web.pages.overview import Overview
from controller.web.pages.routes import page_routes
from controller.web.routes import (
    MAX_CONNECTIONS,
    Gauges,
    live_routes,
    live_stream,
    overview_routes,
    site_routes,
    to_problem,
)
from controller.web.store import PostgresStore, SiteStore, SqliteStore
from policies.database.errors import DatabaseUrlError, DatabaseVersionError
from policies.vocabulary.units import DAY_S
from publishers.messages.topics import Topics
from publishers.mqtt.broker_address import BrokerAddressError
from publishers.mqtt.bus_config import BUS_SETTINGS, BusConfig, read_bus_password
from publishers.mqtt.client import MqttClient
from publishers.mqtt.receiving.quotas import MessageQuotas
from publishers.shared.files.secret_file import read_secret_file
from publishers.shared.http.server import HttpServer

MAX_ENERGIES: Final = 20_000
"""Topics of a site that may wait to be written: 30 MB of records."""
SENDER_MESSAGES_PER_S: Final = 2_000.0
"""Of one node, or about the runs of one user."""
BURST_S: Final = 10.0
"""20,000 messages of one sender may come at once: what is retained comes with each connection [s]."""
OPEN_TIMEOUT_S: Final = 3.0
"""For the history to be opened before it is told where the pages are [s]."""
REFRESH_S: Final = 60.0
"""Between two looks at what was saved [s]."""
NOT_CONNECTED: Final = "the broker has not answered yet"

_LOGGER = logging.getLogger(__name__)


async def run_web(
    config: WebConfig,
    *,
    version: str,
    stop: asyncio.Event,
    started: Callable[[str], None] = lambda _: None,
) -> None:
    """Record and serve until `stop` is set.

    Args:
        config: the configuration.
        version: of gridchase, for the log.
        stop: ends it.
        started: called with the URL, "" where nothing is served, once the history is open, or takes long.

    Raises:
        ConfigError: the configuration is wrong; with every fault.
    """
    faults: list[str] = []
    topics = Topics(config.bus.root)
    bus, store = _bus(config.bus, topics, faults), _store(config, topics, faults)
    tls = _tls(config.web, faults)
    if bus is None or store is None or faults:
        raise ConfigError(faults)
    _LOGGER.info("gridchase web %s: history %s, bus %s", version, store.name, config.bus.url)
    site = Site(config, bus=bus, store=store, topics=topics, clock=SystemClock(), tls=tls)
    async with bus:
        await site.run(stop, started)


class Site:
    """The parts of the process.

    Args:
        config: where HTTP is served.
        bus: where the nodes publish; subscribed to here, connected by the caller.
        store: the history.
        topics: those below the configured root.
        clock: the time of what is published.
        viewers_clock: the time of the viewers, where that is another one.
        tls: how connections to the pages are encrypted; None: they are not.
    """

    def __init__(
        self,
        config: WebConfig,
        *,
        bus: Bus,
        store: SiteStore,
        topics: Topics,
        clock: Clock,
        viewers_clock: Clock | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self._bus = bus
        self._is_open = asyncio.Event()  # set once the history was written to
        self._store = store
        self._recorder = HistoryRecorder(store, clock=clock, max_energies=MAX_ENERGIES)
        self._state = SiteState()
        retention_s = config.retention.run_days * DAY_S
        self._intake = SiteIntake(topics, self._recorder, self._state, clock=clock, retention_s=retention_s)
        self._intake.subscribe(bus)
        self._sums = SavedSums(store)
        self._clock = clock
        self._stream = live_stream(self._state, clock=clock, viewers_clock=viewers_clock or clock)
        sent = SentOrders(bus, topics, clock) if config.web.orders else None
        if sent is not None:
            sent.subscribe()
        self._takes_orders = takes_orders = sent is not None
        hands = Hands(config.web, state=self._state, sent=sent, clock=clock)
        quotas = bus.quotas
        gauges = Gauges(
            connected=lambda: bus.connected,
            heard=lambda: self._intake.n_heard,
            dropped={
                "invalid": lambda: self._intake.invalid_messages.n_messages,
                "impossible": lambda: store.n_impossible,
                "queue_full": lambda: self._recorder.n_dropped,
                "surplus": lambda: 0 if quotas is None else quotas.n_dropped,
                "too_many": lambda: self._state.n_refused,
            },
        )
        self._server = HttpServer(
            [
                *hands.routes(),
                *hands.guarded(
                    [
                        *site_routes(store, clock=clock, troubles=self._health_troubles, gauges=gauges),
                        *live_routes(self._stream, state=self._state, clock=clock),
                        *overview_routes(self._overview, state=self._state, clock=clock, takes_orders=takes_orders),
                        *page_routes(self._state, store, clock=clock, takes_orders=takes_orders),
                    ]
                ),
            ],
            host=config.web.host,
            port=config.web.port,
            title="the site's page and history",
            to_problem=to_problem,
            max_connections=MAX_CONNECTIONS,
            section="web",
            names=config.web.server_names,
            tls=tls,
        )

    async def run(self, stop: asyncio.Event, started: Callable[[str], None] = lambda _: None) -> None:
        """Record and serve until `stop` is set; then write what waits, within a bounded time."""
        try:
            async with self._server.serving() as url, asyncio.TaskGroup() as tasks:
                working = [
                    tasks.create_task(self._record(), name="recorder"),
                    tasks.create_task(self._refresh(), name="sums"),
                    tasks.create_task(self._stream.run(), name="event stream"),
                ]
                with suppress(TimeoutError):  # a database that hangs: the pages of now need none
                    async with asyncio.timeout(OPEN_TIMEOUT_S):
                        await self._is_open.wait()
                started(url)
                await stop.wait()
                for task in working:
                    task.cancel()
        finally:
            await self._recorder.close()

    async def finish(self) -> None:
        """Take no message from now on, and let the pages show all that came before."""
        self._intake.unsubscribe(self._bus)
        await self._recorder.flush()
        await self._sums.refresh(self._clock.now_s())

    async def _record(self) -> None:
        """Make the tables, which tells at once what is wrong with the database, and record."""
        await self._recorder.flush()
        self._is_open.set()
        await self._recorder.run()

    async def _refresh(self) -> None:
        """Once a minute, read what was saved, and forget what is over; once, what was decided before the start."""
        await self._is_open.wait()
        tick_s = self._clock.now_s()
        knows_past = False
        while True:
            await self._clock.sleep_until(tick_s)
            now_s = self._clock.now_s()
            self._state.forget(now_s)
            knows_past = knows_past or await self._read_past(now_s)
            await self._sums.refresh(now_s)
            tick_s = next_tick_s(tick_s, period_s=REFRESH_S, now_s=self._clock.now_s())

    async def _read_past(self, now_s: float) -> bool:
        """Read the last decisions, and return whether that could be done; the sums say what is wrong otherwise."""
        try:
            past = await self._store.read(
                lambda connection: decisions(connection, before_s=now_s, n_most=MAX_DECISIONS), timeout_s=READ_TIMEOUT_S
            )
        except (DatabaseVersionError, OSError):
            return False
        self._state.take_past(past)
        return True

    async def _overview(self, zone: tzinfo) -> Overview:
        sums = await self._sums.asked(self._clock.now_s(), zone) if self._is_open.is_set() else None
        fault, powers = self._sums.fault, self._sums.powers
        return Overview(self._state, sums, fault, self.troubles(), powers, takes_orders=self._takes_orders)

    def troubles(self) -> list[str]:
        """Return what keeps it from its work, a sentence each; empty when all is well."""
        bus = self._bus.last_error or (None if self._bus.connected else NOT_CONNECTED)
        return [trouble for trouble in (bus, self._intake.fault, self._recorder.fault) if trouble]

    def _health_troubles(self) -> list[str]:
        """Return the same, and why the history cannot be read; the overview says that beside its sums."""
        fault = self._sums.fault
        return [*self.troubles(), *([f"the history cannot be read: {fault}"] if fault else [])]


def _bus(config: BusConfig, topics: Topics, faults: list[str]) -> MqttClient | None:
    try:
        return MqttClient(
            url=config.url,
            username=config.username,
            password=read_bus_password(config),
            ca_file=config.ca_file,
            quotas=MessageQuotas(topics, sender_per_s=SENDER_MESSAGES_PER_S, burst_s=BURST_S),
            setting_names=BUS_SETTINGS,
        )
    except BrokerAddressError as error:
        setting = "bus.ca_file" if error.setting == "ca_file" else "bus.url"
        faults.append(f"{setting}: {error.sentence(BUS_SETTINGS)}")
    except ValueError as error:
        faults.append(str(error))
    return None


def _tls(web: WebSettings, faults: list[str]) -> SSLContext | None:
    """Return how connections are encrypted; None: they are not, or not so."""
    if not web.tls_cert_file:
        return None
    try:
        context = create_default_context(Purpose.CLIENT_AUTH)
        context.load_cert_chain(web.tls_cert_file, web.tls_key_file, password="")  # nobody is asked for one
    except (SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        faults.append(f"web.tls_cert_file, web.tls_key_file: cannot be used: {why}")
        return None
    return context


def _store(config: WebConfig, topics: Topics, faults: list[str]) -> SiteStore | None:
    web = config.web
    if not web.database:
        return SqliteStore(Path(web.state_dir), topics=topics, config=config.retention)
    try:
        password = read_secret_file("web.password_file", web.password_file) if web.password_file else ""
        return PostgresStore(web.database, password=password, topics=topics, config=config.retention)
    except DatabaseUrlError as error:
        faults.append(f"web.database: {error}")
    except ValueError as error:
        faults.append(str(error))
    return None
