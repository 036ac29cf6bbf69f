"""What the demo shows: the live view, and the few lines in a pipe."""

import asyncio
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from controller.demo.day.monitor import BusMonitor, HalfHourMeans, sparkline
from controller.demo.day.view import LineReporter, ViewSettings, change_line, draw, show
from publishers.messages.codec import Message, encode
from publishers.messages.reasons import SHORT_REASONS
from publishers.messages.reports import GpuEnergy, LimitChange, ProfileEntry, ProfileReport, RunEnergy
from publishers.messages.topics import Topics
from tests.fakes import KEY, MIDNIGHT_S, FakeBus, LoopClock

HOUR_S = 3_600.0
TOPICS = Topics()


class ViewFixture:
    """A monitor on a fake bus, and a console that keeps its text."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.bus = FakeBus()
        clock = LoopClock()
        self.monitor = BusMonitor(clock=clock, slots=HalfHourMeans(MIDNIGHT_S))
        self.monitor.subscribe(self.bus, TOPICS)
        self.settings = ViewSettings(
            title="a day",
            clock=clock,
            iterations=1_000,
            min_power_limit_w=100.0,
            max_power_limit_w=300.0,
        )
        self.console = Console(file=StringIO(), width=80, force_terminal=terminal, color_system=None)

    def receive(self, leaf: str, message: Message) -> None:
        on_gpu = leaf in {"limit", "gpu energy"}
        topic = TOPICS.gpu("n", "GPU-1", leaf.removeprefix("gpu ")) if on_gpu else TOPICS.run(KEY, leaf)
        self.bus.publish(topic, encode(message))

    def change(self, hours: float, limit_w: float, *, before_w: float = 300.0, reason: str = "slowdown_signal") -> None:
        self.receive(
            "limit",
            LimitChange(
                time_s=MIDNIGHT_S + hours * HOUR_S,
                reason=reason,
                detail=f"because of {hours:g}",
                power_limit_w=limit_w,
                previous_power_limit_w=before_w,
                job="j",
                signal="213 g/kWh (GB.csv)",
            ),
        )

    @property
    def text(self) -> str:
        file = self.console.file
        assert isinstance(file, StringIO)
        return file.getvalue()


def profile(state: str, n_points: int) -> ProfileReport:
    points = [ProfileEntry(power_limit_w=300.0 - 25 * i, power_w=235.0, iterations_per_s=1.3) for i in range(n_points)]
    assert state in {"waiting", "profiling", "planned"}
    return ProfileReport(state=state, gpu_model="A40", n_gpus=1, points=points)  # type: ignore[arg-type]  # checked above


def energy(hours: float, limit_w: float, intensity_g_per_kwh: float) -> GpuEnergy:
    return GpuEnergy(
        time_s=MIDNIGHT_S + hours * HOUR_S,
        energy_j=1.0,
        power_w=196.0,
        power_limit_w=limit_w,
        carbon_intensity_g_per_kwh=intensity_g_per_kwh,
    )


def run_energy(*, iterations: int = 250, final: bool = False, evidence: str | None = "measured") -> RunEnergy:
    return RunEnergy(
        run="r",
        state="finished" if final else "running",
        gpu_model="A40",
        n_gpus=1,
        iterations=iterations,
        epochs=1,
        duration_s=10.0,
        energy_j=3.6e6,
        carbon_g=213.0,
        evidence=evidence,
        saved_ratio=0.14,
        saved_ci90_ratio=0.004,
        final=final,
    )


async def test_the_live_view_shows_state_limit_power_grid_energy_and_reasons() -> None:
    fixture = ViewFixture()
    fixture.receive("profile", profile("profiling", 3))
    fixture.receive("gpu energy", energy(1.0, 225.0, 213.0))
    fixture.receive("energy", run_energy())
    fixture.change(1.0, 225.0)
    fixture.console.print(draw(fixture.monitor, fixture.settings))
    for shown in (
        "profiling 4",
        "213 g/kWh",
        "225 W",
        "196 W",
        "250 of 1,000",
        "1.00 kWh, 213 g of carbon, saved 14.0 % (±0.4)",
        "300 → 225 W",
        "213 g/kWh",
        "following the grid in the allowed time",
    ):
        assert shown in fixture.text


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ("too_early", "too early to tell"),
        (None, "too early to tell"),
        ("nothing_changed", "nothing saved"),
        ("incomplete", "saving not known"),
        ("curve_changed", "saving not known"),
    ],
)
async def test_without_evidence_the_live_view_shows_no_saving(evidence: str | None, said: str) -> None:
    fixture = ViewFixture()
    fixture.receive("energy", run_energy(evidence=evidence))
    fixture.console.print(draw(fixture.monitor, fixture.settings))
    assert f"213 g of carbon, {said} " in fixture.text
    assert "14.0 %" not in fixture.text


async def test_the_live_view_can_be_drawn_without_messages() -> None:
    fixture = ViewFixture()
    fixture.console.print(draw(fixture.monitor, fixture.settings))
    assert "waiting" in fixture.text


async def test_a_pipe_gets_the_sweep_the_lasting_changes_and_the_end() -> None:
    fixture = ViewFixture()
    reporter = LineReporter(fixture.monitor, fixture.settings, fixture.console)
    for n_points in range(9):
        fixture.receive("profile", profile("profiling", n_points))
        fixture.change(0.1 * n_points, 300.0 - 25 * n_points, reason="profiling")
        reporter.report()
    fixture.receive("profile", profile("planned", 9))
    for hours in range(1, 24):
        fixture.change(hours, 225.0 if hours % 2 else 200.0, before_w=200.0 if hours % 2 else 225.0)
        reporter.report()
    fixture.change(23.5, 300.0, before_w=225.0, reason="run_finished")
    reporter.report()
    lines = fixture.text.splitlines()
    assert lines[0] == "a day"
    assert "measuring power and speed at one limit after another" in lines[1]
    assert lines[2] == "00:00  measured 9 limits: 300 W has 100 % of the speed for 100 % of the power"
    assert lines[3].split() == ["time", "limit", "grid", "speed", "why"]
    assert lines[-1] == "23:30  225 → 300 W  213 g/kWh         run ended; prior limit restored"
    assert 6 <= len(lines) <= 13


async def test_nothing_is_printed_twice() -> None:
    fixture = ViewFixture()
    reporter = LineReporter(fixture.monitor, fixture.settings, fixture.console)
    fixture.change(4.0, 225.0)
    reporter.report()
    once = fixture.text
    reporter.report()
    assert fixture.text == once


def test_a_change_line_has_time_limits_signal_speed_and_reason() -> None:
    change = LimitChange(
        time_s=MIDNIGHT_S + 12.5 * HOUR_S,
        reason="slowdown_signal",
        detail="the grid is cleaner",
        power_limit_w=200.0,
        previous_power_limit_w=225.0,
        signal="213 g/kWh (GB.csv)",
        speed_ratio=2 / 3,
    )
    why = "following the grid in the allowed time"
    assert change_line(change) == f"12:30  225 → 200 W  213 g/kWh   67 %  {why}"
    unknown = msgspec.structs.replace(change, speed_ratio=None)
    assert change_line(unknown) == f"12:30  225 → 200 W  213 g/kWh         {why}"


@pytest.mark.parametrize("reason", SHORT_REASONS)
async def test_every_reason_is_whole_in_the_live_view(reason: str) -> None:
    fixture = ViewFixture()
    fixture.change(4.0, 225.0, reason=reason)
    fixture.console.print(draw(fixture.monitor, fixture.settings))
    assert f"{SHORT_REASONS[reason]} " in fixture.text


async def test_the_final_energy_of_the_run_sets_finished() -> None:
    fixture = ViewFixture()
    fixture.receive("energy", run_energy(iterations=999))
    assert not fixture.monitor.finished.is_set()
    fixture.receive("energy", run_energy(iterations=1_000, final=True))
    assert fixture.monitor.finished.is_set()


@pytest.mark.parametrize("terminal", [False, True])
async def test_a_cancelled_view_shows_the_last_messages(terminal: bool) -> None:

    fixture = ViewFixture(terminal=terminal)
    async with asyncio.TaskGroup() as tasks:
        viewer = tasks.create_task(show(fixture.monitor, fixture.settings, fixture.console))
        await asyncio.sleep(1.0)
        fixture.change(5.0, 175.0)
        viewer.cancel()
    assert "300 → 175 W" in fixture.text


def test_a_sparkline_has_a_bar_for_each_height_and_a_blank_for_none() -> None:
    assert sparkline([0.0, None, 0.5, 1.0, 99.0, -1.0]) == "▁ ▅██▁"
    assert sparkline([]) == ""


def test_half_hour_means_ignore_other_days() -> None:
    slots = HalfHourMeans(MIDNIGHT_S)
    slots.add(energy(-0.1, 100.0, 999.0))
    slots.add(energy(0.1, 100.0, 100.0))
    slots.add(energy(0.4, 300.0, 100.0))
    slots.add(energy(23.9, 300.0, 200.0))
    slots.add(energy(24.0, 100.0, 999.0))
    assert slots.intensities() == "▁" + " " * 46 + "█"
    assert slots.limits(100.0, 300.0) == "▅" + " " * 46 + "█"
