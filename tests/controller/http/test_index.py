"""The controller's own page: short, escaped, and served with a policy that lets nothing in."""

from dataclasses import replace

import pytest

from controller.http.health import GpuSnapshot
from controller.http.index import _HOLDS, MAX_GPUS, POLICY, index_page
from controller.ports import Hold
from tests.controller.http.test_server import SAMPLE, STATE, Server


def test_a_gpu_is_shown_with_power_limit_and_reason() -> None:
    limit = replace(STATE, reason="idle")
    page = index_page("node-1", {"GPU-1": GpuSnapshot(limit=limit, sample=SAMPLE)})
    assert "<h1>gridchase on node-1</h1>" in page
    assert "<td>GPU-1</td><td>186 W</td><td>190 W</td><td>no iterations; prior limit</td>" in page
    assert "gridchase web" in page
    assert "9323" in page


def test_what_cannot_be_read_now_is_not_shown_as_known() -> None:
    suspect = GpuSnapshot(limit=replace(STATE, hold=Hold.SUSPECT))
    assert "<td>—</td><td>—</td><td>the GPU does not answer</td>" in index_page("n", {"GPU-1": suspect})
    assert "<td>—</td><td>—</td><td>—</td>" in index_page("n", {"GPU-1": GpuSnapshot()})
    assert "No GPU is known yet." in index_page("n", {})


@pytest.mark.parametrize("hold", Hold)
def test_before_there_is_a_reason_words_say_who_has_the_limit(hold: Hold) -> None:
    page = index_page("n", {"GPU-1": GpuSnapshot(limit=replace(STATE, hold=hold, reason=""))})
    assert f"<td>{_HOLDS[hold]}</td>" in page


def test_names_are_text_not_markup() -> None:
    page = index_page("<script>x", {"<b>": GpuSnapshot(limit=replace(STATE, reason="<i>"))})
    assert "&lt;script&gt;x" in page
    assert not any(tag in page for tag in ("<script", "<b>", "<i>"))


def test_a_page_of_many_gpus_stays_below_5_kb() -> None:
    gpu = GpuSnapshot(limit=replace(STATE, reason="r" * 38), sample=SAMPLE)
    page = index_page("n" * 64, {f"GPU-{n:036}": gpu for n in range(1_000)})
    assert len(page.encode()) <= 5_000
    assert f"{1_000 - MAX_GPUS} more GPUs" in page


async def test_it_is_served_at_the_root_with_a_strict_policy() -> None:
    async with Server().serving() as client, client.get("/") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert "GPU-1" in await answer.text()
    assert "default-src 'none'" in POLICY
    assert "unsafe" not in POLICY
