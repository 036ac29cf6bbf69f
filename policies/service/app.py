"""The policy service: builds its parts, starts one task for each, and stops them in reverse order.

A desk whose database may still be on its way: until it is there, whatever is asked of it fails as unavailable.

The policy service: its parts, one task for each, and the order of stopping, which is that of nesting read backwards.

    database ─ spool ─ bus ─ HTTP ─ workers

The bus part: listener → mailboxes → answers (several) and results (one, in order) → desk; what the database cannot take
now → spool → desk.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from policies.service.bus.event_queue import PATIENCE_S
from policies.service.bus.event_writer import EventWriter
from policies.service.bus.lease_expiry import LeaseExpiry, period_s
from policies.service.bus.pending_events import PendingEvents, SpoolFiles
from policies.service.bus.subscriber import EventSubscriber
from policies.service.bus.trial_responder import TrialResponder
from policies.service.config import PolicyConfig
from policies.service.errors import PolicyError, RequestError, StoreUnavailableError
from policies.service.http.app import served
from policies.service.metrics import Metrics
from policies.service.store.store import opened_store
from policies.service.trials.repository import TrialRepository
from publishers.messages.topics import Topics
from publishers.mqtt.bus_config import BUS_SETTINGS, BusConfig
from publishers.mqtt.client import MqttClient
from publishers.shared.secret_file import read_secret_file

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0

_LOGGER = logging.getLogger(__name__)


class LateDesk:
    """Stands in for a `Desk`, with all its methods.

    Args:
        opened: opens the database, which has a desk then; may raise StoreUnavailableError, and is tried again.
    """

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[TrialRepository]]) -> None:
        self.tried = asyncio.Event()
        """Set once it is known whether the database is there."""
        self._opened = opened
        self._desk: TrialRepository | None = None
        self._fault = "it has not answered yet"

    @property
    def is_there(self) -> bool:
        """Return whether the database was opened."""
        return self._desk is not None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 — whichever method of the desk it is
        """Return a method of the desk.

        Raises:
            StoreUnavailableError: there is none yet.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        if self._desk is None:
            raise StoreUnavailableError(f"the database is not there: {self._fault}")
        return getattr(self._desk, name)

    async def hold(self) -> None:
        """Open the database, again and again until it is there, and hold it until cancelled.

        Raises:
            StoreVersionError: a newer version made it.
            RequestError: its URL is wrong.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._hold_once()
            except StoreUnavailableError as error:
                if not self.tried.is_set():
                    _LOGGER.warning("the database is not there: runs get their default batch sizes: %s", error)
                self._fault = str(error)
                self.tried.set()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _hold_once(self) -> None:
        async with self._opened() as desk:
            self._desk = desk
            if self.tried.is_set():
                _LOGGER.info("the database is there")
            self.tried.set()
            try:
                await asyncio.Event().wait()
            finally:
                self._desk = None


_LOST: Final = (
    "What was not stored, or answered: no room, bad messages, refused; `questions` and `progress` come again."
)
N_ANSWERERS: Final = 16
FIRST_LOOK_S: Final = 5.0
"""How long the start waits for the database; without it runs get their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A service that has started: `http_url` is empty where HTTP is not served."""

    http_url: str


async def run_service(
    config: PolicyConfig,
    *,
    state_dir: Path,
    version: str,
    stop: asyncio.Event,
    clock_s: Callable[[], float] = time.time,
    started: Callable[[Served], None] | None = None,
    patience_s: float = PATIENCE_S,
) -> None:
    """Serve until `stop` is set.

    Args:
        config: the configuration.
        state_dir: where SQLite's file and the spool are, unless the configuration says otherwise.
        version: of gridchase, for the log.
        stop: ends it.
        clock_s: the time of day, Unix [s].
        started: is told once it serves.
        patience_s: how long a controller's last word on a run is waited for after its training process is gone [s].

    Raises:
        RequestError: the configuration is wrong; with every fault.
        StoreVersionError: a newer version made the database.
    """
    service = _Service(config, state_dir=state_dir, clock_s=clock_s, patience_s=patience_s)
    _LOGGER.info("gridchase policy %s: database %s, bus %s", version, service.store_name, config.bus.url or "none")
    with _plainly():
        async with asyncio.TaskGroup() as tasks:
            holding = tasks.create_task(service.desk.hold(), name="store")
            await service.wait_for_store()
            await service.run(tasks, stop, started or (lambda _: None))
            holding.cancel()


def store_url(config: PolicyConfig, state_dir: Path) -> str:
    """Return the URL of the database that a configuration means."""
    return config.store.url or f"sqlite:///{(state_dir / 'policy.sqlite').absolute()}"


class _Service:
    """The parts of one service."""

    def __init__(
        self, config: PolicyConfig, *, state_dir: Path, clock_s: Callable[[], float], patience_s: float
    ) -> None:
        faults: list[str] = []
        password = _secret("store.password_file", config.store.password_file, faults)
        self._bus = _bus(config.bus, faults) if config.bus.url else None
        if faults:
            raise RequestError(faults)
        self._config = config
        self._clock_s = clock_s
        self._metrics = Metrics()
        self.store_name = config.store.url or store_url(config, state_dir)
        self.desk = LateDesk(lambda: _opened_desk(config, store_url(config, state_dir), password))
        # Every method of the desk is there, if only by name.
        self._desk = cast("TrialRepository", self.desk)
        spool_dir = Path(config.store.spool_dir) if config.store.spool_dir else state_dir / "spool"
        self._spool = PendingEvents(SpoolFiles(spool_dir), self._desk)
        self._topics = Topics(config.bus.root)
        hear_period_s = period_s(config.learning.lease_s)
        self._hear_period_s = hear_period_s
        self._listener = EventSubscriber(
            self._topics, clock_s=clock_s, hear_period_s=hear_period_s, patience_s=patience_s
        )
        self._metrics.watch("lost", _LOST, _losses(self._listener, self._spool))

    async def wait_for_store(self) -> None:
        """Wait until it is known whether the database is there, but not for long."""
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self.desk.tried.wait()
        except TimeoutError:
            _LOGGER.warning("the database has not answered in %g s: runs get their defaults until then", FIRST_LOOK_S)

    async def run(self, tasks: asyncio.TaskGroup, stop: asyncio.Event, started: Callable[[Served], None]) -> None:
        """Serve until `stop`; then what is under way goes to the spool."""
        try:
            async with self._on_bus(), self._over_http() as http_url:
                running = [tasks.create_task(work, name=name) for name, work in self._workers()]
                started(Served(http_url=http_url))
                await stop.wait()
                for task in running:
                    task.cancel()
                await asyncio.wait(running)
        finally:
            await self._spool.close()

    def _workers(self) -> Iterator[tuple[str, Coroutine[None, None, None]]]:
        """Yield the coroutines that make up the service, with the names of their tasks."""
        yield "leases", self._leases().run()
        yield "spool: write", self._spool.write()
        yield "spool: replay", self._spool.replay()
        if self._bus is None:
            return
        listener = self._listener
        answers = TrialResponder(
            listener.questions,
            desk=self._desk,
            bus=self._bus,
            first_answers=listener.first_answers,
            metrics=self._metrics,
        )
        yield from ((f"answers[{number}]", answers.run()) for number in range(N_ANSWERERS))
        yield "answers: overdue", answers.run_overdue()
        results = EventWriter(
            listener.news,
            desk=self._desk,
            bus=self._bus,
            topics=self._topics,
            spool=self._spool,
            metrics=self._metrics,
            stranger_s=self._hear_period_s,
            was_answered=lambda job, run: listener.first_answers.of(job, run) is not None,
        )
        yield "results", results.run()
        yield "endings", listener.endings.run()

    def _leases(self) -> LeaseExpiry:
        return LeaseExpiry(
            self._desk,
            lease_s=self._config.learning.lease_s,
            can_hear=lambda: self._trouble() is None and self.desk.is_there and not self._spool.is_waiting,
            clock_s=self._clock_s,
            metrics=self._metrics,
        )

    @asynccontextmanager
    async def _on_bus(self) -> AsyncIterator[None]:
        if self._bus is None:
            yield
            return
        self._listener.subscribe(self._bus)
        async with self._bus:
            yield

    def _over_http(self) -> AbstractAsyncContextManager[str]:
        return served(
            self._desk,
            http=self._config.http,
            clock_s=self._clock_s,
            is_ready=self._troubles,
            metrics=self._metrics,
        )

    def _trouble(self) -> str | None:
        """Return what, beside the database, keeps the service from its work."""
        if self._bus is None or self._bus.connected:
            return None
        return self._bus.last_error or "the broker has not answered yet"

    def _troubles(self) -> str | None:
        """Return that, and what keeps from the disk what waits for the database."""
        return "; ".join(trouble for trouble in (self._trouble(), self._spool.trouble) if trouble) or None


@asynccontextmanager
async def _opened_desk(config: PolicyConfig, url: str, password: str) -> AsyncIterator[TrialRepository]:
    async with opened_store(url, password=password, timeout_s=config.store.timeout_s) as store:
        yield TrialRepository(store, config.learning)


def _losses(listener: EventSubscriber, spool: PendingEvents) -> Mapping[str, Callable[[], int]]:
    """Return the counts of what was lost, by what it was."""
    return {
        "questions": lambda: listener.questions.dropped,
        "progress": lambda: listener.news.dropped,
        "ends": lambda: listener.news.lost,
        "bad_messages": lambda: listener.complaints.n_messages,
        "spooled": lambda: spool.n_lost,
        "refused": lambda: spool.n_refused,
    }


def _bus(config: BusConfig, faults: list[str]) -> MqttClient | None:
    """Return the bus; None where it cannot be reached as configured, with the faults."""
    password = _secret("bus.password_file", config.password_file, faults)
    try:
        return MqttClient(
            url=config.url,
            username=config.username,
            password=password,
            ca_file=config.ca_file,
            setting_names=BUS_SETTINGS,
        )
    except ValueError as error:
        faults.append(f"bus.url: {error}")
        return None


def _secret(key: str, file: str, faults: list[str]) -> str:
    """Return what a file of a secret holds; "" where there is none, with the fault where there should be."""
    try:
        return read_secret_file(key, file) if file else ""
    except ValueError as error:
        faults.append(str(error))
        return ""


@contextmanager
def _plainly() -> Iterator[None]:
    """Raise an error of ours as itself, where a group of tasks wraps it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException | None = group.subgroup(PolicyError)
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is None:
            raise
        raise error from None
