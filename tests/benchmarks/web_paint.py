"""How soon a browser paints the overview, and its bytes on the wire: `python -m tests.benchmarks.web_paint`.

Best on a quiet machine: seven new tabs for each size of a site, first with nothing in the cache, then with its files.
"""

import asyncio
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks.pages import measured_on
from tests.controller.web.pages.site import site_of
from tests.fakes import FakeBus
from tests.live.page.browser import Browser, Tab, running_browser
from tests.live.page.served import published_site, served

SIZES: Final = (0, 2, 64)
N_TABS: Final = 7
WIDTH_PX: Final = 1280
_PAINTS: Final = "performance.getEntriesByName('first-contentful-paint')"
_SENT: Final = (
    "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
    ".reduce((sum, it) => sum + it.transferSize, 0)"
)


async def painted_ms(tab: Tab, url: str) -> float:
    """Open the overview, and return when its first contents were painted [ms]."""
    await tab.open(f"{url}/")
    await tab.until(f"{_PAINTS}.length > 0")
    return float(await tab.run(f"{_PAINTS}[0].startTime"))


async def row(browser: Browser, url: str, n_gpus: int) -> str:
    """Return the row of a size: medians and the longest."""
    first_ms, again_ms, sent_bytes = [], [], 0.0
    for _ in range(N_TABS):
        tab = await browser.new_tab()
        await tab.show(width=WIDTH_PX)
        await tab.call("Network.enable")
        await tab.call("Network.setCacheDisabled", cacheDisabled=True)
        first_ms.append(await painted_ms(tab, url))
        sent_bytes = float(await tab.run(_SENT))
        await tab.call("Network.setCacheDisabled", cacheDisabled=False)
        await tab.open(f"{url}/grid")
        again_ms.append(await painted_ms(tab, url))
    shown = (f"{median(times_ms):.0f} (up to {max(times_ms):.0f})" for times_ms in (first_ms, again_ms))
    return f"| {n_gpus} | {' | '.join(shown)} | {sent_bytes / 1e3:.0f} |"


async def main() -> None:
    """Print a row for each size of a site."""
    print(f"({measured_on('aiohttp')})\n")
    print("| GPUs | first paint, ms | with the files in the cache, ms | kB on the wire |\n|---:|---:|---:|---:|")
    for n_gpus in SIZES:
        bus = FakeBus()
        site_of(n_gpus, published_site(bus))
        with TemporaryDirectory() as name:
            folder = Path(name)
            async with running_browser(folder / "browser") as browser, served(bus, folder / "state") as (_, url):
                print(await row(browser, url, n_gpus), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
