"""`gridchase replay batch-size`: how well batch sizes are learned, by the protocol of the Zeus paper, on its traces."""

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from controller.cli.replay.batch_size_view import draw_regrets, tables
from controller.cli.replay.processes import replay_each
from controller.demo.recurrences.trace_files import CARRIED, read_workloads
from controller.errors import ConfigError
from policies.batch_size.study import LearningSettings
from policies.replay.batch_size.evaluation import POLICIES, BatchSizeEvaluation, Conditions, PolicyName, evaluate
from policies.replay.batch_size.workload import Workload

DEFAULT_NOISE: Final = 0.25
MAX_SEEDS: Final = 1_000

_Verbs = argparse._SubParsersAction  # noqa: SLF001 — argparse has no public name for it


def add_part(parts: "_Verbs[argparse.ArgumentParser]") -> None:
    """Add `batch-size` to what can be replayed."""
    part = parts.add_parser(
        "batch-size",
        help="learn the batch sizes of recurring jobs on traces and compare policies",
        description="Lets jobs recur on traces in the format of Zeus's, as its paper does, and compares what policies "
        "spend: the service's own (with each batch size timed before, untimed, or with its energy measured, too), the "
        "paper's, an oracle, the default batch size and a grid search, all on the same training runs. Regret is what "
        "is paid beyond the oracle, in its runs. Without files it takes three jobs that come along, of a V100.",
    )
    part.add_argument("--train", type=Path, metavar="FILE", help="CSV of training runs: epochs to each target")
    part.add_argument(
        "--power", nargs="+", action="extend", type=Path, metavar="FILE", help="CSV of power: one a kind of GPU"
    )
    _add_conditions(part)
    part.add_argument("--policy", nargs="+", action="extend", choices=POLICIES, help="which to compare; all by default")
    part.add_argument("--json", action="store_true", help="for scripts")
    part.add_argument("--html", type=Path, metavar="FILE", help="write the curves as a page for the browser, too")
    part.add_argument("--processes", type=int, metavar="N", help="at a time; as many as there are cores by default")
    part.set_defaults(default_log_level="warning", do=replay_batch_size)


def _add_conditions(part: argparse.ArgumentParser) -> None:
    """Add what says how the jobs recur."""
    part.add_argument("--eta", type=float, default=0.5, help="the weight of energy in the cost, 0 to 1 (0.5)")
    part.add_argument("--beta", type=float, default=2.0, help="a run stops at this many times the best cost (2)")
    part.add_argument("--seeds", type=int, default=20, metavar="N", help="how often each policy is played (20)")
    part.add_argument(
        "--recurrences", type=int, metavar="N", help="how often a job recurs; by default 2 · batch sizes · power limits"
    )
    part.add_argument(
        "--noise", type=float, default=0.0, nargs="?", const=DEFAULT_NOISE, metavar="SD",
        help="more run-to-run noise: the standard deviation of the logarithm of the epochs (0; alone: 0.25)",
    )  # fmt: skip
    part.add_argument(
        "--drift", choices=("mirror", "swap"), nargs="?", const="mirror",
        help="half way, batch sizes exchange the epochs that they need: the smallest with the largest and so on, "
        "or the best with the default; 100 recurrences by default",
    )  # fmt: skip
    part.add_argument("--concurrency", type=int, default=1, metavar="K", help="recurrences submitted at a time (1)")


def replay_batch_size(options: argparse.Namespace) -> int:
    """Print how good the policies are.

    Raises:
        ConfigError: with every fault of the arguments, or of the files.
    """
    faults = list(_faults(options))
    if faults:
        raise ConfigError(faults)
    workloads = read_workloads(options.train or CARRIED / "train.csv", options.power or [CARRIED / "v100.csv"])
    conditions = Conditions(
        eta=options.eta,
        n_recurrences=options.recurrences,
        noise_ratio=options.noise,
        drift=options.drift,
        concurrency=options.concurrency,
    )
    names: list[PolicyName] = [name for name in POLICIES if name in (options.policy or POLICIES)]
    settings = replace(LearningSettings(), beta=options.beta)
    try:
        results = replay_each(
            _evaluate,
            [(workload, name, conditions, options.seeds, settings) for workload, name in product(workloads, names)],
            n_processes=options.processes or os.cpu_count() or 1,
            what="policies on workloads",
        )
    except KeyboardInterrupt:
        print("stopped on request", file=sys.stderr if options.json else sys.stdout)
        return 0
    if options.html is not None:
        # Bokeh takes longer to import than everything else here: only those who want the page wait for it.
        page: str = import_module("controller.cli.replay.batch_size_page").render_page(results, conditions)
        _write(options.html, page)
        print(options.html.resolve().as_uri(), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode([as_row(result) for result in results])).decode())
    else:
        _print(results)
    return 0


def as_row(result: BatchSizeEvaluation) -> dict[str, Any]:
    """Return a result for scripts; the curve stays out."""
    row = asdict(result)
    del row["regret_by_recurrence"]
    return row


def _faults(options: argparse.Namespace) -> Iterator[str]:
    """Yield what is wrong with the arguments."""
    if (options.train is None) != (options.power is None):
        given, lacking = ("--power", "--train") if options.train is None else ("--train", "--power")
        yield f"{given} without {lacking}: name both files, or neither for the jobs that come along"
    if not 0 <= options.eta <= 1:
        yield f"--eta {options.eta:g}: must be from 0 (only time counts) to 1 (only energy counts)"
    if not 1 < options.beta < math.inf:
        yield f"--beta {options.beta:g}: must be finite and above 1"
    if not 0 <= options.noise <= 1:
        yield f"--noise {options.noise:g}: must be from 0 to 1"
    if not 1 <= options.seeds <= MAX_SEEDS:
        yield f"--seeds {options.seeds}: must be from 1 to {MAX_SEEDS:,}"
    for name in ("recurrences", "concurrency", "processes"):
        count = getattr(options, name)
        if count is not None and count < 1:
            yield f"--{name} {count}: must be at least 1"


_Task = tuple[Workload, PolicyName, Conditions, int, LearningSettings]


def _evaluate(task: _Task) -> BatchSizeEvaluation:
    workload, name, conditions, n_seeds, settings = task
    return evaluate(workload, name, conditions, n_seeds=n_seeds, settings=settings)


def _write(path: Path, page: str) -> None:
    """Write a page; raise `ConfigError` where that is not possible."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"--html {path}: {error.strerror}"]) from error


def _print(results: Sequence[BatchSizeEvaluation]) -> None:
    console = Console()
    for table in tables(results):
        console.print(table)
        console.print()
    console.print(
        "regret: what was paid beyond the oracle, in its runs; energy and time: against the default batch size at the "
        "highest power limit; energy 5, time 5: the last five recurrences alone; missed: runs without success\n"
    )
    print(draw_regrets(results, in_colour=console.is_terminal))
