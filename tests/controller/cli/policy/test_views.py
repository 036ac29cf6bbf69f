"""What is shown of a job: the posterior, which batch size is next and why, the last runs, the plot, the page."""

import io
import re
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from controller.cli.policy.page import render_page
from controller.cli.policy.terminal import N_SHOWN, draw_costs, print_jobs, print_posterior, print_view
from controller.cli.policy.view import (
    NO_COST,
    JobView,
    Scale,
    as_dict,
    ends_text,
    marks_of,
    next_text,
    scale_of,
    view_of,
)
from policies.service.records import JobSummary
from tests.controller.cli.policy.samples import BATCH_SIZES, empty_view, sample_view, trial


def shown(view: JobView, *, width: int = 100) -> str:
    """Return what the terminal shows."""
    out = io.StringIO()
    print_view(view, Console(file=out, width=width))
    return out.getvalue()


def row(text: str, batch_size: int) -> str:
    """Return the line of a batch size."""
    return next(line for line in text.splitlines() if re.match(rf" *{batch_size} ", line))


def test_each_batch_size_has_runs_epochs_and_cost_with_intervals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(sample_view())
    capsys.readouterr()
    assert row(text, 256).split() == ["256", "7", "o", "34", "(29.2-39.6)", "5.56", "189", "(162-220)", "next,", "best"]
    assert row(text, 64).split()[1:3] == ["1", "x"]
    assert "~8.33" in row(text, 128), "nobody has measured it"
    assert row(text, 1024).rstrip().endswith("default")
    assert row(text, 4096).rstrip().endswith("cannot run")
    assert "cifar100: 11 runs have ended; policy gridchase; costs in Wh" in text
    assert "η = 0.5" in text


def test_the_next_batch_size_is_shown_with_reason_and_bound() -> None:
    view = sample_view()
    assert next_text(view) == (
        "256 (knowledge_gradient): a run at 256 is expected to cost least, and 50 more recurrences have nothing to"
        " learn from another. It would be stopped at 389 Wh."
    )
    out = io.StringIO()
    print_posterior(view, Console(file=out, width=80))
    assert f"Next: {next_text(view)}" in out.getvalue()


def test_the_last_runs_are_listed_oldest_first_with_their_costs() -> None:
    text = shown(sample_view())
    runs = text.split("The runs, to the target; energy and cost in Wh")[1].splitlines()[3:]
    assert [line.split()[0] for line in runs if line.strip()] == [str(number) for number in range(12)]
    assert runs[0].split()[3:] == ["1024", "52", "172", "57.3", "min", "229", "reached", "default_first"]
    assert runs[2].split()[3:9] == ["4096", "-", "-", "-", "-", "failed"]
    assert runs[11].split()[-2] == "running"


def test_the_terminal_shows_only_the_last_runs() -> None:
    view = sample_view()
    many = view_of(view.job, view.posterior, [trial(number, 256) for number in reversed(range(40))])
    text = shown(many)
    assert f"The last {N_SHOWN} runs" in text
    numbers = [line.split()[0] for line in text.splitlines() if line.endswith("knowledge_gradient ")]
    assert numbers == [str(number) for number in range(28, 40)]


def test_a_run_with_an_order_to_stop_is_marked() -> None:
    view = sample_view()
    told = msgspec.structs.replace(trial(0, 256, state="running", epochs=3), stop_ordered_at_s=2e9)
    assert "ordered to stop" in shown(view_of(view.job, view.posterior, [told]))


def test_unknown_values_are_shown_as_dashes() -> None:
    view = empty_view()
    text = shown(view)
    assert row(text, 32).split() == ["32", "-", "-", "-"]
    assert "Next: 1024 (default_first): nothing is known yet." in text
    assert "stopped at" not in text
    assert draw_costs(view, in_colour=False) == ""
    assert view.best is None


def test_names_are_escaped_in_the_terminal_and_the_page() -> None:
    view = sample_view()
    choice = replace(view.posterior.next, detail="[red]<script>alert(1)</script>")
    posterior = msgspec.structs.replace(view.posterior, next=choice)
    evil = replace(view, posterior=posterior)
    assert "[red]<script>" in shown(evil)
    page = render_page(evil)
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_the_plot_has_ticks_at_powers_of_two_and_marks_runs() -> None:
    plot = draw_costs(sample_view(), in_colour=False)
    assert plot.splitlines()[-1].split()[1:] == [str(size) for size in BATCH_SIZES]
    assert plot.count("x") >= 1
    assert plot.count("o") >= 3
    assert "⠉" in plot or "⠒" in plot, "the line of what is expected"


@pytest.mark.parametrize("batch_sizes", [(32, 64, 128, 256), (32, 64), (256, 512, 1024, 2048, 4096), (64, 128, 192)])
def test_the_largest_batch_size_is_in_the_plot(batch_sizes: tuple[int, ...]) -> None:
    sample = sample_view()
    job = msgspec.structs.replace(sample.job, batch_sizes=batch_sizes)
    shown_sizes = tuple(replace(sample.posterior.beliefs[0], batch_size=size) for size in batch_sizes)
    posterior = msgspec.structs.replace(sample.posterior, beliefs=shown_sizes)
    last = msgspec.structs.replace(trial(0, 256), batch_size=batch_sizes[-1])
    plot = draw_costs(view_of(job, posterior, [last]), in_colour=False)
    assert plot.count("o") == 1
    (line,) = [line for line in plot.splitlines() if "o" in line]
    last_tick = plot.splitlines()[-1].rindex(str(max(size for size in batch_sizes if size & (size - 1) == 0)))
    assert line.index("o") >= last_tick


@pytest.mark.parametrize(
    "batch_sizes", [(8, 16), (24, 1536), (3, 4, 5), (1, 2**20), (64,)], ids=lambda sizes: "-".join(map(str, sizes))
)
def test_any_candidates_can_be_drawn(batch_sizes: tuple[int, ...]) -> None:
    view = sample_view()
    beliefs = tuple(replace(view.posterior.beliefs[3], batch_size=size) for size in batch_sizes)
    job = msgspec.structs.replace(view.job, batch_sizes=batch_sizes, default_batch_size=batch_sizes[0])
    posterior = msgspec.structs.replace(view.posterior, beliefs=beliefs)
    plot = draw_costs(JobView(job=job, posterior=posterior, trials=(), costs={}), in_colour=False)
    assert bool(plot) == (len(batch_sizes) > 1)
    assert all(len(line) <= 100 for line in plot.splitlines())


def test_the_page_has_everything_and_needs_no_server() -> None:
    page = render_page(sample_view())
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"<script| (?:src|href|style)=|@import|url\(", page), "nothing is loaded or run"
    assert len(page) < 40_000
    for part in ("cifar100", "189 (162-220)", "next, best", "Cost of a run to the target", "run-11", "cannot run"):
        assert part in page


def test_a_job_without_estimates_has_a_page() -> None:
    page = render_page(empty_view())
    assert "nothing is known yet" in page
    assert "0 runs have ended" in page


def test_json_has_the_job_its_posterior_and_its_runs_oldest_first() -> None:
    view = sample_view()
    found = as_dict(view)
    assert found["job"]["name"] == "cifar100"
    assert found["posterior"]["next"]["batch_size"] == 256
    assert found["best_batch_size"] == 256
    assert [each["recurrence"] for each in found["trials"]] == list(range(12))
    assert found["trials"][0]["cost"] == view.costs["run-0"]
    assert found["trials"][2]["cost"] is None
    assert msgspec.json.encode(found)


def test_the_best_batch_size_was_reached_and_can_run() -> None:
    view = sample_view()
    cheap = replace(view.posterior.beliefs[7], cost=1.0)
    tempting = replace(view.posterior.beliefs[6], cost=1.0)
    beliefs = (*view.posterior.beliefs[:6], tempting, cheap)
    changed = replace(view, posterior=msgspec.structs.replace(view.posterior, beliefs=beliefs))
    assert changed.best is not None
    assert changed.best.batch_size == 256
    assert marks_of(changed, cheap) == "cannot run"


@pytest.mark.parametrize(
    ("costs", "scale", "text"),
    [
        ([5.0], Scale(size_j=1.0, unit="J"), "5"),
        ([7_200.0], Scale(size_j=3_600.0, unit="Wh"), "2"),
        ([3.6e6, 4.5e6, 1e12], Scale(size_j=3.6e6, unit="kWh"), "1.25"),
        ([9e9], Scale(size_j=3.6e9, unit="MWh"), "2.5"),
        ([], Scale(size_j=3.6e6, unit="kWh"), "-"),
    ],
)
def test_costs_have_a_readable_unit(costs: list[float], scale: Scale, text: str) -> None:
    assert scale_of(costs) == scale
    assert scale.text(costs[len(costs) // 2] if costs else None) == text


def test_large_numbers_stay_readable() -> None:
    scale = Scale(size_j=1.0, unit="J")
    assert [scale.text(cost) for cost in (999.4, 12_345.6, 3.2e15)] == ["999", "12,346", "3e+15"]


def test_the_list_of_jobs_shows_their_progress() -> None:
    jobs = [
        JobSummary(
            user="ada",
            name="bert",
            batch_sizes=tuple(range(1, 12)),
            default_batch_size=8,
            n_trials=20,
            n_in_flight=2,
            n_ended=17,
            best_batch_size=4,
            last_asked_at_s=1_780_000_000.0,
        ),
        JobSummary(
            user="bob", name="new", batch_sizes=(8, 16), default_batch_size=8, n_trials=1, n_in_flight=1, n_ended=0
        ),
    ]
    out = io.StringIO()
    print_jobs(jobs, Console(file=out, width=100))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["ada/bert", "20", "17", "2", "4", "8", "1", "…", "11", "(11)", "2026-05-28", "20:26"] in lines
    assert ["bob/new", "1", "0", "1", "-", "8", "8", "16", "-"] in lines


def test_energy_and_time_are_to_the_target() -> None:
    view = sample_view()
    ended = next(each for each in view.trials if each.state == "reached")
    result = msgspec.structs.replace(ended.result, epochs=8, reached_epochs=5, energy_j=3_600.0 * 80, duration_s=800.0)
    (line,) = [
        each
        for each in shown(
            view_of(view.job, view.posterior, [msgspec.structs.replace(ended, result=result)])
        ).splitlines()
        if " reached " in each and "o: reached" not in each
    ]
    assert line.split()[4:8] == ["5", "50", "8.33", "min"]


def test_missing_costs_are_explained() -> None:
    view = sample_view()
    ended = next(each for each in view.trials if each.state == "reached")
    result = msgspec.structs.replace(ended.result, energy_j=0.0, duration_s=0.0)
    unmeasured = view_of(view.job, view.posterior, [msgspec.structs.replace(ended, result=result)])
    assert NO_COST in shown(unmeasured).replace("\n", " ")
    assert NO_COST in render_page(unmeasured)
    assert NO_COST not in shown(view).replace("\n", " ")
    (line,) = [each for each in shown(unmeasured).splitlines() if "reached " in each and "o: " not in each]
    assert line.split()[5:8] == ["-", "-", "-"]


def test_a_timing_is_no_ended_run() -> None:
    view = sample_view()
    more = replace(view, posterior=msgspec.structs.replace(view.posterior, n_observations=15))
    assert ends_text(more) == ends_text(view)
