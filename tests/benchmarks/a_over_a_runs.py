"""Simulated runs under the controller's own decisions, ledger and books, beside their twins: for the A/A benchmark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from scipy.signal import lfilter

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.run_books import GpusNow, RunBooks
from controller.accounting.run_saving import CHECK_S, PERIOD_RATIO
from controller.config import EnergyConfig, PlanConfig, ProfilerConfig
from controller.control.curve_learning import Planned
from controller.control.limit_control import CurveStart, DecisionInputs, LimitControl
from controller.control.plan import PlanInputs
from controller.ports import Provenance
from controller.runtime.clock import NS_PER_S
from policies.planning import Progress
from policies.profiling.paired_looks import look_period_s
from policies.savings.interval import KnownSaving, UnknownSaving, is_energy_known
from policies.vocabulary.units import DAY_S, HOUR_S, Values
from tests.benchmarks.a_over_a_thermal import Thermal, thermal_of
from tests.controller.messages import ns

FLOOR_W: Final = 200.0
TOP_W: Final = 700.0
MIDNIGHT_S: Final = 1_800_000_000.0
ITERATION_TIME_S: Final = 0.3
PROFILER: Final = ProfilerConfig()

GRAIN_S: Final = 10.0
"""What wanders is constant for so long."""
WANDER_S: Final = 300.0
WARM_UP_GRAINS: Final = 300
RATE_RATIO: Final = 0.01
POWER_RATIO: Final = 0.005
DRIFT_RATIO: Final = 0.005
"""What rate and power wander by in five minutes, and what both drift by in a day."""
MOST_DEVIATIONS: Final = 6.0
"""So many standard deviations more iterations are drawn than a run has on average."""
ROUNDING: Final = 1e-9
SHORTEST_S: Final = 1e-9

COLD_RATIO: Final = -0.03
"""A cold board draws so much less, at the start and after each validation."""
WARM_C: Final = 65.0
AMBIENT_K: Final = 0.5
"""At the top a board is so warm; the room wanders by so much in five minutes, which costs nothing."""
VALIDATION_POWER_RATIO: Final = 0.7

TICK_S: Final = 0.1
"""The energy counter moves so often; …"""
READING_S: Final = 0.008
"""… readings come at the same phase of it but for so much (standard deviation)."""

SWEEP_STEP_S: Final = 0.1
TRIAL_STEP_S: Final = 0.5
LOOK_STEP_S: Final = 0.5
LONG_RUN_S: Final = 2 * HOUR_S
STEADY_STEPS_S: Final = (5.0, 20.0)
"""The meters are read so often in the first sweep, in trials, around looks and changes of limit, and else in runs of up
to `LONG_RUN_S` and longer ones. Blocks and windows of drift are so much longer there than 2 s."""
MORE_S: Final = 5.0
"""Readings are dense for so much longer than looks see."""
BY_WORK_SHARE: Final = 0.5
TOLD_SHARE: Final = 0.5
"""In so many runs noise belongs to the work; so many tell their length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of run.

    Attributes:
        name: as the table has it.
        is_flat: whether the limit changes neither rate nor power.
        has_thermal_state: whether a board at a lower limit becomes cooler.
    """

    name: str
    is_flat: bool
    has_thermal_state: bool = False

    def power_w(self, power_limit_w: float) -> float:
        """Return what the job draws at a limit on a board as warm as at the top [W]."""
        return 570.0 if self.is_flat else min(0.95 * power_limit_w, 640.0)

    def rate_per_s(self, power_limit_w: float) -> float:
        """Return how fast the job is at a limit: 3 % slower where it draws 20 % less, then ever steeper."""
        missing_ratio = 0.0 if self.is_flat else (640.0 - self.power_w(power_limit_w)) / 126.0
        return 1.0 / (1.0 + 0.03 * missing_ratio**2) / ITERATION_TIME_S


class World:
    """What a job does besides: relative rate and power in grains of time, or of work, and the scatter of iterations.

    Attributes:
        is_by_work: whether what wanders belongs to the work (the data), and not to the time (the machine).
        ends: the work until the end of each iteration, in iterations of mean length, ascending.
    """

    def __init__(self, *, lasts_s: float, scatter_ratio: float, is_by_work: bool, rng: np.random.Generator) -> None:
        n_grains = math.ceil(2 * lasts_s / GRAIN_S) + 2
        self.is_by_work = is_by_work
        self._rates = np.exp(_wandering(RATE_RATIO, n_grains, rng)).tolist()
        self._powers = np.exp(_wandering(POWER_RATIO, n_grains, rng)).tolist()
        ambient_k = AMBIENT_K / POWER_RATIO * _wandering(POWER_RATIO, n_grains, rng.spawn(1)[0])
        self._ambient_k: list[float] = ambient_k.tolist()
        n = lasts_s / ITERATION_TIME_S
        n_drawn = math.ceil(n + MOST_DEVIATIONS * (1 + scatter_ratio * math.sqrt(n)))
        scatter = scatter_ratio * rng.standard_normal(n_drawn)
        self.ends: list[float] = np.cumsum(np.exp(scatter - scatter_ratio**2 / 2)).tolist()

    def grain(self, at_s: float, work: float) -> tuple[float, float, float, float]:
        """Return relative rate and power at a time [s] and a work, and until which time and work they hold."""
        number = int((work * ITERATION_TIME_S if self.is_by_work else at_s) / GRAIN_S + ROUNDING)
        until_s = (number + 1) * GRAIN_S
        ends = (math.inf, until_s / ITERATION_TIME_S) if self.is_by_work else (until_s, math.inf)
        return self._rates[number], self._powers[number], *ends

    def ambient_k(self, at_s: float) -> float:
        """Return how much warmer than usual the room is at a time [s]."""
        return self._ambient_k[min(int(at_s / GRAIN_S), len(self._ambient_k) - 1)]


def _wandering(ratio: float, n_grains: int, rng: np.random.Generator) -> Values:
    keep = math.exp(-GRAIN_S / WANDER_S)
    noise = rng.standard_normal(n_grains + WARM_UP_GRAINS)
    wander = lfilter([math.sqrt(1 - keep * keep)], [1.0, -keep], noise)
    drift = np.cumsum(rng.standard_normal(n_grains)) * math.sqrt(GRAIN_S / DAY_S)
    return np.asarray(ratio * wander[WARM_UP_GRAINS:] + DRIFT_RATIO * drift)


@dataclass(slots=True, kw_only=True)
class Board:
    """A board that does a job's work: of the run, or of its twin.

    Attributes:
        case, world, thermal: what it does.
        at_s: the time since the start [s].
        work: what is done, in iterations of mean length.
        energy_j: what was used [J].
        cold_ratio: by how much more it draws than when it is as warm as at the top: 0 or less.
    """

    case: Case
    world: World
    thermal: Thermal
    at_s: float = 0.0
    work: float = 0.0
    energy_j: float = 0.0
    cold_ratio: float = COLD_RATIO

    def work_for(self, power_limit_w: float, most_s: float, until: float) -> None:
        """Work at a limit for a while, at most until so much is done."""
        left_s, base_w = most_s, self.case.power_w(power_limit_w)
        warm_ratio = self.thermal.warmth_ratio(self.case.power_w(TOP_W) - base_w)
        while left_s > SHORTEST_S and self.work < until:
            rate, power, until_s, until_work = self.world.grain(self.at_s, self.work)
            rate_per_s = rate * self.case.rate_per_s(power_limit_w)
            end = min(until, until_work)
            needed_s = (end - self.work) / rate_per_s
            lasts_s = min(left_s, until_s - self.at_s, needed_s)
            self.energy_j += power * base_w * (1 + self._warmed(warm_ratio, lasts_s)) * lasts_s
            self.work = end if lasts_s == needed_s else self.work + rate_per_s * lasts_s
            self.at_s += lasts_s
            left_s -= lasts_s

    def pause(self, lasts_s: float) -> None:
        """Validate for a while."""
        power_w = VALIDATION_POWER_RATIO * self.case.power_w(TOP_W)
        if self.thermal.k_per_w:
            power_w *= 1 + self._warmed(self.thermal.warmth_ratio(self.case.power_w(TOP_W) - power_w), lasts_s)
        else:
            self._warmed(COLD_RATIO, lasts_s)
        self.energy_j += power_w * lasts_s
        self.at_s += lasts_s

    @property
    def temperature_c(self) -> float:
        """Return what the sensor tells; it is not where a board without a thermal state is cold."""
        cooler_k = self.cold_ratio / self.thermal.ratio_per_k if self.thermal.k_per_w else 0.0
        return float(round(WARM_C + cooler_k + self.world.ambient_k(self.at_s)))

    def _warmed(self, target_ratio: float, lasts_s: float) -> float:
        """Return the mean of `cold_ratio` while it goes to where it ends in the long run."""
        if lasts_s <= 0:
            return self.cold_ratio
        gap_ratio, within_s = self.cold_ratio - target_ratio, self.thermal.time_constant_s
        left_ratio = math.exp(-lasts_s / within_s)
        self.cold_ratio = target_ratio + gap_ratio * left_ratio
        return target_ratio + gap_ratio * (1 - left_ratio) * within_s / lasts_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where a run validates, by its work, and for how long [s]; 0 s at its end."""

    work: float
    lasts_s: float


def stops_of(lasts_s: float, rng: np.random.Generator) -> list[Stop]:
    """Return where a run of so long [s] validates: two to five times, or each 1 to 4 h, for a twentieth at most."""
    every_s = min(rng.uniform(1, 4) * HOUR_S, rng.uniform(0.2, 0.4) * lasts_s)
    pause_s = min(rng.uniform(60, 300), 0.05 * every_s)
    works = [at_s / ITERATION_TIME_S for at_s in np.arange(every_s, lasts_s - 0.1 * every_s, every_s).tolist()]
    return [*(Stop(work=work, lasts_s=pause_s) for work in works), Stop(work=lasts_s / ITERATION_TIME_S, lasts_s=0.0)]


def twin_of(board: Board, stops: Sequence[Stop]) -> Board:
    """Return the board of the twin that has done the same work at the top limit."""
    twin = Board(case=board.case, world=board.world, thermal=board.thermal)
    for stop in stops:
        twin.work_for(TOP_W, math.inf, stop.work)
        twin.pause(stop.lasts_s)
    return twin


@dataclass(slots=True)
class Node:
    """A run's decisions, ledger and books, as the node that leads it has them.

    Attributes:
        control, books: the controller's.
        in_force: the limit, and since when [ns].
        changed_s: when the limit changed [s].
        n_curves: how many curves it was on.
        due_s: when it is to be looked again how well its saving is known [s].
    """

    control: LimitControl = field(
        default_factory=lambda: LimitControl(
            job="a_over_a", run="r1", profiler=PROFILER, rules=PlanConfig().rules_of("a_over_a"), energy=EnergyConfig()
        )
    )
    books: RunBooks = field(default_factory=RunBooks)
    in_force: tuple[float, int] = (TOP_W, 0)
    changed_s: float = 0.0
    n_curves: int = 1
    due_s: float = 0.0

    def __post_init__(self) -> None:
        """Begin between the limits of the board."""
        self.control.begin(CurveStart(floor_power_limit_w=FLOOR_W, ceiling_power_limit_w=TOP_W))
        self.books.top_power_limit_w = TOP_W

    def choose(self, at_s: float, *, n_iterations: float, active_s: float, total: float | None) -> float:
        """Ask for the limit, which is in force at once [W]."""
        progress = Progress(
            n_iterations=n_iterations, active_s=active_s, started_at_s=MIDNIGHT_S, total_iterations=total
        )
        now_s = MIDNIGHT_S + at_s
        plan = PlanInputs(
            now_s=now_s, history=None, forecast=None, progress=progress, provenance=Provenance(source="energy")
        )
        decision = self.control.decide(
            DecisionInputs(now_s=now_s, n_iterations=n_iterations, curve_start=lambda: None, plan=lambda: plan)
        )
        assert decision.target is not None
        assert decision.purpose is not None
        self.books.purpose = decision.purpose
        return self._set_limit(decision.target.power_limit_w, at_s)

    def begin_pause(self, at_s: float) -> None:
        """Go to the highest limit where something is measured or tried out."""
        highest = self.control._highest_while_waiting("no iterations")
        if highest is not None:
            self._set_limit(highest.power_limit_w, at_s)

    def _set_limit(self, power_limit_w: float, at_s: float) -> float:
        if power_limit_w != self.in_force[0]:
            self.in_force, self.changed_s = (power_limit_w, ns(at_s)), at_s
        return power_limit_w

    def enter(self, interval: MeterInterval) -> None:
        """Enter an interval, and learn from it, as `controller.runs.run` does."""
        self.control.ledger.add(interval, self.in_force)
        at_s = interval.end_ns / NS_PER_S
        if at_s >= self.due_s and isinstance(self.control.state, Planned):
            self.due_s = at_s + max(PERIOD_RATIO * at_s, CHECK_S)
            self.control.ledger.knows_energy = is_energy_known(self.saving())
        if isinstance(self.control.state, Planned):
            self.books.curve = self.control.state.refinement.profile
        self.books.add(interval, GpusNow(in_force=self.in_force), begins_s=MIDNIGHT_S + interval.begin_ns / NS_PER_S)
        if not interval.active:
            return
        warmth_w = self.books.thermal.warmth_w
        update = self.control.observe(interval, enforced_power_limit_w=self.in_force[0], warmth_w=warmth_w)
        if update is not None and update.dropped is not None:
            self.books.close(self.control.ledger.looks)
            self.control.restart_time_budget()
            self.n_curves += 1

    def saving(self) -> KnownSaving | UnknownSaving:
        """Return what the run has saved, or why that is not known."""
        return self.books.saving(self.control.ledger.looks)

    @property
    def n_looks(self) -> int:
        """Return the number of looks at the top."""
        return self.control.ledger.looks.n_looks(TOP_W)

    def step_s(self, at_s: float, *, steady_s: float, length_s: float | None) -> float:
        """Return how long it is to the next reading: short where something is measured [s]."""
        control, state = self.control, self.control.state
        if not isinstance(state, Planned):
            return SWEEP_STEP_S
        if control.is_exploring:
            return TRIAL_STEP_S
        lengths, active_s = control.ledger.look_lengths(state.refinement), control.ledger.looks.active_s
        near_s = lengths.side_s + MORE_S
        due_s = control.ledger.snapshot().looked_s + look_period_s(
            self.n_looks, lengths, age_s=active_s, length_s=length_s
        )
        is_near = active_s > due_s - near_s - steady_s or at_s - self.changed_s < near_s
        return LOOK_STEP_S if is_near or control.ledger.is_looking else steady_s


class Meters:
    """Reads a run's board: intervals between readings of an energy counter that moves in ticks."""

    def __init__(self, board: Board, rng: np.random.Generator) -> None:
        self._board, self._rng = board, rng
        self._phase_s = float(rng.uniform(0.0, TICK_S))
        self._at_s = self._work = self._energy_j = self._seen_j = 0.0
        self._n_ended, self._ended_s = 0, 0.0
        self._temperature_c = board.temperature_c

    def read(self, *, active: bool = True) -> MeterInterval:
        """Return the interval since the last reading."""
        board, begin_s, begin_work = self._board, self._at_s, self._work
        lasts_s, n_before, ended_s = board.at_s - begin_s, self._n_iterations(), []
        while self._n_ended < len(board.world.ends) and board.world.ends[self._n_ended] <= board.work:
            share = (board.world.ends[self._n_ended] - begin_work) / (board.work - begin_work)
            ended_s.append(begin_s + share * lasts_s)
            self._n_ended += 1
        marks_s = [self._ended_s, *ended_s]
        self._ended_s = marks_s[-1] if active else self._ended_s + lasts_s  # none goes on in a validation
        lag_s = (self._phase_s + abs(READING_S * self._rng.standard_normal())) % TICK_S
        power_w = (board.energy_j - self._energy_j) / lasts_s
        before_j, self._seen_j = self._seen_j, max(board.energy_j - power_w * lag_s, self._seen_j)
        self._at_s, self._work, self._energy_j = board.at_s, board.work, board.energy_j
        before_c, self._temperature_c = self._temperature_c, board.temperature_c
        return MeterInterval(
            begin_ns=ns(begin_s),
            end_ns=ns(board.at_s),
            active=active,
            n_iterations=self._n_iterations() - n_before,
            energy_j=self._seen_j - before_j,
            iteration_times_s=tuple(later_s - earlier_s for earlier_s, later_s in pairwise(marks_s)),
            temperature_c=(before_c + self._temperature_c) / 2,
        )

    def _n_iterations(self) -> float:
        """Return the iterations up to the last reading, with the fraction of the one that goes on."""
        ends, n = self._board.world.ends, self._n_ended
        began = ends[n - 1] if n else 0.0
        return n + (self._work - began) / (ends[n] - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run to be simulated.

    Attributes:
        case: what is true.
        lasts_s: how long it would take at the top limit, without pauses [s].
        scatter_ratio: that of single iterations.
        seed: of all that is random in it.
    """

    case: Case
    lasts_s: float
    scatter_ratio: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What was told of a run up to some time, and what is true.

    Attributes:
        at_s: the time [s].
        known: what was told.
        saved_ratio, slowdown_ratio: the true ones.
    """

    at_s: float
    known: KnownSaving
    saved_ratio: float
    slowdown_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was told of a run.

    Attributes:
        task: the run.
        saved_ratio: what it has truly saved.
        first, last: the first number, and the one at its end; None: there was none.
        reason: why there was none at its end.
        n_curves: how many curves the run was on.
    """

    task: Task
    saved_ratio: float
    first: Told | None
    last: Told | None
    reason: str
    n_curves: int


def told_of(board: Board, stops: Sequence[Stop], found: KnownSaving | UnknownSaving) -> Told | None:
    """Return what is told of a run up to now beside the truth, by its twin up to the same work; None: nothing.

    That a run which was never below the top has saved nothing is no estimate.
    """
    if not isinstance(found, KnownSaving) or found.is_unchanged:
        return None
    passed = [stop for stop in stops if stop.work <= board.work]
    twin = twin_of(board, [*passed, Stop(work=board.work, lasts_s=0.0)])
    return Told(
        at_s=board.at_s,
        known=found,
        saved_ratio=1 - board.energy_j / twin.energy_j,
        slowdown_ratio=board.at_s / twin.at_s,
    )


def reason_of(found: KnownSaving | UnknownSaving) -> str:
    """Return why no estimate is told; empty: one is."""
    if isinstance(found, UnknownSaving):
        return found.code
    return "nothing_changed" if found.is_unchanged else ""


def simulate(task: Task) -> Finding:
    """Return what is told of a run, beside its twin."""
    rng = np.random.default_rng(task.seed)
    is_by_work = rng.random() < BY_WORK_SHARE
    total = task.lasts_s / ITERATION_TIME_S if rng.random() < TOLD_SHARE else None
    world = World(lasts_s=task.lasts_s, scatter_ratio=task.scatter_ratio, is_by_work=is_by_work, rng=rng)
    stops = stops_of(task.lasts_s, rng)
    thermal = thermal_of(task.seed) if task.case.has_thermal_state else Thermal()
    board, node = Board(case=task.case, world=world, thermal=thermal), Node()
    meters = Meters(board, rng)
    steady_s = STEADY_STEPS_S[task.lasts_s > LONG_RUN_S]
    first, check_s, paused_s = None, 0.0, 0.0
    for number, stop in enumerate(stops):
        while board.work < stop.work:
            limit_w = node.choose(board.at_s, n_iterations=board.work, active_s=board.at_s - paused_s, total=total)
            step_s = node.step_s(board.at_s, steady_s=steady_s, length_s=task.lasts_s if total else None)
            board.work_for(limit_w, step_s, stop.work)
            node.enter(meters.read())
            if first is None and board.at_s >= check_s:
                first = told_of(board, stops[:number], node.saving())
                check_s = board.at_s + max(PERIOD_RATIO * board.at_s, CHECK_S)
        for pause_s in (min(stop.lasts_s, PROFILER.pause_s), stop.lasts_s - PROFILER.pause_s):
            if pause_s > 0:
                board.pause(pause_s)
                node.enter(meters.read(active=False))
            if stop.lasts_s > PROFILER.pause_s:
                node.begin_pause(board.at_s)
        paused_s += stop.lasts_s
    found = node.saving()
    return Finding(
        task=task,
        saved_ratio=1 - board.energy_j / twin_of(board, stops).energy_j,
        first=first,
        last=told_of(board, stops, found),
        reason=reason_of(found),
        n_curves=node.n_curves,
    )
