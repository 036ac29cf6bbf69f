"""`gridchase replay profile`: how soon, and how well, the profiler finds a job's curve and limit, under noise."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from controller.cli.replay.processes import replay_each
from controller.cli.replay.profile_view import EXPLAINED, tables
from controller.demo.recurrences.trace_files import CARRIED, read_power
from controller.errors import ConfigError
from policies.replay.profiling.curves import TrueCurve, true_curves
from policies.replay.profiling.evaluation import (
    ProfilingEvaluation,
    ProfilingRow,
    evaluate,
    profiling_rows,
    summary_rows,
)
from policies.replay.profiling.noise import LEVELS, NoiseName
from policies.replay.profiling.policies import POLICIES, PolicyName

MAX_SEEDS: Final = 1_000
SOME: Final = 5
"""So many names are shown where there are many."""
BLAS_THREADS: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""A process for each core has no use for threads; the matrices are small, and threads would wait for one another."""

_Verbs = argparse._SubParsersAction  # noqa: SLF001 — argparse has no public name for it
_Task = tuple[TrueCurve, PolicyName, NoiseName, float, int]


def add_part(parts: "_Verbs[argparse.ArgumentParser]") -> None:
    """Add `profile` to what can be replayed."""
    part = parts.add_parser(
        "profile",
        help="measure power profiles on known curves, under noise, and compare with Zeus's sweep",
        description="Lets jobs train on measured curves of power and speed, under noise, and the profiler find their "
        "limits: the controller's own (with the measurements that go on while the job trains, and without them), and "
        "Zeus's sweep, all with the same noise. Counts what is wasted on the way, in iterations of the best limit. "
        "Every dataset, network, optimizer and batch size of a file is a curve. Without files it takes three jobs "
        "that come along, of a V100.",
    )
    part.add_argument(
        "--power", nargs="+", action="extend", type=Path, metavar="FILE", help="CSV of power: one a kind of GPU"
    )
    part.add_argument(
        "--curve", nargs="+", action="extend", metavar="TEXT", help="only curves with one of these in their names"
    )
    part.add_argument("--noise", choices=tuple(LEVELS), default="realistic", help="how noisy it is (realistic)")
    part.add_argument("--eta", type=float, default=0.5, help="the weight of energy in the cost, 0 to 1 (0.5)")
    part.add_argument("--seeds", type=int, default=5, metavar="N", help="how often each policy is played (5)")
    part.add_argument("--policy", nargs="+", action="extend", choices=POLICIES, help="which to compare; all by default")
    part.add_argument("--json", action="store_true", help="for scripts")
    part.add_argument("--processes", type=int, metavar="N", help="at a time; as many as there are cores by default")
    part.set_defaults(default_log_level="warning", do=replay_profile)


def replay_profile(options: argparse.Namespace) -> int:
    """Print how good the policies are.

    Raises:
        ConfigError: with every fault of the arguments, and of the files.
    """
    faults = list(_faults(options))
    curves = _read(options.power or [CARRIED / "v100.csv"], options.curve, faults)
    if faults:
        raise ConfigError(faults)
    _say_what_is_assumed(curves)
    names: list[PolicyName] = [name for name in POLICIES if name in (options.policy or POLICIES)]
    for variable in BLAS_THREADS:
        os.environ.setdefault(variable, "1")
    try:
        evaluations: list[ProfilingEvaluation] = replay_each(
            _evaluate,
            [(curve, name, options.noise, options.eta, options.seeds) for curve, name in product(curves, names)],
            n_processes=options.processes or os.cpu_count() or 1,
            what="policies on curves",
        )
    except KeyboardInterrupt:
        print("stopped on request", file=sys.stderr if options.json else sys.stdout)
        return 0
    rows = profiling_rows(evaluations)
    if options.json:
        report = [as_row(row) for row in (*rows, *summary_rows(rows))]
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print(rows)
    return 0


def as_row(row: ProfilingRow) -> dict[str, Any]:
    """Return a row for scripts."""
    return asdict(row)


def _faults(options: argparse.Namespace) -> Iterator[str]:
    """Yield what is wrong with the arguments."""
    if not 0 <= options.eta <= 1:
        yield f"--eta {options.eta:g}: must be from 0 (only time counts) to 1 (only energy counts)"
    if not 1 <= options.seeds <= MAX_SEEDS:
        yield f"--seeds {options.seeds}: must be from 1 to {MAX_SEEDS:,}"
    if options.processes is not None and options.processes < 1:
        yield f"--processes {options.processes}: must be at least 1"


def _read(paths: Sequence[Path], wanted: Sequence[str] | None, faults: list[str]) -> list[TrueCurve]:
    """Return the curves of files whose names are wanted; tell every fault of every file."""
    curves: list[TrueCurve] = []
    for index, path in enumerate(paths):
        if path.stem in {other.stem for other in paths[:index]}:
            faults.append(f"{path}: another file has this name, by which reports tell them apart: rename one")
            continue
        trace = read_power(path, faults)
        if trace is None:
            continue
        found = list(true_curves(trace))
        if not found:
            faults.append(f"{path}: no job was measured at two power limits or more, which a curve needs")
        curves += found
    chosen = [curve for curve in curves if wanted is None or any(text in curve.name for text in wanted)]
    if curves and not chosen:
        faults.append(f"--curve {' '.join(wanted or ())}: no name has it in it; there are {_some(curves)}")
    return chosen


def _say_what_is_assumed(curves: Sequence[TrueCurve]) -> None:
    """Tell which curves have iterations of a length that nobody knows."""
    assumed = [curve for curve in curves if curve.is_assumed]
    if assumed:
        print(
            "how many samples an epoch has is not known for these datasets; their iterations are taken to last "
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


def _print(rows: Sequence[ProfilingRow]) -> None:
    console = Console()
    for table in tables(rows):
        console.print(table)
        console.print()
    console.print(EXPLAINED)
