"""The HTML page of a job of the policy service."""

from collections.abc import Iterable
from html import escape
from typing import Any, Final

from bokeh.models import ColumnDataSource, HoverTool, Range1d
from bokeh.models.annotations import Whisker
from bokeh.plotting import figure

from controller.cli.page import new_figure, render_document, render_table
from controller.cli.policy.view import (
    NO_COST,
    JobView,
    cost_is_missing,
    cost_text,
    ends_text,
    estimate_texts,
    next_text,
    run_texts,
)
from policies.service.records import Trial

_BLUE: Final = "#2b6cb0"
_ENDS: Final = {
    "reached": ("circle", "#2f855a"),
    "stopped": ("x", "#c05621"),
    "failed": ("square_x", "#c53030"),
    "lost": ("x", "#a0aec0"),
    "running": ("circle_dot", "#718096"),
    "open": ("circle", "#cbd5e0"),
}
_STYLE: Final = """
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
th { font-weight: 600 } td:last-child, th:last-child { text-align: left; white-space: normal }
tr.pruned td { color: #a0aec0 } tr.next td { background: #ebf8ff }
p.next { background: #ebf8ff; border-left: 4px solid #2b6cb0; padding: .6rem 1rem }
p.note { color: #4a5568; font-size: .85rem }
"""
_TOOLS: Final = "pan,wheel_zoom,box_zoom,reset,save"


def render_page(view: JobView) -> str:
    """Return the page, HTML."""
    name = escape(str(view.job.key))
    return render_document(
        f"{view.job.key}: batch sizes",
        _STYLE,
        [
            f"<h1>{name}</h1>",
            f"<p>{ends_text(view)}; policy {view.posterior.policy}; default {view.job.default_batch_size}.</p>",
            f'<p class="next"><b>Next:</b> {escape(next_text(view))}</p>',
            "<h2>Estimates for each batch size</h2>",
            _beliefs_table(view),
            f'<p class="note">Costs in {view.scale.unit}: {escape(cost_text(view.posterior.eta))}. ~: inferred.</p>',
        ],
        [plot for plot in (_costs(view), _epochs(view), _history(view)) if plot is not None],
        [
            "<h2>Runs</h2>",
            _trials_table(view),
            f'<p class="note">To the target; energy and cost in {view.scale.unit}; times of day in UTC.</p>',
            f'<p class="note">{escape(NO_COST)}.</p>' if cost_is_missing(view) else "",
        ],
    )


def _costs(view: JobView) -> figure | None:
    """Return the cost of a run by batch size: the posterior with its interval, and the costs of past runs."""
    rows = _rows(view, ("cost", "cost_lower", "cost_upper"), size_j=view.scale.size_j)
    if not rows["x"]:
        return None
    plot = _figure(view, "Cost of a run to the target, and its 90 % interval", f"cost [{view.scale.unit}]")
    _draw_posterior(plot, rows)
    _draw_runs(plot, view)
    return plot


def _epochs(view: JobView) -> figure | None:
    rows = _rows(view, ("epochs", "epochs_lower", "epochs_upper"), size_j=1.0)
    if not rows["x"]:
        return None
    plot = _figure(view, "Epochs to the target, and their 90 % interval", "epochs")
    _draw_posterior(plot, rows)
    return plot


def _history(view: JobView) -> figure | None:
    """Return the batch sizes of the runs over time; the colour is that of their end."""
    if not view.trials:
        return None
    plot = new_figure(
        "Batch sizes of the runs, oldest first",
        "recurrence",
        "batch size",
        y_axis_type="log",
        sizing_mode="scale_width",
        tools=_TOOLS,
    )
    plot.toolbar.logo = None
    plot.yaxis.ticker = list(view.job.batch_sizes)
    plot.yaxis.major_label_overrides = {size: str(size) for size in view.job.batch_sizes}
    _draw_ends(plot, view, ((trial, trial.recurrence, trial.batch_size) for trial in view.trials))
    if plot.legend:
        plot.legend.orientation = "horizontal"
        plot.add_layout(plot.legend[0], "above")
    return plot


def _figure(view: JobView, title: str, label: str) -> figure:
    sizes = view.job.batch_sizes
    plot = new_figure(
        title,
        "batch size",
        label,
        x_axis_type="log",
        y_axis_type="log",
        x_range=Range1d(start=sizes[0] / 1.2, end=sizes[-1] * 1.2),
        sizing_mode="scale_width",
        tools=_TOOLS,
    )
    plot.toolbar.logo = None
    plot.xaxis.ticker = list(sizes)
    plot.xaxis.major_label_overrides = {size: str(size) for size in sizes}
    return plot


def _rows(view: JobView, names: tuple[str, str, str], *, size_j: float) -> dict[str, list[Any]]:
    """Return the posterior as columns: the median `y` and its interval, without batch sizes that cannot run."""
    rows: dict[str, list[Any]] = {"x": [], "y": [], "lower": [], "upper": [], "runs": []}
    for belief in view.posterior.beliefs:
        values = [getattr(belief, name) for name in names]
        if belief.is_pruned or any(value is None for value in values):
            continue
        rows["x"].append(belief.batch_size)
        for key, value in zip(("y", "lower", "upper"), values, strict=True):
            rows[key].append(value / size_j)
        rows["runs"].append(f"{belief.n_reached} reached, {belief.n_stopped} stopped")
    return rows


def _draw_posterior(plot: figure, rows: dict[str, list[Any]]) -> None:
    source = ColumnDataSource(rows)
    plot.varea(x="x", y1="lower", y2="upper", source=source, color=_BLUE, alpha=0.12)
    plot.add_layout(Whisker(base="x", lower="lower", upper="upper", source=source, line_color=_BLUE))
    plot.line(x="x", y="y", source=source, color=_BLUE, line_width=2)
    dots = plot.scatter(x="x", y="y", source=source, color=_BLUE, size=7, legend_label="expected")
    tips = [("batch size", "@x"), ("expected", "@y{0.[00]}"), ("90 %", "@lower{0.[00]} to @upper{0.[00]}")]
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[*tips, ("runs", "@runs")]))
    plot.legend.location = "top_center"
    plot.legend.orientation = "horizontal"


def _draw_runs(plot: figure, view: JobView) -> None:
    costs = ((trial, trial.batch_size, view.costs[trial.run]) for trial in view.trials if trial.run in view.costs)
    _draw_ends(plot, view, ((trial, size, cost / view.scale.size_j) for trial, size, cost in costs if cost > 0))


def _draw_ends(plot: figure, view: JobView, points: Iterable[tuple[Trial, float, float]]) -> None:
    """Draw runs as points; colour and marker are those of their end."""
    drawn = list(points)
    for state, (marker, colour) in _ENDS.items():
        ends = [point for point in drawn if point[0].state == state]
        if not ends:
            continue
        texts = [run_texts(view, trial) for trial, _, _ in ends]
        source = ColumnDataSource(
            {
                "x": [x for _, x, _ in ends],
                "y": [y for _, _, y in ends],
                "run": [trial.run for trial, _, _ in ends],
                "size": [each.batch_size for each in texts],
                "epochs": [each.epochs for each in texts],
                "cost": [each.cost for each in texts],
                "why": [trial.detail for trial, _, _ in ends],
            }
        )
        dots = plot.scatter(
            x="x",
            y="y",
            source=source,
            marker=marker,
            size=10,
            color=colour,
            line_width=2,
            alpha=0.8,
            legend_label=state,
        )
        tips = [("run", "@run"), ("batch size", "@size"), ("epochs", "@epochs"), ("cost", "@cost"), ("why", "@why")]
        plot.add_tools(HoverTool(renderers=[dots], tooltips=tips))


def _beliefs_table(view: JobView) -> str:
    rows, classes = [], []
    for belief in view.posterior.beliefs:
        texts = estimate_texts(view, belief)
        classes.append("pruned" if belief.is_pruned else "next" if "next" in texts.marks else "")
        rows.append((str(belief.batch_size), str(belief.n_reached), str(belief.n_stopped), *texts))
    headings = ("batch size", "reached", "stopped", "epochs (90 %)", "an epoch", "a run (90 %)", "")
    return render_table(headings, rows, classes)


def _trials_table(view: JobView) -> str:
    rows = ((*run_texts(view, trial), trial.detail) for trial in view.trials)
    return render_table(("#", "asked", "batch size", "end", "epochs", "energy", "time", "cost", "why"), rows)
