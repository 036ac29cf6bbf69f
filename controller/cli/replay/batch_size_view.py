"""How good policies of batch sizes are, as tables and a plot of the terminal."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from controller.cli.output import plain_table, terminal_plot
from policies.replay.batch_size.evaluation import BatchSizeEvaluation

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


def tables(results: Sequence[BatchSizeEvaluation]) -> Iterator[Table]:
    """Yield a table for each workload, and one of means over them."""
    by_workload = grouped(results)
    for workload, rows in by_workload.items():
        title = f"{workload}: {rows[0].n_recurrences} recurrences, seeds: {rows[0].n_seeds}"
        yield _table(title, [(row.policy, [row]) for row in rows])
    if len(by_workload) > 1:
        policies = dict.fromkeys(row.policy for row in results)
        yield _table(
            f"mean of {len(by_workload)} workloads",
            [(policy, [row for row in results if row.policy == policy]) for policy in policies],
        )


def grouped(results: Sequence[BatchSizeEvaluation]) -> dict[str, list[BatchSizeEvaluation]]:
    """Return the results by workload."""
    groups: dict[str, list[BatchSizeEvaluation]] = {}
    for result in results:
        groups.setdefault(result.workload, []).append(result)
    return groups


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
    """Return the text of a mean."""
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
