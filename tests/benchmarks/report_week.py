"""A week's `gridchase report` beside the simulator's own books: `python -m tests.benchmarks.report_week [--write]`.

Two simulated GPUs under the real controller on virtual time, once counted in carbon and once in money. The reports are
those of the command itself, each a process of its own.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from controller.app import NodeContext, run_controller
from controller.config import load_config
from controller.demo.day.grid import FIVE_WEEKS
from controller.demo.day.workload import BATCH_SIZE, Training, Workload, run_through
from controller.gpu.simulation.backend import SimulatedBackend, SimulatedGpu
from controller.gpu.simulation.event_log import LoadSettled
from controller.gpu.simulation.measured_curve import load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.history.energy_history.file_store import FileStore
from controller.history.energy_history.recorder import FILE, HistoryRecorder
from controller.runtime.clock import NS_PER_S
from policies.providers.catalogue import Source
from policies.providers.sources.csv_file import CsvProvider, Trace
from policies.vocabulary.units import DAY_S, HOUR_S, JOULES_PER_KWH
from publishers.messages.codec import Outgoing
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import RankStatus
from tests.benchmarks.pages import add_write, measured_on, show
from tests.benchmarks.virtual_training import VirtualTraining
from tests.fakes import MAX_SLEEP_S, FakeBus, FakeProcessTable, LoopClock, fake_process
from tests.virtual_time import VirtualTimeLoop

TABLE: Final = Path(__file__).with_suffix(".md")
STARTS_S: Final = datetime(2023, 5, 29, tzinfo=UTC).timestamp()
WEEK_S: Final = 7 * DAY_S
ZONE: Final = "WIN-1SUM,M5.5.3/2,M6.1.0/3"
"""A time zone made up for this: Wednesday has 23 hours, and Sunday 25; May ends at 22:00 UTC."""
MONTHS: Final = ("2023-05", "2023-06")
GROUPS: Final = ("job", "user", "run", "day")
RESTART_S, AWAY_S = 2.3 * DAY_S, 600.0
"""When the controller is restarted, and for how long there is none, while both GPUs have a run."""
BOOT_ID: Final = "this-boot"
TOPICS: Final = Topics()
NAP_S: Final = 5.0
"""A training sends what it has done so often."""
HEARTBEAT_S: Final = 20.0
WRITE_PERIOD_S: Final = 300.0
"""The history is written more rarely than by default: no number in it depends on that."""
SEED: Final = 11
CURVES: Final = ("a40-resnet50-imagenet-b256", "v100-resnet50-imagenet-b256")
BAR_RATIO: Final = 1e-3
Kind = Literal["carbon", "price"]
QUANTITIES: Final[dict[Kind, str]] = {"carbon": "carbon_g", "price": "cost"}


class PlannedRun(NamedTuple):
    """A run: whose, on which GPU, from when on [s since the start], and how many hours long at the prior limit."""

    user: str
    job: str
    run: str
    gpu: int
    begin_s: float
    length_h: float

    @property
    def key(self) -> RunKey:
        """Return its name."""
        return RunKey(self.user, self.job, self.run)

    @property
    def name(self) -> str:
        """Return it as a report does."""
        return f"{self.user}/{self.job}/{self.run}"


RUNS: Final = (
    PlannedRun("alice", "resnet50", "r1", 0, 0.2 * HOUR_S, 30.0),
    PlannedRun("alice", "resnet50", "r2", 0, 34 * HOUR_S, 58.0),
    PlannedRun("bob", "resnet50", "r3", 0, 97 * HOUR_S, 12.0),
    PlannedRun("alice", "resnet50", "r10", 0, 112 * HOUR_S, 48.0),
    PlannedRun("bob", "tagger", "t1", 1, 3 * HOUR_S, 20.0),
    PlannedRun("bob", "tagger", "t2", 1, 26 * HOUR_S, 60.0),
    PlannedRun("alice", "tagger", "t3", 1, 91 * HOUR_S, 66.0),
)
"""Midnights and the end of a month are within runs, as is the restart."""


@dataclass(frozen=True, slots=True)
class TrueRun:
    """What a run was: its timeline, and its twin's at the prior limit; when it began, and when both ended [ns]."""

    planned: PlannedRun
    gpu: GpuTimeline
    twin: GpuTimeline
    begin_ns: int
    end_ns: int
    twin_end_ns: int


async def run_job(planned: PlannedRun, gpu: SimulatedGpu, bus: FakeBus, *, number: int, pids: set[int]) -> TrueRun:
    """Be a training process from its start to its end, and return what it was; `pids` are those on the GPU."""
    loop, noise, pid = asyncio.get_running_loop(), Noise(SEED + number), 100 + number
    per_s = gpu.timeline.curve.iterations_per_s(gpu.timeline.curve.max_power_limit_w)
    workload = Workload(epochs=max(1, round(planned.length_h)), iterations_per_epoch=round(HOUR_S * per_s))
    status = RankStatus(
        run=planned.run,
        state="running",
        host="node-a",
        boot_id=BOOT_ID,
        pid=pid,
        gpus=[gpu.uuid],
        batch_size=BATCH_SIZE,
        world_size=1,
        started_at_s=STARTS_S + planned.begin_s,
        heartbeat_s=HEARTBEAT_S,
        total_iterations=workload.iterations,
    )
    await _wait_until(planned.begin_s)
    training = Training(gpu.timeline, noise, begin_ns=_ns(loop.time()))
    rank, begin_ns = VirtualTraining(training, workload, status=status, key=planned.key, bus=bus), training.time_ns
    pids.add(pid)
    rank.say("running")
    job, said_s = rank.compute(), loop.time()
    until_ns = next(job, None)
    while until_ns is not None:
        await _wait_until(max(loop.time() + NAP_S, until_ns / NS_PER_S))
        rank.send()
        if loop.time() - said_s >= HEARTBEAT_S:
            said_s = loop.time()
            rank.say("running")
        try:
            until_ns = job.send(_ns(loop.time()))
        except StopIteration:
            break
    rank.send()
    rank.say("finished")
    pids.discard(pid)
    twin = GpuTimeline(gpu.timeline.curve, Noise(SEED), start_ns=gpu.timeline.start_ns)
    same = Training(twin, noise, begin_ns=begin_ns)
    run_through(same.run(workload, range(workload.iterations_per_epoch)), lambda until_ns: until_ns)
    return TrueRun(planned, gpu.timeline, twin, begin_ns, training.time_ns, same.time_ns)


class Week(NamedTuple):
    """A week that was: its runs, what its reports say by each group, and of each month."""

    kind: Kind
    runs: list[TrueRun]
    trace: Trace
    reports: dict[str, dict[str, Any]]


def play(kind: Kind, folder: Path) -> Week:
    """Let a week pass, and ask for its reports."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        path = FIVE_WEEKS if kind == "carbon" else _prices(folder / "prices.csv")
        provider = CsvProvider(path, zone="GB", kind="average" if kind == "carbon" else "price")
        runs = runner.run(_live(kind, provider, folder))
    asked = {by: ["--by", by] for by in (*GROUPS, "gpu")} | {month: ["--month", month] for month in MONTHS}
    reports = {name: _report(folder / FILE, arguments) for name, arguments in asked.items()}
    return Week(kind, runs, provider.trace, reports)


def _prices(path: Path) -> Path:
    """Write prices that go up and down with the carbon intensity, and below zero in the cleanest half-hours."""
    rows = [row for row in FIVE_WEEKS.read_text(encoding="utf-8").splitlines() if row[:1].isdigit()]
    priced = ((row.split(",")[0], (float(row.split(",")[1]) - 60.0) / 500) for row in rows)
    path.write_text("\n".join(["timestamp,gbp_per_kwh", *(f"{at},{price:.4f}" for at, price in priced)]))
    return path


def _report(database: Path, arguments: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "gridchase", "report", "--database", str(database), "--json", *arguments]
    done = subprocess.run(command, env=os.environ | {"TZ": ZONE}, capture_output=True, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def _live(kind: Kind, provider: CsvProvider, folder: Path) -> list[TrueRun]:
    clock, bus, processes = LoopClock(STARTS_S), FakeBus(), FakeProcessTable()
    owners = {"alice": 1_001, "bob": 1_002}
    processes.uids |= owners
    for number, planned in enumerate(RUNS):
        processes.known[100 + number] = (fake_process(100 + number, uid=owners[planned.user]),)
    pids: list[set[int]] = [set() for _ in CURVES]
    gpus = [
        SimulatedGpu(
            GpuTimeline(load_curve(curve), Noise(SEED), start_ns=0),
            clock=clock,
            index=index,
            pids=_reader(pids[index]),
            name=f"gpu-{index}",
        )
        for index, curve in enumerate(CURVES)
    ]  # fmt: skip
    for gpu in gpus:
        gpu.timeline.record(LoadSettled(2**63 - 1))

    def connect(will: Outgoing, birth: Callable[[], Iterable[Outgoing]]) -> FakeBus:
        bus.will, bus.birth = will, birth
        return bus

    async def controlled(until_s: float) -> None:
        stop = asyncio.Event()
        config = load_config(None, [*_settings(kind), f"node.state_dir={folder}"])
        store = FileStore(folder / FILE, topics=TOPICS, config=config.history, session_s=clock.now_s())
        node = NodeContext(
            config=config,
            boot_id=BOOT_ID,
            version="0",
            backend=SimulatedBackend(gpus),
            sources=[Source(provider=provider)],
            clock=clock,
            connect=connect,
            history=HistoryRecorder(store, clock=clock, period_s=WRITE_PERIOD_S),
            processes=processes,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_controller(node, stop=stop), name="controller")
            await _wait_until(until_s)
            stop.set()

    async def controllers() -> None:
        await controlled(RESTART_S)
        bus.sent.clear()
        await _wait_until(RESTART_S + AWAY_S)
        await controlled(WEEK_S)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(controllers(), name="controllers")
        jobs = [
            tasks.create_task(run_job(planned, gpus[planned.gpu], bus, number=number, pids=pids[planned.gpu]))
            for number, planned in enumerate(RUNS)
        ]
        tasks.create_task(_forget(bus), name="forget")
    return [job.result() for job in jobs]


def _settings(kind: Kind) -> list[str]:
    provider = 'signal.provider=[{name="constant", value=300.0}]'
    return [
        *(f"signal.kind={kind}", provider, "signal.zone=GB"),
        *("gpu.backend=simulation", "http.port=-1", "node.name=node-a", "bus.username=node"),
        *("plan.period_s=300", "profiler.settle_s=20", "profiler.window_s=100"),
        *("profiler.block_s=100", "profiler.n_blocks=2"),
    ]


def _reader(pids: set[int]) -> Callable[[], Any]:
    async def read() -> frozenset[int]:
        return frozenset(pids)

    return read


async def _forget(bus: FakeBus) -> None:
    """Forget what was sent, of which a week is much."""
    while asyncio.get_running_loop().time() < WEEK_S:
        bus.sent.clear()
        await asyncio.sleep(50.0)


def _ns(time_s: float) -> int:
    return int(time_s * NS_PER_S)


async def _wait_until(time_s: float) -> None:
    """Sleep a minute at most at a time: the virtual loop takes more for a deadlock."""
    loop = asyncio.get_running_loop()
    while (left_s := time_s - loop.time()) > 1e-6:  # noqa: ASYNC110 — a time is waited for, not an event
        await asyncio.sleep(min(left_s, MAX_SLEEP_S))


class Books(NamedTuple):
    """What was truly used in a time: energy [J], carbon [g] or money, and the time of runs [s]."""

    energy_j: float
    amount: float
    duration_s: float

    def plus(self, more: "Books") -> "Books":
        """Return both together."""
        return Books(*(a + b for a, b in zip(self, more, strict=True)))


NOTHING: Final = Books(0.0, 0.0, 0.0)
MIDNIGHTS_H: Final = (-1, 23, 47, 70, 94, 118, 142, 167)
"""When the days of the zone begin [h since the start]; the third, Wednesday, has 23 hours and the last, Sunday, 25."""
DAYS: Final = (*(f"2023-05-{day}" for day in (29, 30, 31)), *(f"2023-06-0{day}" for day in range(1, 5)))


def books_of(gpu: GpuTimeline, trace: Trace, begin_ns: int, end_ns: int) -> Books:
    """Return the exact integrals of the power, and of power times signal, between two moments."""
    steps_ns = [_ns(float(start_s) - STARTS_S) for start_s in trace.starts_s if start_s >= STARTS_S]
    marks_ns = [begin_ns, *(step_ns for step_ns in steps_ns if begin_ns < step_ns < end_ns), end_ns]
    amount = 0.0
    for a_ns, b_ns in pairwise(marks_ns):
        at_s = STARTS_S + (a_ns + b_ns) / 2 / NS_PER_S
        value = float(trace.values[np.searchsorted(trace.starts_s, at_s, side="right") - 1])
        amount += value * (gpu.energy_j(b_ns) - gpu.energy_j(a_ns)) / JOULES_PER_KWH
    return Books(gpu.energy_j(end_ns) - gpu.energy_j(begin_ns), amount, (end_ns - begin_ns) / NS_PER_S)


def true_lines(week: Week) -> dict[str, dict[str, Books]]:
    """Return what the simulator's books say by each group, and of each month, by the names of a report's lines."""
    lines: dict[str, dict[str, Books]] = {name: {} for name in (*GROUPS, *MONTHS)}
    for run in week.runs:
        user, job = run.planned.user, f"{run.planned.user}/{run.planned.job}"
        for day, (begin_h, end_h) in zip(DAYS, pairwise(MIDNIGHTS_H), strict=True):
            begin_ns, end_ns = max(run.begin_ns, _ns(begin_h * HOUR_S)), min(run.end_ns, _ns(end_h * HOUR_S))
            if end_ns <= begin_ns:
                continue
            part = books_of(run.gpu, week.trace, begin_ns, end_ns)
            for group, name in (("run", run.planned.name), ("job", job), ("user", user), ("day", day)):
                lines[group][name] = lines[group].get(name, NOTHING).plus(part)
            lines[day[:7]]["total"] = lines[day[:7]].get("total", NOTHING).plus(part)
    return lines


def told_lines(week: Week, group: str) -> dict[str, Books]:
    """Return the same as the reports say; of a month its sum."""
    report = week.reports[group]
    rows = [report["total"]] if group in MONTHS else report["rows"]
    quantity = QUANTITIES[week.kind]
    return {row["name"]: Books(row["energy_j"], row[quantity], row["duration_s"]) for row in rows}


def page(weeks: Iterable[Week]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# A week's report beside the simulator's own books\n"
    yield f"{measured_on('sqlalchemy')}; `python -m tests.benchmarks.report_week --write`.\n"
    yield (
        f"Two simulated GPUs (A40, V100) under the real controller for seven days of virtual time, {len(RUNS)} runs of"
        " two jobs and two users. The controller is restarted within two runs, and away for ten minutes. Midnights and"
        " the end of May lie within runs; Wednesday has 23 hours and Sunday 25. The grid is that of Great Britain from"
        " 29 May 2023 on (NESO); prices are made of it, and below zero at times. The reports are those of `gridchase"
        " report --json`. The books are exact integrals of the simulated power, and of power times signal. The"
        " difference is the largest of all lines, in per cent of the line."
    )
    for week in weeks:
        quantity = "carbon" if week.kind == "carbon" else "cost"
        yield f"\n## Counted in {'carbon' if week.kind == 'carbon' else 'money'}\n"
        yield f"| report | lines | energy | {quantity} | hours | bar |\n|---|---:|---:|---:|---:|---:|"
        for group, true in true_lines(week).items():
            yield _compared(group, told_lines(week, group), true)
        yield f"\n{_saved_words(week)}\n"
        yield (
            f"| run | hours | energy saved % | told | 90 % interval | {quantity} saved % | told | 90 % interval |\n"
            "|---|---:|---:|---:|---|---:|---:|---|"
        )
        yield from _savings(week)


def _compared(group: str, told: dict[str, Books], true: dict[str, Books]) -> str:
    if told.keys() != true.keys():
        return f"| {group} | {sorted(told.keys() ^ true.keys())} are not in both | | | | |"
    worst = [
        max(100 * abs(told[name][place] / true[name][place] - 1) for name in true) for place in range(len(NOTHING))
    ]
    name = group if group in MONTHS else f"by {group}"
    return f"| {name} | {len(true)} | {' | '.join(f'{each:.3f}' for each in worst)} | {100 * BAR_RATIO:g} |"


def _saved_words(week: Week) -> str:
    held = [lower <= true <= upper for run in week.runs for true, _, lower, upper in _saving(week, run)]
    return (
        "What was saved, beside the same work on the same GPU at the prior limit from the same moment on, with"
        f" other noise: {sum(held)} of {len(held)} intervals hold the truth."
    )


def _saving(week: Week, run: TrueRun) -> list[tuple[float, float, float, float]]:
    """Return (truth, told, lower end, upper end) of the share of energy that was saved, and of carbon or money."""
    (row,) = [row for row in week.reports["run"]["rows"] if row["name"] == run.planned.name]
    own = books_of(run.gpu, week.trace, run.begin_ns, run.end_ns)
    twin = books_of(run.twin, week.trace, run.begin_ns, run.twin_end_ns)
    found = []
    halves = {"carbon": "saved_carbon_ci90_g", "cost": "saved_cost_ci90", "energy": "saved_energy_ci90_j"}
    baselines = {"carbon": "baseline_carbon_g", "cost": "baseline_cost", "energy": "baseline_energy_j"}
    for place, stem in enumerate(("energy", QUANTITIES[week.kind].partition("_")[0])):
        if f"saved_{stem}_ratio" in row:
            told, half = row[f"saved_{stem}_ratio"], row[halves[stem]] / abs(row[baselines[stem]])
            found.append((1 - own[place] / twin[place], told, told - half, told + half))
    return found


def _savings(week: Week) -> Iterator[str]:
    for run in week.runs:
        cells = [
            f"{100 * true:.2f} | {100 * told:.2f} | {100 * lower:.2f} to {100 * upper:.2f}"
            for true, told, lower, upper in _saving(week, run)
        ] or ["| too early | "] * 2
        yield f"| {run.planned.name} | {(run.end_ns - run.begin_ns) / NS_PER_S / HOUR_S:.1f} | {' | '.join(cells)} |"


def main() -> None:
    """Let both weeks pass, compare, and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_write(parser, TABLE)
    options = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        show(page(pool.map(_played, QUANTITIES)), TABLE, write=options.write)


def _played(kind: Kind) -> Week:
    with TemporaryDirectory() as folder:
        return play(kind, Path(folder))


if __name__ == "__main__":
    main()
