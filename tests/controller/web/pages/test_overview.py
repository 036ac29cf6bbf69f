"""The first page: its numbers are those of the messages, and it says what is not known."""

import gzip
from dataclasses import replace as _replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.history.energy_history.report import Entry
from controller.web.live.element_ids import SITE_BAR, SITE_LIMITS, SITE_POWER, SITE_POWER_UNIT
from controller.web.live.saved_sums import Sums
from controller.web.live.site_state import SILENT_S
from controller.web.pages.gpus import gpu_views
from controller.web.pages.overview import (
    MAX_ALERTS,
    MAX_RUNS,
    MAX_TILES,
    Overview,
    decision_lines,
    full_power_w,
    live_overview,
    render_overview,
    running_runs,
)
from publishers.messages.reports import LimitChange, NodeStatus
from publishers.messages.topics import RunKey
from tests.controller.history.energy_history.records import TOPICS, split
from tests.controller.web.pages.site import NOW_S, ZONE, Found, Site, price_signal, site_of
from tests.controller.web.pages.test_log import alternating

KEY = RunKey("ada", "resnet50", "1234.0")


def found(site: Site, overview: Overview | None = None) -> Found:
    return Found(render_overview(overview or site.overview(), now_s=site.now_s, zone=ZONE))


def one_run() -> Site:
    site = Site()
    site.say_node("atlas", 2)
    for index in range(2):
        site.say_gpu("atlas", index, power_w=162.0 + index)
    site.say_run(KEY)
    site.say_signal()
    return site


def test_the_numbers_are_those_of_the_messages() -> None:
    text = found(one_run()).text
    for part in (
        "as of 15:20",
        "50.1 g CO₂e 14.3 % of 350 g CO₂e between 43.1 and 57.1 g CO₂e",
        "139 Wh 14.3 % of 972 Wh",
        "Price paid: 3.0 % (2.6 to 3.4 %) more time.",
        "325 W would be between 536 and 544 W at the prior limits",
        "limits 360 W in all, prior limits 600 W",
        "2 of 2 GPUs answer, 1 of 1 nodes",
        "Signal fresh: DE, Energy-Charts",
        "atlas 0 162 / 180 W resnet50",
        "atlas 1 163 / 180 W resnet50",
        "The run has a plan.",
        "15:18 resnet50 atlas 0+1",
        "200 → 180 W · following the grid in the allowed time: slower for now · 267.3 g/kWh · 98.5 % of full speed",
        "25 % · ends 21:20",
        "3.0 % (2.6 to 3.4 %) of 5.0 %",
        "50.1 g CO₂e, 14.3 % (43.1 to 57.1 g CO₂e)",
    ):
        assert part in text, part
    assert "to look at" not in text


def test_todays_saving_says_what_it_is_made_of_where_that_is_known() -> None:
    site = one_run()
    assert "better limit" not in found(site).text
    run = site.state.runs[KEY]
    assert run.energy is not None
    run.energy = split(run.energy, 0.002)
    text = found(site).text
    assert "better limit 52.9 g CO₂e (51.1 to 54.6 g CO₂e)" in text
    assert "following the grid 0.7 g CO₂e (\u22121.05 to 2.45 g CO₂e)" in text
    assert "measuring \u22123.5 g CO₂e (\u22125.25 to \u22121.75 g CO₂e)" in text
    run.energy = msgspec.structs.replace(run.energy, evidence="too_early")
    assert "better limit" not in found(site).text


def test_bars_say_the_same_as_the_numbers_beside_them() -> None:
    page = found(one_run())
    filled, mark = "54.0%", "60.0%"
    assert {"width": filled, "height": "100%", "class": "filled"} in page.all("rect")
    assert any(it.get("x1") == mark for it in page.all("line"))


def test_what_is_read_aloud_of_a_bar_holds_until_the_page_is_read_again() -> None:
    bars = [it for it in found(one_run()).all("svg") if "gauge" in str(it.get("class")) and it.get("id")]
    labels = [it.get("aria-label") or it.get("aria-hidden") for it in bars]
    assert labels == ["true", *["prior limit 300\u00a0W"] * 2]


def test_in_the_first_minutes_of_a_run_nothing_is_known_yet_and_no_number_told() -> None:
    site = one_run()
    site.say_run(KEY, saved_ratio=None)
    text = found(site).text
    assert "Not known yet: 1 run today, and no evidence yet of what was saved." in text
    assert "not known yet of 5.0 % not known yet" in text
    assert "CO₂e," not in text


def test_before_the_books_know_a_run_that_goes_on_nothing_is_said_of_today() -> None:
    site, nothing = one_run(), Entry(name="", runs=0, measured_runs=0)
    text = found(site, Overview(site.state, Sums(NOW_S, NOW_S, nothing, nothing, nothing))).text
    assert "No run has used anything today yet." not in text
    assert "Not known yet." in text


def test_a_run_with_evidence_that_something_is_missing_says_what() -> None:
    site = one_run()
    energy = site.state.runs[KEY].energy
    assert energy is not None
    site.say(TOPICS.run(KEY, "energy"), msgspec.structs.replace(energy, evidence="incomplete"))
    assert "not known: a part of the run is missing in the books" in found(site).text


def test_an_empty_site_says_that_nothing_was_heard() -> None:
    site = Site()
    text = found(site).text
    for part in ("No GPU has been heard yet.", "No controller has been heard yet.", "No signal of the grid is known."):
        assert part in text
    for part in ("No run goes on.", "No run has used anything today yet.", "There are none."):
        assert part in text


def test_without_runs_the_gpus_are_idle() -> None:
    site = Site()
    site.say_node("atlas", 1)
    site.say_gpu("atlas", 0, power_w=26.0, power_limit_w=300.0, job=None, reason="idle")
    text = found(site).text
    assert "26 W limits 300 W in all, prior limits 300 W" in text
    assert "atlas 0 26 / 300 W idle" in text


def test_limits_of_gpus_that_do_not_answer_are_not_called_all_right() -> None:
    site = one_run()
    assert "No limit is stranded or set by others" in found(site).text
    site.say_node("other", 1, online=False)
    assert "No limit that is known is stranded or set by others" in found(site).text


def test_what_an_offline_node_said_is_not_shown_any_more() -> None:
    site = one_run()
    site.say(TOPICS.node_status("atlas"), NodeStatus(state="offline", version="1"))
    text = found(site).text
    assert "The controller of atlas is offline" in text
    assert "No GPU answers." in text
    assert "162" not in text
    site.say_node("atlas", 2)
    assert "162 / 180 W" in found(site).text


def test_a_gpu_that_is_silent_or_cannot_be_read_is_named_with_its_time() -> None:
    site = Site()
    site.say_node("atlas", 2)
    site.say_gpu("atlas", 0, ago_s=SILENT_S + 1)
    site.say_gpu("atlas", 1, power_w=None)
    text = found(site).text
    assert "2 things to look at" in text
    assert "GPU atlas 0: does not answer since 15:16." in text
    assert "No GPU answers. 0 of 2 GPUs answer, 1 of 1 nodes" in text


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("another_writer", "another program has set the limit"),
        ("run_finished_failed", "the prior limit could not be restored"),
        ("idle_untouched", "another program has set the limit"),
        ("gpu_suspect", "the GPU does not answer"),
    ],
)
def test_a_limit_that_is_stranded_or_anothers_is_the_first_thing_said(reason: str, words: str) -> None:
    site = one_run()
    site.say_gpu("atlas", 1, reason=reason)
    text = found(site).text
    assert f"1 thing to look at GPU atlas 1: {words}." in text
    assert text.index("to look at") < text.index("Saved today")


def test_troubles_of_this_process_and_stale_signals_are_said_and_many_are_counted() -> None:
    site = one_run()
    signal = site.state.grid["DE", "carbon"]
    site.say_signal(msgspec.structs.replace(signal, state="stale", age_s=9_000.0))
    page = found(site, site.overview(["the broker has not answered yet"]))
    assert "2 things to look at the broker has not answered yet" in page.text
    assert "The signal of DE (Energy-Charts) ended 2 h 30 min ago: plans do without it." in page.text
    page = found(site, site.overview([f"trouble {number}" for number in range(MAX_ALERTS + 4)]))
    assert "and 5 more" in page.text


def test_a_price_below_zero_has_a_true_minus() -> None:
    site = one_run()
    site.state.grid.clear()
    site.say_signal(price_signal(NOW_S))
    text = found(site).text
    assert (
        "Now 0.09 EUR/kWh. Dearest about 0.2 EUR/kWh at Thu 09:00, cheapest about \u22120.02 EUR/kWh at 21:00." in text
    )


def test_a_history_that_does_not_answer_costs_its_card_alone() -> None:
    site = one_run()
    text = found(site, Overview(site.state, None, "the disk is full")).text
    assert "Not known: the disk is full" in text
    assert "atlas 0 162 / 180 W" in text
    assert "Not known yet." in found(site, Overview(site.state, None)).text


def test_a_day_on_which_more_was_used_has_a_minus_and_its_interval() -> None:
    site = one_run()
    entry = Entry(
        name="",
        runs=1,
        measured_runs=1,
        carbon_g=1_300.0,
        baseline_carbon_g=1_240.0,
        saved_carbon_g=-60.0,
        saved_carbon_ci90_g=20.0,
        saved_carbon_ratio=-60.0 / 1_240.0,
    )
    text = found(site, Overview(site.state, Sums(NOW_S, NOW_S, entry, entry, entry))).text
    assert "\u221260 g CO₂e \u22124.8 % of 1.24 kg CO₂e between \u221280 and \u221240 g CO₂e" in text


def test_only_what_was_saved_has_the_colour_of_saved() -> None:
    site = one_run()
    for amount_g, kinds in ((50.0, ["big c-saved"]), (-60.0, ["big"])):
        entry = Entry(name="", runs=1, measured_runs=1, carbon_g=1e3, saved_carbon_g=amount_g, saved_carbon_ci90_g=2e1)
        page = found(site, Overview(site.state, Sums(NOW_S, NOW_S, entry, entry, entry)))
        assert [it["class"] for it in page.all("p") if str(it.get("class")).startswith("big")] == [
            *kinds,
            "big c-power",
        ]


def test_an_end_of_an_interval_near_zero_has_no_more_digits_than_the_other() -> None:
    site = one_run()
    entry = Entry(
        name="", runs=1, measured_runs=1, carbon_g=1e4, saved_carbon_g=2_000.0, saved_carbon_ci90_g=1_999.9995
    )
    text = found(site, Overview(site.state, Sums(NOW_S, NOW_S, entry, entry, entry))).text
    assert "between 0 and 4 kg CO₂e" in text
    assert "2 kg CO₂e (0 to 4 kg CO₂e)" in text


HOSTILE = "<script>alert(1)</script>\"'&\u202e\u200b" + "x" * 20


def test_hostile_names_are_text_and_nothing_else() -> None:
    site = one_run()
    key = RunKey(HOSTILE.replace("\u202e", "").replace("\u200b", "") + "\u05d0\u05d1", "j" * 64, "r" * 64)
    site.say_run(key)
    energy, signal = site.state.runs[key].energy, site.state.grid["DE", "carbon"]
    assert energy is not None
    site.state.runs[key].energy = msgspec.structs.replace(energy, gpu_model=HOSTILE, currency=HOSTILE)
    site.say_signal(msgspec.structs.replace(signal, source=HOSTILE, unit=HOSTILE))
    change = LimitChange(time_s=NOW_S, reason="clamped", detail=HOSTILE, job="j" * 64, signal=HOSTILE)
    site.say(TOPICS.gpu("atlas", "GPU-1", "limit"), change)
    page = render_overview(site.overview([HOSTILE]), now_s=NOW_S, zone=ZONE)
    parsed = Found(page)
    assert [it.get("src") for it in parsed.all("script")] == [
        "/static/theme.js",
        "/static/page.js",
        "/static/orders.js",
    ]
    assert "\u202e" not in page
    assert "\u200b" not in page
    assert "alert(1)" in parsed.text
    assert "j" * 64 in parsed.text
    assert f"/run/%3Cscript%3Ealert%281%29%3C%2Fscript%3E%22%27%26{'x' * 20}%D7%90%D7%91/{'j' * 64}/{'r' * 64}" in [
        it.get("href") for it in parsed.all("a")
    ]


@pytest.mark.parametrize("n_gpus", [0, 1, 8, 64, 200])
def test_no_attribute_is_a_style_or_a_script_and_ids_are_unique(n_gpus: int) -> None:
    page = found(site_of(n_gpus))
    for _, attributes in page.elements:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert page.all("style") == []


def test_a_page_of_64_gpus_is_light() -> None:
    page = render_overview(site_of(64).overview(), now_s=NOW_S, zone=ZONE)
    assert len(gzip.compress(page.encode())) < 40_000


def test_of_a_large_site_the_first_gpus_and_runs_are_shown_and_the_rest_counted() -> None:
    page = found(site_of(200))
    assert sum(it.get("class") == "gpu" for it in page.all("li")) == MAX_TILES
    assert f"and {200 - MAX_TILES} more" in page.text
    assert f"and {100 - MAX_RUNS} more" in page.text
    assert "200 of 200 GPUs answer, 25 of 25 nodes" in page.text


def test_power_at_the_prior_limits_is_told_only_where_all_curves_know_it() -> None:
    site = one_run()
    views, running = gpu_views(site.state, NOW_S), running_runs(site.state, NOW_S)
    assert full_power_w(views, running) == (540.0 - 4.0, 540.0 + 4.0)
    profile = running[KEY].profile
    assert profile is not None
    running[KEY].profile = msgspec.structs.replace(profile, points=profile.points[:-1])
    assert full_power_w(views, running) is None
    running[KEY].profile = profile
    assert full_power_w([_replace(views[0], job=None), views[1]], running) is None


def test_a_run_that_is_silent_or_has_ended_does_not_go_on() -> None:
    site = one_run()
    assert set(running_runs(site.state, NOW_S + SILENT_S - 10)) == {KEY}
    assert running_runs(site.state, NOW_S + SILENT_S) == {}
    energy = site.state.runs[KEY].energy
    assert energy is not None
    site.say(TOPICS.run(KEY, "energy"), msgspec.structs.replace(energy, state="finished", final=True))
    assert running_runs(site.state, NOW_S) == {}


def decided(*changes: tuple[str, float]) -> list[tuple[str, float | None]]:
    """Return what is told of changes of one GPU, a minute apart, oldest first."""
    decisions = [
        LimitChange(
            time_s=NOW_S + 60.0 * place, node="n", gpu_uuid="g", reason=reason, detail="", power_limit_w=limit_w
        )
        for place, (reason, limit_w) in enumerate(changes)
    ]
    return [(line.newest.reason, line.newest.power_limit_w) for line in reversed(decision_lines(decisions))]


def test_a_look_after_which_the_plan_stays_is_no_decision() -> None:
    plan, look, other = ("slowdown_signal", 180.0), ("refining", 300.0), ("slowdown_signal", 200.0)
    assert decided(plan, look, plan, look, plan) == [plan]
    assert decided(plan, look, other) == [plan, other]
    assert decided(plan, look) == [plan, look], "it goes on"
    assert decided(plan, other, plan) == [plan, other, plan]


def test_a_new_plan_after_a_look_is_told_against_the_plan_before() -> None:
    site = one_run()
    site.state.decisions.clear()
    for after_s, reason, before_w, limit_w in (
        (0.0, "slowdown_signal", 300.0, 180.0),
        (60.0, "refining", 180.0, 300.0),
        (90.0, "slowdown_signal", 300.0, 200.0),
    ):
        change = LimitChange(
            time_s=NOW_S - 600 + after_s,
            reason=reason,
            detail="",
            job="resnet50",
            power_limit_w=limit_w,
            previous_power_limit_w=before_w,
        )
        site.say(TOPICS.gpu("atlas", "GPU-0", "limit"), change)
    text = found(site).text
    assert "180 → 200 W · following the grid in the allowed time: faster for now" in text
    assert "300 → 200 W" not in text


def test_two_limits_that_are_mixed_are_one_decision_as_in_the_log() -> None:
    site = one_run()
    site.state.decisions.clear()
    for change in reversed(alternating(24)):
        site.say(TOPICS.gpu("atlas", change.gpu_uuid or "", "limit"), change)
    page = found(site)
    folded = "15:20 bert atlas 0+1 200 ⇄ 205 W · two limits mixed to keep the pace · 24 changes, 13:24\u201315:20"
    assert folded in page.text
    assert page.text.count("bert") == 1


def test_a_series_of_measurements_is_told_once() -> None:
    series = [("profiling", 100.0 + 20 * place) for place in range(8)]
    assert decided(*series, ("slowdown_static", 160.0)) == [series[0], ("slowdown_static", 160.0)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 4.0, 8.0]),
            st.sampled_from("ab"),
            st.sampled_from(["idle", "refining", "slowdown_signal"]),
            st.sampled_from([180.0, 200.0]),
        ),
        max_size=20,
    )
)
def test_what_holds_of_each_gpu_is_told_and_nothing_twice(changes: list[tuple[float, str, str, float]]) -> None:
    decisions, time_s = [], NOW_S
    for after_s, uuid, reason, limit_w in changes:
        time_s += after_s
        decisions.append(
            LimitChange(
                time_s=time_s, node="n", gpu_uuid=uuid, reason=reason, detail="", power_limit_w=limit_w, job="j"
            )
        )
    lines = decision_lines(decisions)
    told = [change for line in lines for change in line.changes]
    assert len(told) <= len(decisions)
    newest_s = [line.newest.time_s for line in lines]
    assert newest_s == sorted(newest_s, reverse=True)
    for uuid in "ab":
        newest = next((change for change in reversed(decisions) if change.gpu_uuid == uuid), None)
        shown = next((change for change in told if change.gpu_uuid == uuid), None)
        assert (newest is None) == (shown is None)
        if newest is not None and shown is not None:
            assert newest.reason == shown.reason
            assert newest.reason == "refining" or newest.power_limit_w == shown.power_limit_w


def test_the_power_of_all_gpus_follows_as_the_page_shows_it() -> None:
    site = one_run()
    values = live_overview(site.state, site.now_s)
    assert (values.texts[SITE_POWER], values.texts[SITE_POWER_UNIT]) == ("325", "W")
    assert values.bars[SITE_BAR] == pytest.approx((325.0 / 600.0, 0.6))
    html = render_overview(site.overview(), now_s=site.now_s, zone=ZONE)
    assert f'id="{SITE_POWER}">325<' in html
    assert f'id="{SITE_BAR}"' in html
    assert f'id="{SITE_LIMITS}">{values.texts[SITE_LIMITS]}<' in html
    assert values.texts[SITE_LIMITS] == "limits 360\u00a0W in all, prior limits 600\u00a0W"
    site.say_gpu("atlas", 0, power_limit_w=250.0)
    assert "430" in live_overview(site.state, site.now_s).texts[SITE_LIMITS]


def test_a_page_is_read_again_where_more_than_values_has_changed() -> None:
    site = one_run()
    shape = live_overview(site.state, site.now_s).shape
    site.say_gpu("atlas", 0, power_w=170.0)
    assert live_overview(site.state, site.now_s).shape == shape
    site.say_gpu("atlas", 0, reason="paused")
    assert live_overview(site.state, site.now_s).shape != shape
