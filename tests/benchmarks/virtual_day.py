"""The demo on virtual time: the same day each time, as fast as it can be computed.

All is the demo's but the passage of time and the broker: messages and limits arrive at once, and no process is late.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from controller.demo.day.demo import DayPorts, DemoOptions, run_day
from controller.demo.day.grid import load_grid
from controller.demo.day.monitor import BusMonitor
from controller.demo.day.report import DemoResult
from controller.demo.day.setup import FLUSH_S, JOB, RUN, DaySetup, prepare_day
from controller.demo.day.training import HEARTBEAT_S, SHORTEST_NAP_S
from controller.demo.day.view import ViewSettings
from controller.demo.day.workload import BATCH_SIZE, Training
from controller.gpu.simulation.backend import SimulatedGpu
from controller.gpu.simulation.event_log import ProcessAttached
from controller.gpu.simulation.noise import Noise
from controller.runtime.clock import NS_PER_S
from publishers.messages.codec import Message, Outgoing, encode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import Iterations, RankStatus, pack_ends
from publishers.shared.boot_id import read_boot_id
from publishers.shared.process_identity import run_mark
from tests.fakes import USER, FakeBus, FakeProcessTable, fake_process
from tests.virtual_time import VirtualTimeLoop

View = Callable[[BusMonitor, ViewSettings], Coroutine[None, None, None]]
KEY: Final = RunKey(USER, JOB, RUN)
PID: Final = 100


async def unseen(_monitor: BusMonitor, _settings: ViewSettings) -> None:
    """Show nothing."""


def play(options: DemoOptions, view: View = unseen, bus: FakeBus | None = None) -> DemoResult:
    """Run the demo on virtual time, over a bus of one's own or a new one, and return its result."""
    with TemporaryDirectory() as folder, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(_play(options, view, Path(folder), bus or FakeBus()))


async def _play(options: DemoOptions, view: View, folder: Path, bus: FakeBus) -> DemoResult:
    loop = asyncio.get_running_loop()
    setup = prepare_day(
        await load_grid(options.zone),
        seed=options.seed,
        duration_s=options.duration_s,
        max_slowdown=options.max_slowdown,
        folder=folder,
        read_ns=lambda: round(loop.time() * NS_PER_S),
    )
    processes = FakeProcessTable()
    processes.known[PID] = (fake_process(PID, marks=frozenset({run_mark(KEY)})),)

    @asynccontextmanager
    async def connect(will: Outgoing, birth: Callable[[], Iterable[Outgoing]]) -> AsyncIterator[FakeBus]:
        bus.will, bus.birth = will, birth
        async with bus:
            yield bus

    ports = DayPorts(
        broker="none",
        url="",
        connect=connect,
        listen=lambda: nullcontext(bus),
        train=lambda gpu: VirtualTraining(setup, bus, gpu).run(),
        processes=processes,
    )
    return await run_day(setup, ports, view)


class VirtualTraining:
    """The demo's training process: it computes on a GPU, and publishes on a bus."""

    def __init__(self, setup: DaySetup, bus: FakeBus, gpu: SimulatedGpu) -> None:
        self._setup, self._bus, self._gpu = setup, bus, gpu
        self._training = Training(
            gpu.timeline,
            Noise(setup.seed),
            begin_ns=max(setup.time_ns(setup.grid.starts_s), setup.clock.monotonic_ns()),
        )
        self._begin_ns, self._ends_ns = 0, array("q")
        self._n_sent = self._n_messages = self._epoch = 0

    async def run(self) -> None:
        """Run the whole job."""
        loop, clock = asyncio.get_running_loop(), self._setup.clock
        self._gpu.timeline.record(ProcessAttached(self._gpu.timeline.start_ns, PID))
        self._say("running")
        await self._wait(self._training.time_ns)
        job = self._training.run(self._setup.workload, self)
        flushed_s = said_s = loop.time()
        until_ns = next(job, None)
        while until_ns is not None:
            await self._wait(until_ns)
            if loop.time() - flushed_s >= FLUSH_S:
                flushed_s = loop.time()
                self._send()
            if loop.time() - said_s >= HEARTBEAT_S:
                said_s = loop.time()
                self._say("running")
            try:
                until_ns = job.send(clock.monotonic_ns())
            except StopIteration:
                break
        self._say("finished")

    def __iter__(self) -> Iterator[int]:
        """Note when the iterations of a pass end, as a published loader does."""
        self._begin_ns = self._training.time_ns
        for batch in range(self._setup.workload.iterations_per_epoch):
            yield batch
            self._ends_ns.append(self._training.time_ns)
        self._send()
        self._epoch += 1

    async def _wait(self, until_ns: int) -> None:
        """Sleep at least until a moment [ns], as the demo's training does."""
        clock = self._setup.clock
        while (left_ns := until_ns - clock.monotonic_ns()) > 0:  # noqa: ASYNC110 — a time is waited for, not an event
            await asyncio.sleep(max(SHORTEST_NAP_S, left_ns / NS_PER_S / clock.rate))

    def _say(self, state: Literal["running", "finished"]) -> None:
        status = RankStatus(
            run=RUN,
            state=state,
            host=read_boot_id(),
            boot_id=read_boot_id(),
            pid=PID,
            gpus=[self._gpu.uuid],
            batch_size=BATCH_SIZE,
            world_size=1,
            started_at_s=self._setup.grid.starts_s,
            heartbeat_s=HEARTBEAT_S,
            total_iterations=self._setup.workload.iterations,
            reached=True if state == "finished" else None,
        )
        self._publish("status", status, retain=True)

    def _send(self) -> None:
        """Publish the iterations that have ended since the last message."""
        if not self._ends_ns:
            return
        message = Iterations(
            run=RUN,
            seq=self._n_messages,
            first=self._n_sent,
            begin_ns=self._begin_ns,
            end_ns=pack_ends(self._ends_ns),
            epoch=self._epoch,
            dropped=0,
        )
        self._begin_ns = self._ends_ns[-1]
        self._n_messages, self._n_sent = self._n_messages + 1, self._n_sent + len(self._ends_ns)
        self._ends_ns = array("q")
        self._publish("iterations", message, retain=False)

    def _publish(self, leaf: str, message: Message, *, retain: bool) -> None:
        topic = Topics().rank(read_boot_id(), KEY, 0, leaf)
        self._bus.publish(topic, encode(message), qos=int(retain), retain=retain)
