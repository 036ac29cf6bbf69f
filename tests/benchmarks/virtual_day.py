"""The demo on virtual time: the same day each time, as fast as it can be computed.

All is the demo's but the passage of time and the broker: messages and limits arrive at once, and no process is late.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

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
from controller.runtime.clock import NS_PER_S, ScaledClock
from publishers.messages.codec import Outgoing
from publishers.messages.topics import RunKey
from publishers.messages.training import RankStatus
from publishers.shared.boot_id import read_boot_id
from publishers.shared.process_identity import run_mark
from tests.benchmarks.virtual_training import VirtualTraining
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
        train=lambda gpu: _train(setup, bus, gpu),
        processes=processes,
    )
    return await run_day(setup, ports, view)


async def _train(setup: DaySetup, bus: FakeBus, gpu: SimulatedGpu) -> None:
    """Be the demo's training process: compute on a GPU, and publish on a bus."""
    loop, clock = asyncio.get_running_loop(), setup.clock
    begin_ns = max(setup.time_ns(setup.grid.starts_s), clock.monotonic_ns())
    training = Training(gpu.timeline, Noise(setup.seed), begin_ns=begin_ns)
    status = RankStatus(
        run=RUN,
        state="running",
        host=read_boot_id(),
        boot_id=read_boot_id(),
        pid=PID,
        gpus=[gpu.uuid],
        batch_size=BATCH_SIZE,
        world_size=1,
        started_at_s=setup.grid.starts_s,
        heartbeat_s=HEARTBEAT_S,
        total_iterations=setup.workload.iterations,
    )
    rank = VirtualTraining(training, setup.workload, status=status, key=KEY, bus=bus)
    gpu.timeline.record(ProcessAttached(gpu.timeline.start_ns, PID))
    rank.say("running")
    await _wait(clock, training.time_ns)
    job = rank.compute()
    flushed_s = said_s = loop.time()
    until_ns = next(job, None)
    while until_ns is not None:
        await _wait(clock, until_ns)
        if loop.time() - flushed_s >= FLUSH_S:
            flushed_s = loop.time()
            rank.send()
        if loop.time() - said_s >= HEARTBEAT_S:
            said_s = loop.time()
            rank.say("running")
        try:
            until_ns = job.send(clock.monotonic_ns())
        except StopIteration:
            break
    rank.say("finished")


async def _wait(clock: ScaledClock, until_ns: int) -> None:
    """Sleep at least until a moment [ns], as the demo's training does."""
    while (left_ns := until_ns - clock.monotonic_ns()) > 0:  # noqa: ASYNC110 — a time is waited for, not an event
        await asyncio.sleep(max(SHORTEST_NAP_S, left_ns / NS_PER_S / clock.rate))
