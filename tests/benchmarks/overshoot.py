"""How well the demo's day keeps its time budget, over many seeds: `python -m tests.benchmarks.overshoot [--write]`.

The day of `gridchase demo` under the controller itself, on virtual time: grid, curve, job, noise and configuration are
the demo's.
"""

import argparse
import asyncio
import logging
from array import array
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from controller.accounting.ranks import RunIdentity
from controller.app import SAMPLES_PER_WINDOW
from controller.clock import NS_PER_S
from controller.control.profile_store import ProfileStore
from controller.demo.day.accounting import job_bounds_ns, run_baseline
from controller.demo.day.grid import load_grid
from controller.demo.day.setup import FLUSH_S, JOB, NODE, RUN, DaySetup, prepare_day
from controller.demo.live_run.clock import ORIGIN_NS, SteppedClock
from controller.demo.live_run.job import BOOT_ID, PID
from controller.demo.live_run.limiter import SimulatedLimiter
from controller.gpu.energy_meter import GpuEnergyMeter
from controller.gpu.simulation.backend import SimulatedGpu
from controller.gpu.simulation.event_log import LoadChanged, LoadSettled
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.history.run_history import RunHistory
from controller.runs.checkpoint import RunCheckpoints
from controller.runs.run import TrainingRun
from controller.signal.feed import SignalFeed
from policies.providers.catalogue import Source
from policies.vocabulary.units import DAY_S
from publishers.messages.topics import Topics
from publishers.messages.training import Iterations, RankStatus, pack_ends
from tests.benchmarks.pages import add_write, measured_on, show
from tests.fakes import FakeBus

TABLE: Final = Path(__file__).with_suffix(".md")
DEMO_S: Final = 60.0
"""The demo's day takes a minute: what depends on real time is scaled to that."""
FLUSH_NS: Final = round(FLUSH_S * DAY_S / DEMO_S * NS_PER_S)
HEARTBEAT_S: Final = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a zone, the allowed slowdown, and the seeds."""

    zone: str
    max_slowdown: float
    seeds: range


CASES: Final = (
    Case(zone="GB", max_slowdown=1.03, seeds=range(1, 51)),
    Case(zone="GB", max_slowdown=1.03, seeds=range(51, 101)),
    Case(zone="GB", max_slowdown=1.02, seeds=range(1, 26)),
    Case(zone="GB", max_slowdown=1.05, seeds=range(1, 26)),
    *(Case(zone=zone, max_slowdown=1.03, seeds=range(1, 13)) for zone in ("DE", "US-CAISO", "US-ERCOT", "US-MISO")),
)

HEAD: Final = """\
# The demo's day: how much more time it takes than it may

{measured_on}; `python -m tests.benchmarks.overshoot --write`.

The day of `gridchase demo` under the controller itself: its grid, curve, job, noise of the seed, and configuration for
a day in 60 s. Time is virtual, so that a seed always gives the same run: the controller is never late, a limit is in
force as soon as it is asked for, and iterations arrive as soon as they are sent (in the demo each takes some
milliseconds, seconds of its day). Overshoot: the time over that of the same work at the highest limit, less what was
allowed, in points. Bar, for the first row: 49 of 50 within 0.10, and none above 0.15."""


class Player:
    """The demo's job under a controller; time passes while it trains."""

    def __init__(self, setup: DaySetup, clock: SteppedClock, run: TrainingRun, feed: SignalFeed) -> None:
        config = setup.config("")
        self._clock, self._run, self._feed = clock, run, feed
        self._tick_ns = round(config.profiler.window_s / SAMPLES_PER_WINDOW * NS_PER_S)
        self._poll_ns = round(config.signal.period_s * NS_PER_S)
        self._workload = setup.workload
        self._status = RankStatus(
            run=RUN,
            state="running",
            host=BOOT_ID,
            boot_id=BOOT_ID,
            pid=PID,
            gpus=[0],
            world_size=1,
            started_at_s=clock.now_s(),
            heartbeat_s=HEARTBEAT_S,
            total_iterations=setup.workload.iterations,
        )
        self._begin_ns, self._ends_ns = ORIGIN_NS, array("q")
        self._n_sent = self._n_messages = 0
        run.on_status(0, self._status)

    async def train(self, history: GpuTimeline, noise: Noise) -> None:
        """Run the whole job on a GPU."""
        work, goal, time_ns = noise.iterations(), 0.0, ORIGIN_NS
        for epoch in range(self._workload.epochs):
            self._begin_ns = time_ns = time_ns + round(self._workload.pause_s * NS_PER_S * bool(epoch))
            history.record(LoadChanged(time_ns, loaded=True))
            for _ in range(self._workload.iterations_per_epoch):
                goal += next(work)
                while (end_ns := history.reached_ns(goal, not_before_ns=time_ns) or 0) > self._clock.monotonic_ns():
                    history.record(LoadSettled(self._clock.monotonic_ns()))
                    await self._pass_tick(epoch)
                time_ns = end_ns
                self._ends_ns.append(time_ns)
            history.record(LoadChanged(time_ns, loaded=False))
            self._send(epoch)

    async def _pass_tick(self, epoch: int) -> None:
        """Let a tick of time pass; as the demo's training, this one sees late that an iteration has ended."""
        before_ns = self._clock.monotonic_ns()
        now_ns = before_ns + self._tick_ns
        if now_ns // FLUSH_NS > before_ns // FLUSH_NS:
            self._send(epoch)
        await self._clock.step_to(now_ns)
        if now_ns // self._poll_ns > before_ns // self._poll_ns:
            await self._feed.refresh()

    def _send(self, epoch: int) -> None:
        """Send the iterations that have ended since the last message."""
        if not self._ends_ns:
            return
        message = Iterations(
            run=RUN,
            seq=self._n_messages,
            first=self._n_sent,
            begin_ns=self._begin_ns,
            end_ns=pack_ends(self._ends_ns),
            epoch=epoch,
            dropped=0,
        )
        self._begin_ns = self._ends_ns[-1]
        self._n_messages, self._n_sent = self._n_messages + 1, self._n_sent + len(self._ends_ns)
        self._ends_ns = array("q")
        self._run.on_iterations(0, message)


def simulate(zone: str, max_slowdown: float, seed: int) -> float:
    """Simulate a day, and return its overshoot [points]."""
    logging.disable(logging.WARNING)
    with TemporaryDirectory() as folder:
        setup = prepare_day(
            asyncio.run(load_grid(zone)), seed=seed, duration_s=DEMO_S, max_slowdown=max_slowdown, folder=Path(folder)
        )
        history = asyncio.run(_simulate(setup))
    top_w = setup.prior_power_limit_w
    baseline = run_baseline(
        setup.curve, setup.workload, seed=seed, start_ns=ORIGIN_NS, begin_ns=ORIGIN_NS, power_limit_w=top_w
    )
    took_ns, base_ns = (end_ns - begin_ns for begin_ns, end_ns in map(job_bounds_ns, (history, baseline)))
    return 100 * (took_ns / base_ns - max_slowdown)


async def _simulate(setup: DaySetup) -> GpuTimeline:
    """Simulate a day, and return the history of its GPU."""
    config, clock = setup.config(""), SteppedClock(setup.grid.starts_s)
    noise = Noise(setup.seed)
    history = GpuTimeline(setup.curve, noise, start_ns=ORIGIN_NS)
    gpu = SimulatedGpu(history, clock=clock)
    feed = SignalFeed(
        [Source(provider=setup.grid.provider)], kind="carbon", clock=clock, period_s=config.signal.period_s
    )
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
    with (
        RunCheckpoints(setup.folder, boot_id=BOOT_ID, clock=clock) as checkpoints,
        ProfileStore(setup.folder) as store,
        RunHistory(setup.folder) as former_runs,
    ):
        run = TrainingRun(
            RunIdentity(user="user", job=JOB, run=RUN, node=NODE),
            config=config,
            clock=clock,
            signal=feed,
            store=store,
            checkpoints=checkpoints,
            history=former_runs,
            bus=FakeBus(),
            topics=Topics(),
            on_release=lambda _: None,
            notify=lambda _code, _detail: None,
        )
        run.add_gpu(limiter, meter)
        player = Player(setup, clock, run, feed)
        async with asyncio.TaskGroup() as tasks:
            working = [
                tasks.create_task(meter.run(), name="meter"),
                tasks.create_task(run.run(tick_s=tick_s), name="run"),
            ]
            await player.train(history, noise)
            for task in working:
                task.cancel()
    return history


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield HEAD.format(measured_on=measured_on())
    yield ""
    yield "| grid | allowed | seeds | mean | sd | worst | above 0.10 | above 0.15 |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|"
    with ProcessPoolExecutor(max_workers=2) as pool:
        for case in CASES:
            n = len(case.seeds)
            over = np.array(list(pool.map(simulate, [case.zone] * n, [case.max_slowdown] * n, case.seeds)))
            cells = [
                case.zone,
                f"{case.max_slowdown - 1:.0%}",
                f"{case.seeds[0]}-{case.seeds[-1]}",
                f"{over.mean():+.3f}",
                f"{over.std():.3f}",
                f"{over.max():+.3f} (seed {case.seeds[int(over.argmax())]})",
                str(int((over > 0.10).sum())),
                str(int((over > 0.15).sum())),
            ]
            yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the page; with `--write`, write it too."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_write(parser, TABLE)
    show(page(), TABLE, write=parser.parse_args().write)


if __name__ == "__main__":
    main()
