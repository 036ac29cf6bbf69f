"""`gridchase replay plan`: what policies of power limits save, on a measured curve and signals from files."""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controller.cli.output import Terminal, print_json, write_drawing
from controller.cli.replay.options import PROCESSES, Bounds, add_output, add_policies, n_processes, out_of_bounds
from controller.cli.replay.plan_inputs import (
    CurveSelection,
    NamedCurve,
    Overhead,
    SignalFile,
    included_curve,
    read_curve,
    read_signals,
    scenario_of,
)
from controller.cli.replay.plan_page import render_page
from controller.cli.replay.plan_view import SavingsReport, tables
from controller.cli.replay.processes import replay_each
from controller.demo.day.grid import FIVE_WEEKS
from controller.errors import ConfigError
from policies.replay.power_limit.evaluation import (
    LIVE,
    POLICIES,
    Comparison,
    LiveSimulator,
    PolicyName,
    SavingsRow,
    TotalsByVariant,
    mean_savings_rows,
    replay_totals,
    run_specs,
    savings_rows,
)
from policies.replay.power_limit.example import example_run
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.vocabulary.units import HOUR_S
from publishers.shared.files.lookup import writing_fault

if TYPE_CHECKING:
    from gridchase.cli.verb import Verbs

MAX_STARTS: Final = 10_000
MIN_HOURS: Final = 0.1
MAX_HOURS: Final = 10_000
MAX_PERIOD_MINUTES: Final = 1_440
MAX_SLOWDOWN: Final = 10.0
MAX_RESTARTS: Final = 1_000
MAX_PERIOD_S: Final = HOUR_S
N_FRONT: Final = 24
"""The number of budgets along the fronts of the plots; they are dense where budgets are tight and the front bends."""
FRONT_ETAS: Final = tuple(step / 20 for step in range(21))
FRONT_POLICIES: Final[tuple[PolicyName, ...]] = ("static-mix", "chase", "offline")

Replay = tuple[Scenario, list[RunSpec]]
_Task = tuple[Scenario, RunSpec, Comparison]


def add_part(parts: "Verbs") -> None:
    """Add `plan` to what can be replayed."""
    part = parts.add_parser(
        "plan",
        help="run jobs on a measured curve and signals and compare policies of power limits",
        description="Runs a job on a measured curve of power and speed, with starts spread over a signal of carbon "
        "intensity or price, and compares savings and slowdown of policies of power limits: the best single limit, a "
        "mix of two, Zeus, Chase, ours (as it is; without knowing the length of the run; with a forecast; with a "
        "perfect one), and the optimum with perfect foresight. Only measured limits are used.",
    )
    part.add_argument(
        "--power", type=Path, metavar="FILE",
        help="CSV of power, as Zeus's traces (default: ResNet-50 on ImageNet, measured on an A40)",
    )  # fmt: skip
    for option, kind, metavar in (
        ("workload", str, "DATASET/NETWORK"),
        ("batch-size", int, "N"),
        ("optimizer", str, "NAME"),
    ):
        part.add_argument(
            f"--{option}", type=kind, metavar=metavar, help="of the curve; not needed if there is only one"
        )
    part.add_argument(
        "--signal", nargs="+", action="extend", type=Path, metavar="FILE",
        help="CSV: timestamp,<unit> (default: five included weeks of Great Britain)",
    )  # fmt: skip
    _add_conditions(part)
    add_policies(part, POLICIES, default="all but the live ones")
    add_output(part)
    part.add_argument("--png", type=Path, metavar="FILE", help="also draw the savings and a run as a picture")
    part.add_argument("--html", type=Path, metavar="FILE", help="the same as a page for the browser")
    part.set_defaults(default_log_level="warning", do=replay_plan)


def _add_conditions(part: argparse.ArgumentParser) -> None:
    part.add_argument(
        "--max-slowdown", nargs="+", action="extend", type=float, metavar="RATIO",
        help="how much longer a run may take than at the highest limit, 1 or more (1.05)",
    )  # fmt: skip
    part.add_argument("--hours", type=float, default=240.0, help="the duration of the run at the highest limit (240)")
    part.add_argument("--starts", type=int, default=20, metavar="N", help="runs, spread evenly over each signal (20)")
    part.add_argument("--eta", nargs="+", action="extend", type=float, help="the weights for Chase, 0 to 1 (0.5)")
    part.add_argument(
        "--period-minutes", type=float, metavar="MIN", help="how often a run is planned; the signal's step, at most 60"
    )
    part.add_argument("--host-power-w", type=float, default=0.0, metavar="W", help="of the machine beside the GPU (0)")
    part.add_argument("--pue", type=float, default=1.0, help="what the building draws per watt of the machine (1)")
    part.add_argument(
        "--live", action="store_true",
        help=f"also simulate the runs under the controller itself, some seconds a day: {', '.join(LIVE)}",
    )  # fmt: skip
    part.add_argument(
        "--live-restarts", type=int, default=0, metavar="N", help="how often it is restarted during each of them (0)"
    )


def replay_plan(options: argparse.Namespace) -> int:
    """Print what the policies save.

    Raises:
        ConfigError: with every fault of the arguments and of the files.
    """
    faults = list(_faults(options))
    is_valid = not faults
    selection = CurveSelection(workload=options.workload, batch_size=options.batch_size, optimizer=options.optimizer)
    curve = included_curve(selection, faults) if options.power is None else read_curve(options.power, selection, faults)
    files = read_signals(options.signal or [FIVE_WEEKS], faults)
    comparison = _comparison(options)
    replays = list(_replays(curve, files, comparison, options, faults)) if is_valid and curve is not None else []
    if faults or curve is None:
        raise ConfigError(faults)
    for file in files:
        if file.losses:
            print(f"{file.signal.zone}: {file.losses}; gaps are interpolated linearly", file=sys.stderr)
    report = _report(f"{curve.name}, {options.hours:g} h", replays, _with_svr(comparison), options)
    _draw(report, options)
    if options.json:
        print_json([asdict(row) for row in report.rows])
    else:
        _print(report)
    return 0


def _faults(options: argparse.Namespace) -> Iterator[str]:
    yield from out_of_bounds(
        options,
        Bounds("max-slowdown", 1, MAX_SLOWDOWN, "from 1 to 10 (1.05 is 5 % slower)"),
        Bounds("eta", 0, 1, "from 0 (only time counts) to 1 (only carbon counts)"),
        Bounds("hours", MIN_HOURS, MAX_HOURS, f"from {MIN_HOURS} to {MAX_HOURS:,}"),
        Bounds("starts", 1, MAX_STARTS, f"from 1 to {MAX_STARTS:,}"),
        Bounds("period-minutes", 1, MAX_PERIOD_MINUTES, f"from 1 to {MAX_PERIOD_MINUTES:,}"),
        Bounds("host-power-w", 0, math.inf, "at least 0 W, and finite"),
        Bounds("pue", 1, math.inf, "at least 1, and finite"),
        Bounds("live-restarts", 0, MAX_RESTARTS, f"from 0 to {MAX_RESTARTS}"),
        PROCESSES,
    )
    for name, path in (("png", options.png), ("html", options.html)):
        if path is not None and (fault := writing_fault(path)):
            yield f"--{name} {path}: {fault}"
    if set(options.policy or ()) == {"chase-svr"} and find_spec("sklearn") is None:
        yield "--policy chase-svr: needs scikit-learn, which is not installed; add another policy"
    if options.png is not None and find_spec("matplotlib") is None:
        yield "--png: needs matplotlib, which is not installed: pip install matplotlib"


def _comparison(options: argparse.Namespace) -> Comparison:
    asked = {*(options.policy or set(POLICIES) - set(LIVE)), *(LIVE if options.live else ())}
    policies = tuple(name for name in POLICIES if name in asked)
    return Comparison(
        policies=policies,
        max_slowdowns=tuple(dict.fromkeys(options.max_slowdown or (1.05,))),
        etas=tuple(dict.fromkeys(options.eta or (0.5,))),
        live=None if asked.isdisjoint(LIVE) else _live_simulator(options),
    )


def _live_simulator(options: argparse.Namespace) -> LiveSimulator:
    """Return what simulates runs under the controller; all of that is imported only for it."""
    live_run = import_module("controller.demo.live_run.simulation")
    simulator: LiveSimulator = live_run.LiveRunSimulator(
        n_restarts=options.live_restarts, host_power_w=options.host_power_w, pue=options.pue
    )
    return simulator


def _with_svr(comparison: Comparison) -> Comparison:
    """Return the comparison with Chase's own forecast, if that is compared and installed."""
    if "chase-svr" not in comparison.policies:
        return comparison
    if find_spec("sklearn") is None:
        print("skipping chase-svr: it needs scikit-learn, which is not installed", file=sys.stderr)
        return comparison
    # scikit-learn takes seconds to import, so it is imported only for this policy.
    chase_svr = import_module("policies.replay.power_limit.chase_svr")
    return replace(comparison, svr=chase_svr.expect_by_regression)


def _replays(
    curve: NamedCurve,
    files: Sequence[SignalFile],
    comparison: Comparison,
    options: argparse.Namespace,
    faults: list[str],
) -> Iterator[Replay]:
    """Yield each signal with the curve and its runs; add to `faults` which signals are too short.

    Without `--period-minutes` the period is the step of the signal, at most an hour.
    """
    overhead = Overhead(host_power_w=options.host_power_w, pue=options.pue)
    if _is_drawn(options):
        comparison = replace(comparison, policies=(*comparison.policies, *FRONT_POLICIES))
    for file in files:
        scenario = scenario_of(curve, file.signal, overhead)
        try:
            specs = run_specs(
                scenario,
                comparison,
                base_duration_s=HOUR_S * options.hours,
                n_starts=options.starts,
                period_s=60 * options.period_minutes if options.period_minutes else min(file.step_s, MAX_PERIOD_S),
            )
        except ValueError as error:
            faults.append(f"--signal {file.signal.zone}: {error}")
        else:
            yield scenario, specs


def _is_drawn(options: argparse.Namespace) -> bool:
    return options.png is not None or options.html is not None


def _report(
    title: str, replays: Sequence[Replay], comparison: Comparison, options: argparse.Namespace
) -> SavingsReport:
    rows = _rows(replays, comparison, n_processes(options), "runs")
    if not _is_drawn(options):
        return SavingsReport(title=title, rows=rows, n_signals=len(replays))
    budgets = tuple(1 + (max(comparison.max_slowdowns) - 1) * (n / (N_FRONT - 1)) ** 2 for n in range(N_FRONT))
    fronts = Comparison(policies=FRONT_POLICIES, max_slowdowns=budgets, etas=FRONT_ETAS)
    scenario, specs = replays[0]
    max_slowdown = comparison.max_slowdowns[len(comparison.max_slowdowns) // 2]
    return SavingsReport(
        title=title,
        rows=rows,
        n_signals=len(replays),
        fronts=_rows(replays, fronts, n_processes(options), "fronts"),
        example=example_run(scenario.signal.zone, scenario, specs[len(specs) // 2], max_slowdown),
    )


def _rows(replays: Sequence[Replay], comparison: Comparison, n_processes: int, what: str) -> list[SavingsRow]:
    tasks = [(scenario, spec, comparison) for scenario, specs in replays for spec in specs]
    totals = iter(replay_each(_replay_totals, tasks, n_processes=n_processes, what=what))
    rows = [
        row
        for scenario, specs in replays
        for row in savings_rows(scenario.signal.zone, specs, [next(totals) for _ in specs], comparison)
    ]
    return rows + (mean_savings_rows(rows) if len(replays) > 1 else [])


def _replay_totals(task: _Task) -> TotalsByVariant:
    return replay_totals(*task)


def _draw(report: SavingsReport, options: argparse.Namespace) -> None:
    if options.png is not None:
        # Matplotlib takes longer to import than everything else here, so it is imported only for a picture.
        picture: bytes = import_module("controller.cli.replay.plan_png").render(report)
        write_drawing("--png", options.png, picture, as_json=options.json)
    if options.html is not None:
        write_drawing("--html", options.html, render_page(report).encode(), as_json=options.json)


def _print(report: SavingsReport) -> None:
    console = Terminal(emoji=False)  # names may look like emoji codes
    for table in tables(report, console.width):
        console.print(table, crop=False)
        console.print()
    console.print(
        "saved: share of the carbon (or money) at the highest limit, mean over runs; slower: mean; worst: slowest run. "
        "chase and zeus have no budget; chase-best-eta takes the best eta within the budget for each run, chosen in "
        "hindsight; offline knows the future: no schedule saves more. Only the live rows pay for measuring the curve, "
        "and keep a reserve; open: not told how long the run is."
    )
