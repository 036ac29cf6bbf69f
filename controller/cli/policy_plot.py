"""The cost of a job's runs by batch size as a plot of the terminal, both on logarithmic axes."""

import math
from typing import Final

import plotille

from controller.cli.policy_view import JobView
from policies.batch_size.study import Belief

HEIGHT: Final = 14
TICK_COLUMNS: Final = 10
"""A tick stands every ten characters: the axis is scaled so that they are powers of two, or parts of one."""
_STEPS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Octaves between two ticks."""
_MAX_TICKS: Final = 7
_MARGIN: Final = 0.06


def draw_costs(view: JobView, *, in_colour: bool) -> str:
    """Return the plot; nothing where no cost is known, or there is but one batch size."""
    believed = [belief for belief in view.posterior.beliefs if belief.cost is not None and not belief.is_pruned]
    low, octaves = _span(view.job.batch_sizes)
    if not believed or not octaves:
        return ""
    step = next((step for step in _STEPS if octaves / step <= _MAX_TICKS), math.ceil(octaves / _MAX_TICKS))
    n_ticks = math.ceil(octaves / step)
    figure = plotille.Figure()
    # One more column, in which the largest batch size stands where it is at a tick: the canvas ends before its limit.
    n_columns = TICK_COLUMNS * n_ticks + 1
    figure.width, figure.height = n_columns, HEIGHT
    figure.with_colors, figure.color_mode, figure.origin = in_colour, "names", False
    figure.x_label, figure.y_label = "batch size", ""
    figure.x_ticks_fkt = lambda tick, _: f"{2**tick:.0f}"
    figure.y_ticks_fkt = lambda tick, _: _tick_text(10**tick)
    figure.set_x_limits(min_=low, max_=low + n_columns * step / TICK_COLUMNS)
    bottom, top = _bounds(view, believed)
    figure.set_y_limits(min_=bottom, max_=top)
    _draw_beliefs(figure, view, believed, (bottom, top))
    _draw_runs(figure, view, (bottom, top))
    lines = str(figure.show(legend=False)).splitlines()
    return "\n".join(lines[1:])  # the first one is for the name of the axis, which the caller tells above


def _draw_beliefs(
    figure: "plotille.Figure", view: JobView, believed: list[Belief], bounds: tuple[float, float]
) -> None:
    """Draw the expected cost as a line, and the ends of its interval as dots."""
    places = [math.log2(belief.batch_size) for belief in believed]
    heights = [_log10_ratio(view, belief.cost or 0.0) for belief in believed]
    figure.plot(places, heights, lc="cyan")
    for edges in ([belief.cost_lower for belief in believed], [belief.cost_upper for belief in believed]):
        shown = [(x, _log10_ratio(view, edge)) for x, edge in zip(places, edges, strict=True) if edge]
        inside = [(x, y) for x, y in shown if bounds[0] <= y <= bounds[1]]
        if inside:
            figure.scatter([x for x, _ in inside], [y for _, y in inside], lc="blue")


def _draw_runs(figure: "plotille.Figure", view: JobView, bounds: tuple[float, float]) -> None:
    """Draw the runs that have ended."""
    for state, marker, colour in (("stopped", "x", "yellow"), ("reached", "o", "green")):
        ends = [
            (math.log2(trial.batch_size), _log10_ratio(view, view.costs[trial.run]))
            for trial in view.trials
            if trial.state == state and view.costs.get(trial.run)
        ]
        inside = [(x, y) for x, y in ends if bounds[0] <= y <= bounds[1]]
        if inside:
            figure.scatter([x for x, _ in inside], [y for _, y in inside], lc=colour, marker=marker)


def _tick_text(cost: float) -> str:
    """Return a cost at the axis, with three digits and never with an exponent that people must work out."""
    return f"{cost:,.0f}" if 1e3 <= cost < 1e7 else f"{cost:.3g}"  # noqa: PLR2004 — where three digits end


def _span(batch_sizes: tuple[int, ...]) -> tuple[float, float]:
    """Return where the axis begins, and how far it goes [octaves]."""
    return math.log2(batch_sizes[0]), math.log2(batch_sizes[-1] / batch_sizes[0])


def _bounds(view: JobView, believed: list[Belief]) -> tuple[float, float]:
    """Return the least and the largest height: all medians and runs, and what of the intervals is not far from them."""
    medians = [_log10_ratio(view, belief.cost or 0.0) for belief in believed]
    runs = [_log10_ratio(view, cost) for cost in view.costs.values() if cost > 0]
    bottom, top = min([*medians, *runs]), max([*medians, *runs])
    reach = max(top - bottom, 0.3)
    edges = [_log10_ratio(view, edge) for b in believed for edge in (b.cost_lower, b.cost_upper) if edge]
    near = [edge for edge in edges if bottom - reach / 2 <= edge <= top + reach / 2]
    bottom, top = min([bottom, *near]), max([top, *near])
    margin = _MARGIN * max(top - bottom, 0.1)
    return bottom - margin, top + margin


def _log10_ratio(view: JobView, cost: float) -> float:
    """Return where a cost stands: the logarithm of it, in the unit of the view."""
    return math.log10(max(cost, 1e-12) / view.scale.size_j)
