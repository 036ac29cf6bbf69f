"""How good the policies of batch sizes are, as a page for the browser: one file, which asks no server."""

from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np
from bokeh.embed import components
from bokeh.layouts import column
from bokeh.plotting import figure
from bokeh.resources import INLINE

from controller.cli.replay.batch_size_view import grouped
from policies.replay.batch_size.evaluation import BatchSizeEvaluation, Conditions

COLOURS: Final = {
    "gridchase": "#2f855a",
    "gridchase-untimed": "#2b6cb0",
    "gridchase-profiled": "#6b46c1",
    "zeus": "#c05621",
    "oracle": "#a0aec0",
}
"""A grid search, and staying with the default, are far above the others: they are in the table."""
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a202c; background: #fff; margin: 2rem auto; max-width: 940px;
       padding: 0 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid #e2e8f0; white-space: nowrap }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left }
"""
_HEAD: Final = ("workload", "policy", "regret", "±", "energy", "time", "energy, last 5", "time, last 5")


def render_page(results: Sequence[BatchSizeEvaluation], conditions: Conditions) -> str:
    """Return the page, HTML."""
    script, plots = components(
        column(*(_plot(workload, rows) for workload, rows in grouped(results).items()), sizing_mode="scale_width")
    )
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Batch sizes: policies compared</title>',
            INLINE.render(),
            f"<style>{_STYLE}</style></head><body><h1>Batch sizes: policies compared</h1>",
            f"<p>{escape(_conditions_text(results, conditions))}</p>",
            f"<table><tr>{''.join(f'<th>{name}</th>' for name in _HEAD)}</tr>",
            *(_row(result) for result in results),
            "</table>",
            plots,
            script,
            "</body></html>",
        ]
    )


def _conditions_text(results: Sequence[BatchSizeEvaluation], conditions: Conditions) -> str:
    """Return how the jobs recurred, in sentences."""
    parts = [f"η = {conditions.eta:g}; {results[0].n_seeds} seeds"]
    if conditions.noise_ratio:
        parts.append(f"run-to-run noise of {conditions.noise_ratio:g} (log)")
    if conditions.drift:
        parts.append(f"a drift half way ({conditions.drift})")
    if conditions.concurrency > 1:
        parts.append(f"{conditions.concurrency} recurrences at a time")
    return (
        "; ".join(parts)
        + ". Regret is what is paid beyond an oracle, in runs of the oracle; energy and time are compared "
        "with the default batch size at the highest power limit."
    )


def _row(result: BatchSizeEvaluation) -> str:
    ratios = (result.energy_ratio, result.duration_ratio, result.last_energy_ratio, result.last_duration_ratio)
    cells = (
        escape(result.workload),
        result.policy,
        f"{result.regret:.2f}",
        f"{result.regret_sd:.2f}",
        *("-" if ratio is None else f"{100 * (ratio - 1):+.1f} %" for ratio in ratios),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _plot(workload: str, rows: Sequence[BatchSizeEvaluation]) -> figure:
    """Return the regret of each policy by recurrence."""
    plot = figure(title=workload, x_axis_label="recurrence", y_axis_label="regret", width=920, height=330)
    for row in rows:
        if row.policy in COLOURS:
            places = np.arange(1.0, row.n_recurrences + 1)
            plot.line(
                places, row.regret_by_recurrence, line_width=2, color=COLOURS[row.policy], legend_label=row.policy
            )
    if plot.legend:
        plot.legend.location, plot.legend.background_fill_alpha = "top_left", 0.6
    return plot
