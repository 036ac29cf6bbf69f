"""Several nodes on virtual time: each with its own controller, clock and GPUs, on one broker, with one run on all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from controller.app import NodeContext
from publishers.messages.codec import decode
from publishers.messages.reports import LimitChange, NodeProfile, RunPlan
from tests.fakes import KEY, MIDNIGHT_S, FakeBus, FakeGpu, LoopClock
from tests.scenarios.site import POWER_RATIO, PRIOR_W, TOPICS, Site, Training

HOUR_S = 3_600.0


class FarClock(LoopClock):
    """The clock of another machine: both its times differ from ours."""

    def __init__(self, *, ahead_s: float) -> None:
        super().__init__(MIDNIGHT_S + ahead_s)
        self._boot_ns = int(ahead_s * 7e9)

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self._boot_ns


class SharedBus(FakeBus):
    """One client's view of a broker; `is_cut` takes it off the network."""

    def __init__(self, others: list["SharedBus"]) -> None:
        super().__init__()
        self.is_cut = False
        self._others = others
        self.retained = others[0].retained if others else {}
        others.append(self)

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        for bus in [] if self.is_cut else self._others:
            if not bus.is_cut:
                FakeBus.publish(bus, topic, payload, qos=qos, retain=retain)


class NodeSite(Site):
    """One node of several."""

    def __init__(
        self, state_dir: Path, name: str, gpus: Sequence[FakeGpu], buses: list[SharedBus], *overrides: str
    ) -> None:
        super().__init__(state_dir / name, gpus, f"node.name={name}", *overrides)
        self.name = name
        self.bus: SharedBus = SharedBus(buses)
        self.clock = gpus[0].clock

    def node(self) -> NodeContext:
        return replace(super().node(), boot_id=f"boot-of-{self.name}")

    def limits(self, gpu: FakeGpu) -> list[LimitChange]:
        topic = TOPICS.gpu(self.name, gpu.uuid, "limit")
        return [decode(payload, LimitChange) for payload in self.bus.payloads(topic)]

    def parts(self) -> list[NodeProfile]:
        """Return the profiles that this node published."""
        topic = TOPICS.run_on_node(KEY, self.name, "profile")
        return [decode(payload, NodeProfile) for payload in self.bus.payloads(topic)]

    def plans(self) -> list[RunPlan]:
        """Return the plans that the leader published."""
        return [decode(payload, RunPlan) for payload in self.bus.payloads(TOPICS.plan(self.name, KEY))]


class MultiNodeSite:
    """Two nodes with a GPU each, whose clocks are hours apart, and one run: rank 0 on `a`, rank 1 on `b`."""

    def __init__(self, state_dir: Path, *overrides: str, prior_b_w: float = PRIOR_W, model_b: str = "Fake 300") -> None:
        buses: list[SharedBus] = []
        overrides = ("profiler.settle_s=6", "profiler.window_s=30", *overrides)
        self.gpu_a, self.gpu_b = FakeGpu("GPU-a"), FakeGpu("GPU-b", clock=FarClock(ahead_s=5 * HOUR_S))
        self.gpu_b.model = model_b
        for gpu, prior_w in ((self.gpu_a, PRIOR_W), (self.gpu_b, prior_b_w)):
            gpu.requested_power_limit_w = prior_w
            gpu.draw_w = lambda power_limit_w: POWER_RATIO * power_limit_w
        self.a = NodeSite(state_dir, "node-a", [self.gpu_a], buses, *overrides)
        self.b = NodeSite(state_dir, "node-b", [self.gpu_b], buses, *overrides)
        self.ranks = [self._rank(number, site) for number, site in enumerate((self.a, self.b))]

    @asynccontextmanager
    async def controlled(self, *sites: NodeSite) -> AsyncIterator[None]:
        """Run the controllers of some nodes, of all where none is named."""
        async with AsyncExitStack() as stack:
            for site in sites or (self.a, self.b):
                await stack.enter_async_context(site.controlled())
            yield

    async def train(self, duration_s: float) -> None:
        """Train on both nodes: every iteration ends when the slower of the two GPUs is done."""
        async with asyncio.TaskGroup() as tasks:
            for training in self.ranks:
                tasks.create_task(training.train(duration_s))

    def _rank(self, number: int, site: NodeSite) -> Training:
        return Training(
            site,
            [self.gpu_a, self.gpu_b],
            references=[site.gpus[0].uuid],
            rank=number,
            world_size=2,
            boot_id=f"boot-of-{site.name}",
        )
