"""A router on the bench: fake GPUs with limiters that only remember, real jobs, and the bus in one process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from controller.accounting.checkpoint import RunCheckpoints
from controller.config import load_config
from controller.control.profile_store import ProfileStore
from controller.gpu.meter.energy_meter import GpuEnergyMeter
from controller.history.run_history import RunHistory
from controller.ports import Hold, LimitState
from controller.runs.claim_arbiter import SPACING_S
from controller.runs.router import GpuWorkers, Router
from controller.runs.run import TrainingRun
from publishers.messages.codec import Message, decode, encode
from publishers.messages.reports import NodeStatus, Notice
from publishers.messages.topics import RunKey, Topics
from publishers.mqtt.receiving.quotas import MessageQuotas
from tests.controller.messages import BOOT_ID, rank_status
from tests.fakes import KEY, USER, FakeBus, FakeGpu, FakeLimiter, FakeProcessTable, FixedSignal, LoopClock

TOPICS = Topics()
NODE = "node-a"
TICK_S = 0.5
SETTLE_S = 2 * SPACING_S
"""Within this time the processes of a GPU are read and the claims on it settled."""


class RouterBench:
    """A router with its surroundings; `gpus`: those that another one has left."""

    def __init__(self, state_dir: Path, *uuids: str, gpus: Sequence[FakeGpu] = (), node: str = NODE) -> None:
        self.clock = LoopClock()
        self.bus = FakeBus(quotas=MessageQuotas(TOPICS))
        self.checkpoints = RunCheckpoints(state_dir, boot_id=BOOT_ID, clock=self.clock)
        self.store = ProfileStore(state_dir)
        self.history = RunHistory(state_dir)
        self.gpus = gpus or [FakeGpu(uuid, index=index) for index, uuid in enumerate(uuids or ("GPU-fake-0",))]
        self.processes = FakeProcessTable()
        self.limiters = [FakeLimiter(gpu) for gpu in self.gpus]
        self.workers = {
            limiter.gpu.uuid: GpuWorkers(limiter=limiter, meter=self._meter(limiter)) for limiter in self.limiters
        }
        self.router = Router(
            self.workers,
            config=load_config(
                None, [f"node.name={node}", f"node.state_dir={state_dir}", "gpu.trust_bus=true", "bus.username=node"]
            ),
            boot_id=BOOT_ID,
            bus=self.bus,
            clock=self.clock,
            signal=FixedSignal(kind="energy"),
            store=self.store,
            history=self.history,
            checkpoints=self.checkpoints,
            processes=self.processes,
            tick_s=TICK_S,
        )

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the router and the meters."""
        with self.checkpoints, self.history:
            async with self._working():
                yield

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.router.run())]
            running += [tasks.create_task(unit.meter.run()) for unit in self.workers.values()]
            await asyncio.sleep(0)
            yield
            for task in running:
                task.cancel()

    def say(
        self, leaf: str, message: Message | bytes, *, job: str = "resnet50", run: str = "run-1", rank: int = 0
    ) -> None:
        """Publish a message of a training process."""
        payload = message if isinstance(message, bytes) else encode(message)
        self.bus.publish(
            TOPICS.rank(BOOT_ID, RunKey(USER, job, run), rank, leaf), payload, qos=1, retain=leaf == "status"
        )

    async def say_and_settle(self, leaf: str, message: Message, *, job: str = "resnet50", run: str = "run-1") -> None:
        """Publish a message of a training process, and wait until its claim is settled."""
        self.say(leaf, message, job=job, run=run)
        await asyncio.sleep(SETTLE_S)

    def say_elsewhere(self, node: str = "node-z", boot_id: str = "boot-z", **changes: Any) -> None:  # noqa: ANN401 — the record checks them
        """Publish rank 0 of the run on another host, and that a node's controller runs there."""
        status = rank_status(boot_id=boot_id, host=node, world_size=2, **changes)
        self.bus.publish(TOPICS.rank(boot_id, KEY, 0, "status"), encode(status), qos=1, retain=True)
        self.say_node(node, boot_id)

    def say_node(self, node: str, boot_id: str, state: Literal["online", "offline"] = "online") -> None:
        """Publish the status of another node."""
        message = NodeStatus(state=state, version="0", node=node, boot_id=boot_id)
        self.bus.publish(TOPICS.node_status(node), encode(message), qos=1, retain=True)

    def training_run(self, job: str = "resnet50", run: str = "run-1") -> TrainingRun:
        """Return a run."""
        return self.router.runs[RunKey(USER, job, run)]

    def notices(self, run: str = "run-1", job: str = "resnet50") -> list[Notice]:
        """Return what a run was told."""
        return [decode(payload, Notice) for payload in self.bus.payloads(TOPICS.run(RunKey(USER, job, run), "notice"))]

    @property
    def n_bad(self) -> int:
        """Return how many messages were dropped as bad."""
        return self.router.invalid_messages.n_messages

    def _meter(self, limiter: FakeLimiter) -> GpuEnergyMeter:
        return GpuEnergyMeter(
            limiter.gpu,
            clock=self.clock,
            sample_period_s=TICK_S,
            publish_period_s=5.0,
            signal=FixedSignal(kind="energy"),
            limiter=limiter,
            publish=lambda energy: self.bus.publish("energy", encode(energy)),
        )


def limit_state(hold: Hold = Hold.FREE, *, limit_w: float = 280.0, since_ns: int = 0) -> LimitState:
    """Return how a limit stands that was 280 W before."""
    return LimitState(
        hold=hold,
        prior_power_limit_w=280.0,
        floor_power_limit_w=100.0,
        ceiling_power_limit_w=280.0,
        requested_power_limit_w=limit_w,
        enforced_power_limit_w=limit_w,
        since_ns=since_ns,
    )
