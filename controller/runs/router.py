"""Routes bus messages to the runs of this node; starts runs, gives them their GPUs, and retires them.

Invalid messages are counted, logged once per topic and minute, and dropped. Only messages of this boot of this machine
are subscribed to, because only their clocks are comparable; other nodes' controllers handle theirs.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller.accounting.ranks import RunIdentity
from controller.clock import Clock
from controller.config import Config
from controller.control.profile_store import ProfileStore
from controller.gpu.energy_meter import GpuEnergyMeter
from controller.ports import Bus, PowerLimiter, SignalSource
from controller.runs.checkpoint import RunCheckpoints
from controller.runs.gpu_claims import ClaimRejection, GpuClaims
from controller.runs.retained_topics import RetainedTopics
from controller.runs.run import TrainingRun
from controller.runs.successor_buffer import SuccessorBuffer
from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import NodeProfile, RunEnergy, RunPlan
from publishers.messages.topics import ParsedTopic, RunKey, Topics
from publishers.messages.training import Iterations, RankStatus
from publishers.shared.log_once import InvalidMessages

MAX_RUNS = 256
"""More runs than this at a time on one node is a flood, not a workload."""
MAX_RANKS = 1_024
SWEEP_PERIOD_S = 60.0

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWorkers:
    """The tasks that serve one GPU."""

    limiter: PowerLimiter
    meter: GpuEnergyMeter


class Router:
    """The runs of this node.

    Attributes:
        runs: the runs.
        claims: which of them owns which GPU.
        invalid_messages: messages that were dropped.
    """

    def __init__(
        self,
        workers: Mapping[str, GpuWorkers],
        *,
        config: Config,
        boot_id: str,
        bus: Bus,
        clock: Clock,
        signal: SignalSource,
        store: ProfileStore,
        checkpoints: RunCheckpoints,
        tick_s: float,
    ) -> None:
        self.runs: dict[RunKey, TrainingRun] = {}
        self.claims = GpuClaims([each.limiter.gpu for each in workers.values()])
        self.invalid_messages = InvalidMessages(clock.now_s)
        self._workers = workers
        self._config = config
        self._boot_id = boot_id
        self._bus = bus
        self._clock = clock
        self._signal = signal
        self._store = store
        self._checkpoints = checkpoints
        self._tick_s = tick_s
        self._topics = Topics(config.bus.root)
        self._successors = SuccessorBuffer()
        self._retained = RetainedTopics(self._topics, bus, node=config.node.name, boot_id=boot_id)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Subscribe, and hold the tasks of the runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            topics, boot_id = self._topics, self._boot_id
            self._bus.subscribe(topics.rank_filter("status", boot_id=boot_id), self._handler(self._on_status), qos=1)
            self._bus.subscribe(
                topics.rank_filter("iterations", boot_id=boot_id), self._handler(self._on_iterations), qos=0
            )
            self._bus.subscribe(topics.part_filter("energy"), self._handler(self._on_node_part), qos=0)
            self._bus.subscribe(topics.part_filter("profile"), self._handler(self._on_node_part), qos=1)
            self._bus.subscribe(topics.plan_filter(), self._handler(self._on_plan), qos=1)
            try:
                while True:
                    await self._clock.sleep_until(self._clock.now_s() + SWEEP_PERIOD_S)
                    self._retained.clear_due(self._clock.now_s())
            finally:
                self._tasks = None  # the bus delivers for a while longer, and nothing may begin any more

    def _handler(self, on_message: Callable[[ParsedTopic, bytes], None]) -> Callable[[str, bytes], None]:
        """Return a handler that parses the topic, and counts an invalid message."""

        def handle(topic: str, payload: bytes) -> None:
            if self._tasks is None:
                return
            parsed = self._topics.parse(topic)
            if parsed is None:
                self.invalid_messages.add("(foreign topics)", f"not one of ours: {topic[:80]!r}")
                return
            try:
                on_message(parsed, payload)
            except DecodeError as error:
                self.invalid_messages.add(topic, str(error))

        return handle

    def _on_status(self, topic: ParsedTopic, payload: bytes) -> None:
        if not payload:  # a retained status that was cleared
            return
        status = decode(payload, RankStatus)
        key, rank = _sender(topic, status.run)
        if not topic.boot_id == status.boot_id == self._boot_id:
            raise DecodeError(f"the payload is of boot {status.boot_id}, not of the topic's boot")
        self._retained.record(key, rank, status, now_s=self._clock.now_s())
        self._route_status(key, rank, status)

    def _route_status(self, key: RunKey, rank: int, status: RankStatus) -> None:
        """Start a run, or update it; where one of this name has ended and is not retired yet, wait for that."""
        run = self.runs.get(key)
        if run is not None and run.is_succeeded_by(rank, status):
            self._successors.keep_status(key, rank, status)
            return
        if run is None and status.state == "running":
            run = self._start(key)
        if run is None:
            return
        if rank not in run.ranks.members and len(run.ranks.members) >= MAX_RANKS:
            raise DecodeError(f"{MAX_RANKS} ranks on one node already")
        if run.on_status(rank, status) and not run.ended:
            self._claim(key, run, rank, status)

    def _on_iterations(self, topic: ParsedTopic, payload: bytes) -> None:
        run = self.runs.get(topic.run) if topic.run is not None else None
        is_known = run is not None and (run.ended is not None or topic.rank in run.ranks.members)
        if is_known:  # others are of another node, or of a process without a status
            message = decode(payload, Iterations)
            key, rank = _sender(topic, message.run)
            self._route_iterations(key, rank, message)

    def _route_iterations(self, key: RunKey, rank: int, message: Iterations) -> None:
        run = self.runs.get(key)
        if run is not None and run.ended:
            self._successors.keep_iterations(key, rank, message)
        elif run is not None and not run.on_iterations(rank, message):
            raise DecodeError("repeats, goes backwards, or comes from the future")

    def _on_node_part(self, topic: ParsedTopic, payload: bytes) -> None:
        """Route another node's part of a run to the run, where this node leads it."""
        run = self.runs.get(topic.run) if topic.run is not None else None
        if not payload or run is None or not run.is_leader or topic.node in {None, self._config.node.name}:
            return
        if topic.leaf == "energy":
            run.other_nodes.on_energy(topic.node or "", decode(payload, RunEnergy))
        else:
            run.other_nodes.on_profile(topic.node or "", decode(payload, NodeProfile))

    def _on_plan(self, topic: ParsedTopic, payload: bytes) -> None:
        run = self.runs.get(topic.run) if topic.run is not None else None
        if not payload or run is None:
            return
        plan = decode(payload, RunPlan)
        if (plan.node, plan.run) != (topic.node, run.identity.run):
            raise DecodeError(f"the payload is of node {plan.node} for run {plan.run}, not of the topic's")
        run.on_plan(plan)

    def _start(self, key: RunKey) -> TrainingRun | None:
        """Start the task of a run that is new; None while the controller stops."""
        if self._tasks is None:
            return None
        if len(self.runs) >= MAX_RUNS:
            raise DecodeError(f"{MAX_RUNS} runs on one node already")
        run = TrainingRun(
            RunIdentity(user=key.user, job=key.job, run=key.run, node=self._config.node.name),
            config=self._config,
            clock=self._clock,
            signal=self._signal,
            store=self._store,
            checkpoints=self._checkpoints,
            bus=self._bus,
            topics=self._topics,
            on_release=self._release_gpus,
        )
        self.runs[key] = run
        self._tasks.create_task(self._attend(key, run), name=f"run[{key}]")
        _LOGGER.info("%s: started", key)
        return run

    async def _attend(self, key: RunKey, run: TrainingRun) -> None:
        """Control a run, then retire it, and let its successor of the same name begin, where there is one."""
        await run.run(tick_s=self._tick_s)
        self.runs.pop(key)
        _LOGGER.info("%s: %s", key, run.ended)
        for rank, message in self._successors.pop(key):
            try:
                if isinstance(message, RankStatus):
                    self._route_status(key, rank, message)
                else:
                    self._route_iterations(key, rank, message)
            except DecodeError as error:
                self.invalid_messages.add(self._topics.rank(self._boot_id, key, rank, "status"), str(error))

    def _release_gpus(self, ended: TrainingRun) -> None:
        """Free the GPUs of a run that has ended, and grant the claims that waited for them: the oldest run first."""
        key = ended.identity.key
        for uuid in self.claims.owned.get(key, ()):
            self._workers[uuid].meter.job = None
        for waiting_key, number in self.claims.release(key):
            run = self.runs.get(waiting_key)
            rank = run.ranks.members.get(number) if run is not None else None
            if run is not None and rank is not None and run.ended is None and rank.ended is None:
                self._claim(waiting_key, run, number, rank.status)

    def _claim(self, key: RunKey, run: TrainingRun, rank: int, status: RankStatus) -> None:
        """Give a run the GPUs that one of its ranks names; each heartbeat, too, tries a rejected claim again."""
        granted = self.claims.claim(key, rank, status.gpus)
        while isinstance(granted, ClaimRejection) and granted.owner is not None:
            # An owner whose processes are all gone waits only to be resumed, and ends where another run needs its GPUs.
            if not self.runs[granted.owner].end_if_orphaned():
                break
            granted = self.claims.claim(key, rank, status.gpus)
        if isinstance(granted, ClaimRejection):
            if run.rejections.get(rank) != granted.code:
                _LOGGER.warning("%s: no limit is set: %s", key, granted.detail)
            run.rejections[rank] = granted.code
            return
        run.rejections.pop(rank, None)
        for gpu in granted:
            if gpu.uuid not in run.gpus.uuids:
                worker = self._workers[gpu.uuid]
                run.add_gpu(worker.limiter, worker.meter)
                worker.meter.job = key.job


def _sender(topic: ParsedTopic, run: str) -> tuple[RunKey, int]:
    """Return whose message it is; the run stands in the topic and in the message, and must be the same."""
    if topic.run is None or topic.rank is None or topic.run.run != run:
        raise DecodeError(f"the payload is for run {run}, not for the topic's run")
    return topic.run, topic.rank
