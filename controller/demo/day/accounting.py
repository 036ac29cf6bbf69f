"""True energy and carbon of the simulation: of the run, and of the same job at the prior limit.

All of it comes from the history of the simulated GPU and the real series of the grid, nothing from the controller.
"""

from collections.abc import Callable
from itertools import pairwise

from msgspec import Struct

from controller.demo.day.workload import Training, Workload, run_through
from controller.gpu.simulation.measured_curve import MeasuredCurve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import carbon_g


def run_baseline(
    curve: MeasuredCurve, workload: Workload, *, seed: int, start_ns: int, begin_ns: int, power_limit_w: float
) -> GpuTimeline:
    """Simulate the whole job at one limit, from `begin_ns` on, on a GPU that was switched on at `start_ns`.

    Time is virtual, so nothing waits. Noise, start and pauses are those of the run it is compared with.
    """
    noise = Noise(seed)
    history = GpuTimeline(curve, noise, start_ns=start_ns, power_limit_w=power_limit_w)
    training = Training(history, noise, begin_ns=begin_ns)
    run_through(training.run(workload, range(workload.iterations_per_epoch)), lambda end_ns: end_ns)
    return history


class SimulatedTotals(Struct, frozen=True, kw_only=True):
    """What a run truly used, from its first iteration to its last."""

    energy_j: float
    carbon_g: float
    duration_s: float
    iterations: int


def simulated_totals(
    history: GpuTimeline,
    *,
    iterations: int,
    signal: Signal,
    time_s: Callable[[int], float],
    time_ns: Callable[[float], int],
) -> SimulatedTotals:
    """Return exact integrals of the power over the history of a finished job and the steps of the grid's signal.

    Args:
        history: the timeline of the GPU.
        iterations: how many iterations the job ran.
        signal: the carbon intensity of the grid.
        time_s: converts monotonic time [ns] to Unix time [s].
        time_ns: converts Unix time [s] to monotonic time [ns].

    Raises:
        ValueError: the job still runs, or the signal does not cover it.
    """
    begin_ns, end_ns = job_bounds_ns(history)
    steps_ns = (time_ns(float(step_s)) for step_s in (*signal.starts_s, signal.ends_s))
    marks_ns = [begin_ns, *(mark_ns for mark_ns in steps_ns if begin_ns < mark_ns < end_ns), end_ns]
    total_g = 0.0
    for a_ns, b_ns in pairwise(marks_ns):
        intensity_g_per_kwh = signal.value_at(time_s((a_ns + b_ns) // 2))
        if intensity_g_per_kwh is None:
            raise ValueError(f"the grid series of {signal.zone} does not cover the whole run")
        total_g += carbon_g(history.energy_j(b_ns) - history.energy_j(a_ns), intensity_g_per_kwh)
    return SimulatedTotals(
        energy_j=history.energy_j(end_ns) - history.energy_j(begin_ns),
        carbon_g=total_g,
        duration_s=(end_ns - begin_ns) / NS_PER_S,
        iterations=iterations,
    )


def job_bounds_ns(history: GpuTimeline) -> tuple[int, int]:
    """Return when the job began to use the GPU, and when it last stopped [ns]."""
    loaded = [before.loaded for before in history.segments]
    starts_ns = [segment.start_ns for segment in history.segments]
    first = loaded.index(True)
    last = len(loaded) - loaded[::-1].index(True)
    if last == len(loaded):
        raise ValueError("the job still uses the GPU: its totals are not final")
    return starts_ns[first], starts_ns[last]
