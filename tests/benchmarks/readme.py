"""What the README shows of the demo: `python -m tests.benchmarks.readme`, a minute.

Runs `gridchase demo` as in a pipe, takes a picture of its panel on the way, and writes both, and the line that a
training prints at its end, into the README. The demo runs in real time, so that its last digits differ from run to run.
"""

import asyncio
import re
import sys
from io import StringIO
from pathlib import Path
from typing import Final

from rich.console import Console

from controller.demo.day.demo import DemoOptions, run_demo
from controller.demo.day.monitor import BusMonitor
from controller.demo.day.report import DemoResult, print_day_result
from controller.demo.day.setup import JOB, RUN
from controller.demo.day.view import REFRESH_S, ViewSettings, draw, show
from publishers.training.reporting.run_summary import summarize

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
        """Draw the panel again and again, as on a terminal, until it is time for the picture."""
        while not self._is_time(monitor, settings):
            self.svg = picture(monitor, settings)
            await asyncio.sleep(REFRESH_S)

    @staticmethod
    def _is_time(monitor: BusMonitor, settings: ViewSettings) -> bool:
        return monitor.run is not None and monitor.run.iterations >= PICTURED_AT * settings.iterations


def picture(monitor: BusMonitor, settings: ViewSettings) -> str:
    """Return the panel as SVG, without links to fonts elsewhere."""
    console = Console(file=StringIO(), record=True, force_terminal=True, width=WIDTH, color_system="truecolor")
    console.print(draw(monitor, settings))
    svg = console.export_svg(title="gridchase demo", unique_id="demo")
    return re.sub(r"\s*@font-face \{.*?\n    \}", "", svg, flags=re.DOTALL)


def main() -> int:
    """Run the demo and write what it shows."""
    camera, console = Camera(), Console(file=(course := StringIO()), width=WIDTH)
    result: DemoResult = asyncio.run(run_demo(DemoOptions(), console=console, view=camera.show))
    print_day_result(result, console)
    shown, _, _ = course.getvalue().partition("The table holds")
    end = f"gridchase: {summarize(JOB, RUN, result.published, unmeasured=('', ''))}"
    text = README.read_text(encoding="utf-8")
    for name, block in (("demo output", shown), ("end of the run", end)):
        before, rest = text.split(f"<!-- {name} -->\n```text\n")
        _, after = rest.split(f"```\n<!-- /{name} -->")
        lines = "\n".join(line.rstrip() for line in block.rstrip().split("\n"))
        text = f"{before}<!-- {name} -->\n```text\n{lines}\n```\n<!-- /{name} -->{after}"
    README.write_text(text, encoding="utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(camera.svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
