"""How good the policies of batch sizes are, as tables and as a plot of the terminal."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import plotille
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from policies.replay.batch_size.evaluation import BatchSizeEvaluation

LEARNERS: Final = {
    "gridchase": ("green", "o"),
    "gridchase-untimed": ("cyan", "u"),
    "gridchase-profiled": ("blue", "p"),
    "zeus": ("yellow", "z"),
}
"""What is drawn: the others are a line at zero, or far above. Each has its colour, and its letter."""
WIDTH: Final = 50
"""Characters; the ticks of the axis are ten apart, which makes 20 %."""
HEIGHT: Final = 14
MANY: Final = 100.0
"""Of such numbers nobody needs decimals."""
TWICE: Final = 2.0
"""From there on a factor says more than a percentage."""
N_PLACES: Final = 101
"""How many shares of a workload's recurrences are drawn."""
_MARKED: Final = 10
"""Every tenth of them bears the letter of its curve."""
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
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
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
    """Return a mean, for people."""
    mean = statistics.fmean(values)
    return f"{mean:.2f}" if abs(mean) < MANY else f"{mean:,.0f}"


def _change(ratios: Sequence[float | None]) -> str:
    """Return what a mean of ratios is more or less than 1, for people."""
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return "-"
    mean = statistics.fmean(known)
    return f"{100 * (mean - 1):+.1f}%" if mean < TWICE else f"x{_number([mean])}"


def draw_regrets(results: Sequence[BatchSizeEvaluation], *, in_colour: bool) -> str:
    """Return the regret of the policies that learn as a plot, the mean over workloads; nothing where there is none."""
    curves = {name: curve for name in LEARNERS if (curve := mean_regret_ratios(results, name)) is not None}
    if not curves:
        return ""
    figure = plotille.Figure()
    figure.width, figure.height = WIDTH, HEIGHT
    figure.with_colors, figure.color_mode, figure.origin = in_colour, "names", False
    figure.x_label, figure.y_label = "[%]", "regret"
    figure.x_ticks_fkt = lambda low, _: f"{low:.0f}"
    figure.y_ticks_fkt = lambda low, _: f"{low:.1f}"
    top = max(float(curve.max()) for curve in curves.values())
    figure.set_x_limits(min_=0.0, max_=100.0)
    figure.set_y_limits(min_=min(0.0, *(float(curve.min()) for curve in curves.values())), max_=max(1.05 * top, 0.1))
    places = np.linspace(0, 100, N_PLACES).tolist()
    for name, curve in curves.items():
        colour, letter = LEARNERS[name]
        figure.plot(places, curve.tolist(), lc=colour)
        figure.scatter(places[::_MARKED], curve.tolist()[::_MARKED], lc=colour, marker=letter)
    legend = "".join(f"\n{LEARNERS[name][1]} {name}: {curve[-1]:.2f}" for name, curve in curves.items())
    return str(figure.show(legend=False)) + legend


def mean_regret_ratios(results: Sequence[BatchSizeEvaluation], policy: str) -> NDArray[np.float64] | None:
    """Return the regret of a policy by the share of the recurrences that are over, the mean over workloads."""
    found = [result.regret_by_recurrence for result in results if result.policy == policy]
    if not found:
        return None
    places = np.linspace(0, 1, N_PLACES)
    curves = [np.interp(places, np.linspace(0, 1, len(regrets) + 1), [0.0, *regrets]) for regrets in found]
    return np.asarray(np.mean(curves, axis=0), dtype=np.float64)
