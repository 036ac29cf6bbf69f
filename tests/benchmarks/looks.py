"""What looks cost, and how well the time budget is kept by them: `python -m tests.benchmarks.looks [--write]`.

Simulated runs under the controller's own decisions, ledger and books, reading by reading, in several classes of noise:
from that of an H100 to that of a training which its host holds up. With `--before DIR` the same runs under the code of
another checkout are told beside them.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from controller.accounting.meter_intervals import MAX_TIMES, MeterInterval
from controller.control.curve_learning import Planned
from controller.control.limit_control import DecisionInputs
from controller.control.plan import PlanInputs
from controller.ports import Provenance
from policies.planning import Progress
from policies.savings.books import Purpose
from policies.savings.interval import KnownSaving
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values
from tests.benchmarks.a_over_a_runs import MIDNIGHT_S, TOP_W, WARM_C, Case, Node
from tests.benchmarks.pages import add_write, measured_on, show
from tests.controller.messages import ns
from tests.policies.days import A40, grid, known_by

TABLE: Final = Path(__file__).with_suffix(".md")
FALLING: Final = Case(name="energy falls down to the lowest limit", is_flat=False)
MAX_SLOWDOWN: Final = 1.03
"""The default."""
SCALE: Final = TOP_W / A40.fastest.power_limit_w
GRAIN_S: Final = 10.0
"""What wanders is constant for so long."""
WANDER_S: Final = 300.0
POWER_WANDER_SHARE: Final = 0.5
"""Power wanders by so much of what the rate does."""
DRIFT_RATIO: Final = 0.005
AMBIENT_K: Final = 0.5
COLD_RATIO: Final = -0.03
WARMS_S: Final = 60.0
TICK_S: Final = 0.1
JITTER_S: Final = 0.008
TICK_POWER_RATIO: Final = 0.018
"""The energy counter moves so often, off by so much, and the power of a tick scatters by so much (standard deviations):
least squares over readings ten a second are then off by 2.1, 1.0, 0.5 and 0.3 % in 0.5, 1, 2 and 4 s, as an H100's."""
STEP_ERROR_S: Final = 0.0015
"""When the counter has moved last is known to so much: with that, the power is off by 0.9, 0.6, 0.4 and 0.3 % there."""
BITES_S: Final = 0.1
"""A limit takes so long to bite."""
FLUSH_S: Final = 0.25
"""Iterations are told so often."""
SWEEP_STEP_S: Final = 0.1
TRIAL_STEP_S: Final = 0.25
LOOK_STEP_S: Final = 0.2
STEADY_STEP_S: Final = 20.0
"""The meters are read so often in the first sweep, in trials, around looks and changes of limit, and else."""
FIRST_HOURS: Final = 6.0


class ScaledA40:
    """A measured curve, its limits stretched from 300 to 700 W: energy per iteration is least at 467 W."""

    name = "an A40's curve"

    def power_w(self, power_limit_w: float) -> float:
        """Return what the job draws at a limit [W]."""
        return SCALE * _a40_at(power_limit_w)[0]

    def rate_per_s(self, power_limit_w: float) -> float:
        """Return how fast it is there [iterations/s]."""
        return _a40_at(power_limit_w)[1]


@cache
def _a40_at(power_limit_w: float) -> tuple[float, float]:
    return fit_curve(A40, step_w=5.0).at(max(power_limit_w / SCALE, A40.points[0].power_limit_w))


Board = Case | ScaledA40


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A class of noise.

    Attributes:
        name: as the table has it.
        iteration_time_s: how long an iteration takes at the top [s].
        scatter_ratio: by how much single iterations scatter.
        wander_ratio: by how much the rate wanders within five minutes.
    """

    name: str
    iteration_time_s: float
    scatter_ratio: float
    wander_ratio: float = 0.0


JOBS: Final = (
    Job(name="H100, GPU bound: 64 ms, .03 %", iteration_time_s=0.064, scatter_ratio=0.0003),
    Job(name="the same, wandering", iteration_time_s=0.064, scatter_ratio=0.0003, wander_ratio=0.01),
    Job(name="64 ms, .5 %", iteration_time_s=0.064, scatter_ratio=0.005),
    Job(name="the same, wandering", iteration_time_s=0.064, scatter_ratio=0.005, wander_ratio=0.01),
    Job(name="300 ms, 2 %", iteration_time_s=0.3, scatter_ratio=0.02),
    Job(name="the same, wandering", iteration_time_s=0.3, scatter_ratio=0.02, wander_ratio=0.01),
    Job(name="300 ms, 5 %", iteration_time_s=0.3, scatter_ratio=0.05),
    Job(name="the same, wandering", iteration_time_s=0.3, scatter_ratio=0.05, wander_ratio=0.01),
    Job(name="21 ms, host bound, 15 %", iteration_time_s=0.021, scatter_ratio=0.15),
    Job(name="the same, wandering", iteration_time_s=0.021, scatter_ratio=0.15, wander_ratio=0.01),
)


class Training:
    """A job on a board that follows a curve: its iterations, its power, and what the meters show of it.

    Attributes:
        at_s: the time [s].
        work: what is done, in iterations of mean length.
        base_s: how long that would have taken at the top limit [s].
        energy_j, base_energy_j: what was used, and what would have been at the top limit, as warm [J].
    """

    def __init__(self, job: Job, *, board: Board, lasts_s: float, rng: np.random.Generator) -> None:
        n = math.ceil(1.2 * lasts_s / GRAIN_S) + 10
        self.job, self._board = job, board
        self.at_s = self.work = self.base_s = self.energy_j = self.base_energy_j = 0.0
        self._rates = np.exp(_wandering(job.wander_ratio, n, rng))
        self._powers = np.exp(_wandering(POWER_WANDER_SHARE * job.wander_ratio, n, rng))
        self._ambient_k = AMBIENT_K / DRIFT_RATIO * _wandering(DRIFT_RATIO, n, rng)
        n_drawn = math.ceil(1.1 * lasts_s / job.iteration_time_s) + 1000
        scatter = job.scatter_ratio * rng.standard_normal(n_drawn)
        self._ends = np.cumsum(np.exp(scatter - job.scatter_ratio**2 / 2))
        self._rng = rng
        self._n_ended, self._ended_s, self._shown_j, self._known_j, self._n_told = 0, 0.0, 0.0, 0.0, 0.0
        self._limit_w = self._before_w = TOP_W
        self._bites_at_s = 0.0

    def set_limit(self, power_limit_w: float) -> None:
        """Set a limit, which bites a little later."""
        if power_limit_w != self._limit_w:
            self._before_w, self._limit_w, self._bites_at_s = self._limit_w, power_limit_w, self.at_s + BITES_S

    def train(self, duration_s: float) -> MeterInterval:
        """Train for a while, and return what is seen of it."""
        begin_s, end_s = self.at_s, self.at_s + duration_s
        edges = [begin_s, *(x for x in (self._bites_at_s,) if begin_s < x < end_s), end_s]
        marks: list[float] = []
        for since_s, until_s in pairwise(edges):
            marks += self._advance(self._limit_w if since_s >= self._bites_at_s else self._before_w, until_s)
        times_s = np.diff([self._ended_s, *marks])
        self._ended_s = marks[-1] if marks else self._ended_s
        n_told = self._n_ended + self._fraction()
        lag_s = abs(JITTER_S * self._rng.standard_normal())
        shown_j = max(self.energy_j - lag_s * self._power_w, self._shown_j)
        known_j = self.energy_j + STEP_ERROR_S * self._rng.standard_normal() * self._power_w
        seen = MeterInterval(
            begin_ns=ns(begin_s),
            end_ns=ns(end_s),
            active=True,
            n_iterations=n_told - self._n_told,
            energy_j=shown_j - self._shown_j,
            interpolated_energy_j=known_j - self._known_j,
            iteration_times_s=tuple(times_s[:: max(1, math.ceil(len(times_s) / MAX_TIMES))].tolist()),
            temperature_c=float(round(WARM_C + self._ambient_k[int(self.at_s / GRAIN_S)])),
        )
        self._n_told, self._shown_j, self._known_j = n_told, shown_j, known_j
        return seen

    def _advance(self, power_limit_w: float, until_s: float) -> list[float]:
        """Train at a limit up to a time [s], and return when iterations have ended [s]."""
        grain, lasts_s = int(self.at_s / GRAIN_S), until_s - self.at_s
        rate_ratio, power_ratio = float(self._rates[grain]), float(self._powers[grain])
        board = self._board
        relative = board.rate_per_s(power_limit_w) / board.rate_per_s(TOP_W)
        rate_per_s = rate_ratio * relative / self.job.iteration_time_s
        self._power_w = board.power_w(power_limit_w) * power_ratio * (1 + COLD_RATIO * math.exp(-self.at_s / WARMS_S))
        noise = 1 + TICK_POWER_RATIO * math.sqrt(TICK_S / lasts_s) * self._rng.standard_normal()
        work = self.work + rate_per_s * lasts_s
        last = int(np.searchsorted(self._ends, work, side="right"))
        marks = self.at_s + (self._ends[self._n_ended : last] - self.work) / rate_per_s
        self.energy_j += self._power_w * noise * lasts_s
        self.base_energy_j += (
            self._power_w * noise * lasts_s * relative * board.power_w(TOP_W) / board.power_w(power_limit_w)
        )
        self.base_s += relative * lasts_s
        self.at_s, self.work, self._n_ended = until_s, work, last
        return [float(mark_s) for mark_s in marks]

    def _fraction(self) -> float:
        """Return the share of the iteration that goes on."""
        began = float(self._ends[self._n_ended - 1]) if self._n_ended else 0.0
        return (self.work - began) / (float(self._ends[self._n_ended]) - began)


def _wandering(ratio: float, n: int, rng: np.random.Generator) -> Values:
    """Return what wanders within minutes, and drifts within a day."""
    if not ratio:
        return np.zeros(n)
    keep, values = math.exp(-GRAIN_S / WANDER_S), np.empty(n)
    shocks = (math.sqrt(1 - keep * keep) * rng.standard_normal(n)).tolist()
    value = float(rng.standard_normal())
    for i, shock in enumerate(shocks):
        value = keep * value + shock
        values[i] = value
    drift = np.cumsum(rng.standard_normal(n)) * math.sqrt(GRAIN_S / DAY_S)
    return np.asarray(ratio * values + DRIFT_RATIO * drift)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a run came to.

    Attributes:
        first_plan_s: when there was a plan [s].
        looks_6h_ratio, looks_ratio: the share of the first six hours, and of all, that was spent at the top for looks.
        over: the time over what was allowed [points].
        saved_off, saved_half: the error of the energy saved as told, and its half-width [points]; None: not told.
        n_looks, n_curves: how many looks there were at the last curve, and how many curves.
    """

    first_plan_s: float
    looks_6h_ratio: float
    looks_ratio: float
    over: float
    saved_off: float | None
    saved_half: float | None
    n_looks: int
    n_curves: int


def simulate(job: Job, hours: float, seed: int, board: Board = FALLING) -> Found:
    """Simulate a run."""
    rng = np.random.default_rng([seed, round(1e4 * job.scatter_ratio), round(1e4 * job.wander_ratio)])
    training, node = Training(job, board=board, lasts_s=hours * HOUR_S, rng=rng), Node()
    signal, start_s = _signal(), MIDNIGHT_S + 2 * DAY_S + float(rng.uniform(0, DAY_S))
    total = hours * HOUR_S / job.iteration_time_s if seed % 2 else None
    first_plan_s, looks_s, looks_6h_s = math.inf, 0.0, 0.0
    waiting: list[MeterInterval] = []
    while training.base_s < hours * HOUR_S:
        limit_w = _choose(node, training, signal, start_s=start_s, total=total)
        training.set_limit(limit_w)
        state, purpose = node.control.state, node.books.purpose
        if isinstance(state, Planned):
            first_plan_s = min(first_plan_s, training.at_s)
        since_s = training.at_s
        step_s = _step_s(node, training.at_s, hours * HOUR_S if total else None)
        while True:
            waiting.append(training.train(step_s))
            if step_s >= FLUSH_S or int(training.at_s / FLUSH_S + 1e-9) > int(since_s / FLUSH_S + 1e-9):
                break
        for each in waiting:
            node.enter(each)
        waiting.clear()
        if purpose is Purpose.LOOK:
            looks_s += training.at_s - since_s
        if training.at_s < FIRST_HOURS * HOUR_S:
            looks_6h_s = looks_s
    known = node.saving()
    told = known if isinstance(known, KnownSaving) and not known.is_unchanged else None
    saved_ratio = 1 - training.energy_j / training.base_energy_j
    return Found(
        first_plan_s=first_plan_s,
        looks_6h_ratio=looks_6h_s / min(FIRST_HOURS * HOUR_S, training.at_s),
        looks_ratio=looks_s / training.at_s,
        over=100 * (training.at_s / training.base_s - MAX_SLOWDOWN),
        saved_off=100 * (told.saving.saved_energy_ratio - saved_ratio) if told else None,
        saved_half=100 * told.saved_energy_ci90_ratio if told else None,
        n_looks=node.n_looks,
        n_curves=node.n_curves,
    )


def _choose(node: Node, training: Training, signal: Signal, *, start_s: float, total: float | None) -> float:
    """Return the limit that the controller asks for [W]; it is in force at once, and bites later."""
    now_s = start_s + training.at_s

    def plan() -> PlanInputs:
        return PlanInputs(
            now_s=now_s,
            history=known_by(signal, now_s),
            forecast=signal.between(now_s, now_s + DAY_S),
            progress=Progress(
                n_iterations=training.work, active_s=training.at_s, started_at_s=start_s, total_iterations=total
            ),
            provenance=Provenance(source="wind"),
        )

    decision = node.control.decide(
        DecisionInputs(now_s=now_s, n_iterations=training.work, curve_start=lambda: None, plan=plan)
    )
    assert decision.target is not None
    assert decision.purpose is not None
    node.books.purpose = decision.purpose
    if decision.target.power_limit_w != node.in_force[0]:
        node.in_force, node.changed_s = (decision.target.power_limit_w, ns(training.at_s)), training.at_s
    return decision.target.power_limit_w


def _step_s(node: Node, at_s: float, length_s: float | None) -> float:
    """Return how long it is to the next reading: short where something is measured [s]."""
    step_s = node.step_s(at_s, steady_s=STEADY_STEP_S, length_s=length_s)
    if step_s == STEADY_STEP_S:
        return step_s - at_s % 1.0
    if not isinstance(node.control.state, Planned):
        return SWEEP_STEP_S
    return TRIAL_STEP_S if node.control.is_exploring else LOOK_STEP_S


@cache
def _signal() -> Signal:
    signal = grid("wind", n_days=8)
    return replace(signal, starts_s=signal.starts_s + MIDNIGHT_S, ends_s=signal.ends_s + MIDNIGHT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Runs of a kind.

    Attributes:
        job: the class of noise, by its number.
        hours: how long they are.
        n_runs: how many there are.
    """

    job: int
    hours: float
    n_runs: int


BOARDS: Final[tuple[Board, ...]] = (FALLING, ScaledA40())
SWEEP_HOURS: Final = 0.01
N_SWEEPS: Final = 20
BAR_OVER: Final = 0.03


def rows_of(n_runs: int) -> list[Row]:
    """Return the rows of the page: a day of the steadiest job, and six hours of each."""
    return [
        Row(job=0, hours=24.0, n_runs=4 * n_runs),
        *(Row(job=job, hours=FIRST_HOURS, n_runs=n_runs) for job in range(len(JOBS))),
    ]


def _simulated(task: tuple[int, float, int]) -> Found:
    number, hours, seed = task
    return simulate(JOBS[number], hours, seed)


def _first_plan_s(task: tuple[int, int]) -> float:
    board, seed = task
    return simulate(JOBS[0], SWEEP_HOURS, seed, BOARDS[board]).first_plan_s


def found_in(rows: Sequence[Row], n_processes: int) -> tuple[list[list[Found]], list[list[float]]]:
    """Return what the code that is imported comes to: the runs of each row, and the first plans on each board [s]."""
    with ProcessPoolExecutor(max_workers=n_processes) as pool:
        plans = [
            list(pool.map(_first_plan_s, [(board, seed) for seed in range(N_SWEEPS)])) for board in range(len(BOARDS))
        ]
        tasks = [(row.job, row.hours, seed) for row in rows for seed in range(row.n_runs)]
        runs = iter(pool.map(_simulated, tasks))
        return [[next(runs) for _ in range(row.n_runs)] for row in rows], plans


def found_by(checkout: Path, options: argparse.Namespace) -> tuple[list[list[Found]], list[list[float]]]:
    """Return the same for the code of another checkout."""
    command = [sys.executable, "-P", str(Path(__file__)), "--as-json", "--runs", str(options.runs)]
    told = subprocess.run(
        [*command, "--processes", str(options.processes)],
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
        check=True,
        stdout=subprocess.PIPE,
    )
    runs, plans = json.loads(told.stdout)
    return [[Found(**each) for each in row] for row in runs], plans


def row_of(row: Row, code: str, found: Sequence[Found]) -> str:
    """Return a row of the table."""
    over = np.array([each.over for each in found])
    told = [each for each in found if each.saved_off is not None]
    covered = sum(abs(each.saved_off or 0.0) <= (each.saved_half or 0.0) for each in told)
    cells = [
        f"{row.hours:g} h",
        JOBS[row.job].name if JOBS[row.job].wander_ratio == 0 else f"{JOBS[row.job - 1].name}, wandering",
        code,
        str(len(found)),
        f"{100 * np.mean([each.looks_6h_ratio for each in found]):.2f} %",
        f"{100 * np.mean([each.looks_ratio for each in found]):.2f} %",
        f"{over.mean():+.3f}",
        f"{over.max():+.3f}",
        f"{(over <= BAR_OVER).sum()}",
        f"{np.maximum(-over, 0.0).mean():.3f}",
        f"{covered} of {len(told)}",
        f"{np.median([each.saved_half or 0.0 for each in told]):.2f}" if told else "",
        f"{np.median([each.n_looks for each in found]):g}",
        f"{np.median([each.n_curves for each in found]):g}",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD: Final = """\
# Looks, and the time budget, by the noise of a job

{measured_on}; `{command}`.

The controller's own decisions, ledger and books with the default settings, a slowdown of 3 % at most, under a made-up
carbon intensity known a day ahead; half of the runs tell their length. A board of 200 to 700 W, cold at first (3 % less
power, within a minute); a limit takes 0.1 s to bite. Iterations scatter by what the name of a row says; *wandering*:
the rate wanders by 1 % and the power by 0.5 % over five minutes, and both drift by 0.5 % in a day. Meters are as an
H100's are: power by least squares is off by 2.1, 1.0, 0.5 and 0.3 % in 0.5, 1, 2 and 4 s, and with what is known of
the steps of the counter by 0.9, 0.6, 0.4 and 0.3 %. Iterations are told four times a second.

*Looks*: the share of the time spent at the highest limit for looks, in the first six hours and in all. *Over*: the time
used less the time allowed, in points: mean, worst run, and in how many runs it was {bar} or less. *Left*: what was not
used, mean. *Covered*: how many 90 % intervals of the energy saved held the truth, of those told, and their median
half-width [points]. Then how many looks the last curve had, and how many curves there were (medians).

Bars for the first job: 0.4 % of six hours and 0.2 % of a day in looks, {bar} points over in 99 % of days, 0.01 left on
average, a plan within 6 s."""
FOOT: Final = """
## How the bars are met

- All bars of the first job are met but one: on a board whose energy falls down to the lowest limit, the first plan
  takes 6 s in half of the runs, and 6.8 s in the slowest. There seven limits are measured: after 0.3 to 0.4 s
  steady iterations show that a limit has bitten, the meters are then read for 0.3 to 0.5 s, and iterations are told
  each 0.25 s.
- Short looks know less of the energy: the interval of the first job is ±0.5 points after a day.
- Before looks were as short as the clock of a job allows (commit d537659d, on 29 November 2026: eight days, and two
  runs of six hours of each job), they took 0.96 % of six hours and 0.66 % of a day of the first job, whose interval
  was ±0.25, and 4.9 % of six hours of the job that its host holds up: as much as now.
- Three runs of six hours tell only large differences. Jobs that wander were on several curves: there the budget is
  missed by tenths of a point."""


def page(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the page."""
    rows = rows_of(options.runs)
    before = f" --before DIR ({options.before_name})" if options.before else ""
    yield HEAD.format(
        measured_on=measured_on(),
        command=f"python -m tests.benchmarks.looks --write --runs {options.runs}{before}",
        bar=BAR_OVER,
    )
    codes = {}
    if options.before:
        codes["before"] = found_by(options.before, options)
    codes["now"] = found_in(rows, options.processes)
    yield ""
    yield "| run | job | code | runs | looks 6 h | all | over | worst | within | left | covered | ± | looks | curves |"
    yield f"|---|---|---|{'---:|' * 11}"
    for number, row in enumerate(rows):
        for code, (runs, _) in codes.items():
            yield row_of(row, code, runs[number])
    yield f"\n## The first plan of the first job [s], {N_SWEEPS} runs\n"
    yield "| board | code | median | worst |\n|---|---|---:|---:|"
    for number, board in enumerate(BOARDS):
        for code, (_, plans) in codes.items():
            yield f"| {board.name} | {code} | {np.median(plans[number]):.1f} | {max(plans[number]):.1f} |"
    yield FOOT


def main() -> None:
    """Print the page; with `--write` into `looks.md`, too."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_write(parser, TABLE)
    parser.add_argument(
        "--runs", type=int, default=4, help="runs of six hours of each job; four times as many of a day"
    )
    parser.add_argument("--before", type=Path, metavar="DIR", help="a checkout whose code is told beside this one's")
    parser.add_argument("--before-name", default="another checkout", help="what the page calls it")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--as-json", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_json:
        runs, plans = found_in(rows_of(options.runs), options.processes)
        print(json.dumps([[[asdict(each) for each in row] for row in runs], plans]))
    else:
        show(page(options), TABLE, write=options.write)


if __name__ == "__main__":
    main()
