"""The controller of one node: its tasks, and the order in which they start (left to right) and stop (right to left).

    lock ─ GPUs ─ prior limits are restored ─ bus ─ workers

A driver, or a GPU, that does not answer at the start is asked for until it does; its prior limit is restored then.
When the workers stop, for whatever reason, every prior limit is restored; then the last messages go out and the node
publishes that it is offline; then the bus, the GPUs and the lock are released.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from msgspec.structs import replace

from controller.accounting.checkpoint import RunCheckpoints
from controller.config import Config
from controller.control.profile_store import ProfileStore
from controller.errors import DriverUnavailableError, GpuError, JournalError, LimitsLeftError, NodeLockedError
from controller.gpu.energy_meter import GpuEnergyMeter
from controller.gpu.intake import GpuIntake
from controller.gpu.journal.storage import Journal
from controller.gpu.node_lock import NodeLock
from controller.gpu.power_limiter import GpuPowerLimiter, backoff_s
from controller.gpu.processes import ProcFileSystem
from controller.gpu.read_back import RESTORE_COMMAND
from controller.history.energy_history.recorder import HistoryRecorder, RecordedBus
from controller.history.run_history import RunHistory
from controller.http.health import NO_GPU, GpuSnapshot, Snapshot
from controller.http.server import NodeServer
from controller.orders.bus_orders import BusOrders
from controller.orders.goals import RunGoals
from controller.orders.pauses import RunPauses
from controller.orders.pins import RunPins
from controller.ports import Backend, Bus, Gpu, ProcessTable, TopicPublisher
from controller.runs.own_topics import OwnTopics
from controller.runs.router import GpuWorkers, Router
from controller.runtime.clock import Clock
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

T = TypeVar("T")
Workers = dict[str, Coroutine[None, None, None]]
"""Tasks by their names, not started yet."""
Connect = Callable[[Outgoing, Callable[[], Iterable[Outgoing]]], AbstractAsyncContextManager[Bus]]


async def not_known() -> None:
    """Return that it is not known."""


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
        history: records what is published; None: nothing is recorded.
        processes: the processes of this machine.
        jitter_ratio: spreads the polls of a cluster's nodes, 0 to 1.
        waits_for_driver: whether a missing driver is waited for, as a service does; else it is an error.
        restore_command: restores by hand what this controller has left.
        takes_orders_from_anybody: returns whether the broker does, from whoever has no password; None: not known yet.
    """

    config: Config
    boot_id: str
    version: str
    backend: Backend
    sources: Sequence[Source]
    clock: Clock
    connect: Connect
    store: HistoryStore | None = None
    history: HistoryRecorder | None = None
    processes: ProcessTable = field(default_factory=ProcFileSystem)
    jitter_ratio: float = 0.0
    waits_for_driver: bool = False
    restore_command: str = RESTORE_COMMAND
    takes_orders_from_anybody: Callable[[], Awaitable[bool | None]] = not_known


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
        async with _open_gpus(node) as opened:
            locks_gpus = node.config.gpu.backend == "nvml"
            intake = GpuIntake(lock, journal, node.clock, locks_gpus=locks_gpus, restore_command=node.restore_command)
            gpus = await intake.take(opened)
            await _check_journal(journal, lock, list(intake.left.values()))
            if intake.are_all_held and not gpus:
                raise NodeLockedError("\n".join(intake.held.values()))
            for uuid, absence in intake.absences({gpu.uuid: gpu for gpu in gpus}, node.backend.faults).items():
                _LOGGER.warning(
                    "GPU %s has a journal entry but is not managed: %s; keeping the entry", uuid, absence.why
                )
            status = await _online_status(node, gpus)
            with (
                ProfileStore(state_dir, driver=node.backend.driver) as profiles,
                RunHistory(state_dir) as history,
                RunCheckpoints(state_dir, boot_id=node.boot_id, clock=node.clock) as checkpoints,
                RunPins(state_dir, clock=node.clock, observes=node.config.plan.observe) as pins,
                RunGoals(state_dir, clock=node.clock) as goals,
            ):
                app = _App(node, status, gpus, intake, profiles, history, checkpoints, pins, goals)
                async with node.connect(app.will, app.births) as bus:
                    await app.run(bus, stop)


class _App:
    """The workers of one controller."""

    def __init__(
        self,
        node: NodeContext,
        status: NodeStatus,
        gpus: Sequence[Gpu],
        intake: GpuIntake,
        profiles: ProfileStore,
        history: RunHistory,
        checkpoints: RunCheckpoints,
        pins: RunPins,
        goals: RunGoals,
    ) -> None:
        self._node = node
        self._pins, self._goals = pins, goals
        self._status = status
        self._gpus = gpus
        self._units: dict[str, GpuWorkers] = {}
        self._limiters: list[GpuPowerLimiter] = []
        self._intake = intake
        self._profiles = profiles
        self._history = history
        self._checkpoints = checkpoints
        self._topics = Topics(node.config.bus.root)
        offline = _node_status(node, "offline")
        self.will = Outgoing(
            topic=self._topics.node_status(node.config.node.name), payload=encode(offline), qos=1, retain=True
        )

    def births(self) -> list[Outgoing]:
        """Return the first messages of a connection: the node is online, with these GPUs."""
        payload = encode(replace(self._status, time_s=self._node.clock.now_s()))
        return [Outgoing(topic=self.will.topic, payload=payload, qos=1, retain=True)]

    async def run(self, bus: Bus, stop: asyncio.Event) -> None:
        """Run the workers until `stop`, then restore the prior limits and publish that the node is offline."""
        running: list[asyncio.Task[None]] = []
        history = self._node.history
        bus = bus if history is None else RecordedBus(bus, history)
        try:
            async with _restored(self._limiters, self._left_behind), asyncio.TaskGroup() as tasks:

                def start(workers: Workers) -> None:
                    running.extend(tasks.create_task(work, name=name) for name, work in workers.items())

                start(self._workers(bus, start))
                if history is not None:
                    start({"history": history.run()})
                await stop.wait()
                for task in running:
                    task.cancel()
        finally:
            offline = encode(_node_status(self._node, "offline"))
            bus.publish(self.will.topic, offline, qos=1, retain=True)
            if history is not None:
                await history.close()

    def _workers(self, bus: Bus, start: Callable[[Workers], None]) -> Workers:
        config, clock, units = self._node.config, self._node.clock, self._units
        feed = self._feed()
        tick_s = min(config.profiler.window_s / SAMPLES_PER_WINDOW, config.energy.period_s)
        own = OwnTopics(config, bus, [gpu.uuid for gpu in self._gpus])
        pause_wanted = asyncio.Event()

        def workers_of(gpu: Gpu) -> Workers:
            limiter = self._limiter(gpu, bus)
            unit = GpuWorkers(limiter=limiter, meter=self._meter(limiter, own, feed, tick_s))
            self._limiters.append(limiter)
            units[gpu.uuid] = unit
            return {f"limiter[{gpu.uuid}]": limiter.run(), f"meter[{gpu.uuid}]": unit.meter.run()}

        of_gpus = [workers_of(gpu) for gpu in self._gpus]
        router = Router(
            units,
            config=config,
            boot_id=self._node.boot_id,
            bus=bus,
            clock=clock,
            signal=feed,
            store=self._profiles,
            history=self._history,
            checkpoints=self._checkpoints,
            processes=self._node.processes,
            tick_s=tick_s,
            pause_wanted=pause_wanted,
            pins=self._pins,
            goals=self._goals,
        )
        self._pins.runs, self._pins.gpus, self._goals.runs = router.runs, units, router.runs

        def snapshot() -> Snapshot:
            return _snapshot(bus, own, self._left_out(), feed, units, router, self._node.history)

        def add(gpu: Gpu) -> None:
            own.add_gpu(gpu.uuid)
            start(workers_of(gpu))
            router.arbiter.add_gpu(gpu)

        pauses = RunPauses(
            router.runs,
            node=config.node.name,
            boot_id=self._node.boot_id,
            bus=bus,
            topics=self._topics,
            clock=clock,
            is_wanted=pause_wanted,
        )
        return {
            "signal": feed.run(self._grid_publisher(bus)),
            "own topics": own.run(),
            **{name: work for workers in of_gpus for name, work in workers.items()},
            "router": router.run(),
            "late GPUs": self._await_late_gpus(bus, add),
            "pauses": pauses.run(),
            **self._orders(bus, router, pauses),
            "http": _http_server(config, snapshot, pauses, self._pins, self._goals).run(),
        }

    def _orders(self, bus: Bus, router: Router, pauses: RunPauses) -> Workers:
        """Return what ends pins and goals, and what hears orders over the bus, where that is switched on."""
        workers: Workers = {"pins": self._pins.run(), "goals": self._goals.run()}
        if not self._node.config.orders.over_bus:
            return workers
        orders = BusOrders(
            self._pins,
            pauses,
            self._goals,
            node=self._node.config.node.name,
            bus=bus,
            topics=self._topics,
            clock=self._node.clock,
            invalid_messages=router.invalid_messages,
            are_open_to_anybody=self._node.takes_orders_from_anybody,
        )
        return workers | {"orders": orders.run()}

    async def _await_late_gpus(self, bus: Bus, add: Callable[[Gpu], None]) -> None:
        """Ask for what did not answer, was not listed or was held at the start, and take in each GPU that can be."""
        clock, backend, intake = self._node.clock, self._node.backend, self._intake
        n_tries = 0
        while backend.faults or intake.held or intake.journal.entries.keys() - self._units.keys():
            n_tries += 1
            await clock.sleep_until(clock.now_s() + backoff_s(n_tries))
            opened = await backend.open_late()
            self._profiles.driver = backend.driver
            gpus = await _to_the_end(intake.take(opened))  # a stop cuts no restore short
            for gpu in gpus:
                _LOGGER.info("GPU %s is managed from now on", gpu.uuid)
                self._status = replace(self._status, gpus=[*self._status.gpus, await _describe(gpu)])
                add(gpu)
            if gpus:
                n_tries = 0
                for birth in self.births():
                    bus.publish(birth.topic, birth.payload, qos=birth.qos, retain=birth.retain)

    def _left_out(self) -> tuple[str, ...]:
        """Return why GPUs are left out: they do not answer yet, another process holds them, or they are not listed."""
        faults, held = self._node.backend.faults, self._intake.held
        absent = [f"not managed until it answers: {fault}" for fault in faults]
        away = {} if faults else self._intake.absences(self._units, faults)  # a fault may be that of any of them
        missing = [f"{uuid}: {absence.why}" for uuid, absence in away.items() if uuid not in held]
        return (*absent, *(f"a GPU is not managed: {fault}" for fault in [*held.values(), *missing]))

    def _left_behind(self) -> list[str]:
        """Return which GPUs may still have a limit of ours, although no limiter of ours can restore it, and why."""
        entries = self._intake.journal.entries
        return [
            f"{uuid} may still have {entries[uuid].newest_power_limit_w:g} W instead of its prior limit"
            f" {entries[uuid].prior_power_limit_w:g} W: {why}; {remedy}"
            for uuid, (why, remedy) in self._intake.absences(self._units, self._node.backend.faults).items()
        ]

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
            journal=self._intake.journal,
            config=config.gpu,
            clock=self._node.clock,
            publish=TopicPublisher[LimitChange](bus, topic, qos=1, **ids).publish,
            observes=config.plan.observe,
            restore_command=self._node.restore_command,
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
async def _restored(
    limiters: Sequence[GpuPowerLimiter], left_behind: Callable[[], Sequence[str]]
) -> AsyncIterator[None]:
    """Restore every prior limit, however the body ends; all at once, so that one GPU cannot delay another.

    Args:
        limiters: those of the GPUs; some may be added while the body runs.
        left_behind: which limits nobody can restore now, a sentence each.

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
    faults += left_behind()
    if faults:  # where the body has failed, that is what is raised
        raise LimitsLeftError(faults)


async def _to_the_end(work: Coroutine[None, None, T]) -> T:
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
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


def _http_server(
    config: Config, snapshot: Callable[[], Snapshot], pauses: RunPauses, pins: RunPins, goals: RunGoals
) -> NodeServer:
    token = Path(config.node.state_dir) / own_token.FILE
    return NodeServer(
        config.http, node=config.node.name, snapshot=snapshot, pauses=pauses, pins=pins, goals=goals, own_token=token
    )


def _snapshot(
    bus: Bus,
    own: OwnTopics,
    left_out: tuple[str, ...],
    feed: SignalFeed,
    units: Mapping[str, GpuWorkers],
    router: Router,
    history: HistoryRecorder | None,
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
        history_fault=history.fault if history is not None else "",
        gpus={
            uuid: GpuSnapshot(
                limit=unit.limiter.state,
                sample=unit.meter.current,
                fault=unit.meter.fault,
                absence=unit.meter.absence,
                doubts=unit.meter.doubts,
            )
            for uuid, unit in units.items()
        },
    )


@asynccontextmanager
async def _open_gpus(node: NodeContext) -> AsyncIterator[Sequence[Gpu]]:
    """Open the driver.

    Raises:
        BackendError: it is not there, and is not waited for.
    """
    backend = node.backend
    gpus: Sequence[Gpu] = ()
    try:
        gpus = await backend.open()
    except DriverUnavailableError as error:
        if not node.waits_for_driver:
            raise
        _LOGGER.error("waiting for the driver; no GPU is measured until it answers: %s", error)
    else:
        if not gpus:
            _LOGGER.warning("%s", NO_GPU)
    try:
        yield gpus
    finally:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await backend.close()
        except TimeoutError:  # every limit was restored before: this is no reason to fail
            _LOGGER.warning(
                "%s: did not close in %g s; left open until the process ends", backend.driver, CLOSE_TIMEOUT_S
            )


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
                _LOGGER.warning("waiting for it to restore limits: %s", str(error).partition(";")[0])
            is_told = True
            await clock.sleep_until(clock.now_s() + LOCK_RETRY_S)
        else:
            return


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
