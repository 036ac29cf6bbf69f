"""What lasts longer than a test of CI may: a server that says nothing, wrong clocks, another time zone."""

import os
import signal
from pathlib import Path
from typing import Final

import pytest

from controller.runtime.clock import SystemClock
from controller.web.live.element_ids import SITE_POWER
from tests.controller.web.pages.site import site_of
from tests.fakes import FakeBus
from tests.live.conftest import Mosquitto
from tests.live.page.browser import CHROMIUM, Tab, running_browser
from tests.live.page.served import TIMEOUT_S, published_site, running_web, say_of_one_gpu, served

pytestmark = [
    pytest.mark.live,
    pytest.mark.further,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
POWER: Final = f"document.getElementById('{SITE_POWER}').textContent"
HEARD: Final = "document.getElementById('heard').textContent"
CLOCK: Final = """
{
  const Real = Date;
  window.off_ms = OFF_MS;
  Date = class extends Real {
    constructor(...given) { if (given.length) super(...given); else super(Real.now() + window.off_ms); }
    static now() { return Real.now() + window.off_ms; }
  };
}
"""
"""A browser whose clock is off."""
HOUR_MS: Final = 3_600_000


async def test_a_server_that_stands_still_is_said_and_comes_back(broker: Mosquitto, tmp_path: Path) -> None:
    say_of_one_gpu(broker, 150.0)
    async with running_browser(tmp_path / "browser") as browser:
        with running_web(broker, tmp_path) as web:
            tab = await browser.new_tab()
            await tab.open(f"{web.url}/")
            await tab.until(f"{POWER} === '150'")
            await tab.run("window.isSamePage = true")
            await tab.until(f"source?.readyState === EventSource.OPEN && {HEARD}.startsWith('as of ')")
            os.kill(web.child.pid, signal.SIGSTOP)
            await tab.until(f"{HEARD}.startsWith('last heard ')")
            assert await tab.run(f"{POWER} === '150' && document.getElementById('heard').matches('.silent')")
            os.kill(web.child.pid, signal.SIGCONT)
            say_of_one_gpu(broker, 160.0)
            await tab.until(f"{HEARD}.startsWith('as of ') && {POWER} === '160'")
            assert await tab.run("window.isSamePage && !document.getElementById('heard').matches('.silent')")
            assert tab.complaints == []


async def opened(tab: Tab, url: str, off_ms: int) -> None:
    """Open the overview in a browser whose clock is off."""
    await tab.call("Page.addScriptToEvaluateOnNewDocument", source=CLOCK.replace("OFF_MS", str(off_ms)))
    await tab.open(f"{url}/")
    await tab.until("source?.readyState === EventSource.OPEN")
    assert await tab.run(f"Math.abs(Date.now() - performance.timeOrigin - performance.now() - {off_ms}) < 60000")


@pytest.mark.parametrize("off_ms", [-HOUR_MS, HOUR_MS])
async def test_a_browsers_clock_that_is_off_changes_no_time(off_ms: int, tmp_path: Path) -> None:
    bus = FakeBus()
    site = published_site(bus)
    site_of(2, site)
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (_, url):
        tab = await browser.new_tab()
        await opened(tab, url, off_ms)
        before_s = SystemClock().now_s()
        site.now_s = before_s
        site.say_gpu("node-00", 0, power_w=33.0)
        await tab.until(f"{POWER} === '184'")
        assert abs(await tab.run("lastHeard.getTime()") / 1e3 - before_s) < TIMEOUT_S
        shown = str(await tab.run(HEARD)).removeprefix("as of ")
        zone = "timeZone: document.querySelector('main').dataset.zone || undefined"
        assert shown == await tab.run(f"lastHeard.toLocaleTimeString('en-GB', {{{zone}}})")
        await tab.run(f"window.off_ms -= {HOUR_MS}; readAt -= REFRESH_MS")
        site.say_gpu("node-00", 0, power_w=34.0)
        again = "performance.getEntriesByType('resource').filter((it) => it.name === location.href).length > 0"
        await tab.until(again)
        assert tab.complaints == []


async def test_a_browser_that_travels_gets_the_times_of_where_it_is(tmp_path: Path) -> None:
    bus = FakeBus()
    site = published_site(bus)
    site_of(2, site)
    zone = "document.querySelector('main').dataset.zone"
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (_, url):
        tab = await browser.new_tab()
        await tab.call("Emulation.setTimezoneOverride", timezoneId="Europe/Berlin")
        await tab.open(f"{url}/")
        await tab.until(f"{zone} === 'Europe/Berlin'")
        await tab.call("Emulation.setTimezoneOverride", timezoneId="America/New_York")
        await tab.run("readAt -= REFRESH_MS")
        site.say_gpu("node-00", 0, power_w=33.0)
        await tab.until(f"{zone} === 'America/New_York'")
        moment = "new Date(document.querySelector('.decisions time').dateTime)"
        clock = f"{moment}.toLocaleTimeString('en-GB', {{hour: '2-digit', minute: '2-digit'}})"
        await tab.until(f"document.querySelector('.decisions time').textContent.endsWith({clock})")
