"""How long the pages of a site take to render, and how large they are: `python -m tests.benchmarks.web_pages`.

A run on each two GPUs, eight GPUs a node; the plan of each run and a day of the grid.
"""

import gzip
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from controller.web.pages.gpus import render_gpus
from controller.web.pages.overview import render_overview
from tests.benchmarks.pages import measured_on
from tests.controller.web.pages.site import NOW_S, ZONE, site_of

SIZES: Final = (1, 8, 64, 256, 4_096)
N_TIMES: Final = 7


def rows() -> Iterator[str]:
    """Yield a row for each size of a site and each page."""
    yield "| GPUs | page | ms | kB | kB, gzip |"
    yield "|---:|---|---:|---:|---:|"
    for n_gpus in SIZES:
        site = site_of(n_gpus)
        overview = site.overview()
        yield row(n_gpus, "overview", partial(render_overview, overview, now_s=NOW_S, zone=ZONE))
        yield row(n_gpus, "GPUs", partial(render_gpus, site.state, now_s=NOW_S, zone=ZONE))


def row(n_gpus: int, name: str, render: Callable[[], str]) -> str:
    """Return the row of a page: the fastest of some times."""
    times_s, page = [], b""
    for _ in range(N_TIMES):
        begin_s = time.perf_counter()
        page = render().encode()
        times_s.append(time.perf_counter() - begin_s)
    sizes = " | ".join(f"{len(body) / 1e3:.0f}" for body in (page, gzip.compress(page)))
    return f"| {n_gpus:,} | {name} | {1e3 * min(times_s):.1f} | {sizes} |"


if __name__ == "__main__":
    print(f"({measured_on('aiohttp')})\n")
    for line in rows():
        print(line, flush=True)
