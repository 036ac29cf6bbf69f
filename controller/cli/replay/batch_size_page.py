"""The HTML report of the batch size replay."""

from collections.abc import Sequence
from typing import Final

from controller.runtime.markup import element, escaped
from controller.web.charts.document import render_document, render_table
from controller.web.charts.figure import render_chart
from controller.web.charts.marks import Chart, Colour, Line, NumberAxis, Panel
from policies.replay.batch_size.evaluation import BatchSizeEvaluation, Conditions, by_workload

COLOURS: Final[dict[str, Colour]] = {
    "gridchase": "saved",
    "gridchase-untimed": "power",
    "gridchase-profiled": "pinned",
    "zeus": "warning",
    "oracle": "prior",
}
"""The grid search and the default are far above these; they are only in the table."""
_HEAD: Final = ("workload", "policy", "regret", "±", "energy", "time", "energy, last 5", "time, last 5")


def render_page(results: Sequence[BatchSizeEvaluation], conditions: Conditions) -> str:
    """Return the page, HTML."""
    title = "Batch sizes: policies compared"
    return render_document(
        title,
        [
            element("h1", escaped(title)),
            element("p", escaped(_conditions_text(results, conditions))),
            render_table(_HEAD, map(_cells, results), n_names=2),
            *(render_chart(_chart(workload, rows)) for workload, rows in by_workload(results).items()),
        ],
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


def _chart(workload: str, rows: Sequence[BatchSizeEvaluation]) -> Chart:
    lines = [
        Line(
            name=row.policy,
            xs=range(1, row.n_recurrences + 1),
            ys=list(row.regret_by_recurrence),
            colour=COLOURS[row.policy],
        )
        for row in rows
        if row.policy in COLOURS
    ]
    return Chart(
        title=workload,
        words="What the policies have wasted up to each recurrence.",
        x_axis=NumberAxis(label="recurrence"),
        panels=[Panel(axis=NumberAxis(label="regret, in runs of the oracle", has_zero=True), marks=lines)],
    )
