"""The HTML page of a job of the policy service."""

from collections.abc import Iterable, Iterator
from typing import Final

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
from controller.runtime.markup import Markup, element, escaped
from controller.web.charts.document import render_document, render_table
from controller.web.charts.figure import render_chart
from controller.web.charts.marks import Band, Chart, Colour, Line, Mark, NumberAxis, Panel, Points, Shape
from policies.batch_size.study import Belief
from policies.service.records import Trial

_ENDS: Final[dict[str, tuple[Shape, Colour]]] = {
    "reached": ("dot", "saved"),
    "stopped": ("cross", "warning"),
    "failed": ("square", "error"),
    "lost": ("cross", "prior"),
    "running": ("ring", "power"),
    "open": ("ring", "prior"),
}
_EXPECTED: Final = "expected, with its 90 % interval"


def render_page(view: JobView) -> str:
    """Return the page, HTML."""
    unit = view.scale.unit
    policy = f"{ends_text(view)}; policy {view.posterior.policy}; default {view.job.default_batch_size}."
    return render_document(
        f"{view.job.key}: batch sizes",
        [
            element("h1", element("bdi", escaped(str(view.job.key)))),
            element("p", escaped(policy)),
            element("p", element("b", escaped("Next: ")), escaped(next_text(view)), class_="next"),
            element("h2", escaped("Estimates for each batch size")),
            _beliefs_table(view),
            _note(f"Costs in {unit}: {cost_text(view.posterior.eta)}. ~: inferred."),
            *(render_chart(chart) for chart in _charts(view)),
            element("h2", escaped("Runs")),
            _trials_table(view),
            _note(f"To the target; energy and cost in {unit}; times of day in UTC."),
            *([_note(f"{NO_COST}.")] if cost_is_missing(view) else []),
        ],
    )


def _note(text: str) -> Markup:
    return element("p", escaped(text), class_="note")


def _charts(view: JobView) -> Iterator[Chart]:
    """Yield the cost and the epochs of a run by batch size, and the batch sizes of the runs; those without data not.

    The tables of the page have their data.
    """
    sizes = NumberAxis(label="batch size", is_log=True, ticks=view.job.batch_sizes)
    costs = [*_posterior(view, ("cost", "cost_lower", "cost_upper"), size_j=view.scale.size_j), *_costs_of_runs(view)]
    epochs = _posterior(view, ("epochs", "epochs_lower", "epochs_upper"), size_j=1.0)
    trials = ((trial, trial.recurrence, trial.batch_size) for trial in view.trials)
    recurrences = NumberAxis(label="recurrence")
    for title, words, x_axis, y_axis, marks in (
        (
            "Cost of a run to the target",
            "What is expected for each batch size, and what runs have cost.",
            sizes,
            NumberAxis(label=f"{view.scale.unit} a run", is_log=True),
            costs,
        ),
        (
            "Epochs to the target",
            "What is expected for each batch size.",
            sizes,
            NumberAxis(label="epochs", is_log=True),
            epochs,
        ),
        (
            "Batch sizes of the runs",
            "Oldest on the left, and how each ended.",
            recurrences,
            NumberAxis(label="batch size", is_log=True, ticks=view.job.batch_sizes),
            _ends(view, trials),
        ),
    ):
        if marks:
            panel = Panel(axis=y_axis, marks=marks)
            yield Chart(title=title, words=words, x_axis=x_axis, panels=[panel], has_table=False)


def _posterior(view: JobView, names: tuple[str, str, str], *, size_j: float) -> list[Mark]:
    """Return the median by batch size and its interval, without batch sizes that cannot run."""
    rows = [
        (belief, *(value / size_j for value in values))
        for belief in view.posterior.beliefs
        if not belief.is_pruned and None not in (values := [getattr(belief, name) for name in names])
    ]
    if not rows:
        return []
    beliefs, medians, lowers, uppers = zip(*rows, strict=True)
    xs = [belief.batch_size for belief in beliefs]
    texts = [_belief_text(view, belief) for belief in beliefs]
    return [
        Band(name="90 % interval", xs=xs, lowers=lowers, uppers=uppers, colour="power"),
        Line(name=_EXPECTED, xs=xs, ys=medians, colour="power"),
        Points(name=_EXPECTED, xs=xs, ys=medians, lowers=lowers, uppers=uppers, texts=texts, colour="power"),
    ]


def _belief_text(view: JobView, belief: Belief) -> str:
    texts = estimate_texts(view, belief)
    ends = f"{belief.n_reached} reached, {belief.n_stopped} stopped"
    return f"batch size {belief.batch_size}: {texts.epochs} epochs, {texts.run_cost} {view.scale.unit}; {ends}"


def _costs_of_runs(view: JobView) -> list[Mark]:
    costs = ((trial, trial.batch_size, view.costs.get(trial.run, 0.0)) for trial in view.trials)
    return _ends(view, ((trial, size, cost / view.scale.size_j) for trial, size, cost in costs if cost > 0))


def _ends(view: JobView, points: Iterable[tuple[Trial, float, float]]) -> list[Mark]:
    """Return runs as points; colour and shape are those of their end."""
    drawn = list(points)
    return [
        Points(
            name=state,
            xs=[x for trial, x, _ in drawn if trial.state == state],
            ys=[y for trial, _, y in drawn if trial.state == state],
            texts=[_run_text(view, trial) for trial, _, _ in drawn if trial.state == state],
            shape=shape,
            colour=colour,
        )
        for state, (shape, colour) in _ENDS.items()
        if any(trial.state == state for trial, _, _ in drawn)
    ]


def _run_text(view: JobView, trial: Trial) -> str:
    texts = run_texts(view, trial)
    cost = f"{texts.epochs} epochs, {texts.cost} {view.scale.unit}"
    return f"{trial.run}: batch size {texts.batch_size}, {texts.end}, {cost}: {trial.detail}"


def _beliefs_table(view: JobView) -> Markup:
    rows, classes = [], []
    for belief in view.posterior.beliefs:
        texts = estimate_texts(view, belief)
        classes.append("faint" if belief.is_pruned else "next" if "next" in texts.marks else "")
        rows.append((str(belief.batch_size), str(belief.n_reached), str(belief.n_stopped), *texts))
    headings = ("batch size", "reached", "stopped", "epochs (90 %)", "an epoch", "a run (90 %)", "")
    return render_table(headings, rows, row_classes=classes, last_is_text=True)


def _trials_table(view: JobView) -> Markup:
    rows = (
        (trial.run, *texts, trial.detail) for trial, texts in ((trial, run_texts(view, trial)) for trial in view.trials)
    )
    headings = ("run", "#", "asked", "batch size", "end", "epochs", "energy", "time", "cost", "why")
    return render_table(headings, rows, last_is_text=True)
