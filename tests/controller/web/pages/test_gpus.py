"""The page of GPUs: each with its numbers and its reason, by node; of a large site the nodes first."""

import re

from controller.runtime.markup import escaped
from controller.web.live.element_ids import SITE_BAR
from controller.web.pages.gpus import MAX_ROWS, gpu_views, live_values, render_gpus
from controller.web.pages.overview import running_runs
from controller.web.pages.runs.run_page import run_view
from publishers.messages.reports import GpuEnergy
from tests.controller.history.energy_history.records import TOPICS
from tests.controller.web.pages.site import NOW_S, ZONE, Found, Site, site_of
from tests.fakes import KEY


def found(site: Site, node: str | None = None) -> Found:
    return Found(render_gpus(site.state, node=node, now_s=NOW_S, zone=ZONE))


def test_each_gpu_has_a_row_with_its_numbers_and_why() -> None:
    page = found(site_of(2))
    assert "node-00 online since 15:20 · controller 1" in page.text
    row = "1 NVIDIA A40 job-0 151 W 180 W 300 W 61 °C 98 % following the grid in the allowed time: slower for now"
    assert row in page.text
    assert {it.get("data-label") for it in page.all("td")} >= {"GPU", "limit", "prior limit", "why"}


def test_nodes_come_in_the_order_of_the_numbers_in_their_names() -> None:
    site = Site()
    for number in (10, 9, 100):
        site.say_node(f"node-{number}", 1)
    assert [view.key.node for view in gpu_views(site.state, NOW_S)] == ["node-9", "node-10", "node-100"]


def test_what_a_gpu_said_before_is_not_known_now() -> None:
    site = Site()
    site.say_node("atlas", 2)
    site.say_gpu("atlas", 0, ago_s=3_600.0)
    assert "0 NVIDIA A40 not known 180 W 300 W does not answer 14:20" in found(site).text
    assert "1 NVIDIA A40 not known not known 300 W does not answer" in found(site).text
    site.say_node("atlas", 2, online=False)
    page = found(site)
    assert "atlas offline · controller 1" in page.text
    assert "0 NVIDIA A40 not known not known 300 W its node is offline" in page.text


def test_what_was_heard_before_the_clock_here_was_set_back_is_not_known_now() -> None:
    site = Site()
    site.say_node("atlas", 1)
    site.say_gpu("atlas", 0)
    site.say_run(KEY)
    before_s = NOW_S - 3_600.0
    (view,) = gpu_views(site.state, before_s)
    assert (view.mark, view.power_w) == ("error", None)
    assert running_runs(site.state, before_s) == {}
    run = run_view(site.state, KEY, None, before_s)
    assert run is not None
    assert not run.goes_on


def test_a_gpu_that_no_status_describes_is_shown_by_its_uuid() -> None:
    site = Site()
    site.say_node("atlas", 0)
    site.say(TOPICS.gpu("atlas", "GPU-abc", "energy"), GpuEnergy(time_s=NOW_S, power_w=50.0, power_limit_w=100.0))
    (view,) = gpu_views(site.state, NOW_S)
    assert (view.name, view.power_w, view.limit_w, view.prior_w) == ("atlas GPU-abc", 50.0, 100.0, None)
    assert [it.get("aria-hidden") for it in found(site).all("svg")] == ["true"]  # the same stands in the row


def test_of_a_large_site_the_nodes_come_first_and_each_has_its_page() -> None:
    site = site_of(MAX_ROWS + 8)
    page = found(site)
    assert len(page.all("tr")) == 1 + 33
    assert "8 of 8 0 1.23 kW" in page.text
    assert "/gpus?node=node-07" in [it.get("href") for it in page.all("a")]
    assert len(found(site, "node-07").all("tr")) == 1 + 8
    assert "its controller has not been heard" in found(site, "nowhere").text


def test_gpus_are_in_the_order_of_nodes_and_numbers() -> None:
    site = Site()
    for node in ("b", "a"):
        site.say_node(node, 12)
    assert [view.name for view in gpu_views(site.state, NOW_S)] == [
        f"{node} {index}" for node in "ab" for index in range(12)
    ]


def test_live_values_are_what_the_page_shows_without_script() -> None:
    site = site_of(2)
    html = render_gpus(site.state, now_s=NOW_S, zone=ZONE)
    values = live_values(gpu_views(site.state, NOW_S), NOW_S)
    by_id = {
        match["id"]: match["text"] for match in re.finditer(r'id="(?P<id>gpu/[^"]+(?<!/bar))">(?P<text>[^<]*)<', html)
    }
    assert len(by_id) == 2 * len(("power", "power-limit", "why"))
    assert by_id.items() <= {id_: escaped(text) for id_, text in values.texts.items()}.items()
    shown = {it["id"] for it in Found(html).all("svg") if it.get("id")}
    assert shown == set(values.bars) - {SITE_BAR}
