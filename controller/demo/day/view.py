"""The output of the demo while it runs: a live view on a terminal, a few lines in a pipe."""

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

from controller.demo.day.monitor import N_SLOTS, BusMonitor
from controller.runtime.clock import Clock
from policies.vocabulary.units import HOUR_S
from publishers.messages.reasons import short_reason
from publishers.messages.reports import LimitChange, ProfileReport, RunEnergy
from publishers.training.reporting.run_energy import known_ratios
from publishers.training.reporting.run_summary import percent

REFRESH_S: Final = 0.125
LINE_PERIOD_S: Final = 3 * HOUR_S
"""The shortest time between two printed limit changes in a pipe, in simulated time [s]."""
_UNREPORTED: Final = frozenset({"profiling", "refining", "kept_dwell", "kept_small_gain"})
"""Why limits are changed that are not printed in a pipe: they are tried, or only come back after a look."""
_N_REASONS: Final = 4
_ROW: Final = "{:5}  {:11}  {:9}  {:>5}  {}"
_HEAD: Final = _ROW.format("time", "limit", "grid", "speed", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSettings:
    """What the view needs besides the messages on the bus."""

    title: str
    clock: Clock
    iterations: int
    min_power_limit_w: float
    max_power_limit_w: float


async def show(monitor: BusMonitor, settings: ViewSettings, console: Console) -> None:
    """Show the messages until cancelled: live on a terminal, as lines in a pipe."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            try:
                while True:
                    live.update(draw(monitor, settings), refresh=True)
                    await asyncio.sleep(REFRESH_S)
            finally:
                live.update(draw(monitor, settings), refresh=True)
    reporter = LineReporter(monitor, settings, console)
    try:
        while True:
            reporter.report()
            await asyncio.sleep(REFRESH_S)
    finally:
        reporter.report()


def draw(monitor: BusMonitor, settings: ViewSettings) -> RenderableType:
    """Return the live view."""
    energy, run = monitor.energy, monitor.run
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(no_wrap=True, min_width=12)
    rows.add_column(no_wrap=True, min_width=N_SLOTS)
    done = run.iterations if run else 0
    bar = ProgressBar(total=settings.iterations, completed=min(done, settings.iterations), width=N_SLOTS)
    rows.add_row("Time", time_of_day(settings.clock.now_s()), bar)
    rows.add_row("Job", state_of(monitor), f"{done:,} of {settings.iterations:,} iterations")
    intensity_g_per_kwh = energy.carbon_intensity_g_per_kwh if energy else None
    grid = "-" if intensity_g_per_kwh is None else f"{intensity_g_per_kwh:.0f} g/kWh"
    rows.add_row("Grid", grid, Text(monitor.slots.intensities(), style="yellow"))
    limits = monitor.slots.limits(settings.min_power_limit_w, settings.max_power_limit_w)
    rows.add_row("Power limit", _limit(energy.power_limit_w if energy else None), Text(limits, style="cyan"))
    rows.add_row("Power", f"{energy.power_w:.0f} W" if energy else "-", _run_totals(monitor))
    reasons = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in _reasons(monitor)]
    return Panel(Group(rows, Text(""), *reasons), title=settings.title, title_align="left")


def state_of(monitor: BusMonitor) -> str:
    """Return the state of the job in a word or two."""
    if monitor.run is not None and monitor.run.state != "running":
        return monitor.run.state
    profile = monitor.profile
    if profile is None:
        return "waiting"
    if profile.state == "profiling":
        return f"profiling {len(profile.points) + 1}"
    return profile.state


def time_of_day(time_s: float) -> str:
    """Return a time as in 13:45."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M")


def change_line(change: LimitChange) -> str:
    """Return a limit change with the signal, the speed at the limit and the reason: a row of at most 80 columns."""
    before_w, after_w = change.previous_power_limit_w, change.power_limit_w
    moved = before_w is not None and after_w is not None and before_w != after_w
    limit = f"{before_w:g} → {after_w:g} W" if moved else _limit(after_w)
    signal = change.signal.partition(" (")[0] if change.signal else ""  # without its source
    speed = "" if change.speed_ratio is None else f"{100 * change.speed_ratio:.0f} %"
    return _ROW.format(time_of_day(change.time_s), limit, signal, speed, short_reason(change.reason))


class LineReporter:
    """Prints the course of the day in a few lines."""

    def __init__(self, monitor: BusMonitor, settings: ViewSettings, console: Console) -> None:
        self._monitor = monitor
        self._settings = settings
        self._console = console
        self._state = "waiting"
        self._n_seen = 0
        self._reported_s = 0.0
        self._reported_limit_w: float | None = None
        self._print(settings.title)

    def report(self) -> None:
        """Print what is new and important."""
        state = self._monitor.profile.state if self._monitor.profile else self._state
        if state != self._state:
            self._state = state
            self._print(self._state_line(state))
        n_new = min(self._monitor.n_changes - self._n_seen, len(self._monitor.changes))
        self._n_seen = self._monitor.n_changes
        for change in list(self._monitor.changes)[len(self._monitor.changes) - n_new :]:
            self._report_change(change)

    def _report_change(self, change: LimitChange) -> None:
        is_end = change.job is None or change.reason.startswith("run_")
        is_new = change.power_limit_w not in {change.previous_power_limit_w, self._reported_limit_w}
        is_due = is_new and change.time_s >= self._reported_s + LINE_PERIOD_S
        if change.reason in _UNREPORTED or not (is_end or is_due):
            return
        if self._reported_limit_w is None:
            self._print(_HEAD)
        self._reported_s = change.time_s
        self._reported_limit_w = change.power_limit_w
        self._print(change_line(change))

    def _state_line(self, state: str) -> str:
        monitor = self._monitor
        if state == "profiling" and monitor.profiling_began_s is not None:
            when = time_of_day(monitor.profiling_began_s)
            return f"{when}  measuring power and speed at one limit after another, while it trains"
        if state == "planned" and monitor.profile is not None and monitor.profiling_ended_s is not None:
            return f"{time_of_day(monitor.profiling_ended_s)}  {_curve(monitor.profile)}"
        return f"{time_of_day(self._settings.clock.now_s())}  {state}"

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _curve(profile: ProfileReport) -> str:
    """Return what a curve has shown: how fast its most efficient limit is, and what it draws."""
    top = max(profile.points, key=lambda point: point.power_limit_w)
    best = min(profile.points, key=lambda point: point.power_w / point.iterations_per_s)
    return (
        f"measured {len(profile.points)} limits: {best.power_limit_w:g} W has"
        f" {100 * best.iterations_per_s / top.iterations_per_s:.0f} % of the speed for"
        f" {100 * best.power_w / top.power_w:.0f} % of the power"
    )


def _run_totals(monitor: BusMonitor) -> str:
    run = monitor.run
    if run is None:
        return ""
    parts = [f"{run.energy_j / 3.6e6:.2f} kWh"]
    if run.carbon_g is not None:
        parts.append(f"{run.carbon_g:,.0f} g of carbon")
    return ", ".join([*parts, _saved(run)])


def _saved(run: RunEnergy) -> str:
    """Return what the controller says was saved, with its interval, in a few words."""
    if run.evidence == "nothing_changed":
        return "nothing saved"
    known = known_ratios(run).get("saved")
    if known is not None:
        return f"saved {percent(*known)}"
    return "too early to tell" if run.evidence in {None, "too_early"} else "saving not known"


def _reasons(monitor: BusMonitor) -> Iterable[str]:
    newest = [change_line(change) for change in monitor.changes][-_N_REASONS:]
    return [*newest, *[""] * (_N_REASONS - len(newest))]


def _limit(power_limit_w: float | None) -> str:
    return "-" if power_limit_w is None else f"{power_limit_w:g} W"
