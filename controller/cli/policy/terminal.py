"""The estimates for a job's batch sizes and its last runs, as tables and a plot in the terminal."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table

from controller.cli.output import shown, terminal_plot
from controller.cli.policy.view import (
    NO_COST,
    JobView,
    cost_is_missing,
    cost_text,
    ends_text,
    estimate_texts,
    next_text,
    run_texts,
    time_text,
    view_of,
)
from policies.batch_size.study import Belief
from policies.service.records import Job, JobSummary, Posterior, Trial

if TYPE_CHECKING:
    import plotille

HEIGHT: Final = 14
TICK_COLUMNS: Final = 10
"""Columns between ticks; the axis is scaled so that ticks are at powers of two, or fractions of one."""
_STEPS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The possible distances of ticks [octaves]."""
_MAX_TICKS: Final = 7
_MARGIN: Final = 0.06
N_SHOWN: Final = 12
"""The most runs in the terminal; `--html` and `--json` show more."""
_COLOURS: Final = {"reached": "green", "stopped": "yellow", "failed": "red", "lost": "dim"}


def print_view(view: JobView, console: Console) -> None:
    """Print the posterior, the next choice, the plot and the last runs."""
    print_posterior(view, console)
    if plot := draw_costs(view, in_colour=console.is_terminal):
        console.print(f"Cost of a run to the target [{view.scale.unit}] by batch size", highlight=False)
        print(plot, file=console.file)
        console.print("line: expected, dots: its 90 % interval; o and x: runs\n", style="dim")
    if view.trials:
        n_shown = min(N_SHOWN, len(view.trials))
        title = f"The last {n_shown} runs" if n_shown < len(view.trials) else "The runs"
        console.print(f"[bold]{title}, to the target; energy and cost in {view.scale.unit}[/bold]", highlight=False)
        console.print(_trials_table(view, n_shown))


def print_posterior(view: JobView, console: Console) -> None:
    """Print the posterior of each batch size, and which one is next and why."""
    posterior = view.posterior
    title = f"{view.job.key}: {ends_text(view)}; policy {posterior.policy}; costs in {view.scale.unit}"
    console.print(f"[bold]{shown(title)}[/bold]", highlight=False)
    table = _table()
    for heading in ("size", "runs", "epochs", "an epoch", "a run"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for belief in posterior.beliefs:
        table.add_row(*_belief_cells(view, belief), style="dim" if belief.is_pruned else None)
    console.print(table)
    note = f"o: reached its target, x: stopped before, ~: inferred; {cost_text(posterior.eta)}"
    console.print(note, style="dim", highlight=False, soft_wrap=not console.is_terminal)
    if cost_is_missing(view):
        console.print(NO_COST, highlight=False, markup=False, soft_wrap=not console.is_terminal)
    line = f"[bold]Next: {shown(next_text(view))}[/bold]\n"
    console.print(line, highlight=False, soft_wrap=not console.is_terminal)


def print_learned(job: Job, posterior: Posterior, trials: Sequence[Trial], console: Console) -> None:
    """Print the posterior of a job from the records of the repository."""
    print_posterior(view_of(job, posterior, trials), console)


def print_jobs(jobs: Sequence[JobSummary], console: Console) -> None:
    """Print the list of jobs."""
    table = _table()
    table.add_column("job")
    for heading in ("runs", "ended", "in flight", "best", "default"):
        table.add_column(heading, justify="right")
    table.add_column("of")
    table.add_column("last asked (UTC)")
    for job in jobs:
        table.add_row(
            shown(str(job.key)),
            str(job.n_trials),
            str(job.n_ended),
            str(job.n_in_flight),
            "-" if job.best_batch_size is None else str(job.best_batch_size),
            str(job.default_batch_size),
            candidates_text(job.batch_sizes),
            time_text(job.last_asked_at_s),
        )
    console.print(table, soft_wrap=not console.is_terminal)


def candidates_text(batch_sizes: Sequence[int]) -> str:
    """Return the text of the candidates, shortened if there are many."""
    if len(batch_sizes) <= 8:  # noqa: PLR2004 — what fits into a line
        return " ".join(map(str, batch_sizes))
    return f"{batch_sizes[0]} … {batch_sizes[-1]} ({len(batch_sizes)})"


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))


def _belief_cells(view: JobView, belief: Belief) -> list[str]:
    texts = estimate_texts(view, belief)
    return [
        str(belief.batch_size),
        " ".join(f"{n} {mark}" for n, mark in ((belief.n_reached, "o"), (belief.n_stopped, "x")) if n),
        texts.epochs,
        texts.epoch_cost,
        texts.run_cost,
        f"[bold green]{texts.marks}[/bold green]" if "next" in texts.marks else texts.marks,
    ]


def _trials_table(view: JobView, n_shown: int) -> Table:
    table = _table()
    for heading in ("#", "asked (UTC)", "size", "epochs", "energy", "time", "cost"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("end", no_wrap=True)
    table.add_column("why", overflow="ellipsis")
    for trial in reversed(view.trials[:n_shown]):
        table.add_row(*_trial_cells(view, trial))
    return table


def _trial_cells(view: JobView, trial: Trial) -> list[str]:
    texts, colour = run_texts(view, trial), _COLOURS.get(trial.state)
    return [
        texts.recurrence,
        texts.asked[5:],
        texts.batch_size,
        texts.epochs,
        texts.energy,
        texts.duration,
        texts.cost,
        f"[{colour}]{texts.end}[/{colour}]" if colour else texts.end,
        trial.reason,
    ]


def draw_costs(view: JobView, *, in_colour: bool) -> str:
    """Return the plot; "" if no cost is known, or there is only one batch size."""
    believed = [belief for belief in view.posterior.beliefs if belief.cost is not None and not belief.is_pruned]
    low, octaves = _span(view.job.batch_sizes)
    if not believed or not octaves:
        return ""
    step = next((step for step in _STEPS if octaves / step <= _MAX_TICKS), math.ceil(octaves / _MAX_TICKS))
    n_ticks = math.ceil(octaves / step)
    # One more column for a largest batch size that is at a tick: the canvas ends before its limit.
    n_columns = TICK_COLUMNS * n_ticks + 1
    bounds = _bounds(view, believed)
    figure = terminal_plot(
        size=(n_columns, HEIGHT),
        labels=("batch size", ""),
        x_limits=(low, low + n_columns * step / TICK_COLUMNS),
        y_limits=bounds,
        tick_texts=(lambda tick: f"{2**tick:.0f}", lambda tick: _tick_text(10**tick)),
        in_colour=in_colour,
    )
    _draw_beliefs(figure, view, believed, bounds)
    _draw_runs(figure, view, bounds)
    lines = str(figure.show(legend=False)).splitlines()
    return "\n".join(lines[1:])  # the first line is the name of the axis, which the caller prints above


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
    """Return the text of a cost at the axis, with three digits and no exponent."""
    return f"{cost:,.0f}" if 1e3 <= cost < 1e7 else f"{cost:.3g}"  # noqa: PLR2004 — where three digits end


def _span(batch_sizes: tuple[int, ...]) -> tuple[float, float]:
    """Return the beginning and the length of the axis [octaves]."""
    return math.log2(batch_sizes[0]), math.log2(batch_sizes[-1] / batch_sizes[0])


def _bounds(view: JobView, believed: list[Belief]) -> tuple[float, float]:
    """Return the limits of the y axis: all medians and runs, and interval ends close to them."""
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
    """Return the logarithm of a cost in the unit of the view."""
    return math.log10(max(cost, 1e-12) / view.scale.size_j)
