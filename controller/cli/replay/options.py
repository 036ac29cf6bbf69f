"""Options shared by the replays, and their validation."""

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

MAX_SEEDS: Final = 1_000


class Bounds(NamedTuple):
    """The bounds of an option, and what they are called; None is always allowed."""

    option: str
    least: float
    most: float
    text: str


ETA: Final = Bounds("eta", 0, 1, "from 0 (only time counts) to 1 (only energy counts)")
SEEDS: Final = Bounds("seeds", 1, MAX_SEEDS, f"from 1 to {MAX_SEEDS:,}")
PROCESSES: Final = Bounds("processes", 1, math.inf, "at least 1")


def add_policies(part: argparse.ArgumentParser, policies: Sequence[str], *, default: str = "all") -> None:
    """Add which policies to compare; `default` says which are where nothing is said."""
    help_text = f"which to compare (default: {default})"
    part.add_argument("--policy", nargs="+", action="extend", choices=policies, help=help_text)


def add_output(part: argparse.ArgumentParser) -> None:
    """Add how results are shown, and how many processes work."""
    part.add_argument("--json", action="store_true", help="print JSON")
    part.add_argument("--processes", type=int, metavar="N", help="at a time (default: one for each core)")


def out_of_bounds(options: argparse.Namespace, *bounds: Bounds) -> Iterator[str]:
    """Yield the options that are out of their bounds, infinite or no number."""
    for bound in bounds:
        given = getattr(options, bound.option.replace("-", "_"))
        for value in given if isinstance(given, list) else [given]:
            if value is not None and not (bound.least <= value <= bound.most and value < math.inf):
                yield f"--{bound.option} {value:.15g}: must be {bound.text}"


def n_processes(options: argparse.Namespace) -> int:
    """Return how many processes shall work at a time."""
    return options.processes or os.cpu_count() or 1
