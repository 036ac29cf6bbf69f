"""What policies of power limits save, as a page for the browser: one file, which asks no server."""

from collections.abc import Sequence
from html import escape
from typing import Any, Final

import numpy as np
from bokeh.embed import components
from bokeh.layouts import column
from bokeh.models import LinearAxis, Range1d
from bokeh.plotting import figure
from bokeh.resources import INLINE

from controller.cli.replay.plan_view import COLOURS, CURVES, SavingsReport, label, percent
from policies.replay.power_limit.evaluation import SavingsRow
from policies.replay.power_limit.example import ExampleRun
from policies.replay.power_limit.scenario import Values

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a202c; background: #fff; margin: 2rem auto; max-width: 940px;
       padding: 0 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid #e2e8f0; white-space: nowrap }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left }
"""
_EXPLANATION: Final = (
    "Saved is carbon (or money), against the highest limit on the same runs; the budget is how much slower a run may "
    "be. offline is the optimum in hindsight: no plan of these limits "
    "can save more."
)
_HEAD: Final = (
    "signal", "policy", "budget", "saved", "energy saved", "slower", "at worst", "runs",
)  # fmt: skip
MARGIN_W: Final = 5.0
_HOUR_S: Final = 3_600.0


def render(report: SavingsReport) -> bytes:
    """Return the page, HTML."""
    plots = [_front(report), *([] if report.example is None else _course(report.example))]
    script, drawn = components(column(*plots, sizing_mode="scale_width"))
    page = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Power limits: policies compared</title>',
        INLINE.render(),
        f"<style>{_STYLE}</style></head><body><h1>Power limits: policies compared</h1>",
        f"<p>{escape(report.title)}; {escape(report.where)}. {_EXPLANATION}</p>",
        drawn,
        f"<table><tr>{''.join(f'<th>{name}</th>' for name in _HEAD)}</tr>",
        *(_line(row) for row in report.rows),
        "</table>",
        script,
        "</body></html>",
    ]
    return "\n".join(page).encode()


def _line(row: SavingsRow) -> str:
    ratios = (
        row.max_slowdown - 1,
        row.carbon_saved_ratio,
        row.energy_saved_ratio,
        row.slowdown_ratio - 1,
        row.slowdown_worst_ratio - 1,
    )
    cells = (escape(row.signal), escape(label(row)), *(f"{percent(ratio)} %" for ratio in ratios), f"{row.n_starts:,}")
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _front(report: SavingsReport) -> figure:
    """Return what is saved over how much slower it is, with the front of the optimum."""
    plot = figure(
        title=f"saved over slower, {report.where}",
        x_axis_label="slower [%]",
        y_axis_label="saved [%]",
        width=920,
        height=430,
    )
    for policy, dash in CURVES.items():
        slower, saved = report.curve(policy)
        plot.line(slower, saved, line_width=2, line_dash=dash, color=COLOURS[policy], legend_label=policy)
    for policy, rows in report.by_policy().items():
        slower, saved = _places(rows)
        plot.scatter(slower, saved, size=9, color=COLOURS[policy], legend_label=policy)
    plot.legend.location, plot.legend.background_fill_alpha, plot.legend.click_policy = "bottom_right", 0.6, "hide"
    return plot


def _places(rows: Sequence[SavingsRow]) -> tuple[list[float], list[float]]:
    return [100 * (row.slowdown_ratio - 1) for row in rows], [100 * row.carbon_saved_ratio for row in rows]


def _course(example: ExampleRun) -> list[figure]:
    """Return how a run goes: limits with the signal behind them, and rates below."""
    at_most = f"at most {percent(example.max_slowdown - 1, n_digits=1)} % slower"
    limits = figure(
        title=f"a run on {example.signal}, {at_most}: mean limits by period, and the signal (grey)",
        y_axis_label="limit [W]",
        width=920,
        height=330,
    )
    rates = figure(
        title="mean rates", x_axis_label="hours", y_axis_label="of the highest limit's [%]", width=920, height=250,
        x_range=limits.x_range,
    )  # fmt: skip
    low, high = float(example.values.min()), float(example.values.max())
    held_w = np.concatenate([course.limits_w for course in example.timelines.values()])
    limits.y_range = Range1d(start=float(held_w.min()) - MARGIN_W, end=float(held_w.max()) + MARGIN_W)
    limits.extra_y_ranges = {"signal": Range1d(start=low, end=max(high, low + 1e-9))}
    limits.add_layout(LinearAxis(y_range_name="signal", axis_label=example.unit), "right")
    _stairs(limits, example.edges_s, example.values, color="#a0aec0", y_range_name="signal")
    for policy, course in example.timelines.items():
        style: dict[str, Any] = {"color": COLOURS[policy], "legend_label": policy, "alpha": 0.8}
        _stairs(limits, course.edges_s, course.limits_w, **style)
        _stairs(rates, course.edges_s, 100 * course.rate_ratios, **style)
    for plot in (limits, rates):
        plot.legend.click_policy, plot.legend.background_fill_alpha = "hide", 0.6
    return [limits, rates]


def _stairs(plot: figure, edges_s: Values, values: Values, **style: Any) -> None:  # noqa: ANN401 — those of Bokeh
    """Draw what holds from each edge to the next."""
    plot.step(edges_s / _HOUR_S, np.append(values, values[-1]), mode="after", line_width=1.5, **style)
