"""The plan replay as a PNG picture."""

from io import BytesIO
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from controller.cli.replay.plan_view import COLOURS, CURVES, SavingsReport, example_title
from policies.replay.power_limit.example import ExampleRun
from policies.vocabulary.units import HOUR_S

_STYLES: Final = {"solid": "-", "dashed": "--", "dotted": ":"}


def render(report: SavingsReport) -> bytes:
    """Return the picture, PNG."""
    figure = Figure(figsize=(10, 12), layout="constrained")
    front, limits, rates = figure.subplots(3, 1, height_ratios=(3, 2, 1.5))
    figure.suptitle(f"{report.title}; {report.where}")
    _draw_front(front, report)
    if report.example is not None:
        _draw_example(limits, rates, report.example)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()


def _draw_front(axes: Any, report: SavingsReport) -> None:  # noqa: ANN401 — matplotlib is optional
    for policy, dash in CURVES.items():
        slower, saved = report.curve(policy)
        axes.plot(slower, saved, _STYLES[dash], color=COLOURS[policy], label=f"{policy}, all")
    for policy, (slower, saved) in report.points().items():
        axes.plot(slower, saved, "o", color=COLOURS[policy], label=policy)
    axes.set(xlabel="slower [%]", ylabel="saved [%]")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)


def _draw_example(limits: Any, rates: Any, example: ExampleRun) -> None:  # noqa: ANN401 — matplotlib is optional
    behind = limits.twinx()
    behind.stairs(example.values, example.edges_s / HOUR_S, color="#a0aec0", linewidth=2, baseline=None)
    behind.set_ylabel(example.unit)
    for policy, timeline in example.timelines.items():
        style = {"color": COLOURS[policy], "alpha": 0.8, "baseline": None}
        limits.stairs(timeline.limits_w, timeline.edges_s / HOUR_S, label=policy, **style)
        rates.stairs(100 * timeline.rate_ratios, timeline.edges_s / HOUR_S, **style)
    limits.set(ylabel="limit [W]", title=f"{example_title(example)}: mean limits by period, and the signal (grey)")
    limits.set_zorder(behind.get_zorder() + 1)
    limits.patch.set_visible(False)
    rates.set(xlabel="hours", ylabel="rate relative to\nthe highest limit [%]")
    rates.set_ylim(top=max(100.5, float(np.max(rates.get_ylim()))))
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.3), "ncols": len(example.timelines), "fontsize": "small"}
    rates.legend(*limits.get_legend_handles_labels(), **below)  # beside the curves, which fill the panels
