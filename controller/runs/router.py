"""The router: what arrives on the bus goes to the run it belongs to; runs start, get their GPUs, and are retired here.

Bad messages are counted, logged once a topic and minute, and dropped. Runs of other nodes are left to their own
controllers: a message is ours when it comes from this boot of this machine, because only then are its clocks ours.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller.accounting.ranks import RunIdentity
from controller.clock import Clock
from controller.complaints import Complaints
from controller.config import Config
from controller.control.profile_store import ProfileStore
from controller.gpu.energy_meter import GpuEnergyMeter
from controller.ports import Bus, PowerLimiter, SignalSource
from controller.runs.checkpoint import RunCheckpoints
from controller.runs.gpu_claims import ClaimRejection, grant, resolve
from controller.runs.retained_topics import RetainedTopics
from controller.runs.run import TrainingRun
from controller.runs.successor_buffer import SuccessorBuffer
from publishers.messages.codec import DecodeError, Message, decode, encode
from publishers.messages.reports import NodeProfile, RunEnergy, RunPlan
from publishers.messages.topics import ParsedTopic, Topics
from publishers.messages.training import Iterations, Metric, RankStatus

MAX_RUNS = 256
"""More runs than this at a time on one node is a flood, not a workload."""
MAX_RANKS = 1_024
HOUSEKEEPING_PERIOD_S = 60.0

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWorkers:
    """One GPU with the tasks that serve it."""

    limiter: PowerLimiter
    meter: GpuEnergyMeter


class Router:
    """The runs of this node."""

    def __init__(
        self,
        units: Mapping[str, GpuWorkers],
        *,
        config: Config,
        boot_id: str,
        bus: Bus,
        clock: Clock,
        signal: SignalSource,
        store: ProfileStore,
        run_books: RunCheckpoints,
        tick_s: float,
    ) -> None:
        self.jobs: dict[tuple[str, str], TrainingRun] = {}
        self.complaints = Complaints(clock)
        self._units = units
        self._config = config
        self._boot_id = boot_id
        self._bus = bus
        self._clock = clock
        self._signal = signal
        self._store = store
        self._run_books = run_books
        self._tick_s = tick_s
        self._topics = Topics(config.bus.root)
        self._next_runs = SuccessorBuffer()
        self._housekeeping = RetainedTopics(self._topics, bus, node=config.node.name)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Subscribe, and hold the tasks of the runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._bus.subscribe(self._topics.all_ranks("status"), self._on(self._hear_status), qos=1)
            self._bus.subscribe(self._topics.all_ranks("iterations"), self._on(self._hear_iterations), qos=0)
            self._bus.subscribe(self._topics.all_runs("metric"), self._on(self._hear_metric), qos=1)
            self._bus.subscribe(self._topics.run_on_node("+", "+", "+"), self._on(self._hear_part), qos=0)
            self._bus.subscribe(self._topics.run_on_node("+", "+", "+", "profile"), self._on(self._hear_part), qos=1)
            self._bus.subscribe(self._topics.all_runs("plan"), self._on(self._hear_plan), qos=1)
            while True:
                await self._clock.sleep_until(self._clock.now_s() + HOUSEKEEPING_PERIOD_S)
                self._housekeeping.sweep(self._clock.now_s())

    def _on(self, hear: Callable[[ParsedTopic, bytes], None]) -> Callable[[str, bytes], None]:
        """Return a handler that takes the topic apart and turns a bad message into a count."""

        def handle(topic: str, payload: bytes) -> None:
            address = self._topics.parse(topic)
            if address is None:
                self.complaints.add("(foreign topics)", f"not one of ours: {topic[:80]!r}")
                return
            try:
                hear(address, payload)
            except DecodeError as error:
                self.complaints.add(topic, str(error))

        return handle

    def _hear_status(self, address: ParsedTopic, payload: bytes) -> None:
        if not payload:  # a retained status that somebody has cleared
            return
        status = decode(payload, RankStatus)
        job_name, run, rank = _of_a_rank(address, status.run)
        self._housekeeping.note(address, status, now_s=self._clock.now_s(), ours=status.boot_id == self._boot_id)
        if status.boot_id != self._boot_id:
            return
        self._take_status((job_name, run), rank, status)

    def _take_status(self, key: tuple[str, str], rank: int, status: RankStatus) -> None:
        """Start a run, or let it know; where one of this name has ended and is not retired yet, wait for that."""
        job = self.jobs.get(key)
        if job is not None and job.gives_way_to(rank, status):
            self._next_runs.keep_status(key, rank, status)
            return
        if job is None and status.state == "running":
            job = self._start(*key)
        if job is None:
            return
        if rank not in job.ranks.members and len(job.ranks.members) >= MAX_RANKS:
            raise DecodeError(f"{MAX_RANKS} ranks on one node already")
        if job.hear_status(rank, status) and not job.ended:
            self._claim(job, rank, status)

    def _hear_iterations(self, address: ParsedTopic, payload: bytes) -> None:
        key = (address.job or "", address.run or "")
        job = self.jobs.get(key)
        is_known = job is not None and (job.ended is not None or address.rank in job.ranks.members)
        if not is_known:  # another node's, or one that said nothing yet
            return
        message = decode(payload, Iterations)
        _, _, rank = _of_a_rank(address, message.run)
        self._take_iterations(key, rank, message)

    def _take_iterations(self, key: tuple[str, str], rank: int, message: Iterations) -> None:
        job = self.jobs.get(key)
        if job is not None and job.ended:
            self._next_runs.keep_iterations(key, rank, message)
        elif job is not None and not job.hear_iterations(rank, message):
            raise DecodeError("repeats, goes backwards, or comes from the future")

    def _hear_metric(self, address: ParsedTopic, payload: bytes) -> None:
        metric = decode(payload, Metric)
        if metric.run != address.run:
            raise DecodeError(f"speaks of run {metric.run}")

    def _hear_part(self, address: ParsedTopic, payload: bytes) -> None:
        job = self.jobs.get((address.job or "", address.run or ""))
        if payload and job is not None and job.is_leader and address.node and address.node != self._config.node.name:
            kind: type[RunEnergy | NodeProfile] = RunEnergy if address.leaf == "energy" else NodeProfile
            job.hear_part(address.node, decode(payload, kind))

    def _hear_plan(self, address: ParsedTopic, payload: bytes) -> None:
        job = self.jobs.get((address.job or "", address.run or ""))
        if not payload or job is None:
            return
        plan = decode(payload, RunPlan)
        if plan.run != address.run:
            raise DecodeError(f"speaks of run {plan.run}")
        if job.is_follower and plan.node != self._config.node.name:
            job.hear_plan(plan)

    def _start(self, job_name: str, run: str) -> TrainingRun | None:
        """Start the task of a run that is heard of for the first time."""
        if len(self.jobs) >= MAX_RUNS or self._tasks is None:
            raise DecodeError(f"{MAX_RUNS} runs on one node already")
        job = TrainingRun(
            RunIdentity(job=job_name, run=run, node=self._config.node.name),
            config=self._config,
            clock=self._clock,
            signal=self._signal,
            store=self._store,
            run_books=self._run_books,
            publish=lambda leaf, message: self._publish(job_name, run, leaf, message),
            give_up=self._take_back,
        )
        self.jobs[job_name, run] = job
        self._tasks.create_task(self._attend(job), name=f"job[{job_name}/{run}]")
        _LOGGER.info("%s/%s: started", job_name, run)
        return job

    async def _attend(self, job: TrainingRun) -> None:
        """Run a run, then retire it, and let the next one of its name begin, where it is there already."""
        await job.run(tick_s=self._tick_s)
        key = job.place.job, job.place.run
        self.jobs.pop(key)
        _LOGGER.info("%s/%s: %s", *key, job.ended)
        for rank, message in self._next_runs.take(key):
            try:
                if isinstance(message, RankStatus):
                    self._take_status(key, rank, message)
                else:
                    self._take_iterations(key, rank, message)
            except DecodeError as error:
                self.complaints.add(self._topics.rank(*key, rank, "status"), str(error))

    def _take_back(self, uuids: set[str]) -> None:
        """Free the GPUs of a run that has ended, and try again at once what was refused: the oldest run first."""
        for uuid in uuids:
            self._units[uuid].meter.job = None
        for job in self.jobs.values():
            for number in list(job.refusals):
                rank = job.ranks.members[number]
                if job.ended is None and rank.ended is None:
                    self._claim(job, number, rank.status)

    def _claim(self, job: TrainingRun, rank: int, status: RankStatus) -> None:
        """Give a run the GPUs that one of its ranks names; each heartbeat, too, tries again what was refused."""
        self._make_way(job, status)
        owners = {
            uuid: f"{other.place.job}/{other.place.run}" for other in self.jobs.values() for uuid in other.gpu_uuids
        }
        granted = grant(
            status.gpus,
            gpus=[unit.limiter.gpu for unit in self._units.values()],
            owners=owners,
            claimant=f"{job.place.job}/{job.place.run}",
        )
        if isinstance(granted, ClaimRejection):
            if job.refusals.get(rank) != granted.code:
                _LOGGER.warning("%s/%s: no limit is set: %s", job.place.job, job.place.run, granted.detail)
            job.refusals[rank] = granted.code
            return
        job.refusals.pop(rank, None)
        for gpu in granted:
            if gpu.uuid not in job.gpu_uuids:
                unit = self._units[gpu.uuid]
                job.add_gpu(unit.limiter, unit.meter)
                unit.meter.job = job.place.job

    def _make_way(self, job: TrainingRun, status: RankStatus) -> None:
        """End the runs whose processes are all gone, and wait only to be taken up again, on GPUs that another needs."""
        gpus = [unit.limiter.gpu for unit in self._units.values()]
        wanted = {
            gpu.uuid for gpu in (resolve(name, gpus) for name in status.gpus) if not isinstance(gpu, ClaimRejection)
        }
        for other in list(self.jobs.values()):
            if other is not job and other.gpu_uuids & wanted:
                other.make_way()

    def _publish(self, job: str, run: str, leaf: str, message: Message) -> None:
        """Publish what a run says of itself: its curve, its plan, its energy, or this node's part (`node/…`) of it."""
        lasting = message.final if isinstance(message, RunEnergy) else True
        place, _, part = leaf.rpartition("/")
        topic = (
            self._topics.run_on_node(job, run, self._config.node.name, part)
            if place
            else self._topics.run(job, run, leaf)
        )
        self._bus.publish(topic, encode(message), qos=1 if lasting else 0, retain=lasting)


def _of_a_rank(address: ParsedTopic, run: str) -> tuple[str, str, int]:
    """Return whose message it is; the run stands in the topic and in the message, and must be the same."""
    if address.job is None or address.run is None or address.rank is None or address.run != run:
        raise DecodeError(f"speaks of run {run}")
    return address.job, address.run, address.rank
