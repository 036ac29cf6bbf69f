"""What slack is worth under the controller itself: `python -m tests.benchmarks.slack_live [--data DIR] [--write]`.

A run with a deadline on a simulated GPU, on virtual time: real controller, the publisher's own rules for pauses. The
truth is the simulator's: what the GPU drew, times the signal. DIR holds `carbon`, CSV files of signals.
"""

import argparse
import asyncio
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from controller.cli.replay.plan_inputs import read_signals
from policies.vocabulary.signal import NOT_ESTIMATED, Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.benchmarks.pages import add_data, add_write, measured_on, show
from tests.benchmarks.slack import by_the_hour
from tests.fakes import MIDNIGHT_S, FakeGpu, FixedProvider
from tests.policies.days import A40
from tests.scenarios.pausable_training import FIRST_S, DayAheadPrices, PausableTraining
from tests.scenarios.site import Site
from tests.virtual_time import VirtualTimeLoop

TABLE: Final = Path(__file__).with_suffix(".md")
WORK_H: Final = 24.0
FACTORS: Final = (1.25, 1.5)
IDLE_W: Final = 45.0
SLOWER: Final = 20.0
"""The job's iterations take so many times as long as ResNet-50's: a run is played in seconds."""
HISTORY_S: Final = 60 * DAY_S
START_HOURS: Final = (0, 12)
"""The runs on a typed signal begin at these hours of its day."""
REAL: Final = ("us-ciso-hourly-2021", "gb-30min-2023", "de-hourly-2021")
QUICK: Final = (
    "profiler.settle_s=60",
    "profiler.window_s=240",
    "energy.period_s=10",
    "signal.period_s=300",
    "signal.zone=XX",
    "job.lease_s=300",
)
PROTOCOL: Final = f"""\
ResNet-50 on ImageNet on an A40 (batch size 256, its iterations {SLOWER:g} times as long), {WORK_H:g} h of work at the
highest limit, {IDLE_W:g} W while it is paused. The deadline leaves 25 or 50 % more time. Saved: per cent of what the
same work costs at the highest limit, begun at once; the sweep of the curve and all looks count. blind: by the same
deadline, with `signal.kind = "energy"`. limits: following the signal, with `plan.may_pause = false`. pauses: with
`true`. gain: pauses - blind, in points. told: what the controller says of the run with pauses, with its 90 %
interval; the truth of it is in the column pauses. The price is 0.15 EUR/kWh but around noon: down to -0.10 on the
first day, and to 0.05 on the second. early: how long before its deadline the run with pauses was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A signal from the run's start on, in virtual time, and whether it is known ahead."""

    name: str
    signal: Signal
    is_settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a run has saved, what the controller says of that, and how it waited.

    Attributes:
        saved_ratio: the truth.
        told_ratio, told_ci90_ratio: what the controller says; None where it says nothing.
        n_pauses, paused_s: its pauses.
        early_s: how long before its deadline it was done [s].
    """

    saved_ratio: float
    told_ratio: float | None
    told_ci90_ratio: float | None
    n_pauses: int
    paused_s: float
    early_s: float


def a40_gpu() -> FakeGpu:
    """Return a GPU that draws what the A40 drew at each limit."""
    gpu = FakeGpu()
    gpu.draw_w = lambda power_limit_w: float(np.interp(power_limit_w, A40.power_limits_w, A40.power_w))
    return gpu


def rate_per_s(power_limit_w: float) -> float:
    """Return how fast the job is at a limit [1/s]."""
    return float(np.interp(power_limit_w, A40.power_limits_w, A40.iterations_per_s)) / SLOWER


def play(case: Case, factor: float, *, is_blind: bool = False, may_pause: bool = False) -> Played:
    """Return what a run comes to under the controller."""
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(_played(Path(directory), case, factor, is_blind=is_blind, may_pause=may_pause))


async def _played(directory: Path, case: Case, factor: float, *, is_blind: bool, may_pause: bool) -> Played:
    deadline_h = factor * WORK_H
    options = [
        *QUICK,
        "plan.objective=deadline",
        f"plan.deadline={deadline_h:g}h",
        f"plan.may_pause={may_pause}".lower(),
    ]
    providers: list[FixedProvider] = []
    if not is_blind:
        kind = "price" if case.signal.kind == "price" else "carbon"
        options += [f"signal.kind={kind}", 'signal.provider=[{name="csv", path="signal.csv", zone="XX"}]']
        providers = [DayAheadPrices(case.signal) if case.is_settled else FixedProvider(case.signal)]
    site = Site(directory, [a40_gpu()], *options, providers=providers)
    total = round(WORK_H * HOUR_S * rate_per_s(A40.fastest.power_limit_w))
    training = PausableTraining(site, total=total, idle_w=IDLE_W, max_pause_s=DAY_S, rate=rate_per_s)
    async with site.controlled():
        training.listen()
        await training.train_until(MIDNIGHT_S + 2 * deadline_h * HOUR_S)
        training.publish_status("finished")
        await asyncio.sleep(1_200)
    final = site.energies()[-1]
    return Played(
        saved_ratio=1 - training.cost(case.signal) / training.twin_cost(case.signal),
        told_ratio=final.saved_ratio,
        told_ci90_ratio=final.saved_ci90_ratio,
        n_pauses=len(training.waits),
        paused_s=sum(until_s - since_s for since_s, until_s in training.waits),
        early_s=FIRST_S + deadline_h * HOUR_S - training.end_s,
    )


def typed_cases() -> Iterator[Case]:
    """Yield a square wave and a price that is negative at noon of every other day, as they are known a day ahead."""
    hours = np.arange(-HISTORY_S / HOUR_S, 6 * 24)
    noon = np.exp(-(((hours % 24) - 12.5) ** 2) / 12.0)
    square = np.where(hours % 24 < 12, 100.0, 600.0)
    price = 0.15 - np.where(hours % 48 < 24, 0.25, 0.1) * noon
    for name, kind, unit, values in (
        ("square 100/600, 12 h each", "average", "g/kWh", square),
        ("price, negative at noon", "price", "EUR/kWh", price),
    ):
        for start_h in START_HOURS:
            signal = Signal(
                kind="price" if kind == "price" else "average",
                zone="XX",
                source=name,
                unit=unit,
                starts_s=MIDNIGHT_S + HOUR_S * (hours - start_h),
                values=values,
                ends_s=MIDNIGHT_S + HOUR_S * float(hours[-1] - start_h + 1),
                issued_at_s=MIDNIGHT_S,
                estimated=NOT_ESTIMATED,
            )
            yield Case(name=f"{name}, from {start_h} h", signal=signal, is_settled=True)


def real_cases(directory: Path, n_starts: int) -> Iterator[Case]:
    """Yield carbon intensities of grids, forecast by the controller itself."""
    for name in REAL:
        path = directory / "carbon" / f"{name}.csv"
        if not path.exists():
            continue
        ((_, signal),) = [(each, by_the_hour(each.signal)) for each in read_signals([path], [])]
        first_s, last_s = float(signal.starts_s[0]) + HISTORY_S, signal.ends_s - 4 * DAY_S
        for number in range(n_starts):
            start_s = first_s + (last_s - first_s) * (number + 0.5) / n_starts // HOUR_S * HOUR_S
            part = signal.between(start_s - HISTORY_S, start_s + 4 * DAY_S)
            shift_s = MIDNIGHT_S - start_s
            moved = replace(part, starts_s=part.starts_s + shift_s, ends_s=part.ends_s + shift_s, zone="XX")
            yield Case(name=f"{name}, start {number + 1}", signal=moved, is_settled=False)


def rows(cases: Iterator[Case]) -> Iterator[str]:
    """Yield the table."""
    yield "| signal | time | blind | limits | pauses | gain | told | pauses, in all | early |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for case in cases:
        for factor in FACTORS:
            blind, limits, paused = (
                play(case, factor, is_blind=is_blind, may_pause=may_pause)
                for is_blind, may_pause in ((True, False), (False, False), (False, True))
            )
            told = (
                ""
                if paused.told_ratio is None
                else f"{100 * paused.told_ratio:.2f} ± {100 * (paused.told_ci90_ratio or 0):.2f}"
            )
            yield (
                f"| {case.name} | +{100 * (factor - 1):.0f} % | {100 * blind.saved_ratio:.2f} | "
                f"{100 * limits.saved_ratio:.2f} | {100 * paused.saved_ratio:.2f} | "
                f"{100 * (paused.saved_ratio - blind.saved_ratio):+.2f} | {told} | "
                f"{paused.n_pauses}, {paused.paused_s / HOUR_S:.1f} h | {paused.early_s / 60:.0f} min |"
            )


def page(data: Path | None, n_starts: int) -> Iterator[str]:
    """Yield the lines of the page."""
    options = f" --data DIR --starts {n_starts}" if data is not None else ""
    yield "# What slack is worth under the controller\n"
    yield f"{measured_on()}; `python -m tests.benchmarks.slack_live{options} --write`.\n"
    yield PROTOCOL
    yield "\n## Known a day ahead [%]\n"
    yield from rows(typed_cases())
    if data is not None:
        yield "\n## Carbon intensities of grids, by the controller's own forecasts [%]\n"
        yield from rows(real_cases(data, n_starts))


def main() -> None:
    """Measure and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_data(parser)
    parser.add_argument("--starts", type=int, default=1, metavar="N", help="runs on each real signal")
    add_write(parser, TABLE)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    os.fsync = lambda fd: None  # noqa: ARG005 — no power fails here, and a day syncs thousands of times
    show(page(options.data, options.starts), TABLE, write=options.write)


if __name__ == "__main__":
    main()
