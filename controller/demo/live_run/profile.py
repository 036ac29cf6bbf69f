"""Simulates runs of a known curve under the controller by default settings: at most 3 % slower, no signal."""

from typing import Final

import numpy as np

from controller.config import PlanConfig
from controller.demo.live_run.simulation import LiveRun, simulate_run
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.profiling.curves import TrueCurve
from policies.replay.profiling.evaluation import JOB_LENGTHS
from policies.replay.profiling.slowdown import SimulatedRun, SlowdownRow, slowdown_row
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import HOUR_S

MAX_SLOWDOWN: Final = PlanConfig().max_slowdown
LONGEST: Final = 2.0
"""The signal is known for so many times the length of the run."""


def simulate_curve(curve: TrueCurve, *, n_seeds: int) -> SlowdownRow:
    """Simulate runs of each length, which tell no length; every seed brings other noise."""
    runs = [simulate_on(curve, length, seed=seed) for length in JOB_LENGTHS for seed in range(n_seeds)]
    return slowdown_row(curve, runs, max_slowdown=MAX_SLOWDOWN)


def simulate_on(curve: TrueCurve, n_iterations: int, *, seed: int) -> SimulatedRun:
    """Simulate one run."""
    base_s = n_iterations * curve.iteration_time_s
    scenario = Scenario(profile=curve.profile, signal=_energy_alone(LONGEST * MAX_SLOWDOWN * base_s))
    spec = RunSpec(start_s=0.0, base_duration_s=base_s, period_s=HOUR_S)
    live = LiveRun(max_slowdown=MAX_SLOWDOWN, knows_length=False, follows_grid=False, seed=seed)
    run = simulate_run(scenario, spec, live)
    return SimulatedRun(
        n_iterations=n_iterations,
        energy_j=run.energy_j,
        duration_s=run.duration_s,
        highest_s=float(np.diff(run.edges_s)[run.limits_w == curve.max_power_limit_w].sum()),
    )


def _energy_alone(until_s: float) -> Signal:
    """Return a signal that is 1 at all times [s]."""
    return Signal(
        kind="energy",
        zone="",
        source="constant",
        unit="1",
        starts_s=np.zeros(1),
        values=np.ones(1),
        ends_s=until_s,
        issued_at_s=0.0,
    )
