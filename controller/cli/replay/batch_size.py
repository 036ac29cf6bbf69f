"""`gridchase replay batch-size`: how well policies learn batch sizes, by the protocol of the Zeus paper."""

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from controller.cli.output import Terminal, plain_table, print_json, terminal_plot, write_drawing
from controller.cli.replay.batch_size_page import render_page
from controller.cli.replay.options import ETA, SEEDS, Bounds, add_output, add_policies, n_processes, out_of_bounds
from controller.cli.replay.processes import replay_each
from controller.demo.recurrences.trace_files import INCLUDED, read_workloads
from controller.errors import ConfigError
from policies.batch_size.study import LearningSettings
from policies.replay.batch_size.evaluation import (
    POLICIES,
    BatchSizeEvaluation,
    Conditions,
    PolicyName,
    by_workload,
    evaluate,
)
from policies.replay.batch_size.workload import Workload

if TYPE_CHECKING:
    from gridchase.cli.verb import Verbs

DEFAULT_NOISE: Final = 0.25
LEARNERS: Final = {
    "gridchase": ("green", "o"),
    "gridchase-untimed": ("cyan", "u"),
    "gridchase-profiled": ("blue", "p"),
    "zeus": ("yellow", "z"),
}
"""The curves of the plot with colour and letter; the other policies are a line at zero, or far above."""
WIDTH: Final = 50
"""Columns; ticks are ten apart, which is 20 %."""
HEIGHT: Final = 14
MANY: Final = 100.0
"""From there on numbers have no decimals."""
TWICE: Final = 2.0
"""From there on a factor is shown instead of a percentage."""
N_PLACES: Final = 101
"""The number of points of a curve."""
_MARKED: Final = 10
"""Every tenth point has the letter of its curve."""
COLUMNS: Final = ("regret", "±", "energy", "time", "energy 5", "time 5", "missed")


def add_part(parts: "Verbs") -> None:
    """Add `batch-size` to what can be replayed."""
    part = parts.add_parser(
        "batch-size",
        help="learn the batch sizes of recurring jobs on traces and compare policies",
        description="Lets jobs recur on traces in the format of Zeus, as its paper does, and compares the costs of "
        "policies on the same training runs: the service's own (each batch size timed before, untimed, or with its "
        "energy measured, too), the paper's, an oracle, the default batch size and a grid search. Regret is the cost "
        "beyond the oracle's, in runs of the oracle. Without files it uses three included jobs, measured on a V100.",
    )
    part.add_argument("--train", type=Path, metavar="FILE", help="CSV of training runs: epochs to each target")
    part.add_argument(
        "--power", nargs="+", action="extend", type=Path, metavar="FILE", help="CSV of power: one for each GPU model"
    )
    _add_conditions(part)
    add_policies(part, POLICIES)
    add_output(part)
    part.add_argument("--html", type=Path, metavar="FILE", help="also write the curves as a page for the browser")
    part.set_defaults(default_log_level="warning", do=replay_batch_size)


def _add_conditions(part: argparse.ArgumentParser) -> None:
    part.add_argument("--eta", type=float, default=0.5, help="the weight of energy in the cost, 0 to 1 (0.5)")
    part.add_argument("--beta", type=float, default=2.0, help="a run stops at this many times the best cost (2)")
    part.add_argument("--seeds", type=int, default=20, metavar="N", help="repetitions for each policy (20)")
    part.add_argument(
        "--recurrences", type=int, metavar="N", help="how often a job recurs; by default 2 · batch sizes · power limits"
    )
    part.add_argument(
        "--noise", type=float, default=0.0, nargs="?", const=DEFAULT_NOISE, metavar="SD",
        help="extra run-to-run noise: the standard deviation of the logarithm of the epochs (0; without SD: 0.25)",
    )  # fmt: skip
    part.add_argument(
        "--drift", choices=("mirror", "swap"), nargs="?", const="mirror",
        help="half way, batch sizes exchange the epochs that they need: the smallest with the largest and so on, "
        "or the best with the default; then 100 recurrences by default",
    )  # fmt: skip
    part.add_argument("--concurrency", type=int, default=1, metavar="K", help="recurrences submitted at a time (1)")


def replay_batch_size(options: argparse.Namespace) -> int:
    """Print how good the policies are.

    Raises:
        ConfigError: with every fault of the arguments, or of the files.
    """
    if faults := list(_faults(options)):
        raise ConfigError(faults)
    workloads = read_workloads(options.train or INCLUDED / "train.csv", options.power or [INCLUDED / "v100.csv"])
    conditions = Conditions(
        eta=options.eta,
        n_recurrences=options.recurrences,
        noise_ratio=options.noise,
        drift=options.drift,
        concurrency=options.concurrency,
    )
    names: list[PolicyName] = [name for name in POLICIES if name in (options.policy or POLICIES)]
    settings = replace(LearningSettings(), beta=options.beta)
    results = replay_each(
        _evaluate,
        [(workload, name, conditions, options.seeds, settings) for workload, name in product(workloads, names)],
        n_processes=n_processes(options),
        what="policies on workloads",
    )
    if options.html is not None:
        write_drawing("--html", options.html, render_page(results, conditions).encode(), as_json=options.json)
    if options.json:
        print_json([_as_row(result) for result in results])
    else:
        _print(results)
    return 0


def _as_row(result: BatchSizeEvaluation) -> dict[str, Any]:
    row = asdict(result)
    del row["regret_by_recurrence"]
    return row


def _faults(options: argparse.Namespace) -> Iterator[str]:
    if (options.train is None) != (options.power is None):
        given, lacking = ("--power", "--train") if options.train is None else ("--train", "--power")
        yield f"{given} without {lacking}: name both files, or neither for the included jobs"
    yield from out_of_bounds(
        options,
        ETA,
        Bounds("beta", math.nextafter(1, 2), math.inf, "finite and above 1"),
        Bounds("noise", 0, 1, "from 0 to 1"),
        SEEDS,
        *(Bounds(name, 1, math.inf, "at least 1") for name in ("recurrences", "concurrency", "processes")),
    )


_Task = tuple[Workload, PolicyName, Conditions, int, LearningSettings]


def _evaluate(task: _Task) -> BatchSizeEvaluation:
    workload, name, conditions, n_seeds, settings = task
    return evaluate(workload, name, conditions, n_seeds=n_seeds, settings=settings)


def _print(results: Sequence[BatchSizeEvaluation]) -> None:
    console = Terminal()
    for table in tables(results):
        console.print(table)
        console.print()
    console.print(
        "regret: cost beyond the oracle's, in runs of the oracle; energy, time: relative to the default batch size at "
        "the highest power limit; energy 5, time 5: of the last five recurrences; missed: runs without success\n"
    )
    print(draw_regrets(results, in_colour=console.is_terminal))


def tables(results: Sequence[BatchSizeEvaluation]) -> Iterator[Table]:
    """Yield a table for each workload, and one of means over them."""
    groups = by_workload(results)
    for workload, rows in groups.items():
        title = f"{workload}: {rows[0].n_recurrences} recurrences, seeds: {rows[0].n_seeds}"
        yield _table(title, [(row.policy, [row]) for row in rows])
    if len(groups) > 1:
        policies = dict.fromkeys(row.policy for row in results)
        yield _table(
            f"mean of {len(groups)} workloads",
            [(policy, [row for row in results if row.policy == policy]) for policy in policies],
        )


def _table(title: str, rows: Sequence[tuple[str, list[BatchSizeEvaluation]]]) -> Table:
    table = plain_table(title)
    table.add_column("policy", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for policy, found in rows:
        table.add_row(
            policy,
            _number([one.regret for one in found]),
            _number([one.regret_sd for one in found]),
            _change([one.energy_ratio for one in found]),
            _change([one.duration_ratio for one in found]),
            _change([one.last_energy_ratio for one in found]),
            _change([one.last_duration_ratio for one in found]),
            _number([one.n_stopped for one in found]),
        )
    return table


def _number(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.2f}" if abs(mean) < MANY else f"{mean:,.0f}"


def _change(ratios: Sequence[float | None]) -> str:
    """Return the text of the change that a mean of ratios means."""
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return "-"
    mean = statistics.fmean(known)
    return f"{100 * (mean - 1):+.1f}%" if mean < TWICE else f"x{_number([mean])}"


def draw_regrets(results: Sequence[BatchSizeEvaluation], *, in_colour: bool) -> str:
    """Return the plot of the mean regret of the policies that learn; "" where there is none."""
    curves = {name: curve for name in LEARNERS if (curve := mean_regret_ratios(results, name)) is not None}
    if not curves:
        return ""
    top = max(float(curve.max()) for curve in curves.values())
    figure = terminal_plot(
        size=(WIDTH, HEIGHT),
        labels=("[%]", "regret"),
        x_limits=(0.0, 100.0),
        y_limits=(min(0.0, *(float(curve.min()) for curve in curves.values())), max(1.05 * top, 0.1)),
        tick_texts=("{:.0f}".format, "{:.1f}".format),
        in_colour=in_colour,
    )
    places = np.linspace(0, 100, N_PLACES).tolist()
    for name, curve in curves.items():
        colour, letter = LEARNERS[name]
        figure.plot(places, curve.tolist(), lc=colour)
        figure.scatter(places[::_MARKED], curve.tolist()[::_MARKED], lc=colour, marker=letter)
    legend = "".join(f"\n{LEARNERS[name][1]} {name}: {curve[-1]:.2f}" for name, curve in curves.items())
    return str(figure.show(legend=False)) + legend


def mean_regret_ratios(results: Sequence[BatchSizeEvaluation], policy: str) -> NDArray[np.float64] | None:
    """Return the regret of a policy over the share of recurrences, mean over workloads."""
    found = [result.regret_by_recurrence for result in results if result.policy == policy]
    if not found:
        return None
    places = np.linspace(0, 1, N_PLACES)
    curves = [np.interp(places, np.linspace(0, 1, len(regrets) + 1), [0.0, *regrets]) for regrets in found]
    return np.asarray(np.mean(curves, axis=0), dtype=np.float64)
