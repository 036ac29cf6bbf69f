"""The page in a real browser: values follow the bus, the theme is kept, charts answer to keys, tabs do not starve."""

import asyncio
from pathlib import Path

import pytest

from controller.runtime.clock import SystemClock
from controller.web.live.element_ids import SITE_POWER
from controller.web.pages.jobs.job_page import job_path
from publishers.messages.codec import encode
from publishers.messages.reports import GpuDescription, GpuEnergy, GridSignal, LimitChange, NodeStatus, SignalValue
from publishers.messages.topics import JobName
from tests.controller.history.energy_history.records import TOPICS
from tests.controller.web.pages.site import Site as PagesSite
from tests.fakes import FakeBus
from tests.live.page.browser import CHROMIUM, TIMEOUT_S, Tab, running_browser
from tests.live.page.served import served

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
N_TABS = 8
"""More than the six connections that a browser opens to one server."""
ZONE_IN_BROWSER = "Intl.DateTimeFormat().resolvedOptions().timeZone"
"""It may be an older name of the zone."""
HAS_ZONE = f"document.querySelector('main').dataset.zone === {ZONE_IN_BROWSER}"
"""A page of another zone is read again."""


class Node:
    """What publishes: one GPU, and the grid."""

    def __init__(self, bus: FakeBus, name: str = "atlas") -> None:
        self._bus, self._name = bus, name
        self._now_s = SystemClock().now_s()
        gpu = GpuDescription(uuid="GPU-0", index=0, model="simulated", prior_power_limit_w=300.0)
        status = NodeStatus(state="online", version="1", time_s=self._now_s, gpus=[gpu])
        bus.publish(TOPICS.node_status(name), encode(status), qos=1, retain=True)
        values = [SignalValue(starts_s=self._now_s + 3600.0 * hour, value=300.0 + hour) for hour in range(-12, 24)]
        signal = GridSignal(
            time_s=self._now_s,
            source="test",
            zone="DE",
            kind="average",
            unit="g/kWh",
            issued_at_s=self._now_s,
            state="fresh",
            age_s=0.0,
            value=300.0,
            values=values,
            forecast_from_s=self._now_s,
        )
        bus.publish(TOPICS.grid("DE", "carbon"), encode(signal), qos=1, retain=True)

    def say(self, power_w: float, reason: str = "slowdown_static", job: str = "bert") -> None:
        """Publish the power of the GPU, and why it has its limit."""
        self._now_s += 0.01
        energy = GpuEnergy(time_s=self._now_s, gpu_index=0, power_w=power_w, power_limit_w=200.0, job=job)
        self._bus.publish(TOPICS.gpu(self._name, "GPU-0", "energy"), encode(energy), retain=True)
        limit = LimitChange(time_s=self._now_s, gpu_index=0, reason=reason, detail="numbers", power_limit_w=200.0)
        self._bus.publish(TOPICS.gpu(self._name, "GPU-0", "limit"), encode(limit), qos=1, retain=True)


def shows_power(text: str) -> str:
    """Return the condition that the sum of all powers is a text."""
    return f"document.getElementById('{SITE_POWER}')?.textContent === '{text}'"


async def test_values_follow_the_bus_and_come_back_after_a_restart_of_the_server(tmp_path: Path) -> None:
    bus = FakeBus()
    node = Node(bus)
    node.say(150.0)
    async with running_browser(tmp_path / "browser") as browser:
        tab = await browser.new_tab()
        async with served(bus, tmp_path / "state") as (_, url):
            await tab.open(f"{url}/")
            await tab.run("window.isSamePage = true")
            assert await tab.run(shows_power("150"))
            node.say(160.0)
            await tab.until(shows_power("160"))
            width = await tab.run("document.querySelector('.gpu .filled').getAttribute('width')")
            assert float(width.rstrip("%")) == pytest.approx(100 * 160 / 300, abs=0.1)
            node.say(160.0, reason="paused")
            before = await tab.run("document.querySelector('.decisions').textContent")
            await keep_saying(node, tab, f"document.querySelector('.decisions').textContent !== {before!r}")
        async with served(bus, tmp_path / "state", port=int(url.rpartition(":")[2])):
            await keep_saying(node, tab, shows_power("170"), power_w=170.0)
        assert await tab.run("window.isSamePage") is True


async def keep_saying(node: Node, tab: Tab, condition: str, *, power_w: float = 160.0) -> None:
    """Publish as a node does, again and again, until a page shows what it should."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await tab.run(condition):
            node.say(power_w, reason="paused")
            await asyncio.sleep(0.2)


async def test_the_theme_is_kept_and_a_chart_answers_to_keys(tmp_path: Path) -> None:
    bus = FakeBus()
    Node(bus).say(150.0)
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (_, url):
        tab = await browser.new_tab()
        await tab.open(f"{url}/")
        await tab.until(HAS_ZONE)
        for key in ("Home", "End"):
            await tab.run(
                "document.querySelector('.chart .panels').dispatchEvent("
                f"new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))"
            )
            cell = {"Home": "first-child", "End": "last-child"}[key]
            first = await tab.run(f"document.querySelector('.chart tbody tr:{cell} td').textContent")
            readout = await tab.run("document.querySelector('.chart .readout').textContent")
            assert readout.startswith(first)
            assert "g CO₂e per kWh" in readout
        await tab.run(
            "{const select = document.querySelector('#theme select');"
            "select.value = 'dark'; select.dispatchEvent(new Event('change'))}"
        )
        for path in ("/gpus", "/runs", "/jobs", "/grid", "/log", "/history"):
            await tab.open(f"{url}{path}")
            assert await tab.run("document.documentElement.dataset.theme") == "dark"
        assert tab.complaints == []


async def test_the_last_decisions_end_with_the_chart_beside_them(tmp_path: Path) -> None:
    bus = FakeBus()
    node = Node(bus)
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (_, url):
        tab = await browser.new_tab()
        await tab.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        for reason in 6 * ("slowdown_static", "paused"):
            node.say(150.0, reason=reason)
        await tab.open(f"{url}/")
        bottom = "document.querySelector('{}').getBoundingClientRect().bottom"
        chart, card = (bottom.format(f".card:has(>{part})") for part in (".chart", ".decisions"))
        assert await tab.run(f"{chart} === {card}")
        assert await tab.run(f"{chart} - {bottom.format('.card > .chart')}") < 40
        box = "document.querySelector('.decisions').getBoundingClientRect()"
        items = "[...document.querySelectorAll('.decisions li')].map((it) => it.getBoundingClientRect())"
        seen = f"{items}.filter((it) => it.left < {box}.right)"
        assert 3 <= await tab.run(f"{seen}.length") < await tab.run(f"{items}.length")
        assert await tab.run(f"{seen}.every((it) => it.bottom <= {box}.bottom)")


async def test_a_long_name_fits_a_phone(tmp_path: Path) -> None:
    bus = FakeBus()
    node = Node(bus, name="n" * 64)
    node.say(150.0, job="j" * 64)
    job = JobName("u" * 64, "j" * 64)
    bus.publish(TOPICS.job(job, "posterior"), encode(PagesSite(SystemClock().now_s()).say_posterior(job)), retain=True)
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (_, url):
        tab = await browser.new_tab()
        await tab.call("Emulation.setDeviceMetricsOverride", width=320, height=800, deviceScaleFactor=1, mobile=False)
        for path in ("/", "/gpus", "/runs", "/jobs", job_path(job), "/grid", "/log", "/history"):
            await tab.open(f"{url}{path}")
            root = "document.documentElement"
            assert await tab.run(f"{root}.scrollWidth - {root}.clientWidth") == 0, path
        await tab.open(f"{url}/")
        edge = "document.querySelector('{}').getBoundingClientRect().right"
        assert await tab.run(f"{edge.format('.gpu .line')} <= {edge.format('.gpus')} + 1")
        name = "document.querySelector('.gpu .line b')"  # its last letter is the number of the GPU
        assert await tab.run(f"{name}.scrollWidth <= {name}.clientWidth")


async def test_a_stream_that_is_asked_for_again_is_not_called_heard(tmp_path: Path) -> None:
    bus = FakeBus()
    Node(bus).say(150.0)
    async with running_browser(tmp_path / "browser") as browser:
        tab = await browser.new_tab()
        async with served(bus, tmp_path / "state") as (_, url):
            await tab.open(f"{url}/")
            await tab.until("source?.readyState === EventSource.OPEN")
        await tab.run("ignore(); lastHeard = new Date(0); sayHeard('last heard '); follow()")
        assert await tab.run("source !== null")
        assert str(await tab.run("heard.textContent")).startswith("last heard ")


async def test_times_are_those_of_the_browser_and_next_time_at_once(tmp_path: Path) -> None:
    bus = FakeBus()
    Node(bus).say(150.0)
    n_again = "performance.getEntriesByType('resource').filter((it) => it.name === location.href).length"
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (_, url):
        tab = await browser.new_tab()
        await tab.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kathmandu")
        await tab.open(f"{url}/log")
        await tab.until(HAS_ZONE)
        await tab.open(f"{url}/")
        assert await tab.run(f"{HAS_ZONE} && {n_again} === 0")
        shown = await tab.run("document.querySelector('.decisions time').textContent")
        moment = "new Date(document.querySelector('.decisions time').dateTime)"
        assert shown == await tab.run(f"{moment}.toLocaleTimeString('en-GB', {{hour: '2-digit', minute: '2-digit'}})")
        footer = str(await tab.run("document.querySelector('footer').textContent"))
        assert f"Times and days are those of {await tab.run(ZONE_IN_BROWSER)}." in footer
        unknown = "Intl.DateTimeFormat.prototype.resolvedOptions = () => ({timeZone: 'Mars/Olympus'})"
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=unknown)
        await tab.open(f"{url}/gpus")
        await tab.until("document.querySelector('main').dataset.zone === ''")
        assert await tab.run(n_again) == 1
        assert tab.complaints == []


async def test_eight_tabs_get_their_pages_and_only_the_one_that_is_seen_holds_a_stream(tmp_path: Path) -> None:
    bus = FakeBus()
    Node(bus).say(150.0)
    async with running_browser(tmp_path / "browser") as browser, served(bus, tmp_path / "state") as (site, url):
        for _ in range(N_TABS):
            tab = await browser.new_tab()
            await tab.open(f"{url}/")
            assert await tab.run(shows_power("150"))
        node = Node(bus)
        async with asyncio.timeout(TIMEOUT_S):
            while len(site._stream) != 1:
                node.say(150.0)  # whoever has gone is noticed with the next event
                await asyncio.sleep(0.1)
