"""The report of the plan replay, from which all views are made, and its tables in the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from controller.cli.output import plain_table
from controller.web.charts.marks import Dash
from policies.replay.power_limit.evaluation import LIVE, SavingsRow
from policies.replay.power_limit.example import ExampleRun

MEAN: Final = "mean"
N_RATIOS: Final = 3
"""Columns of a budget: saved, slower, worst."""
N_SHARES: Final = 2
"""Those of the shares: of the optimum, and of what the grid offers."""
_UNBOUNDED: Final = 10_000
BY_SIGNAL: Final = {
    "best-static": "single",
    "static-mix": "mix",
    "chase-best-eta": "chase-best",
    "gridchase": "gridchase",
    "offline": "offline",
}
"""The columns of the table by signal, with their headings."""
LIVE_BY_SIGNAL: Final = {
    "static-mix": "mix",
    "static-mix-live": "mix-live",
    "gridchase-live": "live",
    "gridchase-live-open": "live-open",
    "offline": "offline",
}
"""The columns of that for the rows that run under the controller."""
MAX_NAME: Final = 30
MIN_NAME: Final = 8
"""The widths at which names of signals are folded: usually, and at least, if the numbers need the space."""
COLOURS: Final = {
    "max": "#718096",
    "best-static": "#d69e2e",
    "static-mix": "#c05621",
    "static-mix-live": "#ed8936",
    "zeus": "#b7791f",
    "chase": "#6b46c1",
    "chase-svr": "#9f7aea",
    "chase-perfect": "#b794f4",
    "chase-best-eta": "#d53f8c",
    "gridchase": "#2f855a",
    "gridchase-open": "#68d391",
    "gridchase-forecast": "#2b6cb0",
    "gridchase-perfect": "#4299e1",
    "gridchase-live": "#22543d",
    "gridchase-live-open": "#9ae6b4",
    "offline": "#1a202c",
}
"""The colour of each policy."""
CURVES: Final[dict[str, Dash]] = {"offline": "solid", "static-mix": "dashed", "chase": "dotted"}
"""The policies drawn as a line over all budgets or etas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsReport:
    """The savings of all policies.

    Attributes:
        title: the curve and the length of the runs.
        rows: the savings of each policy, with means if there are several signals.
        n_signals: the number of signals.
        fronts: rows for more budgets and etas, for plots; empty without plots.
        example: an example run, for plots.
    """

    title: str
    rows: Sequence[SavingsRow]
    n_signals: int
    fronts: Sequence[SavingsRow] = ()
    example: ExampleRun | None = None

    @property
    def overall(self) -> list[SavingsRow]:
        """Return the rows of the mean over signals, or of the only signal."""
        return self.overall_of(self.rows)

    def points(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return slowdown [%] and savings [%] of each row, by policy."""
        groups: dict[str, tuple[list[float], list[float]]] = {}
        for row in self.overall:
            slower, saved = groups.setdefault(row.policy, ([], []))
            slower.append(100 * (row.slowdown_ratio - 1))
            saved.append(100 * row.carbon_saved_ratio)
        return groups

    def curve(self, policy: str) -> tuple[list[float], list[float]]:
        """Return slowdown [%] and savings [%] of a policy at each of its budgets or etas."""
        rows = {
            row.max_slowdown if row.eta is None else row.eta: row
            for row in self.overall_of(self.fronts)
            if row.policy == policy
        }
        places = sorted((row.slowdown_ratio, row.carbon_saved_ratio) for row in rows.values())
        return [100 * (slowdown - 1) for slowdown, _ in places], [100 * saved for _, saved in places]

    def overall_of(self, rows: Sequence[SavingsRow]) -> list[SavingsRow]:
        """Return the rows of the mean over signals, or of the only signal."""
        return [row for row in rows if self.n_signals == 1 or row.signal == MEAN]

    @property
    def where(self) -> str:
        """Return the text of what the overall rows are for."""
        return f"mean of {self.n_signals} signals" if self.n_signals > 1 else self.rows[0].signal


def example_title(example: ExampleRun) -> str:
    """Return the title of the plot of an example run."""
    at_most = f"at most {percent(example.max_slowdown - 1, n_digits=1)} % slower"
    return f"a run on {example.signal}, {at_most}"


def label(row: SavingsRow) -> str:
    """Return the name of a policy, with its eta."""
    return row.policy if row.eta is None else f"{row.policy} {row.eta:.12g}"


def tables(report: SavingsReport, width: int) -> Iterator[Table]:
    """Yield the tables: savings overall, and by signal if there are several.

    Each is at most `width` characters wide, unless its numbers need more: they are never cut.
    """
    budgets = list(dict.fromkeys(row.max_slowdown for row in report.rows))
    yield from _side_by_side(partial(_overall, report), budgets, N_RATIOS, width)
    if any(row.captured_ratio is not None for row in report.overall):
        yield from _side_by_side(partial(_captured, report), budgets, N_SHARES, width)
    if report.n_signals > 1:
        for max_slowdown in budgets:
            rows = [row for row in report.rows if row.max_slowdown == max_slowdown]
            yield _never_cut(_by_signal(rows, BY_SIGNAL, max_slowdown, width), width)
            if any(row.policy in LIVE for row in rows):
                yield _never_cut(_by_signal(rows, LIVE_BY_SIGNAL, max_slowdown, width), width)


def _side_by_side(
    table_of: Callable[[Sequence[float]], Table], slowdown_ratios: Sequence[float], n_columns: int, width: int
) -> Iterator[Table]:
    """Yield tables of as many budgets as fit, at least one, each with so many columns for a budget."""
    first = 0
    while first < len(slowdown_ratios):
        table = table_of(slowdown_ratios[first : first + 1])
        for end in range(first + 2, len(slowdown_ratios) + 1):
            wider = table_of(slowdown_ratios[first:end])
            if _width(wider) > width:
                break
            table = wider
        yield _never_cut(table, width)
        first += (len(table.columns) - 1) // n_columns


def _width(table: Table) -> int:
    return Console(width=_UNBOUNDED).measure(table).maximum


def _never_cut(table: Table, width: int) -> Table:
    """Return the table, widened to what its numbers need if that is more than there is."""
    needed = _width(table)
    table.width = needed if needed > width else None
    return table


def _overall(report: SavingsReport, slowdown_ratios: Sequence[float]) -> Table:
    n_runs = report.overall[0].n_starts
    table = plain_table(f"{report.title}\n{report.where}, runs: {n_runs}; saved, slower, worst [%]")
    table.add_column("at most slower", no_wrap=True)
    for max_slowdown in slowdown_ratios:
        for text in (percent(max_slowdown - 1, n_digits=1), "", ""):
            table.add_column(text, justify="right", no_wrap=True)
    cells: dict[str, list[str]] = {}
    for row in report.overall:
        if row.max_slowdown in slowdown_ratios:
            ratios = (row.carbon_saved_ratio, row.slowdown_ratio - 1, row.slowdown_worst_ratio - 1)
            cells.setdefault(label(row), []).extend(percent(ratio) for ratio in ratios)
    for name, texts in cells.items():
        table.add_row(name, *texts)
    return table


def _captured(report: SavingsReport, slowdown_ratios: Sequence[float]) -> Table:
    """Return the shares of the optimum, and of what the grid offers beyond a mix that is blind to it."""
    table = plain_table("best: share of the optimum; grid: (saved - static-mix) / (offline - static-mix) [%]")
    table.add_column("share of", no_wrap=True)
    for max_slowdown in slowdown_ratios:
        for text in (f"best {percent(max_slowdown - 1, n_digits=1)}", "grid"):
            table.add_column(text, justify="right", no_wrap=True)
    cells: dict[str, list[str]] = {}
    for row in report.overall:
        if row.max_slowdown in slowdown_ratios:
            ratios = (row.optimum_share_ratio, row.captured_ratio)
            cells.setdefault(label(row), []).extend(
                "-" if ratio is None else percent(ratio, n_digits=0) for ratio in ratios
            )
    for name, texts in cells.items():
        table.add_row(name, *texts)
    return table


def _by_signal(rows: Sequence[SavingsRow], names: Mapping[str, str], max_slowdown: float, width: int) -> Table:
    columns = [policy for policy in names if any(row.policy == policy for row in rows)]
    table = plain_table(f"at most {percent(max_slowdown - 1, n_digits=1)} % slower: saved [%]")
    # Folded, not cut: two names may differ in their last character.
    table.add_column("signal", max_width=MAX_NAME, overflow="fold")
    for policy in columns:
        table.add_column(names[policy], justify="right", no_wrap=True)
    for signal in dict.fromkeys(row.signal for row in rows):
        saved = {row.policy: percent(row.carbon_saved_ratio) for row in rows if row.signal == signal}
        table.add_row(Text(signal), *(saved[policy] for policy in columns))
    longest = min(MAX_NAME, max(cell_len(row.signal) for row in rows))
    table.columns[0].max_width = max(MIN_NAME, longest - max(0, _width(table) - width))
    return table


def percent(share_ratio: float, *, n_digits: int = 2) -> str:
    """Return the text of a share in percent, without the sign of -0."""
    text = f"{100 * share_ratio:.{n_digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text
