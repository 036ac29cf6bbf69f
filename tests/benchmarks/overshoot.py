"""How well the demo's day keeps its time budget, over many seeds: `python -m tests.benchmarks.overshoot [--write]`.

The day of `gridchase demo` under the controller itself, on virtual time: grid, curve, job, noise and configuration are
the demo's.
"""

import argparse
import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from controller.demo.day.demo import DemoOptions
from tests.benchmarks.pages import add_write, measured_on, show
from tests.benchmarks.virtual_day import play

TABLE: Final = Path(__file__).with_suffix(".md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a zone, the allowed slowdown, and the seeds."""

    zone: str
    max_slowdown: float
    seeds: range


CASES: Final = (
    Case(zone="GB", max_slowdown=1.03, seeds=range(1, 51)),
    Case(zone="GB", max_slowdown=1.03, seeds=range(51, 101)),
    Case(zone="GB", max_slowdown=1.02, seeds=range(1, 26)),
    Case(zone="GB", max_slowdown=1.05, seeds=range(1, 26)),
    *(Case(zone=zone, max_slowdown=1.03, seeds=range(1, 13)) for zone in ("DE", "US-CAISO", "US-ERCOT", "US-MISO")),
)

HEAD: Final = """\
# The demo's day: how much more time it takes than it may

{measured_on}; `python -m tests.benchmarks.overshoot --write`.

The day of `gridchase demo` under the controller itself, as in tests/benchmarks/virtual_day.py. Time is virtual, so that
a seed always gives the same run: the controller is never late, and limits and messages arrive at once (in the demo each
takes some milliseconds, seconds of its day). Overshoot: the time over that of the same work at the highest limit, less
what was allowed, in points. Bar, for the first row: 49 of 50 within 0.10, and none above 0.15."""


def overshoot(zone: str, max_slowdown: float, seed: int) -> float:
    """Play a day, and return its overshoot [points]."""
    logging.disable(logging.WARNING)
    result = play(DemoOptions(zone=zone, max_slowdown=max_slowdown, seed=seed))
    return 100 * (result.slowdown_ratio - max_slowdown)


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield HEAD.format(measured_on=measured_on())
    yield ""
    yield "| grid | allowed | seeds | mean | sd | worst | above 0.10 | above 0.15 |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|"
    with ProcessPoolExecutor(max_workers=2) as pool:
        for case in CASES:
            n = len(case.seeds)
            over = np.array(list(pool.map(overshoot, [case.zone] * n, [case.max_slowdown] * n, case.seeds)))
            cells = [
                case.zone,
                f"{case.max_slowdown - 1:.0%}",
                f"{case.seeds[0]}-{case.seeds[-1]}",
                f"{over.mean():+.3f}",
                f"{over.std():.3f}",
                f"{over.max():+.3f} (seed {case.seeds[int(over.argmax())]})",
                str(int((over > 0.10).sum())),
                str(int((over > 0.15).sum())),
            ]
            yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the page; with `--write`, write it too."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_write(parser, TABLE)
    show(page(), TABLE, write=parser.parse_args().write)


if __name__ == "__main__":
    main()
