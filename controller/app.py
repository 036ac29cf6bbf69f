"""The controller of one node: its tasks, and the order in which they start (left to right) and stop (right to left).

    lock ─ GPUs ─ bus ─ prior limits are restored ─ workers

When the workers stop, for whatever reason, every prior limit is restored; then the last messages go out and the node
publishes that it is offline; then the bus, the GPUs and the lock are released.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from controller.clock import Clock
from controller.config import Config
from controller.control.profile_store import ProfileStore
from controller.errors import GpuError, JournalError, LimitsLeftError, NodeLockedError
from controller.gpu.energy_meter import GpuEnergyMeter
from controller.gpu.journal import Journal
from controller.gpu.node_lock import NodeLock
from controller.gpu.power_limiter import GpuPowerLimiter
from controller.gpu.processes import ProcFileSystem
from controller.gpu.read_back import restore_all, unexplained_limits
from controller.http.health import NO_GPU, GpuSnapshot, Snapshot
from controller.http.server import NodeServer
from controller.pauses import RunPauses
from controller.ports import Backend, Bus, Gpu, ProcessTable, TopicPublisher
from controller.runs.checkpoint import RunCheckpoints
from controller.runs.own_topics import OwnTopics
from controller.runs.router import GpuWorkers, Router
from controller.signal.feed import SignalFeed
from controller.signal.history_store import HistoryStore
from policies.providers.catalogue import Source
from publishers.messages.codec import Outgoing, encode
from publishers.messages.reports import GpuDescription, GridSignal, LimitChange, NodeStatus
from publishers.messages.topics import Topics
from publishers.shared.http import own_token

SAMPLES_PER_WINDOW = 5
"""Energy counters move every 20 to 100 ms: the default, every 100 ms, sees each of these steps."""
CLOSE_TIMEOUT_S = 10.0
RESTORE_PATIENCE_S = 60.0
"""A start waits so long for a restore by hand; one takes seconds, on GPUs that fail some ten."""
LOCK_RETRY_S = 0.5
"""Longer than a backend's own deadline for its driver, so that the backend can report what hangs."""

_LOGGER = logging.getLogger(__name__)

Connect = Callable[[Outgoing, Callable[[], Iterable[Outgoing]]], AbstractAsyncContextManager[Bus]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What a controller is given: the identity of its node, its configuration, and its ports.

    Attributes:
        config: the configuration.
        boot_id: tells this boot of this machine from every other.
        version: of this program, for the node's status.
        backend: the GPUs; opened and closed by the controller.
        sources: the chain of signal providers.
        clock: the node's clock.
        connect: `connect(will, birth)` returns the bus, to be entered; `birth()` is published at every connection.
        store: keeps the histories of the signal; None: they are not kept.
        processes: the processes of this machine.
        jitter_ratio: spreads the polls of a cluster's nodes, 0 to 1.
    """

    config: Config
    boot_id: str
    version: str
    backend: Backend
    sources: Sequence[Source]
    clock: Clock
    connect: Connect
    store: HistoryStore | None = None
    processes: ProcessTable = field(default_factory=ProcFileSystem)
    jitter_ratio: float = 0.0


async def run_controller(node: NodeContext, *, stop: asyncio.Event) -> None:
    """Run until `stop` is set; then, and on any failure, restore every prior limit.

    Raises:
        JournalError: the state directory cannot be used; only what a killed controller had left is restored.
        NodeLockedError: another controller is running, or holds every GPU; nothing was touched.
        BackendError: the GPUs are not available.
        LimitsLeftError: at the end, some GPU did not get its prior limit back.
    """
    state_dir = Path(node.config.node.state_dir)
    lock = NodeLock(state_dir)
    with ExitStack() as stack:
        await _lock_after_restore(stack, lock, node.clock, stop)
        journal = await Journal.load(state_dir)
        if not journal.entries:
            await _check_journal(journal, lock)
        async with _open_gpus(node.backend) as opened:
            held = lock.lock_gpus(gpu.uuid for gpu in opened) if node.config.gpu.backend == "nvml" else {}
            gpus = _not_held(opened, held)
            if journal.is_missing:
                await _report_missing(journal, gpus)
            left = await _restore_stranded(gpus, journal, node.clock)
            await _check_journal(journal, lock, left)
            status = await _online_status(node, gpus)
            with (
                ProfileStore(state_dir, driver=node.backend.driver) as profiles,
                RunCheckpoints(state_dir, boot_id=node.boot_id, clock=node.clock) as checkpoints,
            ):
                app = _App(node, gpus, journal, profiles, checkpoints, left_out=tuple(held.values()))
                async with node.connect(app.will, lambda: [app.birth(status)]) as bus:
                    await app.run(bus, stop)


class _App:
    """The workers of one controller."""

    def __init__(
        self,
        node: NodeContext,
        gpus: Sequence[Gpu],
        journal: Journal,
        profiles: ProfileStore,
        checkpoints: RunCheckpoints,
        *,
        left_out: tuple[str, ...],
    ) -> None:
        self._node = node
        self._left_out = left_out
        self._gpus = gpus
        self._journal = journal
        self._profiles = profiles
        self._checkpoints = checkpoints
        self._topics = Topics(node.config.bus.root)
        status = _node_status(node, "offline")
        self.will = Outgoing(
            topic=self._topics.node_status(node.config.node.name), payload=encode(status), qos=1, retain=True
        )

    def birth(self, status: NodeStatus) -> Outgoing:
        """Return the first message of a connection."""
        payload = encode(replace(status, time_s=self._node.clock.now_s()))
        return Outgoing(topic=self.will.topic, payload=payload, qos=1, retain=True)

    async def run(self, bus: Bus, stop: asyncio.Event) -> None:
        """Run the workers until `stop`, then restore the prior limits and publish that the node is offline."""
        limiters = [self._limiter(gpu, bus) for gpu in self._gpus]
        workers = self._workers(bus, limiters)
        try:
            async with _restored(limiters), asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(work, name=name) for name, work in workers.items()]
                await stop.wait()
                for task in running:
                    task.cancel()
        finally:
            offline = encode(_node_status(self._node, "offline"))
            bus.publish(self.will.topic, offline, qos=1, retain=True)

    def _workers(self, bus: Bus, limiters: Sequence[GpuPowerLimiter]) -> dict[str, Coroutine[None, None, None]]:
        config, clock = self._node.config, self._node.clock
        feed = self._feed()
        tick_s = min(config.profiler.window_s / SAMPLES_PER_WINDOW, config.energy.period_s)
        own = OwnTopics(config, bus, [limiter.gpu.uuid for limiter in limiters])
        units = {
            limiter.gpu.uuid: GpuWorkers(limiter=limiter, meter=self._meter(limiter, own, feed, tick_s))
            for limiter in limiters
        }
        router = Router(
            units,
            config=config,
            boot_id=self._node.boot_id,
            bus=bus,
            clock=clock,
            signal=feed,
            store=self._profiles,
            checkpoints=self._checkpoints,
            processes=self._node.processes,
            tick_s=tick_s,
        )

        def snapshot() -> Snapshot:
            return _snapshot(bus, own, self._all_left_out(), feed, units, router)

        pauses = RunPauses(
            router.runs,
            node=config.node.name,
            boot_id=self._node.boot_id,
            bus=bus,
            topics=self._topics,
            clock=clock,
        )
        server = NodeServer(
            config.http, snapshot=snapshot, pauses=pauses, own_token=Path(config.node.state_dir) / own_token.FILE
        )
        return {
            "signal": feed.run(self._grid_publisher(bus)),
            **{f"limiter[{limiter.gpu.uuid}]": limiter.run() for limiter in limiters},
            "own topics": own.run(),
            **{f"meter[{uuid}]": unit.meter.run() for uuid, unit in units.items()},
            "router": router.run(),
            "pauses": pauses.run(),
            "http": server.run(),
        }

    def _all_left_out(self) -> tuple[str, ...]:
        """Return why GPUs of the node were left out: they failed at opening, or another process holds them."""
        return (*(str(error) for error in self._node.backend.faults), *self._left_out)

    def _feed(self) -> SignalFeed:
        return SignalFeed(
            self._node.sources,
            kind=self._node.config.signal.kind,
            clock=self._node.clock,
            period_s=self._node.config.signal.period_s,
            store=self._node.store,
            jitter_ratio=self._node.jitter_ratio,
        )

    def _grid_publisher(self, bus: Bus) -> TopicPublisher[GridSignal]:
        signal = self._node.config.signal
        topic = self._topics.grid(signal.topic_zone, "price" if signal.kind == "price" else "carbon")
        return TopicPublisher(bus, topic, qos=1)

    def _limiter(self, gpu: Gpu, bus: Bus) -> GpuPowerLimiter:
        config = self._node.config
        topic = self._topics.gpu(config.node.name, gpu.uuid, "limit")
        ids: dict[str, str | int] = {"node": config.node.name, "gpu_uuid": gpu.uuid, "gpu_index": gpu.index}
        return GpuPowerLimiter(
            gpu,
            journal=self._journal,
            config=config.gpu,
            clock=self._node.clock,
            publish=TopicPublisher[LimitChange](bus, topic, qos=1, **ids).publish,
            observes=config.plan.observe,
        )

    def _meter(self, limiter: GpuPowerLimiter, own: OwnTopics, feed: SignalFeed, tick_s: float) -> GpuEnergyMeter:
        config = self._node.config
        return GpuEnergyMeter(
            limiter.gpu,
            clock=self._node.clock,
            sample_period_s=tick_s,
            publish_period_s=config.energy.period_s,
            signal=feed,
            limiter=limiter,
            publish=own.publisher_of_energy(limiter.gpu.uuid, limiter.gpu.index),
        )


@asynccontextmanager
async def _restored(limiters: Sequence[GpuPowerLimiter]) -> AsyncIterator[None]:
    """Restore every prior limit, however the body ends; all at once, so that one GPU cannot delay another.

    Raises:
        LimitsLeftError: some limit was not restored; the journal keeps it.
    """
    faults: list[str] = []

    async def stop(limiter: GpuPowerLimiter) -> None:
        if fault := await limiter.stop():
            faults.append(fault)

    async def stop_all() -> None:
        async with asyncio.TaskGroup() as tasks:
            for limiter in limiters:
                tasks.create_task(stop(limiter), name=f"stop[{limiter.gpu.uuid}]")

    try:
        yield
    finally:
        await _to_the_end(stop_all())
    if faults:  # where the body has failed, that is what is raised
        raise LimitsLeftError(faults)


async def _to_the_end(work: Coroutine[None, None, None]) -> None:
    """Await work that is bounded in time to its end; a cancellation that comes meanwhile takes effect after it.

    Such as that of a broker which ends while limits are restored: systemd and terminals signal both at once.
    """
    task = asyncio.get_running_loop().create_task(work, name="restore")  # of a group it would be cancelled with us
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def _snapshot(
    bus: Bus,
    own: OwnTopics,
    left_out: tuple[str, ...],
    feed: SignalFeed,
    units: Mapping[str, GpuWorkers],
    router: Router,
) -> Snapshot:
    quotas, loop_s = bus.quotas, asyncio.get_running_loop().time()
    return Snapshot(
        connected=bus.connected,
        bus_error=bus.last_error or own.trouble,
        left_out=left_out,
        signal=feed.freshness,
        signal_age_s=feed.age_s,
        signal_detail=feed.provenance().detail,
        providers={state.name: not state.fault for state in feed.sources if state.was_polled},
        n_bad_messages=router.invalid_messages.n_messages + (quotas.n_dropped if quotas else 0),
        surplus_messages=quotas.surplus() if quotas else {},
        flooding=quotas.flooding(loop_s) if quotas else (),
        n_runs=len(router.runs),
        gpus={
            uuid: GpuSnapshot(
                limit=unit.limiter.state,
                sample=unit.meter.current,
                fault=unit.meter.fault,
                doubts=unit.meter.doubts,
            )
            for uuid, unit in units.items()
        },
    )


@asynccontextmanager
async def _open_gpus(backend: Backend) -> AsyncIterator[Sequence[Gpu]]:
    gpus, driver = await backend.open(), backend.driver
    if not gpus:
        _LOGGER.warning("%s", NO_GPU)
    try:
        yield gpus
    finally:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await backend.close()
        except TimeoutError:  # every limit was restored before: this is no reason to fail
            _LOGGER.warning("%s: did not close in %g s; left open until the process ends", driver, CLOSE_TIMEOUT_S)


def _not_held(gpus: Sequence[Gpu], held: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that no other process holds.

    Raises:
        NodeLockedError: others hold all of them.
    """
    for fault in held.values():
        _LOGGER.error("a GPU is left out: %s", fault)
    free = [gpu for gpu in gpus if gpu.uuid not in held]
    if held and not free:
        raise NodeLockedError("\n".join(held.values()))
    return free


async def _lock_after_restore(stack: ExitStack, lock: NodeLock, clock: Clock, stop: asyncio.Event) -> None:
    """Take the lock of the node; a restore by hand that holds it ends by itself, and is waited for.

    Raises:
        NodeLockedError: another controller holds it, or a restore that does not end.
    """
    until_s, is_told = clock.now_s() + RESTORE_PATIENCE_S, False
    while True:
        try:
            stack.enter_context(lock)
        except NodeLockedError as error:
            if not error.is_restoring or stop.is_set() or clock.now_s() >= until_s:
                raise
            if not is_told:
                _LOGGER.warning("%s: it restores limits, and is waited for", str(error).partition(";")[0])
            is_told = True
            await clock.sleep_until(clock.now_s() + LOCK_RETRY_S)
        else:
            return


async def _report_missing(journal: Journal, gpus: Sequence[Gpu]) -> None:
    """Report what it may mean that there is no journal; on a node that has never run a controller it is nothing."""
    if journal.entries:
        _LOGGER.warning("%s is gone; its copy %s counts", journal.path, journal.copy_path)
        return
    for fault in await unexplained_limits(gpus):
        _LOGGER.warning("%s, and there is no journal: it is taken for its prior limit", fault)


async def _restore_stranded(gpus: Sequence[Gpu], journal: Journal, clock: Clock) -> list[str]:
    """Restore what a killed controller left behind, before anything else; running jobs are planned again.

    Returns:
        which limits are still to be restored, a sentence each; their limiters try again.
    """
    results = await restore_all(gpus, journal, clock)
    for uuid, result in results.items():
        _LOGGER.warning("GPU %s: a killed controller left a limit behind: %s", uuid, result.detail)
    for uuid in journal.entries.keys() - {gpu.uuid for gpu in gpus}:
        _LOGGER.warning("GPU %s has a journal entry but is not present on this node; keeping the entry", uuid)
    return [f"{uuid}: the limit {result.detail}" for uuid, result in results.items() if result.code == "failed"]


async def _check_journal(journal: Journal, lock: NodeLock, left: Sequence[str] = ()) -> None:
    """Check that limits may be set: the state directory is ours, and the journal can be written.

    Raises:
        JournalError: they may not; what a killed controller had left is restored.
        LimitsLeftError: they may not, and some limits could not be restored.
    """
    fault = lock.fault or await journal.fault()
    if fault and left:
        raise LimitsLeftError([*left, fault])
    if fault:
        raise JournalError(fault)


async def _online_status(node: NodeContext, gpus: Sequence[Gpu]) -> NodeStatus:
    return replace(_node_status(node, "online"), gpus=[await _describe(gpu) for gpu in gpus])


def _node_status(node: NodeContext, state: Literal["online", "offline"]) -> NodeStatus:
    return NodeStatus(
        state=state,
        version=node.version,
        time_s=node.clock.now_s(),
        node=node.config.node.name,
        boot_id=node.boot_id,
        host=socket.gethostname(),
    )


async def _describe(gpu: Gpu) -> GpuDescription:
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
