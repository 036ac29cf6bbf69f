"""Routes bus messages to the runs of this node; starts runs, gives them their GPUs, and retires them.

Invalid messages are counted, logged once per topic and minute, and dropped. Only messages of this boot of this machine
are subscribed to, because only their clocks are comparable; other nodes' controllers handle theirs.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from controller.accounting.checkpoint import RunCheckpoints
from controller.accounting.ranks import RunIdentity
from controller.config import Config
from controller.control.profile_store import ProfileStore
from controller.gpu.meter.energy_meter import GpuEnergyMeter
from controller.history.run_history import RunHistory
from controller.ports import Bus, Gpu, PowerLimiter, ProcessTable, SignalSource
from controller.ports.orders import Goal, GoalSource, Pin, PinSource
from controller.runs.claim_arbiter import ClaimArbiter
from controller.runs.gpu_claims import ClaimRejection
from controller.runs.other_hosts import OtherHosts
from controller.runs.quotas import MAX_RANKS, run_fault
from controller.runs.retained_topics import HostSweep, RetainedTopics
from controller.runs.run import TrainingRun
from controller.runs.successor_buffer import SuccessorBuffer
from controller.runtime.clock import Clock
from publishers.messages.codec import DecodeError, decode, encode
from publishers.messages.reports import HEARD, JOINED, OTHERS_RUN, Notice
from publishers.messages.topics import PROBE, ParsedTopic, RunKey, Topics
from publishers.messages.training import Iterations, RankStatus
from publishers.shared.log_once import InvalidMessages
from publishers.shared.recent_dict import RecentDict

MAX_ENDED = 4_096
"""So many runs that have ended are remembered."""
SWEEP_PERIOD_S = 60.0
MAX_DETAIL = 1_024
HEARD_DETAIL = "the controller hears this process"
SURPLUS_DETAIL = "more messages a second than the controller reads: some are dropped; raise flush_s="
MAX_REFUSED = 256
"""Runs that were told that there is no room for them."""

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
        arbiter: decides which of them gets which GPU.
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
        history: RunHistory,
        checkpoints: RunCheckpoints,
        processes: ProcessTable,
        tick_s: float,
        pause_wanted: asyncio.Event | None = None,
        pins: PinSource | None = None,
        goals: GoalSource | None = None,
    ) -> None:
        self._pause_wanted = pause_wanted
        self._pins = pins
        self._goals = goals
        self.runs: dict[RunKey, TrainingRun] = {}
        self.arbiter = ClaimArbiter(
            [each.limiter.gpu for each in workers.values()],
            self.runs,
            processes=processes,
            trusts_bus=config.gpu.trust_bus,
            authenticates_users=bool(config.bus.username),
            clock=clock,
            grant=self._grant,
            withdraw=self._withdraw,
            refuse=self._refuse,
            acknowledge=self._acknowledge,
            join=self._join,
        )
        self.invalid_messages = InvalidMessages(clock.now_s)
        self._workers = workers
        self._config = config
        self._boot_id = boot_id
        self._bus = bus
        self._clock = clock
        self._signal = signal
        self._store = store
        self._history = history
        self._checkpoints = checkpoints
        self._tick_s = tick_s
        self._topics = Topics(config.bus.root)
        self._successors = SuccessorBuffer()
        self._joined: dict[RunKey, tuple[RunKey, int]] = {}
        """Of what run a process is that has begun as another one, and which of its ranks."""
        self._refused: RecentDict[RunKey, bool] = RecentDict(MAX_REFUSED)
        self._ended: RecentDict[RunKey, None] = RecentDict(MAX_ENDED)
        self._retained = RetainedTopics(self._topics, bus, node=config.node.name, boot_id=boot_id)
        self._other_hosts = OtherHosts(
            self.runs, bus=bus, topics=self._topics, node=config.node.name, clock=clock, parse=self._handler
        )
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Subscribe, and hold the tasks of the runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            topics, boot_id = self._topics, self._boot_id
            if self._bus.quotas is not None:
                self._bus.quotas.on_surplus = self._on_surplus
            self._bus.subscribe(topics.rank_filter("status", boot_id=boot_id), self._handler(self._on_status), qos=1)
            self._bus.subscribe(
                topics.rank_filter("iterations", boot_id=boot_id), self._handler(self._on_iterations), qos=0
            )
            tasks.create_task(self.arbiter.run(), name="claims")
            node, now_s = self._config.node.name, self._clock.now_s()
            sweep = HostSweep(topics, self._bus, node=node, boot_id=boot_id, now_s=now_s)
            try:
                while True:
                    await self._clock.sleep_until(self._clock.now_s() + SWEEP_PERIOD_S)
                    self._retained.clear_due(self._clock.now_s())
                    sweep.advance(self._clock.now_s())
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

    def _on_surplus(self, topic: str) -> None:
        """Tell a run, once, that messages of it are dropped."""
        parsed = self._topics.parse(topic)
        if parsed is None or parsed.run is None or parsed.rank is None:
            return
        key, rank = self._place(parsed.run, parsed.rank)
        run = self.runs.get(key)
        if run is not None and not run.is_flooding:
            run.is_flooding = True
            self._notify(key, rank, "too_many_messages", SURPLUS_DETAIL)

    def _on_status(self, topic: ParsedTopic, payload: bytes) -> None:
        if not payload:  # a retained status that was cleared
            return
        status = decode(payload, RankStatus)
        key, rank = _sender(topic, status.run)
        if not topic.boot_id == status.boot_id == self._boot_id:
            raise DecodeError(f"the payload is of boot {status.boot_id}, not of the topic's boot")
        if key.job == PROBE:
            if status.state == "running":
                self._notify(key, rank, HEARD, HEARD_DETAIL)
            return
        self._retained.record(key, rank, status, now_s=self._clock.now_s())
        self._route_status(key, rank, status)

    def _route_status(self, key: RunKey, rank: int, status: RankStatus) -> None:
        """Start a run, or update it; where one of this name has ended and is not retired yet, wait for that."""
        own = key
        begins = status.state == "running" and key not in self.runs and key not in self._joined
        if begins and rank == 0 and (place := self._checkpoints.place_in_pool(key, status)) is not None:
            self._joined[key] = place
        key, rank = self._place(key, rank)
        run = self.runs.get(key)
        if run is not None and run.is_succeeded_by(rank, status):
            self._successors.keep_status(key, rank, status)
            return
        if run is None and status.state == "running":
            run = self._start(key, rank)
        if run is None:
            return
        is_new = rank not in run.ranks.members
        if is_new and self._n_ranks(key.user) >= MAX_RANKS:
            raise DecodeError(f"{MAX_RANKS} ranks of user {key.user} on this node already")
        may_claim = run.on_status(rank, status) and not run.ended
        self._other_hosts.update(key)
        if status.state == "finished" and run.ranks.is_pool and not (is_new or run.ranks.ending):
            self._notify(key, rank, OTHERS_RUN, f"other processes of run {key.run} go on")
        if may_claim:
            self.arbiter.on_status(key, rank, own=own)

    def _n_ranks(self, user: str) -> int:
        return sum(len(run.ranks.members) for key, run in self.runs.items() if key.user == user)

    def _on_iterations(self, topic: ParsedTopic, payload: bytes) -> None:
        if topic.run is None or topic.rank is None:
            return
        key, rank = self._place(topic.run, topic.rank)
        run = self.runs.get(key)
        is_known = run is not None and (run.ended is not None or rank in run.ranks.members)
        if is_known:  # others are of another node, or of a process without a status
            message = decode(payload, Iterations)
            _sender(topic, message.run)
            self._route_iterations(key, rank, message)

    def _route_iterations(self, key: RunKey, rank: int, message: Iterations) -> None:
        run = self.runs.get(key)
        if run is not None and run.ended:
            self._successors.keep_iterations(key, rank, message)
        elif run is not None and not run.on_iterations(rank, message):
            raise DecodeError("repeats, goes backwards, or comes from the future")

    def _place(self, key: RunKey, rank: int) -> tuple[RunKey, int]:
        """Return of which run a rank of a run is now: another one, where it was joined to one that goes on."""
        return self._joined.get(key, (key, rank)) if rank == 0 else (key, rank)

    def _own(self, key: RunKey, rank: int) -> RunKey:
        """Return the run that the process of a rank speaks for and listens to: another one, where it was joined."""
        return next((own for own, place in self._joined.items() if place == (key, rank)), key)

    def _join(self, key: RunKey, owner: RunKey) -> bool:
        """Make the process of a run a rank of another one, where they are one training; return whether they are."""
        run, whole = self.runs[key], self.runs[owner]
        if not whole.can_take_in(run):
            return False
        number = whole.take_in(run)
        self._joined[key] = owner, number
        self._end_orders(key)
        self._acknowledge(owner, 0)
        _LOGGER.info("%s: is rank %d of %s from now on", key, number, owner)
        self.arbiter.on_status(owner, number, own=key)
        return True

    def _acknowledge(self, key: RunKey, rank: int) -> None:
        """Tell a process that it is heard, and whether it is a rank of a run with others that share its GPU."""
        if not self.runs[key].ranks.is_pool:
            self._notify(key, rank, HEARD, HEARD_DETAIL)
            return
        detail = f"this process is rank {rank} of run {key.run}, whose GPU others share: their rates add up"
        self._notify(key, rank, JOINED, detail, joined=key.run)

    def _start(self, key: RunKey, rank: int) -> TrainingRun | None:
        """Start the task of a run that is new; None where the node has no room for it."""
        if self._tasks is None:
            return None
        if (fault := run_fault(self.runs.keys(), key)) is not None:
            if self._refused.get(key) is None:
                self._refused[key] = True
                self._notify(key, rank, "too_many_runs", fault)
            raise DecodeError(fault)
        run = TrainingRun(
            RunIdentity(user=key.user, job=key.job, run=key.run, node=self._config.node.name),
            config=self._config,
            clock=self._clock,
            signal=self._signal,
            store=self._store,
            history=self._history,
            checkpoints=self._checkpoints,
            bus=self._bus,
            topics=self._topics,
            on_release=self._release_gpus,
            notify=partial(self._notify, key, rank),
            has_predecessor=key in self._ended,
            pause_wanted=self._pause_wanted,
            pin_of=partial(self._pin_of, key),
            goal_of=partial(self._goal_of, key),
        )
        self.runs[key] = run
        self._tasks.create_task(self._attend(key, run), name=f"run[{key}]")
        _LOGGER.info("%s: started", key)
        return run

    def _pin_of(self, key: RunKey) -> Pin | None:
        return None if self._pins is None else self._pins.pin_of(key)

    def _goal_of(self, key: RunKey) -> Goal | None:
        return None if self._goals is None else self._goals.goal_of(key)

    async def _attend(self, key: RunKey, run: TrainingRun) -> None:
        """Control a run, then retire it, and let its successor of the same name begin, where there is one."""
        await run.run(tick_s=self._tick_s)
        self.runs.pop(key)
        self._other_hosts.update(key)
        self._ended[key] = None
        _LOGGER.info("%s: %s", key, run.ended)
        successors = [(self._own(key, rank), rank, message) for rank, message in self._successors.pop(key)]
        self._joined = {part: place for part, place in self._joined.items() if place[0] != key}
        for own, number, message in successors:
            rank = number if own == key else 0
            try:
                if isinstance(message, RankStatus):
                    self._route_status(own, rank, message)
                else:
                    self._route_iterations(*self._place(own, rank), message)
            except DecodeError as error:
                self.invalid_messages.add(self._topics.rank(self._boot_id, own, rank, "status"), str(error))

    def _release_gpus(self, ended: TrainingRun) -> None:
        """Free the GPUs of a run that has ended; the claims that waited for them are considered soon."""
        for uuid in self.arbiter.release(ended.identity.key):
            self._workers[uuid].meter.job = None
        self._end_orders(ended.identity.key)

    def _end_orders(self, key: RunKey) -> None:
        """End what people have ordered of a run that there is no more."""
        for orders in (self._pins, self._goals):
            if orders is not None:
                orders.on_run_end(key)

    def _grant(self, key: RunKey, gpu: Gpu) -> None:
        """Give a run a GPU, unless it has it."""
        run = self.runs[key]
        if not run.gpus.controls(gpu.uuid):
            worker = self._workers[gpu.uuid]
            run.add_gpu(worker.limiter, worker.meter)
            worker.meter.job = key.job

    def _withdraw(self, key: RunKey, uuid: str, detail: str) -> None:
        """Take a GPU from a run: it is neither limited nor measured for it any more."""
        _LOGGER.info("%s: %s is given back: %s", key, uuid, detail)
        self.runs[key].withdraw_gpu(uuid, detail)
        self._workers[uuid].meter.job = None

    def _refuse(self, key: RunKey, rank: int, rejection: ClaimRejection) -> None:
        """Say why a rank did not get its GPUs: in the log, and to the training."""
        _LOGGER.warning("%s: no limit is set: %s", key, rejection.detail)
        self._notify(key, rank, rejection.code, rejection.detail)

    def _notify(self, key: RunKey, rank: int, code: str, detail: str, *, joined: str | None = None) -> None:
        """Send a notice to a training process."""
        own = self._own(key, rank)
        notice = Notice(
            user=own.user,
            job=own.job,
            run=own.run,
            rank=rank,
            node=self._config.node.name,
            boot_id=self._boot_id,
            time_s=self._clock.now_s(),
            code=code,
            detail=detail[:MAX_DETAIL],
            joined=joined,
        )
        self._bus.publish(self._topics.run(own, "notice"), encode(notice), qos=1)


def _sender(topic: ParsedTopic, run: str) -> tuple[RunKey, int]:
    """Return whose message it is; the run stands in the topic and in the message, and must be the same."""
    if topic.run is None or topic.rank is None or topic.run.run != run:
        raise DecodeError(f"the payload is for run {run}, not for the topic's run")
    return topic.run, topic.rank
