"""The pages of runs: numbers with their intervals or why there are none, plan and curve; whatever a run is called."""

import math
from typing import Any

import msgspec
import pytest

from controller.history.energy_history.reading import PastRun
from controller.web.live.site_state import RunState
from controller.web.pages.runs.curve import curve_chart
from controller.web.pages.runs.run_page import later_text, render_run, run_view
from controller.web.pages.runs.runs_page import render_runs
from publishers.messages.reports import ProfileEntry, ProfileReport, RunEnergy, RunSchedule
from publishers.messages.topics import RunKey
from tests.controller.history.energy_history.records import run_record
from tests.controller.runtime.test_markup import HOSTILE
from tests.controller.web.pages.site import NOW_S, ZONE, Found, Site, price_signal, site_of

KEY = RunKey("ada", "job-0", "1")
SPLIT: dict[str, Any] = {
    "saved_better_limit_ratio": 0.150,
    "saved_better_limit_ci90_ratio": 0.02,
    "saved_following_ratio": -0.003,
    "saved_following_ci90_ratio": 0.001,
    "saved_measuring_ratio": -0.004,
    "saved_measuring_ci90_ratio": 0.001,
}


def state_of(site: Site, key: RunKey = KEY) -> RunState:
    return site.state.runs[key]


def one_run(*, schedule: dict[str, Any] | None = None, **record: Any) -> Site:  # noqa: ANN401 — the records check them
    """Return a site with a run whose messages are changed."""
    site = site_of(2)
    run = state_of(site)
    assert run.energy is not None
    assert run.schedule is not None
    run.energy = msgspec.structs.replace(run.energy, **record)
    run.schedule = msgspec.structs.replace(run.schedule, **(schedule or {}))
    return site


def found(site: Site, key: RunKey = KEY, past: PastRun | None = None) -> Found:
    view = run_view(site.state, key, past, NOW_S)
    assert view is not None
    return Found(render_run(view, site.state, now_s=NOW_S, zone=ZONE))


def past_run(record: RunEnergy, key: RunKey = KEY) -> PastRun:
    return PastRun(key, NOW_S - 90_000.0, NOW_S - 80_000.0, record)


def profile(*speeds: float, ci: float | None = 0.05) -> ProfileReport:
    points = [
        ProfileEntry(
            power_limit_w=100.0 + 50 * place,
            power_w=90.0 + 45 * place,
            iterations_per_s=speed,
            iterations_per_s_ci=ci,
            power_ci_w=ci and 2.0,
        )
        for place, speed in enumerate(speeds)
    ]
    return ProfileReport(state="planned", gpu_model="A40", n_gpus=1, points=points)


def test_a_run_has_its_numbers_with_their_intervals() -> None:
    on_course = {"expected_slowdown_ratio": 1.05, "expected_slowdown_ci90_ratio": 0.004}
    text = found(
        one_run(schedule=on_course, power_limit_w=180.0, speed_ratio=0.97, reason="slowdown_signal", **SPLIT)
    ).text
    for part in (
        "50.1 g CO₂e 14.3 % of 350 g CO₂e between 43.1 and 57.1 g CO₂e",
        "better limit 15.0 % (13.0 to 17.0 %)",
        "following the grid \u22120.3 % (\u22120.4 to \u22120.2 %)",
        "measuring \u22120.4 % (\u22120.5 to \u22120.3 %)",
        "so far 3.0 % (2.6 to 3.4 %) allowed 5.0 % on course for 5.0 % (4.6 to 5.4 %)",
        "limit 180 W its GPUs draw 301 W speed 97.0 % of full speed why following the grid in the allowed time",
        "W, limit of each GPU",
    ):
        assert part in text
    assert "more than allowed" not in text


def test_the_work_of_a_run_is_shown_with_the_energy_for_it_where_it_is_told() -> None:
    work: dict[str, Any] = {"work": 8.2e8, "total_work": 1.5e9, "work_unit": "tokens", "energy_j": 3.69e6}
    assert "work 820 million of 1.5 billion tokens at 1.25 Wh per million" in found(one_run(**work)).text
    assert "work" not in found(one_run()).text.partition("against the same work")[0]


def test_over_its_budget_early_but_on_course_is_no_alarm() -> None:
    course = {"expected_slowdown_ratio": 1.02, "expected_slowdown_ci90_ratio": 0.002, "max_slowdown_ratio": 1.02}
    page = found(one_run(schedule=course))
    assert "more than allowed until now, and expected to be made up for by the end" in page.text
    assert not [it for it in page.all("span") if it.get("class") == "state warning"]


def test_in_the_first_minute_nothing_is_known_and_no_number_is_shown() -> None:
    site = Site()
    site.say_run(KEY, saved_ratio=None)
    run = state_of(site)
    run.profile = run.schedule = None
    text = found(site).text
    assert "Saved so far against the same work at the prior limits Not known yet." in text
    assert "so far not known yet" in text
    assert "No signal" not in text
    assert "The run has no plan." in text


@pytest.mark.parametrize("state", ["profiling", "planned"])
def test_how_long_a_run_without_an_end_has_run_is_said_once(state: str) -> None:
    site = one_run(schedule={"expected_end_s": None}, duration_s=120.0)
    run = state_of(site)
    run.profile = msgspec.structs.replace(profile(1.0), state=state)
    assert found(site).text.count("2 min") == 1


def test_how_long_a_run_with_an_end_has_run_is_said_beside_it() -> None:
    assert "so far 2 min" in found(one_run(duration_s=120.0)).text


@pytest.mark.parametrize(
    "changes",
    [
        dict.fromkeys(("saved_ci90_ratio", "saved_energy_ci90_ratio", "slowdown_ci90_ratio")),
        {"evidence": None},
        {"evidence": "too_early"},
    ],
)
def test_a_saving_without_an_interval_or_evidence_is_not_shown(changes: dict[str, Any]) -> None:
    text = found(one_run(**SPLIT | changes)).text
    assert "better limit" not in text
    assert "14.3 %" not in text
    assert "3.0 %" not in text


def test_an_ended_run_is_shown_from_the_history() -> None:
    record = run_record(run="1", state="lost", final=True, n_gpus=2, duration_s=7_200.0, energy_j=3.6e6)
    text = found(Site(), past=past_run(record)).text
    assert "lost: its process ended without a word" in text
    assert "took 2 h 00 min used 1 kWh" in text
    assert "None is known: a curve is kept here for a day after its run" in text
    assert run_view(Site().state, KEY, None, NOW_S) is None


def test_a_run_that_nobody_hears_is_silent() -> None:
    site = one_run()
    state_of(site).spoke_s = NOW_S - 600.0
    page = found(site)
    assert "state silent" in page.text
    assert "Now limit" not in page.text


@pytest.mark.parametrize("name", [*filter(str.isascii, HOSTILE), "x" * 64, "\u202egnp.exe"])
def test_whatever_a_run_is_called_it_is_text(name: str) -> None:
    key = RunKey(name, name, name)
    site = Site()
    site.state.runs[key] = RunState(energy=run_record(n_gpus=1, time_s=NOW_S), heard_s=NOW_S, spoke_s=NOW_S)
    for page in (found(site, key), Found(render_runs(site.state, [], now_s=NOW_S, zone=ZONE))):
        assert not {"img", "b"} & {tag for tag, _ in page.elements}
        assert all(it["src"] for it in page.all("script"))


def test_a_run_without_a_length_and_below_a_negative_price_is_shown() -> None:
    site = one_run(schedule={"expected_end_s": None})
    site.state.grid.clear()
    site.say_signal(price_signal(NOW_S))
    text = found(site).text
    assert "end not known" in text
    assert "cheapest about \u22120.02 EUR/kWh" in text


def test_the_page_of_a_run_says_how_it_was_counted() -> None:
    counting: dict[str, Any] = {
        "signal_kind": "marginal",
        "signal_source": "WattTime",
        "signal_zone": "CAISO_NORTH",
        "pue": 1.4,
    }
    text = found(one_run(**counting)).text.partition("How this was counted")[2]
    assert "by the marginal intensity of the grid, from WattTime in CAISO_NORTH." in text
    assert "Plans also allow for a PUE of 1.4" in text
    site = one_run(n_gpus=0)
    assert "How this was counted" not in found(site).text


def test_a_pinned_run_without_a_curve_says_why_it_has_its_limit() -> None:
    site = one_run(reason="pinned", power_limit_w=200.0, speed_ratio=None)
    state_of(site).profile = ProfileReport(
        state="not_profiled", gpu_model="A40", n_gpus=2, points=[], reason="waiting_for_ranks"
    )
    text = found(site).text
    assert "why pinned" in text
    assert "of full speed" not in text.partition("Decisions")[0]
    assert "Not measured: waiting for the other ranks." in text


def test_how_much_later_it_ends_is_against_full_power() -> None:
    record = run_record(duration_s=7_200.0)
    schedule = RunSchedule(
        objective="slowdown",
        entries=[],
        until_s=NOW_S,
        expected_end_s=NOW_S + 9 * 3_600.0,
        expected_slowdown_ratio=1.1,
        expected_slowdown_ci90_ratio=0.02,
    )
    text = later_text(record, schedule, NOW_S).replace("\u00a0", " ")
    assert text == "1 h 00 min later than at full power (49 min to 1 h 11 min)"
    unknown = msgspec.structs.replace(schedule, expected_slowdown_ratio=None, expected_slowdown_ci90_ratio=None)
    assert not later_text(record, unknown, NOW_S)
    assert not later_text(record, None, NOW_S)


def test_the_curve_says_what_each_limit_costs_and_saves() -> None:
    chart = curve_chart(profile(5.0, 8.0, 10.0), None, run_record(power_limit_w=150.0))
    assert chart is not None
    measured, now = chart.panels[0].marks
    assert list(measured.xs) == pytest.approx([100.0, 25.0, 0.0])  # type: ignore[union-attr]
    assert list(measured.ys) == pytest.approx([0.0, 6.25, 0.0])  # type: ignore[union-attr]
    assert (now.xs, now.ys) == ([25.0], [pytest.approx(6.25)])  # type: ignore[union-attr]


def test_a_curve_without_intervals_has_no_crosses_and_one_point_is_none() -> None:
    chart = curve_chart(profile(5.0, 8.0, ci=None), None, None)
    assert chart is not None
    assert math.isnan(chart.panels[0].marks[0].uppers[0])  # type: ignore[union-attr]
    assert curve_chart(profile(5.0), None, None) is None
    assert curve_chart(profile(0.0, 0.0, 5.0), None, None) is None
    assert curve_chart(None, None, None) is None


def test_all_runs_are_listed_each_with_its_page_and_none_twice() -> None:
    record = run_record(run="77", state="finished", final=True, n_gpus=2, duration_s=3_600.0, energy_j=3.6e6)
    ended = [past_run(record, RunKey("ada", "a/b", "77")), past_run(record, KEY)]
    page = Found(render_runs(site_of(4).state, ended, now_s=NOW_S, zone=ZONE))
    links = [it["href"] for it in page.all("a") if str(it.get("href")).startswith("/run/")]
    assert links == ["/run/ada/job-0/1", "/run/ada/job-1/1", "/run/ada/a%2Fb/77"]
    assert "finished 1 h 00 min 1 kWh" in page.text
    nothing = Found(render_runs(Site().state, [], now_s=NOW_S, zone=ZONE)).text
    assert "No run goes on." in nothing
    assert "No run has ended in the last 7 days." in nothing


def test_what_a_plan_is_expected_to_save_is_told_with_its_intervals_or_not_at_all() -> None:
    signal = {"expected_saved_ratio": 0.152, "expected_saved_ci90_ratio": 0.006}
    energy = {"expected_saved_energy_ratio": 0.143, "expected_saved_energy_ci90_ratio": 0.002}
    until = {"until_s": NOW_S + 4 * 3_600.0}
    text = found(one_run(schedule={**signal, **energy, **until})).text
    both = "save 15.2 % (14.6 to 15.8 %) of CO₂e and 14.3 % (14.1 to 14.5 %) of energy"
    assert f"The plan for the coming 4 h 00 min is expected to {both}." in text
    text = found(one_run(schedule={**energy, **until})).text
    assert "is expected to save 14.3 % (14.1 to 14.5 %) of energy." in text
    for lacking in ({"expected_saved_energy_ci90_ratio": None}, {"until_s": NOW_S - 1.0}):
        assert "is expected to save" not in found(one_run(schedule={**energy, **until, **lacking})).text
    priced = found(one_run(schedule={**signal, **until}, carbon_g=None, cost=0.2, currency="EUR")).text
    assert "save 15.2 % (14.6 to 15.8 %) of cost." in priced
