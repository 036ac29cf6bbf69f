"""All jobs of which the policy service has learnt anything."""

from datetime import tzinfo

from controller.runtime.markup import NOTHING, Markup, element, escaped
from controller.web.charts.document import render_cells
from controller.web.charts.ticks import number_text
from controller.web.live.site_state import SiteState
from controller.web.pages.jobs.job_page import against_default, job_path, why_text
from controller.web.pages.layout import render_card, render_page, render_time, render_turns, rows_of
from publishers.messages.reports import JobPosterior
from publishers.messages.topics import JobName


def render_jobs(state: SiteState, *, now_s: float, zone: tzinfo, page: int = 1) -> str:
    """Return a page of the list, HTML."""
    newest = sorted(state.jobs.items(), key=lambda item: -_asked_s(item[1]))
    if newest:
        headings = ("job", "asked last", "next batch size", "default", "next against the default", "why")
        rows = [_cells(job, posterior, now_s, zone) for job, posterior in rows_of(newest, page)]
        table = render_cells(headings, rows, are_names=(True, True, False, False, False, True)) if rows else NOTHING
        content = [table, render_turns("/jobs", page, len(newest))]
    else:
        text = "No job has asked the policy service for a batch size, or none is heard."
        content = [element("p", escaped(text), class_="second")]
    card = render_card("Jobs whose batch sizes are learnt", *content)
    return render_page("Jobs", current="/jobs", parts=[card], now_s=now_s, zone=zone)


def _asked_s(posterior: JobPosterior) -> float:
    return max((trial.requested_at_s for trial in posterior.trials), default=0.0)


def _cells(job: JobName, posterior: JobPosterior, now_s: float, zone: tzinfo) -> list[Markup]:
    link = element("a", element("bdi", escaped(job.job)), href=job_path(job))
    whose = element("span", escaped(" "), element("bdi", escaped(job.user)), class_="note")
    asked_s = _asked_s(posterior)
    return [
        element("span", link, whose),
        render_time(asked_s, now_s, zone) if asked_s else NOTHING,
        escaped(number_text(posterior.next_batch_size)),
        escaped(number_text(posterior.default_batch_size)),
        escaped(against_default(posterior)),
        escaped(why_text(posterior.next_reason)),
    ]
