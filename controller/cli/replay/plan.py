"""`gridchase replay plan`: what policies of power limits save, on a measured curve and signals from files."""

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from controller.cli.replay.plan_inputs import (
    CurveSelection,
    NamedCurve,
    Overhead,
    Scene,
    SignalFile,
    read_curve,
    read_signals,
    scene_of,
)
from controller.cli.replay.plan_view import SavingsReport, tables
from controller.cli.replay.processes import replay_each
from controller.errors import ConfigError
from policies.replay.power_limit.evaluation import (
    POLICIES,
    Comparison,
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

MAX_STARTS: Final = 10_000
MIN_HOURS: Final = 0.1
MAX_HOURS: Final = 10_000
MAX_PERIOD_MINUTES: Final = 1_440
MAX_SLOWDOWN: Final = 10.0
N_FRONT: Final = 24
"""Budgets along the front of the plots; it bends where they are tight, so there they are dense."""
FRONT_ETAS: Final = tuple(step / 20 for step in range(21))
FRONT_POLICIES: Final[tuple[PolicyName, ...]] = ("static-mix", "chase", "offline")

_Verbs = argparse._SubParsersAction  # noqa: SLF001 — argparse has no public name for it
_Task = tuple[Scenario, RunSpec, Comparison]


def add_part(parts: "_Verbs[argparse.ArgumentParser]") -> None:
    """Add `plan` to what can be replayed."""
    part = parts.add_parser(
        "plan",
        help="run jobs on a measured curve and signals and compare policies of power limits",
        description="Lets a job run on a measured curve of power and speed, from many starts all over a signal of "
        "carbon intensity or price, under policies of power limits, and compares what they save with what they take: "
        "the best single limit, a mix of two, Zeus, Chase, ours (as it is; not knowing how long the run is; with a "
        "forecast; with a perfect one), and the optimum in hindsight. Only what was measured is taken for true.",
    )
    part.add_argument("--power", required=True, type=Path, metavar="FILE", help="CSV of power, as Zeus's traces")
    part.add_argument("--workload", metavar="DATASET/NETWORK", help="which of it; not needed where there is one")
    part.add_argument("--batch-size", type=int, metavar="N", help="which of it; not needed where there is one")
    part.add_argument("--optimizer", metavar="NAME", help="which of it; not needed where there is one")
    part.add_argument(
        "--signal", nargs="+", action="extend", required=True, type=Path, metavar="FILE", help="CSV: timestamp,<unit>"
    )
    _add_conditions(part)
    part.add_argument("--policy", nargs="+", action="extend", choices=POLICIES, help="which to compare; all by default")
    part.add_argument("--json", action="store_true", help="for scripts")
    part.add_argument("--png", type=Path, metavar="FILE", help="draw what is saved, and a run, as a picture, too")
    part.add_argument("--html", type=Path, metavar="FILE", help="the same as a page for the browser")
    part.add_argument("--processes", type=int, metavar="N", help="at a time; as many as there are cores by default")
    part.set_defaults(default_log_level="warning", do=replay_plan)


def _add_conditions(part: argparse.ArgumentParser) -> None:
    """Add what says how the job runs."""
    part.add_argument(
        "--max-slowdown", nargs="+", action="extend", type=float, metavar="RATIO",
        help="how much longer a run may take than at the highest limit, 1 or more (1.05)",
    )  # fmt: skip
    part.add_argument("--hours", type=float, default=240.0, help="of the run at the highest limit (240)")
    part.add_argument("--starts", type=int, default=20, metavar="N", help="runs, spread evenly over each signal (20)")
    part.add_argument("--eta", nargs="+", action="extend", type=float, help="the weights for Chase, 0 to 1 (0.5)")
    part.add_argument(
        "--period-minutes", type=float, metavar="MIN", help="how often a run is planned; the signal's step, at most 60"
    )
    part.add_argument("--host-power-w", type=float, default=0.0, metavar="W", help="of the machine beside the GPU (0)")
    part.add_argument("--pue", type=float, default=1.0, help="what the building draws per watt of the machine (1)")


def replay_plan(options: argparse.Namespace) -> int:
    """Print what the policies save.

    Raises:
        ConfigError: with every fault of the arguments and of the files.
    """
    faults = list(_faults(options))
    is_fine = not faults
    wanted = CurveSelection(workload=options.workload, batch_size=options.batch_size, optimizer=options.optimizer)
    curve = read_curve(options.power, wanted, faults)
    readings = read_signals(options.signal, faults)
    comparison = _contest(options)
    scenes = _scenes(curve, readings, options) if is_fine and curve is not None else []
    jobs = list(_jobs(scenes, comparison, options, faults))
    if faults or curve is None:
        raise ConfigError(faults)
    _say_what_is_lost(readings)
    try:
        report = _report(f"{curve.name}, {options.hours:g} h", scenes, jobs, _with_svr(comparison), options)
    except KeyboardInterrupt:
        print("stopped on request", file=sys.stderr if options.json else sys.stdout)
        return 0
    _draw(report, options)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode([asdict(row) for row in report.rows])).decode())
    else:
        _print(report)
    return 0


def _faults(options: argparse.Namespace) -> Iterator[str]:
    """Yield what is wrong with the arguments."""
    limits: tuple[tuple[str, Sequence[float | None], float, float, str], ...] = (
        ("max-slowdown", options.max_slowdown or (), 1, MAX_SLOWDOWN, "from 1 to 10 (1.05 is 5 % slower)"),
        ("eta", options.eta or (), 0, 1, "from 0 (only time counts) to 1 (only carbon counts)"),
        ("hours", [options.hours], MIN_HOURS, MAX_HOURS, f"from {MIN_HOURS} to {MAX_HOURS:,}"),
        ("starts", [options.starts], 1, MAX_STARTS, f"from 1 to {MAX_STARTS:,}"),
        ("period-minutes", [options.period_minutes], 1, MAX_PERIOD_MINUTES, f"from 1 to {MAX_PERIOD_MINUTES:,}"),
        ("host-power-w", [options.host_power_w], 0, math.inf, "at least 0 W, and finite"),
        ("pue", [options.pue], 1, math.inf, "at least 1, and finite"),
        ("processes", [options.processes], 1, math.inf, "at least 1"),
    )
    for name, values, least, most, what in limits:
        for value in values:
            if value is not None and not (least <= value <= most and value < math.inf):
                yield f"--{name} {value:g}: must be {what}"
    for name, path in (("png", options.png), ("html", options.html)):
        if path is not None and not path.parent.is_dir():
            yield f"--{name} {path}: there is no folder {path.parent}"
    if set(options.policy or ()) == {"chase-svr"} and find_spec("sklearn") is None:
        yield "--policy chase-svr: needs scikit-learn, which is not installed; name another policy, too"
    if options.png is not None and find_spec("matplotlib") is None:
        yield "--png: needs matplotlib, which is not installed: pip install 'gridchase[plots]'"


def _say_what_is_lost(readings: Sequence[SignalFile]) -> None:
    for reading in readings:
        if reading.losses:
            print(
                f"{reading.signal.zone}: {reading.losses}; lines between the values around them stand for the truth",
                file=sys.stderr,
            )


def _contest(options: argparse.Namespace) -> Comparison:
    return Comparison(
        policies=tuple(name for name in POLICIES if name in (options.policy or POLICIES)),
        max_slowdowns=tuple(dict.fromkeys(options.max_slowdown or (1.05,))),
        etas=tuple(dict.fromkeys(options.eta or (0.5,))),
    )


def _with_svr(comparison: Comparison) -> Comparison:
    """Return what is compared with Chase's own regression, where that is wanted and there is one."""
    if "chase-svr" not in comparison.policies:
        return comparison
    if find_spec("sklearn") is None:
        print("chase-svr is left out: it needs scikit-learn, which is not installed", file=sys.stderr)
        return comparison
    # It takes seconds to import: only those who want it wait.
    return replace(comparison, svr=import_module("policies.replay.power_limit.chase_svr").expect_by_regression)


def _scenes(curve: NamedCurve, readings: Sequence[SignalFile], options: argparse.Namespace) -> list[Scene]:
    """Return each signal with the curve, as the building sees it."""
    building = Overhead(host_power_w=options.host_power_w, pue=options.pue)
    period_s = None if options.period_minutes is None else 60 * options.period_minutes
    return [scene_of(curve, reading, building, period_s) for reading in readings]


def _jobs(
    scenes: Sequence[Scene], comparison: Comparison, options: argparse.Namespace, faults: list[str]
) -> Iterator[list[RunSpec]]:
    """Yield the runs on each signal; tell which signals are too short for those who play, or are drawn."""
    if _is_drawn(options):
        comparison = replace(comparison, policies=(*comparison.policies, *FRONT_POLICIES))
    for scene in scenes:
        try:
            yield run_specs(
                scene.scenario,
                comparison,
                base_duration_s=3_600 * options.hours,
                n_starts=options.starts,
                period_s=scene.period_s,
            )
        except ValueError as error:
            faults.append(f"--signal {scene.name}: {error}")


def _is_drawn(options: argparse.Namespace) -> bool:
    return options.png is not None or options.html is not None


def _report(
    title: str,
    scenes: Sequence[Scene],
    jobs: Sequence[list[RunSpec]],
    comparison: Comparison,
    options: argparse.Namespace,
) -> SavingsReport:
    """Return what was found, and what is drawn of it where a drawing is asked for."""
    n_processes = options.processes or os.cpu_count() or 1
    rows = _rows(scenes, jobs, comparison, n_processes, "runs")
    if not _is_drawn(options):
        return SavingsReport(title=title, rows=rows, n_signals=len(scenes))
    budgets = tuple(1 + (max(comparison.max_slowdowns) - 1) * (n / (N_FRONT - 1)) ** 2 for n in range(N_FRONT))
    fronts = Comparison(policies=FRONT_POLICIES, max_slowdowns=budgets, etas=FRONT_ETAS)
    scene, spec = scenes[0], jobs[0][len(jobs[0]) // 2]
    max_slowdown = comparison.max_slowdowns[len(comparison.max_slowdowns) // 2]
    return SavingsReport(
        title=title,
        rows=rows,
        n_signals=len(scenes),
        fronts=_rows(scenes, jobs, fronts, n_processes, "fronts"),
        example=example_run(scene.name, scene.scenario, spec, max_slowdown),
    )


def _rows(
    scenes: Sequence[Scene], jobs: Sequence[list[RunSpec]], comparison: Comparison, n_processes: int, what: str
) -> list[SavingsRow]:
    """Return the rows of each signal, and their means where there are several."""
    tasks = [(scene.scenario, spec, comparison) for scene, runs in zip(scenes, jobs, strict=True) for spec in runs]
    totals = iter(replay_each(_play, tasks, n_processes=n_processes, what=what))
    rows = [
        row
        for scene, runs in zip(scenes, jobs, strict=True)
        for row in savings_rows(scene.name, runs, [next(totals) for _ in runs], comparison)
    ]
    return rows + (mean_savings_rows(rows) if len(scenes) > 1 else [])


def _play(task: _Task) -> TotalsByVariant:
    return replay_totals(*task)


def _draw(report: SavingsReport, options: argparse.Namespace) -> None:
    """Write the picture and the page that were asked for; raise `ConfigError` where that is not possible."""
    # Matplotlib and Bokeh take longer to import than everything else here: only those who want them wait for them.
    for what, path in (("png", options.png), ("html", options.html)):
        if path is not None:
            drawn: bytes = import_module(f"controller.cli.replay.plan_{what}").render(report)
            try:
                path.write_bytes(drawn)
            except OSError as error:
                raise ConfigError([f"--{what} {path}: {error.strerror}"]) from error
            print(path.resolve().as_uri(), file=sys.stderr if options.json else sys.stdout)


def _print(report: SavingsReport) -> None:
    console = Console(emoji=False)  # a name may hold what looks like the code of one
    for table in tables(report, console.width):
        console.print(table, crop=False)
        console.print()
    console.print(
        "saved: of the carbon (or money) at the highest limit, the mean over runs; slower: the mean; worst: the worst "
        "run. chase and zeus know no budget; chase-best-eta is the best eta that hindsight finds within it, for each "
        "run; offline knows the future, and no plan can save more."
    )
