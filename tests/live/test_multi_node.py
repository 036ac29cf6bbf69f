"""A run on two nodes over a real broker: limits reach the other node, and are given back when the leader stops."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from controller.app import NodeContext, run_controller
from controller.control.multi_node import HEARTBEAT_S
from publishers.messages.codec import Outgoing, decode, encode
from publishers.messages.reports import NodeProfile, NodeStatus, RunEnergy, RunPlan
from publishers.messages.topics import Topics
from publishers.mqtt.client import MqttClient
from tests.fakes import KEY, FakeGpu
from tests.live.conftest import Mosquitto, eventually
from tests.live.node import QUICK
from tests.scenarios.multi_node_site import FarClock
from tests.scenarios.site import POWER_RATIO, PRIOR_W, Site, Training, rate_per_s

pytestmark = pytest.mark.live
AHEAD_S = 18_000.0
FORGED_W = 101.0


class LiveSite(Site):
    """A node on a real broker, whose clock is hours off."""

    def __init__(self, state_dir: Path, name: str, url: str, *, ahead_s: float) -> None:
        self.gpu = FakeGpu(f"GPU-of-{name}", clock=FarClock(ahead_s=ahead_s))
        self.gpu.requested_power_limit_w = PRIOR_W
        self.gpu.draw_w = lambda power_limit_w: POWER_RATIO * power_limit_w
        quick = [f"{key}={value}" for key, value in QUICK.items()]
        super().__init__(state_dir / name, [self.gpu], *quick, f"node.name={name}")
        self.name, self.url = name, url
        self.clock = self.gpu.clock

    def node(self) -> NodeContext:
        return replace(super().node(), boot_id=f"boot-of-{self.name}", connect=self._live)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_controller(self.node(), stop=stop), name=self.name)
            yield
            stop.set()

    def _live(self, will: Outgoing, birth: Callable[[], Iterable[Outgoing]]) -> MqttClient:
        return MqttClient(url=self.url, will=will, birth=birth)


class Heard:
    """What was published of the run, by the end of its topic."""

    def __init__(self, bus: MqttClient) -> None:
        self.latest: dict[str, bytes] = {}
        bus.subscribe(Topics().root + "/#", lambda topic, payload: self.latest.update({topic: payload}), qos=1)

    def last(self, ending: str, kind: type[Any]) -> Any:  # noqa: ANN401 — of that kind
        return next((decode(raw, kind) for topic, raw in self.latest.items() if topic.endswith(ending) and raw), None)


@pytest.fixture
def sites(tmp_path: Path, broker: Mosquitto) -> list[LiveSite]:
    return [
        LiveSite(tmp_path, name, broker.url, ahead_s=ahead_s)
        for name, ahead_s in (("node-a", 0.0), ("node-b", AHEAD_S))
    ]


async def train(sites: list[LiveSite], bus: MqttClient) -> None:
    """Train with a rank on each node; the iterations of both last as long as the slower GPU's."""
    async with asyncio.TaskGroup() as tasks:
        for number, site in enumerate(sites):
            site.bus = bus  # type: ignore[assignment]  # of it, a training process only publishes
            training = Training(
                site,
                [other.gpu for other in sites],
                references=[site.gpu.uuid],
                rank=number,
                rate=lambda power_limit_w: 100 * rate_per_s(power_limit_w),
                world_size=2,
                boot_id=f"boot-of-{site.name}",
            )
            tasks.create_task(training.train(60.0, flush_s=0.1), name=f"rank {number}")


def delays_s(leader: FakeGpu, follower: FakeGpu) -> list[float]:
    """Return how long after the leader the follower first had each of the limits that both have had [s]."""
    firsts = [
        {limit_w: time_s for time_s, limit_w in reversed(gpu.history) if limit_w < PRIOR_W}
        for gpu in (leader, follower)
    ]
    return [firsts[1][limit_w] - AHEAD_S - time_s for limit_w, time_s in firsts[0].items() if limit_w in firsts[1]]


async def test_two_nodes_have_one_limit_and_both_get_theirs_back_when_the_leader_stops(sites: list[LiveSite]) -> None:
    a, b = sites
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        bus = await stack.enter_async_context(MqttClient(url=a.url))
        heard = Heard(bus)
        await stack.enter_async_context(b.running())
        async with a.running():
            work = tasks.create_task(train(sites, bus), name="training")
            await eventually(lambda: len(delays_s(a.gpu, b.gpu)) >= 3, 30.0)
            await eventually(lambda: b.gpu.requested_power_limit_w == a.gpu.requested_power_limit_w < PRIOR_W)
            await eventually(lambda: getattr(heard.last("run-1/energy", RunEnergy), "n_gpus", 0) == 2)
        await eventually(lambda: b.gpu.requested_power_limit_w == PRIOR_W)
        assert a.gpu.requested_power_limit_w == PRIOR_W
        await eventually(lambda: heard.last("node-b/profile", NodeProfile).reason == "controller_stopped")
        assert heard.last("node-b/profile", NodeProfile).state == "waiting"
        found_s = delays_s(a.gpu, b.gpu)
        assert len(found_s) >= 3
        assert max(found_s) < HEARTBEAT_S - 1, "it was told at once, and not with the next heartbeat"
        work.cancel()


async def test_forged_plans_of_another_node_move_no_limit(sites: list[LiveSite]) -> None:
    a, b = sites
    forged = RunPlan(
        run=KEY.run,
        node="node-c",
        seq=0,
        time_s=1.7e9,
        heartbeat_s=5.0,
        reason="slowdown_static",
        detail="a forger's",
        gpu_model="Fake 300",
        max_power_limit_w=PRIOR_W,
        power_limit_w=FORGED_W,
    )
    status = NodeStatus(state="online", version="0", node="node-c", boot_id="boot-of-node-c")
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        bus = await stack.enter_async_context(MqttClient(url=a.url))
        bus.publish(Topics().node_status("node-c"), encode(status), qos=1, retain=True)

        def forge() -> bool:
            nonlocal forged
            forged = replace_fields(forged, seq=forged.seq + 1)
            for node in ("node-c", "node-a"):  # its own topic, and that of the node of rank 0 with its own name in it
                bus.publish(Topics().plan(node, KEY), encode(forged), qos=1)
            return len(delays_s(a.gpu, b.gpu)) >= 2

        async with b.running(), a.running():
            work = tasks.create_task(train(sites, bus), name="training")
            await eventually(forge, 30.0)
            assert FORGED_W not in {limit_w for _, limit_w in b.gpu.history}
        work.cancel()
