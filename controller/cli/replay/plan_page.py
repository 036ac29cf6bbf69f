"""The HTML report of the plan replay."""

from html import escape
from typing import Any, Final

import numpy as np
from bokeh.models import LinearAxis, Range1d
from bokeh.plotting import figure

from controller.cli.page import FIRST_TWO_LEFT, new_figure, render_document, render_table
from controller.cli.replay.plan_view import COLOURS, CURVES, SavingsReport, example_title, label, percent
from policies.replay.power_limit.evaluation import SavingsRow
from policies.replay.power_limit.example import ExampleRun
from policies.vocabulary.units import HOUR_S, Values

_EXPLANATION: Final = (
    "Saved is carbon (or money), against the highest limit on the same runs; the budget is how much slower a run may "
    "be. offline is the optimum with perfect foresight: no schedule of these limits saves more."
)
_HEAD: Final = (
    "signal", "policy", "budget", "saved", "energy saved", "slower", "at worst", "runs",
)  # fmt: skip
MARGIN_W: Final = 5.0


def render(report: SavingsReport) -> bytes:
    """Return the page, HTML."""
    title = "Power limits: policies compared"
    return render_document(
        title,
        FIRST_TWO_LEFT,
        [f"<h1>{title}</h1>", f"<p>{escape(report.title)}; {escape(report.where)}. {_EXPLANATION}</p>"],
        [_front(report), *([] if report.example is None else _example(report.example))],
        [render_table(_HEAD, map(_cells, report.rows))],
    ).encode()


def _cells(row: SavingsRow) -> tuple[str, ...]:
    ratios = (
        row.max_slowdown - 1,
        row.carbon_saved_ratio,
        row.energy_saved_ratio,
        row.slowdown_ratio - 1,
        row.slowdown_worst_ratio - 1,
    )
    return (row.signal, label(row), *(f"{percent(ratio)} %" for ratio in ratios), f"{row.n_starts:,}")


def _front(report: SavingsReport) -> figure:
    """Return savings over slowdown, with the Pareto front of the optimum."""
    plot = new_figure(f"saved over slower, {report.where}", "slower [%]", "saved [%]", height=430)
    for policy, dash in CURVES.items():
        slower, saved = report.curve(policy)
        plot.line(slower, saved, line_width=2, line_dash=dash, color=COLOURS[policy], legend_label=policy)
    for policy, (slower, saved) in report.points().items():
        plot.scatter(slower, saved, size=9, color=COLOURS[policy], legend_label=policy)
    plot.legend.location, plot.legend.background_fill_alpha, plot.legend.click_policy = "bottom_right", 0.6, "hide"
    return plot


def _example(example: ExampleRun) -> list[figure]:
    limits = new_figure(example_title(example), "", "limit [W]")
    rates = new_figure("mean rates", "hours", "relative to the highest limit [%]", height=250, x_range=limits.x_range)
    low, high = float(example.values.min()), float(example.values.max())
    held_w = np.concatenate([timeline.limits_w for timeline in example.timelines.values()])
    limits.y_range = Range1d(start=float(held_w.min()) - MARGIN_W, end=float(held_w.max()) + MARGIN_W)
    limits.extra_y_ranges = {"signal": Range1d(start=low, end=max(high, low + 1e-9))}
    limits.add_layout(LinearAxis(y_range_name="signal", axis_label=example.unit), "right")
    _stairs(limits, example.edges_s, example.values, color="#a0aec0", y_range_name="signal")
    for policy, timeline in example.timelines.items():
        style: dict[str, Any] = {"color": COLOURS[policy], "legend_label": policy, "alpha": 0.8}
        _stairs(limits, timeline.edges_s, timeline.limits_w, **style)
        _stairs(rates, timeline.edges_s, 100 * timeline.rate_ratios, **style)
    for plot in (limits, rates):
        plot.legend.click_policy, plot.legend.background_fill_alpha = "hide", 0.6
    return [limits, rates]


def _stairs(plot: figure, edges_s: Values, values: Values, **style: Any) -> None:  # noqa: ANN401 — those of Bokeh
    plot.step(edges_s / HOUR_S, np.append(values, values[-1]), mode="after", line_width=1.5, **style)
