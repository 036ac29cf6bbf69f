"""Simulates a training run under the real controller, on a simulated GPU and simulated time.

The controller's run (`controller.runs.run`), its signal feed and its meter are those of a node: they measure the curve
in its noise, look, refine, plan and keep their reserve by themselves, and go on from their checkpoint after a restart.
Simulated are the GPU, its job, and time: that goes in steps as short as a controller's ticks while a limit is measured
or was just changed, and in longer ones while a plan holds.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, NamedTuple
from zlib import crc32

import numpy as np

from controller.config import Config, EnergyConfig, JobConfig, NodeConfig, PlanConfig, SignalConfig
from controller.demo.live_run.clock import ORIGIN_NS, SteppedClock
from controller.demo.live_run.controller import SimulatedController, simulated_controller
from controller.demo.live_run.grid import replayed_source
from controller.demo.live_run.job import SimulatedJob
from controller.demo.live_run.noise import USUAL, RunNoise
from controller.gpu.meter.counter_step import PROBE_S
from controller.gpu.simulation.backend import SimulatedGpu
from controller.gpu.simulation.measured_curve import MeasuredCurve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S
from policies.providers.catalogue import Source
from policies.providers.sources.constant import ConstantProvider
from policies.replay.power_limit.evaluation import PolicyName
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import RunResult
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import SignalKind
from policies.vocabulary.units import HOUR_S, Values, energy_kwh
from publishers.messages.topics import RunKey

STEP_NS: Final = 60 * NS_PER_S
"""How far time goes at once while a plan holds [ns]. While a known curve is refined, or a limit is new, it goes by what
the job tells, and in the first sweep by the controller's ticks."""
LEASE_S: Final = 2 * STEP_NS / NS_PER_S
"""Between two steps nobody is heard [s]."""
PROBE_NS: Final = round(PROBE_S * NS_PER_S)
"""And while a meter finds out when the counter moves [ns]."""
SETTLED_NS: Final = 2 * NS_PER_S
"""For how long a limit is new [ns]."""
SIGNAL_PERIOD_S: Final = 300.0
"""How often it is looked whether the signal is due: with every plan, which alone uses it [s]."""
DOWNTIME_NS: Final = 30 * NS_PER_S
"""How long a restart of the controller takes: meanwhile the GPU has its prior limit [ns]."""
SWEEP: Final = frozenset({"profiling", "profiling_paused"})
REFINEMENT: Final = frozenset({"refining"})
"""The reasons of limits that are measured; all others are a plan's."""
RUN: Final = RunKey("user", "job", "run")
ENERGY_ONLY: Final = Source(provider=ConstantProvider(1.0, kind="energy", unit="1"), is_persistent=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """How a run is simulated.

    Attributes:
        max_slowdown: its time budget.
        knows_length: whether the job tells how many iterations it will do.
        follows_grid: whether the controller gets the signal; else it saves energy alone.
        n_restarts: how often the controller is restarted, evenly over the run.
        noise: of iterations and power.
        seed: of that noise.
        host_power_w, pue: what of the scenario's power is not the GPU's: the rest of the machine, and the building's
            share.
    """

    max_slowdown: float
    knows_length: bool = True
    follows_grid: bool = True
    n_restarts: int = 0
    noise: RunNoise = USUAL
    seed: int = 1
    host_power_w: float = 0.0
    pue: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRunSimulator:
    """Simulates the runs of a replay under the controller: a `policies.replay.power_limit.evaluation.LiveSimulator`.

    The policies that are compared get the same noise.

    Attributes:
        n_restarts, noise, host_power_w, pue: as in `LiveRun`.
        seed: likewise; None: the noise depends on the signal of a run and on its start.
    """

    n_restarts: int = 0
    noise: RunNoise = USUAL
    host_power_w: float = 0.0
    pue: float = 1.0
    seed: int | None = None

    def __call__(self, policy: PolicyName, scenario: Scenario, spec: RunSpec, max_slowdown: float) -> RunResult:
        """Return the result of a run under one of `LIVE`."""
        live = LiveRun(
            max_slowdown=max_slowdown,
            knows_length=policy != "gridchase-live-open",
            follows_grid=policy != "static-mix-live",
            n_restarts=self.n_restarts,
            noise=self.noise,
            seed=crc32(f"{scenario.signal.zone} {spec.start_s:.0f}".encode()) if self.seed is None else self.seed,
            host_power_w=self.host_power_w,
            pue=self.pue,
        )
        return simulate_run(scenario, spec, live)


class _Machine(NamedTuple):
    """What outlives a controller: the GPU; its job, and how often that tells iterations; clock; the state directory."""

    gpu: SimulatedGpu
    job: SimulatedJob
    told_ns: int
    clock: SteppedClock
    config: Config
    source: Source


def simulate_run(scenario: Scenario, spec: RunSpec, live: LiveRun) -> RunResult:
    """Simulate a run to the end of its work; it must not be called where an event loop runs.

    The result is what a GPU without noise uses at the limits that the controller has set.

    Raises:
        ValueError: the signal ends before the run.
    """
    with TemporaryDirectory(prefix="gridchase-replay-", ignore_cleanup_errors=True) as folder, _quiet():
        machine = _machine(scenario, spec, live, Path(folder))
        end_ns = asyncio.run(_simulate(machine, spec, live))
    if machine.clock.time_s(end_ns) > scenario.edges_s[-1]:
        raise ValueError(f"the signal ends before the run that starts at {spec.start_s:.0f} s")
    return _result(scenario, machine, end_ns)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what a node would log, as a value that no grid can have, from whoever asked for a table."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _machine(scenario: Scenario, spec: RunSpec, live: LiveRun, folder: Path) -> _Machine:
    clock, noise = SteppedClock(spec.start_s), Noise(live.seed, live.noise.levels)
    source = replayed_source(scenario) if live.follows_grid else ENERGY_ONLY
    timeline = GpuTimeline(_curve(scenario.profile, live), noise, start_ns=ORIGIN_NS, loaded=True)
    job = SimulatedJob(
        timeline,
        noise,
        work_iterations=spec.base_duration_s * timeline.curve.iterations_per_s(timeline.curve.max_power_limit_w),
        run=RUN.run,
        started_at_s=spec.start_s,
        tells_length=live.knows_length,
    )
    config = Config(
        node=NodeConfig(name="simulated", state_dir=str(folder)),
        plan=PlanConfig(max_slowdown=live.max_slowdown),
        signal=SignalConfig(kind=_signal_kind(source.provider.kind), period_s=SIGNAL_PERIOD_S),
        job=JobConfig(lease_s=LEASE_S, idle_s=LEASE_S),
        energy=EnergyConfig(period_s=HOUR_S, host_power_w=live.host_power_w, pue=live.pue),
    )
    told_ns = round(live.noise.told_s * NS_PER_S)
    return _Machine(SimulatedGpu(timeline, clock=clock), job, told_ns, clock, config, source)


def _signal_kind(kind: SignalKind) -> Literal["carbon", "price", "energy"]:
    """Return what the configuration calls the kind of a signal."""
    return "carbon" if kind == "average" or kind == "marginal" else kind  # noqa: PLR1714 — mypy narrows only this


def _curve(profile: PowerProfile, live: LiveRun) -> MeasuredCurve:
    """Return the curve of the GPU alone, linear between the measured limits."""
    time_s, speeds_per_s = live.noise.iteration_time_s, profile.iterations_per_s
    if time_s is not None:
        speeds_per_s = speeds_per_s / (speeds_per_s[-1] * time_s)
    return MeasuredCurve(
        name="replay",
        model="replayed GPU",
        workload="replay",
        power_limits_w=tuple(profile.power_limits_w.tolist()),
        powers_w=tuple((profile.power_w / live.pue - live.host_power_w).tolist()),
        speeds_per_s=tuple(speeds_per_s.tolist()),
        idle_power_w=0.0,
        iterations_per_epoch=1.0,
    )


async def _simulate(machine: _Machine, spec: RunSpec, live: LiveRun) -> int:
    """Simulate a run, under one controller after the other, and return when it ends [ns]."""
    longest_s = spec.base_duration_s * live.max_slowdown
    stops_ns = [
        ORIGIN_NS + round(longest_s * NS_PER_S * n / (live.n_restarts + 1)) for n in range(1, live.n_restarts + 1)
    ]
    for stop_ns in stops_ns:
        await _control(machine, until_ns=stop_ns)
        await _advance(machine, None, until_ns=stop_ns + DOWNTIME_NS)
    await _control(machine, until_ns=None)
    return machine.job.finishes_ns(machine.clock.monotonic_ns())


async def _control(machine: _Machine, *, until_ns: int | None) -> None:
    """Run a controller until a moment [ns], or until all work is done; at the end the prior limit is back."""
    gpu, job, _, clock, config, source = machine
    async with simulated_controller(gpu, source, key=RUN, config=config, clock=clock) as controller:
        controller.run.on_status(0, job.status)
        await _advance(machine, controller, until_ns=until_ns)
    controller.limiter.release(reason="controller_stopped", detail="the controller stops")


def _step_ns(controller: SimulatedController, now_ns: int, told_ns: int) -> int:
    """Return how far time may go at once [ns]."""
    if controller.meter.is_probing:
        return PROBE_NS
    requested = controller.run.gpus.requested
    if requested is None or requested.reason in SWEEP:
        return controller.tick_ns
    if requested.reason in REFINEMENT or now_ns - controller.limiter.state.since_ns < SETTLED_NS:
        return told_ns
    return STEP_NS - now_ns % STEP_NS


async def _advance(machine: _Machine, controller: SimulatedController | None, *, until_ns: int | None) -> None:
    """Let time pass until a moment [ns], or until all work is done."""
    job, clock, config = machine.job, machine.clock, machine.config
    poll_ns, heartbeat_ns = round(config.signal.period_s * NS_PER_S), round(job.status.heartbeat_s * NS_PER_S)
    now_ns = clock.monotonic_ns()
    while (finish_ns := job.finishes_ns(now_ns)) > now_ns and (until_ns is None or now_ns < until_ns):
        before_ns, step_ns = now_ns, STEP_NS if controller is None else _step_ns(controller, now_ns, machine.told_ns)
        now_ns = min(before_ns + step_ns, finish_ns if until_ns is None else min(until_ns, finish_ns))
        message = job.next_message(now_ns)
        await clock.step_to(now_ns)
        if controller is None:
            continue
        if now_ns // poll_ns > before_ns // poll_ns:
            await controller.feed.refresh()
        if now_ns // heartbeat_ns > before_ns // heartbeat_ns:
            controller.run.on_status(0, job.status)
        if message is not None:
            controller.run.on_iterations(0, message)


def run_result(scenario: Scenario, edges_s: Values, limits_w: Values) -> RunResult:
    """Return what a GPU without noise uses, on the curve and the signal of a scenario, at limits that were set.

    Args:
        scenario: the curve and the signal.
        edges_s: when each limit came in force, and when the run ended, shape (n + 1,) [Unix s].
        limits_w: the limits, shape (n,) [W].
    """
    powers_w = np.interp(limits_w, scenario.profile.power_limits_w, scenario.power_w)
    return RunResult(
        spent=energy_kwh(float(powers_w @ np.diff(scenario.integral_until(edges_s)))),
        energy_j=float(powers_w @ np.diff(edges_s)),
        duration_s=float(edges_s[-1] - edges_s[0]),
        edges_s=edges_s,
        limits_w=limits_w,
    )


def _result(scenario: Scenario, machine: _Machine, end_ns: int) -> RunResult:
    segments = [segment for segment in machine.gpu.timeline.segments if segment.start_ns < end_ns]
    edges_s = np.array([machine.clock.time_s(time_ns) for time_ns in (*(s.start_ns for s in segments), end_ns)])
    return run_result(scenario, edges_s, np.array([segment.power_limit_w for segment in segments]))
