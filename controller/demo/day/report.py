"""The result of the demo: the run beside its baseline, as JSON and as a table."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from msgspec import Struct
from rich.console import Console

from controller.demo.day.accounting import SimulatedTotals, job_bounds_ns, run_baseline, simulated_totals
from controller.demo.day.monitor import BusMonitor
from controller.demo.day.setup import DaySetup
from controller.demo.runner import VERSION, DemoError, comparison_table, percent_change, print_notes
from controller.gpu.simulation.timeline import GpuTimeline
from policies.vocabulary.units import DAY_S, duration_text, energy_kwh
from publishers.messages.reports import RunEnergy
from publishers.training.reporting.run_energy import known_ratios
from publishers.training.reporting.run_summary import summarize

FAR_OFF: Final = 2.0
"""So many half-widths of a 90 % interval from the truth is no bad luck."""
ROUNDING: Final = 1e-4
"""Records round ratios to this."""
LONGER: Final = 5
"""So many times as long the day takes that is tried next."""
_HINTS: Final = (
    "Next: `gridchase check` checks this machine; `gridchase up` runs everything on one machine, without configuration;"
    ' `for batch in publish_iterations(loader, job="…"):` is the line to add to the training code.'
)


class DemoResult(Struct, frozen=True, kw_only=True):
    """The result. All but `published` comes from the simulation itself.

    Attributes:
        carbon_saved_ratio, energy_saved_ratio: the run's saving relative to the baseline (0 to 1).
        slowdown_ratio: the run's duration over the baseline's.
        profiling_energy_ratio: the share of the run's energy used during the sweep (0 to 1).
        run, baseline: the true totals of both: the same work, seed and start.
        published: the final energy of the run, as the controller measured and published it, with what it says was saved
            (`saved_ratio`, …), the intervals of that and its `evidence`.
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
    energies = (f"{energy_kwh(each.energy_j):.3f} kWh" for each in (run, baseline))
    carbon = (f"{each.carbon_g:,.0f} g" for each in (run, baseline))
    times = (duration_text(each.duration_s) for each in (run, baseline))
    table = comparison_table(
        f"{result.zone}, {result.date}: {run.iterations:,} iterations of the same job",
        ("gridchase", "at the prior limit", "difference"),
        [
            ("Energy", *energies, percent_change(-result.energy_saved_ratio)),
            ("Carbon", *carbon, percent_change(-result.carbon_saved_ratio)),
            ("Time", *times, percent_change(result.slowdown_ratio - 1)),
            ("Profiling", f"{100 * result.profiling_energy_ratio:.1f} % of the energy", "", ""),
        ],
    )
    console.print(table)
    print_notes(_notes(result), console)


def _notes(result: DemoResult) -> Iterator[str]:
    account = summarize("", "", result.published, unmeasured=("", "")).outcome
    yield (
        "The table holds the simulation's true values. What the controller itself says, from the meters and with 90 %"
        f" intervals: {energy_kwh(result.published.energy_j):.3f} kWh, {account}."
    )
    if is_far_off(result):
        yield (
            "That is far from the truth: this machine was too busy for a day in so short a time, in which a look takes"
            " milliseconds. Try again when it is not, or with `--duration-s"
            f" {min(LONGER * result.duration_s, DAY_S):.0f}`."
        )
    yield (
        f"Allowed slowdown: {100 * (result.max_slowdown - 1):.3g} %. The limit changed {result.n_limit_changes} times."
        f" Seed {result.seed}. Broker: {result.broker}."
    )
    yield f"The GPU follows the measured curve {result.curve} (Zeus, NSDI 2023, Apache-2.0), with noise from the seed."
    yield f"Grid: {result.grid_source}; {result.grid_licence}."
    yield _HINTS


def is_far_off(result: DemoResult) -> bool:
    """Return whether what the controller says was saved, or how much slower it was, is far from the truth."""
    true_ratios = {
        "saved": result.carbon_saved_ratio,
        "saved_energy": result.energy_saved_ratio,
        "slowdown": result.slowdown_ratio,
    }
    return any(
        abs(ratio - true_ratios[name]) > FAR_OFF * half + ROUNDING
        for name, (ratio, half) in known_ratios(result.published).items()
    )


def day_result(setup: DaySetup, monitor: BusMonitor, *, broker: str) -> DemoResult:
    """Return the result of a demo whose run has ended and whose controller has stopped.

    Raises:
        DemoError: the limit was not restored, or the run was never profiled.
    """
    if monitor.run is None or monitor.profiling_began_s is None or monitor.profiling_ended_s is None:
        raise DemoError("the run ended before it was profiled: give the day more time with --duration-s")
    history = setup.open_history()
    history.close()
    left_w = history.segments[-1].power_limit_w
    if left_w != setup.prior_power_limit_w:
        raise DemoError(f"the power limit is {left_w:g} W and was {setup.prior_power_limit_w:g} W before")
    run = _totals(setup, history)
    begin_ns, _ = job_bounds_ns(history)
    baseline_history = run_baseline(
        setup.curve,
        setup.workload,
        seed=setup.seed,
        start_ns=history.start_ns,
        begin_ns=begin_ns,
        power_limit_w=setup.prior_power_limit_w,
    )
    baseline = _totals(setup, baseline_history)
    sweep_ns = setup.time_ns(monitor.profiling_began_s), setup.time_ns(monitor.profiling_ended_s)
    return DemoResult(
        carbon_saved_ratio=1 - run.carbon_g / baseline.carbon_g,
        energy_saved_ratio=1 - run.energy_j / baseline.energy_j,
        slowdown_ratio=run.duration_s / baseline.duration_s,
        profiling_energy_ratio=(history.energy_j(sweep_ns[1]) - history.energy_j(sweep_ns[0])) / run.energy_j,
        run=run,
        baseline=baseline,
        published=monitor.run,
        n_limit_changes=_count_changes(history),
        max_slowdown=setup.max_slowdown,
        seed=setup.seed,
        zone=setup.grid.zone,
        date=setup.grid.date,
        curve=setup.curve.name,
        workload=setup.curve.workload,
        grid_source=setup.grid.source,
        grid_licence=setup.grid.licence,
        duration_s=DAY_S / setup.clock.rate,
        broker=broker,
        version=VERSION,
    )


def _totals(setup: DaySetup, history: GpuTimeline) -> SimulatedTotals:
    return simulated_totals(
        history,
        iterations=setup.workload.iterations,
        signal=setup.grid.signal,
        time_s=setup.time_s,
        time_ns=setup.time_ns,
    )


def _count_changes(history: GpuTimeline) -> int:
    limits_w = [segment.power_limit_w for segment in history.segments]
    return sum(before != after for before, after in pairwise(limits_w))
