"""What lasts longer than a test of CI may: a server that says nothing, a cut, wrong clocks, another time zone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

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


class Relay:
    """Passes bytes on between a browser and a server, and can be cut: then nothing passes, and neither end is told."""

    def __init__(self, url: str) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._whole = asyncio.Event()
        self._whole.set()
        self._ends: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Let nothing pass any more."""
        self._whole.clear()

    def mend(self) -> None:
        """Let new connections pass; those from before were reset, as by a router that has forgotten them."""
        for end in self._ends:
            end.transport.abort()
        self._whole.set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        with suppress(OSError):
            await self._whole.wait()
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            self._ends |= {writer, far_writer}
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, far_writer))
                tasks.create_task(self._pass_on(far_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while content := await reader.read(1 << 16):
                await self._whole.wait()
                writer.write(content)
                await writer.drain()
            writer.close()


@asynccontextmanager
async def relay_to(url: str) -> AsyncIterator[tuple[Relay, str]]:
    """Yield a relay to a server, and its own URL."""
    relay = Relay(url)
    server = await asyncio.start_server(relay.connect, "127.0.0.1", 0)
    yield relay, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    relay.mend()


async def test_a_connection_that_is_cut_is_said_and_values_come_back_with_it(tmp_path: Path) -> None:
    bus = FakeBus()
    site = published_site(bus)
    site_of(2, site)
    async with (
        running_browser(tmp_path / "browser") as browser,
        served(bus, tmp_path / "state") as (_, url),
        relay_to(url) as (relay, relay_url),
    ):
        tab = await browser.new_tab()
        await tab.open(f"{relay_url}/")
        await tab.until("source?.readyState === EventSource.OPEN")
        await tab.run(f"window.isSamePage = true; window.before = {POWER}")
        relay.cut()
        site.say_gpu("node-00", 0, power_w=33.0)
        await tab.until(f"{HEARD}.startsWith('last heard ')")
        assert await tab.run(f"{POWER} !== '184' && {POWER} === window.before"), "the numbers stay"
        relay.mend()
        await tab.until(f"{HEARD}.startsWith('as of ') && {POWER} === '184'")
        assert await tab.run("window.isSamePage")


class SteppedSystemClock(SystemClock):
    """The clock of a server that someone sets."""

    step_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.step_s


@pytest.mark.parametrize("step_s", [-HOUR_MS / 1e3, HOUR_MS / 1e3])
async def test_a_servers_clock_that_is_set_is_followed(step_s: float, tmp_path: Path) -> None:
    bus, clock = FakeBus(), SteppedSystemClock()
    site = published_site(bus)
    site_of(2, site)
    async with (
        running_browser(tmp_path / "browser") as browser,
        served(bus, tmp_path / "state", clock=clock) as (_, url),
    ):
        tab = await browser.new_tab()
        await tab.open(f"{url}/")
        await tab.until("source?.readyState === EventSource.OPEN")
        await tab.run("window.isSamePage = true")
        clock.step_s = step_s
        site.now_s = clock.now_s()
        for gpu in range(2):
            site.say_gpu("node-00", gpu, power_w=33.0)
        await tab.until(
            f"{POWER} === '66' && Math.abs(lastHeard.getTime() - {1e3 * clock.now_s()}) < 1e3 * {TIMEOUT_S}"
        )
        assert str(await tab.run(HEARD)).startswith("as of ")
        assert await tab.run("window.isSamePage")
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
