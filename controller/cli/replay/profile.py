"""`gridchase replay profile`: how soon and how well the profiler finds a job's curve and limit, under noise."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from controller.cli.output import Terminal, plain_table, print_json
from controller.cli.replay.options import (
    ETA,
    PROCESSES,
    SEEDS,
    add_output,
    add_policies,
    n_processes,
    out_of_bounds,
)
from controller.cli.replay.processes import replay_each
from controller.demo.live_run.profile import simulate_curve
from controller.demo.recurrences.trace_files import INCLUDED, read_power, repeated_names
from controller.errors import ConfigError
from policies.replay.profiling.curves import TrueCurve, true_curves
from policies.replay.profiling.evaluation import (
    JOB_LENGTHS,
    ProfilingEvaluation,
    ProfilingRow,
    evaluate,
    profiling_rows,
    summary_rows,
)
from policies.replay.profiling.noise import LEVELS, NoiseName
from policies.replay.profiling.policies import POLICIES, PolicyName
from policies.replay.profiling.slowdown import SlowdownRow, slowdown_summaries

if TYPE_CHECKING:
    from gridchase.cli.verb import Verbs

SOME: Final = 5
"""How many names are shown where there are many."""
BLAS_THREADS: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""With a process for each core, threads would only wait for one another; the matrices are small."""
MAX_TABLES: Final = 12
"""With more curves than this only the summaries are shown."""
N_NAME: Final = 19
COLUMNS: Final = ("to plan", *(f"{length:,}" for length in JOB_LENGTHS), "error", "good", "t err", "P err")
EXPLAINED: Final = (
    "to plan: iterations before the first plan (median); 1,000 …: cost of a job of that length beyond the optimum, in "
    "iterations at the best limit; error: extra cost of the kept limit against the best one; good: share within 1 %; "
    "t err, P err: errors of the curve in iteration time and power, at the limits that may be chosen"
)
LIVE_COLUMNS: Final = ("slower", "excess", "over mix", "at top")
LIVE_EXPLAINED: Final = (
    "the controller itself, as it runs by default; it is not told how long a run is. slower: than at the highest "
    "limit; excess: energy beyond the least in that time, in iterations; over mix: energy beyond the best mix of two "
    "limits that takes the whole budget; at top: time at the highest limit"
)

_Task = tuple[TrueCurve, PolicyName, NoiseName, float, int]


def add_part(parts: "Verbs") -> None:
    """Add `profile` to what can be replayed."""
    part = parts.add_parser(
        "profile",
        help="measure power profiles on known curves, under noise, and compare with Zeus's sweep",
        description="Lets jobs train on measured curves of power and speed, under noise, and compares how policies "
        "find limits: the controller's own (with the measurements that go on while the job trains, and without them), "
        "and Zeus's sweep, all with the same noise. Counts the waste, in iterations at the best limit. Every dataset, "
        "network, optimizer and batch size of a file is a curve. Without files it uses three included jobs, measured "
        "on a V100. With --live the controller itself runs on the same curves on simulated time, by default settings: "
        "at most 3 % slower, without a length.",
    )
    part.add_argument(
        "--power", nargs="+", action="extend", type=Path, metavar="FILE", help="CSV of power: one for each GPU model"
    )
    part.add_argument(
        "--curve", nargs="+", action="extend", metavar="TEXT", help="only curves whose names contain one of these"
    )
    part.add_argument("--noise", choices=tuple(LEVELS), default="realistic", help="the level of noise (realistic)")
    part.add_argument("--eta", type=float, default=0.5, help="the weight of energy in the cost, 0 to 1 (0.5)")
    part.add_argument("--seeds", type=int, default=5, metavar="N", help="repetitions for each policy (5)")
    part.add_argument("--live", action="store_true", help="simulate the controller itself, too, as it runs by default")
    add_policies(part, POLICIES)
    add_output(part)
    part.set_defaults(default_log_level="warning", do=replay_profile)


def replay_profile(options: argparse.Namespace) -> int:
    """Print how good the policies are.

    Raises:
        ConfigError: with every fault of the arguments, and of the files.
    """
    faults = list(out_of_bounds(options, ETA, SEEDS, PROCESSES))
    curves = _read(options.power or [INCLUDED / "v100.csv"], options.curve, faults)
    if faults:
        raise ConfigError(faults)
    _print_assumptions(curves)
    names: list[PolicyName] = [name for name in POLICIES if name in (options.policy or POLICIES)]
    for variable in BLAS_THREADS:
        os.environ.setdefault(variable, "1")
    evaluations: list[ProfilingEvaluation] = replay_each(
        _evaluate,
        [(curve, name, options.noise, options.eta, options.seeds) for curve, name in product(curves, names)],
        n_processes=n_processes(options),
        what="policies on curves",
    )
    rows = profiling_rows(evaluations)
    live = _simulate_live(curves, options) if options.live else []
    if options.json:
        found: list[ProfilingRow | SlowdownRow] = [*rows, *summary_rows(rows), *live, *slowdown_summaries(live)]
        print_json([asdict(row) for row in found])
        return 0
    console = Terminal()
    for table in tables(rows):
        console.print(table)
        console.print()
    console.print(EXPLAINED)
    if live:
        console.print()
        console.print(live_table(live))
        console.print()
        console.print(LIVE_EXPLAINED)
    return 0


def _simulate_live(curves: Sequence[TrueCurve], options: argparse.Namespace) -> list[SlowdownRow]:
    if not options.json:
        print(
            f"{len(curves)} curves under the controller itself: each takes some 10 s a seed and core", file=sys.stderr
        )
    return replay_each(
        _simulate, [(curve, options.seeds) for curve in curves], n_processes=n_processes(options), what="live runs"
    )


def _simulate(task: tuple[TrueCurve, int]) -> SlowdownRow:
    curve, n_seeds = task
    return simulate_curve(curve, n_seeds=n_seeds)


def _read(paths: Sequence[Path], wanted: Sequence[str] | None, faults: list[str]) -> list[TrueCurve]:
    """Return the curves of files whose names are wanted; add the faults of all files to `faults`."""
    faults += repeated_names(paths)
    curves: list[TrueCurve] = []
    for path in paths:
        trace = read_power(path, faults)
        if trace is None:
            continue
        found = list(true_curves(trace))
        if not found:
            faults.append(f"{path}: no job was measured at two power limits or more, which a curve needs")
        curves += found
    chosen = [curve for curve in curves if wanted is None or any(text in curve.name for text in wanted)]
    if curves and not chosen:
        faults.append(f"--curve {' '.join(wanted or ())}: no name contains it; there are {_some(curves)}")
    return chosen


def _print_assumptions(curves: Sequence[TrueCurve]) -> None:
    assumed = [curve for curve in curves if curve.is_assumed]
    if assumed:
        print(
            "the number of samples per epoch of these datasets is unknown; their iterations are assumed to take "
            f"{assumed[0].iteration_time_s:g} s at the highest limit: {_some(assumed)}",
            file=sys.stderr,
        )


def _some(curves: Sequence[TrueCurve]) -> str:
    names = [curve.name for curve in curves[:SOME]]
    n_more = len(curves) - len(names)
    return ", ".join(names) + (f" and {n_more} more" if n_more else "")


def _evaluate(task: _Task) -> ProfilingEvaluation:
    curve, name, noise, eta, n_seeds = task
    return evaluate(curve, name, noise, eta=eta, n_seeds=n_seeds)


def tables(rows: Sequence[ProfilingRow]) -> Iterator[Table]:
    """Yield a table for each curve if there are few, then one over the power-bound curves, and one over all."""
    by_curve: dict[str, list[ProfilingRow]] = {}
    for row in rows:
        by_curve.setdefault(row.curve, []).append(row)
    if len(by_curve) <= MAX_TABLES:
        for curve, found in by_curve.items():
            bound = "" if found[0].is_power_bound else ", not power-bound"
            yield _table(f"{curve}{bound}", [(row, row) for row in found])
    if len(by_curve) > 1:
        yield from _summaries(rows)


def _summaries(rows: Sequence[ProfilingRow]) -> Iterator[Table]:
    summaries = {(row.curve, row.policy): row for row in summary_rows(rows)}
    for over, name in (("power-bound", "power-bound curves"), ("all", "curves, power-bound or not")):
        means = [row for row in summaries.values() if row.curve == f"mean over {over}"]
        if not means:
            continue
        pairs = [(mean, summaries[f"median over {over}", mean.policy]) for mean in means]
        first = means[0]
        table = _table(f"mean of {first.n_curves} {name}, {first.noise} noise, seeds: {first.n_seeds}", pairs)
        table.caption = "; ".join(_against(mean) for mean in means if mean.policy == "gridchase")
        table.caption_justify = "left"
        yield table


def _table(title: str, pairs: Sequence[tuple[ProfilingRow, ProfilingRow]]) -> Table:
    """Return a table of means; iterations to the plan are those of the second row of each pair."""
    table = plain_table(title)
    table.add_column("policy", no_wrap=True, min_width=N_NAME)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for mean, middle in pairs:
        table.add_row(
            mean.policy,
            f"{middle.iterations_to_plan:,.0f}",
            *(f"{mean.excess_iterations[str(length)]:,.1f}" for length in JOB_LENGTHS),
            f"{100 * mean.selection_error_ratio:.2f}%",
            f"{100 * mean.good_selections_ratio:.0f}%",
            f"{100 * mean.curve_time_error_ratio:.1f}%",
            f"{100 * mean.curve_power_error_ratio:.1f}%",
        )
    return table


def _against(row: ProfilingRow) -> str:
    if row.selection_against_zeus_ratio is None:
        return ""
    ratio = row.selection_against_zeus_ratio
    return f"gridchase against Zeus's sweep, on its worst curve: cost of the kept limit {100 * ratio:+.2f} %"


def live_table(rows: Sequence[SlowdownRow]) -> Table:
    """Return a table of the curves, if there are few, and of the means over them, by the length of the run."""
    table = plain_table(f"at most {100 * (rows[0].max_slowdown - 1):g} % slower, seeds: {rows[0].n_seeds}")
    table.add_column("curve", overflow="fold")
    table.add_column("iterations", justify="right", no_wrap=True)
    for column in LIVE_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    shown = rows if len(rows) <= MAX_TABLES else ()
    for row, length in product((*shown, *(slowdown_summaries(rows) if len(rows) > 1 else ())), JOB_LENGTHS):
        table.add_row(
            row.curve,
            f"{length:,}",
            f"{100 * row.slowdown_ratio[str(length)]:.2f}%",
            f"{row.excess_iterations[str(length)]:,.1f}",
            f"{100 * row.excess_ratio[str(length)]:+.2f}%",
            f"{100 * row.highest_ratio[str(length)]:.0f}%",
        )
    return table
