"""How good the profiler is, as tables that fit a terminal."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from policies.replay.profiling.evaluation import JOB_LENGTHS, ProfilingRow, summary_rows

MAX_TABLES: Final = 12
"""Of more curves than these only the summaries are shown, unless some are chosen."""
N_NAME: Final = 19
COLUMNS: Final = ("to plan", *(f"{length:,}" for length in JOB_LENGTHS), "error", "good", "t err", "P err")
EXPLAINED: Final = (
    "to plan: iterations before the first plan (median); 1,000 …: what a job of that length costs beyond the "
    "best limit, in iterations of that; error: of the limit that is kept, against the best one; good: within 1 %; "
    "t err, P err: of the curve, time of an iteration and power, at the limits that may be chosen"
)


def tables(rows: Sequence[ProfilingRow]) -> Iterator[Table]:
    """Yield a table for each curve where there are few, then one over the power-bound ones, and one over all."""
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
    """Return a table of means, with iterations to the plan from the second of each pair."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
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
    """Return how the worst curve compares with Zeus's sweep."""
    if row.selection_against_zeus_ratio is None:
        return ""
    ratio = row.selection_against_zeus_ratio
    return f"gridchase against Zeus's sweep, on its worst curve: the limit that is kept costs {100 * ratio:+.2f} %"
