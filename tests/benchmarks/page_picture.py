"""The picture of the page in the README: `python -m tests.benchmarks.page_picture`, a minute; needs chromium.

Plays most of the demo's day on virtual time, gives what was published to the process of a site, and takes a picture of
its first page.
"""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from controller.demo.day.demo import DemoOptions
from controller.demo.day.monitor import BusMonitor
from controller.demo.day.page import MessageClock
from controller.demo.day.view import REFRESH_S, ViewSettings
from controller.runtime.clock import SystemClock
from controller.web.app import Site
from controller.web.config import WebConfig, WebSettings
from controller.web.store import SqliteStore
from publishers.messages.codec import Outgoing
from publishers.messages.topics import Topics
from tests.benchmarks.readme import LOOKS, PICTURED_AT
from tests.benchmarks.virtual_day import play
from tests.fakes import FakeBus

PICTURE: Final = Path(__file__).parents[2] / "docs" / "images" / "page.png"
SIZE: Final = "1200,1010"
TIMEOUT_S: Final = 60.0


def published() -> list[Outgoing]:
    """Return what is published until most of the work is done, in its order."""
    bus, n_sent = FakeBus(), 0

    async def watch(monitor: BusMonitor, settings: ViewSettings) -> None:
        nonlocal n_sent
        while not _is_time(monitor, settings):  # noqa: ASYNC110 — a share of the work is waited for, not an event
            await asyncio.sleep(REFRESH_S)
        n_sent = len(bus.sent)

    play(DemoOptions(), watch, bus)
    return bus.sent[:n_sent]


def _is_time(monitor: BusMonitor, settings: ViewSettings) -> bool:
    is_done = monitor.run is not None and monitor.run.iterations >= PICTURED_AT * settings.iterations
    energy = monitor.energy
    if not is_done or energy is None or monitor.changes[-1].reason in LOOKS:
        return False
    limit_w = energy.power_limit_w
    return limit_w == monitor.changes[-1].power_limit_w and (energy.power_w or 0.0) < (limit_w or 0.0)


@asynccontextmanager
async def _served(messages: list[Outgoing], state_dir: Path) -> AsyncIterator[str]:
    begun_s = msgspec.json.decode(messages[0].payload)["time_s"]
    bus, clock, stop = FakeBus(), MessageClock(begun_s), asyncio.Event()
    config, topics = WebConfig(web=WebSettings(port=0)), Topics()
    store = SqliteStore(state_dir, topics=topics, config=config.retention)
    clock.follow(bus, topics)
    site = Site(config, bus=bus, store=store, topics=topics, clock=clock, viewers_clock=SystemClock())
    urls = asyncio.Queue[str]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(site.run(stop, urls.put_nowait), name="site")
        url = await urls.get()
        for message in messages:
            bus.publish(message.topic, message.payload, qos=message.qos, retain=message.retain)
        clock.stop(bus, topics)
        await site.finish()
        yield url
        stop.set()


async def take(messages: list[Outgoing], chromium: str, folder: Path) -> None:
    """Take the picture."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'browser'}",
    ]
    async with _served(messages, folder / "state") as url, asyncio.timeout(TIMEOUT_S):
        browser = await asyncio.create_subprocess_exec(
            chromium, *options, f"--window-size={SIZE}", f"--screenshot={PICTURE}", f"{url}/"
        )
        if await browser.wait():
            raise SystemExit("no picture")


def main() -> int:
    """Write the picture."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed", file=sys.stderr)
        return 1
    messages = published()
    with TemporaryDirectory() as folder:
        asyncio.run(take(messages, chromium, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
