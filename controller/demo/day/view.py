"""What the demo shows while it runs: a live view on a terminal, a few lines in a pipe."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from controller.clock import Clock
from controller.demo.day.monitor import N_SLOTS, BusMonitor
from publishers.messages.reports import LimitChange

REFRESH_S: Final = 0.125
LINE_PERIOD_S: Final = 3 * 3_600.0
"""In a pipe, changes of the limit are told no more often than this in the time of the day [s]."""
_N_REASONS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSettings:
    """What the view needs to know beside what is on the bus."""

    title: str
    clock: Clock
    iterations: int
    min_power_limit_w: float
    max_power_limit_w: float


async def show(watch: BusMonitor, stage: ViewSettings, console: Console) -> None:
    """Show what is heard, until cancelled."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            try:
                while True:
                    live.update(draw(watch, stage), refresh=True)
                    await asyncio.sleep(REFRESH_S)
            finally:
                live.update(draw(watch, stage), refresh=True)
    teller = LineReporter(watch, stage, console)
    try:
        while True:
            teller.tell()
            await asyncio.sleep(REFRESH_S)
    finally:
        teller.tell()


def draw(watch: BusMonitor, stage: ViewSettings) -> RenderableType:
    """Return the live view."""
    energy, run = watch.energy, watch.run
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(no_wrap=True, min_width=14)
    rows.add_column(no_wrap=True, min_width=N_SLOTS)
    done = run.iterations if run else 0
    bar = ProgressBar(total=stage.iterations, completed=min(done, stage.iterations), width=N_SLOTS)
    rows.add_row("Time", time_of_day(stage.clock.now_s()), bar)
    rows.add_row("Job", state_of(watch), f"{done:,} of {stage.iterations:,} iterations")
    intensity_g_per_kwh = energy.carbon_intensity_g_per_kwh if energy else None
    grid = "-" if intensity_g_per_kwh is None else f"{intensity_g_per_kwh:.0f} g/kWh"
    rows.add_row("Grid", grid, Text(watch.slots.intensities(), style="yellow"))
    limits = watch.slots.limits(stage.min_power_limit_w, stage.max_power_limit_w)
    rows.add_row("Power limit", _limit(energy.power_limit_w if energy else None), Text(limits, style="cyan"))
    rows.add_row("Power", f"{energy.power_w:.0f} W" if energy else "-", _account(watch))
    reasons = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in _reasons(watch)]
    return Panel(Group(rows, Text(""), *reasons), title=stage.title, title_align="left")


def state_of(watch: BusMonitor) -> str:
    """Return the state of the job, in a word or two."""
    if watch.run is not None and watch.run.state != "running":
        return watch.run.state
    profile = watch.profile
    if profile is None:
        return "waiting"
    if profile.state == "profiling":
        return f"profiling {len(profile.points) + 1}"
    return profile.state


def time_of_day(time_s: float) -> str:
    """Return a time as in 13:45."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M")


def change_line(change: LimitChange) -> str:
    """Return a change of the limit, its signal and its reason, in a line."""
    before_w, after_w = change.previous_power_limit_w, change.power_limit_w
    moved = before_w is not None and after_w is not None and before_w != after_w
    limit = f"{before_w:g} W → {after_w:g} W" if moved else _limit(after_w)
    signal = f"  signal {change.signal}" if change.signal else ""
    return f"{time_of_day(change.time_s)}  {limit}{signal}: {change.detail}"


class LineReporter:
    """Tells the story of the day in a few lines."""

    def __init__(self, watch: BusMonitor, stage: ViewSettings, console: Console) -> None:
        self._watch = watch
        self._stage = stage
        self._console = console
        self._state = "waiting"
        self._n_seen = 0
        self._told_s = 0.0
        self._told_limit_w: float | None = None
        self._print(stage.title)

    def tell(self) -> None:
        """Tell what is new, if it is worth a line."""
        state = self._watch.profile.state if self._watch.profile else self._state
        if state != self._state:
            self._state = state
            self._print(self._news(state))
        n_new = min(self._watch.n_changes - self._n_seen, len(self._watch.changes))
        self._n_seen = self._watch.n_changes
        for change in list(self._watch.changes)[len(self._watch.changes) - n_new :]:
            self._tell_change(change)

    def _tell_change(self, change: LimitChange) -> None:
        is_end = change.job is None or change.reason.startswith("run_")
        is_due = change.time_s >= self._told_s + LINE_PERIOD_S and change.power_limit_w != self._told_limit_w
        if change.reason in {"profiling", "refining"} or not (is_end or is_due):
            return
        self._told_s = change.time_s
        self._told_limit_w = change.power_limit_w
        self._print(change_line(change))

    def _news(self, state: str) -> str:
        watch = self._watch
        if state == "profiling" and watch.profiling_began_s is not None:
            when = time_of_day(watch.profiling_began_s)
            return f"{when}  profiling: power limit by power limit, while it trains"
        if state == "planned" and watch.profile is not None and watch.profiling_ended_s is not None:
            curve = ", ".join(
                f"{point.power_limit_w:g} W: {point.power_w:.0f} W {point.iterations_per_s:.3f}/s"
                for point in watch.profile.points
            )
            return f"{time_of_day(watch.profiling_ended_s)}  profiled: {curve}"
        return f"{time_of_day(self._stage.clock.now_s())}  {state}"

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _account(watch: BusMonitor) -> str:
    run = watch.run
    if run is None:
        return ""
    parts = [f"{run.energy_j / 3.6e6:.2f} kWh"]
    if run.carbon_g is not None:
        parts.append(f"{run.carbon_g:,.0f} g of carbon")
    if run.saved_ratio is not None:
        parts.append(f"saved {100 * run.saved_ratio:.1f} %")
    return ", ".join(parts)


def _reasons(watch: BusMonitor) -> Iterable[str]:
    newest = [change_line(change) for change in watch.changes][-_N_REASONS:]
    return [*newest, *[""] * (_N_REASONS - len(newest))]


def _limit(power_limit_w: float | None) -> str:
    return "-" if power_limit_w is None else f"{power_limit_w:g} W"
