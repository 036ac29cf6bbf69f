"""Each page on each screen, in each theme, in a reader's own colours, on paper: nothing is lost, nothing too wide.

The whole of it, by `make test-page`; pictures are left in the folder of each test.
"""

from pathlib import Path
from typing import Final

import pytest

from controller.web.pages.jobs.job_page import job_path
from controller.web.pages.layout import PAGES
from controller.web.pages.words import run_path
from publishers.messages.topics import JobName, RunKey
from tests.controller.web.pages.site import PublishedSite, site_of
from tests.fakes import FakeBus
from tests.live.page.browser import AXE, CHROMIUM, Tab, running_browser
from tests.live.page.served import (
    HOSTILE_USER,
    LONG_NAME,
    LONG_TEXT,
    RIGHT_TO_LEFT,
    published_site,
    say_hostile,
    served,
)

pytestmark = [
    pytest.mark.live,
    pytest.mark.further,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
THEMES: Final = ("light", "dark")
WIDTHS_PX: Final = (320, 390, 640, 1280, 2560)
WITH_AXE_PX: Final = (390, 1280, 2560)
PAPER_PX: Final = 703
"""A4 between margins of 12 mm, at 96 px to the inch."""
MIN_CONTRAST: Final = 3.0
"""Of what is drawn, by WCAG 1.4.11."""
FAINT: Final = """
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const shown = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((it) => it / 255);
  };
  const linear = (it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const grounds = (part) => {
    const found = [];
    for (let at = part; at !== null; at = at.parentElement) found.unshift(getComputedStyle(at).backgroundColor);
    return ["white", ...found];
  };
  const drawn = ["line", "rule", "whisker", "stroke", "ring"].map((kind) => `.plot .${kind}`);
  const selector = [...drawn, ".plot text", ".gauge .filled", ".gauge .mark", "circle"].join();
  return [...document.querySelectorAll(selector)].flatMap((part) => {
    const style = getComputedStyle(part);
    const colour = style.stroke !== "none" && !part.matches("text, .filled") ? style.stroke : style.fill;
    const behind = grounds(part);
    const [one, other] = [light(shown(behind)), light(shown([...behind, colour]))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    return contrast < LEAST ? [`${part.tagName} ${part.className.baseVal}: ${colour}: ${contrast.toFixed(1)}`] : [];
  });
})()
""".replace("LEAST", str(MIN_CONTRAST))
"""What is drawn and hardly differs from what is behind it."""


def paths(site: PublishedSite, kind: str) -> list[str]:
    """Let a site of a kind publish, and return where all its pages are."""
    if kind == "hostile":
        key, job = say_hostile(site)
        return [*PAGES, run_path(key), job_path(job)]
    site_of(0 if kind == "empty" else 64, site)
    if kind == "empty":
        return list(PAGES)
    site.say_posterior()
    return [*PAGES, run_path(RunKey("ada", "job-0", "1")), job_path(JobName("ada", "resnet50"))]


@pytest.mark.skipif(AXE is None, reason="axe-core is not installed: npm install --no-save axe-core")
@pytest.mark.parametrize("kind", ["usual", "empty", "hostile"])
async def test_no_page_has_a_fault_on_any_screen_in_either_theme(kind: str, tmp_path: Path) -> None:
    bus, found = FakeBus(), list[tuple[object, ...]]()
    each, said = paths(published_site(bus), kind), set[str]()
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (_, url):
        tab = await browser.new_tab()
        for path in each:
            await tab.open(f"{url}{path}")
            assert await tab.run("document.querySelector('main img, main script') === null")
            said.add(await tab.run("document.querySelector('main').textContent"))
            for width in WIDTHS_PX:
                for theme in THEMES:
                    await tab.show(width=width, theme=theme)
                    found += [(path, width, theme, wide) for wide in await tab.too_wide()]
                    if width in WITH_AXE_PX:
                        found += [(path, width, theme, fault) for fault in await tab.faults()]
                        await leave_picture(tab, tmp_path, kind, path, width, theme)
        assert (found, tab.complaints) == ([], [])
    if kind == "hostile":
        for text in (HOSTILE_USER, LONG_TEXT, RIGHT_TO_LEFT, "\\x1b[2J\\u202e", LONG_NAME):
            assert any(text in each for each in said), text
        assert not any("refused" in each for each in said)


async def test_in_a_readers_own_colours_charts_bars_and_texts_stand_out(tmp_path: Path) -> None:
    bus, found = FakeBus(), list[tuple[object, ...]]()
    each = paths(published_site(bus), "usual")
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (_, url):
        tab = await browser.new_tab()
        for path in each:
            await tab.open(f"{url}{path}")
            for theme in THEMES:
                await tab.show(width=1280, theme=theme, has_own_colours=True)
                assert await tab.run("matchMedia('(forced-colors: active)').matches")
                found += [(path, theme, faint) for faint in await tab.run(FAINT)]
                await leave_picture(tab, tmp_path, "forced", path, 1280, theme)
    assert found == []


@pytest.mark.parametrize("kind", ["usual", "hostile"])
async def test_pages_print_in_dark_letters_on_paper_with_nothing_cut_off(kind: str, tmp_path: Path) -> None:
    bus, found = FakeBus(), list[tuple[object, ...]]()
    each = paths(published_site(bus), kind)
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (_, url):
        tab = await browser.new_tab()
        for path in each:
            await tab.open(f"{url}{path}")
            for theme in THEMES:
                await tab.show(width=PAPER_PX, theme=theme, media="print")
                found += [(path, theme, wide) for wide in await tab.too_wide()]
                found += [(path, theme, faint) for faint in await tab.run(FAINT)]
                for what, script in (
                    ("the header", "getComputedStyle(document.querySelector('header')).display !== 'none'"),
                    ("its ground", "getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)'"),
                ):
                    found += [(path, theme, what)] if await tab.run(script) else []
            await leave_picture(tab, tmp_path, "print", path, PAPER_PX, kind)
    assert found == []


async def leave_picture(tab: Tab, folder: Path, kind: str, path: str, width: int, theme: str) -> None:
    """Leave a picture of the whole page, for people to look at."""
    name = path.strip("/").split("/")[0] or "overview"
    (folder / f"{kind}-{name}-{width}-{theme}.png").write_bytes(await tab.picture(is_whole=True))
