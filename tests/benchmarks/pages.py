"""What the pages of benchmarks share: where and when they were measured, and how they are printed and written."""

import argparse
import os
import platform
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from gridchase.cli.verb import VERSION


def measured_on(*libraries: str) -> str:
    """Return the date, the machine and the versions of gridchase, numpy and these libraries."""
    machine = f"{os.cpu_count()} cores of {platform.machine()}, {platform.system()} {platform.release()}"
    versions = ", ".join(f"{library} {version(library)}" for library in ("numpy", *libraries))
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return f"{today}, {machine}, Python {platform.python_version()}, gridchase {VERSION}, {versions}"


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add where the measured curves and the series of the grid are."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="folders carbon and zeus of CSV files")


def has_data(data: Path | None) -> bool:
    """Return whether there are curves and series; say that the benchmark is skipped where there are none."""
    if data is not None and any(data.glob("carbon/*.csv")) and any(data.glob("zeus/summary_power_*.csv")):
        return True
    print("skipped: there is no data; name a folder with carbon/*.csv and zeus/summary_power_*.csv with --data DIR")
    return False


def show_data_page(
    parser: argparse.ArgumentParser, page: Path, lines_of: Callable[[argparse.Namespace], Iterable[str]]
) -> None:
    """Measure with the data that the command line names, and print; with `--write` into the page, too.

    Args:
        parser: of the command line, with the options that are the benchmark's own.
        page: the page.
        lines_of: measures, and returns the lines of the page; where there is no data it is not called.
    """
    add_data(parser)
    add_write(parser, page)
    options = parser.parse_args()
    if has_data(options.data):
        show(lines_of(options), page, write=options.write)


def add_write(parser: argparse.ArgumentParser, page: Path) -> None:
    """Add whether the page is written."""
    parser.add_argument("--write", action="store_true", help=f"write {page.name}")


def show(lines: Iterable[str], page: Path, *, write: bool) -> None:
    """Print lines as they come; when all are there, write the page, if that is asked for."""
    shown = []
    for line in lines:
        print(line, flush=True)
        shown.append(line)
    if write:
        page.write_text("\n".join(shown) + "\n", encoding="utf-8")
