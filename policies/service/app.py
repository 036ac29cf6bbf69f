"""The policy service: builds its parts, runs one task for each, and stops them in reverse order.

    database ─ spool ─ bus ─ HTTP ─ workers

On the bus: subscriber → queues → responders (several) and event writer (one, in order) → repository; what the database
cannot take now → spool → repository.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from policies.service.bus.event_queue import GRACE_S
from policies.service.bus.event_spool import EventSpool, SpoolFile
from policies.service.bus.event_writer import EventWriter
from policies.service.bus.lease_expiry import LeaseExpiry, period_s
from policies.service.bus.posteriors import ChangedJobs, PosteriorPublisher
from policies.service.bus.subscriber import EventSubscriber
from policies.service.bus.trial_responder import TrialResponder
from policies.service.config import PolicyConfig
from policies.service.errors import PolicyError, RequestError, StoreUnavailableError
from policies.service.http.app import served
from policies.service.metrics import Metrics
from policies.service.store.store import store_at
from policies.service.trials.jobs import JobRepository
from policies.service.trials.repository import TrialRepository
from publishers.messages.topics import Topics
from publishers.mqtt.broker_address import BrokerAddressError
from publishers.mqtt.bus_config import BUS_SETTINGS, BusConfig
from publishers.mqtt.client import MqttClient
from publishers.mqtt.receiving.quotas import MessageQuotas
from publishers.shared.files.secret_file import read_secret_file
from publishers.shared.http import own_token

_LOST: Final = (
    "What was not stored, or answered: no room, bad messages, surplus, refused; `requests`, `progress` come again."
)
_GIVE_AWAY: Final = "gridchase policy jobs tells how to give them to a user"
N_RESPONDERS: Final = 16
USER_MESSAGES_PER_S: Final = 2_000.0
"""Of one user on all hosts: 6,000 runs that report every 5 s."""
USER_BURST_S: Final = 10.0
"""20,000 messages of a user may come at once: what is retained of all runs comes with each connection [s]."""
FIRST_LOOK_S: Final = 5.0
"""How long the start waits for the database; without it runs get their defaults."""

_LOGGER = logging.getLogger(__name__)


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
    grace_s: float = GRACE_S,
) -> None:
    """Serve until `stop` is set.

    Args:
        config: the configuration.
        state_dir: where SQLite's file and the spool are, unless the configuration says otherwise.
        version: of gridchase, for the log.
        stop: ends it.
        clock_s: the time of day, Unix [s].
        started: called once it serves.
        grace_s: how long a run's final energy is awaited after its training process has ended [s].

    Raises:
        RequestError: the configuration is wrong; with every fault.
        StoreVersionError: another version made the database.
    """
    service = _Service(config, state_dir=state_dir, clock_s=clock_s, grace_s=grace_s)
    database = config.store.url or store_url(config, state_dir)
    _LOGGER.info("gridchase policy %s: database %s, bus %s", version, database, config.bus.url or "none")
    with _unwrapped_errors():
        async with asyncio.TaskGroup() as tasks:
            keeping_open = tasks.create_task(service.store.keep_open(), name="store")
            await service.wait_for_store()
            await service.warn_of_ownerless_jobs()
            await service.run(tasks, stop, started or (lambda _: None))
            keeping_open.cancel()


def store_url(config: PolicyConfig, state_dir: Path) -> str:
    """Return the URL of the configured database."""
    return config.store.url or f"sqlite:///{(state_dir / 'policy.sqlite').absolute()}"


class _Service:
    """The parts of one service."""

    def __init__(self, config: PolicyConfig, *, state_dir: Path, clock_s: Callable[[], float], grace_s: float) -> None:
        faults: list[str] = []
        password = _secret("store.password_file", config.store.password_file, faults)
        self._bus = _bus(config.bus, faults) if config.bus.url else None
        if faults:
            raise RequestError(faults)
        self._config = config
        self._own_token = state_dir / own_token.FILE
        self._clock_s = clock_s
        self._metrics = Metrics()
        self.store = store_at(store_url(config, state_dir), password=password, timeout_s=config.store.timeout_s)
        self._changes = ChangedJobs()
        self._trials = TrialRepository(self.store, config.learning, on_change=self._changes.add)
        self._jobs = JobRepository(self.store, config.learning, on_change=self._changes.add)
        spool_dir = Path(config.store.spool_dir) if config.store.spool_dir else state_dir / "spool"
        self._spool = EventSpool(SpoolFile(spool_dir / "events.sqlite"), self._trials)
        self._topics = Topics(config.bus.root)
        self._heartbeat_period_s = period_s(config.learning.lease_s)
        self._subscriber = EventSubscriber(
            self._topics, clock_s=clock_s, heartbeat_period_s=self._heartbeat_period_s, grace_s=grace_s
        )
        self._metrics.watch("lost", _LOST, _losses(self._subscriber, self._spool, self._bus))

    async def wait_for_store(self) -> None:
        """Wait until it is known whether the database is there, but not for long."""
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self.store.tried.wait()
        except TimeoutError:
            _LOGGER.warning("the database has not answered in %g s: runs get their defaults until then", FIRST_LOOK_S)

    async def warn_of_ownerless_jobs(self) -> None:
        """Tell once that no run learns from the jobs of the time before jobs had users."""
        with suppress(StoreUnavailableError):
            if n_ownerless := await self._jobs.n_ownerless():
                _LOGGER.warning(
                    "%d jobs are older than users, and no run learns from them: %s", n_ownerless, _GIVE_AWAY
                )

    async def run(self, tasks: asyncio.TaskGroup, stop: asyncio.Event, started: Callable[[Served], None]) -> None:
        """Serve until `stop`; then unfinished events go to the spool."""
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
        yield "lease expiry", self._lease_expiry().run()
        yield "spool: save", self._spool.save()
        yield "spool: replay", self._spool.replay()
        if self._bus is None:
            return
        subscriber = self._subscriber
        responder = TrialResponder(
            subscriber.requests,
            trials=self._trials,
            bus=self._bus,
            answers=subscriber.answers,
            metrics=self._metrics,
        )
        yield from ((f"responder[{number}]", responder.run()) for number in range(N_RESPONDERS))
        yield "responder: overdue", responder.run_overdue()
        writer = EventWriter(
            subscriber.events,
            trials=self._trials,
            bus=self._bus,
            topics=self._topics,
            spool=self._spool,
            metrics=self._metrics,
            unknown_run_s=self._heartbeat_period_s,
            was_answered=lambda run: subscriber.answers.first_answer(run) is not None,
        )
        yield "event writer", writer.run()
        yield "run ends", subscriber.run_ends.run()
        publisher = PosteriorPublisher(
            self._changes, jobs=self._jobs, bus=self._bus, topics=self._topics, clock_s=self._clock_s
        )
        yield "posteriors", publisher.run()

    def _lease_expiry(self) -> LeaseExpiry:
        return LeaseExpiry(
            self._trials,
            lease_s=self._config.learning.lease_s,
            can_receive=lambda: self._bus_trouble() is None and self.store.is_open and not self._spool.is_waiting,
            clock_s=self._clock_s,
            metrics=self._metrics,
        )

    @asynccontextmanager
    async def _on_bus(self) -> AsyncIterator[None]:
        if self._bus is None:
            yield
            return
        self._subscriber.subscribe(self._bus)
        async with self._bus:
            yield

    def _over_http(self) -> AbstractAsyncContextManager[str]:
        return served(
            self._trials,
            self._jobs,
            http=self._config.http,
            own_token=self._own_token,
            clock_s=self._clock_s,
            trouble=self._trouble,
            metrics=self._metrics,
        )

    def _bus_trouble(self) -> str | None:
        if self._bus is None:
            return None
        return self._bus.last_error or (None if self._bus.connected else "the broker has not answered yet")

    def _trouble(self) -> str | None:
        """Return what keeps the service from its work, other than the database."""
        return "; ".join(trouble for trouble in (self._bus_trouble(), self._spool.trouble) if trouble) or None


def _losses(subscriber: EventSubscriber, spool: EventSpool, bus: MqttClient | None) -> Mapping[str, Callable[[], int]]:
    return {
        "requests": lambda: subscriber.requests.n_dropped,
        "progress": lambda: subscriber.events.n_dropped,
        "ends": lambda: subscriber.events.n_lost,
        "bad_messages": lambda: subscriber.invalid_messages.n_messages,
        "surplus": lambda: bus.quotas.n_dropped if bus is not None and bus.quotas is not None else 0,
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
            quotas=MessageQuotas(Topics(config.root), sender_per_s=USER_MESSAGES_PER_S, burst_s=USER_BURST_S),
            setting_names=BUS_SETTINGS,
        )
    except BrokerAddressError as error:
        setting = "bus.ca_file" if error.setting == "ca_file" else "bus.url"
        faults.append(f"{setting}: {error.sentence(BUS_SETTINGS)}")
        return None


def _secret(key: str, file: str, faults: list[str]) -> str:
    """Return the secret in a file, "" where there is none; collect the fault where there should be one."""
    try:
        return read_secret_file(key, file) if file else ""
    except ValueError as error:
        faults.append(str(error))
        return ""


@contextmanager
def _unwrapped_errors() -> Iterator[None]:
    """Raise an error of ours as itself where a task group wraps it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException | None = group.subgroup(PolicyError)
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is None:
            raise
        raise error from None
