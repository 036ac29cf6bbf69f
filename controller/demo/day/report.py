"""The result of the demo: the run beside its baseline, as JSON and as a table."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from controller.demo.day.accounting import SimulatedTotals, job_bounds_ns, run_baseline, simulated_totals
from controller.demo.day.grid import DAY_S
from controller.demo.day.monitor import BusMonitor
from controller.demo.day.setup import DaySetup
from controller.errors import ControllerError
from controller.gpu.simulation.timeline import GpuTimeline
from policies.vocabulary.units import energy_kwh
from publishers.messages.reports import RunEnergy

_HINTS: Final = """\
Next: `gridchase check` looks at this machine, `gridchase up` runs it all on one GPU box without configuration, and
`for batch in publish_iterations(loader, job="…"):` is the line in the training code. See README.md."""


class DayFailedError(ControllerError):
    """The demo ran, but not as it should have."""


class DemoResult(Struct, frozen=True, kw_only=True):
    """What came of it. All but `published` comes from the books of the simulation.

    Attributes:
        carbon_saved_ratio, energy_saved_ratio: what the run saved of the baseline's (0 to 1).
        slowdown_ratio: the run's duration over the baseline's.
        profiling_energy_ratio: the energy used during the sweep, of the run's (0 to 1).
        run, baseline: the books of both: the same work, seed and start.
        published: the final account of the run, as the controller measured and published it.
    """

    carbon_saved_ratio: float
    energy_saved_ratio: float
    slowdown_ratio: float
    profiling_energy_ratio: float
    run: SimulatedTotals
    baseline: SimulatedTotals
    published: RunEnergy
    n_limit_changes: int
    max_slowdown: float
    seed: int
    zone: str
    date: str
    curve: str
    workload: str
    grid_source: str
    grid_licence: str
    duration_s: float
    broker: str
    version: str


def print_day_result(result: DemoResult, console: Console) -> None:
    """Print the table, and where the figures come from."""
    run, baseline = result.run, result.baseline
    table = Table(title=f"{result.zone}, {result.date}: {run.iterations:,} iterations of the same job")
    table.add_column("")
    for heading in ("gridchase", "at the prior limit", "difference"):
        table.add_column(heading, justify="right")
    table.add_row("Energy", *_energies(run, baseline), _percent(-result.energy_saved_ratio))
    table.add_row("Carbon", *(f"{b.carbon_g:,.0f} g" for b in (run, baseline)), _percent(-result.carbon_saved_ratio))
    table.add_row("Time", *(_hours(b.duration_s) for b in (run, baseline)), _percent(result.slowdown_ratio - 1))
    table.add_row("Profiling", f"{100 * result.profiling_energy_ratio:.1f} % of the energy", "", "")
    console.print(table)
    for line in _notes(result):
        console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _notes(result: DemoResult) -> Iterator[str]:
    """Yield how the figures came about, and what to do next."""
    yield (
        f"At most {100 * (result.max_slowdown - 1):.3g} % slower was asked for. The limit changed"
        f" {result.n_limit_changes} times. Seed {result.seed}. Broker: {result.broker}."
    )
    yield (
        "Both columns are the simulation's own books, profiling included; the controller, which sees only the bus and"
        f" the meters, published {energy_kwh(result.published.energy_j):.3f} kWh."
    )
    yield f"The GPU follows the measured curve {result.curve} (Zeus, NSDI 2023, Apache-2.0), with noise from the seed."
    yield f"Grid: {result.grid_source}; {result.grid_licence}."
    yield _HINTS


def day_result(scene: DaySetup, watch: BusMonitor, *, broker: str, version: str) -> DemoResult:
    """Return the result of a demo whose run has ended and whose controller has stopped.

    Raises:
        JudgementError: the limit was not given back, or the run was never profiled: there is nothing to be proud of.
    """
    if watch.run is None or watch.profiling_began_s is None or watch.profiling_ended_s is None:
        raise DayFailedError("the run ended before it was profiled: give the day more time with --duration-s")
    history = scene.open_history()
    history.close()
    left_w = history.segments[-1].power_limit_w
    if left_w != scene.prior_power_limit_w:
        raise DayFailedError(f"the power limit is {left_w:g} W and was {scene.prior_power_limit_w:g} W before")
    run = _books(scene, history)
    begin_ns, _ = job_bounds_ns(history)
    alone = run_baseline(
        scene.curve,
        scene.workload,
        seed=scene.seed,
        start_ns=history.start_ns,
        begin_ns=begin_ns,
        power_limit_w=scene.prior_power_limit_w,
    )
    baseline = _books(scene, alone)
    sweep_ns = scene.time_ns(watch.profiling_began_s), scene.time_ns(watch.profiling_ended_s)
    return DemoResult(
        carbon_saved_ratio=1 - run.carbon_g / baseline.carbon_g,
        energy_saved_ratio=1 - run.energy_j / baseline.energy_j,
        slowdown_ratio=run.duration_s / baseline.duration_s,
        profiling_energy_ratio=(history.energy_j(sweep_ns[1]) - history.energy_j(sweep_ns[0])) / run.energy_j,
        run=run,
        baseline=baseline,
        published=watch.run,
        n_limit_changes=_count_changes(history),
        max_slowdown=scene.max_slowdown,
        seed=scene.seed,
        zone=scene.grid.zone,
        date=scene.grid.date,
        curve=scene.curve.name,
        workload=scene.curve.workload,
        grid_source=scene.grid.source,
        grid_licence=scene.grid.licence,
        duration_s=DAY_S / scene.clock.rate,
        broker=broker,
        version=version,
    )


def _books(scene: DaySetup, history: GpuTimeline) -> SimulatedTotals:
    return simulated_totals(
        history,
        iterations=scene.workload.iterations,
        signal=scene.grid.signal,
        time_s=scene.time_s,
        time_ns=scene.time_ns,
    )


def _count_changes(history: GpuTimeline) -> int:
    limits_w = [segment.power_limit_w for segment in history.segments]
    return sum(before != after for before, after in pairwise(limits_w))


def _energies(run: SimulatedTotals, baseline: SimulatedTotals) -> tuple[str, str]:
    return f"{energy_kwh(run.energy_j):.3f} kWh", f"{energy_kwh(baseline.energy_j):.3f} kWh"


def _hours(duration_s: float) -> str:
    minutes = round(duration_s / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:+.1f} %"
