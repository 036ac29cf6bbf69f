"""A pinned limit on the pages: who, until when, why, how it is ended; marks have words, hostile texts are text."""

from typing import Any

import msgspec
import pytest

from controller.runtime.markup import NO_BREAK
from controller.web.pages.gpus import gpu_views, live_values, render_gpus
from controller.web.pages.log import Asked as AskedLog
from controller.web.pages.log import log_lines, render_log
from controller.web.pages.overview import live_overview, render_overview
from controller.web.pages.runs.run_page import render_run, run_view
from publishers.messages.reports import LimitChange
from publishers.messages.topics import RunKey
from publishers.shared.printable import printable
from tests.controller.history.energy_history.records import TOPICS
from tests.controller.runtime.test_markup import HOSTILE
from tests.controller.web.pages.site import NOW_S, ZONE, Found, Site

KEY = RunKey("alice", "resnet50", "r1")
UNTIL_S = NOW_S + 2 * 3_600.0 + 2_400.0
"""18:00."""
PIN: dict[str, Any] = {
    "reason": "pinned",
    "power_limit_w": 205.0,
    "pinned_until_s": UNTIL_S,
    "pinned_by": "bob",
    "pinned_why": "the room is hot",
    "pinned_s": 13_560.0,
}
RELEASE = "gridchase release --job resnet50 --user alice --run r1"


def pinned(*, saved_ratio: float | None = 0.143, nodes: tuple[str, ...] = ("atlas",), **changes: Any) -> Site:  # noqa: ANN401 — the record checks them
    """Return a site with a pinned run of two GPUs on each of its nodes."""
    site, pin = Site(), {**PIN, **changes}
    for node in nodes:
        site.say_node(node, 2)
        for index in range(2):
            site.say_gpu(node, index, power_limit_w=205.0, reason=pin["reason"])
            limit = site.state.gpus[next(key for key in site.state.gpus if key == (node, f"GPU-{index}"))].limit
            assert limit is not None
            detail = f"pinned to 205 W by {pin['pinned_by']} until 2023-11-14 17:00 UTC: {pin['pinned_why']}"
            said = msgspec.structs.replace(limit, time_s=limit.time_s + 1, detail=detail, signal=None)
            site.say(TOPICS.gpu(node, f"GPU-{index}", "limit"), said)
    site.say_run(KEY, n_gpus=2 * len(nodes), saved_ratio=saved_ratio)
    run = site.state.runs[KEY]
    assert run.energy is not None
    run.energy = msgspec.structs.replace(run.energy, **pin)
    run.schedule = None  # a pinned run has none
    return site


def overview(site: Site, now_s: float = NOW_S) -> Found:
    return Found(render_overview(site.overview(), now_s=now_s, zone=ZONE))


def run_page(site: Site, now_s: float = NOW_S) -> Found:
    view = run_view(site.state, KEY, None, now_s)
    assert view is not None
    return Found(render_run(view, site.state, now_s=now_s, zone=ZONE))


def test_a_pin_is_a_thing_to_look_at_with_who_until_when_why_and_how_to_end_it() -> None:
    page = overview(pinned())
    said = "1 thing to look at resnet50 of alice is pinned at 205 W until 18:00 by bob : the room is hot"
    assert said in page.text
    assert f"To end it, on its node: {RELEASE}" in page.text
    assert "Its run so far: 50.1 g CO₂e, 14.3 % (43.1 to 57.1 g CO₂e) saved, 3.0 % (2.6 to 3.4 %) slower." in page.text
    assert not [it for it in page.all("span") if it.get("class") in {"state warning", "state error"}], "it is no fault"
    assert page.all("section")[0]["class"] == "card alert c-pinned"


def test_without_evidence_no_number_is_told_of_a_pinned_run() -> None:
    page = overview(pinned(saved_ratio=None))
    assert "is pinned at 205 W" in page.text
    assert "Its run so far" not in page.text


def test_beside_a_fault_a_pin_is_the_last_thing_to_look_at() -> None:
    site = pinned()
    site.say_node("beta", 1, online=False)
    page = overview(site)
    assert "2 things to look at The controller of beta is offline: its GPU is not known. resnet50 of alice" in page.text
    assert page.all("section")[0]["class"] == "card alert"


def test_a_pin_that_is_not_in_force_says_so_and_no_limit() -> None:
    text = overview(pinned(reason="claim_unproven", power_limit_w=300.0)).text
    assert "resnet50 of alice is pinned until 18:00 by bob : the room is hot" in text
    assert "Not in force: not shown to run on this GPU." in text


def test_a_pin_that_has_ended_is_no_thing_to_look_at_and_only_its_time_is_told() -> None:
    for site, now_s in (
        (pinned(reason="slowdown_signal", pinned_until_s=None, pinned_by=None, pinned_why=None), NOW_S),
        (pinned(pinned_until_s=NOW_S + 10.0), NOW_S + 10.0),
    ):
        assert "to look at" not in overview(site, now_s).text
        text = run_page(site, now_s).text
        assert "pinned for 3 h 46 min" in text
        assert RELEASE not in text
    ended = overview(pinned(state="finished", final=True)).text
    assert "to look at" not in ended


def test_each_gpu_of_a_pinned_run_on_several_nodes_has_the_mark_and_the_word() -> None:
    site = pinned(nodes=("atlas", "beta"))
    page = overview(site)
    assert page.text.count("is pinned at") == 1, "a pin is of a run, not of a GPU"
    marks = [it for it in page.all("span") if it.get("class") == "state pinned"]
    assert len(marks) == 1 + 4 + 1 + 1, "the run, its tiles, its row, and the number of GPUs"
    assert page.text.count("resnet50 · pinned") == 4
    assert "4 GPUs pinned" in page.text
    table = Found(render_gpus(site.state, now_s=NOW_S, zone=ZONE))
    assert table.text.count("pinned to 205 W by bob until 2023-11-14 17:00 UTC: the room is hot") == 4
    assert [view.mark for view in gpu_views(site.state, NOW_S)] == ["pinned"] * 4


def test_a_gpu_that_is_offline_or_anothers_is_not_called_pinned() -> None:
    site = pinned(reason="another_writer")
    assert {view.mark for view in gpu_views(site.state, NOW_S)} == {"warning"}
    site = pinned()
    site.say_node("atlas", 2, online=False)
    assert {view.mark for view in gpu_views(site.state, NOW_S)} == {"error"}


def test_the_page_of_a_pinned_run_says_who_and_how_long_and_does_not_blame_the_plan() -> None:
    text = run_page(pinned()).text
    for part in (
        "pinned until 18:00 by bob : the room is hot · 3 h 46 min so far",
        f"to end it on its node: {RELEASE}",
        "why pinned by bob : the room is hot",
        "pinned for 3 h 46 min, at a limit that a person chose, not the plan",
        "A person has pinned its limit: it has no plan until 18:00.",
    ):
        assert part in text, part
    assert "The run has no plan." not in text
    assert (
        "pinned"
        not in run_page(
            pinned(reason="slowdown_signal", pinned_until_s=None, pinned_by=None, pinned_why=None, pinned_s=None)
        ).text.partition("Decisions")[0]
    )


def test_the_log_names_who_and_why_once() -> None:
    site = pinned()
    changes = [change for change in reversed(site.state.decisions) if change.detail.startswith("pinned")]
    page = Found(render_log(changes, AskedLog(), now_s=NOW_S, zone=ZONE))
    said = "pinned to 205 W by bob until 2023-11-14 17:00 UTC: the room is hot"
    assert f"0+1 225 → 205 W {said} · 98.5 % of full speed" in page.text
    assert page.text.count("the room is hot") == 1
    others = [msgspec.structs.replace(changes[0], gpu_uuid="GPU-9", detail="pinned to 205 W by eve: another room")]
    assert len(log_lines([*changes, *others])) == 2, "of two pins each has its own words"


def test_the_live_values_and_the_page_without_a_script_say_the_same_of_a_pin() -> None:
    site = pinned(pinned_why="the room is \u202ehot")
    values = live_values(gpu_views(site.state, NOW_S), NOW_S)
    table = Found(render_gpus(site.state, now_s=NOW_S, zone=ZONE))
    whys = [text for part, text in values.texts.items() if part.endswith("/why")]
    assert len(whys) == 2
    for why in whys:
        assert why.isprintable() or why.replace(NO_BREAK, " ").isprintable()
        assert why in table.texts


@pytest.mark.parametrize(
    "changes", [{"pinned_until_s": None}, {"pinned_until_s": UNTIL_S + 600.0}, {"pinned_why": "x"}, {"pinned_by": "x"}]
)
def test_the_page_is_read_again_when_a_pin_changes(changes: dict[str, Any]) -> None:
    site = pinned()
    before = live_overview(site.state, NOW_S).shape
    run = site.state.runs[KEY]
    assert run.energy is not None
    run.energy = msgspec.structs.replace(run.energy, **changes)
    assert live_overview(site.state, NOW_S).shape != before


def test_a_pin_of_a_gpu_is_released_there_and_not_with_the_run() -> None:
    site = pinned(pinned_gpu_uuid="GPU-1")
    page = overview(site)
    assert "resnet50 of alice is pinned at 205 W with one of its GPUs until 18:00 by bob" in page.text
    assert "To end it, on its node: gridchase release --gpu GPU-1" in page.text
    assert "gridchase release --gpu GPU-1" in run_page(site).text
    view = run_view(site.state, KEY, None, NOW_S, takes_orders=True)
    assert view is not None
    pages = (
        Found(render_run(view, site.state, now_s=NOW_S, zone=ZONE)),
        Found(render_overview(site.overview()._replace(takes_orders=True), now_s=NOW_S, zone=ZONE)),
    )
    for each in pages:
        releases = [it["href"] for it in each.all("a") if str(it.get("href")).endswith("release")]
        assert releases == ["/gpu/atlas/GPU-1/order?action=release"]


@pytest.mark.parametrize("text", [*HOSTILE, "x" * 120, "\u05d0\u05d1 is hot", "'; rm -rf ~ #"])
def test_whatever_a_pin_says_is_text(text: str) -> None:
    site = pinned(pinned_by=text, pinned_why=text)
    plain = pinned()
    for page, other in (
        (overview(site), overview(plain)),
        (run_page(site), run_page(plain)),
        (
            Found(render_gpus(site.state, now_s=NOW_S, zone=ZONE)),
            Found(render_gpus(plain.state, now_s=NOW_S, zone=ZONE)),
        ),
    ):
        assert [tag for tag, _ in page.elements] == [tag for tag, _ in other.elements]
        assert printable(text) in page.text
        assert "\u202e" not in page.text


def test_the_command_that_ends_a_pin_is_quoted_for_a_shell() -> None:
    site, key = pinned(), RunKey("eve; rm -rf ~", "resnet50", "r1")
    site.state.runs[key] = site.state.runs.pop(KEY)
    assert "gridchase release --job resnet50 --user 'eve; rm -rf ~' --run r1" in overview(site).text


def test_a_pin_without_a_name_or_a_reason_is_told_without() -> None:
    text = overview(pinned(saved_ratio=None, pinned_by=None, pinned_why=None)).text
    assert "resnet50 of alice is pinned at 205 W until 18:00 To end it" in text


def test_a_limit_without_words_is_pinned_by_a_person() -> None:
    change = LimitChange(time_s=NOW_S, reason="pinned", detail="", job="resnet50", power_limit_w=205.0)
    page = Found(render_log([change], AskedLog(), now_s=NOW_S, zone=ZONE))
    assert "pinned by a person" in page.text


def test_what_pins_took_beyond_the_plan_is_told_with_its_interval_or_not_at_all() -> None:
    extra: dict[str, Any] = {
        "pinned_extra_s": 720.0,
        "pinned_extra_ci90_s": 120.0,
        "pinned_extra_energy_j": -756e3,
        "pinned_extra_energy_ci90_j": 72e3,
    }
    said = "12 min more time (10 to 14 min) and 210 Wh less energy (190 to 230 Wh) than by its plan"
    assert f"Its pins so far: {said}. To end it" in overview(pinned(**extra)).text
    assert f"so it took {said}" in run_page(pinned(**extra)).text
    for page in (overview(pinned(**extra | {"pinned_extra_ci90_s": None})), run_page(pinned())):
        assert "than by its plan" not in page.text


@pytest.mark.parametrize("text", ["bob", *HOSTILE])
def test_a_goal_that_a_person_has_set_is_told_with_who_until_when_and_why(text: str) -> None:
    site = pinned()
    site.say_run(KEY)
    run = site.state.runs[KEY]
    assert run.schedule is not None
    schedule = msgspec.structs.replace(run.schedule, goal_by=text, goal_why="dear today", goal_until_s=UNTIL_S)
    run.schedule = schedule
    said = " ".join(printable(text).split())
    assert f"goal a time budget of 5.0 % until 18:00, set by {said} : dear today" in run_page(site).text
    run.schedule = msgspec.structs.replace(schedule, budget_since_s=NOW_S - 3_600.0)
    assert "goal a time budget of 5.0 %, counted since 14:20, until 18:00, set by" in run_page(site).text
    run.schedule = msgspec.structs.replace(schedule, objective="deadline", deadline_s=UNTIL_S, goal_until_s=None)
    assert f"goal a deadline at 18:00, set by {said} : dear today" in run_page(site).text
    view = run_view(site.state, KEY, None, NOW_S, takes_orders=True)
    assert view is not None
    assert "give its own goal back" in render_run(view, site.state, now_s=NOW_S, zone=ZONE)
    run.schedule = msgspec.structs.replace(schedule, goal_by=None)
    assert "set by" not in run_page(site).text
