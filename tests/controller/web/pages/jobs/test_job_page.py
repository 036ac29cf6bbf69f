"""The pages of jobs: what a run costs at each batch size, with its interval or not at all; which is next, and why."""

from typing import Any

import msgspec
import pytest

from controller.web.charts.marks import Points, Rule
from controller.web.pages.jobs.job_page import MAX_TICKS, against_default, cost_chart, job_path, render_job, why_text
from controller.web.pages.jobs.jobs_page import render_jobs
from controller.web.pages.layout import N_ROWS
from publishers.messages.reports import BatchSizeBelief, JobPosterior
from publishers.messages.topics import JobName
from tests.controller.runtime.test_markup import HOSTILE
from tests.controller.web.pages.site import NOW_S, ZONE, Found, Site

JOB = JobName("ada", "resnet50")


def posterior(**changes: Any) -> JobPosterior:  # noqa: ANN401 — the record checks them
    return Site().say_posterior(**changes)


def found(known: JobPosterior, job: JobName = JOB) -> Found:
    return Found(render_job(job, known, now_s=NOW_S, zone=ZONE))


def marks(known: JobPosterior) -> dict[str, Any]:
    (panel,) = cost_chart(known).panels
    return {mark.name: mark for mark in panel.marks}


def test_what_has_run_is_filled_and_what_is_only_believed_a_ring() -> None:
    drawn = marks(posterior())
    has_run, believed, following = drawn["has run"], drawn["believed only"], drawn["next"]
    assert isinstance(has_run, Points)
    assert isinstance(following, Rule)
    assert (has_run.shape, believed.shape) == ("dot", "ring")
    assert (list(has_run.xs), list(believed.xs)) == ([128, 256, 1_024], [32, 64, 512])
    assert (has_run.lowers[0], has_run.ys[0], has_run.uppers[0]) == (0.97, 1.0, 1.03)
    assert following.value == 128
    assert "Relative to 128, the best so far." in cost_chart(posterior()).words


def test_the_page_says_all_without_a_chart() -> None:
    text = found(posterior()).text
    for part in (
        "whose ada batch size 128 why best so far default 1 024 against the default 61.5 % less (55.9 to 66.5 %)",
        "learnt from 24 runs cost 50 % energy, 50 % time at the highest power",
        "128 22 19 (15.2 to 23.8) 1 (0.97 to 1.03) next, best so far",
        "64 0 15 (12 to 18.8) 1.18 (0.75 to 1.87) believed only",
        "2 048 1 cannot run",
        "slurm-24 14:20 runs 128 best so far",
        "slurm-23 13:20 reached the target 128 19 0.98 best so far",
    ):
        assert part in text


def test_before_a_run_has_ended_no_cost_is_told() -> None:
    unknown = [BatchSizeBelief(batch_size=size) for size in (64, 128)]
    known = posterior(beliefs=unknown, best_batch_size=None, next_batch_size=64, default_batch_size=128, trials=[])
    text = found(known).text
    assert "No run has ended yet: no cost is known." in text
    assert "against the default not known yet" in text
    assert "No run has asked yet." in text


@pytest.mark.parametrize("lacking", ["cost_lower_ratio", "cost_upper_ratio"])
def test_a_cost_without_its_interval_is_not_told(lacking: str) -> None:
    beliefs = [msgspec.structs.replace(belief, **{lacking: None}) for belief in posterior().beliefs]
    assert marks(posterior(beliefs=beliefs)) == {}
    assert "2.6" not in found(posterior(beliefs=beliefs)).text.partition("Last runs")[0]


def test_against_the_default_is_a_share_with_its_interval() -> None:
    assert against_default(posterior()).replace("\u00a0", " ") == "61.5 % less (55.9 to 66.5 %)"
    worse = against_default(posterior(next_batch_size=1_024, default_batch_size=128))
    assert worse.replace("\u00a0", " ") == "160.0 % more (126.7 to 198.2 %)"
    assert against_default(posterior(next_batch_size=1_024)) == "it is the default"
    assert against_default(posterior(next_batch_size=2_048)) == "not known yet"


def test_many_batch_sizes_have_round_ticks() -> None:
    beliefs = [
        BatchSizeBelief(batch_size=8 * size, cost_ratio=1.0, cost_lower_ratio=0.9, cost_upper_ratio=1.1)
        for size in range(1, MAX_TICKS + 2)
    ]
    assert not cost_chart(posterior(beliefs=beliefs)).x_axis.ticks  # type: ignore[union-attr]
    assert cost_chart(posterior(beliefs=beliefs[1:])).x_axis.ticks == [8 * size for size in range(2, MAX_TICKS + 2)]  # type: ignore[union-attr]


def test_a_reason_that_is_not_known_here_is_said_as_it_is() -> None:
    assert why_text("best_so_far") == "best so far"
    assert why_text("store_unavailable") == "store unavailable"


def test_all_jobs_are_listed_with_their_pages_the_newest_first() -> None:
    site = Site()
    site.say_posterior(JobName("ada", "a.b"))
    newest = site.say_posterior(JobName("bob", "c"), trials=[])
    site.say_posterior(JobName("bob", "c"), trials=[msgspec.structs.replace(_trial(newest), requested_at_s=NOW_S)])
    page = Found(render_jobs(site.state, now_s=NOW_S, zone=ZONE))
    assert [it["href"] for it in page.all("a") if str(it.get("href")).startswith("/job/")] == [
        "/job/bob/c",
        "/job/ada/a.b",
    ]
    assert "61.5 % less (55.9 to 66.5 %) best so far" in page.text
    assert "of 2" not in page.text
    for number in range(2 * N_ROWS):
        site.say_posterior(JobName("ada", f"job-{number}"))
    pages = [Found(render_jobs(site.state, now_s=NOW_S, zone=ZONE, page=number)) for number in (1, 2, 3, 4)]
    jobs = [it["href"] for page in pages for it in page.all("a") if str(it.get("href")).startswith("/job/")]
    assert len(jobs) == len(set(jobs)) == 2 * N_ROWS + 2, "each is on one page"
    for turned, text in zip(
        pages,
        (
            "1 to 100 of 202 · next",
            "101 to 200 of 202 · first · next",
            "201 to 202 of 202 · first",
            "there are only 202",
        ),
        strict=True,
    ):
        assert text in turned.text
    assert "No job has asked" in Found(render_jobs(Site().state, now_s=NOW_S, zone=ZONE)).text


def _trial(known: JobPosterior) -> Any:  # noqa: ANN401
    return posterior().trials[0] if not known.trials else known.trials[0]


@pytest.mark.parametrize("name", [*filter(str.isascii, HOSTILE), "x" * 64, "\u202egnp.exe"])
def test_whatever_a_job_is_called_and_says_it_is_text(name: str) -> None:
    site, job = Site(), JobName(name, name)
    site.state.jobs[job] = known = posterior(next_detail=name, next_reason=name)
    for page in (found(known, job), Found(render_jobs(site.state, now_s=NOW_S, zone=ZONE))):
        assert "img" not in {tag for tag, _ in page.elements}
        assert all(it["src"] for it in page.all("script"))
    assert "<" not in job_path(job)
