"""The task tree of the controller, and the order of stopping: it is the order of nesting, read backwards.

    lock ─ GPUs ─ bus ─ limits are given back ─ workers

When the workers stop, for whatever reason, every limit is given back; then the last messages go out and the node says
that it is offline; then the bus, the GPUs and the lock are let go.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from controller.clock import Clock
from controller.config import Config
from controller.control.profile_store import ProfileStore
from controller.errors import GpuError
from controller.gpu.energy_meter import GpuEnergyMeter
from controller.gpu.journal import Journal, restore_prior_limit
from controller.gpu.node_lock import NodeLock
from controller.gpu.power_limiter import GpuPowerLimiter
from controller.http import NO_GPU, Health, Snapshot
from controller.ports import Backend, Bus, Gpu, SeriesStore
from controller.runs.checkpoint import RunCheckpoints
from controller.runs.router import GpuWorkers, Router
from controller.signal.feed import SignalFeed
from policies.providers.catalogue import Source
from publishers.messages.codec import encode
from publishers.messages.reports import GpuDescription, GpuEnergy, GridSignal, LimitChange, NodeStatus
from publishers.messages.topics import Topics
from publishers.mqtt.client import Outgoing, Will

SAMPLES_PER_WINDOW = 5
"""Energy counters move every 20 to 100 ms: the default, every 100 ms, sees each of these steps."""
CLOSE_TIMEOUT_S = 10.0
"""Longer than a backend's own deadline for its driver, so that the backend can say itself what hangs."""

_LOGGER = logging.getLogger(__name__)

Connect = Callable[[Will, Callable[[], Iterable[Outgoing]]], AbstractAsyncContextManager[Bus]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What a controller is given: who it is, and the world it works in.

    `connect(will, birth)` returns the bus, to be entered; `birth()` is published at every connection. `sources` is the
    chain of providers; `store` keeps their histories, `jitter_ratio` (0 to 1) the nodes of a cluster apart.
    """

    config: Config
    boot_id: str
    version: str
    backend: Backend
    sources: Sequence[Source]
    clock: Clock
    connect: Connect
    store: SeriesStore | None = None
    jitter_ratio: float = 0.0


async def run_controller(node: NodeContext, *, stop: asyncio.Event) -> None:
    """Run until `stop` is set; then, and on any failure, give every limit back.

    Raises:
        JournalError: the state directory cannot be used; nothing was touched.
        NodeLockedError: another controller is at work; nothing was touched.
        BackendError: there are no GPUs to be had.
    """
    state_dir = Path(node.config.node.state_dir)
    with NodeLock(state_dir) as lock:
        journal = Journal.open(state_dir)
        async with _opened(node.backend) as gpus:
            if node.config.gpu.backend == "nvml":
                lock.claim(gpu.uuid for gpu in gpus)
            await _give_back_stranded(gpus, journal)
            descriptions = [await _describe(gpu) for gpu in gpus]
            with (
                ProfileStore(state_dir, driver=node.backend.driver) as profiles,
                RunCheckpoints(state_dir, boot_id=node.boot_id, clock=node.clock) as run_books,
            ):
                tree = _Tree(node, journal, profiles, run_books, gpus, descriptions)
                async with node.connect(tree.will, tree.birth) as bus:
                    await tree.run(bus, stop)


class _Tree:
    """The workers of one controller, and what they share."""

    def __init__(
        self,
        node: NodeContext,
        journal: Journal,
        profiles: ProfileStore,
        run_books: RunCheckpoints,
        gpus: Sequence[Gpu],
        descriptions: list[GpuDescription],
    ) -> None:
        self._node = node
        self._descriptions = descriptions
        self._journal = journal
        self._profiles = profiles
        self._run_books = run_books
        self._gpus = gpus
        self._topics = Topics(node.config.bus.root)
        self._actuators: list[GpuPowerLimiter] = []

    @property
    def will(self) -> Will:
        """Return what the broker says of this node when it vanishes."""
        offline = NodeStatus(state="offline", version=self._node.version)
        return Will(topic=self._topics.node_status(self._node.config.node.name), payload=encode(offline))

    def birth(self) -> list[Outgoing]:
        """Return what is said at each connection: who is here, with which GPUs and limits."""
        online = NodeStatus(state="online", version=self._node.version, gpus=self._descriptions)
        topic = self._topics.node_status(self._node.config.node.name)
        return [Outgoing(topic=topic, payload=encode(online), qos=1, retain=True)]

    async def run(self, bus: Bus, stop: asyncio.Event) -> None:
        """Run the workers until `stop`, then give the limits back and take leave."""
        workers = self._workers(bus)
        try:
            async with self._given_back(), asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(work, name=name) for name, work in workers.items()]
                await stop.wait()
                for task in running:
                    task.cancel()
        finally:
            bus.publish(self.will.topic, self.will.payload, qos=1, retain=True)

    @asynccontextmanager
    async def _given_back(self) -> AsyncIterator[None]:
        """Give every GPU its prior limit back, however the body ends; all at once, so that one cannot delay another."""
        try:
            yield
        finally:
            async with asyncio.TaskGroup() as tasks:
                for actuator in self._actuators:
                    tasks.create_task(actuator.stop(), name=f"stop[{actuator.gpu.uuid}]")

    def _workers(self, bus: Bus) -> dict[str, Coroutine[None, None, None]]:
        """Return the coroutines that make up the controller, by the name of their task."""
        config, clock = self._node.config, self._node.clock
        feed = self._feed(bus)
        tick_s = min(config.profiler.window_s / SAMPLES_PER_WINDOW, config.energy.period_s)
        units = {gpu.uuid: self._unit(gpu, bus, feed, tick_s) for gpu in self._gpus}
        router = Router(
            units,
            config=config,
            boot_id=self._node.boot_id,
            bus=bus,
            clock=clock,
            signal=feed,
            store=self._profiles,
            run_books=self._run_books,
            tick_s=tick_s,
        )
        health = Health(config.http, look=lambda: _snapshot(bus, self._node.backend, feed, units, router))
        return {
            "signal": feed.run(),
            **{f"gpu[{actuator.gpu.uuid}]": actuator.run() for actuator in self._actuators},
            **{f"meter[{uuid}]": unit.meter.run() for uuid, unit in units.items()},
            "router": router.run(),
            "health": health.run(),
        }

    def _feed(self, bus: Bus) -> SignalFeed:
        config, topics = self._node.config, self._topics
        topic = topics.grid(config.signal.topic_zone, "price" if config.signal.kind == "price" else "carbon")

        def publish(signal: GridSignal) -> None:
            bus.publish(topic, encode(signal), qos=1, retain=True)

        return SignalFeed(
            self._node.sources,
            kind=config.signal.kind,
            clock=self._node.clock,
            period_s=config.signal.period_s,
            publish=publish,
            store=self._node.store,
            jitter_ratio=self._node.jitter_ratio,
        )

    def _unit(self, gpu: Gpu, bus: Bus, feed: SignalFeed, tick_s: float) -> GpuWorkers:
        config, clock, topics = self._node.config, self._node.clock, self._topics

        def publish_limit(uuid: str, change: LimitChange) -> None:
            bus.publish(topics.gpu(config.node.name, uuid, "limit"), encode(change), qos=1, retain=True)

        def publish_energy(uuid: str, energy: GpuEnergy) -> None:
            bus.publish(topics.gpu(config.node.name, uuid, "energy"), encode(energy), qos=0, retain=True)

        actuator = GpuPowerLimiter(gpu, journal=self._journal, config=config.gpu, clock=clock, publish=publish_limit)
        self._actuators.append(actuator)
        meter = GpuEnergyMeter(
            gpu,
            clock=clock,
            sample_period_s=tick_s,
            publish_period_s=config.energy.period_s,
            signal=feed,
            limiter=actuator,
            publish=publish_energy,
        )
        return GpuWorkers(limiter=actuator, meter=meter)


def _snapshot(
    bus: Bus, backend: Backend, feed: SignalFeed, units: Mapping[str, GpuWorkers], router: Router
) -> Snapshot:
    """Return what /readyz and /metrics tell."""
    return Snapshot(
        connected=bus.connected,
        bus_error=bus.last_error,
        left_out=tuple(str(error) for error in backend.faults),
        signal=feed.freshness,
        signal_age_s=feed.age_s,
        signal_detail=feed.provenance().sentence,
        providers={lane.name: not lane.fault for lane in feed.lanes if lane.was_asked},
        n_bad_messages=router.complaints.n_messages,
        n_runs=len(router.jobs),
        gpus={uuid: (unit.limiter.state, unit.meter.energy_j, unit.meter.latest) for uuid, unit in units.items()},
    )


@asynccontextmanager
async def _opened(backend: Backend) -> AsyncIterator[Sequence[Gpu]]:
    """Open the GPUs, and let go of the driver afterwards."""
    gpus, driver = await backend.open(), backend.driver
    if not gpus:
        _LOGGER.warning("%s", NO_GPU)
    try:
        yield gpus
    finally:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await backend.close()
        except TimeoutError:  # every limit was given back before: this is no reason to fail
            _LOGGER.warning("%s: did not close in %g s; it is left to the end of the process", driver, CLOSE_TIMEOUT_S)


async def _give_back_stranded(gpus: Sequence[Gpu], journal: Journal) -> None:
    """Give back what a killed controller left behind, before anything else; a run still going is planned anew."""
    known = {gpu.uuid for gpu in gpus}
    for gpu in gpus:
        result = await restore_prior_limit(gpu, journal)
        if result is not None:
            _LOGGER.warning("%s: a former controller left it limited: %s", gpu.uuid, result.detail)
    for uuid in journal.entries.keys() - known:
        _LOGGER.warning("%s: stands in the journal, but is not on this node now; its entry is kept", uuid)


async def _describe(gpu: Gpu) -> GpuDescription:
    """Return a GPU with its limits, as far as it tells them."""
    try:
        limits, live = await gpu.read_range(), await gpu.read_limit()
    except GpuError as error:
        _LOGGER.warning("%s: its limits cannot be read: %s", gpu.uuid, error)
        return GpuDescription(uuid=gpu.uuid, index=gpu.index, model=gpu.model)
    return GpuDescription(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        min_power_limit_w=limits.min_power_limit_w,
        max_power_limit_w=limits.max_power_limit_w,
        default_power_limit_w=limits.default_power_limit_w,
        prior_power_limit_w=live.requested_power_limit_w,
    )
