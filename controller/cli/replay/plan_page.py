"""The HTML report of the plan replay."""

from collections.abc import Callable, Iterator
from typing import Final

from controller.cli.replay.plan_view import CURVES, SavingsReport, example_title, label, percent
from controller.runtime.markup import element, escaped
from controller.web.charts.document import render_document, render_table
from controller.web.charts.figure import render_chart
from controller.web.charts.marks import Chart, Colour, Dash, Line, NumberAxis, Panel, Points, Shape
from policies.replay.power_limit.evaluation import SavingsRow
from policies.replay.power_limit.example import ExampleRun, RunTimeline
from policies.vocabulary.units import HOUR_S, Values

_EXPLANATION: Final = (
    "Saved is carbon (or money), against the highest limit on the same runs; the budget is how much slower a run may "
    "be. offline is the optimum with perfect foresight: no schedule of these limits saves more."
)
_HEAD: Final = (
    "signal", "policy", "budget", "saved", "energy saved", "slower", "at worst", "runs",
)  # fmt: skip
_MARKS: Final[dict[str, tuple[Colour, Shape]]] = {
    "max": ("second", "dot"),
    "best-static": ("prior", "dot"),
    "static-mix": ("prior", "ring"),
    "static-mix-live": ("prior", "square"),
    "zeus": ("warning", "cross"),
    "chase": ("pinned", "dot"),
    "chase-svr": ("pinned", "ring"),
    "chase-perfect": ("pinned", "square"),
    "chase-best-eta": ("pinned", "cross"),
    "gridchase": ("saved", "dot"),
    "gridchase-open": ("saved", "ring"),
    "gridchase-forecast": ("saved", "square"),
    "gridchase-perfect": ("saved", "cross"),
    "gridchase-live": ("power", "dot"),
    "gridchase-live-open": ("power", "ring"),
    "offline": ("text", "dot"),
}
"""Colour and shape of each policy: a colour for each family."""
_DASHES: Final[dict[str, Dash]] = {"static-mix": "dashed", "offline": "dotted"}
"""Those of the lines of an example run; gridchase's is solid."""


def render_page(report: SavingsReport) -> str:
    """Return the page, HTML."""
    title = "Power limits: policies compared"
    words = f"{report.title}; {report.where}. {_EXPLANATION}"
    charts = [_front(report), *([] if report.example is None else [_example(report.example)])]
    return render_document(
        title,
        [
            element("h1", escaped(title)),
            element("p", escaped(words)),
            *map(render_chart, charts),
            render_table(_HEAD, map(_cells, report.rows), n_names=2),
        ],
    )


def _cells(row: SavingsRow) -> tuple[str, ...]:
    ratios = (
        row.max_slowdown - 1,
        row.carbon_saved_ratio,
        row.energy_saved_ratio,
        row.slowdown_ratio - 1,
        row.slowdown_worst_ratio - 1,
    )
    return (row.signal, label(row), *(f"{percent(ratio)} %" for ratio in ratios), f"{row.n_starts:,}")


def _front(report: SavingsReport) -> Chart:
    """Return savings over slowdown, with the Pareto front of the optimum."""
    marks: list[Line | Points] = []
    for policy, dash in CURVES.items():
        slower, saved = report.curve(policy)
        marks.append(Line(name=f"{policy}, all", xs=slower, ys=saved, dash=dash, colour=_MARKS[policy][0]))
    for policy, (slower, saved) in report.points().items():
        colour, shape = _MARKS[policy]
        texts = [f"{policy}: {y:.1f} % saved, {x:.1f} % slower" for x, y in zip(slower, saved, strict=True)]
        marks.append(Points(name=policy, xs=slower, ys=saved, texts=texts, colour=colour, shape=shape))
    return Chart(
        title=f"Saved over slower, {report.where}",
        words="Further up is better, further left is better; lines go through all budgets (of chase: all η).",
        x_axis=NumberAxis(label="% slower"),
        panels=[Panel(axis=NumberAxis(label="% saved"), marks=marks, height_em=20.0)],
        has_table=False,
    )


def _example(example: ExampleRun) -> Chart:
    """Return the signal, and below it the limits and the rates of a run under several policies."""
    signal = _stairs("signal", example.edges_s, example.values, "grid")
    limits = list(_timelines(example, lambda timeline: timeline.limits_w))
    rates = list(_timelines(example, lambda timeline: 100 * timeline.rate_ratios))
    return Chart(
        title=f"An example: {example_title(example)}",
        words="The signal, the mean power limit in each period, and the mean rate beside that at the highest limit.",
        x_axis=NumberAxis(label="hours since the start"),
        panels=[
            Panel(axis=NumberAxis(label=example.unit), marks=[signal], height_em=7.0),
            Panel(axis=NumberAxis(label="W, power limit"), marks=limits, height_em=13.0),
            Panel(axis=NumberAxis(label="% of the rate at the highest limit"), marks=rates, height_em=10.0),
        ],
    )


def _timelines(example: ExampleRun, values_of: Callable[[RunTimeline], Values]) -> Iterator[Line]:
    for policy, timeline in example.timelines.items():
        dash = _DASHES.get(policy, "solid")
        yield _stairs(policy, timeline.edges_s, values_of(timeline), _MARKS[policy][0], dash)


def _stairs(name: str, edges_s: Values, values: Values, colour: Colour, dash: Dash = "solid") -> Line:
    hours = (edges_s / HOUR_S).tolist()
    return Line(name=name, xs=hours, ys=values.tolist(), colour=colour, dash=dash, is_stepped=True)
