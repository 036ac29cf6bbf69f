"""The HTML report of the batch size replay."""

from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np
from bokeh.plotting import figure

from controller.cli.page import FIRST_TWO_LEFT, new_figure, render_document, render_table
from policies.replay.batch_size.evaluation import BatchSizeEvaluation, Conditions, by_workload

COLOURS: Final = {
    "gridchase": "#2f855a",
    "gridchase-untimed": "#2b6cb0",
    "gridchase-profiled": "#6b46c1",
    "zeus": "#c05621",
    "oracle": "#a0aec0",
}
"""The grid search and the default are far above these; they are only in the table."""
_HEAD: Final = ("workload", "policy", "regret", "±", "energy", "time", "energy, last 5", "time, last 5")


def render_page(results: Sequence[BatchSizeEvaluation], conditions: Conditions) -> str:
    """Return the page, HTML."""
    title = "Batch sizes: policies compared"
    return render_document(
        title,
        FIRST_TWO_LEFT,
        [
            f"<h1>{title}</h1>",
            f"<p>{escape(_conditions_text(results, conditions))}</p>",
            render_table(_HEAD, map(_cells, results)),
        ],
        [_plot(workload, rows) for workload, rows in by_workload(results).items()],
        [],
    )


def _conditions_text(results: Sequence[BatchSizeEvaluation], conditions: Conditions) -> str:
    parts = [f"η = {conditions.eta:g}; {results[0].n_seeds} seeds"]
    if conditions.noise_ratio:
        parts.append(f"run-to-run noise of {conditions.noise_ratio:g} (log)")
    if conditions.drift:
        parts.append(f"a drift half way ({conditions.drift})")
    if conditions.concurrency > 1:
        parts.append(f"{conditions.concurrency} recurrences at a time")
    return (
        "; ".join(parts)
        + ". Regret is the cost beyond an oracle's, in runs of the oracle; energy and time are relative to the default "
        "batch size at the highest power limit."
    )


def _cells(result: BatchSizeEvaluation) -> tuple[str, ...]:
    ratios = (result.energy_ratio, result.duration_ratio, result.last_energy_ratio, result.last_duration_ratio)
    changes = ("-" if ratio is None else f"{100 * (ratio - 1):+.1f} %" for ratio in ratios)
    return (result.workload, result.policy, f"{result.regret:.2f}", f"{result.regret_sd:.2f}", *changes)


def _plot(workload: str, rows: Sequence[BatchSizeEvaluation]) -> figure:
    plot = new_figure(workload, "recurrence", "regret")
    for row in rows:
        if row.policy in COLOURS:
            places = np.arange(1.0, row.n_recurrences + 1)
            plot.line(
                places, row.regret_by_recurrence, line_width=2, color=COLOURS[row.policy], legend_label=row.policy
            )
    if plot.legend:
        plot.legend.location, plot.legend.background_fill_alpha = "top_left", 0.6
    return plot
