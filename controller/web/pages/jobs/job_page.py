"""A job: what a run costs at each batch size, which is next, against the default, and its last runs."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from controller.runtime.markup import NO_BREAK, Markup, element, escaped
from controller.web.charts.document import render_table
from controller.web.charts.figure import render_chart
from controller.web.charts.marks import Chart, Mark, NumberAxis, Panel, Points, Rule
from controller.web.charts.ticks import number_text
from controller.web.pages.layout import moment_text, render_card, render_facts, render_page
from controller.web.pages.words import NOT_KNOWN_YET, percent_text, range_text, typeset
from publishers.messages.reports import BatchSizeBelief, JobPosterior
from publishers.messages.topics import JobName

MAX_TICKS: Final = 14
"""Of more batch sizes the axis has round numbers."""
_WHY: Final = {
    "best_so_far": "best so far",
    "default_first": "the default, until a run has ended",
    "knowledge_gradient": "tried: it may be better",
    "review": "tried again: the job may have changed",
    "job_changed": "the default: the job has changed",
    "only_candidate": "no other is left",
    "none_can_run": "the default: none can run",
    "pruning": "tried, up and down from the default",
    "thompson": "drawn by how likely it is the best",
    "concurrent": "best so far, beside a run that explores",
}
"""By the code of a reason."""
_STATES: Final = {
    "open": "asked",
    "running": "runs",
    "reached": "reached the target",
    "stopped": "stopped",
    "failed": "failed",
    "lost": "lost",
}


class _Cost(NamedTuple):
    """The expected cost of a run relative to the best batch size, with both ends of its 90 % interval."""

    ratio: float
    lower_ratio: float
    upper_ratio: float


def job_path(job: JobName) -> str:
    """Return where the page of a job is."""
    return "/job/" + "/".join(quote(name, safe="") for name in job)


def why_text(reason: str) -> str:
    """Return why a run got its batch size."""
    return _WHY.get(reason, reason.replace("_", " "))


def render_job(job: JobName, posterior: JobPosterior, *, now_s: float, zone: tzinfo) -> str:
    """Return the page, HTML."""
    parts = [
        element("section", render_chart(cost_chart(posterior), has_readout=True), class_="card wide"),
        render_card("The next run", render_facts(_next(job, posterior)), width="narrow"),
        render_card("Each batch size", _sizes(posterior), _files(job), note="medians, with 90\u00a0% intervals"),
        render_card("Last runs", _trials(posterior, now_s, zone), link=("/runs", "all runs")),
    ]
    return render_page(f"Job {job.job}", current="/jobs", parts=parts, now_s=now_s, zone=zone)


def cost_of(belief: BatchSizeBelief) -> _Cost | None:
    """Return what a run is expected to cost at a batch size; None: that is not known, or not with its interval."""
    ratio, lower, upper = belief.cost_ratio, belief.cost_lower_ratio, belief.cost_upper_ratio
    is_known = ratio and lower and upper and not belief.cannot_run
    return _Cost(ratio, lower, upper) if is_known and ratio and lower and upper else None


def cost_chart(posterior: JobPosterior) -> Chart:
    """Return the cost of a run by batch size, where it is known."""
    known = [(belief, cost) for belief in posterior.beliefs if (cost := cost_of(belief)) is not None]
    sizes = [belief.batch_size for belief, _ in known]
    marks: list[Mark] = []
    for name, shape, has_run in (("has run", "dot", True), ("believed only", "ring", False)):
        of_kind = [(belief.batch_size, cost) for belief, cost in known if bool(belief.n_runs) is has_run]
        if of_kind:
            marks.append(
                Points(
                    name=name,
                    xs=[size for size, _ in of_kind],
                    ys=[cost.ratio for _, cost in of_kind],
                    lowers=[cost.lower_ratio for _, cost in of_kind],
                    uppers=[cost.upper_ratio for _, cost in of_kind],
                    colour="power",
                    shape="dot" if shape == "dot" else "ring",
                )
            )
    if posterior.next_batch_size in sizes:
        marks.append(Rule(name="next", value=posterior.next_batch_size, axis="x", colour="now", dash="dashed"))
    ticks = sizes if len(sizes) <= MAX_TICKS else ()
    words = "No run has ended yet: no cost is known."
    if known and posterior.best_batch_size is not None:
        best = number_text(posterior.best_batch_size)
        words = f"Relative to {best}, the best so far. Bars hold 90\u00a0% of what is believed."
    return Chart(
        title="Cost of a run to its target at each batch size",
        words=words,
        x_axis=NumberAxis(label="batch size", is_log=True, ticks=ticks),
        panels=[Panel(axis=NumberAxis(label="cost, best = 1", is_log=True), marks=marks)],
        has_table=False,
    )


def _next(job: JobName, posterior: JobPosterior) -> Iterator[tuple[str, Markup]]:
    yield "whose", element("bdi", escaped(job.user))
    yield "batch size", element("b", escaped(number_text(posterior.next_batch_size)))
    yield "why", escaped(why_text(posterior.next_reason))
    yield "default", escaped(number_text(posterior.default_batch_size))
    yield "against the default", escaped(against_default(posterior))
    yield "learnt from", escaped("1 run" if posterior.n_observations == 1 else f"{posterior.n_observations} runs")
    energy, time = (f"{100 * share:.0f}{NO_BREAK}%" for share in (posterior.eta, 1 - posterior.eta))
    yield "cost", escaped(f"{energy} energy, {time} time at the highest power")
    yield "in its words", element("details", element("summary", escaped("show")), escaped(posterior.next_detail))


def against_default(posterior: JobPosterior) -> str:
    """Return how much less the next run costs than one at the default, with its interval."""
    if posterior.next_batch_size == posterior.default_batch_size:
        return "it is the default"
    of_size = {belief.batch_size: cost_of(belief) for belief in posterior.beliefs}
    ours, default = (of_size.get(size) for size in (posterior.next_batch_size, posterior.default_batch_size))
    if ours is None or default is None:
        return NOT_KNOWN_YET
    ratio = ours.ratio / default.ratio
    # As if the two were independent: what both have in common makes the interval narrower.
    factor = math.exp(math.hypot(*(math.log(cost.upper_ratio / cost.lower_ratio) / 2 for cost in (ours, default))))
    sign, word = (1, "less") if ratio <= 1 else (-1, "more")
    saved, *ends = (percent_text(sign * (1 - each)) for each in (ratio, ratio * factor**sign, ratio / factor**sign))
    return f"{typeset(saved)} {word} ({range_text(*ends)})"


def _sizes(posterior: JobPosterior) -> Markup:
    rows, classes = [], []
    for belief in posterior.beliefs:
        marks = _marks(posterior, belief)
        classes.append("faint" if belief.cannot_run else "next" if "next" in marks else "")
        epochs = (belief.epochs, belief.epochs_lower, belief.epochs_upper)
        rows.append(
            (
                number_text(belief.batch_size),
                str(belief.n_runs),
                "" if belief.cannot_run else _interval_text(*epochs),
                "" if belief.cannot_run else _interval_text(*(cost_of(belief) or (None, None, None))),
                ", ".join(marks),
            )
        )
    headings = ("batch size", "runs", "epochs to the target", "cost, best = 1", "remarks")
    return render_table(headings, rows, row_classes=classes, last_is_text=True)


def _marks(posterior: JobPosterior, belief: BatchSizeBelief) -> list[str]:
    marks = {
        "next": belief.batch_size == posterior.next_batch_size,
        "best so far": belief.batch_size == posterior.best_batch_size,
        "default": belief.batch_size == posterior.default_batch_size,
        "cannot run": belief.cannot_run,
        "believed only": not belief.n_runs and not belief.cannot_run,
    }
    return [mark for mark, applies in marks.items() if applies]


def _interval_text(value: float | None, lower: float | None, upper: float | None) -> str:
    if value is None or lower is None or upper is None:
        return NOT_KNOWN_YET
    return f"{number_text(value)} ({number_text(lower)} to {number_text(upper)})"


def _trials(posterior: JobPosterior, now_s: float, zone: tzinfo) -> Markup:
    if not posterior.trials:
        return element("p", escaped("No run has asked yet."), class_="second")
    rows = [
        (
            trial.run,
            moment_text(trial.requested_at_s, now_s, zone),
            _STATES[trial.state],
            number_text(trial.batch_size),
            "" if trial.epochs is None else number_text(trial.epochs),
            "" if trial.cost_ratio is None else number_text(trial.cost_ratio),
            why_text(trial.reason),
        )
        for trial in posterior.trials
    ]
    headings = ("run", "asked", "state", "batch size", "epochs", "cost, best = 1", "why this size")
    return render_table(headings, rows, n_names=3, last_is_text=True)


def _files(job: JobName) -> Markup:
    file = f"/v1/posterior?{urlencode(job._asdict())}"
    links = (element("a", escaped(text), href=to) for text, to in (("as JSON", file), ("as CSV", f"{file}&format=csv")))
    return element("p", *(part for link in links for part in (link, escaped(f" {NO_BREAK}"))), class_="note")


def posterior_csv(beliefs: Sequence[BatchSizeBelief]) -> str:
    """Return what is believed of each batch size as CSV: a row of names, then a row each; not known is empty."""
    written = io.StringIO()
    writer = csv.DictWriter(written, fieldnames=BatchSizeBelief.__struct_fields__, lineterminator="\n")
    writer.writeheader()
    writer.writerows(msgspec.structs.asdict(belief) for belief in beliefs)
    return written.getvalue()
