"""What the simulation truly used: energy and carbon of the run and of the same job at the prior limit.

The baseline: the same work on the same simulated GPU at the prior limit, really simulated, iteration by iteration.

Time is virtual: nothing waits. Noise, start and pauses are those of the run it is compared with.

The books of the simulation: what a run really used, from the history of the GPU and the real series of the grid.

Nothing here comes from what the controller measured or believes.
"""

from collections.abc import Callable
from itertools import pairwise

from msgspec import Struct

from controller.clock import NS_PER_S
from controller.demo.day.workload import Training, Workload
from controller.gpu.simulation.measured_curve import MeasuredCurve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import carbon_g


def run_baseline(
    curve: MeasuredCurve, workload: Workload, *, seed: int, start_ns: int, begin_ns: int, power_limit_w: float
) -> GpuTimeline:
    """Return the history of a GPU that was switched on at `start_ns` and ran the whole job from `begin_ns` on."""
    noise = Noise(seed)
    history = GpuTimeline(curve, noise, start_ns=start_ns, power_limit_w=power_limit_w)
    training = Training(history, noise, begin_ns=begin_ns, wait=lambda end_ns: end_ns)
    training.run(workload, range(workload.iterations_per_epoch))
    return history


class SimulatedTotals(Struct, frozen=True, kw_only=True):
    """What a run used, from its first iteration to its last."""

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
    """Return the books of a job that is over: exact integrals of the power over the history and the grid's steps.

    Args:
        history: the GPU's past.
        iterations: how many iterations the job ran.
        signal: the carbon intensity of the grid.
        time_s: the time of day of a moment of the monotonic clock, Unix seconds [s].
        time_ns: the other way round [ns].
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
    """Return when the job first began and last ceased to use the GPU [ns]."""
    loaded = [before.loaded for before in history.segments]
    starts_ns = [segment.start_ns for segment in history.segments]
    first = loaded.index(True)
    last = len(loaded) - loaded[::-1].index(True)
    if last == len(loaded):
        raise ValueError("the job still uses the GPU: its books cannot be closed")
    return starts_ns[first], starts_ns[last]
