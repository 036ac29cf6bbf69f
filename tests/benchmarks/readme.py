"""What the README shows of the demo: `python -m tests.benchmarks.readme`, half a minute.

Plays the day of `gridchase demo` on virtual time, so that it is the same each time: as in a pipe, with a picture of its
panel on the way, and the line that a training prints at its end. A test compares the README with it.
"""

import asyncio
import re
import sys
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Final

from rich.console import Console

from controller.demo.day.demo import DemoOptions
from controller.demo.day.monitor import BusMonitor
from controller.demo.day.report import print_day_result
from controller.demo.day.setup import JOB, RUN
from controller.demo.day.view import REFRESH_S, ViewSettings, draw, show
from publishers.training.reporting.run_summary import summarize
from tests.benchmarks.virtual_day import play

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
PICTURE: Final = ROOT / "docs" / "images" / "demo.svg"
WIDTH: Final = 80
PICTURED_AT: Final = 0.8
"""The share of the work that is done in the picture."""


class Camera:
    """A view that shows the course in a pipe, and takes a picture of the panel on the way."""

    def __init__(self) -> None:
        self.svg = ""

    async def show(self, monitor: BusMonitor, settings: ViewSettings, console: Console) -> None:
        """Show the course, and take the picture."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(show(monitor, settings, console), name="course")
            tasks.create_task(self._take(monitor, settings), name="camera")

    async def _take(self, monitor: BusMonitor, settings: ViewSettings) -> None:
        """Draw the panel when it is time for the picture."""
        while not self._is_time(monitor, settings):  # noqa: ASYNC110 — a share of the work is waited for, not an event
            await asyncio.sleep(REFRESH_S)
        self.svg = picture(monitor, settings)

    @staticmethod
    def _is_time(monitor: BusMonitor, settings: ViewSettings) -> bool:
        return monitor.run is not None and monitor.run.iterations >= PICTURED_AT * settings.iterations


def picture(monitor: BusMonitor, settings: ViewSettings) -> str:
    """Return the panel as SVG, without links to fonts elsewhere."""
    console = Console(file=StringIO(), record=True, force_terminal=True, width=WIDTH, color_system="truecolor")
    console.print(draw(monitor, settings))
    svg = console.export_svg(title="gridchase demo", unique_id="demo")
    return re.sub(r"\s*@font-face \{.*?\n    \}", "", svg, flags=re.DOTALL)


def shown() -> tuple[dict[str, str], str]:
    """Play the demo's day; return the README's blocks by their names, and the picture."""
    camera, console = Camera(), Console(file=(course := StringIO()), width=WIDTH)
    result = play(DemoOptions(), view=partial(camera.show, console=console))
    print_day_result(result, console)
    text, _, _ = course.getvalue().partition("The table holds")
    end = f"gridchase: {summarize(JOB, RUN, result.published, unmeasured=('', ''))}"
    blocks = {"demo output": text, "end of the run": end}
    return {name: "\n".join(map(str.rstrip, block.rstrip().split("\n"))) for name, block in blocks.items()}, camera.svg


def block_of(readme: str, name: str) -> str:
    """Return what the README shows in a block."""
    return readme.split(f"<!-- {name} -->\n```text\n")[1].partition(f"\n```\n<!-- /{name} -->")[0]


def main() -> int:
    """Write what the demo shows."""
    blocks, picture_svg = shown()
    text = README.read_text(encoding="utf-8")
    for name, block in blocks.items():
        text = text.replace(f"```text\n{block_of(text, name)}\n```", f"```text\n{block}\n```")
    README.write_text(text, encoding="utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture_svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
