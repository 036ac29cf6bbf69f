"""A controller of one run on a simulated node: its run, signal feed and meter are a node's; GPU and time are simulated.

There is no driver, no bus and no other process: statuses and iterations are handed to the run by whoever plays the job.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from controller.accounting.checkpoint import RunCheckpoints
from controller.accounting.ranks import RunIdentity
from controller.app import SAMPLES_PER_WINDOW
from controller.config import Config
from controller.control.profile_store import ProfileStore
from controller.demo.live_run.clock import SteppedClock
from controller.demo.live_run.job import BOOT_ID
from controller.demo.live_run.limiter import SimulatedLimiter
from controller.gpu.meter.energy_meter import GpuEnergyMeter
from controller.gpu.simulation.backend import SimulatedGpu
from controller.history.run_history import RunHistory
from controller.runs.run import TrainingRun
from controller.runtime.clock import NS_PER_S
from controller.signal.feed import SignalFeed
from policies.providers.catalogue import Source
from publishers.messages.topics import RunKey, Topics


class NullBus:
    """A bus that nobody listens to."""

    connected = True
    last_error = None
    quotas = None

    def subscribe(self, topic_filter: str, handler: object, *, qos: int = 0, on_retained: object = None) -> None:
        """Hear nothing."""

    def unsubscribe(self, topic_filter: str, handler: object) -> None:
        """Hear nothing any more."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Drop a message."""


class SimulatedController(NamedTuple):
    """A controller that runs.

    Attributes:
        run: the run that it controls.
        limiter: that of its GPU.
        meter: likewise.
        feed: its signal; whoever lets time pass refreshes it.
        tick_ns: how often it looks at the run [ns].
    """

    run: TrainingRun
    limiter: SimulatedLimiter
    meter: GpuEnergyMeter
    feed: SignalFeed
    tick_ns: int


@asynccontextmanager
async def simulated_controller(
    gpu: SimulatedGpu, source: Source, *, key: RunKey, config: Config, clock: SteppedClock
) -> AsyncIterator[SimulatedController]:
    """Run a controller on a GPU until the block ends; what it has asked for stays in force, as after a kill.

    Args:
        gpu: the GPU.
        source: the signal.
        key: the run.
        config: the configuration; the state directory says what former controllers have left.
        clock: the time.
    """
    feed = SignalFeed([source], kind=config.signal.kind, clock=clock, period_s=config.signal.period_s)
    await feed.refresh()
    limiter = SimulatedLimiter(gpu, clock=clock)
    tick_s = config.profiler.window_s / SAMPLES_PER_WINDOW
    meter = GpuEnergyMeter(
        gpu,
        clock=clock,
        sample_period_s=tick_s,
        publish_period_s=config.energy.period_s,
        signal=feed,
        limiter=limiter,
        publish=lambda _: None,
    )
    folder = Path(config.node.state_dir)
    with (
        RunCheckpoints(folder, boot_id=BOOT_ID, clock=clock) as checkpoints,
        ProfileStore(folder) as store,
        RunHistory(folder) as history,
    ):
        run = TrainingRun(
            RunIdentity(user=key.user, job=key.job, run=key.run, node=config.node.name),
            config=config,
            clock=clock,
            signal=feed,
            store=store,
            history=history,
            checkpoints=checkpoints,
            bus=NullBus(),
            topics=Topics(),
            on_release=lambda _: None,
            notify=lambda _code, _detail: None,
        )
        run.add_gpu(limiter, meter)
        async with asyncio.TaskGroup() as tasks:
            working = [
                tasks.create_task(meter.run(), name="meter"),
                tasks.create_task(run.run(tick_s=tick_s), name="run"),
            ]
            yield SimulatedController(run, limiter, meter, feed, round(tick_s * NS_PER_S))
            for task in working:
                task.cancel()
