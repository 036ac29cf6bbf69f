"""What the README shows of the demo: `python -m tests.benchmarks.readme`, half a minute.

Plays the day of `gridchase demo` on virtual time, so that it is the same each time: as in a pipe, with a picture of its
panel on the way, a chart of the day, and the line that a training prints at its end. A test compares the README
with it.
"""

import asyncio
import re
import sys
import textwrap
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
from controller.web.charts.marks import Chart, Line, NumberAxis, Panel, Rule, TimeAxis
from controller.web.charts.svg_file import render_svg
from publishers.training.reporting.run_summary import summarize
from tests.benchmarks.virtual_day import play

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
PICTURE: Final = ROOT / "docs" / "images" / "demo.svg"
CHART: Final = ROOT / "docs" / "images" / "grid.svg"
WIDTH: Final = 80
END_WIDTH: Final = 100
"""Of the README: the line at the end of a run is wrapped."""
PICTURED_AT: Final = 0.8
"""The share of the work that is done in the picture."""


LOOKS: Final = frozenset({"profiling", "refining"})
"""Why limits are tried for some seconds: not what is planned."""


class Camera:
    """A view that shows the course in a pipe, and takes a picture of the panel on the way; and what the chart shows.

    Attributes:
        svg: the picture.
        limits_w: the planned power limits by the time since which they hold [Unix s].
        intensities_g_per_kwh: the carbon intensity of the grid by the time of each reading [Unix s].
        prior_power_limit_w: the limit before the run.
    """

    def __init__(self) -> None:
        self.svg = ""
        self.limits_w: dict[float, float] = {}
        self.intensities_g_per_kwh: dict[float, float] = {}
        self.prior_power_limit_w = 0.0

    async def show(self, monitor: BusMonitor, settings: ViewSettings, console: Console) -> None:
        """Show the course, and take the picture."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(show(monitor, settings, console), name="course")
            tasks.create_task(self._take(monitor, settings), name="camera")
            tasks.create_task(self._record(monitor), name="record")

    async def _take(self, monitor: BusMonitor, settings: ViewSettings) -> None:
        """Draw the panel when it is time for the picture."""
        while not self._is_time(monitor, settings):  # noqa: ASYNC110 — a share of the work is waited for, not an event
            await asyncio.sleep(REFRESH_S)
        self.svg = picture(monitor, settings)

    async def _record(self, monitor: BusMonitor) -> None:
        """Note what is read and planned until the day is over."""
        while True:
            if (energy := monitor.energy) is not None and energy.carbon_intensity_g_per_kwh is not None:
                self.intensities_g_per_kwh[energy.time_s] = energy.carbon_intensity_g_per_kwh
            if energy is not None and not monitor.changes:
                self.prior_power_limit_w = energy.power_limit_w or 0.0
            for change in monitor.changes:
                if change.reason not in LOOKS and not change.reason.startswith("run_") and change.power_limit_w:
                    self.limits_w[change.time_s] = change.power_limit_w
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


def chart_of(day: Camera) -> str:
    """Return the grid and the planned limits of the day as SVG."""
    since_s, until_s = min(day.limits_w), max(day.intensities_g_per_kwh)
    grid = {at_s: value for at_s, value in day.intensities_g_per_kwh.items() if at_s >= since_s}
    edges = [*day.limits_w, until_s]
    intensity = Line(name="grid", xs=[*grid, until_s], ys=list(grid.values()), colour="grid", is_stepped=True)
    limit = Line(name="power limit", xs=edges, ys=list(day.limits_w.values()), colour="power", is_stepped=True)
    prior = Rule(name="prior limit", value=day.prior_power_limit_w, axis="y", colour="prior", dash="dotted")
    chart = Chart(
        title="The demo's day: dirty hours at lower power limits, clean hours at higher ones",
        words="The carbon intensity of the British grid on 2023-06-04, and the power limit planned from its forecast.",
        x_axis=TimeAxis(),
        panels=[
            Panel(axis=NumberAxis(label="g CO₂ per kWh, British grid, 2023-06-04"), marks=[intensity], height_em=8.0),
            Panel(axis=NumberAxis(label="W, power limit of an A40 (simulated)"), marks=[limit, prior], height_em=8.0),
        ],
    )
    return f"{render_svg(chart)}\n"


def shown() -> tuple[dict[str, str], dict[Path, str]]:
    """Play the demo's day; return the README's blocks by their names, and the pictures by their paths."""
    camera, console = Camera(), Console(file=(course := StringIO()), width=WIDTH)
    result = play(DemoOptions(), view=partial(camera.show, console=console))
    print_day_result(result, console)
    text, _, _ = course.getvalue().partition("The table holds")
    end = textwrap.fill(f"gridchase: {summarize(JOB, RUN, result.published, unmeasured=('', ''))}", END_WIDTH)
    blocks = {"demo output": text, "end of the run": end}
    texts = {name: "\n".join(map(str.rstrip, block.rstrip().split("\n"))) for name, block in blocks.items()}
    return texts, {PICTURE: camera.svg, CHART: chart_of(camera)}


def block_of(readme: str, name: str) -> str:
    """Return what the README shows in a block."""
    return readme.split(f"<!-- {name} -->\n```text\n")[1].partition(f"\n```\n<!-- /{name} -->")[0]


def main() -> int:
    """Write what the demo shows."""
    blocks, pictures = shown()
    text = README.read_text(encoding="utf-8")
    for name, block in blocks.items():
        text = text.replace(f"```text\n{block_of(text, name)}\n```", f"```text\n{block}\n```")
    README.write_text(text, encoding="utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    for path, svg in pictures.items():
        path.write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
