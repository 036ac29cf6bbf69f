"""Runs of ten minutes and more in which meters fail for a tenth of the time at most: is their energy right?

A run is drawn from a seed: its load, and the faults of its meters in random pieces. What the controller says of its
energy, wherever it says it, is compared with the books of the board.
"""

import asyncio
import contextlib
import random
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import aiohttp
import async_solipsism
import pytest
from prometheus_client.parser import text_string_to_metric_families

from publishers.messages.codec import decode
from publishers.messages.reports import GpuEnergy, RunEnergy
from publishers.training.reporting.run_summary import summarize
from tests.fakes import MIDNIGHT_S
from tests.scenarios.campaign.machine import quiet, run_dir_at
from tests.scenarios.campaign.metered_gpu import MeteredGpu, MeterFault
from tests.scenarios.site import NODE, POWER_RATIO, TOPICS, Site, Training, rate_per_s
from tests.virtual_time import VirtualTimeLoop

FAULTY_RATIO: Final = 0.1
"""The share of a run in which meters are faulty, at most."""
MAX_ERROR_RATIO: Final = 0.01
LINE_ROUNDING_RATIO: Final = 0.005
"""The line at the end of a run has three digits."""
DURATION_S: Final = 600.0, 900.0
N_PIECES: Final = 6
BEFORE_S: Final = 15.0
"""The meters are sound when the controller starts: it knows nothing that a scale could be compared with."""
AFTER_S: Final = 20.0
PORT: Final = 9_400
SPEEDUP: Final = 4.0
WINDOWS_S: Final = 0.5, 0.5, 2.5, 10.0
"""The profiler's, a fifth of which is how often meters are read; half a second is the default."""
DENSE_S: Final = 0.25
EDGE_S: Final = 3.0
"""How long a piece of a fault may be in doubt beyond its ends: what is found late."""

COUNTER: Final = (
    "counter stuck",
    "counter reset",
    "counter falls",
    "counter jumps",
    "counter jumps and returns",
    "counter of a wrong unit",
    "counter of a wrong scale",
    "counter cannot be read",
)
ABSENT: Final = ("power 3.7 MW", "power 0 W", "power cannot be read")
POWER: Final = (*ABSENT, "power stuck", "power of a wrong scale")
READS: Final = ("readings fail", "GPU lost", "GPU lost, counter reset", "slow reads")
WITHOUT_COUNTER: Final = (*ABSENT, "readings fail", "GPU lost", "slow reads")
"""Without a counter, a power that a board may draw cannot be told from the truth by any means."""
BOTH: Final = "both meters at once"
NO_COUNTER: Final = "board without a counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyOutcome:
    """What came of a run.

    Attributes:
        seed: that it was drawn from.
        labels: its faults, as a table names them.
        errors: by how much the energy differs from the books, by where it is said, as a share of them.
        violations: what does not hold of what must; empty if it passed.
    """

    seed: int
    labels: frozenset[str]
    errors: dict[str, float]
    violations: Sequence[str]

    @property
    def worst_ratio(self) -> float:
        """Return the largest error."""
        return max(map(abs, self.errors.values()))


def _draw_kind(dice: random.Random, *, has_counter: bool, period_s: float) -> dict[str, str]:
    """Draw what is wrong in a piece."""
    if not has_counter:
        kind = dice.choice(WITHOUT_COUNTER)
        return {"power" if kind in POWER else "reads": kind}
    # A scale that is off by less than a factor of 2 shows in dense readings alone: others are no mean to compare with.
    counter = dice.choice([each for each in COUNTER if each != "counter of a wrong scale" or period_s < DENSE_S])
    match dice.randrange(4):
        case 0:
            return {"counter": counter}
        case 1:
            return {"power": dice.choice(POWER)}
        case 2:
            return {"reads": dice.choice(READS)}
    # Of both at once one must still be known for wrong: a counter of a wrong scale is by the power alone, and a power
    # by the counter alone.
    power = "power stuck" if counter == "counter of a wrong scale" else dice.choice((*ABSENT, "power stuck"))
    return {"counter": counter, "power": power}


def _draw_faults(dice: random.Random, duration_s: float, *, has_counter: bool, period_s: float) -> list[MeterFault]:
    """Draw pieces of faults, which lie apart so that the load between two of them may change."""
    n_pieces, apart_s = dice.randint(1, N_PIECES), 2 * _margin_s(period_s)
    cuts = [0.0, *sorted(dice.random() for _ in range(n_pieces - 1)), 1.0]
    faulty_s = FAULTY_RATIO * duration_s * dice.uniform(0.3, 1.0)
    sound_s = duration_s - faulty_s - n_pieces * apart_s
    faults: list[MeterFault] = []
    for (a, b), place in zip(pairwise(cuts), sorted(dice.random() for _ in range(n_pieces)), strict=True):
        begin_s = BEFORE_S + place * sound_s + faulty_s * a + len(faults) * apart_s
        kind = _draw_kind(dice, has_counter=has_counter, period_s=period_s)
        end_s = begin_s + faulty_s * (b - a)
        faults.append(MeterFault(begin_s=begin_s, end_s=end_s, size_ratio=dice.random(), **kind))
    return faults


def _margin_s(period_s: float) -> float:
    """Return for how long around a piece the load is held: a reading may be the mean of a second [s]."""
    return period_s + 1.2


def _is_blind(fault: MeterFault, *, has_counter: bool) -> bool:
    """Return whether nothing can tell what the board draws meanwhile."""
    is_lost = fault.reads == "GPU lost, counter reset" or (bool(fault.reads) and not has_counter)
    return is_lost or bool(fault.power and (fault.counter or not has_counter))


def _unmeasured_s(fault: MeterFault, *, has_counter: bool, period_s: float) -> tuple[float, float]:
    """Return for how long of a piece no reading can be believed, at least and at most [s]."""
    if not _is_blind(fault, has_counter=has_counter):
        return 0.0, 0.0
    most_s = fault.duration_s + EDGE_S + 3 * period_s
    is_whole = fault.power in ABSENT and (not has_counter or fault.counter == "counter stuck")
    is_whole = is_whole or fault.reads == "GPU lost, counter reset" or (fault.reads == "GPU lost" and not has_counter)
    return max(fault.duration_s - 2 * period_s - 4.0, 0.0) if is_whole else 0.0, most_s


def _labels(faults: Sequence[MeterFault], *, has_counter: bool) -> frozenset[str]:
    kinds = {kind for fault in faults for kind in (fault.counter, fault.power, fault.reads) if kind}
    both = {BOTH} if any(fault.counter and fault.power for fault in faults) else set()
    return frozenset(kinds | both | (set() if has_counter else {NO_COUNTER}))


class EnergyRun:
    """One run, drawn from a seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._seed = seed
        self._dice = dice = random.Random(seed)  # noqa: S311 — a schedule
        self._has_counter = dice.random() < 0.8
        self._duration_s = dice.uniform(*DURATION_S)
        window_s = dice.choice(WINDOWS_S)
        self._period_s = window_s / 5
        self._faults = _draw_faults(dice, self._duration_s, has_counter=self._has_counter, period_s=self._period_s)
        self._gpu = MeteredGpu(
            self._faults,
            noise=random.Random(seed),  # noqa: S311 — of readings
            has_counter=self._has_counter,
            power_mean_s=dice.choice([0.001, 1.0]),
            count_j=dice.choice([5_000.0, 3e7]),
        )
        quick = ("profiler.settle_s=2", f"profiler.window_s={window_s}", "profiler.block_s=10", f"http.port={PORT}")
        self._site = Site(folder, [self._gpu], *quick)
        self._training = Training(self._site, rate=lambda power_limit_w: SPEEDUP * rate_per_s(power_limit_w))

    async def live(self) -> EnergyOutcome:
        """Live through it, and compare."""
        async with asyncio.TaskGroup() as tasks:
            holder = tasks.create_task(self._hold_load(), name="load")
            self._set_load(0.15)
            async with self._site.controlled():
                await self._site.clock.sleep_until(MIDNIGHT_S + BEFORE_S)
                await self._train()
                self._training.publish_status("finished")
                await asyncio.sleep(AFTER_S)
                metrics = await self._scrape()
                scraped_s = asyncio.get_running_loop().time()
            holder.cancel()
        return self._judge(metrics, scraped_s)

    def _set_load(self, share_ratio: float | None = None) -> None:
        """Draw a share of the prior limit, as an idle board does; None: nearly the limit, as a training does."""
        wobble = self._dice.uniform(0.97, 1.03)
        if share_ratio is not None:
            self._gpu.set_load(lambda _: wobble * share_ratio * 280.0)
        else:
            self._gpu.set_load(lambda power_limit_w: wobble * POWER_RATIO * power_limit_w)

    async def _train(self) -> None:
        """Train and validate in turns: work of one power, then a pause at another."""
        clock, dice = self._site.clock, self._dice
        until_s = clock.now_s() + self._duration_s
        while (left_s := until_s - clock.now_s()) > 0:
            self._set_load()
            await self._training.train(min(dice.uniform(5.0, 90.0), left_s))
            if until_s - clock.now_s() > 60.0 and dice.random() < 0.5:
                self._set_load(dice.uniform(0.13, 0.6))
                await self._training.pause(dice.uniform(2.0, 30.0))

    async def _hold_load(self) -> None:
        """Let the board draw the same throughout a piece in which nothing can tell what it draws.

        What it would do meanwhile is unknown by any means; it counts at the power before.
        """
        margin_s = _margin_s(self._period_s)
        for fault in self._faults:
            if _is_blind(fault, has_counter=self._has_counter):
                await self._site.clock.sleep_until(MIDNIGHT_S + fault.begin_s - margin_s)
                self._gpu.hold_load(is_held=True)
                await self._site.clock.sleep_until(MIDNIGHT_S + fault.end_s + margin_s)
                self._gpu.hold_load(is_held=False)

    async def _scrape(self) -> dict[str, float]:
        url = f"http://127.0.0.1:{PORT}/metrics"
        async with asyncio.timeout(10), aiohttp.ClientSession() as client, client.get(url) as response:
            families = text_string_to_metric_families(await response.text())
        return {sample.name: sample.value for family in families for sample in family.samples}

    def _judge(self, metrics: dict[str, float], scraped_s: float) -> EnergyOutcome:
        books, first_s = self._gpu.books, self._gpu.first_read_s or 0.0
        begin_s, end_s = (self._training.begin_s or 0.0) - MIDNIGHT_S, self._training.end_s - MIDNIGHT_S
        payloads = self._site.bus.payloads(TOPICS.gpu(NODE, self._gpu.uuid, "energy"))
        of_gpu = [each for each in (decode(raw, GpuEnergy) for raw in payloads if raw) if each.energy_j is not None][-1]
        of_run = self._site.energies()[-1]
        run_j = books.energy_j(end_s) - books.energy_j(begin_s)
        gpu_j = books.energy_j(of_gpu.time_s - MIDNIGHT_S) - books.energy_j(first_s)
        scraped_j = books.energy_j(scraped_s) - books.energy_j(first_s)
        errors = {
            "energy topic of the GPU": (of_gpu.energy_j or 0.0) / gpu_j - 1,
            "/metrics": metrics["gridchase_gpu_energy_joules_total"] / scraped_j - 1,
            "energy topic of the run": of_run.energy_j / run_j - 1,
            "line at the end": _line_j(of_run) / run_j - 1,
        }
        violations = [
            f"{where}: {100 * error_ratio:+.2f} % of the books"
            for where, error_ratio in errors.items()
            if abs(error_ratio) > MAX_ERROR_RATIO + (LINE_ROUNDING_RATIO if where == "line at the end" else 0.0)
        ]
        del errors["line at the end"]  # rounding is no error of the meter
        bounds = [_unmeasured_s(each, has_counter=self._has_counter, period_s=self._period_s) for each in self._faults]
        low_s, high_s = (sum(times_s) for times_s in zip(*bounds, strict=True))
        told_s = {
            "energy topic of the GPU": of_gpu.unmeasured_s,
            "/metrics": metrics["gridchase_gpu_unmeasured_seconds_total"],
            "energy topic of the run": of_run.unmeasured_s,
        }
        violations += [
            f"{where}: unmeasured for {unmeasured_s or 0.0:.1f} s, not {low_s:.1f} to {high_s:.1f} s"
            for where, unmeasured_s in told_s.items()
            if not low_s - 1.0 <= (unmeasured_s or 0.0) <= high_s + 1.0
        ]
        labels = _labels(self._faults, has_counter=self._has_counter)
        return EnergyOutcome(seed=self._seed, labels=labels, errors=errors, violations=violations)


def _line_j(record: RunEnergy) -> float:
    """Return the energy in the line that ends a run [J]."""
    line = str(summarize("resnet50", "run-1", record, unmeasured=("", "")))
    found = re.search(r": ([\d.,]+) (k?)Wh", line)
    return 0.0 if found is None else float(found[1].replace(",", "")) * 3_600 * (1_000 if found[2] else 1)


def run_energy_schedule(seed: int) -> EnergyOutcome:
    """Live through the run of a seed, on virtual time."""
    with tempfile.TemporaryDirectory(prefix="gridchase-energy-") as name, contextlib.ExitStack() as stack:
        stack.enter_context(run_dir_at(Path(name) / "run"))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("aiohappyeyeballs.start_connection", async_solipsism.aiohappyeyeballs_start_connection)
        stack.enter_context(quiet())
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(EnergyRun(seed, Path(name)).live())
